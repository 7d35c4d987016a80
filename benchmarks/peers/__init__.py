"""What palestra is measured beside: one small script per library, each run in a fresh interpreter."""
