"""Kernels that numba has compiled are those that their files say."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import pytest

import palestra
from palestra.runtime.compiling import HOUSE, digest_of_kernels, inner
from tests.forked import ForkedWithoutPalestra
from tests.forked import run as run_forked

run_without_palestra = partial(run_forked, start=ForkedWithoutPalestra)

CHILD = """
import numpy as np
from palestra.algorithms.kernels.choices import _greedy

actions = _greedy(np.zeros((1, 2), np.float32), np.array([[False, True]]), np.array([7]), 2.0)
print(int(actions[0]), sum(_greedy.stats.cache_hits.values()))
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of palestra without compiled code."""
    here = Path(palestra.__file__).parent
    shutil.copytree(here, tmp_path / "palestra", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(
    place: Path, before: str = "", start: Callable[..., Any] = run_without_palestra, **options: Any
) -> tuple[int, int, str]:
    """Of the one legal action, drawn by chance, the number; how often its kernel came from the cache; and stderr."""
    command = [sys.executable, "-c", before + CHILD]
    ran = start(command, cwd=place, capture_output=True, text=True, check=True, **options)
    action, hits = ran.stdout.split()
    return int(action), int(hits), ran.stderr


def chosen(place: Path) -> tuple[int, int]:
    return run(place)[:2]


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_a_kernel_is_compiled_anew_when_a_function_in_another_file_has_changed(copied: Path) -> None:
    """Greedy choices and choices by chance lie in two files."""
    assert chosen(copied) == (1, 0)
    assert chosen(copied) == (1, 1), "compiled once"
    edit(copied / "palestra/randomness.py", "chosen += action * (legal", "chosen += 0 * (legal")
    assert chosen(copied) == (0, 0)
    edit(copied / "palestra/cli.py", '"""The command line', '"""The  command line')
    assert chosen(copied) == (0, 1), "what no kernel knows of is no reason"


def test_a_damaged_cache_is_compiled_anew(copied: Path) -> None:
    assert chosen(copied) == (1, 0)
    for index in copied.rglob("*.nbi"):
        index.write_bytes(b"")
    assert run(copied) == (1, 0, "")


def test_without_a_folder_for_kernels_they_run_and_one_line_names_the_variable(copied: Path) -> None:
    for folder in {file.parent for file in copied.rglob("*.py")}:
        (folder / "__pycache__").write_text("")  # nobody, not even root, makes a folder there
    environ = os.environ | {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}
    environ.pop("NUMBA_CACHE_DIR", None)
    action, hits, told = run(copied, env=environ)
    assert (action, hits, told.count("\n")) == (1, 0, 1)
    assert told.startswith("compiled kernels are not kept: no folder for them can be written to; NUMBA_CACHE_DIR ")
    environ["NUMBA_CACHE_DIR"] = str(copied / "kernels")  # which numba reads as it is imported
    assert run(copied, start=subprocess.run, env=environ) == (1, 0, "")


def test_kernels_run_although_the_disk_refuses_them(copied: Path) -> None:
    action, hits, told = run(copied, "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))")
    assert (action, hits, told.count("\n")) == (1, 0, 1)
    assert "refuses them: File too large; NUMBA_CACHE_DIR names a folder that can be written to" in told


def test_every_cached_kernel_knows_of_the_others() -> None:
    """Whoever caches takes `njit` from palestra.runtime.compiling."""
    assert not [path for path in HOUSE.rglob("*.py") if re.search(r"njit\(.*cache=True", path.read_text())]


def test_the_digest_is_of_files_and_not_of_the_place(copied: Path) -> None:
    script = "from palestra.runtime.compiling import digest_of_kernels; print(digest_of_kernels())"
    ran = run_without_palestra([sys.executable, "-c", script], cwd=copied, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == digest_of_kernels()


def test_python_cannot_call_what_only_kernels_call() -> None:
    """There is no code for such a call: without the error the process would end."""

    @inner()
    def double(x: int) -> int:
        return 2 * x

    with pytest.raises(TypeError, match=r"call double\.py_func"):
        double(3)
    assert numba.njit(lambda x: double(x) + 1)(3) == 7
    with pytest.raises(TypeError, match="by kernels alone"):
        double(3)
    assert double.py_func(3) == 6
