"""Kernels compiled by numba, and their cache.

numba caches machine code by the file of a function, and compiles anew when that file has changed. It does not notice a
change in another file whose functions were compiled into it. Here the cache of every kernel depends on the files of all
kernels and on the files from which they import: when one of them has changed, all kernels are compiled anew.
"""

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numba

HOUSE = Path(__file__).parent.parent
KERNELS = re.compile(rb"^(import numba|from numba|from palestra\.runtime\.compiling)", re.MULTILINE)
IMPORT = re.compile(rb"^from (palestra[\w.]*) import", re.MULTILINE)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A kernel: `numba.njit(cache=True, nogil=True, **options)`, whose cache knows when another kernel was edited."""

    def compiled(function: Callable[..., Any]) -> Any:
        without: Any = {"no_cfunc_wrapper": True}
        kernel = numba.njit(cache=True, nogil=True, **without, **options)(function)
        if (cached := getattr(kernel, "_cache", None)) is not None:  # NUMBA_DISABLE_JIT leaves it out
            cached._cache_file._source_stamp = (cached._cache_file._source_stamp, digest_of_kernels())
        return kernel

    return compiled


def inner(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A function that kernels call and Python never does: `numba.njit(nogil=True, **options)` without the wrapper for
    Python, which takes a third of the time of compiling. Its code is cached as part of the kernels that call it.

    Calling it from Python raises TypeError; its `py_func` can be called.
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


@cache
def digest_of_kernels() -> str:
    """The SHA-256 of all files that contain kernels or from which kernels import, as they are when the first kernel is
    defined."""
    texts = {path: path.read_bytes() for path in HOUSE.rglob("*.py")}
    chosen = {path for path, text in texts.items() if KERNELS.search(text)}
    modules = {name for path in chosen for name in IMPORT.findall(texts[path])}
    chosen |= {path for path in texts if _module_of(path) in modules}
    digest = hashlib.sha256()
    for path in sorted(chosen):
        digest.update(b"%s\0%d\0" % (path.relative_to(HOUSE).as_posix().encode(), len(texts[path])) + texts[path])
    return digest.hexdigest()


def _module_of(path: Path) -> bytes:
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts).encode()
