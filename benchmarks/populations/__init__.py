"""Populations: whether they find more than independent runs, and what they cost."""
