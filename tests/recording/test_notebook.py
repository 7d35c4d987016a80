"""The display in a notebook: one output of the cell, drawn in place."""

import html
import re
import time
from typing import Any

import IPython.display
import pytest
from rich.console import Console

from palestra.recording.display import live, make_display
from palestra.recording.results import Task
from tests.recording.test_display import progress


class Shown:
    """The outputs of cells: what each of them shows in turn."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        output = [data]
        self.outputs.append(output)

        class Handle:
            def update(self, data: dict[str, str], *, raw: bool) -> None:
                output.append(data)

        return Handle()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    found = Shown()
    monkeypatch.setattr(IPython.display, "display", found.display)
    monkeypatch.setattr(live, "INTERVAL_S", 0.01)
    monkeypatch.setattr(live, "MOST_SHARE", 1.0)
    return found


def test_a_notebook_shows_a_frame_in_place_in_the_cell_that_trains(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    console, task = Console(force_jupyter=True), Task("main", 0, 300, "games")
    display = make_display("auto", console)
    for number in range(2):  # two calls of fit
        with display:
            display.update(progress(name="a <b> run", tasks=[task]))
            deadline = time.monotonic() + 60.0
            while "0 of 300 games" not in shown.outputs[number][-1]["text/plain"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            task.done = 120 * (number + 1)
            display.log("a line")
        task.done = 0
        last = shown.outputs[number][-1]
        text = html.unescape(re.sub("<[^>]*>", "", last["text/html"]))
        assert text == last["text/plain"]
        assert f"{120 * (number + 1)} of 300 games" in text
        assert "a <b> run" in text
    assert len(shown.outputs) == 2
    assert capsys.readouterr().out == "a line\n" * 2


def test_a_notebook_shows_what_the_config_asks_for(shown: Shown) -> None:
    console = Console(force_jupyter=True)
    has_summary = {mode: make_display(mode, console).has_summary for mode in ("auto", "plain", "quiet")}  # type: ignore[arg-type]
    assert has_summary == {"auto": False, "plain": True, "quiet": False}
    assert make_display("auto", Console(force_jupyter=False)).has_summary
    assert not shown.outputs
