"""A small server with OpenAI's interface, on loopback, which counts what it is asked and misbehaves when told to."""

import gzip
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[list[dict[str, str]], int, int], str]


def letters(messages: list[dict[str, str]], seed: int, index: int) -> str:
    """Answer by the messages and the seed alone, in a way that decides now and then."""
    drawn = sha256(json.dumps([messages, seed, index]).encode()).digest()[0]
    return ("Decision: accept", "Decision: reject", f"what about {drawn}?")[drawn % 3]


class FakeServer(ThreadingHTTPServer):
    """The server. url: of its interface.

    answer: gives the text of a choice by messages, seed and its number. plan: how it misbehaves at the next chat
    completions, one entry each: a status, `429 SECONDS` (Retry-After), `307 URL` (Location), hang, cut, filtered, none,
    no_usage, odd (an index that is none), echo (the Authorization header in an error), echo_late (in no JSON, behind
    blanks), long (so many bytes, in pieces of no stated size), zipped (with that header). latency_s: before every
    answer. asked: how often each body was asked for, as JSON; answered: how often a whole answer went out. headers:
    those of the last request. most_at_once: of the requests that waited together. num_made, num_open: connections so
    far, and now.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.answer: Answer = letters
        self.models: list[str] | None = ["base"]  # None: it has no such route
        self.plan: deque[str] = deque()
        self.latency_s = 0.0
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.paths: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.gate = threading.Event()  # answers wait for it
        self.gate.set()
        self.num_waiting = self.most_at_once = self.num_made = self.num_open = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.num_made += 1
            self.server.num_open += 1

    def finish(self) -> None:
        with self.server.lock:
            self.server.num_open -= 1
        super().finish()

    def do_GET(self) -> None:
        server = self.server
        server.headers = dict(self.headers)
        server.paths[self.path] += 1
        if server.models is None:
            return self._send(404, {"error": {"message": "no such route"}})
        if self.path == "/v1/models":
            return self._send(200, {"data": [{"id": name} for name in server.models]})
        known = self.path.removeprefix("/v1/models/") in server.models
        return self._send(200 if known else 404, {"id": "x"} if known else {"error": {"message": "no such model"}})

    def do_POST(self) -> None:
        server = self.server
        content = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(content)
        own = json.dumps(body, sort_keys=True)
        with server.lock:
            server.headers = dict(self.headers)
            server.paths[self.path] += 1
            server.asked[own] += 1
            server.num_waiting += 1
            server.most_at_once = max(server.most_at_once, server.num_waiting)
            plan = server.plan.popleft() if server.plan else "answer"
        server.gate.wait(20)
        time.sleep(server.latency_s)
        with server.lock:
            server.num_waiting -= 1
        self._reply(plan, body)
        if plan in ("answer", "no_usage"):
            with server.lock:
                server.answered[own] += 1

    def _reply(self, plan: str, body: dict[str, Any]) -> None:
        kind, _, rest = plan.partition(" ")
        if kind.isdigit():
            headers = {"location" if kind.startswith("3") else "retry-after": rest} if rest else {}
            return self._send(int(kind), {"error": {"message": f"status {kind}"}}, headers)
        match kind:
            case "hang":
                time.sleep(float(rest or 1))
                self.close_connection = True
                return None
            case "detail":
                return self._send(404, {"detail": "Not Found, says FastAPI"})
            case "echo":
                told = f"bad key {self.headers['authorization']}"
                return self._send(401, {"error": {"message": told}})
            case "echo_late":
                return self._send(200, (" " * int(rest) + self.headers["authorization"]).encode())
        texts = [self.server.answer(body["messages"], body["seed"], index) for index in range(body["n"])]
        choices = [
            {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for index, text in enumerate(texts)
        ]
        reply: dict[str, Any] = {"object": "chat.completion", "choices": choices}
        if kind != "no_usage":
            read = sum(len(each["content"]) // 4 for each in body["messages"])
            written = sum(len(text) // 4 + 1 for text in texts)
            reply["usage"] = {"prompt_tokens": read, "completion_tokens": written}
        if kind == "filtered":
            choices[0] |= {"finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}
        if kind == "odd":
            choices[0]["index"] = []
        match kind:
            case "one":
                del choices[1:]
            case "zeros":
                for each in choices:
                    each["index"] = 0
            case "refused":
                choices[0]["message"] = {"role": "assistant", "content": None, "refusal": "I will not."}
            case "null":
                choices[0] |= {"finish_reason": "length", "message": {"role": "assistant", "content": None}}
            case "parts":
                parts = [{"type": "text", "text": each} for each in ("in ", "parts")]
                choices[0]["message"]["content"] = [*parts, {"type": "image"}]
            case "ended":
                choices[0]["finish_reason"] = json.loads(rest)
        if kind == "none":
            reply["choices"] = []
        content = json.dumps(reply).encode()
        if kind == "zipped":
            told = f"gzip {self.headers['authorization']}"
            return self._send(200, gzip.compress(content), {"content-encoding": told})
        if kind == "long":
            return self._send_in_pieces(content.ljust(int(rest)))
        return self._send(200, content, cut=kind == "cut")

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None, cut: bool = False) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.wfile.flush()
            self.close_connection = True

    def _send_in_pieces(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for start in range(0, len(content), 1000):
            piece = content[start : start + 1000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A context in which the server answers, in threads of this process."""
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        server.server_close()
