"""Files that data come from: a run belongs to their content."""

from collections.abc import Mapping

from palestra.config import ConfigError


def require_same_files(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise ConfigError, with the path "", if a file has changed.

    before, now: the SHA-256 of files by their paths, when the run began and now; a file that only one of them has does
    not count.
    """
    for path, sha256 in before.items():
        if now.get(path, sha256) != sha256:
            expected = f"expected {path!r} as it was when the run began (SHA-256 {sha256[:12]}...)"
            message = f"{expected}, got another content ({now[path][:12]}...); put that file back, or begin a new run"
            raise ConfigError.at("", message)
