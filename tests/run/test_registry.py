"""The registry of kinds of run: what a kind answers, and a new one, which a folder of its own and a line make.

Covers palestra.run, palestra.kinds.data.kind, palestra.kinds.games.kind, palestra.kinds.text.kind.
"""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import TINY_FIT
from typer.testing import CliRunner

from palestra.cli import app
from palestra.run import KINDS
from palestra.run.kinds import Kind, kind_named, kind_of, kind_of_run, kinds
from palestra.training.opening import named_classes
from palestra.training.training import Training

COUNTING = """
from typing import Annotated, Literal

from palestra.config import ByName, Config, InBranch, PositiveInt
from palestra.report.blocks import Note, Section
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import Kind, read_config
from palestra.training.training import Training


class CountingTrainerConfig(Config):
    name: Literal["counting"]
    '''counts'''


class CountingConfig(BaseRunConfig):
    in_words = "a run that counts"
    options = ("--board",)

    trainer: Annotated[CountingTrainerConfig, ByName(), InBranch.SAME_PART]
    '''who counts'''
    pace: PositiveInt
    '''what an epoch adds'''


class Counter(Training):
    run_config = CountingConfig

    def _build(self):
        self.total = 0

    def _train(self):
        '''some'''
        self.total += self.config.pace
        self.opt_steps += 1
        self.safe_point()

    def _record_fields(self):
        return {"total": self.total}

    def state_dict(self):
        return super().state_dict() | {"total": self.total}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.total = state["total"]


class Counting(Kind):
    config = CountingConfig

    def trainers(self):
        return {"counting": (Counter,)}

    def first_words(self):
        return ("count",)

    def starting_config(self, name, words, shipped):
        return read_config("counting.yml", [f"pace={words[0].partition('=')[2]}"])

    def following(self, data, overrides):
        return data

    def export(self, run, options, person):
        person.warn("one file")
        return [f"{run}: {options.player}"]

    def play(self, run, options, person):
        person.say(f"seed {options.seed} of {options.board}: {next(person.lines).strip()}")

    def sections(self, groups, figures):
        return [Section("counts", "Counts", blocks=[Note(f"{len(groups)} counted")])] if groups else []
"""


@pytest.fixture
def counting(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config of a run of a fourth kind, in a file."""
    (in_tmp_path / "counting_kind.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(in_tmp_path)
    monkeypatch.setitem(KINDS, "counting", "counting_kind:Counting")
    monkeypatch.delitem(sys.modules, "counting_kind", raising=False)
    data = {key: TINY_FIT[key] for key in ("seed", "callbacks", "output")}
    data |= {"execution": {key: TINY_FIT["execution"][key] for key in ("device", "num_threads")}}
    data |= {"trainer": {"name": "counting"}, "pace": 2, "stop": {"after": 6, "unit": "opt_steps"}}
    (in_tmp_path / "counting.yml").write_text(yaml.safe_dump(data))
    return in_tmp_path / "counting.yml"


def shown(*words: str, typed: str = "") -> str:
    result = CliRunner().invoke(app, words, input=typed)
    assert result.exit_code == 0, result.output
    return result.output


def test_each_kind_knows_its_trainers_and_its_files() -> None:
    assert {name for kind in kinds() for name in kind.trainers()} == KINDS.keys()
    for name in KINDS:
        first, *_ = kind_named(name).trainers()[name]
        assert issubclass(first, Training)
        assert first.run_config is kind_named(name).config is kind_of_run({"trainer": {"name": name}})
    for kind in kinds():
        assert type(kind_of(kind.config)) is type(kind)
        words = kind.first_words()
        assert words
        own = {each for each in vars(type(kind)) if callable(getattr(kind, each)) and not each.startswith("_")}
        assert own - {"config"} <= vars(Kind).keys(), "what nobody asks for"
        for each in own - {"config"}:
            assert inspect.signature(getattr(kind, each)) == inspect.signature(getattr(Kind(), each)), each
    assert not set(kind_named("text").first_words()) & {*kind_named("in_turn").first_words(), "fit"}


def test_who_asks_for_the_kinds_imports_none() -> None:
    program = "import sys, palestra.run.kinds; print(*(m for m in sys.modules if m.startswith('palestra.kinds.')))"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert found == "\n"


def test_a_new_kind_is_a_folder_and_a_line(counting: Path) -> None:
    assert "train: 6 opt steps, as Counter says: some" in shown("check", str(counting))
    shown("train", str(counting), "--run", "run", "--quiet")
    assert '"total":12' in Path("run/records.jsonl").read_text().replace(" ", "")
    assert "pace: 3" in shown("config", "count", "pace=3")
    assert shown("export", "run") == "one file\nrun: None\n"
    assert shown("play", "run", "--seed", "3", "--board", "b", typed="hello\n") == "seed 3 of b: hello\n"
    shown("report", "run")
    assert "1 counted" in Path("run/report.html").read_text()


def test_a_class_derived_from_a_trainer_of_a_new_kind_is_known(counting: Path) -> None:
    config = kind_named("counting").config.model_validate(yaml.safe_load(counting.read_text()))
    assert [each.__name__ for each in named_classes(config)] == ["Counter"]
