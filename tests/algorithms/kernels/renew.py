"""Write down what hand-written kernels were written for: `make kernels`.

Of every kernel, the methods that it stands in for are run in all variants, and each of our functions that they call is
noted with its SHA-256 (palestra.runtime.guard). If then kernels and methods give the same numbers, this stays; if not,
all is as before.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from palestra.runtime import guard
from tests.algorithms.kernels.table import VARIANTS
from tests.algorithms.kernels.variants import Variant, without_kernels

EQUALITY = Path(__file__).with_name("test_equality.py")


def functions_called(call: Callable[[], Any]) -> set[str]:
    """The names of our functions that run meanwhile; of those that were defined inside others, the names of these."""
    called = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("palestra.") and not frame.f_code.co_filename.startswith("<"):
            called.add(f"{module}:{frame.f_code.co_qualname.partition('.<locals>')[0]}")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return called


def with_functions_named(names: Iterable[str]) -> set[str]:
    """These functions, those that their global names stand for, and so on: what they might call elsewhere."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        function = guard.called(*guard.defined(name))
        assert function is not None, f"{name} is no function with a source"
        _, names = guard.meaning(function.__code__)
        values = [function.__globals__[each] for each in names if each in function.__globals__]
        for value in [each for each in values if _is_a_place(each)]:
            inside = {each: getattr(value, each) for each in names if hasattr(value, each)}
            constants = {each: value for each, value in inside.items() if isinstance(value, guard.CONSTANT)}
            unseen = [each for each, constant in constants.items() if function.__globals__.get(each) is not constant]
            assert not unseen, f"{name} reads {unseen} of {value.__name__}, where the guard does not look"
            values += inside.values() if isinstance(value, ModuleType) else ()
        for value in values:
            if isinstance(value, type) and issubclass(value, torch.autograd.Function):
                values += [value.forward, value.backward]
            other = guard.plain_function(value)
            if other is not None and guard.name_of(other).startswith("palestra."):
                waiting.append(guard.name_of(other))
    return found


def _is_a_place(value: Any) -> bool:
    """Whether it is a module or a class of ours."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    return isinstance(value, ModuleType | type) and module.startswith("palestra.")


def functions_of(variant: Variant) -> set[str]:
    owner, data = without_kernels(variant.make()), variant.data()
    variant.by_torch(owner, data)  # what is made at the first call is no part of it
    return with_functions_named(functions_called(lambda: variant.by_torch(owner, data)))


def traced() -> dict[Path, dict[str, dict[str, str]]]:
    """The new contents of all files of hashes."""
    files: dict[Path, dict[str, dict[str, str]]] = defaultdict(dict)
    for variant in VARIANTS:
        hashes = files[variant.kernel.file].setdefault(variant.kernel.name, {})
        for name in functions_of(variant) - hashes.keys():
            holder, method = guard.defined(name)
            function = guard.called(holder, method)
            assert function is not None, name
            assert guard.meaning(function.__code__)[0], f"{name} has no source"
            hashes[name] = guard.fingerprint(function, holder)
    return {
        file: {kernel: dict(sorted(hashes.items())) for kernel, hashes in sorted(content.items())}
        for file, content in files.items()
    }


def main() -> int:
    files = traced()
    before = {file: file.read_text() if file.exists() else None for file in files}
    for file, content in files.items():
        file.write_text(json.dumps(content, indent=1) + "\n")
    code = subprocess.run([sys.executable, "-m", "pytest", str(EQUALITY)], check=False).returncode
    if code == 0:
        print(
            *(f"{file}: {', '.join(f'{len(h)} functions of {k}' for k, h in c.items())}" for file, c in files.items()),
            sep="\n",
        )
        return 0
    for file, text in before.items():
        file.unlink() if text is None else file.write_text(text)
    print("kernels and methods differ: no hash was renewed", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
