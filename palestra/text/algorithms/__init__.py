"""The algorithms of text players: which answers a player learns from, a file each."""
