"""A server of chats, files and fine-tuning jobs that misbehaves as a test asks, and counts what it is asked for.

It answers chats by rule, and tunes nothing: a job is over after some looks at it.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Data = dict[str, Any]


class JobServer:
    """The state of a server.

    lost: kinds of requests of which the next ones are carried out, but the connection is cut before the reply; `before`
    those that are not carried out either. statuses: kinds with the statuses that their next requests get. looks: how
    often a job is looked at before it is over. end: succeeded, failed or cancelled; None: a job never ends by itself.
    can_list, gives_files: whether it lists what it has, and gives files back.
    steps, trained: what it reports of a job, its opt steps and tokens. answer: what every chat gets. usage: of a chat.
    """

    def __init__(self) -> None:
        self.files: dict[str, Data] = {}
        self.jobs: dict[str, Data] = {}
        self.counts: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.before: Counter[str] = Counter()
        self.statuses: dict[str, list[int]] = {}
        self.looks, self.end, self.steps = 1, "succeeded", 0
        self.trained: int | None = 100
        self.prefix = ""  # of the ids of files
        self.can_list = self.gives_files = True
        self.page = 2
        self.answer, self.usage = "because", {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        self.chats: list[Data] = []
        self.lock = threading.RLock()
        self.url = ""
        self.at: dict[str, Callable[[], None]] = {}  # what to do at a kind of request, once it is carried out

    # ---- what it does --------------------------------------------------------------------------------------

    def reply(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[str, int, Any]:
        """Carry out a request; returns its kind, and the status and data of the reply."""
        for kind, pattern in KINDS.items():
            wanted, form = pattern.split(" ")
            if method == wanted and (match := re.fullmatch(form, path)):
                with self.lock:
                    self.counts[kind] += 1
                    if self.before[kind] > 0:
                        self.before[kind] -= 1
                        return kind, 0, None
                    if self.statuses.get(kind):
                        return kind, self.statuses[kind].pop(0), {"error": {"message": f"no {kind} today"}}
                    status, data = getattr(self, f"_{kind}")(*match.groups(), query=query, body=body)
                    if kind in self.at:
                        self.at.pop(kind)()
                    if self.lost[kind] > 0:
                        self.lost[kind] -= 1
                        status = 0
                    return kind, status, data
        return "unknown", 404, {"error": {"message": f"nothing at {path}"}}

    def submitted(self) -> list[str]:
        """Return the keys of all jobs, in order."""
        return [job["metadata"]["key"] for job in self.jobs.values()]

    def _models(self, query: Data, body: bytes) -> tuple[int, Any]:
        names = ["base", *(job["fine_tuned_model"] for job in self.jobs.values() if job["fine_tuned_model"])]
        return 200, {"object": "list", "data": [self._named_model(name) for name in names]}

    def _model(self, name: str, query: Data, body: bytes) -> tuple[int, Any]:
        return 200, self._named_model(name)

    @staticmethod
    def _named_model(name: str) -> Data:
        return {"id": name, "object": "model", "created": 0, "owned_by": "test"}

    def _chat(self, query: Data, body: bytes) -> tuple[int, Any]:
        asked = json.loads(body)
        self.chats.append(asked)
        choices = [
            {"index": i, "finish_reason": "stop", "message": {"role": "assistant", "content": self.answer}}
            for i in range(asked.get("n") or 1)
        ]
        said = {"id": "c", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": choices}
        return 200, said | ({} if self.usage is None else {"usage": self.usage})

    def _upload(self, query: Data, body: bytes) -> tuple[int, Any]:
        boundary = body[: body.index(b"\r\n")]
        [file] = [part for part in body.split(boundary)[1:-1] if b'name="file"' in part]
        head, _, content = file.partition(b"\r\n\r\n")
        name = re.search(rb'filename="([^"]*)"', head)
        assert name is not None
        return 200, self.add_file(name[1].decode(), content.removesuffix(b"\r\n"))

    def add_file(self, name: str, content: bytes) -> Data:
        told = {"id": f"{self.prefix}file-{len(self.files)}", "object": "file", "bytes": len(content), "filename": name}
        told |= {"created_at": len(self.files), "purpose": "fine-tune", "status": "processed"}
        self.files[told["id"]] = told | {"content": content}
        return told

    def _files(self, query: Data, body: bytes) -> tuple[int, Any]:
        return self._page(query, [{k: v for k, v in file.items() if k != "content"} for file in self.files.values()])

    def _content(self, file: str, query: Data, body: bytes) -> tuple[int, Any]:
        return (200, self.files[file]["content"]) if self.gives_files else (403, {"error": {"message": "no"}})

    def _submit(self, query: Data, body: bytes) -> tuple[int, Any]:
        return 200, self.add_job(json.loads(body))

    def add_job(self, asked: Data) -> Data:
        number = len(self.jobs)
        job = {"id": f"ftjob-{number}", "object": "fine_tuning.job", "created_at": number, "status": "queued"}
        job |= {"fine_tuned_model": None, "trained_tokens": None, "error": None, "looks": 0, **asked}
        self.jobs[job["id"]] = job
        return job

    def _jobs(self, query: Data, body: bytes) -> tuple[int, Any]:
        return self._page(query, list(self.jobs.values()))

    def _job(self, name: str, query: Data, body: bytes) -> tuple[int, Any]:
        if name not in self.jobs:
            return 404, {"error": {"message": f"no job {name}"}}
        job = self.jobs[name]
        job["looks"] += 1
        if job["status"] in ("queued", "running"):
            job["status"] = "running"
            if self.end is not None and job["looks"] > self.looks:
                job["status"] = self.end
                if self.end == "succeeded":
                    job |= {"fine_tuned_model": f"{job['model']}+{job['id'][6:]}", "trained_tokens": self.trained}
                elif self.end == "failed":
                    job["error"] = {"code": "bad", "message": "the examples are dull", "param": None}
        return 200, job

    def _cancel(self, name: str, query: Data, body: bytes) -> tuple[int, Any]:
        self.jobs[name]["status"] = "cancelled"
        return 200, self.jobs[name]

    def _events(self, name: str, query: Data, body: bytes) -> tuple[int, Any]:
        told = [
            {
                "id": f"ev-{step}",
                "object": "fine_tuning.job.event",
                "created_at": step,
                "level": "info",
                "message": f"Step {step}",
                "type": "metrics",
                "data": {"step": step, "train_loss": 1.0 / step},
            }
            for step in range(1, self.steps + 1)
        ]
        return self._page(query, told)

    def _page(self, query: Data, found: list[Data]) -> tuple[int, Any]:
        if not self.can_list:
            return 405, {"error": {"message": "not allowed"}}
        found = found[::-1]  # the latest first
        after = query.get("after")
        start = 0 if after is None else 1 + [each["id"] for each in found].index(after)
        page = found[start : start + self.page]
        return 200, {"object": "list", "data": page, "has_more": start + self.page < len(found)}


KINDS = {
    "models": r"GET /v1/models",
    "model": r"GET /v1/models/([^/]+)",
    "chat": r"POST /v1/chat/completions",
    "upload": r"POST /v1/files",
    "files": r"GET /v1/files",
    "content": r"GET /v1/files/([^/]+)/content",
    "submit": r"POST /v1/fine_tuning/jobs",
    "jobs": r"GET /v1/fine_tuning/jobs",
    "job": r"GET /v1/fine_tuning/jobs/([^/]+)",
    "cancel": r"POST /v1/fine_tuning/jobs/([^/]+)/cancel",
    "events": r"GET /v1/fine_tuning/jobs/([^/]+)/events",
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: JobServer

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        _, status, data = self.fake.reply(self.command, url.path, query, body)
        if status == 0:
            self.close_connection = True
            return
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/octet-stream" if isinstance(data, bytes) else "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 (the names that http.server asks for)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(fake: JobServer) -> Iterator[JobServer]:
    """A context in which a fake server answers at `fake.url`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
