"""The built site in a browser, from its folder: nothing is loaded from elsewhere, pages fit, the search finds."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from docs.website.layout import ROOT
from tests.docs.website.search import FINDS, NUM_LOOKED_AT
from tests.report.browser import CHROMIUM, Page, browser

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]

SITE = ROOT / "build" / "site"
# What the search, which lies in a shadow root, shows: its words and its results.
SHOWN = """(() => {
  const host = [...document.querySelectorAll("*")].find((each) => each.shadowRoot)?.shadowRoot;
  const words = host?.querySelector("input")?.value ?? "";
  return [words, ...(host ? [...host.querySelectorAll("a")].map((each) => each.href.replace(/\\?h=[^#]*/, "")) : [])];
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    pytest.importorskip("zensical", reason="make docs installs it")
    for arguments in (["docs.website"], ["zensical", "build", "--clean", "--strict"]):
        subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True)
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def pages() -> list[str]:
    wide = ["reference/commands.html", "reference/keys.html", "reference/python/palestra.html"]
    return [f"{path.stem}.html" for path in sorted((ROOT / "docs").glob("*.md"))] + wide


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_and_load_nothing_from_elsewhere(page: Page, width: int, scheme: str) -> None:
    for name in pages():
        page.complaints.clear()
        page.open(SITE / name, width, scheme)
        assert page.complaints == [], name
        assert page.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
        assert page.ask("[...document.images].filter((each) => each.complete && !each.naturalWidth).length") == 0, name
        dark = page.ask("document.body.getAttribute('data-md-color-scheme')") == "slate"
        assert dark == (scheme == "dark"), name


def press(page: Page, key: str, **more: Any) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, **more)


def test_the_search_finds_the_pages_that_answer(page: Page) -> None:
    """The real search finds what tests/docs/website/search.py expects of it."""
    page.open(SITE / "index.html", 1280, "light")
    time.sleep(1.0)  # until the page listens to keys
    press(page, "k", code="KeyK", modifiers=2, windowsVirtualKeyCode=75)
    wrong = {}
    for words, place in FINDS.items():
        shown = typed(page, words, lambda shown, place=place: any(f"/{place}" in each for each in shown))
        if not any(f"/{place}" in each for each in shown):
            wrong[words] = shown
    assert wrong == {}


def typed(page: Page, words: str, is_enough: Callable[[list[str]], bool]) -> list[str]:
    """The first results for words, when they are enough or 5 seconds have passed."""
    press(page, "a", code="KeyA", modifiers=2, windowsVirtualKeyCode=65, commands=["selectAll"])
    press(page, "Backspace", code="Backspace", windowsVirtualKeyCode=8)
    shown = wait_for(page, lambda shown: shown == [])  # not the results of the words before
    assert shown == []
    page.call("Input.insertText", text=words)
    return wait_for(page, is_enough)


def wait_for(page: Page, is_enough: Callable[[list[str]], bool]) -> list[str]:
    deadline = time.monotonic() + 5.0
    while True:
        shown: list[str] = page.ask(SHOWN)[1 : 1 + NUM_LOOKED_AT]
        if is_enough(shown) or time.monotonic() > deadline:
            return shown
        time.sleep(0.05)
