"""A report's page, taken apart: its tables, its texts, and whether its tags fit."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br", "hr", "input"}


@dataclass
class FoundTable:
    """rows: the first holds the heads; of each cell the text, and the number that it was written with, if any."""

    label: str
    rows: list[list[tuple[str, float | None]]] = field(default_factory=list)

    def column(self, head: str) -> list[tuple[str, float | None]]:
        place = [text for text, _ in self.rows[0]].index(head)
        return [row[place] for row in self.rows[1:]]


class Parsed(HTMLParser):
    """tables: all of the page, by their labels. ids; tags: all that were opened; text: what stands between them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: dict[str, FoundTable] = {}
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self._table: FoundTable | None = None
        self._cell, self._value = "", None
        self.html = path.read_text()
        self.feed(self.html)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(str(found["id"]))
        if tag not in VOID:
            self._open.append(tag)
        if found.get("class") == "table":
            self._table = self.tables[str(found["aria-label"])] = FoundTable(str(found["aria-label"]))
        elif tag == "tr" and self._table:
            self._table.rows.append([])
        elif tag in ("td", "th"):
            self._cell, self._value = "", None
        elif tag == "data":
            self._value = float(str(found["value"]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        if tag in ("td", "th") and self._table:
            self._table.rows[-1].append((self._cell.strip(), self._value))
        elif tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        self._cell += data
        self.text += data
