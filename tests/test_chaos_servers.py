"""The short form of `make chaos` for models behind servers: real kills of a run and of the server that answers it."""

import re
import sys
from pathlib import Path

from tests.forked import ForkedServer
from tests.forked import run as run_forked

ROOT = Path(__file__).parent.parent


def test_a_run_and_its_server_killed_at_random_moments_repeat_only_what_was_out() -> None:
    command = [sys.executable, "tests/chaos_servers.py", "--kills", "4", "--epochs", "1"]
    done = run_forked(command, cwd=ROOT, capture_output=True, text=True, timeout=500, start=ForkedServer)
    assert done.returncode == 0, done.stderr
    said = re.match(r"(\d+) kills \(run (\d+), server (\d+), run and server (\d+)\) in \d+ runs", done.stdout)
    assert said, done.stdout
    assert int(said[1]) >= 4
    assert int(said[2]) + int(said[4]) > 0
    assert int(said[3]) + int(said[4]) > 0
