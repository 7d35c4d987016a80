"""The sandbox of templates that others have written: a process in which they are parsed and rendered, within limits.

There is one for each process of palestra, from the first text on.
"""

import hashlib
import json
import signal
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, TypeVar

from palestra.text.confined import Confined, Limits

LIMITS = Limits(seconds=10, num_bytes=512 << 20, characters=4_000_000)  # a template takes a thousandth of a second
MOST_TOGETHER = 64  # texts of one answer

Job = TypeVar("Job")
Result = TypeVar("Result")
_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode


class SandboxError(Exception):
    """A template is none, fails, or reaches a limit. index: of the first job that does. name, line: in which file."""

    def __init__(self, told: str, index: int, name: str | None = None, line: int | None = None) -> None:
        super().__init__(told)
        self.index, self.name, self.line = index, name, line


class Sandbox:
    """Templates that are rendered together.

    kind: "chat" for what transformers shows chat templates. sources: by name. shared: values that all texts have.
    """

    def __init__(self, kind: Literal["prompts", "chat"], sources: Mapping[str, str], shared: Mapping[str, Any]) -> None:
        self._definition = _to_json({"kind": kind, "sources": sources, "shared": shared})
        self._key = hashlib.sha256(self._definition.encode("utf-8", "surrogatepass")).hexdigest()

    def render(self, jobs: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[Any]:
        """Render templates, each given by its name and values. Raises SandboxError.

        Without values: say which variables a template uses, with their first `lines`, and which other `files`.
        """
        lines = [_to_json(job) for job in jobs]
        unique = list(dict.fromkeys(lines))
        done: list[Any] = []
        limits, most = _PROCESS.limits, MOST_TOGETHER
        while len(done) < len(unique):
            sizes = accumulate(map(len, unique[len(done) : len(done) + most]))
            asked = unique[len(done) :][: max(1, sum(size <= limits.characters for size in sizes))]
            reply = _PROCESS.ask(self._key, self._definition, asked)
            if isinstance(reply, int) and most > 1 and (len(asked) > 1 or reply != -signal.SIGXCPU):
                most = 1  # whichever it is by which the process has ended, if it was one
                continue
            if isinstance(reply, int):
                is_long = reply == -signal.SIGXCPU
                told = (
                    f"it computes for longer than {limits.seconds} s" if is_long else f"it ends its process ({reply})"
                )
                reply = {"done": [], "fault": {"told": told, "name": None, "line": None}}
            done += reply["done"]
            if (fault := reply["fault"]) is not None:
                index = lines.index(unique[len(done)])
                raise SandboxError(fault["told"], index, fault["name"], fault["line"])
        found = dict(zip(unique, done, strict=True))
        return [found[line] for line in lines]


def in_step(render: Callable[[list[Job]], list[str]], works: Iterable[Generator[Job, str, Result]]) -> list[Result]:
    """Return what generators return, each of which yields one job after the other, and is sent its text.

    The first jobs of all are rendered together, then the second ones, and so on.
    """
    running, results = list(works), {}
    texts: dict[int, Any] = dict.fromkeys(range(len(running)))
    while texts:
        asked: dict[int, Job] = {}
        for number, text in texts.items():
            try:
                asked[number] = running[number].send(text)
            except StopIteration as ended:
                results[number] = ended.value
        texts = dict(zip(asked, render(list(asked.values())), strict=True))
    return [results[number] for number in range(len(running))]


_PROCESS = Confined(LIMITS)
