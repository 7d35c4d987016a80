"""Sections on the runs themselves: counters, warnings, checkpoints, configs, versions and machines."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.config import under
from palestra.config.rendering import inline_flow
from palestra.recording.results import duration_text, label
from palestra.report.blocks import Block, Cell, Code, Facts, Heading, Note, Section, Table, count, scored
from palestra.report.evaluation_tables import pairing_text
from palestra.report.groups import Group, experiment, repeated_seeds
from palestra.report.reading import RunData
from palestra.run.branching import tree_differences

MOST_ROWS = 200  # of a table; its caption says if there are more


def runs_section(groups: Sequence[Group]) -> Section:
    counters = _counters([run for group in groups for run in group.runs])
    rows = [
        [
            Cell(run.name),
            *([Cell(group.label)] if len(groups) > 1 else []),
            *_last_score(run),
            Cell(_text(run.seed)),
            Cell(run.state),
            *(count(run.counters.get(name)) for name in counters),
            Cell(duration_text(run.train_seconds)),
        ]
        for group in groups
        for run in group.runs
    ]
    head = ["run", *(["group"] if len(groups) > 1 else []), "last score", "of", "seed", "state"]
    caption = "The runs, as of their last records; training alone counts as time."
    table = Table(caption, [*head, *map(label, counters), "training"], rows)
    return Section("runs", "Runs", [table, *warnings(groups)])


def _counters(runs: Sequence[RunData]) -> list[str]:
    """Return what the runs count."""
    return list(dict.fromkeys(name for run in runs for name in run.kind.counters))


def _last_score(run: RunData) -> list[Cell]:
    """Return cells with the last score of a pairing, and what that is.

    It is the pairing that `best` names, or else the first one in which a player learns.
    """
    name, place = under(run.config, "best", "evaluation"), under(run.config, "best", "pairing")
    evaluated = [each for each in run.evaluated if name in (None, each.evaluation.name)]
    pairs = evaluated[-1].evaluation.pairs if evaluated else ()
    configs = under(run.config, "evaluations")
    named = [each for each in configs if under(each, "name") == name] if isinstance(configs, list) else []
    wanted = _value_at(named, f"0.pairings.{place}")
    played = evaluated[-1].record["pairs"] if evaluated else []
    wanted = next((pair["same_as"] for pair in played if "same_as" in pair and pair["players"] == wanted), wanted)
    learned = [pair for pair in pairs if pair.learned and wanted in (None, pair.players)]
    if not learned:
        return [Cell("-"), Cell("-")]
    return [scored(learned[0].score), Cell(f"{learned[0].measure}, {pairing_text(learned[0].seats)}")]


# ---- warnings -----------------------------------------------------------------------------------------


def warnings(groups: Sequence[Group]) -> list[Note]:
    runs = [run for group in groups for run in group.runs]
    lines = [
        f"{run.name}: {line}" if len(runs) > 1 and run.name not in line else line
        for run in runs
        for line in _warnings_of(run)
    ]
    return [Note(line, is_warning=True) for line in (*lines, *repeated_seeds(groups))]


def _warnings_of(run: RunData) -> Iterator[str]:
    yield from run.faults
    if run.is_tournament:
        return
    parts = {
        "There is no training record yet.": run.training,
        "There is no evaluation, so it is unknown what was learned.": run.evaluated,
        "There is no checkpoint.": run.checkpoints,
    }
    yield from (warning for warning, part in parts.items() if not part)
    for checkpoint in run.checkpoints:
        if checkpoint.fault is not None:
            yield f"Checkpoint {checkpoint.name} cannot be used: {checkpoint.fault}"
    players = [item for record in run.training for item in _players(record).items()]
    for name, absent in Counter(name for player, entries in players for name in _null_names(entries, player)).items():
        yield f"{name} is null in {absent:,} of {len(run.training):,} training records: it was NaN or infinite."
    for name in sorted({name for name, entries in players if "inexact" in entries}):
        yield f"The worlds of {name} could not be restored exactly after a resume: equal bits are not promised."
    if isinstance(set_in_python := run.facts.get("set_in_python"), list) and set_in_python:
        yield f"It was trained with objects that no config names: {', '.join(map(str, set_in_python))}."


def _players(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    players = record.get("players")
    entries = players.items() if isinstance(players, Mapping) else ()
    return {name: value for name, value in entries if isinstance(value, Mapping)}


def _null_names(value: Any, name: str) -> Iterator[str]:
    if value is None:
        yield name
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _null_names(inner, f"{name}/{key}")


# ---- checkpoints ---------------------------------------------------------------------------------------


def checkpoints_section(groups: Sequence[Group]) -> Section:
    runs = [run for group in groups for run in group.runs]
    counters = _counters(runs)
    rows = [
        [
            Cell(f"{run.name}: {stored.name}" if len(runs) > 1 else stored.name),
            Cell("damaged" if stored.fault is not None else ", ".join(stored.marks) or "-"),
            *(count(stored.counters.get(name)) for name in counters),
            Cell(f"{stored.num_bytes / 1e6:,.2f} MB"),
        ]
        for run in runs
        for stored in run.checkpoints
    ]
    caption = "The checkpoints that are kept. Size: without replay rows that checkpoints share."
    head = ["checkpoint", "marked", *map(label, counters), "size"]
    return Section("checkpoints", "Checkpoints", [Table(caption, head, rows) if rows else Note("There are none.")])


# ---- config, versions, machine -------------------------------------------------------------------------


def setting_section(groups: Sequence[Group]) -> Section:
    section = Section("setting", "What was run")
    if len(groups) > 1:
        rows = [[Cell(key), *map(Cell, values)] for key, values in differing_keys(groups).items()]
        cut = f", the first {MOST_ROWS} of {len(rows):,}" if len(rows) > MOST_ROWS else ""
        caption = f"The keys in which the configs differ, besides seed, output and execution{cut}."
        table = Table(caption, ["key", *(group.label for group in groups)], rows[:MOST_ROWS])
        section.blocks.append(table if rows else Note("The configs of the groups cannot be compared."))
    for group in groups:
        for run in group.runs:
            section.blocks += [Heading(run.name)] if len(groups) > 1 or len(group.runs) > 1 else []
            section.blocks += _setting(run)
    return section


def differing_keys(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the keys in which the groups' configs differ, each with its value in every group, as text."""
    trees = [experiment(group.runs[0]) for group in groups]
    keys = dict.fromkeys(change.key for tree in trees[1:] for change in tree_differences(trees[0], tree))
    return {key: [_text(_value_at(tree, key)) for tree in trees] for key in keys}


def _value_at(tree: Any, key: str) -> Any:
    for word in key.split("."):
        is_place = isinstance(tree, list) and word.isdigit() and int(word) < len(tree)
        tree = tree[int(word)] if is_place else under(tree, word)
    return tree


def _setting(run: RunData) -> Iterator[Block]:
    entries = facts_of(run.path, run.facts, ("command", "commit", "branched_from", "mirror", "id"))
    yield Facts(named_texts(entries | {"execution": pairs_text(run.config.get("execution"))}))
    if run.changes:
        rows = [
            [
                Cell(str(change.get("key"))),
                *(Cell(_text(change.get(name))) for name in ("before", "after")),
                Cell(pairs_text(change.get("counters"))),
            ]
            for change in run.changes[:MOST_ROWS]
        ]
        yield Table("Keys that changed in the run's life.", ["key", "before", "after", "at"], rows)
    yield Code(f"config.yml of {run.name}", run.config_text)


def facts_of(path: Path, facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the folder of a run or a sweep, some of the facts with which it began, its versions and its machine."""
    told = {name.replace("_", " "): facts.get(name) for name in names}
    texts = {name: pairs_text(facts.get(name)) for name in ("versions", "machine")}
    return {"folder": path.resolve(), **told, **texts}


def named_texts(entries: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return those entries that say something, as texts."""
    return [(name, str(value)) for name, value in entries.items() if value]


def pairs_text(value: Any) -> str:
    """Return a mapping as "name value, name value", without entries that are null."""
    entries = value.items() if isinstance(value, Mapping) else ()
    return ", ".join(f"{name} {_text(entry)}" for name, entry in entries if entry is not None)


def _text(value: Any) -> str:
    """Return a value of a config as YAML writes it."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return value if isinstance(value, str) else inline_flow(value)
