"""The console of commands, and the arguments that several of them have."""

import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from palestra.runtime.console import VisibleConsole

if TYPE_CHECKING:
    from palestra.config import ConfigError
    from palestra.run.base import BaseRunConfig
    from palestra.run.kinds import Terminal

CLOSED_PIPE = 128 + signal.SIGPIPE
"""the exit code if whoever reads the output has left, as `head` does"""


class _Console(VisibleConsole):
    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(CLOSED_PIPE) from None


console = _Console()


def config_names(begun: str) -> list[str]:
    """The shipped configs whose names begin so, for a shell that completes, and the YAML files here that do.

    If no shipped config does, there is no name, and the shell completes any path.
    """
    from palestra.run.shipped import shipped_configs

    names = [name for name in shipped_configs() if name.startswith(begun)]
    files = [path.name for path in sorted(Path().glob("*.yml")) if path.name.startswith(begun)]
    return [*names, *files] if names else []


File = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME|ALGORITHM GAME",
        help="the config: a YAML file, the name of a shipped one (ppo-cartpole), or an algorithm and a game",
        autocompletion=config_names,
    ),
]
Run = Annotated[Path, typer.Argument(help="the folder of a run")]
Runs = Annotated[
    list[str], typer.Argument(help="the folders of one run or more, of a sweep or its trials, or URLs of mirrors")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="show only errors")]
Trust = Annotated[bool, typer.Option("--trust", help="trust the modules that the run names, from now on")]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.key=value in place of what the file says")]

Checkpoint = Annotated[str, typer.Option(help="latest, best, a number, or @ and an opt step, as @2100")]
Weights = Annotated[str, typer.Option(help="of a model: latest, or averaged: the averages of learning.ema")]


def mistake(option: str, message: str) -> "ConfigError":
    """Return the error of an argument. It is imported only now, because a command that begins is to be quick."""
    from palestra.config import ConfigError

    return ConfigError.at(option, message)


def say(text: str, console: Console = console, end: str = "\n") -> None:
    """Print a text as it is: brackets are no markup, and lines are not broken."""
    console.print(text, end=end, markup=False, soft_wrap=True)


def terminal(errors: Console) -> "Terminal":
    """Return where a person reads and types. errors: for warnings. Bytes typed that are no UTF-8 are replaced."""
    from palestra.run.kinds import Terminal

    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return Terminal(say, partial(say, console=errors), partial(say, end=""), iter(sys.stdin.readline, ""))


def read_pairing(texts: Sequence[str]) -> dict[str, str]:
    """Read names of players by role from texts such as "host=zeillinger,agent=agent". Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts:
        for part in text.split(","):
            role, _, name = (piece.strip() for piece in part.partition("="))
            if not (role and name):
                raise mistake("--pairing", f"expected role=player,role=player, such as host=zeillinger, got {text!r}")
            if role in found:
                raise mistake(
                    "--pairing", f"expected one player in the role {role!r}, got {found[role]!r} and {name!r}"
                )
            found[role] = name
    return found


def refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise ConfigError if one of some options is given. why: in words, why there may be none."""
    if given := [
        name if value is True else f"{name} {value}" for name, value in options.items() if value not in (None, False)
    ]:
        raise mistake(given[0].split()[0], f"expected no such option, because {why}, got {', '.join(given)}")


def refuse_others(options: Mapping[str, Any], run: object, kind: "BaseRunConfig") -> None:
    """Raise ConfigError if one of some options is given that means nothing to the kind of a run. kind: its config."""
    refuse({name: value for name, value in options.items() if name not in kind.options}, f"{run} is {kind.in_words}")


def parse_numbers(text: str, option: str, what: str) -> list[int]:
    """Return the numbers that the text of an option lists: 0..4, or 0,3,7. what: is numbered. Raises ConfigError."""
    from palestra.sweeps.config import MOST_SEEDS

    if match := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", text):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise mistake(option, f"expected the smaller {what} first, {last}..{first}, got {text!r}")
        if last - first >= MOST_SEEDS:
            raise mistake(option, f"expected at most {MOST_SEEDS:,} {what}s, got {text!r}")
        return list(range(first, last + 1))
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", text):
        numbers = [int(number) for number in text.split(",")]
        if len(set(numbers)) < len(numbers):
            raise mistake(option, f"expected each {what} once, got {text!r}")
        return numbers
    raise mistake(option, f"expected {what}s as 0..4 or 0,3,7, got {text!r}")


def with_runs_of_sweeps(runs: Iterable[str]) -> list[str]:
    """Return the runs, with the runs of a sweep or of one of its trials in the place of its folder.

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
