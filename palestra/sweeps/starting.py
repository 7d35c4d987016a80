"""First sweeps: what `palestra config sweep` prints, and the sweep of a grid by hand."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, ConfigErrorItem, load_yaml
from palestra.config.errors import nearest
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.runs.base import BaseRunConfig
from palestra.runs.kinds import read_config
from palestra.runs.shipped_configs import is_path, shipped_configs
from palestra.runs.starting import remedies
from palestra.sweeps.config import SweepConfig, is_sweep, read_sweep
from palestra.sweeps.plan import Plan

USUAL_BASE = "ppo-cartpole"
NAMED = re.compile(r"(search|pruning|place|storage)(?:\.name)?\s*=\s*([\w.:]+)")


def starting_sweep(words: Sequence[str]) -> SweepConfig:
    """Make a sweep over learning rates, discounts and entropy coefficients of configs, as its parts find usual.

    words: the configs, by file or name, and overrides of the sweep; parts that these name bring their usual keys.
    Raises ConfigError.
    """
    files = [word for word in words if "=" not in word] or [USUAL_BASE]
    overrides = [word for word in words if "=" in word]
    bases = read_bases(files, Path())
    parts = {match[1]: match[2] for word in overrides if (match := NAMED.fullmatch(word))}
    data = completed({"base": files, **parts}, Place(SweepConfig), bases)
    with remedies(data, SweepConfig):
        config = read_sweep(data, overrides)
    Plan(config, bases)
    return config


def starting_grid(bases: Mapping[str, BaseRunConfig], at: int | None) -> dict[str, Any]:
    """Return a grid over configs, of a space that is still empty.

    at: how many runs at a time; None: as many as there are cores.
    """
    first, threads = next(iter(bases.values())), max(base.cores() for base in bases.values())
    place = {} if at is None else {"place": {"name": "local", "cores": at * threads}}
    said = {"space": {}, "seeds": [first.seed], "search": "grid", "pruning": None, **place}
    data: dict[str, Any] = completed(said, Place(SweepConfig), bases)
    return data


def read_bases(files: Sequence[str], beside: Path) -> dict[str, BaseRunConfig]:
    """Read the bases of a sweep; returns them by name.

    beside: the folder in which their files are looked for before the shipped ones. Raises ConfigError with the errors
    of all.
    """
    shipped = {path.stem: path for path in shipped_configs()}
    found, errors = {}, []
    for number, file in enumerate(files):
        path = beside / file
        if not path.is_file():
            path = shipped.get(file, path)
        try:
            if not path.is_file() and not is_path(file):
                near = nearest(file, shipped)
                hint = f"; did you mean {near}?" if near else ""
                raise ConfigError.at("", f"expected a file or one of the shipped configs, got {file!r}{hint}")
            if not path.exists() and path != Path(file):
                whence = f"paths in base count from the folder of the sweep's file, {beside}"
                raise ConfigError.at(str(path), f"there is no such file in {path.parent.absolute()}; {whence}")
            if path.is_file() and is_sweep(load_yaml(path)):
                raise ConfigError.at("", f"expected the config of a run, got a sweep, {file}")
            base = read_config(path)
            if not base.measured():
                raise ConfigError.at("", f"expected a run with evaluations, got {file}")
            if path.stem in found:
                raise ConfigError.at("", f"expected files of different names, got {path.stem} twice")
            found[path.stem] = base
        except ConfigError as error:
            errors += [
                ConfigErrorItem(f"base.{number}{': ' * bool(item.path)}{item.path}", item.message)
                for item in error.errors
            ]
    ConfigError.require_none(errors)
    return found
