"""The process in which strangers' tokenizers work, since they may run on and on, or fill the memory, in compiled code.

It is kept between calls, each a line of JSON. At its limits the operating system ends it, which is the error of the
call, and the next call starts another one.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from typing import Any

MOST_SECONDS = 10  # of computing, for a call
MOST_BYTES = 768 << 20  # of memory, beside that of the tokenizers
MOST_CHARACTERS = 64 << 20  # of JSON that it answers


class TokenizerError(ValueError):
    """A tokenizer has no tokens for a text, or no text for tokens."""


class Isolated:
    """Tokenizers in a process of their own. sources: each as JSON. Several threads may call it."""

    def __init__(self, sources: list[str]) -> None:
        self._sources, self._lock = sources, threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._of_pid = 0  # a fork of this process has to start its own

    def __call__(self, name: str, place: int, given: str | list[int]) -> Any:
        """Let the tokenizer of that place "encode" a text, or "decode" tokens. Raises TokenizerError."""
        with self._lock:
            if self._process is None or self._of_pid != os.getpid() or self._process.poll() is not None:
                self._process, self._of_pid = _started(), os.getpid()
                weakref.finalize(self, _end, self._process, self._of_pid)
                _ask(self._process, self._sources)
            try:
                line = _ask(self._process, (name, place, given))
            except BaseException:  # its answer would be taken for that of the next call
                self._process.kill()
                raise
            if not line.endswith("\n"):
                is_late = self._process.wait() == -signal.SIGXCPU
                limit = f"{MOST_SECONDS} s" if is_late else f"{MOST_BYTES >> 20} MiB"
                raise TokenizerError(f"the tokenizer needs more than {limit}")
        error, found = json.loads(line)
        if error is not None:
            raise TokenizerError(error)
        return found


def _started() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", __file__, str(MOST_SECONDS), str(MOST_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C does not reach it
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": "false"},
        text=True,
    )


def _ask(process: "subprocess.Popen[str]", question: Any) -> str:
    """Return its answer, a line; another text if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        print(json.dumps(question), file=process.stdin, flush=True)
    except BrokenPipeError:
        return ""
    return process.stdout.readline()


def _end(process: "subprocess.Popen[str]", of_pid: int) -> None:
    if of_pid == os.getpid():
        process.kill()
        process.communicate()


# ---- in the process ------------------------------------------------------------------------------------


def main() -> None:
    """Load tokenizers, and answer questions, until there are no more."""
    from tokenizers import Tokenizer

    most_seconds, most_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizers = [Tokenizer.from_str(source) for source in json.loads(sys.stdin.readline())]
    print(flush=True)
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + most_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        used, hard = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + most_seconds, hard))
        name, place, given = json.loads(line)
        try:
            if name == "encode":
                found: Any = tokenizers[place].encode(given, add_special_tokens=False).ids
            else:
                found = tokenizers[place].decode(given, skip_special_tokens=False)
            answer = json.dumps((None, found))
        except BaseException as error:  # what Rust raises is no Exception
            answer = json.dumps((f"{type(error).__name__}: {error!s:.200}", None))
        if len(answer) > MOST_CHARACTERS:
            answer = json.dumps((f"the tokenizer makes more than {MOST_CHARACTERS >> 20} MiB", None))
        print(answer, flush=True)


if __name__ == "__main__":
    main()
