"""The command line. Exit codes: 0 done, 1 the run failed, 2 bad input, 128 + n stopped by signal n.

The commands stand in train, sweeps, players, runs and configs of palestra.commands. Heavy imports stand inside the
functions, so that `palestra --help` answers at once.
"""

import atexit
import gc
import importlib.metadata
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from palestra.commands import configs, players, runs, sweeps, train
from palestra.runtime.signals import exiting_on_signals


def print_version(is_asked: bool) -> None:
    """Print the version and leave, if the option --version is given."""
    if is_asked:
        print(f"palestra {importlib.metadata.version('palestra')}")
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


for module in (train, sweeps, players, runs, configs):
    for command in module.commands.registered_commands:
        command.cls = Command
    app.add_typer(module.commands)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; this is the console script."""
    # else the interpreter looks at all objects of torch before it ends, which takes a second
    atexit.register(gc.freeze)
    with exiting_on_signals():
        app(args=arguments, prog_name="palestra")
