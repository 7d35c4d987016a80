"""Reads docstrings, which name arguments, attributes and errors in sentences, as lists.

    path: of the file, or the name of a config. Raises ConfigError with every fault at once.

A name counts only if the function or class has it; a sentence without one belongs to what was named before it. What
comes before the first name is the text.
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

LABEL = re.compile(r"(?:^|(?<=[.;] )|(?<=\n))(\*{0,2}[A-Za-z_]\w*(?:(?:, | and )\*{0,2}[A-Za-z_]\w*)*): ")
RAISES = re.compile(r"(?:^|(?<=[.;] ))(?:It may raise|May raise|Raises) (?=[A-Z])")
ERROR = re.compile(r"(?:^|, and |, | and | or |; )(?=[A-Z][A-Za-z]*(?:Error|Failed|Exit|Interrupt|Killed)\b)")


class Prose(NamedTuple):
    """A docstring: its text, what it says of each name, and when which error is raised, all as Markdown."""

    text: str
    names: dict[str, str]
    errors: dict[str, str]


def read(docstring: str, names: Collection[str]) -> Prose:
    """Read a docstring (cleaned, without indentation) of something that has these names."""
    text: list[str] = []
    said: dict[str, str] = {}
    errors: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", docstring):
        if paragraph.startswith("    "):
            text.append(paragraph)
            continue
        plain, raised = _without_errors(" ".join(paragraph.split()))
        errors |= raised
        before, *labelled = _at_labels(plain, names)
        if before[1]:
            text.append(before[1])
        said |= {name: meaning for label, meaning in labelled for name in re.split(", | and ", label)}
    return Prose("\n\n".join(text), said, errors)


def _without_errors(paragraph: str) -> tuple[str, dict[str, str]]:
    """A paragraph without the sentence on errors, and what this says of each."""
    start = RAISES.search(paragraph)
    if start is None:
        return paragraph, {}
    sentence, rest = _first_sentence(paragraph[start.end() :])
    errors: dict[str, str] = {}
    waiting: list[str] = []
    for part in ERROR.split(sentence):
        name, _, when = part.partition(" ")
        if not name:
            continue
        waiting.append(name.rstrip(".,;"))
        if when:
            errors |= dict.fromkeys(waiting, when.rstrip("."))
            waiting = []
    errors |= dict.fromkeys(waiting, "")
    return f"{paragraph[: start.start()]}{rest}".strip(), errors


def _first_sentence(text: str) -> tuple[str, str]:
    end = re.search(r"\. (?=[A-Za-z`*])", text)
    return (text, "") if end is None else (text[: end.start() + 1], text[end.end() :])


def _at_labels(paragraph: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """The text before the first label, with an empty label, and then each label with what follows it."""
    label, begin = "", 0
    for found in LABEL.finditer(paragraph):
        if not {name.strip("*") for name in re.split(", | and ", found[1])} <= set(names):
            continue
        yield label, paragraph[begin : found.start()].strip()
        label, begin = found[1].replace("*", ""), found.end()
    yield label, paragraph[begin:].strip()
