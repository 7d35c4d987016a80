"""Games of two beside the libraries that have them, too: how fast they are played."""
