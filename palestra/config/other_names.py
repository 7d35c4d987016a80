"""What other libraries call the keys of a config: the tables of docs/coming-from.md, which the package contains."""

import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PAGES = (PACKAGE / "coming-from.md", PACKAGE.parent / "docs" / "coming-from.md")  # installed, and in a checkout
CODE = re.compile(r"`([^`]+)`")
OURS = re.compile(r"([a-z_]\w*(?:\.\w+)*)(?:=\S+)?")


@cache
def other_names() -> dict[str, str]:
    """Our key by each name that another library has for it, both without what stands above them in a file."""
    page = next((page for page in PAGES if page.is_file()), None)
    found: dict[str, str] = {}
    for line in [] if page is None else page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            *cells, last = line.strip("|").split("|")
            ours = [match and match[1] for match in map(OURS.fullmatch, CODE.findall(_before_colon(last)))]
            for cell in cells:
                theirs = list(map(_name, CODE.findall(cell)))
                for name, key in zip(theirs, ours * len(theirs) if len(ours) == 1 else ours, strict=False):
                    if len(ours) in (1, len(theirs)) and name and key and not key.startswith("palestra."):
                        found.setdefault(name, key)
    return found


def _before_colon(cell: str) -> str:
    """What comes before an explanation."""
    return re.split(r"`:", cell)[0] + "`" if "`:" in cell else cell


def _name(code: str) -> str:
    """The bare name in what another library writes: of `--num-envs`, `optim.args.lr`, `ent_coef="auto"`."""
    name = re.split(r"[=( ]", code.removeprefix("--"))[0].rpartition(".")[2].replace("-", "_")
    return name if name.isidentifier() else ""
