"""Training, whatever is trained."""
