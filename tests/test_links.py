"""Nothing outside a run is touched: links, pipes and files of others in every place where palestra reads or writes."""

import copy
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from resuming import assert_same_bits, fit, stopping_at

from palestra.cli import main
from palestra.recording.values import values_of
from palestra.run.checkpoints import Checkpoints
from palestra.storage.disk import Folder, RefusedPathError, RunFolderError
from palestra.storage.run_folder import OUR_FILES, OUR_FOLDERS, RunFolder

MakeConfig = Callable[..., dict[str, Any]]
Tree = dict[str, tuple[bytes, int]]


PRECIOUS = (
    *(".hidden", ".00000000.tmp/manifest.json", ".00000001.removed/thesis.tex", "00000000/notes.txt", "notes.txt"),
    *(".latest.1.tmp", "model.safetensors", "host-0-8-01234567.safetensors", "training.csv", "records.jsonl", "run-id"),
)


@pytest.fixture(autouse=True)
def never_hangs() -> Iterator[None]:
    """A pipe that nobody writes to is not waited for."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped on its way."""
    run, config = tmp_path_factory.mktemp("runs") / "run", copy.deepcopy(TINY)
    config["output"] |= {"save": {"every": 4, "unit": "opt_steps"}, "keep_last": 3}
    config["output"]["recorders"] = [{"name": "csv"}]
    with stopping_at(30):
        fit(run, config)
    return run


@pytest.fixture
def stopped(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody's, with names that palestra would know for its own."""
    folder = tmp_path / "elsewhere"
    for name in PRECIOUS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"precious {name}")
    return folder


def tree(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def left_with(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


@pytest.mark.parametrize("moved", [True, False], ids=["its own files, moved", "another folder"])
@pytest.mark.parametrize("name", OUR_FOLDERS)
def test_a_folder_that_is_a_link_is_refused_and_what_it_leads_to_stays(
    name: str, moved: bool, stopped: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (stopped / name).exists():
        if moved:  # as people do who want them on a larger disk
            shutil.copytree(stopped / name, elsewhere, dirs_exist_ok=True)
        shutil.rmtree(stopped / name)
    (stopped / name).symlink_to(elsewhere)
    before = tree(elsewhere)
    assert left_with("resume", stopped) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert f"{stopped / name}: expected a folder of the run, got a symbolic link" in told
    assert ("output.checkpoint_folder" in told) == (name in ("checkpoints", "buffers"))
    assert tree(elsewhere) == before


def test_nothing_is_exported_through_a_link(stopped: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stopped / "export").symlink_to(elsewhere)
    before = tree(elsewhere)
    assert left_with("export", stopped, "--player", "host") == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert f"{stopped / 'export'}: expected a folder of the run, got a symbolic link" in told
    assert tree(elsewhere) == before


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("name", OUR_FILES)
def test_a_file_that_is_none_of_its_own_is_refused_and_stays(
    name: str, kind: str, stopped: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = stopped / name, elsewhere / "notes.txt"
    path.unlink(missing_ok=True)
    make = {
        "link": lambda: path.symlink_to(target),
        "hard link": lambda: path.hardlink_to(target),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[kind]()
    content = target.read_bytes()
    if kind == "hard link" and name not in ("lock", "records.jsonl", "config.yml", "run.json"):
        with RunFolder(stopped).lock():  # these are replaced whole, which leaves the other name's file alone
            RunFolder(stopped).root.write(name, b"new")
    else:
        assert left_with("resume", stopped) == 2
        assert str(path) in capsys.readouterr().err.replace("\n", "")
    assert target.read_bytes() == content


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("name", ["config.yml", "run.json", "records.jsonl", "changes.jsonl", "lock"])
@pytest.mark.parametrize("command", ["report", "compare", "verify", "evaluate"])
def test_no_command_waits_for_a_pipe_or_follows_a_link_to_a_file(
    command: str, name: str, stopped: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "secret").write_text("a private key")
    for make in (lambda: os.mkfifo(stopped / name), lambda: (stopped / name).symlink_to(elsewhere / "secret")):
        (stopped / name).unlink(missing_ok=True)
        make()
        with suppress(SystemExit):
            main([command, str(stopped)])
        assert "Traceback" not in capsys.readouterr().err
        page = stopped / "report.html"
        assert not page.exists() or "a private key" not in page.read_text()


@pytest.mark.parametrize("kind", ["link", "pipe", "sparse", "longer"])
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.safetensors", "segment", "latest", "best"])
def test_a_file_of_a_checkpoint_that_is_no_regular_one_of_its_size_costs_that_checkpoint_alone(
    name: str, kind: str, stopped: Path, elsewhere: Path
) -> None:
    checkpoints = Checkpoints(RunFolder(stopped), 3, None)
    number = checkpoints.latest()
    assert number is not None
    folder = stopped / "checkpoints" / f"{number:08d}"
    pointer = name in ("latest", "best")
    path = stopped / "checkpoints" / name if pointer else folder / name
    if name == "segment":
        [path] = folder.glob("host-*.safetensors")
    content = path.read_bytes() if path.exists() else b"00000001\n"
    path.unlink(missing_ok=True)
    if kind == "link":
        (elsewhere / "same").write_bytes(content)
        path.symlink_to(elsewhere / "same")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(content)
        os.truncate(path, 20 << 30 if kind == "sparse" else len(content) + 1)
    loaded = checkpoints.load("latest")
    if not pointer:
        assert loaded.manifest.number < number
        assert path.name in loaded.warnings[0]
    if kind in ("link", "pipe"):
        assert checkpoints.best() is None or name != "best"


@pytest.mark.parametrize("name", ["config.yml", "run.json", "records.jsonl", "changes.jsonl"])
def test_twenty_gigabytes_of_nothing_are_not_read_whole(name: str, stopped: Path) -> None:
    with open(stopped / name, "ab") as file:
        file.truncate(20 << 30)
    if name in ("records.jsonl", "changes.jsonl"):  # what comes after the checkpoint's part is cut off unread
        with stopping_at(4):
            fit(stopped)
    else:
        with pytest.raises(RunFolderError, match=f"{name}, got {20 << 30}"):
            fit(stopped)


def test_leftovers_go_by_the_letter_of_their_names_and_other_files_stay(stopped: Path) -> None:
    ours = [
        *("checkpoints/.00000099.tmp/state.json", "checkpoints/.00000099.removed/host-0-8-01234567.safetensors"),
        *("checkpoints/.latest.77.tmp", "buffers/host-0-8-01234567.safetensors"),
        "buffers/.host-0-8-01234567.safetensors.77.tmp",
    ]
    others = [
        *("checkpoints/.git/config", "checkpoints/.DS_Store", "checkpoints/.00000098.removed/notes.txt"),
        *("checkpoints/.99.tmp/x", "checkpoints/.latest", "buffers/.nfs0001", "buffers/mine.safetensors"),
        *("buffers/host-0-8.safetensors", "checkpoints/00000000.bak/state.json", "checkpoints/notes.txt"),
    ]
    for name in (*ours, *others):
        (stopped / name).parent.mkdir(parents=True, exist_ok=True)
        (stopped / name).write_text("x")
    with stopping_at(4):
        fit(stopped)
    assert [name for name in ours if (stopped / name).exists()] == []
    assert [name for name in others if not (stopped / name).exists()] == []


def test_a_file_that_somebody_put_into_a_checkpoint_outlives_it(stopped: Path) -> None:
    checkpoints = Checkpoints(RunFolder(stopped), 1, None)
    latest, best = checkpoints.latest(), checkpoints.best()
    assert latest is not None
    number = next(number for number in checkpoints.numbers() if number not in (latest, best))
    (stopped / "checkpoints" / f"{number:08d}" / "notes.txt").write_text("mine")
    checkpoints.remove_unkept(latest, None)
    [kept] = (stopped / "checkpoints").glob("**/notes.txt")
    assert list(kept.parent.iterdir()) == [kept]


def test_a_checkpoint_in_whose_place_a_link_stands_is_not_followed_when_it_goes(stopped: Path, elsewhere: Path) -> None:
    (stopped / "checkpoints" / "00000077").symlink_to(elsewhere)
    before = tree(elsewhere)
    with stopping_at(4):
        fit(stopped)
    assert tree(elsewhere) == before
    assert not (stopped / "checkpoints" / "00000077").is_symlink()


@pytest.mark.parametrize(
    "file", ["../secret.png", "media/../../secret.png", "/etc/hostname", "media/link.png", "secret.png"]
)
def test_an_image_in_a_record_is_a_regular_file_of_the_runs_media(file: str, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "run" / "media").mkdir(parents=True)
    (tmp_path / "run" / "media" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "run" / "media" / "own.png").write_bytes(b"own")
    record = {"notes": {"forged": {"image": file}, "own": {"image": "media/own.png"}}}
    assert [name for name, _ in values_of(record, tmp_path / "run")] == ["notes/own"]


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "x\0y"])
def test_no_name_leads_out_of_a_folder(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for call in (
        lambda: folder.below(name),
        lambda: folder.write(name, b""),
        lambda: folder.read(name),
        lambda: folder.append(name),
        lambda: folder.remove(name),
        lambda: folder.rename(name, "x"),
    ):
        with pytest.raises(RefusedPathError, match="expected the name of a file"):
            call()


# ---- checkpoints on another disk ---------------------------------------------------------------------------


def test_checkpoints_on_another_disk_are_those_of_the_run(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "here", make_config())
    config = make_config({"output.checkpoint_folder": str(tmp_path / "large")})
    with stopping_at(30):
        fit(tmp_path / "run", config)
    [place] = (tmp_path / "large").iterdir()
    assert place.name.startswith("run-")
    assert not (tmp_path / "run" / "checkpoints").exists()
    shutil.move(tmp_path / "run", tmp_path / "moved")  # the other disk's folder stays
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert fit(tmp_path / "moved").finished
    expected = rf"copy is a copy of .*moved; .*{place.name}, .* apart from it: palestra branch {place}/checkpoints/"
    with pytest.raises(RunFolderError, match=expected):
        fit(tmp_path / "copy")
    shutil.copytree(place, tmp_path / "moved", dirs_exist_ok=True)  # as if all had been in one place
    assert_same_bits(tmp_path / "moved", tmp_path / "here")


def test_a_branch_off_a_checkpoint_on_another_disk_finds_its_run(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "run", make_config({"output.checkpoint_folder": str(tmp_path / "large")}))
    [place] = (tmp_path / "large").iterdir()
    assert left_with("branch", place / "checkpoints" / "00000001", "--run", tmp_path / "branch", "--quiet") == 0
    assert len(list((tmp_path / "large").iterdir())) == 2


@pytest.mark.parametrize("harm", ["another run's", "no owner", "gone", "a link"])
def test_a_forged_place_of_checkpoints_is_refused_and_stays(
    harm: str, stopped: Path, elsewhere: Path, original: Path
) -> None:
    facts = RunFolder(stopped).facts()
    if harm == "another run's":
        shutil.copytree(original / "checkpoints", elsewhere / "checkpoints")
        (elsewhere / "owner.json").write_text('{"id": "0", "run": "/"}')
    if harm == "a link":
        (elsewhere / "owner.json").symlink_to(stopped / "run.json")
    where = elsewhere / "gone" if harm == "gone" else elsewhere
    RunFolder(stopped).write_facts(facts.model_copy(update={"checkpoint_folder": str(where)}))
    before = tree(elsewhere)
    with pytest.raises(RunFolderError, match="names the checkpoint folder"):
        fit(stopped)
    assert tree(elsewhere) == before
