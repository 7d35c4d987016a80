"""A lack of memory or of open files is a line that says so, wherever it shows."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import ConfigError
from palestra.runtime.limits import is_short_of_memory, lack, memory_needed
from palestra.storage.stored_files import DamagedError, raising_damaged

MakeConfig = Callable[..., dict[str, Any]]
ALLOCATIONS: list[Callable[[], object]] = [
    lambda: torch.empty(10**15),
    lambda: torch.empty(2**62, 8),
    lambda: torch.empty(2**62 * 4),
    lambda: torch.arange(10**15),
    lambda: torch.arange(10**30),
    lambda: np.zeros(10**16),
    lambda: [None] * 10**15,
    lambda: bytearray(10**30),
]


def test_a_lack_of_a_compiler_is_told() -> None:
    import torch._dynamo.exc
    import torch._inductor.exc

    error = torch._inductor.exc.InvalidCxxCompiler()
    line = "execution.compile=true needs a C++ compiler, and this machine has none: g++, or the one named by CXX"
    assert lack(torch._dynamo.exc.BackendCompilerFailed(test_a_lack_of_a_compiler_is_told, error, None)) == line
    assert lack(torch._dynamo.exc.BackendCompilerFailed(print, ValueError("other"), None)) is None


@pytest.mark.parametrize("allocate", ALLOCATIONS)
def test_a_lack_of_memory_is_told_whatever_the_library_raises(allocate: Callable[[], object]) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        allocate()
    assert (lack(raised.value) or "").startswith("there is not enough memory: ")
    with (
        pytest.raises(
            ConfigError, match=r"^num_games: expected a smaller number, because this does not fit in memory:"
        ),
        memory_needed("num_games"),
    ):
        allocate()


@pytest.mark.parametrize(
    "error", [RuntimeError("the shapes differ"), OverflowError("math range error"), TypeError("x")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert not is_short_of_memory(error)
    assert lack(error) is None
    with pytest.raises(type(error)), memory_needed("num_games"):
        raise error


def trained(config: dict[str, Any], folder: Path) -> tuple[int, str]:
    (folder / "c.yml").write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["train", str(folder / "c.yml"), "--run", str(folder / "run"), "--quiet"])
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("key", "code", "told"),
    [
        (
            "evaluations.0.num_games",
            2,
            "num_games of evaluation main: expected a smaller number, because this does not",
        ),
        ("players.host.algorithm.batch_size", 1, "there is not enough memory: "),
    ],
)
def test_a_count_that_no_memory_holds_is_one_line(
    key: str, code: int, told: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    got, line = trained(make_config({key: 10**13}), tmp_path)
    assert (got, line.count("\n")) == (code, 1)
    assert line.startswith(told)


def test_a_count_that_no_64_bits_hold_names_its_key(make_config: MakeConfig, tmp_path: Path) -> None:
    told = "evaluations.0.max_rounds: expected an integer below 2 to the power of 63, got 1e+30\n"
    assert trained(make_config({"evaluations.0.max_rounds": 10**30}), tmp_path) == (2, told)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seeds", ["0..1000000000000", "0..10000", f"0..{'9' * 5000}", "9" * 5000])
def test_more_seeds_than_anybody_trains_are_refused(seeds: str) -> None:
    done = CliRunner().invoke(app, ["train", "ppo-cartpole", "--seeds", seeds, "--quiet"])
    assert done.exit_code == 2
    assert done.stderr.startswith("--seeds: expected ")


WITHOUT_FILES = """
import errno, sys

class Lacking:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise OSError(errno.EMFILE, "Too many open files", name)

sys.meta_path.insert(0, Lacking())
sys.argv = ["palestra", "list"]
from palestra.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["palestra.cli", "rich.console", "torch"])
def test_an_import_for_which_no_file_can_be_opened_is_one_line(module: str) -> None:
    program = WITHOUT_FILES.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"(ulimit -n), and needs more: [Errno 24] Too many open files: '{module}'" in done.stderr


def test_a_run_that_may_open_too_few_files_ends_with_one_line(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text(json.dumps(make_config()))
    command = [sys.executable, "-m", "palestra", "train", "c.yml", "--run", "run", "--quiet"]
    limited = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))  # noqa: E731
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, preexec_fn=limited)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("this process may open 7 files at a time (ulimit -n), and needs more: ")


NOISY = """
import os, palestra
from palestra.config import UserConfig

class Noisy(palestra.Callback):
    class Config(UserConfig):
        pass

    def after_epoch(self, training):
        os.system("echo noise; echo noise >&2")
"""


def test_without_standard_streams_a_run_ends_well_and_what_others_print_is_in_none_of_its_files(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "c.yml").write_text(json.dumps(make_config({"callbacks": [{"name": "noisy:Noisy"}]})))
    command = [sys.executable, "-m", "palestra", "train", "c.yml", "--run", "run"]
    done = subprocess.run(command, cwd=tmp_path, timeout=120, preexec_fn=lambda: os.closerange(0, 3))
    assert done.returncode == 0
    assert [file for file in (tmp_path / "run").rglob("*") if file.is_file() and b"noise" in file.read_bytes()] == []


def test_a_file_for_which_no_descriptor_is_left_is_not_called_damaged() -> None:
    with pytest.raises(OSError, match="Too many"), raising_damaged("state.json"):
        raise OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(DamagedError), raising_damaged("state.json"):
        raise OSError(errno.EIO, "Input/output error")
