"""Runs in which players learn in games, and tournaments, in which they play."""
