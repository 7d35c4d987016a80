"""Learning from recorded play, beside d3rlpy: what is learned, and how fast."""
