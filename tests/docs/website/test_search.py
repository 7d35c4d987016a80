"""Someone who knows none of palestra's words finds the page that answers: what the search shows first.

`make slow` types the same words into the built site.
"""

import inspect
import re
from collections.abc import Iterator

import pytest

from docs.website import site
from docs.website.documents import FENCE
from docs.website.python_names import page_of, public
from tests.docs.website.search import FINDS, NUM_LOOKED_AT, Item, Search
from tests.docs.website.test_site import CONFIG

HEADING = re.compile(r"^#+ (.+?)(?: \{#(\S+)\})?$", re.M)


def paths(nav: object, above: str = "") -> Iterator[tuple[str, str]]:
    """Pages, each with its titles in the navigation."""
    for entry in nav if isinstance(nav, list) else []:
        for title, below in entry.items():
            if isinstance(below, str):
                yield below, f"{above} {title}"
            yield from paths(below, f"{above} {title}")


def sections(page: str, text: str, path: str) -> Iterator[Item]:
    plain = re.sub(r"\]\([^()\s]*\)", "]", text)
    code = [(each.start(), each.end()) for each in FENCE.finditer(plain)]
    heads = [each for each in HEADING.finditer(plain) if not any(start <= each.start() < end for start, end in code)]
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(plain)
        place = page.replace(".md", ".html") + (f"#{head[2]}" if number and head[2] else "")
        yield Item(place, head[1], plain[head.end() : end].replace("*", ""), path)


def names() -> Iterator[Item]:
    """The names of Python and the members of classes, as mkdocstrings shows them."""
    for name, thing in public().items():
        page = page_of(name).replace(".md", ".html")
        path = f"Reference Python {name.rpartition('.')[0]}"
        yield Item(f"{page}#{name}", name, inspect.getdoc(thing) or "", path)
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if member[0] != "_" and (said := inspect.getdoc(value)):
                yield Item(f"{page}#{name}.{member}", member, said, path)


@pytest.fixture(scope="module")
def search() -> Search:
    titles = dict(paths(CONFIG["nav"]))
    texts = {page: text for page, text in site.made()[0].items() if "exclude: true" not in text[:40]}
    items = [item for page, text in texts.items() for item in sections(page, text, titles.get(page, ""))]
    return Search([*items, *names()])


@pytest.mark.parametrize(("query", "place"), FINDS.items())
def test_the_search_finds_the_page_that_answers(search: Search, query: str, place: str) -> None:
    found = search.find(query)[:NUM_LOOKED_AT]
    assert any(each.startswith(place) for each in found), found


def test_the_search_finds_every_key_of_several_words_by_its_name(search: Search) -> None:
    keys = {place.partition("#")[2] for place, _ in search.items if place.startswith("reference/keys.html#")}
    keys = {key for key in keys if "_" in key}  # a plain word leads to many pages
    assert len(keys) > 100
    missing = [key for key in keys if f"reference/keys.html#{key}" not in search.find(key)[:NUM_LOOKED_AT]]
    assert missing == []


def test_a_word_that_no_page_has_is_not_found(search: Search) -> None:
    assert search.find("resume kill xylophone") == []
