"""Where commands print, and the arguments that several of them have."""

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from palestra.runtime.console import VisibleConsole

CLOSED_PIPE = 128 + signal.SIGPIPE
"""the exit code if whoever reads the output has left, as `head` does"""


class _Console(VisibleConsole):
    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(CLOSED_PIPE) from None


console = _Console()

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME|ALGORITHM GAME",
        help="the config: a YAML file, the name of a shipped one (ppo-cartpole), or an algorithm and a game",
        show_default=False,
    ),
]
Run = Annotated[Path, typer.Argument(help="the folder of a run", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", help="show only errors")]
Trust = Annotated[bool, typer.Option("--trust", help="trust the modules that the run names, from now on")]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.key=value in place of what the file says")]


def with_runs_of_sweeps(runs: Iterable[str]) -> list[str]:
    """The runs, those of a sweep or of one of its trials in the place of its folder.

    Raises RunFolderError for a sweep without runs.
    """
    from palestra.storage.disk import RunFolderError
    from palestra.sweeps.folder import runs_in

    found: list[str] = []
    for run in runs:
        inside = [run] if "://" in run else list(map(str, runs_in(Path(run))))
        if not inside:
            raise RunFolderError(f"{run}: expected a sweep with runs, got one without")
        found += inside
    return found
