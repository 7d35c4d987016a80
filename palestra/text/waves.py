"""Plays dialogues in waves: all decisions that wait for one model are answered together, batch by batch.

What is computed together follows from the config and from earlier answers alone. The state is what was answered, so
dialogues go on from any batch.

A dialogue may fork into several continuations in each round, which makes it a tree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

import torch

from palestra.games.dialogue.protocol import Verdict
from palestra.randomness import fold_number
from palestra.text.chat import Prompt
from palestra.text.dialogue import Question, TextDialogue
from palestra.text.game import TextGame
from palestra.text.grammar import SILENT, Fault, Move
from palestra.text.models.model import Answer, PromptRefused, Request, SamplingConfig, TextModel
from palestra.text.rollouts import DecisionRow, Rollouts
from palestra.text.scripts import TextScript

TEACHER = 2**40  # stands for the number of an attempt in the key of a teacher's answer


class Writer(NamedTuple):
    """Who answers in some roles: a model with its sampling, or a scripted player.

    name: the player's. num_retries: how often an answer is asked for again that means nothing; then the role is silent.
    teacher: a scripted player whose answers are noted at every decision, to be learned; None: nobody's are.
    """

    name: str
    by: TextModel | TextScript
    sampling: SamplingConfig | None = None
    num_retries: int = 0
    teacher: TextScript | None = None


class PromptTooLong(Exception):
    """A prompt that a model cannot read, of a question and a role."""


@dataclass
class Table:
    """A dialogue that is being played, or a part of a tree of them: from one fork to the next one.

    moves: of this round, by role. open: by role that still must answer, the answers that were asked for again, each
    with the reason. rows: the decisions so far, without rewards. prompts: what roles read first in this round, which
    continuations share. parts: the continuations into which it has forked.

    path: of a tree, its place there: 1 at the root; continuation i of path p is p * continuations + i. first: the
    number that the first decision of its dialogue would have on this path. depth: how many decisions its dialogue had
    before this round; parent: the number of the last of them. begun: the round in which this part begins.
    """

    question: Question
    rollout: int
    key: int
    dialogue: TextDialogue
    moves: dict[str, Move] = field(default_factory=dict)
    open: dict[str, list[tuple[str, Fault]]] = field(default_factory=dict)
    rows: list[DecisionRow] = field(default_factory=list)
    prompts: dict[str, Prompt] = field(default_factory=dict)
    parts: list["Table"] = field(default_factory=list)
    path: int = 1
    first: int = 0
    depth: int = 0
    parent: int | None = None
    begun: int = 0

    def begin_round(self) -> None:
        """Ask everybody who has a turn; rounds in which nobody can do anything are passed over."""
        if self.moves:
            self.parent = self.first + self.depth + len(self.moves) - 1
            self.depth += len(self.moves)
        while not self.dialogue.is_over and not self.dialogue.turns():
            self.dialogue = self.dialogue.after({})
        self.moves, self.open, self.prompts = {}, {role: [] for role in self.dialogue.turns()}, {}

    def fork(self, num: int, most_decisions: int) -> None:
        """Go on in so many continuations of this round.

        most_decisions: of a dialogue, by which the numbers of decisions tell paths apart.
        """
        for path in range(self.path * num, (self.path + 1) * num):
            part = Table(self.question, self.rollout, self.key, self.dialogue)
            part.open, part.prompts = {role: [] for role in self.open}, self.prompts
            part.path, part.first, part.begun = path, (path - 1) * most_decisions, self.dialogue.round
            part.depth, part.parent = self.depth, self.parent
            self.parts.append(part)
        self.open = {}

    def node(self, role: str) -> int:
        """The number of a role's decision in this round. Decisions of a round go by the order of the roles."""
        return self.first + self.depth + list(self.dialogue.turns()).index(role)

    def all_parts(self) -> Iterator["Table"]:
        """Go through this part of a tree and those that follow; a dialogue that has not forked has but this one."""
        yield self
        for part in self.parts:
            yield from part.all_parts()

    @property
    def is_over(self) -> bool:
        return all(part.is_over for part in self.parts) if self.parts else self.dialogue.is_over

    def decisions(self) -> Iterator[DecisionRow]:
        """Yield what was decided from here on, once it is over, with what the roles got.

        In a tree, a decision's reward is the mean over all dialogues in which it was made.
        """
        ends = [part.dialogue.returns for part in self.all_parts() if not part.parts]
        rewards = {role: fmean(each[role] for each in ends) for role in self.dialogue.protocol.roles}
        last = None if self.parts else max((row.node for row in self.rows), default=None)
        for row in self.rows:
            yield replace(row, reward=rewards[row.role], returns=ends[0] if row.node == last else None)
        for part in self.parts:
            yield from part.decisions()


class Waves:
    """The dialogues of an epoch, or of a pairing of an evaluation, while they are played.

    writers: by role. questions: each is talked about in `num_rollouts` dialogues. key: int64, from which all randomness
    comes. batch_size: the most answers that are computed together. num_continuations: above 1, every dialogue is a tree
    that forks in each round in which a model answers; continuation i holds the i-th answer of each role of the round.
    """

    def __init__(
        self,
        game: TextGame,
        writers: Mapping[str, Writer],
        questions: Sequence[Question],
        num_rollouts: int,
        key: int,
        epoch: int,
        batch_size: int,
        num_continuations: int = 1,
    ) -> None:
        self.game, self.writers, self.epoch, self.batch_size = game, writers, epoch, batch_size
        self.num_continuations = num_continuations
        self._most_decisions = game.protocol.max_rounds * len(game.protocol.roles)  # of a dialogue
        pairs = [(question, rollout) for question in questions for rollout in range(num_rollouts)]
        keys = [fold_number(fold_number(key, question.number), rollout) for question, rollout in pairs]
        begun = game.begin_all([question for question, _ in pairs], [fold_number(own, 0) for own in keys])
        self.tables = [Table(*pair, own, dialogue) for pair, own, dialogue in zip(pairs, keys, begun, strict=True)]
        self._openings: dict[tuple[int, int, int], dict[str, Prompt]] = {}  # by question, round and variant; by role
        for table in self.tables:
            self._begin_round(table)
            self._let_scripts_answer(table)
        self.wave: list[tuple[Table, str]] = []  # decisions that wait for one model

    # ---- playing -----------------------------------------------------------------------------------------

    @property
    def num_over(self) -> int:
        """How many dialogues, or whole trees, are over."""
        return sum(table.is_over for table in self.tables)

    def counts(self) -> dict[str, int]:
        """Count the rounds that were played (env_steps), the dialogues that are over (episodes), the tokens drawn."""
        parts = list(self._parts())
        return {
            "env_steps": sum(part.dialogue.round - part.begun for part in parts),
            "episodes": sum(part.dialogue.is_over for part in parts),
            "tokens": sum(len(row.answer_ids) for part in parts for row in part.rows),
        }

    def _parts(self) -> Iterator[Table]:
        """Go through all dialogues, and in trees through all parts, in an order that follows from what was answered."""
        return (part for table in self.tables for part in table.all_parts())

    def play_batch(self) -> bool:
        """Answer the next batch of decisions. Returns False if all dialogues are over. Raises PromptTooLong."""
        if not self.wave:
            self.wave = self._next_wave()
        if not self.wave:
            return False
        batch = self.wave[: self.batch_size]
        writer = self.writers[batch[0][1]]
        assert isinstance(writer.by, TextModel)
        assert writer.sampling is not None
        requests = [self._request(table, role) for table, role in batch]
        try:
            answers = writer.by.sample(requests, writer.sampling)
        except PromptRefused as error:
            table, role = batch[error.index]
            where = f"question {table.question.number}, {role!r}"
            raise PromptTooLong(f"{where} (player {writer.name!r}): {error}") from error
        self.wave = self.wave[len(batch) :]
        for (table, role), request, answer in zip(batch, requests, answers, strict=True):
            self._take(table, role, request.prompt, answer)
        return True

    def _next_wave(self) -> list[tuple[Table, str]]:
        """Return the decisions that wait for the model for which most wait; of equal ones, that of the first role."""
        waiting: dict[str, list[tuple[Table, str]]] = {writer.name: [] for writer in self.writers.values()}
        for table in self._parts():
            for role in table.open:
                waiting[self.writers[role].name].append((table, role))
        return max(waiting.values(), key=len)

    def _request(self, table: Table, role: str) -> Request:
        failed = table.open[role]
        return Request(self._prompt(table, role, failed), self._key(table, role, len(failed)))

    def _prompt(self, table: Table, role: str, failed: Sequence[tuple[str, Fault]] = ()) -> Prompt:
        """Write what a role reads: once for all continuations, and the first prompt once for all roll-outs."""
        if failed:
            return self.game.prompt(table.dialogue, role, failed)
        known, which = table.prompts, (table.question.number, table.dialogue.round, table.dialogue.variant)
        if not any(table.dialogue.rounds):
            known = self._openings.setdefault(which, {})
        if role not in known:
            known[role] = self.game.prompt(table.dialogue, role)
        return known[role]

    def _key(self, table: Table, role: str, attempt: int) -> int:
        """Return the key of an answer, by roll-out, node, role and attempt."""
        of_node = fold_number(fold_number(table.key, 1), table.node(role))
        return fold_number(fold_number(of_node, self.game.roles.index(role)), attempt)

    def _take(self, table: Table, role: str, prompt: Prompt, answer: Answer) -> None:
        """Let a role do what a model has answered, or ask again."""
        found = self.game.read(table.dialogue.turns()[role], answer.text)
        failed = table.open[role]
        if isinstance(found, Fault) and len(failed) < self.writers[role].num_retries:
            failed.append((answer.text, found))
            return
        move = SILENT if isinstance(found, Fault) else found
        self._do(table, self._row(table, role, prompt, answer, move.decision, len(failed) + 1), move)
        self._let_scripts_answer(table)

    def _let_scripts_answer(self, table: Table) -> None:
        """Play on until a model must answer, or the dialogue is over."""
        while (role := next((each for each in table.open if self._is_scripted(each)), None)) is not None:
            script = self.writers[role].by
            assert isinstance(script, TextScript)
            text = script.answer(table.dialogue, role, self._key(table, role, 0))
            move = self._move(table, role, text)
            written = Answer(text, (), (), (), "stop")
            prompt = self._prompt(table, role)
            self._do(table, self._row(table, role, prompt, written, move.decision, 1), move)
        for part in table.parts:
            self._let_scripts_answer(part)

    def _is_scripted(self, role: str) -> bool:
        return isinstance(self.writers[role].by, TextScript)

    def _move(self, table: Table, role: str, text: str) -> Move:
        """Return what a role does by an answer that is not asked for again."""
        move = self.game.read(table.dialogue.turns()[role], text)
        return SILENT if isinstance(move, Fault) else move

    def _do(self, table: Table, row: DecisionRow, move: Move) -> None:
        """Note a decision; the last one of a round ends it."""
        table.rows.append(row)
        table.moves[row.role] = move
        del table.open[row.role]
        if not table.open:
            table.dialogue = table.dialogue.after(table.moves)
            self._begin_round(table)

    def _begin_round(self, table: Table) -> None:
        """Begin the next round of a dialogue; where models answer in it, a tree forks."""
        table.begin_round()
        if self.num_continuations > 1 and not all(map(self._is_scripted, table.open)):
            table.fork(self.num_continuations, self._most_decisions)

    def _row(
        self, table: Table, role: str, prompt: Prompt, answer: Answer, verdict: Verdict, attempts: int
    ) -> DecisionRow:
        return DecisionRow(
            epoch=self.epoch,
            question=table.question.number,
            about=self.game.scenario.describe(table.question),
            rollout=table.rollout,
            variant=table.dialogue.variant,
            node=table.node(role),
            parent=table.parent,
            round=table.dialogue.round,
            role=role,
            player=self.writers[role].name,
            prompt=prompt,
            answer=answer.text,
            prompt_ids=answer.prompt_ids,
            answer_ids=answer.ids,
            log_probs=answer.log_probs,
            stop="scripted" if self._is_scripted(role) else answer.stop,
            attempts=attempts,
            verdict=verdict,
            label=table.question.label,
            reward=0.0,
            taught=self._taught(table, role),
            returns=None,
        )

    def _taught(self, table: Table, role: str) -> str | None:
        """Return what the teacher of a role's player would answer at its turn."""
        teacher = self.writers[role].teacher
        return None if teacher is None else teacher.answer(table.dialogue, role, self._key(table, role, TEACHER))

    # ---- what came of it ---------------------------------------------------------------------------------

    def rollouts(self) -> Rollouts:
        """Return the decisions of the dialogues, or whole trees, that are over, with what each role got."""
        return Rollouts(row for table in self.tables if table.is_over for row in table.decisions())

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what was answered, by which `load_state_dict` plays the dialogues again up to here."""
        failed = [
            [number, table.path, role, [text for text, _ in answers]]
            for number, root in enumerate(self.tables)
            for table in root.all_parts()
            for role, answers in table.open.items()
            if answers
        ]
        rows = Rollouts(row for table in self._parts() for row in table.rows).to_parquet()
        numbers = {(root.question.number, root.rollout): number for number, root in enumerate(self.tables)}
        wave = [[numbers[table.question.number, table.rollout], table.path, role] for table, role in self.wave]
        return {"rows": torch.frombuffer(bytearray(rows), dtype=torch.uint8), "failed": failed, "wave": wave}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, of dialogues with the same arguments."""
        rows = Rollouts.from_parquet(state["rows"].numpy().tobytes())
        begun = self.game.begin_all(
            [table.question for table in self.tables], [fold_number(table.key, 0) for table in self.tables]
        )
        self.tables = [
            Table(table.question, table.rollout, table.key, dialogue)
            for table, dialogue in zip(self.tables, begun, strict=True)
        ]
        for table in self.tables:
            self._begin_round(table)
        numbers = {(table.question.number, table.rollout): number for number, table in enumerate(self.tables)}
        parts = {(number, part.path): part for number, root in enumerate(self.tables) for part in root.all_parts()}
        for row in rows.rows:  # those of a part before those of its continuations
            number = numbers[row.question, row.rollout]
            part = parts[number, 1 + row.node // self._most_decisions]
            self._do(part, row, self._move(part, row.role, row.answer))
            parts |= {(number, each.path): each for each in part.parts}
        for number, path, role, texts in state["failed"]:
            turn = parts[number, path].dialogue.turns()[role]
            found = [(text, self.game.read(turn, text)) for text in texts]
            parts[number, path].open[role] = [(text, fault) for text, fault in found if isinstance(fault, Fault)]
        self.wave = [(parts[number, path], role) for number, path, role in state["wave"]]
