"""Where things lie: the repository, the pages that the site is built from, and which page shows which file."""

import posixpath
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"

Pages = dict[str, str]
"""the Markdown of pages, by their paths in the site"""


def relative(target: str, page: str) -> str:
    """The link from a page to a place in the site."""
    path, hash_, anchor = target.partition("#")
    return posixpath.relpath(path, posixpath.dirname(page)) + hash_ + anchor


def file_of(thing: type) -> str:
    """The file in which a class of palestra is defined, by its path in the repository."""
    return Path(str(sys.modules[thing.__module__].__file__)).relative_to(ROOT).as_posix()
