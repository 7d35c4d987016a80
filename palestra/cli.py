"""The command line. Exit codes: 0 done, 1 the run failed, 2 bad input, 128 + n stopped by signal n.

Each command stands in the file of palestra.commands that has its name. Heavy imports stand inside the functions there,
so that `palestra --help` answers at once; where nearly all functions need torch, they stand in a file beside.
"""

import atexit
import gc
import importlib.metadata
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from palestra.commands.analyse import analyse
from palestra.commands.ask import ask
from palestra.commands.branch import branch
from palestra.commands.check import check
from palestra.commands.compare import compare
from palestra.commands.config import config
from palestra.commands.data import collect, show
from palestra.commands.evaluate import evaluate
from palestra.commands.export import export
from palestra.commands.extend import extend
from palestra.commands.list import list_parts
from palestra.commands.play import play
from palestra.commands.plot import plot
from palestra.commands.predict import predict
from palestra.commands.profile import profile
from palestra.commands.report import report
from palestra.commands.resume import resume
from palestra.commands.serve import serve
from palestra.commands.sweep import sweep
from palestra.commands.table import table
from palestra.commands.train import train
from palestra.commands.trials import trials
from palestra.commands.verify import verify
from palestra.runtime.signals import exiting_on_signals


def print_version(is_asked: bool) -> None:
    """Print the version and leave, if the option --version is given."""
    if is_asked:
        typer.echo(f"palestra {importlib.metadata.version('palestra')}")
        raise typer.Exit()


class Command(TyperCommand):
    """A command in which no module is imported that is not trusted, unless it says that a config is the user's own.

    Its help shows its texts as they are: a default in brackets, as [latest], is no markup of rich.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        explained: list[Any] = [self, *self.params]
        for each in explained:
            if each.help is not None:
                each.help = escape(each.help)

    def invoke(self, ctx: Any) -> Any:
        from palestra.config.own_modules import saying_nothing

        with saying_nothing():
            return super().invoke(ctx)


app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version, and leave.")
    ] = False,
) -> None:
    """palestra: one reinforcement-learning trainer for players of every kind."""


GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": (train, resume, extend, branch),
    "Sweeps": (sweep, trials),
    "Ask, play, evaluate": (evaluate, analyse, ask, play),
    "Look at runs, use what learned": (report, compare, table, plot, verify, export, predict, serve),
    "Configs": (profile, check, config, list_parts),
    "Recorded play": (collect, show),
}
data = typer.Typer(no_args_is_help=True, context_settings=app.info.context_settings)
for command in chain(*GROUPS.values()):
    if command in (collect, show):
        data.command(command.__name__, cls=Command)(command)
    else:
        app.command(command.__module__.rpartition(".")[2], cls=Command)(command)
app.add_typer(data, name="data", help="Record play of players, and show what recorded play holds.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; this is the console script."""
    # else the interpreter looks at all objects of torch before it ends, which takes a second
    atexit.register(gc.freeze)
    with exiting_on_signals():
        app(args=arguments, prog_name="palestra")
