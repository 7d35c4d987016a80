"""The folder of a run and its checkpoints. It does not depend on the trainer."""
