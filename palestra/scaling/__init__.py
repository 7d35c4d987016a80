"""Many processes for one run: replicas that learn the same networks in lockstep."""
