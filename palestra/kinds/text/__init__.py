"""Runs in which players talk in words, and are tuned on what they have said."""
