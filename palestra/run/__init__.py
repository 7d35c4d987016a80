"""What all runs have in common, above the disk. A kind of run adds itself to KINDS."""

KINDS: dict[str, str] = {}
"""by the name of a trainer in a file, where its palestra.run.kinds.Kind is found, as `package.module:Class`"""
