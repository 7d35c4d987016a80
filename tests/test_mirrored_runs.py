"""A run with a mirror: what is told, what it costs nobody, and that it goes on from the mirror to the same bits."""

import contextlib
import io
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from conftest import S3_SECRET, MakeRun
from rich.console import Console
from test_resume import LONG, PALESTRA, PATIENCE_S, fit, pointed_at, records, start, stopping_at, write_config
from typer.testing import CliRunner

from palestra.cli import app, main
from palestra.commands.replay import verify
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.run.remote import Remote, RemoteError
from palestra.storage.manifest import PUT_BACK
from palestra.storage.run_folder import RunFolder
from palestra.training.stored_training import StoredRun
from tests.forked import Forked

MakeConfig = Callable[..., dict[str, Any]]


def mirror(url: object, **changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {"url": str(url), "options": {}, "attempts": 1, "first_wait_s": 0.0, "end_wait_s": 60.0}
    return {"output.mirror": keys | changes}


def assert_ends_in_the_same_bits(run: Path, uninterrupted: Path) -> None:
    """As far as a run can that was fetched: of the checkpoints before, the best alone is there."""
    assert records(run) == records(uninterrupted)
    assert pointed_at(run, "latest") == pointed_at(uninterrupted, "latest")
    assert pointed_at(run, "best") == pointed_at(uninterrupted, "best")


# ---- it goes on from there ---------------------------------------------------------------------------


def test_players_of_other_runs_and_results_come_back_too(make_config: MakeConfig, tmp_path: Path) -> None:
    """The other run is nowhere any more."""
    fit(tmp_path / "source", make_config())
    rival = {"from_run": str(tmp_path / "source"), "player": "host", "checkpoint": "latest"}
    config = make_config(mirror(f"file://{tmp_path}/mirrors") | {"players.rival": rival})
    config["evaluations"][0]["pairings"].append({"host": "rival", "agent": "random"})
    fit(tmp_path / "uninterrupted", config)
    with stopping_at(14):
        assert not fit(tmp_path / "run", config).finished
    stored = StoredRun.open(tmp_path / "run")
    stored.load("latest")
    stored.evaluate("main", 5)
    with stopping_at(7):
        assert not fit(tmp_path / "run").finished
    for lost in ("source", "run"):
        shutil.rmtree(tmp_path / lost)
    trainer = Trainer.load(f"file://{tmp_path}/mirrors/run", into=tmp_path / "again")
    trainer.fit()
    assert_ends_in_the_same_bits(tmp_path / "again", tmp_path / "uninterrupted")
    names = [sorted(path.name for path in (tmp_path / run / "players").iterdir()) for run in ("again", "uninterrupted")]
    assert names[0] == names[1] == ["rival.json", "rival.safetensors", "rival.yml"]
    [result] = (tmp_path / "again" / "evaluations").glob("*.json")
    assert json.loads(result.read_text())["pairs"][0]["games"] > 0
    copied = tmp_path / "again" / "players" / "rival.yml"
    copied.write_text(f"{copied.read_text()}\n")  # which reads alike
    told = CliRunner().invoke(app, ["verify", str(tmp_path / "again")])
    assert (told.output, told.exit_code) == (f"{copied} differs from what was written; {PUT_BACK}\n", 1)
    told = CliRunner().invoke(app, ["resume", str(tmp_path / "again")])
    assert told.output.startswith("players.rival.from_run: rival.yml differs from what was written: expected ")
    assert (told.output.endswith(f" {PUT_BACK}\n"), told.output.count("\n"), told.exit_code) == (True, 1, 2)


def test_a_run_fetched_after_a_stop_anywhere_ends_in_the_same_bits(make_config: MakeConfig, tmp_path: Path) -> None:
    with stopping_at(0) as safe_points:
        fit(tmp_path / "uninterrupted", make_config())
    config = make_config(mirror(f"file://{tmp_path}/mirrors"))
    for number in range(1, len(safe_points), 6):
        name = f"stopped-at-{number}"
        with stopping_at(number):
            assert not fit(tmp_path / name, config).finished
        shutil.rmtree(tmp_path / name)
        trainer = Trainer.load(f"file://{tmp_path}/mirrors/{name}", into=tmp_path / "again" / name)
        trainer.fit()
        assert trainer.finished
        assert_ends_in_the_same_bits(tmp_path / "again" / name, tmp_path / "uninterrupted")
        whole = Trainer.load(f"file://{tmp_path}/mirrors/{name}", into=tmp_path / "whole" / name)  # kept up, same place
        whole.fit()
        assert_ends_in_the_same_bits(tmp_path / "whole" / name, tmp_path / "uninterrupted")


def test_a_run_goes_on_from_s3_in_another_process_and_the_credentials_are_in_no_file(
    bucket: str, make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    uninterrupted = uninterrupted_run(make_config())
    file = write_config(make_config(mirror(f"{bucket}/deep/runs")), tmp_path)
    with stopping_at(25):
        trainer = Trainer(file, run=tmp_path / "run")
        trainer.fit()
    assert not trainer.finished
    process = start("resume", f"{bucket}/deep/runs/run", "--run", tmp_path / "again", "--quiet")
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (0, "", "")
    assert_ends_in_the_same_bits(tmp_path / "again", uninterrupted)
    fs, place = fsspec.url_to_fs(bucket, skip_instance_cache=True)
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    contents += [fs.cat_file(path) for path in fs.find(place)]
    assert len(contents) > 60
    for secret in (S3_SECRET, "AKIATESTS"):
        assert [content for content in contents if secret.encode() in content] == []


@pytest.mark.parametrize("num_kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_loses_its_disk_at_every_kill_goes_on_from_s3_to_the_same_bits(
    num_kills: int, bucket: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Killed at random moments, most of them in an upload: what is half there is not taken for whole."""
    often = {
        "stop": {"after": 60 * num_kills, "unit": "opt_steps"},
        "evaluations": [],
        "best": None,
        "output.save": {"every": 5, "unit": "opt_steps"},
        "output.keep_every": None,
    }
    fit(tmp_path / "uninterrupted", make_config(often))
    config, rng = make_config(often | mirror(bucket)), random.Random(num_kills)
    run = tmp_path / "run"
    process = start("train", write_config(config, tmp_path), "--run", run)
    remote, latest = Remote(f"{bucket}/run", {}, 1, 0.0), -1
    for _ in range(num_kills):
        deadline = time.monotonic() + PATIENCE_S
        while max(numbers_there(remote), default=-1) <= latest and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.3))
        assert process.poll() in (None, 0), process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        latest = max(numbers_there(remote))
        shutil.rmtree(run)
        process = start("resume", f"{bucket}/run", "--run", run, "--quiet")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert_ends_in_the_same_bits(run, tmp_path / "uninterrupted")


def numbers_there(remote: Remote) -> list[int]:
    """The numbers of the checkpoints on a mirror, ascending."""
    names = [path.split("/") for path in remote.files() if path.endswith("contents.json")]
    return sorted(int(name[1].split("-")[0]) for name in names)


def test_a_url_without_a_folder_for_it_is_fetched_into_runs(
    make_config: MakeConfig, in_tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config(mirror(f"file://{in_tmp_path}/mirrors"))
    with stopping_at(20):
        fit(in_tmp_path / "mine", config)
    url = f"file://{in_tmp_path}/mirrors/mine"
    assert call("resume", url, "--quiet") == 0
    assert pointed_at(in_tmp_path / "runs" / "mine", "latest") is not None
    assert call("resume", url) == 2
    assert "runs/mine exists already; to go on with the run there: palestra resume runs/mine" in capfd.readouterr().err
    assert call("resume", "runs/mine", "--run", "elsewhere") == 2
    assert (
        capfd.readouterr().err
        == "--run: expected none, because the run goes on in its folder runs/mine, got elsewhere\n"
    )


def call(*arguments: str) -> int:
    """The exit code of a command that runs in this process."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


# ---- what goes wrong on the way ------------------------------------------------------------------------


@contextlib.contextmanager
def writes_refused(refused: Callable[[str], bool]) -> Iterator[None]:
    """Let writing to remotes fail for the paths that are refused."""
    original = Remote._write

    def write(remote: Remote, path: str, deed: Callable[..., None]) -> None:
        if refused(path):
            raise RemoteError(f"{remote.url}: writing {path}: 503 slow down")
        original(remote, path, deed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remote, "_write", write)
        yield


def test_an_upload_that_fails_is_told_and_changes_nothing_else(
    make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    uninterrupted = uninterrupted_run(make_config())
    shown = io.StringIO()
    config = make_config(mirror(f"file://{tmp_path}/mirrors") | {"output.display": "plain"})
    with writes_refused(lambda path: "/00000000-" in path and path.endswith("manifest.json")):
        trainer = Trainer(config, run=tmp_path / "run", console=Console(file=shown, width=1000))
        with contextlib.suppress(RemoteError):  # if the last save, too, wanted to send number 0, which keep_every keeps
            trainer.fit()
    assert trainer.finished
    assert "error: file://" in shown.getvalue()
    assert "503 slow down; the mirror lacks what is new until an upload succeeds" in shown.getvalue()
    assert_ends_in_the_same_bits(tmp_path / "run", uninterrupted)
    assert fit(tmp_path / "run").finished
    assert numbers_there(Remote(f"file://{tmp_path}/mirrors/run", {}, 1, 0.0)) == [0, 1, 2, 3]


def test_a_last_upload_that_fails_is_an_error_at_the_end_and_resuming_makes_up_for_it(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_config(make_config(mirror(f"file://{tmp_path}/mirrors")), tmp_path)
    with writes_refused(lambda path: "/00000003-" in path):
        assert call("train", str(file), "--run", str(tmp_path / "run"), "--quiet") == 1
    assert "503 slow down" in capfd.readouterr().err
    remote = Remote(f"file://{tmp_path}/mirrors/run", {}, 1, 0.0)
    assert max(numbers_there(remote)) < 3
    with writes_refused(lambda path: "/00000003-" in path):
        assert call("resume", str(tmp_path / "run")) == 1
    shown = capfd.readouterr()
    assert f"503 slow down; to send the rest: palestra resume {tmp_path / 'run'}" in shown.err
    assert "training goes on" not in shown.out + shown.err
    assert max(numbers_there(remote)) < 3
    assert call("resume", str(tmp_path / "run"), "--quiet") == 0
    assert numbers_there(remote) == [0, 1, 2, 3]


def test_a_mirror_that_cannot_be_written_is_an_error_before_training(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    trainer = Trainer(make_config(mirror(f"file://{tmp_path}/file/below")), run=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"^output\.mirror: file://.*/file/below/run: "):
        trainer.fit()
    assert trainer.opt_steps == 0


def test_a_bucket_that_is_not_there_is_an_error_and_is_not_made(
    bucket: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = Trainer(make_config(mirror(f"{bucket}-mistyped")), run=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"^output\.mirror: s3://bucket-.*-mistyped/run: writing run\.json"):
        trainer.fit()
    fs, _ = fsspec.url_to_fs(bucket, skip_instance_cache=True)
    assert not fs.exists(f"{bucket}-mistyped")


def test_a_second_run_of_the_same_name_does_not_touch_the_mirror_of_the_first(
    make_config: MakeConfig, in_tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_config(make_config(mirror(f"file://{in_tmp_path}/mirrors")), in_tmp_path)
    assert call("train", str(file), "--run", "one/run", "--quiet") == 0
    before = {path: path.read_bytes() for path in Path("mirrors").rglob("*") if path.is_file()}
    assert call("train", str(file), "--run", "two/run", "--quiet") == 2
    assert "output.mirror.url: expected a new folder, got " in capfd.readouterr().err
    assert {path: path.read_bytes() for path in Path("mirrors").rglob("*") if path.is_file()} == before


def test_verifying_a_run_leaves_its_mirror_alone(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "run", make_config(mirror(f"file://{tmp_path}/mirrors")))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "mirrors").rglob("*")}
    assert verify(tmp_path / "run", "1").difference is None
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "mirrors").rglob("*")} == before


def test_a_signal_waits_for_the_last_upload_no_longer_than_the_config_says(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """The upload hangs for good: its process leaves all the same, and says why."""
    (tmp_path / "hanging.py").write_text(
        "import time\nimport palestra\nfrom palestra.config import UserConfig\n"
        "from palestra.run.remote import Remote\n\n"
        "class Hanging(palestra.Callback):\n"
        "    class Config(UserConfig):\n        pass\n\n"
        "    def before_train(self, trainer):\n"
        "        Remote.put = lambda *_: time.sleep(1000)\n"
    )
    changes = {**LONG, "stop": {"after": 10**9, "unit": "opt_steps"}, "callbacks": [{"name": "hanging:Hanging"}]}
    config = make_config(changes | mirror(f"file://{tmp_path}/mirrors", end_wait_s=0.1))
    command = [*PALESTRA, "train", write_config(config, tmp_path), "--run", "run"]
    process = Forked(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "run" / "checkpoints" / "00000001").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "the last upload takes longer than end_wait_s = 0.1" in errors


# ---- the config ----------------------------------------------------------------------------------------

MAY_HOLD = "may contain a secret, which would be stored in the run's folder"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "s3://user:pa55@host/x"}, f"output.mirror.url: {MAY_HOLD}"),
        ({"url": "sftp://user:pa55@host/x"}, f"output.mirror.url: {MAY_HOLD}"),
        ({"url": "https://host/x?signature=pa55"}, f"output.mirror.url: {MAY_HOLD}"),
        (
            {"url": "runs/mirror"},
            "output.mirror.url: expected a URL of fsspec (s3://bucket/folder, file:///folder, ...), got 'runs/mirror'",
        ),
        (
            {"url": "file://mirror"},
            "output.mirror.url: expected a URL of fsspec (s3://bucket/folder, file:///folder, ...), got 'file://mirror'",
        ),
        (
            {"url": "s4://bucket/x"},
            "output.mirror.url: expected a URL of fsspec (s3://bucket/folder, file:///folder, ...), got 's4://bucket/x'",
        ),
        (
            {"url": "s3://"},
            "output.mirror.url: expected a URL of fsspec (s3://bucket/folder, file:///folder, ...), got 's3://'",
        ),
        ({"url": "simplecache::s3://bucket/x"}, "expected a URL of fsspec"),
        (
            {"url": "zip:///x.zip"},
            "output.mirror.url: expected a place where files can be replaced and deleted, got an archive (zip)",
        ),
        ({"options": {"key": "pa55"}}, f"output.mirror.options.key: {MAY_HOLD}"),
        ({"options": {"password": "pa55"}}, f"output.mirror.options.password: {MAY_HOLD}"),
        ({"options": {"client_kwargs": {"aws_secret_access_key": "pa55"}}}, "client_kwargs.aws_secret_access_key: may"),
        ({"options": {"headers": [{"Authorization": "pa55"}]}}, f"output.mirror.options.headers: {MAY_HOLD}"),
        ({"options": {"proxy": "http://me:pa55@proxy"}}, f"output.mirror.options.proxy: {MAY_HOLD}"),
        ({"options": {"connectionString": "pa55"}}, f"output.mirror.options.connectionString: {MAY_HOLD}"),
        ({"attempts": 0}, "output.mirror.attempts: expected an integer >= 1, got 0"),
        ({"first_wait_s": -1.0}, "output.mirror.first_wait_s: expected a number >= 0, got -1.0"),
    ],
)
def test_what_cannot_be_a_mirror_is_refused_and_no_secret_is_repeated(
    changes: dict[str, Any], message: str, make_config: MakeConfig, in_tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config(mirror(**{"url": "s3://bucket/x", **changes}))
    assert call("train", str(write_config(config, in_tmp_path)), "--run", "run") == 2
    errors = capfd.readouterr().err
    assert message in errors
    assert "pa55" not in errors
    assert len(errors.splitlines()) == 1
    assert not Path("run").exists()


def test_options_that_are_no_secrets_are_taken(make_config: MakeConfig, in_tmp_path: Path) -> None:
    s3 = {"endpoint_url": "https://host:9000", "anon": False, "client_kwargs": {"region_name": "eu-1"}}
    sftp = {"key_filename": "/home/me/.ssh/id_ed25519", "username": "me"}
    for url, options in (("s3://bucket/runs", s3), ("sftp://host:2222/home/me/runs", sftp)):
        file = write_config(make_config(mirror(url, options=options)), in_tmp_path)
        assert call("check", str(file)) == 0


def test_every_key_of_a_mirror_is_demanded(make_config: MakeConfig) -> None:
    for path in ("url", "options", "attempts", "first_wait_s", "end_wait_s"):
        with pytest.raises(ConfigError, match=rf"^output\.mirror\.{path}: expected .*, but the key is missing"):
            Trainer(make_config(mirror("s3://bucket/x") | {f"output.mirror.{path}": ...}))
    with pytest.raises(ConfigError, match=r"^output\.mirror: expected a mapping .* or null, but the key is missing"):
        Trainer(make_config({"output.mirror": ...}))


def test_a_mirror_of_a_run_that_saves_nothing_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"^output\.mirror: expected null, because `save` is null, got a mapping$"):
        Trainer(make_config(mirror("s3://bucket/x") | {"output.save": None}))


def test_a_backend_that_is_not_installed_is_told_with_its_extra(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_filesystem_class(protocol: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", get_filesystem_class)
    for protocol, extra in (("s3", "s3"), ("sftp", "sftp")):
        expected = rf"output\.mirror\.url: {protocol}:// needs a package that is not installed: "
        with pytest.raises(ConfigError, match=expected + rf"pip install 'palestra\[{extra}\]'"):
            Trainer(make_config(mirror(f"{protocol}://bucket/x")), run=tmp_path / "run").fit()
    assert not (tmp_path / "run").exists()


def test_who_only_evaluates_a_run_needs_neither_its_mirror_nor_the_backend(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path / "run", make_config(mirror(f"file://{tmp_path}/mirrors")))
    shutil.rmtree(tmp_path / "mirrors")
    monkeypatch.delattr(fsspec, "get_filesystem_class")
    stored = StoredRun.open(tmp_path / "run")
    stored.load("best")
    _, record = stored.evaluate("main", 8)
    assert record["pairs"]
    assert not (tmp_path / "mirrors").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "s3://me:pa55@host/x",
            "the URL may contain a secret, which other users of this machine could read; expected secrets in AWS_",
        ),
        ("sftp://pa55@host/x", "the user in the option 'username', or in FSSPEC_SFTP_USERNAME"),
        (
            "zip://run::https://host/run.zip?sig=pa55",
            "the URL may contain a secret, which other users of this machine could read",
        ),
        ("s4://bucket/x", "expected a URL of fsspec, got s4://bucket/x: Protocol not known: s4"),
        ("file:///no/such/place", "there is no run at file:///no/such/place"),
    ],
)
def test_what_cannot_be_resumed_from_is_one_clear_line(
    url: str, message: str, in_tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("resume", url) == 2
    errors = capfd.readouterr().err
    assert message in errors
    assert "pa55" not in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("command", ["report", "verify", "export", "extend"])
def test_a_url_where_a_folder_is_needed_is_told_the_way(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(command, "s3://bucket/runs/mine") == 2
    (told,) = capfd.readouterr().err.splitlines()
    assert "palestra resume URL brings a run back from its mirror, into a folder" in told


def test_the_place_of_a_mirror_is_settled_for_a_runs_life(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "run", make_config(mirror(f"file://{tmp_path}/mirrors/")))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["mirror"] == f"file://{tmp_path}/mirrors/run"
    (tmp_path / "run").rename(tmp_path / "renamed")
    fit(tmp_path / "renamed")
    assert [path.name for path in (tmp_path / "mirrors").iterdir()] == ["run"]
    assert RunFolder.open(tmp_path / "renamed").config.read_text().count("mirrors") == 1
