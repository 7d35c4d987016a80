"""Runs of other formats are refused with the version that reads them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from typer.testing import CliRunner

from palestra.cli import app
from palestra.kinds.games.trainer import Trainer
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import RUN_FORMAT
from palestra.storage.manifest import FORMAT
from palestra.storage.run_folder import RunFolder

Facts = dict[str, Any]


def refusal(*words: object) -> str:
    """The one line with which a command refuses its input."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    [line] = done.stderr.splitlines()
    return line


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of our format with a checkpoint, which tests copy."""
    config = TINY | {"stop": {"after": 4, "unit": "opt_steps"}, "evaluations": [], "best": None}
    config |= {"output": TINY["output"] | {"display": "quiet", "recorders": []}}
    run = tmp_path_factory.mktemp("trained") / "run"
    Trainer(config, run=run).fit()
    return run


@pytest.fixture
def run(trained: Path, in_tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, "run"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": 1}, "reads format 2: use the version that wrote it"),
        ({"format": 3}, "reads format 2: use the version that wrote it, or a later one"),
        ({"format": -1}, "reads format 2: use the version that wrote it"),
    ],
)
def test_a_run_of_another_format_is_refused_with_the_version_that_reads_it(
    change: Facts, expected: str, run: Path
) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | change | {"versions": {"palestra": "7.8.9"}}))
    before = files_in(run)
    line = f"run is a run of format {change['format']}, written by palestra 7.8.9; this palestra {expected}"
    for command in ("resume", "report"):
        assert refusal(command, run) == line
    with pytest.raises(RunFolderError, match="written by palestra 7"):
        RunFolder(run).facts()
    assert files_in(run) == before
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_a_mirror_of_another_format_is_refused_with_the_version_that_reads_it(in_tmp_path: Path) -> None:
    Path("mirror/run").mkdir(parents=True)
    Path("mirror/run/run.json").write_text(json.dumps({"format": 1, "versions": {"palestra": "0.9.1"}}))
    url = Path("mirror/run").resolve().as_uri()
    assert refusal("resume", url).endswith(
        f"{url} is a run of format 1, written by palestra 0.9.1; this palestra reads format 2: use the version that "
        "wrote it"
    )
    assert sorted(path.name for path in Path().iterdir()) == ["mirror"]


def test_a_new_format_of_checkpoints_is_a_new_format_of_runs() -> None:
    """Whoever raises the one raises the other, which alone names versions, and writes both here."""
    assert (RUN_FORMAT, FORMAT) == (2, 5)
