"""A sweep that somebody else has made: nothing that it names is imported, run or trusted before the user says so."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import UntrustedError, load_yaml, render
from palestra.config.own_modules import admit, checking, find_sources, read_trusted, reading_stored, trusting
from palestra.run.kinds import read_config
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.display import make_sweep_display
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.plan import Plan
from palestra.sweeps.sweep import Sweep
from tests.sweeps.small_runs import done, write_base
from tests.sweeps.test_sweep import SWEEP

EVIL = """
from pathlib import Path
import palestra.callbacks
import palestra.config

Path(__file__).with_name("canary").write_text("imported")


def measure(pair):
    return 0.0


class Thing(palestra.callbacks.Callback):
    Config = palestra.config.UserConfig
"""
OWN = {"name": "theirs:Thing"}
# by the dotted key of the base, what a stranger's value there is
VALUES: dict[str, Any] = {
    "game": OWN,
    "game.id": "theirs:Thing-v0",
    "game.wrappers": [OWN],
    "players.agent.algorithm": OWN,
    "players.agent.algorithm.optimizer": OWN,
    "players.agent.algorithm.learning_rate": OWN,
    "evaluations.0.game": OWN,
    "best.measure": "theirs:measure",
    "callbacks": [OWN],
    "trainer": OWN,
}
OF_SWEEP: dict[str, Any] = {
    "objective": SWEEP["objective"] | {"measure": "theirs:measure"},
    "search": OWN,
    "pruning": OWN,
    "place": OWN,
    "constraints": ["theirs:measure"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a stranger's module in it, which must not have been imported in the end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("palestra.config.own_modules._admitted", set())
    place = tmp_path / "here"
    place.mkdir()
    (place / "theirs.py").write_text(EVIL)
    monkeypatch.chdir(place)
    yield place
    assert "theirs" not in sys.modules
    assert not (place / "canary").exists()
    assert read_trusted() == set()


def made(folder: Path, changes_of_base: dict[str, Any], **changes: Any) -> Path:
    """The folder of a sweep as if it had begun, with other values in its base and in its own file."""
    base = load_yaml(file := write_base(folder))
    plan = Plan(read_sweep(SWEEP | {"base": ["base/base.yml"]}, []), {"base": read_config(file)})
    for key, value in changes_of_base.items():
        *above, last = key.split(".")
        place: Any = base
        for name in above:
            place = place[int(name) if isinstance(place, list) else name]
        place[last] = value
    sweep = load_yaml(render(plan.config, SweepConfig)) | changes
    SweepFolder.create(folder / "s", json.dumps(sweep), {"base": json.dumps(base)})
    return folder / "s"


def refused(*arguments: object) -> None:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    assert "theirs.py" in result.output
    assert "is not trusted, and was not imported" in result.output


@pytest.mark.parametrize("key", VALUES)
def test_what_the_base_of_a_stored_sweep_names_is_not_imported(key: str, folder: Path) -> None:
    sweep = made(folder, {key: VALUES[key]})
    refused("resume", sweep)
    refused("sweep", sweep)


@pytest.mark.parametrize("key", VALUES)
def test_what_a_choice_of_a_stored_sweep_names_is_not_imported(key: str, folder: Path) -> None:
    base = load_yaml(write_base(folder))
    value: Any = base
    for name in key.split("."):
        value = value[int(name) if isinstance(value, list) else name]
    refused("resume", made(folder, {}, space={key: {"name": "choice", "values": [value, VALUES[key]]}}))


@pytest.mark.parametrize("key", OF_SWEEP)
def test_what_the_file_of_a_stored_sweep_names_is_not_imported(key: str, folder: Path) -> None:
    sweep = made(folder, {}, **{key: OF_SWEEP[key]})
    refused("resume", sweep)


def test_ones_own_file_in_a_strangers_folder_runs_nothing_of_theirs(folder: Path) -> None:
    sweep = made(folder, {}, place=OWN)
    (folder / "sweep.yml").write_text(render(read_sweep(SWEEP, []), SweepConfig))
    refused("sweep", "sweep.yml", "--run", sweep)


def test_a_point_that_no_corner_shows_is_read_as_strictly(folder: Path) -> None:
    """What a trial names that is begun later, too."""
    sweep = Sweep.open(made(folder, {}), [], make_sweep_display(Console(quiet=True)), trust=False)
    base = sweep.plan.space.bases["base"]
    base.data["callbacks"] = [OWN]  # as a combination of two choices may name it that each alone does not
    with pytest.raises(UntrustedError, match=r"theirs\.py"):
        sweep._begin()


def test_what_was_entered_as_strict_stays_strict(folder: Path) -> None:
    def read() -> None:
        with reading_stored(Path("config.yml")):
            with checking():
                assert not admit("theirs")
            with trusting(), checking(), reading_stored(Path("inner.yml")):
                assert not admit("theirs")

    with pytest.raises(UntrustedError):
        read()


def test_a_dry_run_trusts_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own.py").write_text((folder / "theirs.py").read_text().replace("canary", "imported"))
    base = load_yaml(write_base(folder)) | {"callbacks": [{"name": "own:Thing"}]}
    (folder / "base.yml").write_text(json.dumps(base))
    lines = done("sweep", "base.yml", "gamma=0.9,0.99", "--dry-run", cwd=folder).splitlines()
    assert any(line.startswith("a run of base as it is takes about 0:00:") for line in lines), lines
    assert (folder / "imported").exists()
    assert not set(find_sources("own")) & read_trusted()
