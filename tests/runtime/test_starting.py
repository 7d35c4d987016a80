"""What a start imports, compiles and says."""

import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit
from rich.console import Console

import palestra.cli
from palestra.commands import failures
from palestra.runtime.starting import IMPORTING, importing, without_garbage_collection
from palestra.runtime.threads import COMPILING, CompilingNotice

ROOT = Path(__file__).parents[2]
MAIN = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("now torch", file=sys.stderr, flush=True)

sys.meta_path.insert(0, Watch())
from palestra.cli import main
main()
"""
LEAVE = """
import json, os, sys
from numba.core import event
from palestra.callbacks import Callback
from palestra.config import UserConfig

class Count(event.Listener):
    kernels, depth = [], 0
    def on_start(self, event):
        if self.depth == 0:
            self.kernels.append(event.data["dispatcher"].py_func.__name__)
        self.depth += 1
    def on_end(self, event):
        self.depth -= 1

event.register("numba:compile", Count())

class Leave(Callback):
    class Config(UserConfig): ...

    def after_step(self, trainer, player, metrics):
        import palestra.commands.evaluating  # `palestra resume` asks it whether a folder is one

        facts = {"modules": list(sys.modules), "kernels": Count.kernels}
        os.write(1, ("\\n" + json.dumps(facts) + "\\n").encode())
        os._exit(0)
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], subprocess.CompletedProcess[str]]]:
    """Two starts of dqn-cartpole up to the first opt step, the first of them without kernels in the cache: what was
    imported and compiled by then, and what the process said."""
    folder = tmp_path_factory.mktemp("starts")
    (folder / "leaving.py").write_text(LEAVE)
    environ = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}", "NUMBA_CACHE_DIR": str(folder / "kernels")}
    config = str(ROOT / "configs" / "dqn-cartpole.yml")
    keys = ["output.recorders=[]", "callbacks=[{name: 'leaving:Leave'}]"]
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", MAIN, "train", config, *keys]
        process = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
        assert process.returncode == 0, process.stderr
        found.append((json.loads(process.stdout.splitlines()[-1]), process))
    return found


def test_a_plain_start_imports_nothing_that_it_does_not_use(starts: Any) -> None:
    modules = set(starts[1][0]["modules"])
    assert {"torch", "numba", "palestra.kinds.games.trainer"} <= modules
    unused = {
        "matplotlib",
        "tensorboard",
        "google.protobuf",
        "PIL.Image",
        "jinja2",
        "pandas",
        "IPython",
        "onnx",
        "boto3",
    }
    unused |= {"scipy.stats", "scipy.optimize", "torch._dynamo", "torch._inductor", "torch.utils.tensorboard"}
    unused |= {"wandb", "mlflow", "trackio", "mujoco", "ale_py", "palestra.report", "palestra.commands.profiling"}
    assert unused & modules == set()


def test_a_first_start_compiles_no_more_kernels_than_it_runs(starts: Any) -> None:
    """One compilation of each: a second one of the same name is for another layout of the same arrays."""
    kernels = starts[0][0]["kernels"]
    assert len(kernels) == len(set(kernels)) == 12


def test_a_second_start_compiles_nothing(starts: Any) -> None:
    assert starts[1][0]["kernels"] == []


def test_a_start_says_that_it_imports_before_torch_is_imported(starts: Any) -> None:
    for _, process in starts:
        lines = process.stderr.splitlines()
        assert lines.index(IMPORTING) < lines.index("now torch")
        assert IMPORTING not in process.stdout


def test_compiling_is_told_once_and_only_where_something_is_compiled(starts: Any) -> None:
    assert [process.stdout.splitlines().count(COMPILING) for _, process in starts] == [1, 0]


# ---- the pieces ----------------------------------------------------------------------------------------


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, color_system=None, width=100), file


def test_on_a_terminal_the_line_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(gc, "freeze", lambda: None)
    console, file = terminal()
    with importing(console):
        assert file.getvalue() == IMPORTING
    assert file.getvalue() == f"{IMPORTING}\r\x1b[2K"


def test_what_is_imported_is_not_told_again() -> None:
    console, file = terminal()
    with importing(console):
        pass
    assert file.getvalue() == ""


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_quiet_start_says_nothing(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Console] = []
    monkeypatch.setattr(failures, "importing", lambda console: (told.append(console), without_garbage_collection())[1])
    with pytest.raises(SystemExit):
        palestra.cli.main(["train", "there-is-no-such-file.yml", *options])
    assert [console.quiet for console in told] == [options == ["--quiet"]]


def test_no_garbage_is_collected_meanwhile_and_afterwards_as_before() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_notice_of_compiling_is_given_once() -> None:
    told: list[str] = []
    notice = CompilingNotice(told.append)
    for _ in range(2):
        with notice.listening():
            njit(lambda x: x + 1)(1)
            assert gc.isenabled()
    njit(lambda x: x + 2)(1)
    assert told == [COMPILING]
