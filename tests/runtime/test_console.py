"""What others have written does nothing to a terminal but be shown."""

import io
import json
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from palestra.commands.shell import console
from palestra.commands.table import table
from palestra.config import render
from palestra.kinds.games.config import RunConfig
from palestra.run.kinds import read_config
from palestra.runtime.console import VisibleConsole, visible
from tests.sweeps.made_runs import evaluation

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\r\x7f\udcff"
ESCAPED = r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp\r\x7f\udcff"


def test_visible_escapes_what_steers_a_terminal_and_nothing_else() -> None:
    assert visible(HOSTILE) == ESCAPED
    assert visible("naïve ☃ 数\u3000 \u00a0 [red] \\x1b") == "naïve ☃ 数\u3000 \u00a0 [red] \\x1b"
    assert visible("a\n\tb") == r"a\n\tb"
    assert visible("a\n\tb", kept="\n\t") == "a\n\tb"


def test_no_text_reaches_a_terminal_as_an_escape_sequence() -> None:
    shown = VisibleConsole()
    shown.file = file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    grid = Table(HOSTILE)
    grid.add_row(HOSTILE, style="red")
    for renderable in (HOSTILE, Text(HOSTILE, style="bold"), grid, SegmentLines([[Segment(HOSTILE)]], new_lines=True)):
        shown.print(renderable, "[red] [/x] :smile:", soft_wrap=True)
    shown.out(HOSTILE)
    file.flush()
    text = file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert text.replace("\n", "").isprintable()
    assert text.count(r"\x1b]0;owned") == 6
    assert text.count("[red] [/x] :smile:") == 4


def test_a_table_shows_names_visibly_on_a_terminal_and_as_they_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config("configs/ppo-cartpole.yml")
    (tmp_path / "config.yml").write_text(render(config, RunConfig))
    record = json.loads(evaluation(8, 1.0))
    record["evaluation"] = record["pairs"][0]["players"]["agent"] = HOSTILE.replace("\udcff", "")  # that is no JSON
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    texts = []
    for is_terminal in (False, True):
        monkeypatch.setattr(sys, "stdout", file := io.StringIO())
        monkeypatch.setattr(file, "isatty", partial(bool, is_terminal))
        table([str(tmp_path)])
        texts.append(file.getvalue())
    assert HOSTILE[:9] in texts[0]
    assert texts[1].replace("\n", "").isprintable()
    assert ESCAPED[:9] in texts[1]


def test_the_consoles_of_commands_are_such_consoles() -> None:
    from palestra.commands.failures import errors, silent

    assert all(isinstance(each, VisibleConsole) for each in (console, errors, silent))
