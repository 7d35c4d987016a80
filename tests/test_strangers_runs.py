"""A run that somebody else has made: it is read, and nothing that it names is imported before the user says so."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LEARNER, TINY, TINY_FIT
from typer.testing import CliRunner, Result

import palestra
from palestra.cli import app
from palestra.config import UntrustedError, importing_no_others, load_stored_config, load_yaml
from palestra.config.own_modules import read_trusted
from palestra.kinds.data.config import FitConfig
from palestra.kinds.games.config import RunConfig
from palestra.report.page import write_report
from palestra.storage.disk import RunFolderError

Data = dict[str, Any]
MakeConfig = Callable[..., Data]


EVIL = "from pathlib import Path\nPath(__file__).with_name('canary').write_text('imported')\n"
GYM = {
    "name": "gymnasium",
    "id": "CartPole-v1",
    "arguments": {"sutton_barto_reward": False, "max_episode_steps": 9},
    "wrappers": [],
    "vectorization": {"name": "sync", "autoreset": "next_step"},
    "observation": {"normalize": None, "clip": None, "channels": None},
    "reward": {"normalize": None, "clip": None},
    "action_mask": None,
}
OWN = {"name": "theirs:Thing", "key": [1, {"name": "theirs:Other"}]}
LONE = {
    "game": GYM,
    "roles": {"agent": "host"},
    "players": {"host": LEARNER},
    "evaluations.0.pairings": [{"agent": "host"}],
    "best": None,
}
PLACES: dict[str, Data] = {
    "game": {"game": OWN},
    "game.reward": {"game.reward": OWN},
    "game.id": LONE | {"game": GYM | {"id": "theirs:Thing-v0"}},
    "game.wrappers": LONE | {"game": GYM | {"wrappers": [OWN]}},
    "evaluations.0.game": {"evaluations.0.game": OWN},
    "evaluations.0.game.id": LONE | {"evaluations.0.game": GYM | {"id": "theirs:Thing-v0"}},
    "algorithm": {"players.host.algorithm": OWN},
    "algorithm.net": {"players.host.algorithm.net": OWN},
    "algorithm.transitions": {"players.host.algorithm.transitions": OWN},
    "callbacks": {"callbacks": [OWN]},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that names nothing of its own."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        palestra.Trainer(TINY | {"stop": {"after": 8, "unit": "opt_steps"}}, run=run).fit()
    return run


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other tests have imported by these names is forgotten; so is what is imported, and trusted, inside."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("palestra.config.own_modules._admitted", set())
    forget_modules()
    yield
    forget_modules()


def forget_modules() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in ("theirs", "mine", "kit"):
            del sys.modules[name]


@pytest.fixture
def strangers(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: None) -> Iterator[Path]:
    """The working directory, in which a stranger's run lies with a module beside it and one inside."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "strangers"
    folder.mkdir()
    shutil.copytree(original, folder / "run")
    for place in (folder, folder / "run"):
        (place / "theirs.py").write_text(EVIL)
    monkeypatch.chdir(folder)
    yield folder
    assert not list(tmp_path.rglob("canary"))


def names(run: Path, changes: Data) -> None:
    """Let the stored config of a run say something else."""
    config = load_yaml(run / "config.yml")
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = config
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        place[last] = value
    (run / "config.yml").write_text(json.dumps(config))


def invoke(*arguments: str, code: int = 2) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("place", PLACES)
def test_what_a_stored_config_names_is_refused_before_it_is_imported(place: str, strangers: Path) -> None:
    names(strangers / "run", PLACES[place])
    with pytest.raises(UntrustedError) as refused:
        load_stored_config(strangers / "run" / "config.yml", RunConfig)
    sha256 = hashlib.sha256(EVIL.encode()).hexdigest()
    (line,) = str(refused.value).splitlines()
    assert f"module 'theirs', file {strangers / 'theirs.py'}, SHA-256 {sha256} is not trusted" in line


@pytest.mark.parametrize("place", ["model", "data.train", "learning.order", "callbacks"])
def test_what_the_config_of_a_model_names_is_refused_or_stays_a_mapping(place: str, strangers: Path) -> None:
    file = strangers / "run" / "config.yml"
    file.write_text(json.dumps(TINY_FIT))
    names(strangers / "run", {place: [OWN] if place == "callbacks" else OWN})
    with pytest.raises(UntrustedError, match="module 'theirs'"):
        load_stored_config(file, FitConfig)
    with importing_no_others():
        assert load_stored_config(file, FitConfig).model_dump() == load_yaml(file)
    for command in ("resume", "evaluate", "verify") if place == "model" else ():
        (line,) = invoke(*COMMANDS[command]).stderr.splitlines()
        assert "module 'theirs'" in line


@pytest.mark.parametrize("place", PLACES)
def test_a_section_of_their_own_stays_a_mapping_where_no_others_are_imported(place: str, strangers: Path) -> None:
    names(strangers / "run", PLACES[place])
    with importing_no_others():
        config = load_stored_config(strangers / "run" / "config.yml", RunConfig)
    assert config.model_dump() == load_yaml(strangers / "run" / "config.yml")


COMMANDS = {
    "resume": ["resume", "run"],
    "extend": ["extend", "run", "stop.after=16"],
    "branch": ["branch", "run/checkpoints/00000001", "seed=3"],
    "evaluate": ["evaluate", "run"],
    "watch": ["evaluate", "run", "--watch"],
    "verify": ["verify", "run"],
    "export": ["export", "run", "--player", "host"],
    "compare games": ["compare", "run", "--games", "2"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_play_refuse_in_one_line(command: str, strangers: Path) -> None:
    names(strangers / "run", PLACES["callbacks"] | PLACES["algorithm.net"])
    before = {path for path in strangers.rglob("*") if path.name != "lock"}
    told = invoke(*COMMANDS[command]).stderr.splitlines()
    (line,) = (line for line in told if not line.startswith("playing"))
    assert line.startswith("run/config.yml: module 'theirs'") or line.startswith(f"{strangers}/run/config.yml: module")
    assert "--trust" in line
    assert {path for path in strangers.rglob("*") if path.name != "lock"} == before


def test_python_refuses_as_the_commands_do(strangers: Path) -> None:
    names(strangers / "run", PLACES["game.id"])
    for call in (palestra.Trainer.load, palestra.StoredRun.open, palestra.load_player):
        with pytest.raises(UntrustedError, match="theirs"):
            call("run")
    with pytest.raises(UntrustedError, match="theirs"):
        palestra.Trainer.branch("run/checkpoints/00000001", ["seed=3"])


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("place", [place for place in PLACES if place != "callbacks"])
def test_a_report_imports_nothing_of_theirs_and_says_what_it_left_out(
    place: str, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnasium.make", lambda *args, **kwargs: pytest.fail("an environment is built"))
    names(strangers / "run", PLACES[place])
    text = write_report([Path("run")], None).read_text()
    assert "No game is shown: " in text
    assert "theirs:Thing" in text.partition("No game is shown: ")[2].partition("</p>")[0]
    invoke("compare", "run", code=0)


@pytest.mark.usefixtures("few_figures")
def test_a_report_plays_where_only_callbacks_are_their_own(strangers: Path) -> None:
    names(strangers / "run", PLACES["callbacks"])
    assert "A game of middle length" in write_report([Path("run")], None).read_text()


@pytest.mark.usefixtures("few_figures")
def test_an_environment_is_not_built_by_a_report_if_it_is_trusted_either(strangers: Path) -> None:
    from palestra.config.own_modules import enter_trusted, find_sources

    enter_trusted(find_sources("theirs"))
    names(strangers / "run", PLACES["game.id"])
    assert "No game is shown: game is the environment theirs:" in write_report([Path("run")], None).read_text()


def test_a_player_of_a_strangers_run_is_refused_in_training(
    strangers: Path, make_config: MakeConfig, tmp_path: Path
) -> None:
    names(strangers / "run", PLACES["algorithm.net"])
    rival = {"from_run": "run", "player": "host", "checkpoint": "latest"}
    warm = {"players.host.warm_start": rival | {"take": "all"}}
    for changes in ({"players.agent": rival, "roles.agent": "agent"}, warm):
        with pytest.raises(UntrustedError, match="theirs"):
            palestra.Trainer(make_config({"evaluations": [], "best": None} | changes), run=tmp_path / "new")


def test_no_module_in_the_working_directory_is_taken_for_another(strangers: Path) -> None:
    """The console script in a stranger's folder, with modules called as what is imported late."""
    for name in ("matplotlib", "jinja2", "onnxscript", "imageio_ffmpeg", "ale_py", "wandb", "sympy", "palestra"):
        (strangers / f"{name}.py").write_text(EVIL)
    (strangers / "evil-1.0.dist-info").mkdir()
    (strangers / "evil-1.0.dist-info" / "entry_points.txt").write_text("[gymnasium.envs]\n__root__ = theirs:go\n")
    (strangers / ".numba_config.yaml").write_text("cache_locator_classes: theirs.Locator\n")
    (strangers / "matplotlibrc").write_text("text.usetex: True\n")
    names(strangers / "run", PLACES["callbacks"])
    script = "import sys; from palestra.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(Path(palestra.__file__).parents[1])}
    told = {}
    for command in ("report", "resume"):
        run = [sys.executable, "-P", "-c", script, command, "run"]
        told[command] = subprocess.run(run, capture_output=True, text=True, env=environment)
    assert told["report"].returncode == 0, told["report"].stderr
    assert "A game of middle length" in (strangers / "run" / "report.html").read_text()
    assert told["resume"].returncode == 2
    assert "module 'theirs'" in told["resume"].stderr


# ---- the user's own ------------------------------------------------------------------------------------

MINE = '''
from palestra.callbacks import Callback
from palestra.config import UserConfig
import mine_neighbour


class Quiet(Callback):
    class Config(UserConfig):
        """Does nothing."""
'''


@pytest.fixture
def own(in_tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, modules: None) -> Path:
    """The user's working directory, with a run that was trained with a class of the user's own."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(in_tmp_path)])
    monkeypatch.setenv("XDG_STATE_HOME", str(in_tmp_path / "state"))
    (in_tmp_path / "mine.py").write_text(MINE)
    (in_tmp_path / "mine_neighbour.py").write_text("")
    changes = {"callbacks": [{"name": "mine:Quiet"}], "evaluations": [], "best": None}
    config = make_config(changes | {"stop": {"after": 8, "unit": "opt_steps"}})
    Path("config.yml").write_text(json.dumps(config))
    invoke("train", "config.yml", "--run", "run", code=0)
    return in_tmp_path


def test_who_trains_trusts_what_the_file_names(own: Path) -> None:
    entries = read_trusted()
    assert {(entry.module, entry.file) for entry in entries} == {("mine", str((own / "mine.py").resolve()))}
    assert {entry.sha256 for entry in entries} == {hashlib.sha256(MINE.encode()).hexdigest(), ""}  # "": as it is edited
    invoke("resume", "run", code=0)
    invoke("verify", "run", "--from", "beginning", code=0)
    invoke("extend", "run", "stop.after=16", code=0)
    invoke("branch", "run/checkpoints/00000001", "seed=3", "--run", "other", code=0)
    palestra.load_player("run", "host")


def test_who_trained_by_a_file_of_the_working_directory_may_edit_it(own: Path) -> None:
    (own / "mine.py").write_text(MINE + "\n# better\n")
    del sys.modules["mine"]  # each command is a process of its own
    invoke("resume", "run", code=0)
    told = " ".join(invoke("verify", "run", "--from", "0", code=0).stdout.split())
    assert "user_classes.mine:Quiet was " in told


@pytest.mark.parametrize("place", ["mine.py", "."])
def test_an_edited_source_that_others_can_write_is_refused_until_it_is_trusted_again(place: str, own: Path) -> None:
    (own / "mine.py").write_text(MINE + "\n# better\n")
    del sys.modules["mine"]  # each command is a process of its own
    (own / place).chmod((own / place).stat().st_mode | 0o020)
    (line,) = invoke("resume", "run").stderr.splitlines()
    assert "module 'mine'" in line
    assert "has changed since it was trusted" in line
    invoke("resume", "run", "--trust", code=0)
    told = " ".join(invoke("verify", "run", "--from", "0", code=0).stdout.split())
    before, now = (hashlib.sha256(source.encode()).hexdigest() for source in (MINE, MINE + "\n# better\n"))
    assert f"user_classes.mine:Quiet was {before}, is {now}; equal bits are not promised" in told
    invoke("resume", "run", code=0)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (None, "importing 'mine' failed: ModuleNotFoundError: No module named 'mine'; looked in {} and Python's path"),
        ("", "expected a class of module 'mine' (none), got 'Quiet'"),
    ],
)
def test_a_run_whose_class_is_not_here_says_so(source: str | None, fault: str, own: Path) -> None:
    del sys.modules["mine"]
    (own / "mine.py").unlink() if source is None else (own / "mine.py").write_text(source)
    lines = f"run/config.yml names code that is not here as the run needs it:\ncallbacks.0.name: {fault.format(own)}"
    for load in (
        lambda: palestra.load_player("run", "host", trust=True),
        lambda: palestra.StoredRun.open("run", trust=True),
    ):
        with pytest.raises(RunFolderError) as caught:
            load()
        assert str(caught.value) == lines


def test_a_copy_elsewhere_is_not_what_was_trusted(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module beside it may be another."""
    del sys.modules["mine"]
    (own / "elsewhere").mkdir()
    shutil.copy(own / "mine.py", own / "elsewhere")
    monkeypatch.chdir(own / "elsewhere")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(own)])
    assert "is not trusted" in invoke("resume", str(own / "run")).stderr


def test_check_imports_and_trusts_nothing(own: Path) -> None:
    (own / "state" / "palestra" / "trusted").unlink()
    invoke("check", "config.yml", code=0)
    assert read_trusted() == set()
    assert "classes that the file names are imported" in " ".join(invoke("check", "--help", code=0).stdout.split())


def test_a_list_that_cannot_be_written_is_one_clear_line(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "file"))
    line = invoke("train", "config.yml", "--run", "second").stderr
    assert "XDG_STATE_HOME" in line
    assert len(line.splitlines()) == 1
    assert not (own / "second").exists()
