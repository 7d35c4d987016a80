"""`palestra verify`: a stretch of a run is trained again, and every difference is found.

Covers palestra.commands.replay.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.commands.replay import verify
from palestra.kinds.games.trainer import Trainer
from palestra.run.checkpoints import Checkpoints
from palestra.runtime.timing import TrainingClock
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import StoredFile, tensors_in, tensors_to_bytes, to_json
from tests.sweeps.made_runs import make_run
from tests.sweeps.small_runs import write_base

SILENT = """
from palestra.config import UserConfig
from palestra.recording import Recorder

class Silent(Recorder):
    Config = UserConfig

    def open(self, run):
        return 0

    def write(self, number, record): ...

    def flush(self): ...

    def close(self, end): ...
"""

MakeConfig = Callable[..., dict[str, Any]]


def train(make_config: MakeConfig, run: Path, changes: dict[str, Any]) -> list[int]:
    """The numbers of the checkpoints that were kept."""
    intervals = {"output.save": {"every": 8, "unit": "opt_steps"}, "output.keep_last": 9}
    Trainer(make_config(intervals | changes), run=run).fit()
    return Checkpoints(RunFolder.open(run), keep_last=1, keep_every=None).numbers()


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("changes", [{}, {"output.save": {"every": 7, "unit": "opt_steps"}}, {"num_replicas": 2}])
def test_a_run_is_reproduced_from_everywhere(make_config: MakeConfig, tmp_path: Path, changes: dict[str, Any]) -> None:
    numbers = train(make_config, tmp_path / "run", changes)
    before = contents(tmp_path / "run")
    assert len(numbers) > 2
    num_records = 0
    for start in ["beginning", *map(str, numbers[:-1])]:
        verdict = verify(tmp_path / "run", start)
        assert verdict.difference is None
        assert verdict.num_records > 0
        assert verdict.changed == []
        assert verdict.end is not None
        num_records += verdict.num_records if start != "beginning" else 0
    total = len((tmp_path / "run" / "records.jsonl").read_text().splitlines())
    assert num_records >= total - 1  # the evaluation before training lies before the first checkpoint
    assert contents(tmp_path / "run") == before


def test_by_default_the_last_stretch_is_trained_again(make_config: MakeConfig, tmp_path: Path) -> None:
    numbers = train(make_config, tmp_path / "run", {})
    assert verify(tmp_path / "run", None).start == f"{numbers[-2]:08d}"


def test_what_was_not_recorded_so_is_found(make_config: MakeConfig, tmp_path: Path) -> None:
    train(make_config, tmp_path / "run", {})
    path = tmp_path / "run" / "records.jsonl"
    lines = path.read_text().splitlines()
    changed = max(i for i, line in enumerate(lines) if json.loads(line)["kind"] == "training")
    record = json.loads(lines[changed])
    loss = record["players"]["host"]["loss"]
    record["players"]["host"]["loss"] = 0.0625
    path.write_text("".join(line + "\n" for line in [*lines[:changed], json.dumps(record), *lines[changed + 1 :]]))
    verdict = verify(tmp_path / "run", None)
    difference = verdict.difference
    assert verdict.damage is not None  # the checkpoint at the end knows what the records were
    assert "records.jsonl is damaged" in verdict.damage
    where = f"training at opt step {record['opt_steps']}, env step {record['env_steps']}"
    assert str(difference) == f"{where}: players.host.loss was 0.0625, is {loss}"


def test_another_learning_rate_is_found_in_the_first_record_after_it(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    numbers = train(make_config, run, {"output.record": None, "evaluations": [], "best": None})
    config = (run / "config.yml").read_text()
    other = re.sub(r"initial: 0.01\b", "initial: 0.011", config)
    assert other != config
    (run / "config.yml").write_text(other)
    difference = verify(run, "beginning").difference
    assert difference is not None
    assert "opt step" in difference.where
    assert numbers


def test_a_state_that_was_not_reached_so_is_found(make_config: MakeConfig, tmp_path: Path) -> None:
    """The records are the same; a weight of the last checkpoint's is not."""
    run = tmp_path / "run"
    numbers = train(make_config, run, {})
    checkpoint = run / "checkpoints" / f"{numbers[-1]:08d}"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["sha256"]
    tensors = tensors_in((checkpoint / "tensors.safetensors").read_bytes(), "tensors.safetensors")
    floats = sorted(name for name, tensor in tensors.items() if tensor.is_floating_point())
    name = next(name for name in floats if name.startswith("/players/host/nets/q/"))
    tensors[name].view(-1)[0] += 1.0
    content = tensors_to_bytes(tensors)
    (checkpoint / "tensors.safetensors").write_bytes(content)
    manifest["files"]["tensors.safetensors"] = StoredFile.of(content).model_dump()
    digest = hashlib.sha256(to_json(manifest).encode()).hexdigest()
    (checkpoint / "manifest.json").write_text(to_json(manifest | {"sha256": digest}))
    assert re.fullmatch(
        rf"checkpoint {numbers[-1]:08d}: 1 of the \d+ numbers of players.host.nets.q.\S+ differ",
        str(verify(run, str(numbers[-2])).difference),
    )


@pytest.fixture
def hasty_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of training goes a second further whenever it is looked at, more or less."""
    seconds = itertools.accumulate(itertools.cycle([0.7, 1.2, 1.1]))
    monkeypatch.setattr(TrainingClock, "seconds", property(lambda self: next(seconds)))


@pytest.mark.usefixtures("hasty_clock")
def test_saves_and_an_end_that_follow_the_clock_are_left_out_and_said(make_config: MakeConfig, tmp_path: Path) -> None:
    by_the_clock = {
        "output.save": {"every": 0.2, "unit": "minutes"},
        "stop": {"after": 1.6, "unit": "minutes"},
        "evaluations": [],
        "best": None,
    }
    train(make_config, tmp_path / "run", by_the_clock)
    for start in ("beginning", "1"):
        verdict = verify(tmp_path / "run", start)
        assert (verdict.difference, verdict.end, verdict.clocked) == (None, None, ["stop", "output.save"])
        assert verdict.num_records > 0
    said = CliRunner().invoke(app, ["verify", str(tmp_path / "run"), "--from", "beginning"])
    assert said.exit_code == 0, said.output
    assert "output.save counts minutes, which follow the clock: what it decides is not compared" in said.stdout


@pytest.mark.parametrize("key", ["output.record", "evaluations.0.interval"])
@pytest.mark.usefixtures("hasty_clock")
def test_records_that_follow_the_clock_are_not_called_differences(
    make_config: MakeConfig, tmp_path: Path, key: str
) -> None:
    train(make_config, tmp_path / "run", {key: {"every": 0.1, "unit": "minutes"}})
    with pytest.raises(
        RunFolderError,
        match=f"^{key}: expected a unit other than minutes, which follow the clock, to verify .*, got minutes$",
    ):
        verify(tmp_path / "run", None)


def test_nothing_to_compare_is_told(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    numbers = train(
        make_config, run, {"output.keep_last": 1, "output.keep_every": None, "evaluations": [], "best": None}
    )
    assert len(numbers) == 1
    with pytest.raises(RunFolderError, match=r"got only ones after which nothing was recorded; .*: --from beginning$"):
        verify(run, None)
    with pytest.raises(
        RunFolderError,
        match=r"^--from: expected a checkpoint of .* after which something was recorded, got a later one$",
    ):
        verify(run, str(numbers[-1]))


def test_the_command_says_so_and_how_it_ended(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(make_config, run, {})
    good = CliRunner().invoke(app, ["verify", str(run)])
    assert good.exit_code == 0, good.output
    assert "reproduced to the bit" in good.stdout
    records = run / "records.jsonl"
    records.write_text(records.read_text().replace('"loss": ', '"loss":1'))  # as many bytes
    bad = CliRunner().invoke(app, ["verify", str(run)])
    assert bad.exit_code == 1
    assert "not reproduced" in bad.stderr
    missing = CliRunner().invoke(app, ["verify", str(run), "--from", "77"])
    assert missing.exit_code == 2
    assert "there is no checkpoint 00000077" in missing.stderr


def test_a_recorder_of_ones_own_is_not_missed(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not run in a verification, and its source changes no bit."""
    (tmp_path / "silent.py").write_text(SILENT)
    monkeypatch.syspath_prepend(tmp_path)
    train(make_config, tmp_path / "run", {"output.recorders": [{"name": "silent:Silent"}]})
    verdict = verify(tmp_path / "run", None)
    assert verdict.difference is None
    assert verdict.changed == []


def test_a_forged_checkpoint_whose_state_lacks_entries_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "run", write_base(tmp_path), 0)  # of which the state is empty
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "run")])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "00000000" in result.output.splitlines()[-1]
