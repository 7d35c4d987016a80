"""Extending a run beyond its end, and branching off a checkpoint with other hyperparameters.

Every change of a key during a run stands in its `changes.jsonl`, one JSON object per line: the key, its values
before and after (null where there was none), and the counters at which it changed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palestra.config import Config, ConfigError, ConfigErrorItem, InBranch, render
from palestra.config.errors import cut, shown
from palestra.config.places import Place
from palestra.run.base import BaseRunConfig
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_stored_config
from palestra.storage.disk import writing
from palestra.storage.run_folder import RunFolder


class Change(NamedTuple):
    """A key, as a dotted path, and its values before and after."""

    key: str
    before: Any
    after: Any


def differences(before: Config, after: Config) -> list[Change]:
    """The deepest keys in which two configs differ; None stands for a key that one of them lacks."""
    return list(tree_differences(before.model_dump(), after.model_dump()))


def tree_differences(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """The differences of two trees of dicts and lists, down to numbers and tensors."""
    if isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from tree_differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, Tensor) and isinstance(after, Tensor):
        if before.dtype != after.dtype or not torch.equal(before, after):
            yield Change(path, before, after)
    elif before is not after and (isinstance(before, Tensor) or isinstance(after, Tensor) or before != after):
        yield Change(path, before, after)


def unequal_bits(before: Any, after: Any, path: str) -> Iterator[str]:
    """A line for each difference of two trees, on which the bits of a run depend."""
    for key, was, is_now in tree_differences(before, after, path):
        yield f"{key} was {was}, is {is_now}; equal bits are not promised"


class Reached(NamedTuple):
    """The point that a run has reached. ended: the reason why it ended before its `stop`, if it did."""

    counters: Mapping[str, int]
    ended: str | None


def extend(run: Path, overrides: Sequence[str], reached: Reached | None = None) -> BaseRunConfig:
    """Give a run another end: rewrite its config, and note the change. `Trainer.load(run).fit()` then goes on.

    overrides: such as "stop.after=100000". reached: how far the run has come; None: as far as its last checkpoint.
    Gives the new config. Raises ConfigError for a change of any key but those that its kind names (`extendable`), if
    nothing changes, and for an end that the run has already reached; RunFolderError, CheckpointError.
    """
    folder = RunFolder.open(run)
    with folder.lock():
        config = read_stored_config(folder.config)
        branch = folder.ways_on().to_branch()
        extended = read_stored_config(folder.config, overrides)
        changes = differences(config, extended)
        faults = _faults(changes, config.extendable, "", branch)
        counters, ended = reached or _reached(folder, config)
        count = counters.get(extended.stop.unit)
        if ended is not None and not extended.goes_on_after(ended, config):
            message = f"expected a run that ended by its `stop`, got one that ended early: {ended}"
            message += "" if branch is None else f"; to go on from it, branch off a checkpoint: {branch}"
            faults.append(ConfigErrorItem("stop", message))
        elif not changes:
            faults.append(ConfigErrorItem("stop", "expected another end, as stop.after=100000, got the same"))
        elif ended is None and count is not None and count >= extended.stop.after:
            expected = f"expected more than the {count} {extended.stop.unit} that the run has reached"
            faults.append(ConfigErrorItem("stop.after", f"{expected}, got {extended.stop.after:g}"))
        ConfigError.require_none(faults)
        _rewrite_config(folder, extended, changes, counters)
        if ended is not None:
            with writing(folder.path):
                folder.write_facts(folder.facts().model_copy(update={"ended": None}))
    return extended


def change_bitless(folder: RunFolder, overrides: Sequence[str]) -> None:
    """Change keys of a stored run that change no bit, in its config, and note the change.

    Raises ConfigError for other keys; RunFolderError, CheckpointError.
    """
    with folder.lock():
        config = read_stored_config(folder.config)
        branch = folder.ways_on().to_branch()
        changed = read_stored_config(folder.config, overrides)
        changes = differences(config, changed)
        keys = [f"execution.{key}" for key in config.bitless]
        known = f"only keys that change no bit ({', '.join(keys)})" if keys else "no key of this run"
        ConfigError.require_none(_faults(changes, keys, f"; a resume changes {known}", branch))
        _rewrite_config(folder, changed, changes, {} if begins_anew(folder) else _reached(folder, config).counters)


def _faults(changes: Sequence[Change], free: Sequence[str], why: str, branch: str | None) -> list[ConfigErrorItem]:
    """Find the changes of keys that are not `free`, nor below those. branch: the command that may change them."""
    way = "" if branch is None else f"; to change it, branch off a checkpoint: {branch}"
    return [
        ConfigErrorItem(change.key, f"expected {_text(change.before)}, as before, got {_text(change.after)}{why}{way}")
        for change in changes
        if not is_below(change.key, free)
    ]


def is_below(key: str, keys: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or stands below one."""
    return any(f"{key}.".startswith(f"{each}.") for each in keys)


def _rewrite_config(
    folder: RunFolder, config: BaseRunConfig, changes: Sequence[Change], counters: Mapping[str, int]
) -> None:
    """Write another config into the folder of a run, and note its changes, both or neither."""
    noted = _noted(folder)
    note_changes(folder, changes, counters)
    try:
        folder.root.write(folder.config.name, render(config, type(config)).encode())
    except OSError:
        file = folder.root.append(folder.changes.name)
        file.truncate(len(noted))
        file.close()
        raise


def _reached(folder: RunFolder, config: BaseRunConfig) -> Reached:
    """Read how far a run had come at its last checkpoint. Raises CheckpointError if it has none."""
    latest = Checkpoints(folder, config.output.keep_last, config.output.keep_every).load("latest", check_rows=False)
    with latest.fitting():
        return Reached(latest.counters, latest.state["end_reason"])


def branched_config(checkpoint: Path, overrides: Sequence[str], calls: Sequence[str] = ()) -> BaseRunConfig:
    """The config of a run that branches off a checkpoint.

    calls: those of `set_model`, with the networks that are handed over again. A player may stop learning, and be
    scripted or held fixed instead. Raises ConfigError for other changes that the checkpoint's state does not allow,
    RunFolderError where there is no run.
    """
    folder = RunFolder.of_checkpoint(checkpoint)
    folder.require_rebuildable(calls)
    branched: BaseRunConfig = read_stored_config(folder.config, overrides)
    stored: BaseRunConfig = read_stored_config(folder.config)
    is_same_kind = type(branched) is type(stored)
    faults = [
        ConfigErrorItem(
            change.key,
            f"expected {_text(change.before)}, on which the state in {checkpoint} depends, got {_text(change.after)}",
        )
        for change in differences(stored, branched)
        if is_fixed(change.key, stored) and not (is_same_kind and stored.allows_in_branch(change.key, branched))
    ]
    ConfigError.require_none(faults)
    return branched


def is_fixed(path: str, config: Config) -> bool:
    """Whether the field at a dotted path must stay as it is in a branch. config: that of the run that branches."""
    place = Place(type(config))
    rule = InBranch.FREE
    here: Any = config.model_dump()
    for key in path.split("."):
        slot: Any = int(key) if isinstance(here, list) else key
        if rule is InBranch.SAME_PART and isinstance(slot, str) and slot != "name":
            rule = InBranch.FREE
        place = place.below_or_any(slot, here)
        rule = next((item for item in place.constraints if isinstance(item, InBranch)), rule)
        here = here.get(slot) if isinstance(here, dict) else here[slot] if isinstance(here, list) else None
    return rule is not InBranch.FREE


def begins_anew(folder: RunFolder) -> bool:
    """Whether a run has no state to begin with: neither a checkpoint nor one that it branches off."""
    has_checkpoint = bool(Checkpoints(folder, keep_last=1, keep_every=None).numbers())
    return not has_checkpoint and folder.facts().branched_from is None


def note_changes(folder: RunFolder, changes: Sequence[Change], counters: Mapping[str, int]) -> None:
    """Add changes to a run's `changes.jsonl`, all or none.

    Nothing is added if they are its last lines already, because a kill came after they were written.
    """
    before = _noted(folder)
    new = "".join(json.dumps({**change._asdict(), "counters": dict(counters)}) + "\n" for change in changes).encode()
    if not new or not before.endswith(new):
        folder.root.write(folder.changes.name, before + new)


def branch_counters(folder: RunFolder) -> dict[str, int]:
    """The counters at which a branch has begun, by name; none for another run."""
    noted = _noted(folder) if folder.facts().branched_from is not None else b""
    return dict(json.loads(noted.splitlines()[0])["counters"]) if noted else {}


def _text(value: Any) -> str:
    """A value as messages quote it; mappings and lists in full up to 80 characters."""
    return cut(repr(value)) if isinstance(value, dict | list | tuple) else shown(value)


def _noted(folder: RunFolder) -> bytes:
    """The content of a run's `changes.jsonl`."""
    name = folder.changes.name
    return b"" if folder.root.kind(name) is None else folder.root.read(name)
