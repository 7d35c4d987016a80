"""Derivatives and choices by hand."""
