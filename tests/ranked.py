"""Processes that believe torchrun has started them, forked from a test: they cost no imports."""

import atexit
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from torch.distributed import TCPStore

PATIENCE_S = 120.0
PORT_LENGTH = 8


class Ranked:
    """`num` processes, each of which calls `body` with its rank, and prints to FOLDER/RANK.txt.

    An exception ends a process with exit code 1, and its traceback in the file. One that does not end says where it is.
    """

    def __init__(self, num: int, body: Callable[[int], object], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.codes = folder, dict[int, int]()
        said = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        said |= {"WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": str(num)}
        begins, begin = os.pipe()
        self.pids = [self._fork(rank, body, said, begins) for rank in range(num)]
        # only now: its thread may hold a lock of the C library while it serves one, which a process forked then would
        # find locked for ever
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(begin, f"{self.store.port:{PORT_LENGTH}}".encode() * num)
        os.close(begin)
        os.close(begins)

    def _fork(self, rank: int, body: Callable[[int], object], said: dict[str, str], begins: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            return pid
        try:
            atexit._clear()  # what is to be done when pytest ends
            file = os.open(self.folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout, sys.stderr = map(_stream, (1, 2))  # pytest has others
            faulthandler.dump_traceback_later(PATIENCE_S - 10.0, file=sys.stderr)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.environ.update(said | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            os.environ["MASTER_PORT"] = os.read(begins, PORT_LENGTH).decode().strip()
            body(rank)
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def wait(self, num: int | None = None) -> list[int]:
        """Return the exit codes of all or of the first ones, -n for signal n. Kills what does not end for a while."""
        deadline, pids = time.monotonic() + PATIENCE_S, self.pids[:num]
        while any(rank not in self.codes for rank in range(len(pids))):
            for rank, pid in enumerate(pids):
                if rank not in self.codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    self.codes[rank] = os.waitstatus_to_exitcode(found[1])
                elif rank not in self.codes and time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        return [self.codes[rank] for rank in range(len(pids))]

    def kill(self, rank: int) -> None:
        os.kill(self.pids[rank], signal.SIGKILL)
        self.wait()

    def said(self, rank: int) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{rank}.txt").read_text()


def _stream(number: int) -> TextIO:
    return os.fdopen(os.dup(number), "w", buffering=1)
