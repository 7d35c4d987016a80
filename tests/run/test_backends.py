"""Mirrors on real servers on loopback: S3 (moto) and SFTP (paramiko).

Covers palestra.run.remote.
"""

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from palestra.run.fetching import fetch
from palestra.run.remote import MissingError, Remote, RemoteError
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from tests.run.mirroring import Run, fetched, numbers_on_mirror, on_mirror, run_of

pytest.importorskip("s3fs")
pytest.importorskip("paramiko")


@pytest.fixture
def sftp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server whose root is tmp_path/served, and which has the folder /home; user and password lie in
    fsspec's own config."""
    from tests.run.sftp_server import PASSWORD, USER, sftp_server

    (tmp_path / "served" / "home").mkdir(parents=True)
    monkeypatch.setitem(fsspec.config.conf, "sftp", {"username": USER, "password": PASSWORD})
    with sftp_server(tmp_path / "served") as server:
        yield server


@pytest.fixture(params=["s3", "sftp"])
def url(request: pytest.FixtureRequest) -> str:
    """A place that may be written, below folders that are not there yet."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/deep/runs"
    return f"sftp://127.0.0.1:{request.getfixturevalue('sftp').port}/home/deep/runs"


def test_files_are_written_listed_read_replaced_and_removed(url: str, tmp_path: Path) -> None:
    remote = Remote(f"{url}/a run [1] *", {}, 1, 0.0)
    assert remote.files() == {}
    local = tmp_path / "local"
    local.write_bytes(os.urandom(300_000))
    remote.put("checkpoints/x/big", local)
    remote.write("checkpoints/x/small", b"1")
    remote.write("checkpoints/x/small", b"234")
    remote.write("empty", b"")
    assert remote.files() == {"checkpoints/x/big": 300_000, "checkpoints/x/small": 3, "empty": 0}
    assert (remote.read("checkpoints/x/small"), remote.read("empty")) == (b"234", b"")
    remote.get("checkpoints/x/big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == local.read_bytes()
    for path in ("checkpoints/x/big", "checkpoints/x/small", "checkpoints/x/small"):  # the last is gone already
        remote.remove(path)
    remote.remove_folder("checkpoints/x")
    assert remote.files() == {"empty": 0}
    with pytest.raises(MissingError, match="reading checkpoints/x/small"):
        remote.read("checkpoints/x/small")


def test_a_run_goes_on_from_its_mirror(url: str, tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", url, keep_last=2, keep_every=5)).mirror:
        for number in range(7):
            run.save(number, best=number == 3)
            run.mirror.finish()
    assert numbers_on_mirror(f"{url}/run") == [0, 3, 5, 6]
    folder, warnings = fetch(f"{url}/run", tmp_path / "again")
    assert warnings == []
    with (again := Run(folder.path, url, keep_last=2, keep_every=5)).mirror:
        assert again.go_back() == 6
        again.save(7)
        again.mirror.finish()
    assert numbers_on_mirror(f"{url}/run") == [0, 3, 5, 6, 7]
    assert fetched(f"{url}/run", tmp_path / "whole") == (7, 3, [])
    assert run.told == again.told == []


def test_damage_on_the_mirror_is_named_and_the_checkpoint_before_is_used(url: str, tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", url)).mirror:
        for number in range(3):
            run.save(number)
            run.mirror.finish()
    [path] = [path for path in on_mirror(f"{url}/run") if path.endswith("tensors.safetensors") and "00000002-" in path]
    Remote(f"{url}/run", {}, 1, 0.0).write(path, b"?")
    latest, _, [warning] = fetched(f"{url}/run", tmp_path / "again")
    assert latest == 1
    assert f"{path} differs from what was written" in warning


def test_a_connection_that_is_lost_is_made_again(sftp: Any, tmp_path: Path) -> None:
    url = f"sftp://127.0.0.1:{sftp.port}/home"
    with (run := Run(tmp_path / "run", url, attempts=2)).mirror:
        for number in range(3):
            sftp.drop()
            run.save(number)
            run.mirror.finish()
    assert run.told == []
    assert fetched(f"{url}/run", tmp_path / "again")[0] == 2


def test_a_wrong_password_is_an_error_that_does_not_repeat_it(
    sftp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "sftp", {"username": "tests", "password": "pa55"})
    with (
        pytest.raises(RemoteError, match="Authentication failed") as raised,
        Run(tmp_path / "run", f"sftp://127.0.0.1:{sftp.port}/home").mirror,
    ):
        pass
    assert "pa55" not in str(raised.value)


# ---- an S3 that is busy --------------------------------------------------------------------------------


class Busy:
    """Stands before moto's application, and answers some of the requests with 503 Slow Down."""

    def __init__(self, application: Callable[..., Any], refuses: Callable[[int], bool]) -> None:
        self.application, self.refuses = application, refuses
        self.num_requests = self.num_refused = 0
        self.bucket = f"busy-{uuid.uuid4().hex}"  # moto's servers share their buckets

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        self.num_requests += 1
        if not self.refuses(self.num_requests):
            return self.application(environ, start_response)
        self.num_refused += 1
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("503 Slow Down", [("Content-Type", "application/xml")])
        return [b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"]


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    """A server of its own with a bucket, which refuses nothing yet; clients do not try again by themselves."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from s3fs import S3FileSystem
    from werkzeug.serving import make_server

    application = Busy(DomainDispatcherApplication(create_backend_app), lambda number: False)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    S3FileSystem(skip_instance_cache=True).mkdir(application.bucket)
    yield application
    server.shutdown()
    thread.join()


def test_a_server_that_refuses_every_seventh_request_gets_all_in_the_end(busy: Busy, tmp_path: Path) -> None:
    busy.refuses = lambda number: number % 7 == 0
    with (run := Run(tmp_path / "run", f"s3://{busy.bucket}", attempts=6)).mirror:
        for number in range(3):
            run.save(number)
            run.mirror.finish()
    assert run.told == []
    assert busy.num_refused > 5
    busy.refuses = lambda number: False
    assert numbers_on_mirror(f"s3://{busy.bucket}/run") == [1, 2]
    assert fetched(f"s3://{busy.bucket}/run", tmp_path / "again") == (2, None, [])


def test_a_server_that_goes_away_is_told_and_gets_all_when_it_is_back(busy: Busy, tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"s3://{busy.bucket}", attempts=2)).mirror:
        run.save(0)
        run.mirror.finish()
        busy.refuses = lambda number: True
        run.save(1)
        with pytest.raises(CheckpointError, match=r"(?i)slow ?down|reduce your rate"):
            run.mirror.finish()
        assert len(run.told) == 1
        busy.refuses = lambda number: False
        assert fetched(f"s3://{busy.bucket}/run", tmp_path / "before")[0] == 0
        run.save(2)
        run.mirror.finish()
    assert fetched(f"s3://{busy.bucket}/run", tmp_path / "again") == (2, None, [])
    assert RunFolder(tmp_path / "again").facts() == run_of("1")
