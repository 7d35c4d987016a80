"""The pages of the site: they show every name, command and key, and all their links and images lead somewhere."""

import posixpath
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import palestra
from docs.website import site
from docs.website.commands import commands_of
from docs.website.documents import FENCE, documents
from docs.website.layout import ROOT, Pages
from docs.website.python_names import imported, thing_of
from palestra.cli import app
from palestra.config.places import fields_under
from palestra.kinds.games.tournament import TournamentConfig
from palestra.run.kinds import kinds
from palestra.sweeps.config import SweepConfig

CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


@pytest.fixture(scope="module")
def made() -> tuple[Pages, dict[str, str]]:
    return site.made()


@pytest.fixture(scope="module")
def pages(made: tuple[Pages, dict[str, str]]) -> Pages:
    return made[0]


@pytest.fixture(scope="module")
def rows(pages: Pages) -> dict[str, str]:
    """The rows of the tables of keys, by their anchors."""
    tables = "\n".join(text for page, text in pages.items() if page.startswith("reference/keys/"))
    return {anchor: row for row, anchor in re.findall(r'^(\| <span id="(\S+)"></span>.*)$', tables, re.M)}


def test_the_reference_shows_every_name_that_palestra_offers(pages: Pages) -> None:
    page = pages["reference/python/palestra.md"]
    assert [name for name in palestra.__all__ if f"::: palestra.{name}\n" not in page] == []


def test_the_reference_shows_every_name_that_guides_import(pages: Pages) -> None:
    shown = {id(thing_of(name)) for text in pages.values() for name in re.findall(r"^::: (\S+)$", text, re.M)}
    assert [name for name in imported() if id(thing_of(name)) not in shown] == []


def test_the_reference_shows_every_command_with_every_option(pages: Pages) -> None:
    group: Any = typer.main.get_command(app)
    page = pages["reference/commands.md"]
    for name, command in commands_of(group).items():
        start = page.index(f"### palestra {name} {{")
        section = page[start : page.find("\n## ", start)]
        for parameter in command.params:
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name]
            shown = [each if each.startswith("-") else each.upper().strip("[]") for each in names]
            assert parameter.hidden or [each for each in shown if each not in section] == [], name


def test_the_reference_shows_every_key_with_what_is_expected_and_what_it_means(rows: dict[str, str]) -> None:
    for kind in {*(kind.config for kind in kinds()), TournamentConfig, SweepConfig}:
        for model, key, _ in fields_under(kind):
            row = rows[f"{model.__module__.removeprefix('palestra.')}.{model.__name__}.{key}"]
            _, _, expected, meaning, _ = re.split(r"(?<!\\)\|", row)
            assert expected.strip(), (model, key)
            assert meaning.partition("<details>")[0].strip(), (model, key)


def test_nearly_every_key_says_which_files_read_it(rows: dict[str, str]) -> None:
    assert len([row for row in rows.values() if "<summary>read by</summary>" not in row]) < 0.02 * len(rows)
    assert "source/palestra/algorithms/ppo.py.md#__codelineno-0-" in rows["algorithms.ppo.PPOConfig.gae_lambda"]


def test_cells_that_a_phone_stacks_keep_the_name_of_their_column(pages: Pages) -> None:
    tables = "".join(text for page, text in pages.items() if page.startswith("reference/keys/"))
    heads = set(re.findall(r"^\| key \| .* \|$", tables, re.M))
    style = (ROOT / "docs" / "website" / "site.css").read_text()
    names = re.findall(r'\.keys td:nth-child\((\d)\)::before \{\n\s+content: "(\w+): ";', style)
    assert [f"| key | {' | '.join(name for _, name in names)} |"] == [*heads]
    assert [int(number) for number, _ in names] == [2, 3]


def links(text: str) -> Iterator[str]:
    """The links and images of a page, outside of code."""
    yield from re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)))


def anchors(text: str) -> set[str]:
    found = re.findall(r"^#.*\{#(\S+)\}$", text, re.M) + re.findall(r'<span id="(\S+)">', text)
    lines = (f"__codelineno-0-{number}" for number in range(1, text.count("\n")))
    return {*found, *re.findall(r"^::: (\S+)$", text, re.M), *lines}


def test_links_and_images_lead_to_what_is_there(made: tuple[Pages, dict[str, str]]) -> None:
    pages, files = made
    known = {page: anchors(text) for page, text in pages.items()} | {file: {""} for file in files}
    missing = []
    for page, text in pages.items():
        for link in links(text) if not page.startswith("source/") else ():
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            is_there = target in known and (not anchor or anchor in known[target])
            if not is_there and not re.match(r"https?:", link):
                missing.append(f"{page}: {link}")
    assert missing == []


def test_files_beside_the_pages_are_there(made: tuple[Pages, dict[str, str]]) -> None:
    _, files = made
    assert [file for file in files.values() if not (ROOT / file).is_file()] == []
    assert {*CONFIG["extra_css"], *(each["path"] for each in CONFIG["extra"]["polyfills"])} <= files.keys()


def test_names_of_pages_link_to_the_reference(pages: Pages) -> None:
    assert "[`palestra resume runs/mine`](reference/commands.md#palestra-resume)" in pages["continue.md"]
    assert "[`TensorGame`](reference/python/games.md#palestra.games.TensorGame)" in pages["games.md"]
    assert "[`output.checkpoint_folder`](reference/keys.md#checkpoint_folder)" in pages["storage.md"]


def listed(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from listed(entry)


def test_the_navigation_leads_to_every_page(pages: Pages) -> None:
    """But for code and for tables of measurements, which pages link to."""
    found = [page for page in pages if not page.startswith(("source/", "benchmarks/results/"))]
    assert sorted(listed(CONFIG["nav"])) == sorted(found)


def test_every_document_is_a_page() -> None:
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(documents().values())
