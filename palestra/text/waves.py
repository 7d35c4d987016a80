"""Plays dialogues in waves: all decisions that wait for one model are answered together, batch by batch.

What is computed together follows from the config and from earlier answers alone. The state is what was answered, so
dialogues go on from any batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """A dialogue that is being played.

    moves: of this round, by role. open: by role that still must answer, the answers that were asked for again, each
    with the reason. rows: the decisions so far, without rewards.
    """

    question: Question
    rollout: int
    key: int
    dialogue: TextDialogue
    moves: dict[str, Move] = field(default_factory=dict)
    open: dict[str, list[tuple[str, Fault]]] = field(default_factory=dict)
    rows: list[DecisionRow] = field(default_factory=list)

    def begin_round(self) -> None:
        """Ask everybody who has a turn; rounds in which nobody can do anything are passed over."""
        while not self.dialogue.is_over and not self.dialogue.turns():
            self.dialogue = self.dialogue.after({})
        self.moves, self.open = {}, {role: [] for role in self.dialogue.turns()}

    def node(self, role: str) -> int:
        """The number of a role's decision in this round. Decisions of a round go by the order of the roles."""
        before = [row for row in self.rows if row.round < self.dialogue.round]
        return len(before) + list(self.dialogue.turns()).index(role)


class Waves:
    """The dialogues of an epoch, or of a pairing of an evaluation, while they are played.

    writers: by role. questions: each is talked about in `num_rollouts` dialogues. key: int64, from which all randomness
    comes. batch_size: the most answers that are computed together.
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
    ) -> None:
        self.game, self.writers, self.epoch, self.batch_size = game, writers, epoch, batch_size
        pairs = [(question, rollout) for question in questions for rollout in range(num_rollouts)]
        keys = [fold_number(fold_number(key, question.number), rollout) for question, rollout in pairs]
        begun = game.begin_all([question for question, _ in pairs], [fold_number(own, 0) for own in keys])
        self.tables = [Table(*pair, own, dialogue) for pair, own, dialogue in zip(pairs, keys, begun, strict=True)]
        self._openings: dict[tuple[int, int, int, str], Prompt] = {}  # by question, round, variant and role
        for table in self.tables:
            table.begin_round()
            self._let_scripts_answer(table)
        self.wave: list[tuple[int, str]] = []  # decisions that wait for one model: the table's number, and the role

    # ---- playing -----------------------------------------------------------------------------------------

    @property
    def num_over(self) -> int:
        """How many dialogues are over."""
        return sum(table.dialogue.is_over for table in self.tables)

    def counts(self) -> dict[str, int]:
        """Count the rounds that were played (env_steps), the dialogues that are over (episodes), the tokens drawn."""
        rows = (row for table in self.tables for row in table.rows)
        return {
            "env_steps": sum(table.dialogue.round for table in self.tables),
            "episodes": self.num_over,
            "tokens": sum(len(row.answer_ids) for row in rows),
        }

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
        requests = [self._request(self.tables[number], role) for number, role in batch]
        try:
            answers = writer.by.sample(requests, writer.sampling)
        except PromptRefused as error:
            number, role = batch[error.index]
            where = f"question {self.tables[number].question.number}, {role!r}"
            raise PromptTooLong(f"{where} (player {writer.name!r}): {error}") from error
        self.wave = self.wave[len(batch) :]
        for (number, role), request, answer in zip(batch, requests, answers, strict=True):
            self._take(self.tables[number], role, request.prompt, answer)
        return True

    def _next_wave(self) -> list[tuple[int, str]]:
        """Return the decisions that wait for the model for which most wait; of equal ones, that of the first role."""
        waiting: dict[str, list[tuple[int, str]]] = {writer.name: [] for writer in self.writers.values()}
        for number, table in enumerate(self.tables):
            for role in table.open:
                waiting[self.writers[role].name].append((number, role))
        return max(waiting.values(), key=len)

    def _request(self, table: Table, role: str) -> Request:
        failed = table.open[role]
        return Request(self._prompt(table, role, failed), self._key(table, role, len(failed)))

    def _prompt(self, table: Table, role: str, failed: Sequence[tuple[str, Fault]] = ()) -> Prompt:
        """Write what a role reads; before anything was said, once for all roll-outs of a question."""
        if failed or any(table.dialogue.rounds):
            return self.game.prompt(table.dialogue, role, failed)
        which = table.question.number, table.dialogue.round, table.dialogue.variant, role
        if which not in self._openings:
            self._openings[which] = self.game.prompt(table.dialogue, role)
        return self._openings[which]

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

    def _is_scripted(self, role: str) -> bool:
        return isinstance(self.writers[role].by, TextScript)

    def _move(self, table: Table, role: str, text: str) -> Move:
        """Return what a role does by an answer that is not asked for again."""
        move = self.game.read(table.dialogue.turns()[role], text)
        return SILENT if isinstance(move, Fault) else move

    @staticmethod
    def _do(table: Table, row: DecisionRow, move: Move) -> None:
        """Note a decision; the last one of a round ends it."""
        table.rows.append(row)
        table.moves[row.role] = move
        del table.open[row.role]
        if not table.open:
            table.dialogue = table.dialogue.after(table.moves)
            table.begin_round()

    def _row(
        self, table: Table, role: str, prompt: Prompt, answer: Answer, verdict: Verdict, attempts: int
    ) -> DecisionRow:
        before = [row.node for row in table.rows if row.round < table.dialogue.round]
        return DecisionRow(
            epoch=self.epoch,
            question=table.question.number,
            about=self.game.scenario.describe(table.question),
            rollout=table.rollout,
            variant=table.dialogue.variant,
            node=table.node(role),
            parent=max(before, default=None),
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
        )

    def _taught(self, table: Table, role: str) -> str | None:
        """Return what the teacher of a role's player would answer at its turn."""
        teacher = self.writers[role].teacher
        return None if teacher is None else teacher.answer(table.dialogue, role, self._key(table, role, TEACHER))

    # ---- what came of it ---------------------------------------------------------------------------------

    def rollouts(self) -> Rollouts:
        """Return the decisions of the dialogues that are over, with what each role got."""
        return Rollouts(
            row.rewarded(table.dialogue.returns[row.role])
            for table in self.tables
            if table.dialogue.is_over
            for row in table.rows
        )

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what was answered, by which `load_state_dict` plays the dialogues again up to here."""
        failed = [
            [number, role, [text for text, _ in answers]]
            for number, table in enumerate(self.tables)
            for role, answers in table.open.items()
            if answers
        ]
        rows = Rollouts(row for table in self.tables for row in table.rows).to_parquet()
        wave = [list(each) for each in self.wave]
        return {"rows": torch.frombuffer(bytearray(rows), dtype=torch.uint8), "failed": failed, "wave": wave}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, of dialogues with the same arguments."""
        rows = Rollouts.from_parquet(state["rows"].numpy().tobytes())
        by_table = {(rows[0].question, rows[0].rollout): rows for rows in rows.dialogues()}
        begun = self.game.begin_all(
            [table.question for table in self.tables], [fold_number(table.key, 0) for table in self.tables]
        )
        for table, dialogue in zip(self.tables, begun, strict=True):
            table.dialogue, table.rows = dialogue, []
            table.begin_round()
            for row in by_table.get((table.question.number, table.rollout), []):
                self._do(table, row, self._move(table, row.role, row.answer))
        for number, role, texts in state["failed"]:
            table = self.tables[number]
            turn = table.dialogue.turns()[role]
            found = [(text, self.game.read(turn, text)) for text in texts]
            table.open[role] = [(text, fault) for text, fault in found if isinstance(fault, Fault)]
        self.wave = [(number, role) for number, role in state["wave"]]
