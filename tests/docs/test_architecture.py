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


MOST = {  # files and functions of palestra that run in a walk; who needs more says why
    "a save": (29, 140),
    "a roll-out of DQN": (35, 112),  # what a game gives is compared with what it promises, and looked back at
    "an opt step of DQN": (24, 67),  # at safe points players are copied, of whom past selves are kept
    "a step of a fit": (24, 58),  # chance is seeded by a function of its own
    "an epoch of text": (50, 428),
}


def test_the_walks_through_a_real_run_open_few_files() -> None:
    done = run([sys.executable, "-m", "docs.trace_walks"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^(.*): (\d+) files, (\d+) functions\n((?:  .*\n)+)", done.stdout, re.M)
    assert [title for title, *_ in told] == list(MOST)
    for title, num_files, num_functions, files in told:
        assert (int(num_files), int(num_functions)) <= MOST[title], files
        assert 10 < int(num_files) == len(files.splitlines())
        assert int(num_functions) <= MOST[title][1], files
    files_of = {title: set(files.split()) for title, _, _, files in told}
    batch = files_of["a roll-out of DQN"] | files_of["an opt step of DQN"]
    for heading, files in (
        ("A batch from a game's step", batch),
        ("A checkpoint from a safe point", files_of["a save"]),
    ):
        text = TEXT.partition(f"**{heading}")[2].partition("**A ")[0].partition("## ")[0]
        named = re.findall(r"^\d+\. `(palestra/\S+\.py)`", text, re.M)
        assert len(named) > 5
        assert {*named} <= files, heading


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
