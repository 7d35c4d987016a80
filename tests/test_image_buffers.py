"""Runs on Atari with a buffer that stores frames once: the bits of one that stores whole rows, killed or not."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import palestra
from palestra.config import load_yaml
from palestra.recording.recorders import without_clock
from palestra.run.branching import tree_differences
from palestra.run.checkpoints import Checkpoints
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.run.shipped import shipped_configs
from palestra.storage import manifest
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from tests.forked import Forked

pytest.importorskip("ale_py")
PATIENCE_S = 120.0
PRIORITIZED = {
    "name": "prioritized",
    "capacity": 48,
    "alpha": 0.6,
    "beta": {"name": "linear", "initial": 0.4, "final": 1.0, "num_steps": 60},
    "eps": 1e-6,
    "layout": "frames_once",
    "scratch_folder": None,
}


def pong(**replay: Any) -> dict[str, Any]:
    """The shipped training, made tiny: some 120 env steps through a buffer of 48, episodes cut off, sums of three."""
    config = load_yaml(shipped_configs()["dqn-pong"])
    config["game"]["wrappers"].insert(
        1, {"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 19}}
    )
    learner = config["players"]["agent"]["algorithm"]
    learner |= {
        "transitions": {"name": "n_step", "steps": 3},
        "updates_per_turn": 4,
        "warmup_env_steps": 32,
        "batch_size": 8,
        "net": {"name": "nature_cnn", "channels": [2], "kernels": [8], "strides": [8], "hidden_widths": [8]},
        "replay_buffer": PRIORITIZED | replay,
    }
    every = {"every": 16, "unit": "opt_steps"}
    config["output"] |= {"display": "quiet", "record": every, "recorders": [], "save": every, "keep_every": 1}
    return config | {"num_worlds": 2, "evaluations": [], "best": None, "stop": {"after": 64, "unit": "opt_steps"}}


def records(run: Path) -> list[dict[str, Any]]:
    return [without_clock(record) for record in read_records(run / "records.jsonl")]


def last(run: Path) -> LoadedCheckpoint:
    return Checkpoints(RunFolder.open(run), keep_last=1, keep_every=None).load("latest")


def assert_same_bits(run: Path, other: Path) -> None:
    """Equal records, and equal last checkpoints down to the files of replay rows."""
    assert records(run) == records(other)
    one, two = last(run), last(other)
    states = [{key: value for key, value in loaded.state.items() if key != "config"} for loaded in (one, two)]
    assert list(tree_differences(*states)) == []
    assert one.buffers == two.buffers
    assert one.buffers["agent"].start > 0, "the buffer has been full"


def test_a_run_that_stores_frames_once_has_the_bits_of_one_that_stores_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "SEGMENT_BYTES", 16 * 57_000)
    for name, replay in {
        "whole": {"layout": "whole"},
        "once": {},
        "on disk": {"scratch_folder": str(tmp_path)},
    }.items():
        palestra.Trainer(pong(**replay), run=tmp_path / name).fit()
    assert_same_bits(tmp_path / "once", tmp_path / "whole")
    assert_same_bits(tmp_path / "on disk", tmp_path / "whole")


def test_segments_are_on_the_disk_before_the_save_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "SEGMENT_BYTES", 16 * 57_000)
    ahead: list[str] = []

    class Watch(palestra.Callback):
        def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
            if trainer.opt_steps == 31:
                ahead.extend(path.name for path in (tmp_path / "run" / "buffers").iterdir())

    config = pong(capacity=90) | {"stop": {"after": 32, "unit": "opt_steps"}}
    config["output"] |= {"record": {"every": 4, "unit": "opt_steps"}, "save": {"every": 32, "unit": "opt_steps"}}
    palestra.Trainer(config, run=tmp_path / "run", callbacks=[Watch(None)]).fit()
    named = [Path(segment.file).name for segment in last(tmp_path / "run").buffers["agent"].segments]
    assert ahead
    assert set(ahead) < set(named)
    assert {name.split("-")[1] for name in named} == {str(start) for start in range(0, 16 * len(named), 16)}


def test_a_run_with_images_killed_in_the_middle_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "pong.yml").write_text(json.dumps(pong()))
    palestra.Trainer(tmp_path / "pong.yml", run=tmp_path / "uninterrupted").fit()
    run = tmp_path / "killed"
    program = "from palestra.cli import main; main()"
    command = [sys.executable, "-c", program, "train", str(tmp_path / "pong.yml"), "--run", str(run)]
    process = Forked(command)
    deadline = time.monotonic() + PATIENCE_S
    while not (run / "checkpoints" / "00000003").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not last(run).state["finished"]
    trainer = palestra.Trainer.load(run)
    trainer.fit()
    assert trainer.players["agent"].worlds.world.exact  # type: ignore[union-attr]
    assert_same_bits(run, tmp_path / "uninterrupted")


def test_players_are_loaded_and_evaluated_without_replay_rows(tmp_path: Path) -> None:
    config = pong() | {"stop": {"after": 16, "unit": "opt_steps"}}
    palestra.Trainer(config, run=tmp_path / "run").fit()
    for path in (tmp_path / "run").rglob("agent-*.safetensors"):
        path.unlink()
    assert palestra.load_player(tmp_path / "run").opt_steps == 16
