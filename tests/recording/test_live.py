"""The live display on a terminal: the screen that a user sees, what stays above it, and how it is left.

Covers palestra.recording.display.live, palestra.recording.display.regions.
"""

import logging
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import MakeConfig
from rich.segment import Segment
from terminals import Terminal

from palestra import Trainer
from palestra.recording.display import live as live_module
from palestra.recording.display.live import LiveDisplay
from palestra.recording.display.regions import Region
from palestra.recording.results import Task
from tests.recording.test_display import progress


def frame(height: int, width: int = 80, letter: str = "x") -> list[list[Segment]]:
    return [[Segment(f"{i:02}".ljust(width, letter))] for i in range(height)]


def shown(letter: str, height: int, width: int = 80) -> list[str]:
    return [f"{i:02}".ljust(width, letter) for i in range(height)]


# ---- the frame's place ---------------------------------------------------------------------------------


def test_a_frame_is_drawn_in_place_of_the_one_before() -> None:
    with Terminal(80, 24) as terminal:
        region = Region(terminal.console)
        for letter, height in (("a", 5), ("b", 9), ("c", 3)):
            region.draw(frame(height, letter=letter), 80)
        assert terminal.settle() == shown("c", 3) + [""] * 21
        assert (terminal.screen.cursor.y, terminal.screen.cursor.x, terminal.shows_cursor()) == (3, 0, True)


def test_what_is_printed_stands_above_the_frame_line_by_line() -> None:
    printed = [f"line {i}:{'long' * (30 if i % 7 == 0 else 1)}" for i in range(50)]
    with Terminal(80, 24) as terminal:
        region = Region(terminal.console)
        for i, line in enumerate(printed):
            region.draw(frame(10, letter=chr(97 + i % 26)), 80)
            region.print_above(f"{line}\n")
        region.print_above("the end\n")
        assert terminal.settle()[13:23] == shown(chr(97 + 49 % 26), 10)
        everything = "".join(terminal.all_lines()[:-11])  # the long ones were broken
        assert everything == "".join([*printed, "the end"])


@pytest.mark.parametrize("width", [60, 40, 100, 200])
def test_after_a_resize_one_frame_is_left(width: int) -> None:
    """The emulator does not break long lines when it becomes narrower; a terminal that does is played by hand."""
    with Terminal(80, 24) as terminal:
        region = Region(terminal.console)
        region.draw(frame(10), 80)
        terminal.settle()
        terminal.resize(width, 24)
        broken = -(-80 // width)
        terminal.file.write("\n" * (10 * broken - 10))  # where the cursor would be then
        region.draw(frame(6, width, "y"), width)
        assert [line for line in terminal.settle() if line] == shown("y", 6, width)


# ---- what else writes to the terminal ------------------------------------------------------------------


def test_prints_warnings_and_loggers_write_above_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    with Terminal(80, 24) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.file)
        monkeypatch.setattr(sys, "stderr", terminal.file)
        logger, handler = logging.Logger("own"), logging.StreamHandler(sys.stderr)
        logging.getLogger("own of a test").addHandler(handler)
        logger.addHandler(handler)
        try:
            with LiveDisplay(terminal.console, is_ascii=False) as display:
                display.update(progress())
                terminal.wait_for(lambda lines: any("updating" in line for line in lines))
                print("from print")
                print("in two", end="")
                print(" parts")
                print("to stderr", file=sys.stderr)
                logger.warning("from a logger")
                terminal.console.print("[bold]from the console[/bold]")
                display.log("from the display")
                print("not ended", end="")
        finally:
            logging.getLogger("own of a test").removeHandler(handler)
        assert sys.stdout is sys.stderr is handler.stream is terminal.console.file is terminal.file
        printed = ["from print", "in two parts", "to stderr", "from a logger", "from the console", "from the display"]
        terminal.settle()
        lines = terminal.all_lines()
        top = next(i for i, line in enumerate(lines) if line.startswith("╭"))
        assert lines[:top] == [*printed, "not ended"]
        assert {line[0] + line[-1] for line in lines[top:-1]} == {"╭╮", "││", "╰╯"}
        assert lines[-1] == ""


def test_lines_of_many_threads_are_whole() -> None:
    with Terminal(80, 24) as terminal:
        region = Region(terminal.console)

        def write(number: int) -> None:
            for i in range(50):
                region.print_above(f"thread {number} line {i}\n")
                region.draw(frame(3 + i % 9, letter=str(number)), 80)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        region.print_above("the end\n")
        terminal.settle()
        lines = terminal.all_lines()
        expected = {f"thread {number} line {i}" for number in range(4) for i in range(50)}
        assert sorted(line for line in lines if line.startswith("thread")) == sorted(expected)
        assert len([line for line in lines if line[:2].isdigit()]) in range(3, 12)


# ---- the display ---------------------------------------------------------------------------------------


def test_the_screen_moves_between_two_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(live_module, "MOST_SHARE", 1.0)
    task, phase = Task("main", 0, 300, "games"), ["playing"]
    with Terminal(80, 24) as terminal, LiveDisplay(terminal.console, is_ascii=False) as display:
        display.update(progress(tasks=[task], phase=lambda: phase[0]))
        terminal.wait_for(lambda lines: "playing" in lines[1] and "0 of 300 games" in lines[2])
        task.done, phase[0] = 120, "evaluating"
        terminal.wait_for(lambda lines: "evaluating" in lines[1] and "120 of 300 games" in lines[2])
        terminal.resize(120, 40)
        terminal.wait_for(lambda lines: any(len(line) == 120 for line in lines))


def test_drawing_takes_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that takes 20 ms comes every 4 s, not every 10 ms."""
    drawn: list[float] = []

    def draw(display: LiveDisplay) -> None:
        drawn.append(time.monotonic())
        display.cpu_s += 0.02

    monkeypatch.setattr(live_module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(LiveDisplay, "_draw", draw)
    with Terminal(80, 24) as terminal, LiveDisplay(terminal.console, is_ascii=False):
        time.sleep(0.5)
        assert len(drawn) <= 1
    assert len(drawn) <= 2  # the last state is drawn at the end


def test_warnings_stay_in_sight_and_among_the_lines() -> None:
    with Terminal(80, 40) as terminal, LiveDisplay(terminal.console, is_ascii=False) as display:
        display.update(progress())
        for i in range(5):
            display.warn(f"odd thing {i}")
        display.error("the disk is full")
        display.close()
        lines = terminal.settle()
        bottom = next(i for i, line in enumerate(lines) if "─╯" in line)
        assert "6 warnings, the last: warning: odd thing 3 " in lines[bottom - 3]
        assert "odd thing 4" in lines[bottom - 2]
        assert "the disk is full" in lines[bottom - 1]
        assert [line for line in terminal.all_lines() if line.startswith(("warning", "error"))] == [
            *(f"warning: odd thing {i}" for i in range(5)),
            "error: the disk is full",
        ]


def test_a_terminal_is_left_clean_when_training_fails() -> None:
    with Terminal(80, 24) as terminal:
        with suppress(ZeroDivisionError), LiveDisplay(terminal.console, is_ascii=False) as display:
            display.update(progress())
            raise ZeroDivisionError
        lines = terminal.settle()
        bottom = next(i for i, line in enumerate(lines) if "─╯" in line)
        assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (bottom + 1, 0)
        assert terminal.shows_cursor()


def test_what_is_closed_twice_is_drawn_once() -> None:
    with Terminal(80, 24) as terminal:
        with LiveDisplay(terminal.console, is_ascii=False) as display:
            display.update(progress())
            display.close()
            print("below", file=terminal.file)
        terminal.file.flush()
        lines = terminal.settle()
        assert "─╯" in lines[lines.index("below") - 1]
        assert len([line for line in lines if "─╯" in line]) == 1


# ---- a run ---------------------------------------------------------------------------------------------


def test_a_run_on_a_terminal_of_80x24(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"output.display": "auto"})
    with Terminal(80, 24) as terminal:
        trainer = Trainer(config, run=tmp_path / "run", console=terminal.console)
        trainer.fit()
        terminal.file.flush()
        terminal.settle()
        lines = terminal.all_lines()
        top = next(i for i, line in enumerate(lines) if line.startswith("╭"))
        bottom = next(i for i, line in enumerate(lines) if line.startswith("╰"))
        screen = lines[top : bottom + 1]
        assert len(screen) <= 23
        assert {len(line) for line in screen} == {80}
        assert "finished" in screen[1]
        assert "100%" in screen[1]
        assert screen[2].startswith("│ train 24 opt steps   then test 36 games ")
        assert "opt steps 24" in screen[4]
        [loss] = [line for line in screen if line.startswith("│ loss ")]
        assert sum(character in "▁▂▃▄▅▆▇█" for character in loss) >= 8  # of two players
        assert any(line.startswith("│ rho at opt step 24") for line in screen)
        assert lines[bottom + 2].startswith("run: finished")
        assert not any("│" in line for line in lines[bottom + 1 :])
