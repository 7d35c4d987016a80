"""The folder of a run and its checkpoints. It does not depend on the trainer."""

from palestra.storage.checkpoints import Checkpoints
from palestra.storage.disk import Folder, RefusedPathError, RunFolderError
from palestra.storage.facts import RunFacts
from palestra.storage.loaded_checkpoint import LoadedCheckpoint
from palestra.storage.run_folder import RunFolder
from palestra.storage.segments import CheckpointError, SegmentedRows, StoredRows

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Folder",
    "LoadedCheckpoint",
    "RefusedPathError",
    "RunFacts",
    "RunFolder",
    "RunFolderError",
    "SegmentedRows",
    "StoredRows",
]
