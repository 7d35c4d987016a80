"""What `palestra sweep` does: finds the sweep that its arguments mean, works on it, and says what was found."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from palestra.commands.named_configs import find_config
from palestra.commands.seeds import parse_seeds
from palestra.commands.suggest_config import shipped_configs
from palestra.config import ConfigError, ConfigErrorItem, load_yaml, trusting
from palestra.config.files import full_key
from palestra.runs.config import RunConfig, read_config
from palestra.sweeps.config import SweepConfig, is_sweep
from palestra.sweeps.folder import SweepFolder, default_path, is_sweep_folder
from palestra.sweeps.places import available_cores
from palestra.sweeps.storages import require_optuna


def open_sweep(
    file: str,
    overrides: Sequence[str],
    run: Path | None,
    seeds: str | None,
    at: int | None,
    trust: bool,
    shown: Console,
) -> Any:
    """The sweep of a file or a folder, or a grid by hand over a config. Raises ConfigError, RunFolderError."""
    require_optuna()
    from palestra.sweeps.sweep import Sweep

    def tell(line: str) -> None:
        shown.print(line, soft_wrap=True, markup=False)

    path = Path(file)
    if is_sweep_folder(path):
        if run is not None or seeds is not None or at is not None:
            raise _error("--run, --seeds, --at", f"expected none, because {path} is a sweep already, got one of them")
        return Sweep.open(path, overrides, tell, trust)
    with trusting():  # the file is the user's own
        return _open_new(file, overrides, run, seeds, at, tell)


def _open_new(
    file: str,
    overrides: Sequence[str],
    run: Path | None,
    seeds: str | None,
    at: int | None,
    tell: Callable[[str], None],
) -> Any:
    """A new sweep of a file, or the one in the folder `run` if it is of the same file."""
    from palestra.sweeps.sweep import Sweep, read_sweep

    path = Path(file)
    data = load_yaml(path) if path.is_file() else None
    if data is not None and is_sweep(data):
        if seeds is not None or at is not None:
            raise _error(
                "--seeds, --at", f"expected none, because {path} says both (seeds=[0,1], place.cores=2), got one"
            )
        config = read_sweep(data, overrides)
        bases = _read_bases(config.base, path.parent)
        name = path.stem
    else:
        config, bases, name = _grid_by_hand(file, overrides, seeds, at)
    folder = run or default_path(name)
    if is_sweep_folder(folder):
        if (there := _differing_key(SweepFolder.open(folder), config, bases)) is not None:
            raise _error("--run", f"expected a new folder, got {folder}, a sweep with another value of {there}")
        return Sweep.open(folder, [], tell, trust=False)
    return Sweep.create(folder, config, bases, tell)


def _differing_key(folder: SweepFolder, config: SweepConfig, bases: dict[str, RunConfig]) -> str | None:
    """The first key in which the sweep of a folder differs from another one, as far as that changes its trials."""
    from palestra.sweeps.sweep import Plan

    ours = Plan(config, bases).config.model_dump()
    theirs = load_yaml(folder.config)
    for key in ours.keys() - {"base", "place", "storage"}:
        if ours[key] != theirs.get(key):
            return key
    for name, base in bases.items():
        if not (path := folder.bases.path / f"{name}.yml").is_file() or read_config(path) != base:
            return "base"
    return None


def _read_bases(files: Sequence[str], beside: Path) -> dict[str, RunConfig]:
    """The bases of a sweep by name. Raises ConfigError with the errors of all."""
    shipped = {path.stem: path for path in shipped_configs()}
    found, errors = {}, []
    for number, file in enumerate(files):
        path = beside / file
        if not path.is_file():
            path = shipped.get(file, path)
        try:
            base = read_config(path)
            if not isinstance(base, RunConfig):
                raise _error("", f"expected a run in which players play, got {file}")
            if path.stem in found:
                raise _error("", f"expected files of different names, got {path.stem} twice")
            found[path.stem] = base
        except ConfigError as error:
            errors += [ConfigErrorItem(f"base.{number}: {item.path}", item.message) for item in error.errors]
    if errors:
        raise ConfigError(errors)
    return found


def _grid_by_hand(
    file: str, words: Sequence[str], seeds: str | None, at: int | None
) -> tuple[SweepConfig, dict[str, RunConfig], str]:
    """A grid over the listed values of keys; keys with a single value are the same in all runs."""
    names = file.split(",")
    game = [word for word in words if "=" not in word][:1]
    listed = {key.strip(): _values(text) for word in words if "=" in word for key, _, text in [word.partition("=")]}
    fixed = [word for word in words if "=" in word and len(listed[word.partition("=")[0].strip()]) == 1]
    bases: dict[str, RunConfig] = {}
    for name in names:
        found = find_config(name, [*game, *fixed])
        source, changes = found.config, found.overrides
        base = read_config(source, changes)
        if not isinstance(base, RunConfig):
            raise _error(name, "expected a run in which players play, got another")
        bases[found.name] = base
    first = next(iter(bases.values()))
    if first.best is None:
        raise _error("best", f"expected a mapping in {names[0]}, which says what a grid by hand compares, got null")
    space = {}
    for key, texts in listed.items():
        if len(texts) > 1:
            key = full_key(first.model_dump(), key) if len(bases) == 1 else key
            space[key] = {"name": "choice", "values": [load_yaml(f"value: {text}")["value"] for text in texts]}
    if not space and len(bases) == 1:
        raise _error(file, "expected a key with several values, as gamma=0.9,0.99, or several configs, got neither")
    threads = max(base.execution.num_threads for base in bases.values())
    config = {
        "seed": 0,
        "base": list(bases),
        "space": space,
        "constraints": [],
        "seeds": [first.seed] if seeds is None else parse_seeds(seeds),
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
    from palestra.sweeps.sweep import read_sweep

    return read_sweep(config, []), bases, f"{'-'.join(bases)}-sweep"


def _values(text: str) -> list[str]:
    """The values in a list without brackets; commas inside brackets do not part them."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return values


def work_on(sweep: Any, quiet: bool) -> None:
    """Work on a sweep, and leave the process with 128 + n if signal n stopped it."""
    received = sweep.work()
    path = shlex.quote(str(sweep.folder.path))
    if received is not None:
        sweep.tell(f"stopped; to go on: palestra resume {path}")
        raise typer.Exit(128 + received)
    sweep.tell(summary(sweep))


def summary(sweep: Any) -> str:
    """How many trials ended how, and the best one."""
    from palestra.sweeps.study import best_of, state_of

    trials = sweep.study.trials()
    states = [state_of(trial) for trial in trials]
    counts = ", ".join(
        f"{states.count(name)} {name}"
        for name in ("succeeded", "failed", "pruned", "skipped", "running")
        if name in states
    )
    lines = [f"{sweep.folder.path}: {len(trials)} trials, {counts}"]
    best = best_of(trials, sweep.config.objective.goal)
    if best is not None:
        point = ", ".join(f"{key}={value}" for key, value in best.params.items())
        lines.append(f"best: trial {best.number}, {sweep.config.objective.measure} {best.value:.6g}, {point}")
        lines.append(f"its config: {sweep.folder.best}")
    return "\n".join(lines)


def _error(path: str, message: str) -> ConfigError:
    return ConfigError([ConfigErrorItem(path, message)])
