"""What docs/populations.md shows is run, or is a file that would be."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from palestra.config import reading_own
from palestra.sweeps.config import read_sweep
from palestra.sweeps.outcomes import parent_of
from palestra.sweeps.plan import Plan, read_bases, starting_sweep
from tests.docs.test_commands import GROUP, shown
from tests.sweeps.small_runs import done
from tests.sweeps.test_evolution import CARTPOLE, in_no_time, worked

PAGE = Path(__file__).parents[2] / "docs" / "populations.md"
BLOCKS: list[Any] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)]

__all__ = ["in_no_time"]


def test_the_search_of_the_page_is_that_of_a_first_file() -> None:
    sweep = starting_sweep(["ppo-cartpole", "search.name=evolution"]).model_dump()
    first, *_ = BLOCKS
    assert {key: sweep[key] for key in first} == first


def test_the_commands_of_the_page_exist() -> None:
    commands = shown(PAGE)
    assert len(commands) == 8
    assert {name for name, *_ in commands} <= GROUP.commands.keys()


def test_the_sweep_of_hosts_and_agents_has_no_fault() -> None:
    usual = starting_sweep(["dqn-polyhedra", "search.name=evolution"]).model_dump()
    plan = Plan(read_sweep(usual | BLOCKS[1], []), read_bases(BLOCKS[1]["base"], Path()))
    [evaluation] = plan.bases["dqn-polyhedra"].measured()
    assert evaluation.pairings[BLOCKS[1]["objective"]["pairing"]] == {"host": "host", "agent": "random"}


def test_the_tournament_of_the_page_is_one(tmp_path: Path) -> None:
    """With the pair that comes along in place of the members."""
    tournament = BLOCKS[2]
    for name, player in tournament["players"].items():
        assert re.fullmatch(r"runs/pairs/trials/000[89]/seed-0", player["from_run"])
        player["from_run"] = "palestra:polyhedra"
        assert player["player"] == name.partition("-")[0]
    (tmp_path / "cup.yml").write_text(yaml.safe_dump(tournament))
    assert "complete and consistent" in done("check", "cup.yml", cwd=tmp_path)


def test_the_search_of_the_page_branches_off_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_no_time: None
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "continued.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with reading_own():
        sweep = worked(
            tmp_path / "s", search={"name": "continued:Continued"}, budget=CARTPOLE["budget"] | {"trials": 6}
        )
    trials = sweep.study.ranked()
    best = max(trials[:4], key=lambda trial: trial.value or 0.0)
    assert [parent_of(trial) for trial in trials] == [None] * 4 + [best.number] * 2
