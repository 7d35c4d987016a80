"""Runs in which a model learns from data."""
