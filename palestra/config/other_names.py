"""Knows what other libraries call the keys of a config, from docs/coming-from.md, which the package contains."""

import re
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from palestra.config.places import fields_under

PACKAGE = Path(__file__).parents[1]
PAGES = (PACKAGE / "coming-from.md", PACKAGE.parent / "docs" / "coming-from.md")  # installed, and in a checkout
CODE = re.compile(r"`([^`]+)`")
OURS = re.compile(r"([a-z_]\w*(?:\.\w+)*)(?:=\S+)?")


def ours_of(key: str, model: type[BaseModel] | None) -> tuple[str, ...]:
    """Our keys for what another library calls by the last word of `key`; () if none does, or if we call it so, too.

    model: that of the file, which may have none of these keys; None: any.
    """
    ours = other_names().get(name := _name(key), ())
    if name in (each.rpartition(".")[2] for each in ours):
        return ()
    if model is not None and ours:
        known = {field for _, field, _ in fields_under(model)}
        ours = tuple(each for each in ours if each.rpartition(".")[2] in known)
    return ours


@cache
def other_names() -> dict[str, tuple[str, ...]]:
    """Our keys, by each name that another library has for them; both without the keys above them in a file.

    One name may mean several of our keys: they share its meaning, or stand for it in different files.
    """
    page = next((page for page in PAGES if page.is_file()), None)
    found: dict[str, tuple[str, ...]] = {}
    for line in [] if page is None else page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            *cells, last = line.strip("|").split("|")
            ours = [match and match[1] for match in map(OURS.fullmatch, CODE.findall(_before_colon(last)))]
            for cell in cells:
                theirs = list(map(_name, CODE.findall(cell)))
                if len(ours) == len(theirs):
                    meant: list[tuple[str | None, ...]] = [(key,) for key in ours]
                else:
                    meant = [tuple(ours)] * len(theirs) if 1 in (len(ours), len(theirs)) else []
                for name, keys in zip(theirs, meant, strict=False):
                    known = tuple(key for key in keys if key and not key.startswith("palestra."))
                    if name and known:
                        found.setdefault(name, known)
    return found


def _before_colon(cell: str) -> str:
    """The part of a table's cell before its explanation, which follows a colon."""
    return re.split(r"`:", cell)[0] + "`" if "`:" in cell else cell


def _name(code: str) -> str:
    """The bare name in what another library writes, such as `--num-envs`, `optim.args.lr` or `ent_coef="auto"`."""
    name = re.split(r"[=( ]", code.removeprefix("--"))[0].rpartition(".")[2].replace("-", "_")
    return name if name.isidentifier() else ""
