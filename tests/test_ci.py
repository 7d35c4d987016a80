"""CI skips nothing unnamed, installs the browser that its tests need, and leaves the network alone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MAY_BE_SKIPPED

from tests.forked import run as run_forked

ROOT = Path(__file__).parent.parent
SKIPS = """
import pytest

@pytest.fixture
def absent():
    pytest.importorskip("no_such_module")

@pytest.mark.skip(reason="by its mark")
def test_marked(): ...

def test_called():
    pytest.skip("by a call")

def test_fixture(absent): ...

@pytest.mark.xfail
def test_expected_to_fail():
    assert False
"""

ASKS = """
import socket

def test_asks():
    try:
        socket.create_connection(("example.org", 80))
    except OSError:
        print("a library that hides it")
"""


def run_pytest(folder: Path, ci: str) -> str:
    """The last line of pytest, with this folder's rules on skips and on the network."""
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--continue-on-collection-errors", str(folder)]
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT / "tests")}
    done = run_forked(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_a_skip_is_a_failure_in_ci_unless_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text('import pytest\npytest.skip("as a whole", allow_module_level=True)\n')
    (tmp_path / "test_some.py").write_text(SKIPS)
    named = tmp_path / next(iter(MAY_BE_SKIPPED)).partition("::")[0]
    named.parent.mkdir()
    named.write_text('import pytest\n\ndef test_named():\n    pytest.skip("it is named")\n')
    assert "1 failed, 1 skipped, 1 xfailed, 3 errors" in run_pytest(tmp_path, "true")


def test_elsewhere_skips_are_none_but_a_look_up_of_another_machine_is(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text('import pytest\npytest.skip("as a whole", allow_module_level=True)\n')
    (tmp_path / "test_some.py").write_text(SKIPS)
    (tmp_path / "test_the_last_asks.py").write_text(ASKS)
    assert "1 passed, 4 skipped, 1 xfailed, 1 error" in run_pytest(tmp_path, "")


def test_every_named_skip_is_a_test_of_ours() -> None:
    for name in MAY_BE_SKIPPED:
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text()


@pytest.mark.parametrize(
    ("browser", "user", "expected"),
    [
        ("", 0, ["apt-get update", "apt-get install chromium", "make lint", "make docs", "make test"]),
        ("chromium", 0, ["make lint", "make docs", "make test"]),
        ("google-chrome", 1000, ["make lint", "make docs", "make test"]),
        ("", 1000, ["make lint", "make docs", "make test"]),
    ],
)
def test_ci_installs_a_browser_where_there_is_none_and_it_can(
    browser: str, user: int, expected: list[str], tmp_path: Path
) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    for name in filter(None, ("make", "apt-get", browser)):
        write_script(tmp_path / name, f'echo "{name} $* (CI=$CI)"')
    write_script(tmp_path / "id", f"echo {user}")
    done = subprocess.run([ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    without_options = [re.sub(r" (-\S+|Acquire\S+)", "", line) for line in done.stdout.splitlines()]
    assert without_options == [f"{line} (CI=true)" for line in expected]
    assert done.returncode == 0
    assert ("No Chromium was found" in done.stderr) == (not browser and user != 0)


def write_script(path: Path, command: str) -> None:
    path.write_text(f"#!{path.parent}/bash\n{command}\n")
    path.chmod(0o755)
