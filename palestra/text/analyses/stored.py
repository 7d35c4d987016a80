"""The results of an analysis: a file in the run's folder, with a line for each dialogue, and means over it."""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self

import torch
from pydantic import Field, ValidationError

from palestra.runtime.scores import Estimate
from palestra.runtime.statistics import clusters_of, estimate_mean
from palestra.storage.disk import Folder
from palestra.storage.records_file import lines_of
from palestra.storage.stored_files import Count, Entry
from palestra.text.analyses.analysis import Judgement

SUFFIX = ".jsonl"
MOST = 1e100  # of a value and its negative, so that sums are finite


class Header(Entry):
    """The first line: what has judged.

    config: that of the analysis. base: the SHA-256 of what judges besides, such as a model's weights; None: nothing.
    """

    config: dict[str, Any]
    base: str | None


class JudgedDecision(Entry):
    """A decision that was judged. kind: of its role, prover or verifier."""

    node: Count
    round: Count
    role: str
    player: str
    answer: str
    value: Annotated[float, Field(ge=-MOST, le=MOST)] | None
    words: str | None


DialoguePlace = tuple[str, str, int, int, int]


class JudgedDialogue(Entry):
    """A dialogue that was judged.

    file: of roll-outs, without its suffix. sha256: the beginning of the SHA-256 of that file. evaluation: None: the
    dialogue is one of training. node: of its last decision, which tells the dialogues of a tree apart. about, label: of
    its question.
    """

    file: str
    sha256: str
    evaluation: str | None
    epoch: Count
    question: Count
    rollout: Count
    node: Count
    about: str
    label: Annotated[int, Field(ge=0, le=1)]
    judged: list[JudgedDecision]

    @property
    def place(self) -> DialoguePlace:
        """Which dialogue it is."""
        return self.file, self.sha256, self.question, self.rollout, self.node


def judged_dialogue(of: Mapping[str, Any], judgements: Sequence[Judgement]) -> JudgedDialogue:
    """Make the line of a dialogue. of: its other fields."""
    decisions = [
        JudgedDecision(
            **{name: getattr(each.row, name) for name in ("node", "round", "role", "player", "answer")},
            value=None if each.value is None else float(each.value),
            words=None if each.words is None else each.words.encode(errors="replace").decode(),
        )
        for each in judgements
    ]
    return JudgedDialogue(**of, judged=decisions)


def file_of(name: str) -> str:
    """Return the file of an analysis by its name; that of package.module:Class is package.module.Class.jsonl."""
    return f"{name.replace(':', '.')}{SUFFIX}"


class Results(NamedTuple):
    """What a file holds. header: None in a file without one. length: bytes up to the end of the last whole line."""

    header: Header | None
    dialogues: Sequence[JudgedDialogue]
    length: int


def read_results(folder: Folder, file: str) -> Results:
    """Read the results of an analysis; a torn last line is left out. Raises ValueError for a damaged line, OSError."""
    header, dialogues, length = None, list[JudgedDialogue](), 0
    if folder.kind(file) is None:
        return Results(header, dialogues, length)
    with folder.reading(file) as opened:
        for number, line in enumerate(lines_of(opened, opened.size), start=1):
            if not line.is_whole:
                break
            try:
                content = line.content or b""
                if number == 1:
                    header = Header.model_validate_json(content)
                else:
                    dialogues.append(JudgedDialogue.model_validate_json(content))
            except ValidationError as error:
                told = f"{folder.path / file}, line {number}, is damaged: {error.errors()[0]['msg']}"
                raise ValueError(told) from error
            length = line.stop
    return Results(header, dialogues, length)


class Journal:
    """The file of an analysis while it is written.

    found: what the file holds, after which it goes on; without a header, a new file replaces it.
    """

    def __init__(self, folder: Folder, file: str, header: Header, found: Results) -> None:
        if found.header is None:
            folder.write(file, _line(header))
        self._file = folder.append(file)
        if found.header is not None:  # what a kill has torn is cut off
            self._file.truncate(found.length)

    def add(self, dialogues: Sequence[JudgedDialogue]) -> None:
        """Append dialogues, and wait until they are on the disk."""
        self._file.append(b"".join(map(_line, dialogues)))
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def _line(entry: Entry) -> bytes:
    return json.dumps(entry.model_dump()).encode() + b"\n"


# ---- means ------------------------------------------------------------------------------------------------------


class Mean(NamedTuple):
    """The mean of the values of some decisions, with an interval that is clustered by questions.

    num: how many decisions; those of which nothing could be said are left out. num_questions: on how many different
    questions.
    """

    score: Estimate
    num: int
    num_questions: int

    @classmethod
    def of(cls, found: Sequence[tuple[float, Hashable]]) -> Self:
        """Make the mean of values, each with its question."""
        values, questions = zip(*found, strict=True)
        score = estimate_mean(torch.tensor(values, dtype=torch.float64), clusters_of(questions))
        return cls(score, len(values), len(set(questions)))


Means = dict[str | None, dict[int, dict[str, Mean]]]


def means_of(dialogues: Sequence[JudgedDialogue]) -> Means:
    """Return means by evaluation (None: training), epoch, and role; a player of another name is told with its role."""
    values: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for dialogue in dialogues:
        question = dialogue.about, dialogue.label
        for each in dialogue.judged:
            if each.value is not None:
                values[dialogue.evaluation][dialogue.epoch][seat_of(each)].append((each.value, question))
    return {
        evaluation: {
            epoch: {seat: Mean.of(found) for seat, found in sorted(by_seat.items())}
            for epoch, by_seat in sorted(by_epoch.items())
        }
        for evaluation, by_epoch in sorted(values.items(), key=lambda item: item[0] or "")
    }


def seat_of(decision: JudgedDecision) -> str:
    return decision.role if decision.role == decision.player else f"{decision.role}: {decision.player}"


def stored_analyses(folder: Folder) -> Iterator[tuple[str, Results]]:
    """Yield the files of all analyses, without their suffix, with what they hold. Raises as `read_results`."""
    for file in sorted(folder.names()):
        if file.endswith(SUFFIX):
            yield file.removesuffix(SUFFIX), read_results(folder, file)
