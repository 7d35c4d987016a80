"""The decisions of finished dialogues: rows, which lie in a Parquet file for each epoch, transcripts, and scores."""

import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import torch

from palestra.config import cut
from palestra.config.rendering import scalar
from palestra.data.unfolding import BYTES_OF_VALUE, parts, read_parquet, require_room
from palestra.games.dialogue.protocol import VERDICTS, Protocol, Verdict
from palestra.games.dialogue.scores import declared_scores, verdict_scores
from palestra.runtime.scores import DeclaredScore, Estimate
from palestra.runtime.statistics import Share, clusters_of, estimate_mean
from palestra.storage.disk import RunFolderError
from palestra.text.models.model import Message, Prompt

MOST_UNFOLDED = 100  # bytes of memory for each byte of a file, in which equal texts and tokens take hardly any
NULLABLE = ("parent", "verdict", "taught", "returns")
_name = cache(scalar)  # of few names
WORDS = ("reject", "accept")  # of labels and verdicts
ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}

Found = dict[str, Share | Estimate | float | None]
OF_ANSWERS = (
    ("tokens", "mean number of tokens of an answer of {}", "tokens"),
    ("retries", "mean number of answers of {} that were asked for again, in a turn", "answers"),
    ("cut_off", "share of the answers of {} that the limit of tokens has ended", "share"),
)


@dataclass(frozen=True)
class DecisionRow:
    """A decision of a dialogue: what a role read, what it answered, and what came of it.

    epoch: of the run, from 0. question: its number in the epoch. about: the question in one line, for people. rollout:
    the number of the dialogue, or of the tree, on this question; in an evaluation that of its pairing. variant: that of
    the protocol, which was drawn for the dialogue. node: the number of the decision in its dialogue, or in its tree,
    where numbers are left out; parent: the node of the last decision of the round before, None for the first ones.
    round: of the dialogue, from 0. prompt: the messages that the role read. answer: what it wrote. prompt_ids,
    answer_ids, log_probs: the tokens of both, and the log-probability of each token of the answer when it was sampled;
    () of a scripted player, and of a model behind a server. stop: why the answer ended ("stop", "length", "scripted").
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


class Rollouts:
    """The decisions of finished dialogues, ordered by epoch, question, roll-out and node."""

    def __init__(self, rows: Iterable[DecisionRow]) -> None:
        self.rows = sorted(rows, key=lambda row: (*_dialogue_of(row), row.node))

    def of(self, player: str) -> list[DecisionRow]:
        """Return the decisions of a player, in every role that it has."""
        return [row for row in self.rows if row.player == player]

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
    def from_parquet(cls, file: bytes | str | Path) -> Self:
        """Read what `to_parquet` gave, which another person may have changed.

        file: its content, or its path. Raises ValueError for anything that dialogues do not give: another schema,
        nulls, trees that are none, or far more than so many bytes may hold; OSError.
        """
        content = file if isinstance(file, bytes) else Path(file).read_bytes()
        (found, batches), schema = read_parquet(content, MOST_UNFOLDED), _schema(import_module("pyarrow"))
        if not found.equals(schema):
            expected = f"expected the columns {', '.join(schema.names)}, each with its own type"
            raise ValueError(f"{expected}, got {cut(', '.join(found.names), 500)}")
        shared: dict[Any, Any] = {}
        rollouts = cls(_row(values, shared) for batch in map(_without_nulls, batches) for values in batch.to_pylist())
        num_played = sum(map(_num_played, rollouts.each()))
        require_room(BYTES_OF_VALUE * len(schema.names) * num_played, len(content), MOST_UNFOLDED)
        return rollouts


def read_rollouts(content: bytes, source: str) -> Rollouts:
    """Read roll-outs. source: where they come from. Raises RunFolderError, which names it, for any other content."""
    try:
        return Rollouts.from_parquet(content)
    except ValueError as error:
        raise RunFolderError(f"{source} is damaged: {error}") from error


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
    rounds = _rounds(rows)
    for end in (row for row in rows if row.returns is not None):
        assert end.returns is not None
        path: list[list[DecisionRow]] = []
        node: int | None = end.node
        while node is not None:
            path.append(rounds[node])
            node = rounds[node][0].parent
        yield [replace(row, reward=end.returns[row.role]) for each in reversed(path) for row in each]


def _rounds(rows: Iterable[DecisionRow]) -> dict[int, list[DecisionRow]]:
    """Return the rounds of a tree by the node that ends each."""
    return {each[-1].node: each for found in rounds_by_parent(rows).values() for each in found}


# ---- what may be in a file -------------------------------------------------------------------------------


def _without_nulls(batch: Any) -> Any:
    """Return a batch of rows. Raises ValueError for a null where a decision has something."""
    for name in batch.schema.names:
        if name not in NULLABLE and _num_nulls(batch.column(name)):
            raise ValueError(f"expected something as {name} of each decision, got null")
    return batch


def _num_nulls(array: Any) -> int:
    return int(array.null_count) + sum(map(_num_nulls, parts(array)))


def _num_played(rows: Sequence[DecisionRow]) -> int:
    """Return how many decisions the dialogues of a roll-out have, each by itself.

    Raises ValueError for rows that are neither those of a dialogue nor of a tree.
    """
    roles, rounds, before = {row.role for row in rows}, _rounds(rows), -1
    ends = rounds.keys() if is_tree(rows) else {row.node for row in rows}
    lengths: dict[int | None, int] = {None: 0}
    for row in rows:
        is_end = row.returns is not None and row.node in ends and roles <= row.returns.keys()
        is_verdict = row.verdict in VERDICTS and row.label in VERDICTS[:2]
        if row.node <= before or row.parent not in lengths or not is_verdict or not (row.returns is None or is_end):
            expected = "expected each node once, after its parent, which ends a round, with 0 or 1 as label and verdict"
            where = f"question {row.question}, roll-out {row.rollout}, node {row.node}, parent {row.parent}"
            raise ValueError(f"{expected}, got {where}, label {row.label}, verdict {row.verdict}")
        if not all(map(math.isfinite, (row.reward, *(row.returns or {}).values()))):
            raise ValueError(f"expected finite rewards, got {row.reward} of {row.role} and the returns {row.returns}")
        before = row.node
        if row.node in ends:
            lengths[row.node] = lengths[row.parent] + len(rounds.get(row.node, ()))
    return sum(lengths[row.node] for row in rows if row.returns is not None) if is_tree(rows) else len(rows)


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


def _row(values: Mapping[str, Any], shared: dict[Any, Any]) -> DecisionRow:
    """Return a row. shared: of prompts that several rows have, the one object that all of them get."""
    found = {name: tuple(values[name]) for name in ("prompt_ids", "answer_ids", "log_probs")}
    found["prompt"] = tuple(Message(**message) for message in values["prompt"])
    found |= {name: shared.setdefault(found[name], found[name]) for name in ("prompt", "prompt_ids")}
    returns = None if values["returns"] is None else dict(values["returns"])
    return DecisionRow(**{**values, **found, "returns": returns})


def verdicts_of(dialogue: Iterable[DecisionRow]) -> dict[str, Verdict]:
    """Return the verdicts of a dialogue by role, of those who have decided."""
    return {row.role: row.verdict for row in dialogue if row.verdict is not None}


# ---- as people read them ------------------------------------------------------------------------------


def transcripts(rollouts: Rollouts, with_prompts: bool) -> str:
    """Return dialogues as YAML, one after the other; in a tree of them, what goes on from a round stands below it.

    An answer of several lines stands as it was written. with_prompts: whether they have what each role has read, too.
    """
    return "".join(f"{line}\n" for rows in rollouts.each() for line in _lines(rows, with_prompts))


def verdict_word(verdict: int | None) -> str:
    return "none" if verdict is None else WORDS[verdict]


def _lines(rows: list[DecisionRow], with_prompts: bool) -> Iterator[str]:
    first = rows[0]
    yield from (
        f"- question: {first.question}",
        f"  rollout: {first.rollout}",
        f"  variant: {first.variant}",
        f"  about: {_text(first.about, 4)}",
        f"  label: {verdict_word(first.label)}",
    )
    if is_tree(rows):
        yield "  tree:"
        yield from _tree(rounds_by_parent(rows), None, with_prompts, "  ")
        return
    yield f"  rewards: {_rewards({row.role: row.reward for row in rows})}"
    yield "  answers:"
    for row in rows:
        yield from _answer(row, with_prompts, "  ")


def _tree(
    rounds: Mapping[int | None, list[list[DecisionRow]]], parent: int | None, with_prompts: bool, margin: str
) -> Iterator[str]:
    """Write what goes on from a decision: the rounds, and below each what goes on from there."""
    for rows in rounds[parent]:
        yield f"{margin}- answers:"
        for row in rows:
            yield from _answer(row, with_prompts, f"{margin}  ", in_tree=True)
        last = rows[-1]
        if last.returns is not None:
            yield f"{margin}  rewards: {_rewards(last.returns)}"
        if last.node in rounds:
            yield f"{margin}  then:"
            yield from _tree(rounds, last.node, with_prompts, f"{margin}  ")


def _answer(row: DecisionRow, with_prompts: bool, margin: str, in_tree: bool = False) -> Iterator[str]:
    yield f"{margin}- round: {row.round}"
    if in_tree:
        yield f"{margin}  node: {row.node}"
    yield f"{margin}  role: {_name(row.role)}"
    yield f"{margin}  player: {_name(row.player)}"
    if with_prompts:
        yield f"{margin}  prompt:"
        yield from (f"{margin}  - {each.role}: {_text(each.content, len(margin) + 6)}" for each in row.prompt)
    yield f"{margin}  answer: {_text(row.answer, len(margin) + 4)}"
    if row.verdict is not None:
        yield f"{margin}  verdict: {verdict_word(row.verdict)}"
    if row.attempts > 1:
        yield f"{margin}  attempts: {row.attempts}"
    if row.stop == "length":
        yield f"{margin}  stop: length"
    if in_tree:
        yield f"{margin}  reward: {row.reward!r}"


def _rewards(rewards: Mapping[str, float]) -> str:
    return f"{{{', '.join(f'{_name(role)}: {reward!r}' for role, reward in rewards.items())}}}"


def _text(text: str, indent: int) -> str:
    """Return a text as a value of YAML: of several lines as a block that is indented so far, else in quotes."""
    lines = text.removesuffix("\n").split("\n")
    if "\n" not in text or not text.strip("\n") or not all(line.replace("\t", " ").isprintable() for line in lines):
        return f'"{"".join(map(_escaped, text))}"'
    indicator = 2 if text[0] in " \n\t" else ""  # else the first line says how far the block is indented
    end = "+" if text.endswith("\n") else "-"
    return "\n".join([f"|{indicator}{end}", *(" " * indent + line if line else "" for line in lines)])


@cache
def _escaped(character: str) -> str:
    if character in ESCAPED:
        return ESCAPED[character]
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


# ---- their scores -------------------------------------------------------------------------------------


def text_scores(protocol: Protocol) -> tuple[DeclaredScore, ...]:
    """Declare the scores of dialogues by a protocol: those of tensor dialogues, and some of each role's answers."""
    of_answers = (
        DeclaredScore(f"{name}/{role}", meaning.format(role), unit, (), (), shown=False)
        for role in protocol.roles
        for name, meaning, unit in OF_ANSWERS
    )
    return (*declared_scores(protocol, []), *of_answers)


def found_scores(rollouts: Rollouts, protocol: Protocol, same: Sequence[int] | None) -> Found:
    """Find the scores of dialogues, but for their returns. What nobody has done, such as answering, is not known.

    same: by the number of a question in the roll-outs, that of a cluster (palestra.runtime.statistics);
    None: intervals do not matter.
    """

    def clusters(rows: Iterable[DecisionRow]) -> torch.Tensor | None:
        return None if same is None else clusters_of(same[row.question] for row in rows)

    dialogues, verifier = list(rollouts.dialogues()), protocol.verifiers[0]
    verdicts = [verdicts_of(rows).get(verifier) for rows in dialogues]
    numbers = torch.tensor([-1 if verdict is None else verdict for verdict in verdicts], dtype=torch.int64)
    labels = torch.tensor([rows[0].label for rows in dialogues], dtype=torch.int64)
    found: Found = {**verdict_scores(numbers, labels, clusters(rows[0] for rows in dialogues))}
    for role in protocol.roles:
        rows = [row for row in rollouts.rows if row.role == role and row.stop != "scripted"]
        counted = [row for row in rows if row.prompt_ids]  # a server does not say of each answer how many it has
        found[f"tokens/{role}"] = _mean([len(row.answer_ids) for row in counted], clusters(counted))
        found[f"retries/{role}"] = _mean([row.attempts - 1 for row in rows], clusters(rows))
        is_cut = torch.tensor([row.stop == "length" for row in rows], dtype=torch.bool)
        found[f"cut_off/{role}"] = Share.of(is_cut, clusters(rows)) if rows else None
    return found


def _mean(numbers: list[int], clusters: torch.Tensor | None) -> Estimate | None:
    return estimate_mean(torch.tensor(numbers, dtype=torch.float64), clusters) if numbers else None


# ---- what records say of the dialogues of an epoch ------------------------------------------------------


def dialogue_statistics(rollouts: Rollouts, protocol: Protocol) -> dict[str, float]:
    """Return statistics by name.

    return/ROLE/worst: the mean return on the question on which it is lowest. length: rounds of a dialogue.
    """
    found: dict[str, Any] = dict(found_scores(rollouts, protocol, None))
    for role in protocol.roles:
        by_question: dict[tuple[int, int], list[float]] = defaultdict(list)
        for rows in rollouts.dialogues():
            by_question[rows[0].epoch, rows[0].question].append(_return(rows, role))
        returns = list(chain.from_iterable(by_question.values()))
        found[f"return/{role}"] = fmean(returns) if returns else None
        found[f"return/{role}/worst"] = min(map(fmean, by_question.values()), default=None)
    lengths = [rows[-1].round + 1 for rows in rollouts.dialogues()]
    found["length"] = fmean(lengths) if lengths else None
    return {name: value for name, each in found.items() if (value := _value(each)) is not None}


def returns_of(rollouts: Rollouts, role: str) -> list[float]:
    """Return what a role got in each dialogue, also in those in which it was silent."""
    return [_return(rows, role) for rows in rollouts.dialogues()]


def _return(rows: Sequence[DecisionRow], role: str) -> float:
    return next(row.returns for row in reversed(rows) if row.returns is not None)[role]


def _value(score: Share | Estimate | float | None) -> float | None:
    estimate = score.estimate() if isinstance(score, Share) else score
    return estimate.value if isinstance(estimate, Estimate) else estimate
