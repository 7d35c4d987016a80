"""A proxy between a run and a server, which does what networks and servers do at their worst, and counts what passes.

    python -m tests.serving.proxy PORT http://127.0.0.1:8000 LOG

forwards without faults, and appends a line to LOG for each request and for each reply that went out whole.
"""

import http.client
import json
import re
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

Fault = Literal[
    "429",  # refused, with Retry-After
    "500",  # refused
    "late 500",  # done, and then said to have failed
    "time-out",  # no reply
    "malformed",  # done, and a reply that is no JSON
    "cut",  # done, and half of the reply
    "lost",  # done, and no reply
    "no route",  # 404
    "stuck",  # a job that never ends
    "failed",  # a job of which it is said, once it is done, that it has failed
    "reversed",  # a list whose oldest entries come first
]


@dataclass
class Rule:
    """A fault that requests meet. path: an expression for its whole. at: which of them, counted from 0; None: all."""

    method: str
    path: str
    fault: Fault
    at: tuple[int, ...] | None = None
    met: int = 0

    def meets(self, method: str, path: str) -> bool:
        if method != self.method or not re.fullmatch(self.path, path):
            return False
        self.met += 1
        return self.at is None or self.met - 1 in self.at


class Proxy(ThreadingHTTPServer):
    """Runs in threads while it is entered. requests: what came, with its fault, and which replies went out whole."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: str, rules: list[Rule], port: int = 0, log: Path | None = None):
        super().__init__(("127.0.0.1", port), Handler)
        self.upstream, self.rules, self.log = urlsplit(upstream).netloc, rules, log
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.requests: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            return next((rule.fault for rule in self.rules if rule.meets(method, path)), None)

    def note(self, **entry: Any) -> int:
        with self._lock:
            self.requests.append(entry)
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
            return len(self.requests) - 1

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._pass()

    def do_POST(self) -> None:
        self._pass()

    def do_DELETE(self) -> None:
        self._pass()

    def _pass(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # whose client was killed
            self.close_connection = True
            return None
        path = urlsplit(self.path).path
        fault = self.server.fault(self.command, path)
        said = body.decode(errors="replace")
        number = self.server.note(method=self.command, path=self.path, body=said, fault=fault, at=time.time())
        match fault:
            case "429":
                return self._reply(429, _error("too many requests"), {"Retry-After": "0"})
            case "500":
                return self._reply(500, _error("out of order"))
            case "no route":
                return self._reply(404, _error("not here"))
            case "time-out":
                self.connection.recv(1)  # until the client has gone
                self.close_connection = True
                return None
        try:
            status, content = self._reversed() if fault == "reversed" else self._forward(self.path, body)
        except OSError:  # the server is down
            self.close_connection = True
            return None
        match fault:
            case "late 500":
                status, content = 500, _error("out of order")
            case "malformed":
                content = b'{"id": "x", "choices": [{'
            case "lost":
                self.close_connection = True
                return None
            case "cut":
                self.close_connection = True
                return self._head(status, len(content), {}) or self._write(content[: len(content) // 2])
            case "stuck" | "failed":
                content = _changed(content, fault)
        self._reply(status, content)
        self.server.note(replied=number, status=status)
        return None

    def _forward(self, target: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=600)
        try:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")
            }
            connection.request(self.command, target, body or None, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def _reversed(self) -> tuple[int, bytes]:
        """Answer a list with the oldest first, in pages of one."""
        asked = urlsplit(self.path)
        found: list[dict[str, Any]] = []
        while True:
            after = f"&after={found[-1]['id']}" if found else ""
            status, content = self._forward(f"{asked.path}?limit=100{after}", b"")
            page = json.loads(content)
            found += page["data"]
            if status != 200 or not page.get("has_more"):
                break
        found.reverse()
        last = parse_qs(asked.query).get("after", [None])[0]
        start = next((place + 1 for place, each in enumerate(found) if each["id"] == last), 0)
        page = {"object": "list", "data": found[start : start + 1], "has_more": start + 1 < len(found)}
        return 200, json.dumps(page).encode()

    def _reply(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, len(content), headers or {})
        self._write(content)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "proxy", "param": None, "code": None}}).encode()


def _changed(content: bytes, fault: Fault) -> bytes:
    job = json.loads(content)
    if fault == "stuck" and job.get("status") in ("succeeded", "running", "queued", "validating_files"):
        job |= {"status": "running", "fine_tuned_model": None, "finished_at": None}
    elif fault == "failed" and job.get("status") == "succeeded":
        error = {"code": "server_error", "message": "the disk is full", "param": None}
        job |= {"status": "failed", "fine_tuned_model": None, "error": error}
    return json.dumps(job).encode()


def main(port: str, upstream: str, log: str) -> None:
    Proxy(upstream, [], int(port), Path(log)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
