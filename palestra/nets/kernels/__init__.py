"""Kernels of plain mlps and networks of sets on a CPU, forward and backward by hand."""
