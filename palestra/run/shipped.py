"""What comes with palestra, configs and trained players, and the file for which a name stands, in commands and Python.

`palestra:polyhedra` names a run of which only the players are left, and `palestra:polyhedra-host` one of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from palestra.config import ConfigError
from palestra.config.errors import nearest_hint
from palestra.storage.disk import RunFolderError

FILE_ENDINGS = (".yml", ".yaml", ".json")


def shipped_configs() -> dict[str, Path]:
    """The config files of runs that come with palestra, by name."""
    return {path.stem: path for path in sorted(p for folder in _config_folders() for p in folder.glob("*.yml"))}


def shipped_tournaments() -> dict[str, Path]:
    """The config files of tournaments that come with palestra, by name."""
    return {path.stem: path for folder in _config_folders() for path in sorted(folder.glob("tournaments/*.yml"))}


def _config_folders() -> tuple[Path, Path]:
    """The folders of configs, in an installed package and in a checkout."""
    package = Path(__file__).parents[1]
    return package / "configs", package.parent / "configs"


def named_file(name: str | Path) -> Path | None:
    """The file for which a name stands; None if there is none.

    It is NAME in the working directory; if palestra ships a config of that name, else NAME.yml there; else the shipped
    config.
    """
    shipped = shipped_configs()
    candidates = [Path(name), *([Path(f"{name}.yml"), shipped[str(name)]] if str(name) in shipped else [])]
    return next((path for path in candidates if path.is_file()), None)


def file_of(name: str | Path) -> Path:
    """The file of the config, or of the tournament, for which a name stands. Raises ConfigError if there is none."""
    folder = Path(name) if Path(name).exists() else None  # for which reading it has a message
    if (found := named_file(name) or folder or shipped_tournaments().get(str(name))) is not None:
        return found
    why = why_no_file(str(name))
    if not is_path(str(name)) and not Path(f"{name}.yml").is_file():
        shipped = shipped_configs()
        why = f"expected a file or one of the shipped configs ({', '.join(shipped)}), got {str(name)!r}"
        why += nearest_hint(str(name), shipped)
    raise ConfigError.at(str(name), why)


def is_path(name: str) -> bool:
    """Whether a text is written as the path of a file, not as the name of a config."""
    return "/" in name or name.endswith(FILE_ENDINGS)


def why_no_file(name: str) -> str:
    """Say that there is no such file, and what may be meant."""
    missing = f"there is no such file in {Path(name).parent.absolute()}"
    if (with_ending := Path(f"{name}.yml")).is_file():
        return f"{missing}; did you mean {with_ending}?"
    stem = Path(name).stem
    return f"{missing}; palestra ships a config under the name {stem}" if stem in shipped_configs() else missing


PREFIX = "palestra:"
FOLDER = Path(__file__).parents[1] / "trained"


class NamedRun(NamedTuple):
    """The folder of a run, and the player that its name names; None if it names none."""

    folder: Path
    player: str | None


def is_shipped(run: str | Path) -> bool:
    """Whether a run is named as one that palestra ships."""
    return str(run).startswith(PREFIX)


def find_run(run: str | Path) -> NamedRun:
    """A run by its folder, or by `palestra:NAME` or `palestra:NAME-PLAYER`.

    Raises RunFolderError for an unknown name.
    """
    if not is_shipped(run):
        return NamedRun(Path(run), None)
    name = str(run).removeprefix(PREFIX)
    known = sorted(path.name for path in FOLDER.iterdir())
    for shipped in known:
        if name == shipped or name.startswith(f"{shipped}-"):
            return NamedRun(FOLDER / shipped, name.removeprefix(shipped).removeprefix("-") or None)
    expected = ", ".join(PREFIX + shipped for shipped in known)
    raise RunFolderError(f"expected a run that palestra ships ({expected}), or one of its players, got {str(run)!r}")


def shipped_of(algorithm: str, shipped: Mapping[str, Path]) -> str:
    """Say which shipped configs are for an algorithm, as the end of a message."""
    own = ", ".join(stem for stem in shipped if stem.split("-")[0] == algorithm)
    return f"; shipped configs: {own or 'none'}"
