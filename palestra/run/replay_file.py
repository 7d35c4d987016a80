"""Saves the rows of one replay buffer in a folder of their own: to begin another run with them, or to look at them.

rows/replay.json          which rows, in which files, with the SHA-256 of each; the rest of the buffer's state
     state.safetensors    the tensors of that state, such as priorities
     replay-0-8192-0a1b2c3d.safetensors, ...    the rows, in segments
"""

from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from palestra.storage import manifest, stored_files
from palestra.storage.disk import Folder, RunFolderError, writing

FACTS, STATE = "replay.json", "state.safetensors"


class SavedBuffer(manifest.SegmentedRows, Protocol):
    """A replay buffer that can be saved apart from its run: it gives its state, besides its rows."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ReplayFacts(stored_files.Entry):
    """The content of replay.json. kind: the buffer's class. state: as palestra.storage.stored_files encodes it."""

    format: Literal[1]
    kind: str
    capacity: int
    rows: manifest.StoredRows
    state: dict[str, Any]
    tensors: stored_files.StoredFile


def save_replay(buffer: SavedBuffer, path: str | Path) -> None:
    """Write the rows of a replay buffer into a new folder.

    Raises RunFolderError if there is one already, or if the disk refuses.
    """
    place = Path(path)
    if place.exists():
        raise RunFolderError(f"{place} exists already; expected a folder that does not")
    with writing(place):
        place.mkdir(parents=True)
        folder = Folder(place)
        bounds = manifest.segment_bounds(buffer, manifest.rows_per_segment(buffer, manifest.SEGMENT_ROWS))
        segments = tuple(manifest.write_segment(folder, "replay", buffer, start, stop) for start, stop in bounds)
        tensors: dict[str, Tensor] = {}
        state = stored_files.encode(buffer.state_dict(), "", tensors)
        content = stored_files.tensors_to_bytes(tensors)
        folder.write(STATE, content)
        facts = ReplayFacts(
            format=1,
            kind=type(buffer).__name__,
            capacity=buffer.capacity,
            rows=manifest.StoredRows(
                start=max(0, buffer.num_added - buffer.capacity), num_added=buffer.num_added, segments=segments
            ),
            state=state,
            tensors=stored_files.StoredFile.of(content),
        )
        folder.write(FACTS, stored_files.to_json(facts.model_dump()).encode())  # last: it makes the rows exist


def load_replay(buffer: SavedBuffer, path: str | Path) -> None:
    """Load what `save_replay` wrote into an empty replay buffer of the same kind and capacity.

    The buffer then draws what the saved one would have drawn. Raises ValueError for another buffer, DamagedError if a
    file differs from what was written; the buffer may then hold some of the rows.
    """
    folder = Folder(Path(path))
    facts = stored_files.read_entry(folder, FACTS, ReplayFacts, f"{path}/{FACTS}")
    expected, got = (facts.kind, facts.capacity), (type(buffer).__name__, buffer.capacity)
    if expected != got:
        raise ValueError(f"expected a {expected[0]} of capacity {expected[1]}, as the saved one, got {got}")
    if buffer.num_added:
        raise ValueError(f"expected an empty replay buffer, got one with {buffer.num_added} rows added")
    state = stored_files.decode(facts.state, stored_files.read_tensors(folder, STATE, facts.tensors))
    for start, rows in facts.rows.read(manifest.CheckpointPlace(folder, folder)):
        buffer.load_rows(start, rows)
    buffer.load_state_dict(state)
