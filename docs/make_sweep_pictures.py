"""Makes the pictures of docs/sweeps.md from a sweep that is not done: python -m docs.make_sweep_pictures SWEEP

It works on the sweep until its end. docs/images/sweep-display.svg: the live display in a terminal of 100x28, as soon as
two runs have come far enough. docs/images/sweep-report.png: the figures of its report, by Chromium.
"""

import re
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.segment import SegmentLines

from palestra.report.sweep_page import write_sweep_report
from palestra.sweeps.display import Read, SweepDisplay, screen_lines
from palestra.sweeps.progress import SweepProgress
from palestra.sweeps.sweep import Sweep

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 100, 28
HIDDEN = "header, nav, #overview, #values, #curves, #trials, #setting"
FAR = 0.3  # how far two runs must be


class Camera(SweepDisplay):
    """Takes the first good picture."""

    def __init__(self) -> None:
        self.is_done = False

    def update(self, read: Read, is_last: bool = False) -> None:
        if self.is_done or is_last:
            return
        progress = read()
        if sum(run.share > FAR for run in progress.runs) > 1:
            self.is_done = True
            draw(progress)


def draw(progress: SweepProgress) -> None:
    """Write the frame as an SVG."""
    console = Console(width=WIDTH, height=HEIGHT, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    lines = screen_lines(progress, 0.0, datetime.now(), WIDTH, HEIGHT - 1)
    console.print(SegmentLines(lines, new_lines=True))
    svg = console.export_svg(title="palestra sweep")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts from elsewhere: the reader's own will do
    (IMAGES / "sweep-display.svg").write_text(svg)


def main(path: Path) -> None:
    Sweep.open(path, [], Camera(), trust=False).work()
    with tempfile.TemporaryDirectory() as folder:
        page = write_sweep_report(path, Path(folder) / "report.html")
        page.write_text(page.read_text().replace("</head>", f"<style>{HIDDEN} {{ display: none }}</style></head>"))
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1560"]
        picture = f"--screenshot={Path(folder) / 'page.png'}"
        subprocess.run(["chromium", *options, picture, page.as_uri()], check=True, capture_output=True)
        (IMAGES / "sweep-report.png").write_bytes((Path(folder) / "page.png").read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
