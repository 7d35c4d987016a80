"""Makes every mutant in a copy of the tree, and expects the tests that it names to fail.

    python -m tests.mutants.run [--only PATTERN] [--sample N] [--jobs N] [--untried]

Before that the tests must pass in the copies, unless --untried says that they need not be tried. A mutant in what numba
compiles starts with an empty cache: numba looks at the file of a compiled function alone, not at those of the functions
that it calls. Exit code 1 if one survives that is to be noticed, if one is noticed that is said to be equal, or if the
tests could not run.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.table import MUTANTS

TIMEOUT_S = 600.0  # who never ends is noticed, too
PASSED, FAILED = 0, 1  # exit codes of pytest; below 0: the process crashed


class Workplace:
    """A copy of the tree, in which one mutant at a time stands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree, self.numba_cache = folder, folder / "tree", folder / "numba"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0")
        for name in names:
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        self._num_mutants = 0

    def test(self, tests: Sequence[str], numba_cache: Path) -> tuple[int | None, str]:
        """pytest's exit code, None where it took too long; and what it said."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
        environment = os.environ | {"PYTHONPATH": str(self.tree), "NUMBA_CACHE_DIR": str(numba_cache)}
        try:
            result = subprocess.run(
                command, cwd=self.tree, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return result.returncode, result.stdout + result.stderr

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[Path]:
        """Gives where numba may keep what it compiles meanwhile."""
        path, fresh = self.tree / mutant.file, self.folder / "fresh"
        before, text = path.stat(), path.read_text()
        if text.count(mutant.old) != 1:
            raise SystemExit(f"{mutant}: expected the old text once, got it {text.count(mutant.old)} times")
        self._num_mutants += 1
        path.write_text(text.replace(mutant.old, mutant.new))
        # no two versions share a time: Python and numba know what they have compiled by it, in whole seconds
        os.utime(path, (before.st_atime, before.st_mtime + self._num_mutants))
        try:
            yield fresh if self._is_compiled(mutant.file) else self.numba_cache
        finally:
            path.write_text(text)
            os.utime(path, (before.st_atime, before.st_mtime))
            shutil.rmtree(fresh, ignore_errors=True)

    def _is_compiled(self, file: str) -> bool:
        """Whether numba compiles what stands in the file, or in one that imports from it."""
        package, _, name = file.removesuffix(".py").replace("/", ".").rpartition(".")
        importing = re.compile(rf"from {re.escape(package)}(\.{name} import| import .*\b{name}\b)")
        for path in (self.tree / "palestra").rglob("*.py"):
            text = path.read_text()
            if "njit" in text and (path == self.tree / file or importing.search(text)):
                return True
        return False


def outcome_of(mutant: Mutant, workplace: Workplace) -> tuple[str, str]:
    """A word, and what the tests said where that is of interest."""
    with workplace.changed(mutant) as numba_cache:
        code, output = workplace.test(mutant.tests, numba_cache)
    if code is not None and code > FAILED:
        return "broken", output
    if mutant.equal_because is None:
        return ("survived", output) if code == PASSED else ("noticed", "")
    return ("equal", "") if code == PASSED else ("noticed, though said to be equal", output)


def require_passing(workplaces: Sequence[Workplace], mutants: Sequence[Mutant]) -> None:
    """The tests pass where there is no mistake, each in one of the copies."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    shares = [tests[number :: len(workplaces)] for number in range(len(workplaces))]
    with ThreadPoolExecutor(len(workplaces)) as pool:
        results = pool.map(lambda w, share: w.test(share, w.numba_cache) if share else (PASSED, ""), workplaces, shares)
        for code, output in results:
            if code != PASSED:
                raise SystemExit(f"the tests do not pass as the tree stands:\n{output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression, as palestra/buffers")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn at random")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="copies that are tested side by side")
    parser.add_argument("--untried", action="store_true", help="take it that the tests pass as the tree stands")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if re.search(options.only, str(mutant))]
    if options.sample is not None:
        chosen = random.sample(chosen, min(options.sample, len(chosen)))
    if not chosen:
        parser.error(f"expected a pattern that some mutant has, got {options.only!r}")
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        workplaces = [Workplace(Path(folder) / str(number)) for number in range(options.jobs)]
        if not options.untried:
            require_passing(workplaces, chosen)
            print(f"the tests pass as the tree stands ({time.perf_counter() - started:.0f} s)", flush=True)
        free: Queue[Workplace] = Queue()
        for workplace in workplaces:
            free.put(workplace)

        def judge(mutant: Mutant) -> str:
            workplace, began = free.get(), time.perf_counter()
            try:
                outcome, output = outcome_of(mutant, workplace)
            finally:
                free.put(workplace)
            print(f"{outcome} ({time.perf_counter() - began:.0f} s): {mutant}", flush=True)
            if output:
                print(*(f"    {line}" for line in output.splitlines()[-12:]), sep="\n", flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(judge, chosen))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in Counter(outcomes).items())
    print(f"\n{len(chosen)} mutants: {counts}; {(time.perf_counter() - started) / 60:.0f} minutes")
    for mutant, outcome in zip(chosen, outcomes, strict=True):
        if outcome not in ("noticed", "equal"):
            print(f"{outcome}: {mutant}")
    sys.exit(0 if set(outcomes) <= {"noticed", "equal"} else 1)


if __name__ == "__main__":
    main()
