"""What may be in the place of a seed's run: it is gone on with, begun anew where it never was one, or refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from platform import node
from typing import Any

import pytest

from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.config import RunConfig
from palestra.run.copies import files_of_copies
from palestra.run.kinds import read_config
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.sweeps.seed_runs import has_begun
from tests.sweeps.made_runs import make_run, tree
from tests.sweeps.small_runs import write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def config(base: Path) -> RunConfig:
    checked: RunConfig = read_config(base)
    return checked


@pytest.fixture
def looked(base: Path, config: RunConfig, tmp_path: Path) -> Callable[[], bool]:
    """Looks at trial/seed-3."""
    (tmp_path / "trial").mkdir()
    data = load_yaml(base) | {"seed": 3}
    return lambda: has_begun(Folder(tmp_path / "trial"), "seed-3", config, data)


def begin(run: Path, num_steps: int, base: Path, config: RunConfig) -> None:
    """The first steps of making a run."""
    copy = min(files_of_copies(config.copied()))
    steps: list[Callable[[], Any]] = [
        run.mkdir,
        (run / "checkpoints").mkdir,
        lambda: [(run / name).mkdir() for name in ("buffers", "evaluations", "players")],
        lambda: (run / f"players/.{copy}.77.tmp").write_text("half"),
        lambda: (run / f"players/{copy}").write_text("whole"),
        lambda: (run / ".config.yml.77.tmp").write_text("ha"),
        lambda: (run / "config.yml").write_text(base.read_text().replace("seed: 0", "seed: 3")),
        lambda: (run / ".run.json.77.tmp").write_text("{"),
    ]
    for step in steps[:num_steps]:
        step()


@pytest.mark.parametrize("num_steps", range(9))
def test_what_was_killed_before_it_was_a_run_begins_anew(
    num_steps: int, looked: Callable[[], bool], base: Path, config: RunConfig, tmp_path: Path
) -> None:
    begin(tmp_path / "trial/seed-3", num_steps, base, config)
    assert not looked()
    copies = files_of_copies(config.copied())
    with RunFolder.create_at(tmp_path / "trial/seed-3", copies).beginning(copies):
        assert set(tree(tmp_path / "trial/seed-3").values()) <= {"a folder", f"{os.getpid()} on {node()}".encode()}


def test_a_run_is_gone_on_with(looked: Callable[[], bool], base: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "trial/seed-3", base, 3)
    before = tree(tmp_path)
    assert looked()
    assert tree(tmp_path) == before


Change = Callable[[Path], Any]


def without(*names: str) -> Change:
    return lambda run: [(run / name).unlink() for name in names]


def link_away(path: Path) -> None:
    moved = path.parent.parent / f"moved-{path.name}"
    shutil.move(path, moved)
    path.symlink_to(moved)


def replaced(key: str, value: str) -> Change:
    def replace(run: Path) -> None:
        text = (run / "config.yml").read_text()
        assert key in text
        (run / "config.yml").write_text(text.replace(key, value))

    return replace


OWN_FILES = ("notes.txt", "players/thesis.json", "buffers/rows", "checkpoints/00000001/weights", "evaluations/a.json")
REFUSED: dict[str, tuple[Change, str]] = {
    "no config": (without("config.yml"), "expected a run, but config.yml is missing"),
    "no run.json": (without("run.json"), "expected a run, but run.json is missing"),
    "records alone": (without("run.json", "config.yml"), "is missing, and .* is there"),
    "a link to a run": (link_away, "expected a folder of a run, got a symbolic link"),
    "a link to its config": (
        lambda run: link_away(run / "config.yml"),
        "config.yml: expected a file of the run, got a symbolic link",
    ),
    "a lock that leads nowhere": (
        lambda run: (without("lock")(run), (run / "lock").symlink_to("../nowhere")),
        "lock: expected a file of the run, got a symbolic link",
    ),
    "a link to checkpoints": (
        lambda run: (without("run.json")(run), link_away(run / "checkpoints")),
        "checkpoints: expected a folder of the run, got a symbolic link",
    ),
    "a file": (lambda run: (shutil.rmtree(run), run.write_text("mine")), "expected a folder of a run, got a file"),
    "a pipe": (lambda run: (shutil.rmtree(run), os.mkfifo(run)), "expected a folder of a run, got no regular file"),
    "a pipe for a config": (
        lambda run: (without("config.yml")(run), os.mkfifo(run / "config.yml")),
        "config.yml: expected a file of the run, got no regular file",
    ),
    "a folder for a log": (lambda run: run.with_name("seed-3.log").mkdir(), "expected a file of a run, got a folder"),
    "a link for a log": (
        lambda run: run.with_name("seed-3.log").symlink_to("../mine"),
        "expected a file of a run, got a symbolic link",
    ),
    "another seed": (replaced("seed: 3", "seed: 4"), "expected the run in which seed is 3, got one in which it is 4"),
    "another config": (
        replaced("num_worlds: 4", "num_worlds: 5"),
        "in which num_worlds is 4, got one in which it is 5",
    ),
    "no config at all": (replaced("seed: 3", "seed: ["), "invalid YAML"),
    **{
        f"never a run, but {name}": (
            lambda run, name=name: (
                shutil.rmtree(run),
                (run / name).parent.mkdir(parents=True),
                (run / name).write_text("mine"),
            ),
            "expected a run, but run.json is missing, and ",
        )
        for name in OWN_FILES
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_by_name_and_stays(
    case: str, looked: Callable[[], bool], base: Path, tmp_path: Path
) -> None:
    change, told = REFUSED[case]
    run = tmp_path / "trial/seed-3"
    make_run(run, base, 3)
    change(run)
    before = tree(tmp_path)
    with pytest.raises((RunFolderError, ConfigError), match=told) as error:
        looked()
    assert "seed-3" in str(error.value)
    assert tree(tmp_path) == before


def test_what_a_run_removes_of_itself_is_never_that_of_another(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/config.yml").write_text("mine")
    run = RunFolder.create_at(tmp_path / "run")
    run.checkpoints.remove_empty()
    (tmp_path / "run/checkpoints").symlink_to("../elsewhere")
    with pytest.raises(RunFolderError), run.beginning(()):
        pass
    assert (tmp_path / "elsewhere/config.yml").read_text() == "mine"
    assert run.evaluations.exists()
