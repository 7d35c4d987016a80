"""Hand-written kernels for CPUs: gradients of losses, advantages, and choices of actions."""
