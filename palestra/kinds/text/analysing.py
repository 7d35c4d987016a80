"""What `palestra analyse` does: judges the stored dialogues of a run of text, and files what is found."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from palestra.config import (
    Config,
    ConfigError,
    ConfigErrorItem,
    UserConfig,
    apply_overrides,
    check,
    checking,
    cut,
    failure,
    list_of_overrides,
    running_own,
)
from palestra.config.files import values_of
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.kinds.text.config import TextConfig
from palestra.recording.results import estimate_text, printable, score_text
from palestra.run.kinds import require_kind
from palestra.run.stored import EvaluationFailed, config_of
from palestra.storage.disk import Folder, RunFolderError, writing
from palestra.storage.lock import take_or_refuse
from palestra.storage.run_folder import RunFolder, write_traceback
from palestra.text.analyses import AnyAnalysisConfig, stored
from palestra.text.analyses.analysis import Analysis, Dialogue, Judgement
from palestra.text.rollouts import DecisionRow, RolloutFile, read_rollouts, rollout_files
from palestra.text.servers.client import CallFailed

AT_ONCE = 16  # dialogues that are judged together, and then filed
TRAINING = "training"
Say = Callable[[str], None]


class _Asked(Config):
    analysis: AnyAnalysisConfig
    """what judges"""


def read_analysis(name: str, overrides: Sequence[str]) -> Any:
    """Return the config of an analysis by its name and by keys that differ from the usual ones. Raises ConfigError."""
    with checking(), _naming_keys():
        data: dict[str, Any] = {"analysis": {"name": name}}
        others = []
        for override in list_of_overrides(overrides):
            for key, value in values_of([override], {}).items():
                if key.partition(".")[0] == "model":  # nothing is usual of it
                    _put(data["analysis"], key, value)
                    break
            else:
                others.append(override)
        data = apply_overrides(completed(data, Place(_Asked), None), others, _Asked)
        return check(data, _Asked).analysis


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path; a text above it is the name of a part."""
    *above, key = path.split(".")
    for part in above:
        inner = data.get(part)
        inner = {"name": inner} if isinstance(inner, str) else inner
        data[part] = data = inner if isinstance(inner, dict) else {}
    data[key] = value


@contextmanager
def _naming_keys() -> Iterator[None]:
    """A context in which errors name keys as the command line has them."""
    try:
        yield
    except ConfigError as error:
        found = []
        for each in error.errors:
            path = re.sub(r"(players\.)?analysis\.?", "", each.path, count=1)
            path = "NAME" if path in ("", "name") else path
            found.append(ConfigErrorItem(path, each.message.replace("'analysis.", "'")))
        raise ConfigError(found) from None


@dataclass(frozen=True)
class Wanted:
    """Which dialogues are judged. of: names of evaluations, or `training`; (): all. epochs: None: all."""

    of: Sequence[str]
    epochs: Sequence[int] | None

    def has(self, evaluation: str | None, epoch: int) -> bool:
        is_of = not self.of or (evaluation or TRAINING) in self.of
        return is_of and (self.epochs is None or epoch in self.epochs)

    def files(self, folder: RunFolder, config: TextConfig) -> list[RolloutFile]:
        """Return the files of a run with these dialogues. Raises ConfigError."""
        evaluations = [each.name for each in config.evaluations]
        known = [TRAINING, *evaluations]
        if unknown := [name for name in self.of if name not in known]:
            raise ConfigError.at("--of", f"expected {' or '.join(known)}, got {unknown[0]!r}")
        found = rollout_files(folder.rollouts.names(), evaluations)
        chosen = [each for each in found if self.has(each.evaluation, each.epoch)]
        if found and not chosen:
            there = f"{found[0].epoch} to {max(each.epoch for each in found)}"
            raise ConfigError.at("--epochs", f"expected some of the stored epochs ({there}), got none of them")
        return chosen


def open_run(run: Path, trust: bool) -> tuple[RunFolder, TextConfig]:
    """Open a run of text in order to read its dialogues; it may train meanwhile. Raises RunFolderError, ConfigError."""
    folder = RunFolder.open(run)
    return folder, require_kind(config_of(run, trust), TextConfig, folder.path)  # its servers are not asked


def judge(folder: RunFolder, run: TextConfig, config: Any, wanted: Wanted, anew: bool, say: Say) -> stored.Results:
    """Judge the dialogues that are not judged yet, and return all results of the analysis.

    config: of the analysis. anew: forget what another config or model has judged. Raises ConfigError, RunFolderError,
    EvaluationFailed.
    """
    files = wanted.files(folder, run)
    if not files:
        raise RunFolderError(f"{folder.path}: expected roll-outs, got none yet")
    analysis = _made(config, run)
    header = stored.Header(config=analysis.judged_by(), base=analysis.base())
    place, file = folder.root.below("analyses"), stored.file_of(config.name)
    busy = f"{place.path / file}.lock: another process is at work on this analysis; wait until it ends"
    with writing(folder.path), take_or_refuse(place.make(), f"{file}.lock", busy):
        found = stored.Results(None, (), 0) if anew else _read(place, file)
        if (before := found.header) is not None and before != header:
            one, two = before.config, header.config
            keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
            what = f"another {', '.join(keys)}" if keys else "a model with other weights"
            expected = f"expected what {place.path / file} was judged by"
            raise ConfigError.at("NAME", f"{expected}, got {what}; --anew forgets that file")
        left = _left(folder, files, {each.place for each in found.dialogues})
        if (first := next(left, None)) is not None:
            with ExitStack() as working:
                with _naming_keys():
                    calls = folder.root.below("calls")
                    working.enter_context(analysis.working(calls, f"analyse-{file.removesuffix(stored.SUFFIX)}"))
                with closing(stored.Journal(place, file, header, found)) as journal:
                    for each in chain([first], left):
                        _judge(each, folder, config, analysis, journal, say)
            if (costs := analysis.costs()) is not None:
                say(costs)
        return _read(place, file)


def _made(config: Any, run: TextConfig) -> Analysis:
    protocol = run.game.protocol.build()
    is_own = isinstance(config, UserConfig)
    with _naming_keys(), running_own("NAME", f"{config.name!r} cannot be made") if is_own else nullcontext():
        made: Analysis = config.build(protocol)
    return made


def _read(place: Folder, file: str) -> stored.Results:
    try:
        return stored.read_results(place, file)
    except ValueError as error:
        raise RunFolderError(f"{error}; --anew begins anew") from error


# ---- judging ------------------------------------------------------------------------------------------------


class _Left(NamedTuple):
    """The dialogues of a file that are not judged yet. about: what is filed of each. num: of all dialogues in it."""

    about: dict[str, Any]
    dialogues: list[list[DecisionRow]]
    num: int


def _left(folder: RunFolder, files: Sequence[RolloutFile], done: set[stored.DialoguePlace]) -> Iterator[_Left]:
    """Read one file after the other; those that are judged are left out. Raises RunFolderError."""
    for file in files:
        content = folder.rollouts.read(file.file)
        dialogues = list(read_rollouts(content, str(folder.rollouts.path / file.file)).dialogues())
        name, sha256 = file.file.removesuffix(".parquet"), hashlib.sha256(content).hexdigest()[:12]
        found = [each for each in dialogues if _place(name, sha256, each[-1]) not in done]
        if found:
            about = {"file": name, "sha256": sha256, "evaluation": file.evaluation, "epoch": file.epoch}
            yield _Left(about, found, len(dialogues))


def _place(name: str, sha256: str, last: DecisionRow) -> stored.DialoguePlace:
    """Return which dialogue it is that ends with a decision."""
    return name, sha256, last.question, last.rollout, last.node


def _judge(left: _Left, folder: RunFolder, config: Any, analysis: Analysis, journal: stored.Journal, say: Say) -> None:
    """Judge the dialogues of a file, some at a time, each of which are on the disk before the next ones."""
    say(f"{left.about['file']}: {len(left.dialogues):,} of {left.num:,} dialogues are to be judged")
    for start in range(0, len(left.dialogues), AT_ONCE):
        batch = left.dialogues[start : start + AT_ONCE]
        lines = []
        for dialogue, judgements in zip(batch, _judged(batch, config, analysis, folder), strict=True):
            keys = {key: getattr(dialogue[-1], key) for key in ("question", "rollout", "node", "about", "label")}
            lines.append(stored.judged_dialogue(left.about | keys, judgements))
        journal.add(lines)


def _judged(batch: Sequence[Dialogue], config: Any, analysis: Analysis, folder: RunFolder) -> list[list[Judgement]]:
    """Judge dialogues; a class of the user's own may fail, and its judgements are checked. Raises EvaluationFailed."""
    if not isinstance(config, UserConfig):
        try:
            return analysis.judge_all(batch)
        except CallFailed as error:
            raise EvaluationFailed(str(error)) from error
    try:
        found = analysis.judge_all(batch)
    except Exception as error:
        filed = write_traceback(folder.root.below("analyses"), error)
        raise EvaluationFailed(f"{config.name}: judge raises {failure(error)}; {filed}") from error
    for dialogue, judgements in zip(batch, found, strict=True):
        if (fault := _fault(dialogue, judgements)) is not None:
            raise EvaluationFailed(f"{config.name}: judge: {fault}")
    return found


def _fault(dialogue: Dialogue, judgements: Any) -> str | None:
    if not isinstance(judgements, list) or not all(isinstance(each, Judgement) for each in judgements):
        return f"expected a list of Judgement, got {cut(repr(judgements))}"
    for each in judgements:
        if not any(each.row is row for row in dialogue):
            return f"expected a row of the dialogue, got {cut(repr(each.row))}"
        if each.value is not None and not (isinstance(each.value, int | float) and abs(each.value) <= stored.MOST):
            return f"expected a number from {-stored.MOST:g} to {stored.MOST:g} or None, got {cut(repr(each.value))}"
        if each.words is not None and not isinstance(each.words, str):
            return f"expected a text or None, got {cut(repr(each.words))}"
    return None


# ---- shown --------------------------------------------------------------------------------------------------


def shown(folder: RunFolder, name: str | None) -> list[RenderableType]:
    """Return the means of an analysis of a run, or of each, for people. Raises RunFolderError."""
    place = folder.root.below("analyses")
    try:
        found = (
            dict(stored.stored_analyses(place))
            if name is None
            else {name: stored.read_results(place, stored.file_of(name))}
        )
    except (ValueError, OSError) as error:
        raise RunFolderError(str(error)) from error
    return [each for name, results in found.items() for each in _means(name, results.dialogues)]


PARTLY = ("about", "answer", "words")  # of which a filter may give a part


def listed(folder: RunFolder, name: str, wanted: Wanted, num: int, only: Sequence[str]) -> list[RenderableType]:
    """Return a table of so many decisions with the largest and the smallest values. Raises ConfigError.

    only: filters, each a key of a decision or of its dialogue with a value, as "role=verifier".
    """
    keys = [*stored.JudgedDecision.model_fields, *(stored.JudgedDialogue.model_fields.keys() - {"judged"})]
    filters = [(key, value) for key, _, value in (each.partition("=") for each in only)]
    if wrong := [each for each in only if each.partition("=")[0] not in keys or "=" not in each]:
        raise ConfigError.at("--only", f"expected KEY=VALUE with a key of {', '.join(sorted(keys))}, got {wrong[0]!r}")
    found = []
    for dialogue in _read(folder.root.below("analyses"), stored.file_of(name)).dialogues:
        for each in dialogue.judged if wanted.has(dialogue.evaluation, dialogue.epoch) else ():
            there = {key: str(value) for key, value in (dict(dialogue) | dict(each)).items() if value is not None}
            if each.value is not None and all(
                value in there.get(key, "") if key in PARTLY else value == there.get(key) for key, value in filters
            ):
                found.append((each.value, dialogue, each))
    found.sort(key=lambda each: -each[0])
    heads = ("value", "of", "epoch", "question", "rollout", "node", "label", "who", "words", "about", "answer")
    table = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.title = Text(f"{printable(name)}: the largest and smallest of {len(found):,} values", style="dim")
    for value, of, it in found if len(found) <= 2 * num else [*found[:num], *found[-num:]]:
        where = of.evaluation or TRAINING, of.epoch, of.question, of.rollout, it.node, of.label
        cells = score_text(value), *where, stored.seat_of(it), it.words or "-", of.about, it.answer
        table.add_row(*(Text(printable(f"{cell}")) for cell in cells))
    return [table]


def _means(name: str, dialogues: Sequence[stored.JudgedDialogue]) -> Iterator[RenderableType]:
    """Yield a title, and a table of means by evaluation, epoch and role, each with its decisions and questions."""
    judged = [each for dialogue in dialogues for each in dialogue.judged]
    unknown = sum(each.value is None for each in judged)
    told = f"; {unknown:,} more have no value" if unknown else ""
    told += "; [95% intervals] (decisions on questions)"
    yield Text(f"{printable(name)}: means over {len(judged) - unknown:,} decisions{told}", style="dim")
    if unknown == len(judged):
        return
    found = stored.means_of(dialogues)
    seats = sorted({seat for by_epoch in found.values() for by_seat in by_epoch.values() for seat in by_seat})
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("of", "epoch", *seats):
        table.add_column(Text(printable(head)), justify="left" if head == "of" else "right")
    for evaluation, by_epoch in found.items():
        for epoch, by_seat in by_epoch.items():
            here = [by_seat.get(seat) for seat in seats]
            means = ["-" if m is None else f"{estimate_text(m.score)} ({m.num:,} on {m.num_questions:,})" for m in here]
            table.add_row(Text(printable(evaluation or TRAINING)), f"{epoch:,}", *means)
    yield table
