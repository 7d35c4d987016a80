"""What the tests of edited files share: a copy of the sources, and what runs once a file there is another."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import palestra
from tests.forked import ForkedWithoutPalestra
from tests.forked import run as run_forked

RunEdited = Callable[[str, str, str, str], list[str]]


@pytest.fixture(scope="package")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of palestra and its tests."""
    place, here = tmp_path_factory.mktemp("copy"), Path(palestra.__file__).parent.parent
    for name in ("palestra", "tests"):
        shutil.copytree(here / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.fixture
def run_edited(copied: Path) -> RunEdited:
    """(file, old, new, program): what a program prints, line by line, in a copy where a file of palestra has the new
    text in the place of the old one."""

    def run(file: str, old: str, new: str, program: str) -> list[str]:
        path = copied / "palestra" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        try:
            command = [sys.executable, "-B", "-c", program]
            done = run_forked(
                command, start=ForkedWithoutPalestra, cwd=copied, capture_output=True, text=True, check=True
            )
        finally:
            path.write_text(text)
        return done.stdout.split("\n")

    return run
