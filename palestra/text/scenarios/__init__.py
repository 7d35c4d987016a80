"""Scenarios of text: labelled questions in words."""
