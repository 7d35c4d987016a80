"""Works on a sweep: finds the one that its arguments mean, works on it, and says what was found."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.shell import Quiet, Trust, console, parse_numbers, refuse, say

if TYPE_CHECKING:
    from palestra.runs.base import BaseRunConfig
    from palestra.sweeps.config import SweepConfig
    from palestra.sweeps.folder import SweepFolder
    from palestra.sweeps.progress import SweepProgress


def sweep(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|SWEEP|CONFIG",
            help="a sweep's file, the folder of a sweep to work on, or a config and key=a,b,c for a grid of its runs",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="dotted.key=value in place of what the sweep's file says; of a config: key=a,b,c"),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="the sweep's folder [runs/NAME-N]")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="of a grid by hand: the seeds of each point, as 0..4 or 0,3,7")
    ] = None,
    at: Annotated[int | None, typer.Option(help="of a grid by hand: so many runs at a time [the cores]", min=1)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only say how many runs it is, and about how long, from a short run")
    ] = False,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Search for better hyperparameters: many runs of a config, chosen by Optuna."""
    with one_line_errors(quiet):
        from palestra.commands import dry_sweep
        from palestra.config import ConfigError, checking
        from palestra.config.own_modules import reading_file
        from palestra.sweeps.folder import is_sweep_folder

        shown = silent if quiet else console
        if not dry_run:
            work_on(open_sweep(file, overrides or [], run, seeds, at, trust, shown), shown)
            return
        if is_sweep_folder(Path(file)):
            message = f"expected a sweep's file or a config, got {file}, a sweep that has begun"
            raise ConfigError.at("--dry-run", message)
        with checking(), reading_file(Path(file)):
            config, bases, _ = read_new(file, overrides or [], seeds, at)
            for line in dry_sweep.dry_run(config, bases):
                say(line)


def open_sweep(
    file: str,
    overrides: Sequence[str],
    run: Path | None,
    seeds: str | None,
    at: int | None,
    trust: bool,
    shown: Console,
) -> Any:
    """Open the sweep of a file or a folder, or a grid by hand over a config. Raises ConfigError, RunFolderError."""
    from palestra.config import ConfigError, reading_own
    from palestra.config.own_modules import reading_file
    from palestra.sweeps.folder import SweepFolder, default_path, is_sweep_folder, require_optuna

    require_optuna()
    from palestra.sweeps.display import make_sweep_display
    from palestra.sweeps.sweep import Sweep

    display = make_sweep_display(shown)
    path = Path(file)
    if is_sweep_folder(path):
        refuse({"--run": run, "--seeds": seeds, "--at": at}, f"{path} is a sweep already")
        return Sweep.open(path, overrides, display, trust)
    with reading_own(), reading_file(path):
        config, bases, name = read_new(file, overrides, seeds, at)
        folder = run or default_path(name)
        if not is_sweep_folder(folder):
            return Sweep.create(folder, config, bases, display)
        change = f"palestra sweep {folder} KEY=VALUE changes a budget or a place"
        if (there := _differing_key(SweepFolder.open(folder), config, bases)) is not None:
            raise ConfigError.at(
                "--run", f"expected a new folder, got {folder}, a sweep with another {there}; {change}"
            )
    return Sweep.open(folder, [], display, trust=False)  # its place, which may differ, may be a stranger's


def read_new(
    file: str, overrides: Sequence[str], seeds: str | None, at: int | None
) -> "tuple[SweepConfig, dict[str, BaseRunConfig], str]":
    """Read the sweep of a file, or make a grid by hand over a config; returns it, its bases by name, and its name."""
    from palestra.config import load_yaml
    from palestra.sweeps.config import is_sweep, read_sweep
    from palestra.sweeps.plan import read_bases

    path = Path(file)
    data = load_yaml(path) if path.is_file() else None
    if data is None or not is_sweep(data):
        return _grid_by_hand(file, overrides, seeds, at)
    refuse({"--seeds": seeds, "--at": at}, f"{path} says it (seeds=[0,1], place.cores=2)")
    config = read_sweep(data, overrides)
    return config, read_bases(config.base, path.parent), path.stem


def _differing_key(folder: "SweepFolder", config: "SweepConfig", bases: "dict[str, BaseRunConfig]") -> str | None:
    """Return the first key in which the sweep of a folder differs from another one in a way that changes its trials."""
    from palestra.config import load_yaml, render
    from palestra.storage.disk import plain_path
    from palestra.sweeps.plan import Plan

    ours = Plan(config, bases).config.model_dump()
    theirs = folder.data()
    for key in ours.keys() - {"base", "place"}:
        if ours[key] != theirs.get(key):
            return key
    there = {Path(file).stem for file in theirs["base"]}
    data = {name: load_yaml(render(base, type(base))) for name, base in bases.items()}
    is_same = there == bases.keys() and all(
        load_yaml(plain_path(folder.bases, f"{name}.yml")) == data[name] for name in data
    )
    return None if is_same else "base"


def _grid_by_hand(
    file: str, words: Sequence[str], seeds: str | None, at: int | None
) -> "tuple[SweepConfig, dict[str, BaseRunConfig], str]":
    """Make a grid over the listed values of keys; keys with a single value are the same in all runs."""
    from palestra.commands.starting import find_config, naming_remedies
    from palestra.config import ConfigError, load_yaml
    from palestra.config.files import full_key
    from palestra.runs.kinds import read_config
    from palestra.sweeps.config import read_sweep
    from palestra.sweeps.plan import starting_grid

    names = file.split(",")
    game = [word for word in words if "=" not in word][:1]
    listed = {key.strip(): _values(text) for word in words if "=" in word for key, _, text in [word.partition("=")]}
    fixed = [word for word in words if "=" in word and len(listed[word.partition("=")[0].strip()]) == 1]
    bases: dict[str, BaseRunConfig] = {}
    for name in names:
        found = find_config(name, [*game, *fixed])
        with naming_remedies(found):
            base = read_config(found.source, found.overrides)
        if not base.measured():
            raise ConfigError.at(name, "expected a run with evaluations, got another")
        if found.name in bases:
            raise ConfigError.at(name, f"expected configs of different names, got {found.name} twice")
        bases[found.name] = base
    usual, first = starting_grid(bases, at), next(iter(bases.values()))
    space: dict[str, Any] = {}
    for key, texts in listed.items():
        if len(texts) > 1 and not all(texts):
            raise ConfigError.at(key, f"expected a value before and after each comma, got {','.join(texts)!r}")
        if len(texts) > 1:
            key = full_key(first.model_dump(), key) if len(bases) == 1 else key
            space[key] = {"name": "choice", "values": []}
            for text in texts:
                try:
                    space[key]["values"].append(load_yaml(f"value: {text}")["value"])
                except ConfigError as error:
                    message = f"expected a value, got {text!r}: {error.errors[0].message}"
                    raise ConfigError.at(key, message) from None
    if not space and len(bases) == 1:
        raise ConfigError.at(
            file, "expected a key with several values, as gamma=0.9,0.99, or several configs, got neither"
        )
    chosen = {} if seeds is None else {"seeds": parse_numbers(seeds, "--seeds", "seed")}
    return read_sweep(usual | {"space": space} | chosen, []), bases, f"{'-'.join(bases)}-sweep"


def _values(text: str) -> list[str]:
    """Split a list without brackets into its values; commas inside brackets do not part them."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return values


def work_on(sweep: Any, shown: Console, retry_failed: bool = False) -> None:
    """Work on a sweep, and leave the process with 128 + n if signal n stopped it, with 1 if a trial has failed."""
    say(f"{sweep.folder.path}: {sweep.plan.extent_text(sweep.place.num_runs)}", shown)
    for note in sweep.plan.notes():
        say(note, shown)
    if retry_failed:
        num = sweep.retry_failed()
        again = f"{num:,} trial{'s' * (num != 1)} that failed begin{'s' * (num == 1)} again"
        say(again if num else "no trial has failed", shown)
    received = sweep.work()
    path = shlex.quote(str(sweep.folder.path))
    if received is not None:
        say(f"stopped; to go on: palestra resume {path}", shown)
        raise typer.Exit(128 + received)
    progress = sweep.progress()
    say(summary(progress, sweep.folder.best), shown)
    if num := len(sweep.failed()):
        say(f"to run {'it' if num == 1 else 'them'} again: palestra resume {path} --retry-failed", shown)
    if progress.counts.get("failed"):
        raise typer.Exit(1)


def summary(progress: "SweepProgress", best_config: Path) -> str:
    """Say how many trials ended how, which is the best one, and why the first ones failed."""
    from palestra.sweeps.display import counts_text, failures_text, point_text, seeds_text

    num = sum(progress.counts.values())
    lines = [f"{progress.path}: {num} trial{'s' * (num != 1)}, {counts_text(progress)}"]
    if (best := progress.best) is not None:
        seeds = f" ({seeds})" if (seeds := seeds_text(best)) else ""
        value = f"trial {best.number}, {progress.measure} {best.value:.6g}{seeds}"
        lines.append(f"best: {', '.join(filter(None, [value, point_text(best.point)]))}")
        lines.append(f"its config: {best_config}")
    return "\n".join([*lines, *failures_text(progress)])
