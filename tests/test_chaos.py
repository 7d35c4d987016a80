"""The short form of `make chaos`: real kills of every algorithm, at random moments.

Those of players that talk in words: tests/kinds/text/test_text_resume.py.
"""

import re
import sys
from pathlib import Path

from combinations import registered_algorithms

from tests.forked import run as run_forked

ROOT = Path(__file__).parent.parent


def test_every_algorithm_killed_at_random_moments_ends_in_the_same_bits() -> None:
    command = [sys.executable, "tests/chaos.py", "--kills", "8", "--algorithms", *sorted(registered_algorithms())]
    done = run_forked(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    said = re.match(r"(\d+) kills \((.*)\) in \d+ runs, (\d+) of them inside a save", done.stdout)
    assert said, done.stdout
    assert int(said[1]) >= 8
    assert {entry.split()[0] for entry in said[2].split(", ")} == registered_algorithms()
    assert int(said[3]) > 0
