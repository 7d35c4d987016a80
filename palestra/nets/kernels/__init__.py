"""Plain mlps and networks of sets on a CPU by hand."""
