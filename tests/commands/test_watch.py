"""`palestra evaluate RUN --watch`: every checkpoint is evaluated once, as it comes, and the run does not notice."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import assert_same_bits, fit, stopping_at
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.commands import evaluating as watching
from palestra.commands.evaluating import watch
from palestra.evaluation.evaluations import Evaluations
from palestra.kinds.games.stored import StoredGames
from palestra.run.checkpoints import Checkpoints
from palestra.storage.run_folder import RunFolder
from palestra.training.stored_training import StoredRun

MakeConfig = Callable[..., dict[str, Any]]


def filed(run: Path) -> dict[str, int]:
    """The files in evaluations/, and the games that they tell of."""
    found = {}
    for path in (run / "evaluations").glob("*.json"):
        pair = json.loads(path.read_text())["pairs"][0]
        found[path.name] = pair["games"] + pair["started_over"]
    return found


def palestra(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["evaluate", *arguments])
    assert result.exit_code == code, result.output
    return result


def test_checkpoints_are_evaluated_as_they_come_until_the_run_ends(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    fit(tmp_path / "uninterrupted", config)
    run = tmp_path / "run"
    with stopping_at(14):
        fit(run, config)

    def train_on(seconds: float) -> None:
        with RunFolder.open(run).lock():  # which nobody holds
            pass
        fit(run)

    monkeypatch.setattr(watching.time, "sleep", train_on)
    found = list(watch(StoredRun.open(run), ["main"], 7))
    numbers = Checkpoints(RunFolder.open(run), 1, None).numbers()
    assert [number for number, _ in found] == [0, 1, 1, 2, 3]  # where it stopped, and when it was due
    assert numbers == [0, 1, 2, 3]
    steps = [record["opt_steps"] for _, record in found if isinstance(record, dict)]
    assert steps[0] == 0
    assert {8, 16, 24} <= set(steps)
    assert filed(run) == {f"main-opt-step-{step}.json": 7 for step in steps}
    shutil.rmtree(run / "evaluations")
    assert_same_bits(run, tmp_path / "uninterrupted")


def test_a_checkpoint_that_is_deleted_meanwhile_is_passed_over_and_a_damaged_one_is_told(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    fit(run, make_config())
    load = StoredGames.load

    def late(self: StoredGames, which: str) -> None:
        if which == "1":
            shutil.rmtree(run / "checkpoints" / "00000001")
        load(self, which)

    monkeypatch.setattr(StoredGames, "load", late)
    (run / "checkpoints" / "00000002" / "state.json").write_text("{}")
    told = {number: text for number, text in watch(StoredRun.open(run), ["main"], 3) if isinstance(text, str)}
    assert told.pop(1) == "it was deleted meanwhile, because the run keeps others"
    assert list(told) == [2]
    assert "state.json differs from what was written" in told[2]
    assert filed(run) == {"main-opt-step-0.json": 3, "main-opt-step-24.json": 3}


def test_what_is_filed_with_as_many_games_is_not_played_again(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, played = str(tmp_path / "run"), []
    fit(tmp_path / "run", make_config({"output.save": {"every": 1000, "unit": "opt_steps"}, "best": None}))
    play = Evaluations.play

    def counted(self: Evaluations, name: str, num_games: int, *more: Any) -> Any:
        played.append(num_games)
        return play(self, name, num_games, *more)

    monkeypatch.setattr(Evaluations, "play", lambda *args, **kwargs: counted(*args, *kwargs.values()))
    shown = palestra(run, "--watch", "--games", "5").output.splitlines()
    assert [line.partition(": host vs random")[0] for line in shown[:-1]] == [
        "checkpoint 00000000: evaluation main at opt step 0",
        "checkpoint 00000001: evaluation main at opt step 24",
    ]
    assert shown[-1] == f"{run} is finished"
    assert palestra(run, "--watch", "--games", "5").output.splitlines() == shown
    assert played == [5, 5]
    palestra(run, "--watch")
    assert played == [5, 5, 12, 12]


def test_what_is_asked_of_it_must_make_sense(make_config: MakeConfig, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert palestra(run, "--watch", code=2).stderr.startswith(f"{run} is not a run")
    fit(tmp_path / "run", make_config({"stop.after": 1}))
    error = palestra(run, "--watch", "--checkpoint", "0", code=2).stderr
    assert "expected no such option, because --watch evaluates every checkpoint as it comes, got --" in error
    error = palestra(run, "--evaluation", "mane", code=2).stderr
    assert error == "--evaluation: expected one of main, got 'mane'\n"


def test_a_mirror_is_watched_from_elsewhere(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy takes the results; the run's folder is not read."""
    keys = {"url": f"file://{tmp_path}/mirrors", "options": {}, "attempts": 1, "first_wait_s": 0.0, "end_wait_s": 60.0}
    config, run = make_config({"output.mirror": keys}), tmp_path / "run"
    with stopping_at(14):
        fit(run, config)
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: fit(run))
    url = f"file://{tmp_path}/mirrors/run"
    output = palestra(url, "--watch", "--games", "7", "--run", str(tmp_path / "copy")).output
    assert "copy is finished" in output
    numbers = Checkpoints(RunFolder.open(run), 1, None).numbers()
    assert numbers == Checkpoints(RunFolder.open(tmp_path / "copy"), 1, None).numbers()
    watched = filed(tmp_path / "copy")
    assert not filed(run)
    assert not list((tmp_path / "copy").glob("buffers/*"))
    assert set(watched.values()) == {7}
    assert len(watched) >= len(numbers)
    shutil.rmtree(tmp_path / "copy" / "evaluations")
    shutil.copytree(run, tmp_path / "whole")
    palestra(str(tmp_path / "whole"), "--games", "7")
    palestra(url, "--games", "7", "--run", str(tmp_path / "later"))
    [(name, _)] = filed(tmp_path / "later").items()
    pairs = [json.loads((tmp_path / place / "evaluations" / name).read_text()) for place in ("whole", "later")]
    assert pairs[0] == pairs[1]
    message = palestra(url, "--run", str(tmp_path / "later"), code=2).output
    assert "exists already; --run DIR fetches elsewhere" in message.replace("\n", " ")
