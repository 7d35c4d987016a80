"""The decisions of finished dialogues: rows, which lie in a Parquet file for each epoch."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple, Self

from palestra.games.dialogue.protocol import Verdict
from palestra.text.chat import Message, Prompt


@dataclass(frozen=True)
class DecisionRow:
    """A decision of a dialogue: what a role read, what it answered, and what came of it.

    epoch: of the run, from 0. question: its number in the epoch. about: the question in one line, for people. rollout:
    the number of the dialogue, or of the tree, on this question; in an evaluation that of its pairing. variant: that of
    the protocol, which was drawn for the dialogue. node: the number of the decision in its dialogue, or in its tree,
    where numbers are left out; parent: the node of the last decision of the round before, None for the first ones.
    round: of the dialogue, from 0. prompt: the messages that the role read. answer:
    what it wrote. prompt_ids, answer_ids, log_probs: the tokens of both, and the log-probability of each token of the
    answer when it was sampled; () of a scripted player. stop: why the answer ended ("stop", "length" or "scripted").
    attempts: how many answers were asked for. verdict: what the answer decides; None for a message. label: the
    question's. reward: what the role got in the whole dialogue; in a tree the mean over all dialogues in which the
    decision was made. taught: what the teacher of the player would have answered; None if it has no teacher. returns:
    of the last decision of a dialogue, what each role got in it; None of the others.
    """

    epoch: int
    question: int
    about: str
    rollout: int
    variant: int
    node: int
    parent: int | None
    round: int
    role: str
    player: str
    prompt: Prompt
    answer: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    stop: str
    attempts: int
    verdict: Verdict
    label: int
    reward: float
    taught: str | None
    returns: Mapping[str, float] | None

    def rewarded(self, reward: float) -> Self:
        """Return the same decision with another reward."""
        return replace(self, reward=reward)


class Rollouts:
    """The decisions of finished dialogues, ordered by epoch, question, roll-out and node."""

    def __init__(self, rows: Iterable[DecisionRow]) -> None:
        self.rows = sorted(rows, key=lambda row: (*_dialogue_of(row), row.node))

    def of(self, player: str) -> list[DecisionRow]:
        """Return the decisions of a player, in every role that it has."""
        return [row for row in self.rows if row.player == player]

    def of_epoch(self, epoch: int) -> Self:
        """Return the decisions of one epoch."""
        return type(self)(row for row in self.rows if row.epoch == epoch)

    def dialogues(self) -> Iterator[list[DecisionRow]]:
        """Yield the decisions of each dialogue, in order.

        Of a tree, these are its paths, one for each end, with the rewards of that dialogue.
        """
        for rows in self.each():
            yield from _paths(rows)

    def each(self) -> Iterator[list[DecisionRow]]:
        """Yield the decisions of each roll-out, in order: those of a dialogue, or of a tree of them."""
        for _, rows in groupby(self.rows, key=_dialogue_of):
            yield list(rows)

    # ---- files -------------------------------------------------------------------------------------------

    def to_parquet(self) -> bytes:
        """Return the content of a Parquet file; equal roll-outs give equal bytes."""
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        schema = _schema(arrow)
        columns = {name: [_plain(getattr(row, name)) for row in self.rows] for name in schema.names}
        content = io.BytesIO()
        parquet.write_table(arrow.table(columns, schema=schema), content, compression="zstd")
        return content.getvalue()

    @classmethod
    def from_parquet(cls, content: bytes) -> Self:
        """Read what `to_parquet` gave. Raises ValueError for another content."""
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        try:
            table = parquet.read_table(io.BytesIO(content))
        except (arrow.ArrowException, OSError) as error:
            raise ValueError(f"expected a Parquet file, got another content: {error!s:.200}") from error
        if not table.schema.equals(_schema(arrow)):
            expected = f"expected the columns {', '.join(_schema(arrow).names)}, each with its own type"
            raise ValueError(f"{expected}, got {', '.join(table.column_names)}")
        return cls(map(_row, table.to_pylist()))


class RolloutFile(NamedTuple):
    """A file of dialogues.

    evaluation: the one that they belong to; None: training. number: which file of this evaluation and epoch it is.
    """

    file: str
    evaluation: str | None
    epoch: int
    number: int


def rollout_files(names: Iterable[str], evaluations: Iterable[str]) -> list[RolloutFile]:
    """Return the files of dialogues among some names, by epoch; those of training first, then by evaluation.

    They are `EPOCH.parquet`, `EVALUATION-EPOCH.parquet` and `EVALUATION-EPOCH-NUMBER.parquet`. Others are left out.
    """
    names, found = list(names), dict[str, RolloutFile]()
    for evaluation in (None, *evaluations):
        before, after = ("", "()") if evaluation is None else (re.escape(f"{evaluation}-"), r"(?:-(\d{1,18}))?")
        pattern = re.compile(rf"{before}(\d{{1,18}}){after}\.parquet", re.ASCII)
        matched = [match for name in names if (match := pattern.fullmatch(name))]
        of_one = [RolloutFile(each[0], evaluation, int(each[1]), int(each[2] or 1)) for each in matched]
        for each in sorted(of_one, key=lambda each: (each.epoch, each.number)):
            found.setdefault(each.file, each)
    return list(found.values())


def _dialogue_of(row: DecisionRow) -> tuple[int, int, int]:
    return row.epoch, row.question, row.rollout


def is_tree(rows: Iterable[DecisionRow]) -> bool:
    """Tell whether the decisions of a roll-out are those of several dialogues."""
    return sum(row.returns is not None for row in rows) > 1


def rounds_by_parent(rows: Iterable[DecisionRow]) -> dict[int | None, list[list[DecisionRow]]]:
    """Return the decisions of each round of a tree, by the node that ends the round before; None: of the first ones."""
    following: dict[int | None, list[DecisionRow]] = {}
    for row in rows:
        following.setdefault(row.parent, []).append(row)
    found = {}
    for parent, children in following.items():
        num_roles = len({row.role for row in children})
        found[parent] = [children[at : at + num_roles] for at in range(0, len(children), num_roles)]
    return found


def _paths(rows: list[DecisionRow]) -> Iterator[list[DecisionRow]]:
    """Yield the dialogues among decisions of one roll-out, which are several if it is a tree."""
    if not is_tree(rows):
        yield rows
        return
    rounds = {each[-1].node: each for found in rounds_by_parent(rows).values() for each in found}
    for end in (row for row in rows if row.returns is not None):
        assert end.returns is not None
        path = rounds[end.node]
        while (before := path[0].parent) is not None:
            path = [*rounds[before], *path]
        yield [row.rewarded(end.returns[row.role]) for row in path]


def _schema(arrow: Any) -> Any:
    message = arrow.struct([("role", arrow.string()), ("content", arrow.string())])
    kinds = {
        "about": arrow.string(),
        "role": arrow.string(),
        "player": arrow.string(),
        "answer": arrow.string(),
        "stop": arrow.string(),
        "prompt": arrow.list_(message),
        "prompt_ids": arrow.list_(arrow.int32()),
        "answer_ids": arrow.list_(arrow.int32()),
        "log_probs": arrow.list_(arrow.float32()),
        "reward": arrow.float64(),
        "taught": arrow.string(),
        "returns": arrow.map_(arrow.string(), arrow.float64()),
    }
    return arrow.schema([(each.name, kinds.get(each.name, arrow.int64())) for each in fields(DecisionRow)])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple):
        return [{"role": each.role, "content": each.content} if isinstance(each, Message) else each for each in value]
    return value


def _row(values: Mapping[str, Any]) -> DecisionRow:
    prompt = tuple(Message(**message) for message in values["prompt"])
    numbers = {name: tuple(values[name]) for name in ("prompt_ids", "answer_ids", "log_probs")}
    returns = None if values["returns"] is None else dict(values["returns"])
    return DecisionRow(**{**values, **numbers, "prompt": prompt, "returns": returns})


def verdicts_of(dialogue: Iterable[DecisionRow]) -> dict[str, Verdict]:
    """Return the verdicts of a dialogue by role, of those who have decided."""
    return {row.role: row.verdict for row in dialogue if row.verdict is not None}
