"""docs/commands.md shows commands as they are, and all of them; docs/index.md lists all pages."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from palestra.cli import app

DOCS = Path(__file__).parents[2] / "docs"
GROUP: Any = typer.main.get_command(app)


def shown(document: Path) -> list[list[str]]:
    """The words of each command in blocks for a shell."""
    blocks = re.findall(r"```sh\n(.*?)```", document.read_text(), re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("palestra ")]
    return [shlex.split(line.partition(" > ")[0], comments=True)[1:] for line in lines]


@pytest.mark.parametrize("document", [DOCS / "commands.md", DOCS.parent / "README.md"], ids=lambda path: path.name)
def test_commands_have_the_options_that_the_list_shows(document: Path) -> None:
    commands = shown(document)
    assert len(commands) >= 8
    for name, *rest in commands:
        command = GROUP if name.startswith("-") else GROUP.commands[name]
        command = getattr(command, "commands", {}).get(rest[0], command) if rest else command
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in [name, *rest] if word.startswith("--")} <= options, (name, rest)


def test_every_command_has_a_line() -> None:
    assert GROUP.commands.keys() - {name for name, *_ in shown(DOCS / "commands.md")} == set()


def test_every_page_is_listed_on_the_home_page() -> None:
    listed = set(re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|", (DOCS / "index.md").read_text(), re.M))
    assert {path.name for path in (*DOCS.glob("*.md"), *DOCS.glob("*.ipynb"))} - listed == {"index.md"}
