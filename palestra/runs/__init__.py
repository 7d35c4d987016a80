"""A run as a config, as parts, and as a folder."""
