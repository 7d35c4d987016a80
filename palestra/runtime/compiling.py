"""Kernels compiled by numba, and their cache.

numba caches machine code by the file of a function, and compiles anew when that file has changed. It does not notice a
change in another file whose functions were compiled into it. Here the cache of every kernel depends on the files of all
kernels and on the files from which they import: when one of them has changed, all kernels are compiled anew.

Where no folder can be written to, as in a read-only installation without a home, kernels are compiled at every start.
"""

import hashlib
import multiprocessing
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numba
from numba.core.caching import FunctionCache

HOUSE = Path(__file__).parent.parent
KERNELS = re.compile(rb"^(import numba|from numba|from palestra\.runtime\.compiling)", re.MULTILINE)
IMPORT = re.compile(rb"^from (palestra[\w.]*) import", re.MULTILINE)


class KernelCache(FunctionCache):
    """numba's cache of one kernel, which notices also edits of other kernels.

    A kernel that cannot be read or written is compiled anew.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises RuntimeError where no folder can be written to."""
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, digest_of_kernels())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # damaged, as by a power cut: pickle raises anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # the disk is full
            self.disable()
            _say_not_kept(f"{self.cache_path} refuses them: {error.strerror}")


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile as `numba.njit(nogil=True, **options)` does, with a KernelCache where there can be one."""

    def compiled(function: Callable[..., Any]) -> Any:
        without: Any = {"no_cfunc_wrapper": True}
        kernel = numba.njit(nogil=True, **without, **options)(function)
        if kernel is function:  # NUMBA_DISABLE_JIT
            return kernel
        try:
            kernel._cache = KernelCache(function)
        except RuntimeError:
            _say_not_kept("no folder for them can be written to")
        return kernel

    return compiled


def inner(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that only kernels call, as `numba.njit(nogil=True, **options)` without a wrapper for Python.

    The wrapper would take a third of the time of compiling. The function's code is cached as part of the kernels that
    call it. Calling it from Python raises TypeError; its `py_func` can be called.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        without: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        kernel: Any = numba.njit(nogil=True, **without, **options)(function)
        if hasattr(kernel, "overloads"):  # NUMBA_DISABLE_JIT gives the function itself

            def add_overload(result: Any) -> None:  # numba's own hands the missing wrapper to Python's calls
                kernel.overloads[tuple(result.signature.args)] = result

            def refuse(*_: Any, **__: Any) -> NoReturn:
                name = function.__name__
                raise TypeError(f"{name} can be called by kernels alone; from Python call {name}.py_func")

            kernel.add_overload, kernel._compile_for_args = add_overload, refuse
        return kernel

    return compiled


@cache  # once
def _say_not_kept(why: str) -> None:
    if multiprocessing.parent_process() is None:  # others say the same
        line = f"compiled kernels are not kept: {why}; NUMBA_CACHE_DIR names a folder that can be written to"
        over_progress = "\r\x1b[K" if sys.stderr.isatty() else ""  # a start draws a line of its own
        print(over_progress + line, file=sys.stderr)


@cache
def digest_of_kernels() -> str:
    """Return the SHA-256 of all files that contain kernels or from which kernels import.

    It is that of the files at the time when the first kernel is defined.
    """
    texts = {path: path.read_bytes() for path in HOUSE.rglob("*.py")}
    chosen = {path for path, text in texts.items() if KERNELS.search(text)}
    modules = {name.decode().replace(".", "/") for path in chosen for name in IMPORT.findall(texts[path])}
    chosen |= texts.keys() & {HOUSE.parent / f"{name}{end}" for name in modules for end in (".py", "/__init__.py")}
    digest = hashlib.sha256()
    for path in sorted(chosen):
        digest.update(b"%s\0%d\0" % (path.relative_to(HOUSE).as_posix().encode(), len(texts[path])) + texts[path])
    return digest.hexdigest()
