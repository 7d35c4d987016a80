"""No command imports a module that a stored run or sweep names, wherever its files name one."""

import copy
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from conftest import TINY, TINY_FIT
from pydantic import BaseModel
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import (
    Config,
    ConfigError,
    OwnFunctionConfig,
    UntrustedError,
    check,
    checking,
    importing_no_others,
    load_yaml,
    render,
)
from palestra.config.own_modules import reading_stored, saying_nothing
from palestra.config.places import fields_under
from palestra.config.variants import ByName
from palestra.evaluation.measures import BestConfig
from palestra.kinds.data.config import FitConfig
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.tournament import TournamentConfig
from palestra.kinds.text.config import TextConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.run.kinds import read_config
from palestra.run.shipped import shipped_tournaments
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.plan import Plan
from palestra.testing.algorithms import sample_config
from palestra.text.players import ImitateConfig
from tests.sweeps.small_runs import write_base
from tests.sweeps.test_sweep import SWEEP
from tests.text.runs import RUNS

Data = dict[str, Any]

EVIL = "from pathlib import Path\nPath(__file__).with_name('canary').write_text('imported')\n"
NAME = "theirs:Thing"
OWN: Data = {"name": NAME}
ROOTS = (RunConfig, FitConfig, TextConfig, TournamentConfig, SweepConfig)
FIELDS = [field for root in ROOTS for field in fields_under(root)]  # the model, its key, and the key's field


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a module writes when it is imported; the module lies in the working directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("palestra.config.own_modules._admitted", set())
    place = tmp_path / "here"
    place.mkdir()
    (place / "theirs.py").write_text(EVIL)
    monkeypatch.chdir(place)
    yield place / "canary"
    sys.modules.pop("theirs", None)


# ---- every key ------------------------------------------------------------------------------------------


def keys_of_functions() -> set[str]:
    """The keys besides `name` by which a mapping names a function or a class."""
    members = [each for model, _, field in FIELDS for each in (model, *models_in(field.annotation))]
    return {"scripted", *(each.key for each in members if issubclass(each, OwnFunctionConfig) and hasattr(each, "key"))}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def values_that_name_a_class(keys: set[str]) -> list[Any]:
    mappings = [{key: NAME} for key in ("name", *keys)]
    one = [NAME, "theirs:Thing-v0", *mappings]
    return [*one, *([each] for each in one), *({"x": each} for each in one)]


@cache
def sample_of(model: type[Config]) -> Data:
    """Data of a model, with a made-up value for each key for which one can be."""
    data: Data = {}
    for key in model.model_fields:
        with suppress(ValueError, StopIteration, TypeError):
            data[key] = sample_config(model, dict.fromkeys(model.model_fields.keys() - {key}))[key]
    return data


def importing(
    canary: Path, keys: Iterable[tuple[type[Config], str]], context: Callable[[], AbstractContextManager[None]]
) -> set[tuple[type[Config], str]]:
    """Those of some keys of models that let a value import a module in a context."""
    values, found = values_that_name_a_class(keys_of_functions()), set()
    for model, key in keys:
        for value in values:
            with suppress(ConfigError, UntrustedError), context():
                check(sample_of(model) | {key: value}, model)
            if canary.exists():
                canary.unlink()
                del sys.modules["theirs"]
                found.add((model, key))
                break
    return found


def may_be_of_a_class(annotation: Any) -> bool:
    """Whether a value of this type, or one in it, may be a class of somebody's own."""
    marked = isinstance(annotation, ByName) and annotation.user_class is not None
    return marked or any(map(may_be_of_a_class, get_args(annotation)))


def test_no_key_of_a_stored_file_imports_a_module(canary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = importing(canary, {(model, key) for model, key, _ in FIELDS}, checking)
    declared = {
        (model, key) for model, key, field in FIELDS if any(map(may_be_of_a_class, [field.annotation, *field.metadata]))
    }
    assert declared <= own
    assert {(BestConfig, "measure"), (TorchModuleConfig, "torch_module"), (ImitateConfig, "scripted")} <= own
    for strict in (partial(reading_stored, Path("config.yml")), importing_no_others, saying_nothing):
        monkeypatch.setattr("palestra.config.own_modules._admitted", set())
        assert not importing(canary, own, strict)


# ---- every command ----------------------------------------------------------------------------------------

FILES = ["run/config.yml", "link.yml", "run/linked.yml", "away/../../config.yml", "seeds/base.yml"]
FILES += ["sweep/base/base.yml", "sweep/trials/0000/config.yml", "sweep/best.yml"]
# by the name of the command, the arguments with which it reads what is stored; FILE stands for each of FILES
COMMANDS: dict[str, list[str]] = {
    "train": [
        "run/config.yml --run new",
        "run/linked.yml --run new",
        "run/config.yml --seeds 0..1 --run new",
        "run/config.yml --seeds 0..1 --at 1 --run new",
    ],
    "resume": ["run", "sweep", "seeds"],
    "extend": ["run stop.after=16"],
    "branch": ["run/checkpoints/00000001 seed=3 --run new"],
    "sweep": [
        "sweep",
        "sweep/sweep.yml",
        "sweep/sweep.yml --dry-run",
        "run/config.yml seed=1,2",
        "run/config.yml seed=1,2 --dry-run",
    ],
    "trials": ["begun"],
    "evaluate": ["run", "run --watch", "sweep", "run/config.yml"],
    "analyse": ["run", "run keeps_to_role"],
    "ask": ["run --board [[0,3],[2,2]]"],
    "play": ["run"],
    "report": ["run", "begun", "run other --out page.html"],
    "compare": ["run", "run other", "sweep", "run --games 2", "sweep --games 2"],
    "table": ["run", "sweep"],
    "plot": ["run", "sweep --kind learning-table"],
    "verify": ["run"],
    "export": ["run"],
    "predict": ["run train --out x.csv"],
    "serve": ["run --port 0"],
    "profile": ["run/config.yml"],
    "check": ["FILE"],
    "data": ["collect run x.npz --rows 8", "show run/config.yml"],
    "config": ["sweep run/config.yml"],
    "list": [""],
}
SHOW = ("report", "compare", "table", "plot")


def named(data: Any) -> Iterator[tuple[Any, Any, bool]]:
    """The mappings with a `name` in a config, as container and key, and whether there is one in them."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        if isinstance(value, dict | list):
            inner = list(named(value))
            if isinstance(value, dict) and "name" in value and key != "trainer":
                yield data, key, bool(inner)
            yield from inner


def of_a_stranger(data: Data, which: str) -> Data:
    """A config that names modules in all places at once of one kind."""
    data = copy.deepcopy(data)
    if which == "trainer":
        data["trainer"] = OWN
        return data
    found = list(named(data))
    for container, key, has_inner in found:
        if which == "outer" or not has_inner:
            container[key] = OWN
    for key in ("callbacks", "recorders") if which == "outer" else ():
        data[key] = [OWN]
    if which == "inner" and isinstance(data.get("best"), dict):
        data["best"]["measure"] = NAME
    return data


def configs(folder: Path) -> dict[str, Data]:
    tournament = load_yaml(next(iter(shipped_tournaments().values())))
    text = next(iter(RUNS.values()))(folder)
    return {"in_turn": TINY, "fit": TINY_FIT, "text": text, "tournament": tournament}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "tiny"
    palestra.Trainer(TINY | {"stop": {"after": 8, "unit": "opt_steps"}}, run=run).fit()
    return run


def make_folders(trained: Path, evil: Data, evil_sweep: Data) -> None:
    """In the working directory: run/, other/, sweep/ and seeds/, of somebody who names modules in their configs."""
    text = json.dumps(evil)
    for run in ("run", "other", "sweep/trials/0000/seed-0", "seeds/seed-0"):
        shutil.copytree(trained, run)
        Path(run, "config.yml").write_text(text)
    write_base(Path())
    plan = Plan(read_sweep(SWEEP | {"base": ["base.yml"]}, []), {"base": read_config("base.yml")})
    stored = load_yaml(render(plan.config, SweepConfig)) | {"base": ["base/base.yml"]} | evil_sweep
    SweepFolder.create(Path("begun"), json.dumps(stored), {"base": text})
    shutil.copytree("begun", "sweep", dirs_exist_ok=True)
    Path("seeds/seeds.yml").write_text(json.dumps({"seeds": [0], "at": 1}))
    for file in ("seeds/base.yml", "sweep/trials/0000/config.yml", "sweep/best.yml", "out.yml"):
        Path(file).write_text(text)
    Path("link.yml").symlink_to("run/config.yml")
    Path("run/linked.yml").symlink_to("../out.yml")
    Path("away").symlink_to("run/checkpoints/00000001")


SWEEPS: dict[str, Data] = {
    "trainer": {"search": OWN, "place": OWN},
    "outer": {"pruning": OWN, "constraints": [NAME.replace("T", "t")]},
    "inner": {"objective": SWEEP["objective"] | {"measure": NAME}},
    "space": {"space": {"players.agent.algorithm.optimizer": {"name": "choice", "values": [OWN]}}},
}


def test_every_command_is_tried() -> None:
    group: Any = typer.main.get_command(app)
    assert COMMANDS.keys() == group.commands.keys()


def save_no_figure(figure: Any, file: Any, **named: Any) -> None:
    """Stands in for what takes most of a report's time."""
    file.write("<svg></svg>" if named["format"] == "svg" else b"")


CASES = [(kind, which) for kind in ("in_turn", "fit", "text", "tournament") for which in ("trainer", "outer", "inner")]
CASES.remove(("tournament", "trainer"))


@pytest.mark.parametrize(("kind", "which"), CASES)
@pytest.mark.usefixtures("few_figures")
def test_no_command_imports_a_module_that_a_stored_file_names(
    kind: str, which: str, trained: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save_no_figure)
    make_folders(trained, of_a_stranger(configs(canary.parent)[kind], which), SWEEPS[which])
    lines = [(command, arguments) for command, each in COMMANDS.items() for arguments in each]
    for command, arguments in lines:
        for file in FILES if "FILE" in arguments else [""]:
            line = [command, *arguments.replace("FILE", file).split()]
            result = CliRunner().invoke(app, line)
            assert not canary.exists(), line
            assert isinstance(result.exception, SystemExit | None), (line, result.exception)
            assert result.exit_code in (0, 2), (line, result.output)
            if which == "trainer" and command in SHOW and result.exit_code == 0 and "begun" not in line:
                assert f"trainer.name: {NAME} is of a module" in result.output + Path("run/report.html").read_text()
    CliRunner().invoke(app, ["resume" if kind == "tournament" else "verify", "run", "--trust"])
    assert canary.exists()  # they do name it


def test_python_reads_a_stored_file_as_strictly(trained: Path, canary: Path) -> None:
    make_folders(trained, of_a_stranger(TINY, "trainer"), {})
    for file in FILES:
        for call in (palestra.load_config, palestra.make_trainer, palestra.Trainer):
            with pytest.raises(UntrustedError, match="theirs"):
                call(file)
    assert not canary.exists()


OF_FILES = ["train FILE", "check FILE", "profile FILE", "config sweep FILE", "sweep FILE seed=1,2"]
OF_FILES += ["train FILE --seeds 0 --at 1 --run new", "sweep FILE seed=1,2 --dry-run"]


@pytest.mark.parametrize("line", OF_FILES)
def test_a_file_of_ones_own_may_name_any_module(line: str, canary: Path) -> None:
    Path("own.yml").write_text(json.dumps(of_a_stranger(TINY, "trainer")))
    result = CliRunner().invoke(app, line.replace("FILE", "own.yml").split())
    assert "expected a class of module 'theirs' (none), got 'Thing'" in result.stderr
    assert canary.exists()


def test_a_tournament_of_ones_own_may_name_any_module(canary: Path) -> None:
    Path("own.yml").write_text(json.dumps(of_a_stranger(configs(canary.parent)["tournament"], "outer")))
    for command in ("evaluate", "check"):
        assert "expected a class of module 'theirs'" in CliRunner().invoke(app, [command, "own.yml"]).stderr
        assert canary.exists()
