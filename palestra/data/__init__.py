"""Data sets: what they hold, in which order training reads it, and how it is read."""
