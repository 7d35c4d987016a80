"""The built site in a browser, from its folder: nothing is loaded from elsewhere, pages fit, the search finds."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from docs.website.layout import ROOT
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gae_lambda", "reference/keys/algorithms.html#algorithms.ppo.PPOConfig"),
        ("palestra resume", "reference/commands.html#palestra-resume"),
        ("expected a discount between 0 and 1", "config.html"),
        ("go on after a kill", "continue.html"),
        ("first start compiles", "time.html#why-the-first-start-compiles"),
        ("write a protocol", "dialogue.html#a-protocol-and-a-scenario-of-your-own"),
    ],
)
def test_the_search_finds_a_key_a_command_an_error_and_answers(page: Page, words: str, expected: str) -> None:
    page.open(SITE / "index.html", 1280, "light")
    press(page, "k", code="KeyK", modifiers=2, windowsVirtualKeyCode=75)
    shown: list[str] = []
    deadline = time.monotonic() + 60.0
    while not any(each.endswith(f"/{expected}") for each in shown):
        assert time.monotonic() < deadline, shown
        if shown[:1] == [""]:
            page.call("Input.insertText", text=words)
        time.sleep(0.5)
        shown = page.ask(SHOWN)
    assert shown[0] == words
