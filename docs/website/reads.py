"""Which files read a key of a config, found by what their code says; nothing is run.

A file reads the key `save` of OutputConfig if it names that model (or is its home) and has `.save`, or if it has
`output.save`: the key below one under which the model stands. If no file does, then those count that have
`config.save`, as bases of algorithms do: of the model's room, or else of any.
"""

import re
from collections import defaultdict
from collections.abc import Collection
from functools import cache

from docs.website.layout import ROOT, file_of

TEXTS = re.compile(r'''"""(?s:.*?)"""|"[^"\n]*"|'[^'\n]*'|#.*''')  # docstrings, strings, comments
READ = re.compile(r"(?=\b(\w+)(?:\[\w+\]|\(\))?\.([A-Za-z]\w*)\b(?! = ))")
CASE = re.compile(r"\bcase (\w+)\((.*)\)")
NAMES = re.compile(r"\b[A-Z]\w+")


class Code:
    """What the files of palestra say, by path in the repository.

    attributes: the files that read an attribute of this name, each with the first line. pairs: the same by the last two
    names, as ("output", "save"). named: the files that name a class.
    """

    def __init__(self) -> None:
        self.attributes: dict[str, dict[str, int]] = defaultdict(dict)
        self.pairs: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self.named: dict[str, set[str]] = defaultdict(set)
        for path in sorted((ROOT / "palestra").rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            text = TEXTS.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
            for number, line in enumerate(text.splitlines(), start=1):
                for before, key in READ.findall(line):
                    self.attributes[key].setdefault(file, number)
                    self.pairs[before, key].setdefault(file, number)
                for model, arguments in CASE.findall(line):
                    for key in re.findall(r"(\w+)=", arguments):
                        self.pairs[model, key].setdefault(file, number)
                for name in NAMES.findall(line):
                    self.named[name].add(file)


@cache
def code() -> Code:
    """The files are read once."""
    return Code()


def readers(model: type, key: str, stands_at: Collection[str]) -> dict[str, int]:
    """The files that read a key of a model, each with the line. stands_at: the keys under which the model stands."""
    known = code()
    naming = known.named[model.__name__] | {file_of(model)}
    found = {file: line for file, line in known.attributes[key].items() if file in naming}
    for above in (model.__name__, *stands_at):
        found |= known.pairs[above, key]
    if not found:
        room = "/".join(model.__module__.split(".")[:2]) + "/"
        loose = known.pairs["config", key]
        found = {file: line for file, line in loose.items() if file.startswith(room)} or loose
    return dict(sorted(found.items()))
