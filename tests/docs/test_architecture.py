"""docs/architecture.md names files and names that are there, and shows the arrows of today."""

import re
import sys
from pathlib import Path

import pytest

from docs import draw_house
from tests.forked import run
from tests.house import ORDER

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
STEPS = re.findall(r"^\d+\. `(palestra/\S+\.py)`: (.*(?:\n   .*)*)", TEXT, re.M)


def test_every_room_is_described() -> None:
    (table,) = re.findall(r"\| room \|.*?\n\n", TEXT, re.S)
    named = {name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([a-z_.]+/?)`", table)}
    assert {room for rooms in ORDER for room in rooms} - {"__main__"} <= named


@pytest.mark.parametrize(("file", "told"), STEPS, ids=[file for file, _ in STEPS])
def test_what_a_walk_names_stands_in_its_file(file: str, told: str) -> None:
    source = (ROOT / file).read_text()
    names = [name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_.]+)`", told)]
    here = [name for name in names if re.search(rf"\b{name}\b", source)]
    assert here or not names, f"none of {names} stands in {file}"


def test_the_walks_are_those_of_a_real_run_and_open_few_files() -> None:
    done = run([sys.executable, "-m", "docs.trace_walks"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert re.findall(r"palestra/\S+\.py", printed) == [file for file, _ in STEPS]
    value, batch, checkpoint = map(int, re.findall(r": (\d+) files$", printed, re.M))
    assert value <= 9
    assert batch <= 9
    assert checkpoint <= 11  # one of them joins the states of replicas


def test_the_lines_that_register_parts_are_there() -> None:
    for line in TEXT.partition("## What a new part touches")[2].splitlines():
        for name, file in re.findall(r"`(\w+)` (?:and what it is made of, )?in `(palestra/\S+\.py)`", line):
            assert name in (ROOT / file).read_text(), line


def test_the_picture_is_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its labels and the number of its arrows: fonts and versions draw other curves."""
    drawn = tmp_path / "house.svg"
    monkeypatch.setattr(draw_house, "IMAGE", drawn)
    draw_house.main()
    stored = (ROOT / "docs" / "images" / "house.svg").read_text()
    for mark in (r"<path ", r"<!-- .*? -->"):
        assert re.findall(mark, drawn.read_text()) == re.findall(mark, stored)
