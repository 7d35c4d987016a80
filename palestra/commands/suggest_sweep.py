"""What `palestra config sweep` prints, and the sweep of a grid by hand: complete sweeps over given configs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, ConfigErrorItem, load_yaml
from palestra.config.errors import nearest
from palestra.runs.config import RunConfig, read_config
from palestra.runs.shipped_configs import is_path, shipped_configs
from palestra.sweeps.config import SweepConfig, is_sweep, read_sweep
from palestra.sweeps.places import available_cores
from palestra.sweeps.plan import Plan

USUAL_BASE = "ppo-cartpole"
GAMMAS = [0.9, 0.95, 0.98, 0.99, 0.995, 0.999]
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {},
    "random": {},
    "tpe": {"startup_trials": 10, "ei_candidates": 24, "multivariate": True, "group": False, "constant_liar": True},
}
STORAGES: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "journal": {"path": None, "study": "sweep"},
    "database": {"password_from": None, "study": "sweep"},
}


def suggested_sweep(words: Sequence[str]) -> SweepConfig:
    """A sweep over learning rates, discounts and entropy coefficients of a config, with TPE and successive halving.
    words: the config, by file or name, and overrides of the sweep; search.name, pruning.name and storage.name bring the
    usual keys of these. Raises ConfigError."""
    files = [word for word in words if "=" not in word] or [USUAL_BASE]
    bases = read_bases(files, Path())
    data = {name: base.model_dump() for name, base in bases.items()}
    first = next(iter(bases.values()))
    overrides = [word for word in words if "=" in word]
    named = dict(word.split("=", 1) for word in overrides)
    search = named.get("search.name", "tpe")
    is_grid = search == "grid"
    space = {
        key: dimension for each in data.values() for key, dimension in _dimensions(each, first.learners(), is_grid)
    }
    changes: dict[str, Any] = {"base": files, "seeds": [0, 1, 2], "space": space}
    changes["search"] = {"name": search, **SEARCHES.get(search, {})}
    if search == "tpe":
        changes["search"]["group"] = len(bases) > 1  # which have different keys
    if (pruning := _pruning(named.get("pruning.name"), list(bases.values()))) is not None:
        changes["pruning"] = pruning
    if (storage := named.get("storage.name")) is not None:
        changes["storage"] = {"name": storage, **STORAGES.get(storage, {})}
    changes["budget"] = {"trials": None if is_grid else 30, "env_steps": None, "minutes": None}
    config = read_sweep(usual_sweep(bases, None) | changes, overrides)
    Plan(config, bases)
    return config


def usual_sweep(bases: Mapping[str, RunConfig], at: int | None) -> dict[str, Any]:
    """What a sweep over some configs has where nobody said anything else: all points of a space that is still empty,
    on all cores. at: how many runs at a time; None: as many as there are cores."""
    name, first = next(iter(bases.items()))
    if first.best is None:
        raise ConfigError.at("best", f"expected a mapping in {name}, which says what a sweep compares, got null")
    threads = max(base.execution.num_threads for base in bases.values())
    return {
        "seed": 0,
        "base": list(bases),
        "space": {},
        "constraints": [],
        "seeds": [first.seed],
        "objective": {**first.best.model_dump(), "of": "last"},
        "search": {"name": "grid"},
        "pruning": None,
        "budget": {"trials": None, "env_steps": None, "minutes": None},
        "max_restarts": 3,
        "place": {
            "name": "local",
            "cores": max(available_cores(), threads) if at is None else at * threads,
            "cores_per_run": threads,
            "gpus": [],
            "runs_per_gpu": 1,
        },
        "storage": {"name": "sqlite"},
    }


def read_bases(files: Sequence[str], beside: Path) -> dict[str, RunConfig]:
    """The bases of a sweep by name. beside: the folder in which their files are looked for before the shipped ones.
    Raises ConfigError with the errors of all."""
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
            if not isinstance(base, RunConfig):
                raise ConfigError.at("", f"expected a run in which players play, got {file}")
            if path.stem in found:
                raise ConfigError.at("", f"expected files of different names, got {path.stem} twice")
            found[path.stem] = base
        except ConfigError as error:
            errors += [
                ConfigErrorItem(f"base.{number}{': ' * bool(item.path)}{item.path}", item.message)
                for item in error.errors
            ]
    if errors:
        raise ConfigError(errors)
    return found


def _dimensions(
    data: Mapping[str, Any], learners: Sequence[str], is_grid: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    for player in learners:
        for key, value in _numbers(data["players"][player], f"players.{player}"):
            parent, _, last = key.rpartition(".")
            what = parent.rpartition(".")[2] if last in ("value", "initial") else last
            if what.endswith(("learning_rate", "entropy_coefficient")) and value > 0:
                low, high = _round(value / 10), _round(value * 10)
                choice = {"name": "choice", "values": [low, value, high]}
                yield key, choice if is_grid else {"name": "log", "low": low, "high": high}
            elif what == "gamma" and 0 < value < 1:
                yield key, {"name": "choice", "values": sorted({value, *GAMMAS})}


def _numbers(data: Any, path: str) -> Iterator[tuple[str, float]]:
    """The numbers in plain data, by dotted key."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _numbers(value, f"{path}.{key}")
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path, data


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _pruning(name: str | None, bases: Sequence[RunConfig]) -> dict[str, Any] | None:
    """The usual section of a pruner; None without a name: successive halving from the first evaluation on, or null if
    the evaluations do not come by steps of one unit."""
    if name == "wilcoxon":
        return {"name": name, "p_threshold": 0.1, "startup_seeds": 2}
    first, units = [], set()
    for base in bases:
        assert base.best is not None
        [evaluation] = [each for each in base.evaluations if each.name == base.best.evaluation]
        if evaluation.interval is None or evaluation.interval.unit == "minutes":
            return None if name is None else {"name": name}
        first.append(math.ceil(evaluation.interval.every))
        units.add(evaluation.interval.unit)
    if name is None and len(units) > 1:
        return None
    keys: dict[str, dict[str, Any]] = {
        "median": {"num_seeds": 1, "startup_trials": 5, "warmup_steps": max(first)},
        "successive_halving": {"num_seeds": 1, "min_resource": max(first), "reduction_factor": 3},
    }
    name = name or "successive_halving"
    return {"name": name, **keys.get(name, {})}
