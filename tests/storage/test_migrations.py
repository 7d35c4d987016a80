"""Runs of older formats: what brings them to the present one, and what is said of those that nothing does."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from typer.testing import CliRunner

from palestra.cli import app
from palestra.storage import migrations
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.facts import RUN_FORMAT
from palestra.storage.manifest import FORMAT
from palestra.storage.run_folder import RunFolder
from palestra.training.trainer import Trainer

Facts = dict[str, Any]


def palestra(*words: object, code: int = 0) -> str:
    """What a command prints; with another exit code, the one line that it says."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    if code == 0:
        return done.stdout
    [line] = done.stderr.splitlines()
    return line


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change_facts(run: Path, change: Callable[[Facts], object]) -> None:
    facts = json.loads((run / "run.json").read_text())
    change(facts)
    (run / "run.json").write_text(json.dumps(facts))


# ---- older formats that never existed: in 1 records lay in log.jsonl, and in 0 a run had a name and no id -----------


def rename_records(copy: Folder) -> None:
    copy.rename("log.jsonl", "records.jsonl")


def name_id(copy: Folder) -> None:
    change_facts(copy.path, lambda facts: facts.update(id=facts.pop("name")))


def make_older(run: Path) -> None:
    (run / "records.jsonl").rename(run / "log.jsonl")
    change_facts(run, lambda facts: facts.update(format=0, name=facts.pop("id")))


@pytest.fixture
def with_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "RUN_FORMAT", 2)
    monkeypatch.setattr(migrations, "MIGRATIONS", {0: name_id, 1: rename_records})


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


def test_a_run_of_an_older_format_goes_on_as_a_copy(run: Path, with_migrations: None) -> None:
    now = files_in(run)
    make_older(run)
    older = files_in(run)
    assert palestra("resume", run, code=2).endswith(
        "this palestra reads format 2: palestra migrate run makes a copy in that format"
    )
    assert palestra("migrate", run) == "run-format-2: a copy of run, in format 2 instead of 0\n"
    assert files_in(run) == older
    copied = files_in(Path("run-format-2"))
    assert json.loads(copied.pop("run.json")) == json.loads(now.pop("run.json"))
    del now["lock"]
    assert copied == now
    trainer = Trainer.load("run-format-2")
    trainer.extend(["stop.after=8"])
    trainer.fit()
    assert trainer.counters["opt_steps"] == 8


def test_checkpoints_elsewhere_come_along_and_the_mirror_lies_beside_the_old_one(
    run: Path, with_migrations: None
) -> None:
    Path("disk").mkdir()
    (run / "checkpoints").rename("disk/checkpoints")
    Path("disk/owner.json").write_text(json.dumps({"id": RunFolder(run).facts().id}))
    change_facts(run, lambda facts: facts.update(checkpoint_folder=str(Path("disk").resolve()), mirror="s3://b/c/run"))
    elsewhere = files_in(Path("disk"))
    (run / "records.jsonl").rename(run / "log.jsonl")
    change_facts(run, lambda facts: facts.update(format=1))
    palestra("migrate", run, "--run", "deep/new")
    facts = RunFolder.open(Path("deep/new")).facts()
    assert (facts.checkpoint_folder, facts.mirror) == (None, "s3://b/c/new")
    assert files_in(Path("disk")) == elsewhere
    del elsewhere["owner.json"]
    assert elsewhere.items() <= files_in(Path("deep/new")).items()
    Path("disk/owner.json").write_text(json.dumps({"id": "another"}))
    assert palestra("migrate", run, "--run", "other", code=2).endswith("disk of another run")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": 1}, "reads format 2: use the version that wrote it"),
        ({"format": 3}, "reads format 2: use the version that wrote it, or a later one"),
        ({"format": -1}, "reads format 2: use the version that wrote it"),
    ],
)
def test_a_format_from_which_nothing_leads_is_refused_with_the_version_that_reads_it(
    change: Facts, expected: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", {0: name_id})
    change_facts(run, lambda facts: facts.update(change | {"versions": {"palestra": "7.8.9"}}))
    before = files_in(run)
    line = f"run is a run of format {change['format']}, written by palestra 7.8.9; this palestra {expected}"
    for command in ("migrate", "resume", "report"):
        assert palestra(command, run, code=2) == line
    with pytest.raises(RunFolderError, match="written by palestra 7"):
        RunFolder(run).facts()
    assert files_in(run) == before
    assert [path.name for path in Path().iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "run is a run of format 2, which this palestra reads as it is"),
        ({"format": "1"}, "run/run.json is damaged: expected an integer as format, got '1'"),
        ({"format": 1, "machine": 5}, "run/run.json is damaged: machine: Input should be a valid dictionary"),
    ],
)
def test_other_runs_are_refused(change: Facts, expected: str, run: Path, with_migrations: None) -> None:
    change_facts(run, lambda facts: facts.update(change))
    shutil.copy(run / "records.jsonl", run / "log.jsonl")
    assert palestra("migrate", run, code=2) == expected
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_what_is_no_run_or_in_use_or_has_no_place_is_refused(run: Path, with_migrations: None) -> None:
    assert palestra("migrate", "nothing", code=2) == "nothing is not a run: nothing/run.json is missing"
    assert palestra("migrate", run / "run.json", code=2).endswith("is missing")
    with RunFolder(run).lock():
        make_older(run)
        assert "run is in use by process" in palestra("migrate", run, code=2)
    Path("run-format-2").mkdir()
    assert palestra("migrate", run, code=2) == "run-format-2 exists already; --run DIR puts the copy elsewhere"
    Path(".other.migrating").mkdir()
    line = palestra("migrate", run, "--run", "other", code=2)
    assert line == ".other.migrating exists already; a kill has left it: remove it"


def test_a_migration_that_fails_leaves_the_run_and_nothing_else(
    run: Path, with_migrations: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(copy: Folder) -> None:
        rename_records(copy)
        raise RunFolderError("its records are damaged")

    monkeypatch.setitem(migrations.MIGRATIONS, 1, fail)
    make_older(run)
    before = files_in(run)
    assert palestra("migrate", run, code=2) == "its records are damaged"
    assert files_in(run) == before
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_links_in_a_run_are_not_followed(run: Path, with_migrations: None, tmp_path: Path) -> None:
    make_older(run)
    Path("secret").write_text("of mine")
    (run / "media").mkdir(exist_ok=True)
    (run / "media" / "frame.png").symlink_to(Path("secret").resolve())
    assert "frame.png is a symbolic link" in palestra("migrate", run, code=2)
    assert not Path("run-format-2").exists()


def test_a_mirror_of_an_older_format_is_brought_back_by_the_version_that_wrote_it(
    in_tmp_path: Path, with_migrations: None
) -> None:
    Path("mirror/run").mkdir(parents=True)
    Path("mirror/run/run.json").write_text(json.dumps({"format": 1, "versions": {"palestra": "0.9.1"}}))
    url = Path("mirror/run").resolve().as_uri()
    line = palestra("resume", url, code=2)
    assert line.endswith(
        f"{url} is a run of format 1, written by palestra 0.9.1; this palestra reads format 2: use the version that "
        f"wrote it, which brings it back into a folder by palestra resume {url}; palestra migrate copies that folder "
        "into our format"
    )
    assert "expected a folder, got a URL; the version that wrote the run brings it back" in palestra(
        "migrate", url, code=2
    )
    assert sorted(path.name for path in Path().iterdir()) == ["mirror"]


def test_a_new_format_of_checkpoints_is_a_new_format_of_runs() -> None:
    """Whoever raises the one raises the other, which alone names the migrations, and writes both here."""
    assert (RUN_FORMAT, FORMAT) == (2, 5)
