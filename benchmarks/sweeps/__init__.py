"""Benchmarks of `palestra sweep`."""
