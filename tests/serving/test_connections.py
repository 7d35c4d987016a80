"""A server whose clients do their worst: they say nothing, stop in the middle, read nothing, or come in crowds."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from palestra.serving.guard import PIECE
from palestra.serving.runner import KEY
from tests.forked import ForkedServer
from tests.serving.servers import Server
from tests.text.runs import made_folder

OWED_S, MOST_NEAR = 0.6, 20
PROGRAM = f"""
import sys
from palestra.serving import guard
guard.OWED_S, guard.PACE, guard.MOST_NEAR = {OWED_S}, 8 << 20, {MOST_NEAR}
guard.MOST_HELD_BYTES = 12 << 20
from palestra.cli import main
main(sys.argv[1:])
"""
FORM, JSON = "Content-Type: multipart/form-data;boundary=x", "Content-Type: application/json"
LOADS_FOR_EVER = """
import time
from palestra.serving.source import Source
Source.build = lambda *_: print("loads", flush=True) or time.sleep(60)
"""
RIGHT = {"Authorization": "Bearer right"}


class Hurried(Server):
    """A server with small limits, and a key."""

    def start(self) -> None:
        self.command[1:3] = ["-c", PROGRAM]
        super().start()
        self.address = ("127.0.0.1", int(self.url.split(":")[2].split("/")[0]))

    def connect(self, request: str = "", rest: bytes = b"", has_key: bool = True) -> socket.socket:
        """Connect, and begin with a request: a method, a path, and headers behind semicolons."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(self.address)
        if request:
            line, *headers = request.split("; ")
            said = [f"{line} HTTP/1.1", "Host: localhost", *headers, *(["Authorization: Bearer right"] * has_key)]
            rest = "\r\n".join([*said, "", ""]).encode() + rest
        connection.sendall(rest)
        return connection

    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self) -> int:
        """Return the bytes of memory that the process has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def require_answer(self) -> None:
        """Be a client that behaves, and is answered soon."""
        assert httpx.get(f"{self.url}/models", headers=RIGHT, timeout=5).status_code == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hurried]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, "right")
        place = tmp_path_factory.mktemp("server")
        started = Hurried(made_folder(place / "base"), place / "folder")
    yield started
    if started.process.returncode is None:
        started.kill()


def seconds_to_end(connection: socket.socket) -> float:
    """Wait until the server ends a connection, whatever it says before."""
    began_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return time.monotonic() - began_s


def seconds_of_sending(connection: socket.socket, piece: bytes, pause_s: float) -> float:
    """Send a piece again and again until the server has ended the connection."""
    began_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)
    return time.monotonic() - began_s


def until(is_so: Callable[[], bool], within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def said(connection: socket.socket) -> bytes:
    return connection.recv(1 << 16).partition(b"\r\n")[0]


def test_silent_clients_have_no_place_of_others_and_are_ended(server: Hurried) -> None:
    before = server.num_files()
    silent = [server.connect() for _ in range(5 * MOST_NEAR)]
    server.require_answer()
    assert server.num_files() <= before + MOST_NEAR
    assert seconds_to_end(silent[0]) < OWED_S / 2, "the oldest made room"
    assert all(seconds_to_end(each) < 2 * OWED_S for each in silent)
    server.require_answer()
    assert server.num_files() <= before + 1


def test_headers_that_come_byte_by_byte_do_not_come_for_ever(server: Hurried) -> None:
    slow = server.connect(rest=b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: ")
    assert seconds_of_sending(slow, b"x", 0.05) < 3 * OWED_S


def test_headers_are_few(server: Hurried) -> None:
    many = server.connect("GET /v1/models; " + "; ".join(f"X-{number}: x" for number in range(PIECE // 4)))
    assert b"400" in said(many)
    assert seconds_to_end(many) < OWED_S


def test_the_key_is_asked_for_before_a_body_is_read(server: Hurried) -> None:
    request = f"POST /v1/files; Content-Length: 1000000; Expect: 100-continue; {FORM}"
    stranger = server.connect(request, has_key=False)
    assert b"401" in said(stranger)
    assert seconds_to_end(stranger) < OWED_S / 2
    assert b"100" in said(server.connect(request))


@pytest.mark.parametrize("path", ["/v1/files", "/v1/chat/completions", "/v1/nothing"])
def test_a_body_that_does_not_go_on_is_given_up(server: Hurried, path: str) -> None:
    request = f"POST {path}; Transfer-Encoding: chunked; {FORM if path == '/v1/files' else JSON}"
    silent = [server.connect(request) for _ in range(MOST_NEAR // 2)]
    slow = server.connect(request)
    server.require_answer()
    assert seconds_of_sending(slow, b"1\r\n-\r\n", 0.05) < 3 * OWED_S
    expected = b"404" if path == "/v1/nothing" else b"408"
    assert all(expected in got for got in map(said, silent))
    assert all(seconds_to_end(each) < 2 * OWED_S for each in silent)


def test_bodies_that_are_half_sent_do_not_fill_the_memory_and_others_are_answered(server: Hurried) -> None:
    before = server.memory()
    request = f"POST /v1/chat/completions; Content-Length: {4 << 20}; {JSON}"
    half = [server.connect(request, b" " * (1 << 20)) for _ in range(MOST_NEAR - 2)]
    answer = httpx.post(f"{server.url}/chat/completions", headers=RIGHT, json={"model": "base"}, timeout=5)
    assert answer.json()["error"]["code"] == "missing_required_parameter"
    refused = [each for each in half if b"429" in said(each)]
    assert 5 <= len(refused) <= 8
    assert server.memory() < before + (24 << 20)


def test_an_answer_that_nobody_reads_is_given_up(server: Hurried) -> None:
    file = httpx.post(
        f"{server.url}/files", headers=RIGHT, data={"purpose": "fine-tune"}, files={"file": b"x" * (10 << 20)}
    ).json()["id"]
    before, memory = server.num_files(), server.memory()
    deaf = [server.connect(f"GET /v1/files/{file}/content") for _ in range(MOST_NEAR // 2)]
    server.require_answer()
    assert server.memory() < memory + (10 << 20)
    until(lambda: server.num_files() <= before, 10 * OWED_S)
    assert len(httpx.get(f"{server.url}/files/{file}/content", headers=RIGHT).content) == 10 << 20
    del deaf


def test_requests_that_come_while_one_is_answered_are_few(server: Hurried) -> None:
    said = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "n": 128, "max_tokens": 1000}
    body = json.dumps(said).encode()
    eager = server.connect(f"POST /v1/chat/completions; {JSON}; Content-Length: {len(body)}", body)
    assert seconds_of_sending(eager, b"x" * 10_000, 0.01) < 5


def test_a_server_that_is_killed_while_it_loads_leaves_no_folder(server: Hurried, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    command = [sys.executable, "-c", LOADS_FOR_EVER + PROGRAM, *server.command[3:-1], str(folder)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with ForkedServer(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "loads\n"
            process.send_signal(number)
        assert not folder.exists()


def test_a_server_that_may_open_no_more_files_says_so_once_and_goes_on(server: Hurried) -> None:
    most = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (server.num_files() + 2, most[1]))
    with contextlib.ExitStack() as crowd:
        for _ in range(50):
            crowd.enter_context(server.connect())
        time.sleep(2)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, most)
    server.require_answer()
    code, told = server.stop()
    assert code == 143
    lines = told.splitlines()
    assert "Too many open files" in told
    assert len(set(lines)) == len(lines) <= 3, told  # it may be told of what could not be accepted, and not be opened
