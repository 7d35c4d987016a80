"""The folder of a run and its checkpoints. Storage knows nothing of the trainer."""

from palestra.storage.checkpoints import Checkpoints, LoadedCheckpoint
from palestra.storage.run_folder import RunFolder, RunFolderError, run_facts, write_json, write_text
from palestra.storage.segments import CheckpointError, SegmentedRows, StoredRows

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "LoadedCheckpoint",
    "RunFolder",
    "RunFolderError",
    "SegmentedRows",
    "StoredRows",
    "run_facts",
    "write_json",
    "write_text",
]
