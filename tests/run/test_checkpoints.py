"""What checkpoints promise, but for replay rows (test_replay_segments.py).

Covers palestra.storage, palestra.run.loaded_checkpoint, palestra.storage.manifest.
"""

import copy
import hashlib
import json
import math
import os
import pickle
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import replace_by, turn_into_a_folder, turn_into_a_link
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.run.checkpoints import Checkpoints
from palestra.storage.disk import DISK
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError, DamagedOnceError, MissingCheckpointError, StoredFile
from tests.forked import run as run_forked
from tests.run.ring import NONE, Ring


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def save(checkpoints: Checkpoints, number: int, state: dict[str, Any] | None = None) -> str:
    state = {"number": number, "weight": torch.full((3,), float(number))} if state is None else state
    return checkpoints.save(
        number, state, {"env_steps": number * 10}, {}, records=Measure([b"x" * number * 100]).then()
    )


def assert_equal_to_the_bit(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        bytes_a, bytes_b = (t.detach().clone().contiguous().flatten().view(torch.uint8) for t in (a, b))
        assert torch.equal(bytes_a, bytes_b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal_to_the_bit(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal_to_the_bit(x, y)
    elif isinstance(a, float):
        assert repr(a) == repr(b)
    else:
        assert a == b


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- what is saved comes back ------------------------------------------------------------------------

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_tensors_of_every_dtype_and_shape_come_back(run: RunFolder, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save(checkpoints, 0, {"x": tensor})
    assert_equal_to_the_bit(checkpoints.load("latest").state, {"x": tensor})


def test_views_and_tensors_that_share_memory_come_back_whole_and_apart(run: RunFolder) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    z = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        "base": base,
        "again": base,
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(5, 6),
        "conjugate": z.conj(),
        "negative": z.conj().imag,
        "parameter": torch.nn.Parameter(base[1]),
    }
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save(checkpoints, 0, state)
    loaded = checkpoints.load("latest").state
    for key, tensor in state.items():
        assert torch.equal(loaded[key], tensor.detach()), key
    loaded["again"].fill_(0)
    assert torch.equal(loaded["base"], base)


JSON_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.sampled_from(["$tensor", "$dict", "a/b", "a~1b", "", "__metadata__"])
STATES = st.recursive(
    JSON_LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=80)
@given(state=st.dictionaries(KEYS, STATES, max_size=4))
def test_any_nested_state_comes_back_exactly(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoints = Checkpoints(RunFolder.create(tmp_path_factory.mktemp("runs"), "run"), keep_last=1, keep_every=None)
    save(checkpoints, 0, state)
    assert_equal_to_the_bit(checkpoints.load("latest").state, state)


def test_integers_of_any_size_and_all_floats_come_back(run: RunFolder) -> None:
    state = {
        "integers": [0, -1, 2**63 - 1, 2**63, -(2**63), 2**127 + 1, -(7**9000)],
        "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf],
    }
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save(checkpoints, 0, state)
    loaded = checkpoints.load("latest")
    assert_equal_to_the_bit(loaded.state, state)
    stored = json.loads((loaded.folder / "state.json").read_text())["integers"]
    assert stored[:4] == [0, -1, 2**63 - 1, {"$int": "0x8000000000000000"}]  # other readers of JSON have 64 bits


def test_an_optimizer_goes_on_to_the_same_bits(run: RunFolder) -> None:
    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()

    net = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    train(net, optimizer)
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save(checkpoints, 0, {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    restored = torch.nn.Linear(4, 3)
    restored_optimizer = torch.optim.Adam(restored.parameters(), lr=0.5)
    state = checkpoints.load("latest").state
    restored.load_state_dict(state["net"])
    restored_optimizer.load_state_dict(state["optimizer"])
    train(net, optimizer)
    train(restored, restored_optimizer)
    assert_equal_to_the_bit(dict(restored.state_dict()), dict(net.state_dict()))
    assert_equal_to_the_bit(restored_optimizer.state_dict(), optimizer.state_dict())


def test_tensors_whose_paths_look_alike_are_not_mixed_up(run: RunFolder) -> None:
    one, two, three = (torch.tensor(i) for i in (1, 2, 3))
    state = {"a": {"b": one}, "a/b": two, "a~1b": three, "__metadata__": {"$tensor": two}, "": one}
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save(checkpoints, 0, state)
    assert_equal_to_the_bit(checkpoints.load("latest").state, state)


def test_counters_records_length_and_machine_are_in_the_manifest(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    checkpoints.save(4, {}, {"env_steps": 1024, "opt_steps": 2**70}, {}, records=Measure([b"x" * 321]).then())
    loaded = checkpoints.load(4)
    assert (loaded.counters, loaded.records.length) == ({"env_steps": 1024, "opt_steps": 2**70}, 321)
    assert loaded.manifest.number == 4
    assert {"python", "torch", "numpy", "numba", "palestra"} <= set(loaded.manifest.versions)
    assert loaded.manifest.machine["processor"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"state/player/x: expected tensors, numbers, .*, got set"),
        ({"a": 1, 2: 3}, r"state/player/x: expected a dict whose keys are all str or all int, got"),
        ({1.5: 2}, r"state/player/x: expected a dict whose keys are all str or all int, got"),
        (
            torch.ones(2).to_sparse(),
            r"state/player/x: expected a dense tensor of a stored type, got torch.float32, torch.sparse_coo",
        ),
    ],
    ids=["set", "mixed keys", "float keys", "sparse"],
)
def test_what_cannot_be_saved_is_named_by_its_path(run: RunFolder, value: Any, message: str) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    with pytest.raises(TypeError, match=message):
        save(checkpoints, 0, {"player": {"x": value}})
    assert checkpoints.numbers() == []


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    folders = []
    for name in ("first", "second"):
        run = RunFolder.create(tmp_path, name)
        state = {"b": torch.arange(3), "a": [1.5, {"d": 1, "c": torch.zeros(2, 2)}], "i": {2: True, 1: None}}
        if name == "second":  # equal, but made otherwise
            state = {key: copy.deepcopy(state[key]) for key in reversed(state)}
            state["a"][1] = {"c": torch.zeros(5, 2)[1:3], "d": 1}
            state["i"] = {1: None, 2: True}
        ring = Ring(capacity=10)
        ring.add(7)
        Checkpoints(run, 1, None, segment_rows=4).save(3, state, {"y": 1, "x": 2}, {"host": ring}, records=NONE)
        folders.append(folder_bytes(run.checkpoints.path / "00000003") | folder_bytes(run.buffers.path))
    assert len(folders[0]) == 5  # manifest, state, tensors, tail, one segment
    assert folders[0] == folders[1]


# ---- what is kept ------------------------------------------------------------------------------------


def test_the_last_ones_every_nth_the_best_and_the_latest_are_kept(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=5)
    for number in range(13):
        name = save(checkpoints, number)
        if number == 3:
            checkpoints.mark_best(name)
    assert checkpoints.numbers() == [0, 3, 5, 10, 11, 12]
    assert (run.checkpoints.path / "latest").read_text().strip() == "00000012"
    assert (run.checkpoints.path / "best").read_text().strip() == "00000003"
    assert checkpoints.load("best").state["number"] == 3
    assert checkpoints.load(10).state["number"] == 10
    assert checkpoints.load(run.checkpoints.path / "00000005").state["number"] == 5


def test_a_save_over_an_earlier_number_gives_up_the_future_that_followed_it(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)
    for number in range(5):
        save(checkpoints, number)
    save(checkpoints, 3, {"number": "again"})
    assert checkpoints.numbers() == [2, 3]
    assert checkpoints.load("latest").state == {"number": "again"}


def test_what_a_killed_save_left_is_removed_at_the_next_open_by_the_holder_of_the_lock(run: RunFolder) -> None:
    save(Checkpoints(run, keep_last=1, keep_every=None), 1)
    (run.checkpoints.path / ".00000002.tmp").mkdir()
    (run.checkpoints.path / ".00000002.tmp" / "state.json").write_text("{")
    (run.checkpoints.path / ".latest.123.tmp").write_text("0000")
    run.buffers.make()
    (run.buffers.path / ".host-0-4-01234567.safetensors.99.tmp").write_text("x")
    (run.buffers.path / "host-0-4-01234567.safetensors").write_text("named by no manifest")
    run.root.below("rollouts").make()
    for name in ("0.parquet", ".1.parquet.99.tmp", ".notes.txt.99.tmp"):  # the last is the user's own
        (run.path / "rollouts" / name).write_text("x")
    Checkpoints(run, keep_last=1, keep_every=None)  # a reader leaves the folder as it is: the writer may be at work
    assert (run.checkpoints.path / ".00000002.tmp").exists()
    with run.lock():
        checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    assert sorted(path.name for path in run.checkpoints.path.iterdir()) == ["00000001", "latest"]
    assert list(run.buffers.path.iterdir()) == []
    assert sorted(path.name for path in (run.path / "rollouts").iterdir()) == [".notes.txt.99.tmp", "0.parquet"]
    assert checkpoints.load("latest").state["number"] == 1


# ---- damage ------------------------------------------------------------------------------------------


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped state": lambda folder: flip_a_byte(folder / "state.json"),
    "flipped tensors": lambda folder: flip_a_byte(folder / "tensors.safetensors"),
    "flipped manifest": lambda folder: flip_a_byte(folder / "manifest.json"),
    "short tensors": lambda folder: os.truncate(folder / "tensors.safetensors", 20),
    "empty manifest": lambda folder: os.truncate(folder / "manifest.json", 0),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "no folder": shutil.rmtree,
    "other counters": lambda folder: (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text().replace('"env_steps": 30', '"env_steps": 31')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_latest_is_named_and_the_one_before_it_is_used(
    run: RunFolder, damage: Callable[[Path], object]
) -> None:
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)
    for number in range(4):
        save(checkpoints, number)
    damage(run.checkpoints.path / "00000003")
    loaded = checkpoints.load("latest")
    assert loaded.state["number"] == 2
    assert len(loaded.warnings) == 1
    assert "00000003 is damaged" in loaded.warnings[0]


@pytest.mark.parametrize(
    "damage", [flip_a_byte, Path.unlink, turn_into_a_link, turn_into_a_folder, replace_by(b"longer than it was")]
)
def test_a_file_that_is_written_once_is_named_in_all_checkpoints_and_its_damage_in_one_line(
    run: RunFolder, damage: Callable[[Path], object]
) -> None:
    run.players.make().write("rival.yml", b"written once")
    run.players.write("thesis.txt", b"a user's own")
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)
    checkpoints.note_once()
    save(checkpoints, 0)
    checkpoints.write_once("players", "model.json", b"later")
    save(checkpoints, 1)
    names = [list(checkpoints.load(number).manifest.once["players"]) for number in range(2)]
    assert names == [["rival.yml"], ["model.json", "rival.yml"]]
    (run.path / "players" / "thesis.txt").unlink()
    assert checkpoints.load("latest").manifest.number == 1
    damage(run.path / "players" / "model.json")
    loaded = checkpoints.load("latest")  # the one before does not name it
    assert loaded.manifest.number == 0
    assert [line.split(" ")[0] for line in loaded.warnings] == [f"{run.path}/players/model.json"]
    damage(run.path / "players" / "rival.yml")
    assert checkpoints.load("latest", check_rows=False).manifest.number == 1  # whoever evaluates reads what it needs
    with pytest.raises(CheckpointError) as error:
        checkpoints.load(0)
    assert str(error.value).startswith(f"{run.path}/players/rival.yml ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink, replace_by(b"with a remark of a reader")])
@pytest.mark.parametrize("name", ["transcripts/0.yml", "rollouts/main-0.parquet"])
def test_a_changed_file_that_training_does_not_read_is_told_and_costs_no_checkpoint(
    run: RunFolder, damage: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    folder, file = name.split("/")
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)
    save(checkpoints, 0)
    checkpoints.write_once(folder, file, b"as it was")  # type: ignore[arg-type]
    checkpoints.write_once("rollouts", "0.parquet", b"read again")
    save(checkpoints, 1)
    run.root.write(run.config.name, b"{}")
    damage(run.path / name)
    loaded = checkpoints.load("latest")
    assert loaded.manifest.number == 1
    [line] = loaded.warnings
    assert line.startswith(f"{run.path / name} ")
    assert line.endswith("; training does not need it")
    branch = Checkpoints(RunFolder.create(tmp_path, "branch"), keep_last=3, keep_every=None)
    branch.take_once(loaded)
    assert branch.once == {"rollouts": {"0.parquet": loaded.manifest.once["rollouts"]["0.parquet"]}}
    (run.path / "rollouts" / "0.parquet").unlink()
    assert checkpoints.load("latest").manifest.number == 0


def test_a_file_that_the_disk_refuses_is_written_before_the_next_checkpoint_names_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)

    def refuse(folder: int, name: str) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(DISK, "create", refuse)
        with pytest.raises(OSError, match="No space"):
            checkpoints.write_once("rollouts", "0.parquet", b"rows")
        with pytest.raises(CheckpointError, match="No space"):
            save(checkpoints, 0)
    save(checkpoints, 1)
    assert list(checkpoints.load(1).manifest.once["rollouts"]) == ["0.parquet"]
    assert checkpoints.read_once("rollouts", "0.parquet") == b"rows"
    (run.path / "rollouts" / "0.parquet").write_bytes(b"ROWS")
    with pytest.raises(DamagedOnceError, match=r"rollouts/0.parquet is missing, or differs from what was written$"):
        checkpoints.read_once("rollouts", "0.parquet")


def test_a_branch_takes_the_files_that_its_checkpoint_names_and_no_others(run: RunFolder, tmp_path: Path) -> None:
    run.root.write(run.config.name, b"{}")
    origin = Checkpoints(run, keep_last=3, keep_every=None)
    origin.write_once("players", "rival.yml", b"at first")
    origin.write_once("players", "model.json", b"of the origin")
    save(origin, 0)
    origin.write_once("players", "late.json", b"after the checkpoint")
    save(origin, 1)
    branch = Checkpoints(RunFolder.create(tmp_path, "branch"), keep_last=3, keep_every=None)
    branch.write_once("players", "model.json", b"of its own")
    branch.take_once(branch.load(run.checkpoints.path / "00000000"))
    content = {path.name: path.read_bytes() for path in (branch.root.path / "players").iterdir()}
    assert content == {"rival.yml": b"at first", "model.json": b"of its own"}
    save(branch, 0)
    assert branch.load(0).manifest.once == branch.once


def test_a_damaged_one_asked_for_by_number_is_an_error(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)
    save(checkpoints, 0)
    save(checkpoints, 1)
    flip_a_byte(run.checkpoints.path / "00000001" / "state.json")
    with pytest.raises(CheckpointError, match=r"00000001 is damaged: state.json differs from what was written"):
        checkpoints.load(1)


def test_all_damaged_is_an_error_that_names_each(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None)
    for number in range(2):
        save(checkpoints, number)
        flip_a_byte(run.checkpoints.path / f"{number:08d}" / "tensors.safetensors")
    with pytest.raises(CheckpointError, match=r"(?s)00000001 is damaged.*00000000 is damaged"):
        checkpoints.load("latest")


def test_a_checkpoint_is_found_by_its_opt_step_and_errors_list_the_opt_steps(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=9, keep_every=None)
    for number, opt_steps in enumerate((0, 2100, 4200, 4200)):
        checkpoints.save(number, {}, {"opt_steps": opt_steps}, {}, Measure([b""]).then())
    flip_a_byte(run.checkpoints.path / "00000002" / "manifest.json")
    path = run.checkpoints.path
    for which, number in (("@2100", 1), ("@0", 0), ("@4200", 3), (path / "@2100", 1), (path / "1", 1), (1, 1)):
        assert checkpoints.load(which).manifest.number == number
    there = "expected one of 0 (@0), 1 (@2100), 2 (damaged), 3 (@4200) (@: opt steps)"
    for which, name in (("@2000", "@2000"), (7, "00000007"), ("77", "00000077"), (path / "@2000", "@2000")):
        with pytest.raises(MissingCheckpointError) as caught:
            checkpoints.load(which)
        assert str(caught.value) == f"there is no checkpoint {name} in {path}; {there}"
    with pytest.raises(MissingCheckpointError) as caught:
        checkpoints.load("newest")
    there = there.replace("expected one", "expected latest, best, or one")
    assert str(caught.value) == f"there is no checkpoint newest in {path}; {there}"


def test_a_run_without_checkpoints_says_so(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    assert checkpoints.numbers() == []
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        checkpoints.load("latest")
    with pytest.raises(CheckpointError, match="marked as the best"):
        checkpoints.load("best")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"../../elsewhere"], ids=repr)
def test_a_lost_or_spoilt_pointer_leads_to_the_last_checkpoint(run: RunFolder, content: bytes | None) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None)
    save(checkpoints, 0)
    save(checkpoints, 1)
    if content is None:
        (run.checkpoints.path / "latest").unlink()
    else:
        (run.checkpoints.path / "latest").write_bytes(content)
    assert checkpoints.load("latest").state["number"] == 1


def test_a_later_format_is_a_clear_error(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None)
    save(checkpoints, 0)
    save(checkpoints, 1)
    manifest = run.checkpoints.path / "00000001" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 6}))
    with pytest.raises(CheckpointError, match=r"00000001: expected format 5, got 6 of a later palestra"):
        checkpoints.load("latest")


class Bomb:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.target,))


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_pickle_with_a_fitting_checksum_is_refused_and_never_run(run: RunFolder, tmp_path: Path, file: str) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None)
    save(checkpoints, 0)
    target = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(str(target)))
    folder = run.checkpoints.path / "00000000"
    (folder / file).write_bytes(bomb)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][file] = StoredFile.of(bomb).model_dump()
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True, indent=1) + "\n"
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoints.load(0)
    assert not target.exists()


# ---- saves that do not end ---------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["create", "write", "sync", "rename"])
def test_a_disk_that_fails_at_any_step_leaves_the_previous_checkpoint(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None, segment_rows=4)
    ring = Ring(capacity=20)
    ring.add(6)
    checkpoints.save(0, {"x": torch.ones(3)}, {}, {"host": ring}, records=NONE)
    original = getattr(DISK, function)
    for step in range(100):
        calls = iter(range(100))

        def fail(*args: Any, step: int = step, calls: Any = calls, original: Any = original) -> Any:
            if next(calls) == step:
                raise OSError(28, "No space left on device")
            return original(*args)

        ring.add(5)
        previous = checkpoints.load("latest")
        monkeypatch.setattr(DISK, function, fail)
        failure = None
        try:
            checkpoints.save(step + 1, {"x": torch.ones(3)}, {"rows": ring.num_added}, {"host": ring}, records=NONE)
        except CheckpointError as error:
            failure = str(error)
        finally:
            monkeypatch.setattr(DISK, function, original)
        if failure is None:
            break
        assert "No space left" in failure
        assert checkpoints.load("latest").folder.name in (previous.folder.name, f"{step + 1:08d}")
        assert not list(run.checkpoints.path.glob(".*"))
    assert step >= 2
    assert checkpoints.load("latest").counters == {"rows": ring.num_added}


def test_a_disk_that_is_full_while_tensors_are_written_leaves_the_previous_checkpoint(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
    save(checkpoints, 0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(CheckpointError, match="00000001 could not be saved"):
            save(checkpoints, 1, {"big": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(path.name for path in run.checkpoints.path.iterdir()) == ["00000000", "latest"]
    assert checkpoints.load("latest").state["number"] == 0


def test_a_save_killed_at_any_moment_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    script = Path(__file__).parent / "save_until_killed.py"
    done = run_forked([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    num_kills, num_saves, num_in_the_middle = map(int, done.stdout.split())
    assert num_kills == 60
    assert num_saves > 10, "the run went on from one kill to the next"
    assert num_in_the_middle > 5, "kills hit saves while they were under way"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("function", ["create", "write", "sync", "rename", "remove"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_checkpoint_that_is_kept_alone_without_rows_is_whole_after_a_kill_at_any_moment(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    original, step = getattr(DISK, function), 0
    for step in range(100):
        folder = RunFolder.create(run.path.parent, "kept")
        with folder.lock():
            checkpoints, ring = Checkpoints(folder, keep_last=3, keep_every=None, segment_rows=4), Ring(capacity=20)
            for each in range(3):
                ring.add(6)
                state = {"x": torch.full((3,), each), "has_replay_rows": True}
                checkpoints.save(each, state, {"rows": ring.num_added}, {"host": ring}, records=NONE)
            checkpoints.mark_best("00000000")
            assert not checkpoints.is_alone()
            calls = iter(range(100))

            def kill(*args: Any, step: int = step, calls: Any = calls) -> Any:
                if next(calls) == step:
                    raise Killed
                return original(*args)

            monkeypatch.setattr(DISK, function, kill)
            is_over = True
            try:
                checkpoints.keep_alone(number)
            except Killed:
                is_over = False
            monkeypatch.setattr(DISK, function, original)
            again = Checkpoints(folder, keep_last=3, keep_every=None)
            assert again.load(number).state["x"].tolist() == [number] * 3
            again.keep_alone(number)
            loaded = again.load("latest")
            assert (again.numbers(), again.best() in (number, None)) == ([number], True)
            assert (loaded.state["has_replay_rows"], loaded.buffers, loaded.warnings) == (False, {}, [])
            assert loaded.state["x"].tolist() == [number] * 3
            assert list(folder.path.rglob("host-*")) == []
            assert again.is_alone()
        if is_over:
            break
    assert is_over
    assert step > 0
