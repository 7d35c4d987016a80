"""Lets a model, or a rule, judge the stored dialogues of a run of text."""

from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors
from palestra.commands.shell import Run, Trust, console, parse_numbers, say


def analyse(
    run: Run,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="reward, keeps_to_role, follows_up, quotes_what_is_there, or a class of your own as "
            "package.module:Class; "
            "without a name the means of stored analyses are shown",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="keys of the analysis, such as model.name=folder model.path=models/judge"
        ),
    ] = None,
    of: Annotated[
        list[str] | None, typer.Option(help="training, or the name of an evaluation; may be repeated [all]")
    ] = None,
    epochs: Annotated[str | None, typer.Option(help="of these epochs alone: 0..9, or 0,5,9 [all]")] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="forget what was judged before, as with other keys or another model")
    ] = False,
    show: Annotated[
        int | None, typer.Option(min=1, help="list so many decisions with the largest and the smallest values instead")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="list these alone: role=verifier, words=reject, label=1; may be repeated")
    ] = None,
    trust: Trust = False,
) -> None:
    """Let a model, or a rule, judge the stored dialogues of a run of text; results go to RUN/analyses/.

    What is judged already is not judged again. The run may train meanwhile.
    """
    with one_line_errors():
        from palestra.kinds.text.analysing import Wanted, judge, listed, open_run, read_analysis, shown

        folder, config = open_run(run, trust)
        wanted = Wanted(of or [], None if epochs is None else parse_numbers(epochs, "--epochs", "epoch"))
        if name is not None:
            judge(folder, config, read_analysis(name, keys or []), wanted, anew, say)
        found = shown(folder, name) if name is None or not show else listed(folder, name, wanted, show, only or [])
        for each in found:
            console.print(each)
        if not found:
            say(f"{run} has no analyses yet")
