"""Writes the pages that the site is built from to build/pages.

`python -m docs.website` writes them once; zensical.toml says what Zensical makes of them. With --serve it shows the
site at http://localhost:8000, and writes what changes until Ctrl-C. `make docs` and `make docs-serve` call it.
"""

import subprocess
import sys
import time

from docs.website.layout import PAGES, ROOT
from docs.website.site import made

WATCHED = ("*.md", "docs/*.md", "docs/images/*", "benchmarks/*.md", "docs/website/*.css")


def write() -> None:
    """Write what has changed, and remove what is no longer made: Zensical builds changed pages alone."""
    pages, files = made()
    contents = {name: text.encode() for name, text in pages.items()}
    contents |= {name: (ROOT / file).read_bytes() for name, file in files.items()}
    for name, content in contents.items():
        path = PAGES / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in PAGES.rglob("*"):
        if path.is_file() and path.relative_to(PAGES).as_posix() not in contents:
            path.unlink()


def last_change() -> float:
    """When a document was changed last."""
    return max(path.stat().st_mtime for pattern in WATCHED for path in ROOT.glob(pattern))


def serve() -> None:
    """Show the site while one writes documents. Changes of code and of docstrings need a new start."""
    seen = last_change()
    write()
    server = subprocess.Popen([sys.executable, "-m", "zensical", "serve"], cwd=ROOT)
    try:
        while server.poll() is None:
            time.sleep(1.0)
            if (now := last_change()) != seen:
                seen = now
                write()
    except KeyboardInterrupt:
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        write()
