"""Processes of Python that begin where the imports end, for tests that start many commands of palestra.

`Forked` is a subprocess.Popen for commands of this interpreter (`python -m MODULE ...`, `python -c PROGRAM ...`), and
`run` a subprocess.run. What they start is a process of its own, which can be signalled, killed and waited for; but a
server forks it that has imported palestra once, where a new interpreter takes seconds of a processor to do so. The jobs
that a sweep starts in such a process are forked by the same server; its runs end without their plot. A process of
`ForkedWithoutPalestra` has imported the libraries alone: it takes palestra from its working directory. Tests of what a
start imports, prints or compiles start an interpreter, and all do where there is no Linux.

Run as a script, this file is the server: `python -P tests/forked.py SOCKET MODULE...` imports these modules first. It
ends when its standard input does.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import inspect
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

ROOT = str(Path(__file__).resolve().parents[1])
IS_LINUX = sys.platform == "linux"
PIDS: list[int] = []  # of the servers that this process has started
SOCKET = "PALESTRA_TESTS_FORKED"  # the environment variable that names the server's, in processes that it has forked
LIBRARIES = ("gymnasium", "numba", "numpy", "pydantic", "rich.console", "safetensors.torch", "scipy", "torch", "typer")
# of studies in databases, as most are that tests of sweeps begin
OF_STUDIES = ("alembic", "sqlalchemy", "optuna.storages._rdb.storage")
COMMANDS = ("palestra.commands.starting", "palestra.commands.evaluating")
PALESTRA = ("palestra.cli", *COMMANDS, "palestra.training", "palestra.evaluation", "palestra.sweeps.sweep", *OF_STUDIES)
SERVING = ("palestra.serving.app", "palestra.serving.computing", "uvicorn", "transformers.models.llama.modeling_llama")
MOVED = 1000  # file descriptors of a new process lie above, until it has closed those of the server


# ---- in a test -------------------------------------------------------------------------------------------


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process of `[sys.executable, (-P | -B | -u)..., -m MODULE | -c PROGRAM | SCRIPT, ...]`. It knows no `shell`,
    `preexec_fn` and the like."""

    imported = PALESTRA

    def _execute_child(self, *args: Any) -> None:
        if not IS_LINUX:
            super()._execute_child(*args)  # type: ignore[misc]
            return
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *args).arguments
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        pipes = {name: asked[name] for name in names}
        environment = os.environ if asked["env"] is None else asked["env"]
        path = server(self.imported)
        said = {
            "arguments": list(map(str, asked["args"][1:])),
            "cwd": str(asked["cwd"] or os.getcwd()),
            "environment": dict(environment) | {SOCKET: path},
            "starts_session": asked["start_new_session"],
            "pass_fds": list(asked["pass_fds"]),
        }
        given = (pipes["p2cread"], pipes["c2pwrite"], pipes["errwrite"])
        inherited = [own if fd == -1 else fd for own, fd in enumerate(given)]
        message = json.dumps(said).encode()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(path)
        socket.send_fds(self._server, [len(message).to_bytes(4, "big")], [*inherited, *asked["pass_fds"]])
        self._server.sendall(message)
        self.pid = int.from_bytes(self._server.recv(4, socket.MSG_WAITALL), "big")
        self._child_created = True
        self._close_pipe_fds(**pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if not IS_LINUX:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        flags = socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else socket.MSG_WAITALL
        with contextlib.suppress(BlockingIOError):
            status = self._server.recv(4, flags)
            self._server.close()
            assert status, "the server of forked processes has ended"
            return self.pid, int.from_bytes(status, "big")
        return 0, 0

    def _internal_poll(self, *args: Any, **named: Any) -> int | None:
        if not IS_LINUX:
            return super()._internal_poll(*args, **named)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


class ForkedWithoutPalestra(Forked):
    imported = LIBRARIES


class ForkedServer(Forked):
    """A process of `palestra serve`; those of its jobs are forked, too."""

    imported = (*PALESTRA, *SERVING)


def run(
    command: list[Any],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    start: type[Forked] = Forked,
    **options: Any,
) -> "subprocess.CompletedProcess[Any]":
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command, **options) as process:
        try:
            printed, told = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, printed, told)
    if check:
        done.check_returncode()
    return done


# ---- processes of a run, in one that the server has forked ------------------------------------------------

# programs for `-c`, whose arguments are those of the command
PALESTRA_OF_FORKED_RANKS = (
    "from tests.forked import fork_spawned; fork_spawned(); from palestra.__main__ import main; main()"
)
TORCHRUN_OF_FORKED_RANKS = (
    "from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler; "
    "from tests.forked import Forked; subprocess_handler.Popen = Forked; from torch.distributed.run import main; main()"
)


def fork_spawned() -> None:
    """Let the server fork what multiprocessing spawns in this process. It does not end if this process is killed."""
    from multiprocessing import util
    from multiprocessing.popen_spawn_posix import Popen

    spawn, poll, forked = util.spawnv_passfds, Popen.poll, dict[int, Forked]()

    def fork_instead(path: bytes, command: list[str], fds: tuple[int, ...]) -> int:
        if "--multiprocessing-fork" not in command:
            return spawn(path, command, fds)
        process = Forked(command, pass_fds=fds)
        forked[process.pid] = process
        return process.pid

    def poll_forked(self: Popen, flag: int = os.WNOHANG) -> int | None:
        if self.pid not in forked:
            return poll(self, flag)
        self.returncode = forked[self.pid].poll() if flag == os.WNOHANG else forked[self.pid].wait()
        return self.returncode

    util.spawnv_passfds, Popen.poll = fork_instead, poll_forked


def living() -> list[int]:
    """The processes that the servers of this one have forked and that live, in their order."""
    found = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in PIDS]
    return sorted(int(each) for pids in found for each in pids)


# to take the place of the module in one of palestra's
FORKING = types.SimpleNamespace(**{**vars(subprocess), "Popen": Forked, "run": run})


@cache
def server(imported: tuple[str, ...]) -> str:
    """The path of the socket of the server that has imported these modules. The first process that asks starts it."""
    if SOCKET in os.environ:
        return os.environ[SOCKET]
    path = str(Path(tempfile.mkdtemp(prefix="forked-")) / "socket")
    command = [sys.executable, "-P", __file__, path, *imported]
    # It imports the palestra of this tree, which need not be the one that is installed.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    PIDS.append(process.pid)
    atexit.register(process.wait)
    atexit.register(process.stdin.close)  # before the wait
    assert process.stdout.readline() == b"ready\n"
    return path


# ---- the server ------------------------------------------------------------------------------------------


def serve(path: str, imported: list[str]) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    gc.disable()
    os.fsync = lambda descriptor: None  # type: ignore[assignment, misc]
    for name in imported:
        importlib.import_module(name)
    if {"palestra.cli", "palestra.serving.app"} & {*imported}:
        import palestra.runtime.signals

        palestra.runtime.signals.subprocess = FORKING  # type: ignore[attr-defined]
    if "palestra.cli" in imported:
        import palestra.run.run
        import palestra.runtime.threads as threads

        palestra.run.run.plot_scores = lambda *_: None
        palestra.run.run.frozen_garbage = contextlib.nullcontext
        threads.ThreadpoolController = cache(threads.ThreadpoolController)  # type: ignore[misc, assignment]
        threads.ThreadpoolController()
    yaml.compose = reading_once()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        if finalizer.peek()[1].__module__ == "torch.library":  # takes operators apart at the end of each process
            finalizer.atexit = False
    prepare_guard()
    seen = load_kernels({})
    gc.enable()
    gc.freeze()  # else every process searches, and so copies, what was imported
    print("ready", flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ, None)
    waiting.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
    while True:
        for key, _ in waiting.select():
            if key.fileobj == sys.stdin.fileno():
                Path(path).unlink()
                Path(path).parent.rmdir()
                return
            if key.fileobj is listening:
                asking, _ = listening.accept()
                if (child := fork(asking)) is not None:
                    waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (child, asking))
            else:
                child, asking = key.data
                _, status = os.waitpid(child, 0)
                with contextlib.suppress(OSError), asking:  # whoever has started it may have been killed
                    asking.sendall(status.to_bytes(4, "big"))
                waiting.unregister(key.fileobj)
                os.close(key.fd)
                seen = load_kernels(seen)


def prepare_guard() -> None:
    """Read what kernels stand in for, as every process would before its first kernel."""
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
    if "palestra.training" not in sys.modules:
        return
    from palestra.runtime import guard

    for path in Path(ROOT, "palestra").rglob("mirrors.json"):
        for name in {name for hashes in json.loads(path.read_text()).values() for name in hashes}:
            if (function := guard.called(*guard.defined(name))) is not None:
                guard.meaning(function.__code__)


def load_kernels(seen: Mapping[str, int]) -> dict[str, int]:
    """Load the kernels that are stored compiled, as every process would before it uses one: also those that one of them
    has compiled. seen: when the index of each kernel was written, in earlier calls. Returns the same of this call.
    """
    if "palestra.training" not in sys.modules:
        return {}
    from numba.core.dispatcher import Dispatcher

    from palestra.runtime.compiling import KernelCache

    found = {}
    for name in [name for name in sys.modules if name.startswith("palestra.")]:
        for kernel in [*vars(sys.modules[name]).values()]:
            if isinstance(kernel, Dispatcher) and isinstance(kernel._cache, KernelCache):
                file = kernel._cache._cache_file
                with contextlib.suppress(FileNotFoundError):  # none of its kind is compiled yet
                    found[file._index_path] = os.stat(file._index_path).st_mtime_ns
                    if found[file._index_path] != seen.get(file._index_path):
                        for signature, *_ in [*file._load_index()]:
                            kernel.compile(signature)
    return found


def fork(asking: socket.socket) -> int | None:
    """Start what is asked for; None if whoever asks was killed before it had said all of that."""
    size, message, fds, child = -1, b"", [], None
    with contextlib.suppress(ConnectionError):
        length, fds, _, _ = socket.recv_fds(asking, 4, 64)
        size = int.from_bytes(length, "big")
        while more := asking.recv(size - len(message)):
            message += more
    if len(message) == size > 0 and (child := os.fork()) == 0:
        begin(json.loads(message), fds)
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(OSError):
        asking.sendall((child or 0).to_bytes(4, "big"))
    return child


def begin(said: dict[str, Any], fds: list[int]) -> NoReturn:
    """What an interpreter does for a command, in a process that was just forked."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MOVED) for fd in fds]
    os.closerange(0, MOVED)
    for fd, number in zip(moved, [0, 1, 2, *said["pass_fds"]], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        errors = "backslashreplace" if name == "stderr" else "strict"
        lines = 1 if name == "stderr" or os.isatty(number) else -1
        setattr(sys, name, open(number, mode, lines, encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115
    if said["starts_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(said["environment"])
    os.chdir(said["cwd"])
    code = 1
    try:
        execute(said["arguments"])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def reading_once() -> Callable[..., yaml.Node | None]:
    """`yaml.compose`, which knows the last texts that it has read."""
    compose = yaml.compose
    again = lru_cache(maxsize=64)(compose)

    def compose_once(text: Any, Loader: Any = yaml.Loader) -> yaml.Node | None:
        return again(text, Loader) if isinstance(text, str) else compose(text, Loader)

    return compose_once


def execute(arguments: list[str]) -> None:
    flags = set()
    while arguments[0] in ("-P", "-B", "-u"):  # output is buffered all the same
        flags.add(arguments.pop(0))
    sys.dont_write_bytecode = "-B" in flags
    how, what, *rest = arguments if arguments[0] in ("-m", "-c") else ["script", *arguments]
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in sys.path]
    first = {"-m": os.getcwd(), "-c": "", "script": str(Path(what).parent)}[how]
    sys.path[:0] = own if "-P" in flags else [first, *own]
    if how == "-m":
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif how == "script":
        sys.argv = [what, *rest]
        runpy.run_path(what, run_name="__main__")
    else:
        sys.argv = ["-c", *rest]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(what, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
