"""What docs/figures.md shows is run: on small runs that have the names of the page."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest
from conftest import TINY
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import load_yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "figures.md").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of the page: of runs/fast and runs/slow five seeds each, of those in tables one."""
    place = tmp_path_factory.mktemp("figures")
    (place / "docs" / "images").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        for name, rate in (("fast", 2e-3), ("slow", 5e-4)):
            for seed in range(5):
                config = load_yaml(ROOT / "configs" / "ppo-cartpole.yml")
                config |= {"seed": seed, "num_worlds": 8, "stop": {"after": 1024, "unit": "env_steps"}}
                config["players"]["agent"]["algorithm"]["learning_rate"]["initial"] = rate
                config["evaluations"][0] |= {"num_games": 4, "final_num_games": 4}
                config["output"] |= {"display": "quiet", "recorders": [], "record": {"every": 512, "unit": "env_steps"}}
                palestra.Trainer(config, run=place / "runs" / name / f"seed-{seed}").fit()
        dqn = load_yaml(ROOT / "configs" / "dqn-cartpole.yml") | {"stop": {"after": 1, "unit": "env_steps"}}
        dqn["evaluations"][0] |= {"num_games": 4, "final_num_games": 4}
        dqn["output"] |= {"display": "quiet", "recorders": []}
        palestra.Trainer(dqn, run=place / "runs" / "dqn" / "seed-0").fit()
        palestra.Trainer(TINY, run=place / "runs" / "polyhedra" / "seed-0").fit()
    shutil.copytree(place / "runs" / "fast" / "seed-0", place / "runs" / "ppo" / "seed-0")
    tournament = ["evaluate", "tournament-polyhedra", "num_games=4", "--run", str(place / "runs" / "tournament-1")]
    assert CliRunner().invoke(app, tournament).exit_code == 0
    shutil.copytree(place / "runs" / "tournament-1", place / "runs" / "scripted")
    return place


@pytest.fixture
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def commands() -> list[list[str]]:
    """The commands of the page that draw or write tables, without what is sent elsewhere."""
    blocks = re.findall(r"^```\n(.*?)^```", TEXT, re.S | re.M)
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    return [shlex.split(line.partition(">")[0])[1:] for line in lines if re.match("palestra (plot|table)", line)]


def test_the_commands_of_the_page_draw_and_write(in_place: Path) -> None:
    assert [arguments[0] for arguments in commands()] == ["plot"] * 6 + ["table"] * 2
    for arguments in commands():
        paths = [str(path) for argument in arguments for path in sorted(Path().glob(argument)) if "*" in argument]
        rest = [argument for argument in arguments[1:] if "*" not in argument]
        result = CliRunner().invoke(app, [arguments[0], *paths, *rest])
        assert result.exit_code == 0, result.output
    for name in ("fig.pdf", "table.pdf", "cross.pdf"):
        assert (in_place / name).read_bytes().startswith(b"%PDF")
    who = set(re.findall(r">([^<>]+)</text>", (in_place / "docs" / "images" / "cross-table.svg").read_text()))
    assert {"polyhedra", "rho", "zeillinger", "greedy"} <= who
    svg = (in_place / "docs" / "images" / "figure.svg").read_text()
    assert {"PPO on CartPole-v1", "fast", "slow", "return", "entropy"} <= set(re.findall(r">([^<>]+)</text>", svg))
    assert len(pandas.read_parquet(in_place / "records.parquet").run.unique()) == 5


def test_the_code_of_the_page_finds_the_returns_of_each_seed(in_place: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    assert len(names["final"]) == 5
    assert list(names["wide"].columns) == list(range(5))
    assert names["wide"].notna().all(axis=None)
