"""The documents of the repository as pages of the site: their links lead into the site, and names to the reference."""

import json
import posixpath
import re
from collections.abc import Callable, Iterator

from docs.website.layout import ROOT, Pages, relative
from docs.website.sources import source_page

FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2[^\n]*$", re.S | re.M)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
HEADING = re.compile(r"^(#{1,6}) (.+?)$", re.M)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IMAGES = (".svg", ".png")
HEADS = {
    "index.md": "---\nhide: [navigation, toc]\n---\n\n",
    "changelog.md": "---\nsearch:\n  exclude: true\n---\n\n",  # its long lists have all words, also of what is gone
}
"""what Zensical reads at the head of a page"""


def documents() -> dict[str, str]:
    """The page of each document, by its path in the repository. README is not among them: the site has a home page."""
    found = {f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    found |= {"docs/quickstart.ipynb": "quickstart.md", "benchmarks/README.md": "benchmarks/index.md"}
    found |= {path.name: path.name.lower() for path in sorted(ROOT.glob("*.md")) if path.name != "README.md"}
    results = sorted((ROOT / "benchmarks" / "results").rglob("*.md"))
    return found | {(name := path.relative_to(ROOT).as_posix()): name for path in results}


def text_of(document: str) -> str:
    """The Markdown of a document; a notebook's cells one after the other."""
    text = (ROOT / document).read_text()
    if not document.endswith(".ipynb"):
        return text
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return "\n\n".join(source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells) + "\n"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with all that is outside of blocks of code changed."""
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def anchor_of(heading: str) -> str:
    """The anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Site:
    """What pages are made of.

    places: where the reference explains a name, as paths in the site. images: those that pages show, by their paths in
    the site, each with its path in the repository.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self.places = places
        self.by_document = documents()
        self.images: dict[str, str] = {}

    def pages(self) -> Pages:
        """The pages of all documents."""
        return {page: self.page(document, page) for document, page in self.by_document.items()}

    def page(self, document: str, page: str) -> str:
        """The page of one document."""
        named: set[str] = set()

        def change(text: str) -> str:
            text = HEADING.sub(lambda found: f"{found[0]} {{#{anchor_of(found[2])}}}", text)
            text = LINK.sub(lambda found: f"{found[1]}({self.link(found[2], document, page)})", text)
            return "".join(self.with_names(piece, is_plain, page, named) for piece, is_plain in pieces(text))

        return HEADS.get(page, "") + outside_code(text_of(document), change)

    def link(self, target: str, document: str, page: str) -> str:
        """The link of a page in place of that of its document."""
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"\w+:", target):
            return target
        file = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
        if file == "README.md":
            return relative("index.md", page)
        if file in self.by_document:
            return relative(self.by_document[file], page) + hash_ + anchor
        if file.endswith(IMAGES):
            self.images[place := file.removeprefix("docs/")] = file
            return relative(place, page)
        return relative(source_page(file), page)

    def with_names(self, text: str, is_plain: bool, page: str, named: set[str]) -> str:
        """The text, where each name in code links to its place in the reference when a page has it first."""
        if not is_plain or page == "changelog.md":  # which also names what is gone
            return text

        def linked(found: re.Match[str]) -> str:
            place = self.place_of(found[1])
            if place is None or place in named:
                return found[0]
            named.add(place)
            return f"[{found[0]}]({relative(place, page)})"

        return CODE.sub(linked, text)

    def place_of(self, code: str) -> str | None:
        """Where the reference explains what a piece of code names: a command, a key with or without a value, a name."""
        words = code.split()
        if words[:1] == ["palestra"]:
            return self.places.get(" ".join(words[:2]))
        name = re.sub(r"(=|: |\().*$", "", code)
        return self.places.get(name) or self.places.get(self.in_general(name))

    @staticmethod
    def in_general(key: str) -> str:
        """A key of a certain player as one of any: players.PLAYER.algorithm.gamma."""
        return re.sub(r"^players\.\w+", "players.PLAYER", key)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """A text in pieces, each with whether it may get links: headings, and what are links already, may not."""
    end = 0
    for found in re.finditer(rf"{LINK.pattern}|^#.*$", text, re.M):
        yield text[end : found.start()], True
        yield found[0], False
        end = found.end()
    yield text[end:], True
