"""Models that learn from data: what a model says of itself, and how its weights learn."""
