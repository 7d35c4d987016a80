"""Plain mlps on a CPU by hand."""
