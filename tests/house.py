"""The house as its imports draw it: which module knows which, and the order of its rooms."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from palestra.runtime.starting import without_garbage_collection

T = TypeVar("T")
HOUSE = Path(__file__).parent.parent / "palestra"
# Who may know whom: a room knows itself and those after it. A file at the root is a room of its own.
ORDER = (
    ("__main__",),
    ("cli",),
    ("commands", "testing"),
    ("serving",),
    ("kinds",),
    ("report",),
    ("sweeps",),
    ("training",),
    ("scaling",),
    ("run",),
    ("callbacks",),
    ("text",),
    ("algorithms",),
    ("evaluation",),
    ("players",),
    ("rollouts",),
    ("models",),
    ("nets",),
    ("games",),
    ("data",),
    ("recording",),
    ("storage",),
    ("buffers",),
    ("optimizers", "schedules", "randomness"),
    ("runtime",),
    ("config",),
)


def module_name(path: Path) -> str:
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(HOUSE.rglob("*.py"))}


class PerModule(Mapping[str, T]):
    """What a function says of each module, by the module's name. It is asked when it is looked up, and once."""

    def __init__(self, function: Callable[[str], T]) -> None:
        self.function = cache(function)

    def __getitem__(self, module: str) -> T:
        return self.function(module)

    def __iter__(self) -> Iterator[str]:
        return iter(PATHS)

    def __len__(self) -> int:
        return len(PATHS)

    def forget(self) -> None:
        self.function.cache_clear()


def parsed(module: str) -> ast.Module:
    with without_garbage_collection():  # it would search all trees so far, again and again
        return ast.parse(PATHS[module].read_text())


TREES = PerModule(parsed)  # those that were asked for stay in memory, 90 MB of them, until `forget`


def imports_of(module: str, tree: ast.Module) -> set[str]:
    """The full names of the modules that a module imports, anywhere and for type checkers alone, too; also by name, as
    text. Of `from a import b`, a.b where that is a module of ours."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = {name for name in names if name in PATHS}
            found |= ours if len(ours) == len(names) else ours | {node.module}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found |= {node.value} & PATHS.keys()
    return found - {module}


IMPORTS = PerModule(lambda module: imports_of(module, parsed(module)))


def rank(module: str) -> int:
    """The place of a module's room in ORDER."""
    room = module.split(".")[1]
    return next(number for number, rooms in enumerate(ORDER) if room in rooms)


def code_lines(source: str) -> int:
    """Count the lines on which a token stands, docstrings and texts that stand alone left out."""
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
