"""The reference of the command line: every command with its arguments and options, as typer knows them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from docs.website.layout import Pages
from palestra.cli import GROUPS, app

PAGE = "reference/commands.md"
WORDS: dict[Any, str] = {str: "text", int: "an integer", float: "a number", Path: "a path"}
BREAK = "\n\n"
HEAD = """# Commands

`palestra COMMAND --help` says the same in a terminal. [At a glance](../commands.md), commands have a line each;
[questions](../questions.md#what-do-exit-codes-mean) has the exit codes.
"""


def anchor(command: str) -> str:
    return f"palestra-{command.replace(' ', '-')}"


def commands_of(group: Any) -> dict[str, Any]:
    """All commands as they are typed, those of a group such as `data` with its name."""
    found = {}
    for name, each in group.commands.items():
        inner = getattr(each, "commands", None)
        found |= {name: each} if inner is None else {f"{name} {last}": command for last, command in inner.items()}
    return found


def functions() -> dict[str, Any]:
    """The functions of all commands, by how these are typed."""
    found = {str(each.name): each.callback for each in app.registered_commands}
    for group in app.registered_groups:
        inner: Any = group.typer_instance
        found |= {f"{group.name} {each.name}": each.callback for each in inner.registered_commands}
    return found


def pages() -> Pages:
    """The one page."""
    group: Any = typer.main.get_command(app)
    known = commands_of(group)
    rows = [
        f"| [palestra {name}](#{anchor(name)}) | {cell(text_of(each.help).partition(BREAK)[0])} |"
        for name, each in known.items()
    ]
    rows += [f"| {names_of(each)} | {cell(text_of(each.help))} |" for each in group.params if not each.hidden]
    sections = [HEAD, "\n".join(["| command or option | what it does |", "|---|---|", *rows])]
    names = {function: name for name, function in functions().items()}
    for title, commands in GROUPS.items():
        sections.append(f"## {title}")
        sections += [section(names[each], known[names[each]], each) for each in commands]
    return {PAGE: "\n\n".join(sections) + "\n"}


def places() -> dict[str, str]:
    """Where each command is explained, by its first two words."""
    group: Any = typer.main.get_command(app)
    return {f"palestra {name.split()[0]}": f"{PAGE}#{anchor(name)}" for name in commands_of(group)}


def text_of(help: str | None) -> str:
    """A help text without the backslashes that keep rich from reading it as markup."""
    return (help or "").replace("\\[", "[").strip()


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def section(name: str, command: Any, function: Callable[..., Any]) -> str:
    """The part on one command: usage, help, and a table of its arguments and options."""
    types = get_type_hints(function)
    shown = [each for each in command.params if not each.hidden and each.name in types]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    usage = " ".join([f"palestra {name}", *map(usage_of, arguments), *(["[OPTIONS]"] if options else [])])
    rows = [
        f"| {names_of(each)} | {cell(value_of(each, types[each.name]))} | {cell(text_of(each.help))} |"
        for each in (*arguments, *options)
    ]
    table = "\n".join(["| name | value | meaning |", "|---|---|---|", *rows])
    parts = [f"### palestra {name} {{#{anchor(name)}}}", f"```sh\n{usage}\n```", text_of(command.help)]
    return "\n\n".join([*parts, table] if rows else parts)


def usage_of(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    word += "..." if argument.nargs == -1 else ""
    return word if argument.required else f"[{word}]"


def names_of(parameter: Any) -> str:
    names = [usage_of(parameter).strip("[].")] if parameter.param_type_name == "argument" else parameter.opts
    return ", ".join(f"`{name}`" for name in (*names, *parameter.secondary_opts))


def value_of(parameter: Any, annotation: Any) -> str:
    """What a value must be, with its bounds; empty for a flag."""
    kinds = [annotation] if get_origin(annotation) is Literal else get_args(annotation) or (annotation,)
    kind = next(each for each in kinds if each is not type(None))
    if kind is bool:
        return ""
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    words = [WORDS.get(kind) or " or ".join(f"`{each.value}`" for each in kind)]
    words += [f">= {parameter.min}"] if parameter.min is not None else []
    words += [f"<= {parameter.max}"] if parameter.max is not None else []
    return " ".join(words) + (", any number of times" if parameter.multiple else "")
