"""Whatever happens to the files of checkpoints: what is loaded is what was saved, or one error says why not.

Covers palestra.storage.facts.
"""

import contextlib
import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from damage import BOMB, DAMAGES, EXPLODED, HARMFUL, Damage
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from palestra.run.branching import tree_differences
from palestra.run.checkpoints import Checkpoints
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError, StoredFile, to_json
from tests.run.ring import NONE, Ring

CAPACITY = 14


class Saved(NamedTuple):
    """A run whose three checkpoints share segments of rows, and what each of them holds."""

    folder: Path
    states: list[dict[str, Any]]
    rows: list[dict[int, tuple[int, int]]]

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def reader(folder: Path) -> Checkpoints:
    return Checkpoints(RunFolder(folder), keep_last=3, keep_every=None, segment_rows=4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    run = RunFolder.create(tmp_path_factory.mktemp("runs"), "run")
    checkpoints, ring, states, rows = reader(run.path), Ring(CAPACITY), [], []
    for number in range(3):
        ring.add(6)
        state = {"number": number, "weight": torch.arange(5.0) + number, "some": [1.5, {"a": None}, ("b", 2**70)]}
        checkpoints.save(number, state, {"env_steps": number}, {"host": ring}, records=NONE)
        states.append(state)
        rows.append(dict(ring.held))
        if number == 1:
            checkpoints.mark_best("00000001")
    return Saved(run.path, states, rows)


def load(folder: Path, which: str) -> tuple[int, dict[str, Any], dict[int, tuple[int, int]], list[str]]:
    checkpoints, ring = reader(folder), Ring(CAPACITY)
    loaded = checkpoints.load(which)
    checkpoints.restore_buffers(loaded, {"host": ring})
    return loaded.manifest.number, loaded.state, ring.held, loaded.warnings


def assert_whole_or_told(folder: Path, which: str, saved: Saved, file: str) -> None:
    """Only what was saved is loaded; what is passed over is named with the file that is at fault."""
    try:
        loaded, told = load(folder, which), ""
    except CheckpointError as error:
        loaded, told = None, str(error)
    if loaded is None:
        assert Path(file).name in told
        return
    number, state, rows, warnings = loaded
    assert list(tree_differences(saved.states[number], state)) == []
    assert rows == saved.rows[number]
    is_pointer = file.endswith(("latest", "best"))
    assert number == {"latest": 2, "best": 1}[which] or is_pointer or Path(file).name in " ".join(warnings)


@settings(max_examples=80)
@given(data=st.data(), damage=DAMAGES)
def test_any_damage_to_any_file_is_passed_over_and_named(
    saved: Saved, data: st.DataObject, damage: Damage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = data.draw(st.sampled_from(saved.files()))
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(saved.folder, folder)
    damage(folder / file)
    for which in ("latest", "best"):
        assert_whole_or_told(folder, which, saved, file)
    run = RunFolder(folder)
    with run.lock():  # who holds the lock tidies up, which must harm nothing that is whole
        Checkpoints(run, keep_last=3, keep_every=None, segment_rows=4)
    assert_whole_or_told(folder, "latest", saved, file)
    assert not EXPLODED.exists()
    shutil.rmtree(folder.parent)


# ---- forged: every SHA-256 fits ------------------------------------------------------------------------


def sign(folder: Path, manifest: Any) -> None:
    """Write a manifest with the SHA-256 of itself."""
    manifest.pop("sha256", None)
    digest = hashlib.sha256(to_json(manifest).encode()).hexdigest()
    (folder / "manifest.json").write_text(to_json(manifest | {"sha256": digest}))


def forge(run: Path, change: Callable[[Path, dict[str, Any]], None]) -> Path:
    """Change the latest checkpoint, and sign it anew."""
    folder = run / "checkpoints" / "00000002"
    manifest = json.loads((folder / "manifest.json").read_text())
    change(folder, manifest)
    sign(folder, manifest)
    return folder


def test_an_earlier_format_is_refused_with_its_number(saved: Saved, tmp_path: Path) -> None:
    shutil.copytree(saved.folder, tmp_path / "run")
    folder = forge(tmp_path / "run", lambda folder, manifest: manifest.update(format=3))
    with pytest.raises(CheckpointError, match=rf"{folder.name}: expected format 5, got 3 of an earlier palestra"):
        load(tmp_path / "run", "latest")


def put(folder: Path, manifest: dict[str, Any], file: str, content: bytes) -> None:
    """Put other content into a file of a checkpoint, and its SHA-256 into the manifest."""
    stored = StoredFile.of(content).model_dump()
    segments = [segment for segment in manifest["buffers"]["host"]["segments"] if segment["file"] == file]
    (folder / file).write_bytes(content)
    for segment in segments:
        segment["stored"] = stored
    if not segments:
        manifest["files"][file] = stored


@pytest.fixture
def copied(saved: Saved, tmp_path: Path) -> Path:
    shutil.copytree(saved.folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("content", HARMFUL.values(), ids=HARMFUL.keys())
@pytest.mark.parametrize("kind", ["state.json", "tensors.safetensors", "tail", "segment"])
def test_harmful_content_with_a_fitting_checksum_is_refused_and_never_run(
    saved: Saved, copied: Path, kind: str, content: bytes
) -> None:
    def change(folder: Path, manifest: dict[str, Any]) -> None:
        files = [segment["file"] for segment in manifest["buffers"]["host"]["segments"]]
        put(folder, manifest, {"tail": files[-1], "segment": files[0]}.get(kind, kind), content)

    forge(copied, change)
    with pytest.raises(CheckpointError):
        load(copied, str(copied / "checkpoints" / "00000002"))
    assert not EXPLODED.exists()


@pytest.mark.parametrize("content", HARMFUL.values(), ids=HARMFUL.keys())
def test_a_harmful_manifest_is_refused_and_never_run(copied: Path, content: bytes) -> None:
    (copied / "checkpoints" / "00000002" / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load(copied, str(copied / "checkpoints" / "00000002"))
    assert not EXPLODED.exists()


@pytest.mark.parametrize(
    "file",
    [
        "../../x.safetensors",
        "../../../x.safetensors",
        "../00000001/tensors.safetensors",
        "../../buffers/../x.safetensors",
        "/etc/x.safetensors",
        "../../buffers/.x.safetensors",
        "manifest.json",
        "",
    ],
)
def test_rows_outside_of_the_run_are_refused(copied: Path, file: str) -> None:
    def change(folder: Path, manifest: dict[str, Any]) -> None:
        segment = manifest["buffers"]["host"]["segments"][-1]
        if file.endswith("x.safetensors") and not file.startswith("/"):
            (folder / file).resolve().write_bytes((folder / segment["file"]).read_bytes())
        segment["file"] = file

    forge(copied, change)
    with pytest.raises(CheckpointError, match=r"expected a .safetensors file in the checkpoint or in `buffers/`, got"):
        load(copied, str(copied / "checkpoints" / "00000002"))


def lose_a_file(folder: Path, manifest: dict[str, Any]) -> None:
    del manifest["files"]["tensors.safetensors"]


def want_a_row_more(folder: Path, manifest: dict[str, Any]) -> None:
    rows = manifest["buffers"]["host"]
    rows["start"], rows["num_added"] = rows["start"] + 1, rows["num_added"] + 1


def lose_a_row(folder: Path, manifest: dict[str, Any]) -> None:
    file = manifest["buffers"]["host"]["segments"][-1]["file"]
    rows = load_tensors((folder / file).read_bytes())
    put(folder, manifest, file, save_tensors({name: value[:-1] for name, value in rows.items()}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lose_a_file, r"expected state\.json and tensors\.safetensors among the files, got .*"),
        (want_a_row_more, "expected segments up to row 19, got 18"),
        (lose_a_row, "does not hold the expected 2 rows"),
    ],
)
def test_a_signed_checkpoint_that_lacks_something_is_refused_and_says_what(
    copied: Path, change: Callable[[Path, dict[str, Any]], None], message: str
) -> None:
    forge(copied, change)
    with pytest.raises(CheckpointError, match=message):
        load(copied, str(copied / "checkpoints" / "00000002"))


def test_a_manifest_of_another_checkpoint_is_passed_over(copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints" / "00000002")
    shutil.copytree(copied / "checkpoints" / "00000001", copied / "checkpoints" / "00000002")
    number, _, _, warnings = load(copied, "latest")
    assert number == 1
    assert "expected manifest.json of this checkpoint, got that of checkpoint 00000001" in warnings[0]


def test_a_manifest_larger_than_any_of_ours_is_not_read(copied: Path) -> None:
    with open(copied / "checkpoints" / "00000002" / "manifest.json", "ab") as file:
        file.truncate(1 << 40)  # sparse
    assert "expected at most " in load(copied, "latest")[3][0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def mutated(data: st.DataObject, document: Any) -> Any:
    """A copy in which one value, at any depth, is another or has gone."""
    document = copy.deepcopy(document)
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
        elif data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            return document
        else:
            del place[key]
            return document


@settings(max_examples=80)
@given(data=st.data(), file=st.sampled_from(["manifest.json", "state.json"]))
def test_any_forged_document_loads_or_is_refused(
    saved: Saved, data: st.DataObject, file: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("forged") / "run"
    shutil.copytree(saved.folder, run)

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        if file == "manifest.json":
            forged = mutated(data, manifest)
            manifest.clear()
            manifest.update(forged)
        else:
            put(folder, manifest, file, to_json(mutated(data, json.loads((folder / file).read_text()))).encode())

    forge(run, change)
    with contextlib.suppress(CheckpointError):
        number, state, rows, warnings = load(run, "latest")
        if number != 2:
            assert file in warnings[0]
        elif file == "manifest.json":
            assert list(tree_differences(state, saved.states[2])) == []
            assert rows == saved.rows[2]
    with RunFolder(run).lock():
        Checkpoints(RunFolder(run), keep_last=3, keep_every=None)
    before = reader(run).load(1)  # whatever is forged, it costs no other checkpoint anything
    assert list(tree_differences(before.state, saved.states[1])) == []
    assert all(list(rows.read(before.place)) for rows in before.buffers.values())
    shutil.rmtree(run.parent)


ROWS = st.dictionaries(
    st.sampled_from(["start", "num_added", "segments"]),
    JSON | st.lists(st.dictionaries(st.sampled_from(["file", "start", "stop", "stored"]), JSON), max_size=2),
)
AWKWARD = st.sampled_from(
    [
        -1,
        -(2**63),
        2**63,
        2**200,
        0,
        1,
        5,
        True,
        None,
        1.0,
        1e300,
        "3",
        "",
        "../../x.safetensors",
        "/etc/passwd",
        "\0",
        [],
    ]
)


@settings(max_examples=150)
@given(data=st.data())
def test_rows_in_a_signed_manifest_are_those_that_were_saved_or_are_named_as_the_fault(
    saved: Saved, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("forged") / "run"
    shutil.copytree(saved.folder, run)

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        rows = manifest["buffers"]["host"]
        segments = rows["segments"]
        place, key = data.draw(
            st.sampled_from([(rows, key) for key in rows] + [(row, key) for row in segments for key in row])
        )
        way = data.draw(st.sampled_from(["value", "nudge", "gone", "new key", "twice", "swap", "whole"]))
        if way == "nudge" and isinstance(place[key], int):
            place[key] += data.draw(st.sampled_from([-14, -4, -1, 1, 4, 14, 2**40]))
        elif way == "gone":
            del place[key]
        elif way == "new key":
            place["more"] = data.draw(JSON)
        elif way == "twice":
            segments.insert(data.draw(st.integers(0, len(segments))), data.draw(st.sampled_from(segments)))
        elif way == "swap":
            segments.reverse()
        elif way == "whole":
            manifest["buffers"] = data.draw(JSON | st.fixed_dictionaries({"host": JSON | ROWS}))
        else:
            place[key] = data.draw(AWKWARD | JSON)

    forge(run, change)
    told = "no error"
    try:
        number, _, rows, warnings = load(run, "latest")
    except CheckpointError as error:
        told = str(error)
    if told != "no error":
        assert told.partition("00000002")[2].startswith(
            (
                ": expected the last 14 rows of buffer host, got rows",
                ": expected rows of the buffers ['host'], got those of",
                ", capacity of the buffer of host: expected 13, because rows came round, got 14",  # from a row too late
            )
        )
    else:
        assert rows == saved.rows[number]
        assert number == 2 or "manifest.json" in warnings[0] or "safetensors" in warnings[0]
    shutil.rmtree(run.parent)


def test_a_bomb_goes_off_where_it_is_unpickled() -> None:
    """The bombs of this file are live."""
    import pickle

    pickle.loads(BOMB)
    assert EXPLODED.exists()
    EXPLODED.rmdir()
