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
from docs.website.documents import FENCE, documents
from docs.website.layout import ROOT
from docs.website.python_names import imported
from palestra.cli import app
from palestra.config.places import fields_under
from palestra.runs.kinds import KINDS
from palestra.runs.tournament import TournamentConfig
from palestra.sweeps.config import SweepConfig

PAGES, FILES = site.made()
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
ROWS = [line for page, text in PAGES.items() if page.startswith("reference/keys/") for line in text.splitlines()]


@pytest.mark.parametrize("name", palestra.__all__)
def test_the_reference_shows_every_name_that_palestra_offers(name: str) -> None:
    assert f"::: palestra.{name}\n" in PAGES["reference/python/palestra.md"]


def test_the_reference_shows_every_name_that_guides_import() -> None:
    things = site.python_names.public()
    shown = {id(things[name]) for text in PAGES.values() for name in re.findall(r"^::: (\S+)$", text, re.M)}
    missing = [name for name in imported() if id(site.python_names.thing_of(name)) not in shown]
    assert missing == []


def test_the_reference_shows_every_command_with_every_option() -> None:
    group: Any = typer.main.get_command(app)
    page = PAGES["reference/commands.md"]
    for name, command in group.commands.items():
        start = page.index(f"### palestra {name} {{")
        section = page[start : page.find("\n## ", start)]
        for parameter in command.params:
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name]
            shown = [each if each.startswith("-") else each.upper().strip("[]") for each in names]
            assert parameter.hidden or [each for each in shown if each not in section] == [], name


def test_the_reference_shows_every_key_with_what_is_expected_and_what_it_means() -> None:
    rows = {found[1]: line for line in ROWS if (found := re.match(r'\| <span id="(\S+)"></span>', line))}
    for kind in {*KINDS.values(), TournamentConfig, SweepConfig}:
        for model, key, _ in fields_under(kind):
            row = rows[f"{model.__module__.removeprefix('palestra.')}.{model.__name__}.{key}"]
            _, _, expected, meaning, _, _ = re.split(r"(?<!\\)\|", row)
            assert expected.strip(), (model, key)
            assert meaning.strip(), (model, key)


def test_nearly_every_key_says_which_files_read_it() -> None:
    rows = [line for line in ROWS if line.startswith("| <span")]
    assert len([line for line in rows if line.endswith("|  |")]) < 0.02 * len(rows)
    (gamma,) = [line for line in rows if "ppo.PPOConfig.gae_lambda" in line]
    assert "source/palestra/algorithms/ppo.py.md#__codelineno-0-" in gamma


def links(text: str) -> Iterator[str]:
    """The links and images of a page, outside of code."""
    yield from re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)))


def anchors(page: str) -> set[str]:
    text = PAGES[page]
    found = re.findall(r"^#.*\{#(\S+)\}$", text, re.M) + re.findall(r'<span id="(\S+)">', text)
    return {*found, *re.findall(r"^::: (\S+)$", text, re.M)}


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("source/")])
def test_links_and_images_of_a_page_lead_to_what_is_there(page: str) -> None:
    for link in links(PAGES[page]):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        assert target in PAGES.keys() | FILES.keys(), link
        line = re.fullmatch(r"__codelineno-0-(\d+)", anchor)
        if line:
            assert int(line[1]) <= PAGES[target].count("\n"), link
        else:
            assert not anchor or anchor in anchors(target), link


def test_files_beside_the_pages_are_there() -> None:
    assert [file for file in FILES.values() if not (ROOT / file).is_file()] == []
    assert {*CONFIG["extra_css"], *(each["path"] for each in CONFIG["extra"]["polyfills"])} <= FILES.keys()


def test_names_of_pages_link_to_the_reference() -> None:
    assert "[`palestra resume runs/mine`](reference/commands.md#palestra-resume)" in PAGES["continue.md"]
    assert "[`TensorGame`](reference/python/games.md#palestra.games.TensorGame)" in PAGES["games.md"]
    assert "[`output.checkpoint_folder`](reference/keys.md#checkpoint_folder)" in PAGES["storage.md"]


def listed(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from listed(entry)


def test_the_navigation_leads_to_every_page() -> None:
    """But for code and for tables of measurements, which pages link to."""
    pages = {page for page in PAGES if not page.startswith(("source/", "benchmarks/results/"))}
    assert sorted(listed(CONFIG["nav"])) == sorted(pages)


def test_every_document_is_a_page() -> None:
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(documents().values())
