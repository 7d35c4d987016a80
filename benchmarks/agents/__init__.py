"""Benchmarks of many agents in one game."""
