"""Plays dialogues in waves: all decisions that wait for one model are answered together, batch by batch.

What is computed together follows from the config and from earlier answers alone. The state is what was answered, so
dialogues go on from any batch. Models behind servers are asked at once by every dialogue that waits for them, and a
dialogue goes on as soon as its own answers are there; what they have answered is found again in the run's journals.

A dialogue may fork into several continuations in each round, which makes it a tree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

import torch

from palestra.games.dialogue.protocol import Verdict
from palestra.randomness import fold_number
from palestra.text.dialogue import SILENT, Fault, Move, Question, TextDialogue
from palestra.text.game import TextGame
from palestra.text.models.model import Answer, Prompt, PromptRefused, Request, SamplingConfig, TextModel
from palestra.text.rollouts import DecisionRow, Rollouts, read_rollouts
from palestra.text.scripts import TextScript
from palestra.text.servers.model import ServerModel, answers_of


@dataclass
class Table:
    """A dialogue that is being played, or a part of a tree of them: from one fork to the next one.

    moves: of this round, by role. open: by role that still must answer, the answers that were asked for again, each
    with the reason. rows: the decisions so far, without rewards. prompts: what roles read first in this round, which
    continuations share. parts: the continuations into which it has forked.

    path: of a tree, its place there: 1 at the root; continuation i of path p is p * continuations + i. first: the
    number that the first decision of its dialogue would have on this path. depth: how many decisions its dialogue had
    before this round; parent: the number of the last of them.
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
            open_ = {role: list[tuple[str, Fault]]() for role in self.open}
            part = replace(self, path=path, first=(path - 1) * most_decisions, open=open_, moves={}, rows=[], parts=[])
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


MOST_TOGETHER = 32  # answers of one call
WAIT_S = 0.5  # for an answer of a server, before the caller has its turn
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
    """A prompt of a question and a role that the player's model cannot read. why: what the model says of it."""

    def __init__(self, question: int, role: str, player: str, why: PromptRefused) -> None:
        super().__init__(question, role, player, why)
        self.told = f"question {question}, {role!r} (player {player!r}): {why}"

    def __str__(self) -> str:
        return self.told


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
        self._openings: dict[tuple[int, int, int], dict[str, Prompt]] = {}  # by question, round and variant; by role
        pairs = [(question, rollout) for question in questions for rollout in range(num_rollouts)]
        self._begin([(*pair, fold_number(fold_number(key, pair[0].number), pair[1])) for pair in pairs])
        for table in self.tables:
            self._let_scripts_answer(table)
        self.wave: list[tuple[Table, str]] = []  # decisions that wait for one model
        servers = [each.by for each in writers.values() if isinstance(each.by, ServerModel)]
        self.calls = servers[0].calls if servers else None
        self._session = -1  # of the calls in which these were made
        self._asked: dict[int, list[tuple[Table, str, Prompt]]] = {}  # decisions that wait for a server, by ticket
        self._waiting: set[tuple[int, str]] = set()  # these decisions, by the id of their dialogue
        self._moved: list[Table] = []  # dialogues in which somebody may have to be asked

    def _begin(self, places: Sequence[tuple[Question, int, int]]) -> None:
        """Begin all dialogues: each of a question, the number of a roll-out, and a key."""
        self._counts = {"env_steps": 0, "episodes": 0, "tokens": 0}
        keys = [fold_number(key, 0) for _, _, key in places]
        begun = self.game.begin_all([question for question, _, _ in places], keys)
        self.tables = [Table(*place, dialogue) for place, dialogue in zip(places, begun, strict=True)]
        for table in self.tables:
            self._begin_round(table)

    # ---- playing -----------------------------------------------------------------------------------------

    @property
    def num_over(self) -> int:
        """How many dialogues, or whole trees, are over."""
        return sum(table.is_over for table in self.tables)

    def counts(self) -> dict[str, int]:
        """Count the rounds that were played (env_steps), the dialogues that are over (episodes), the tokens drawn.

        Those of servers are what their usage says, or the most that they can be where there is none.
        """
        return dict(self._counts)

    def _parts(self) -> Iterator[Table]:
        """Go through all dialogues, and in trees through all parts, in an order that follows from what was answered."""
        return (part for table in self.tables for part in table.all_parts())

    @property
    def is_waiting(self) -> bool:
        """Whether servers still have to answer."""
        return bool(self._asked)

    def play_batch(self) -> bool:
        """Go on with what servers have answered, or else answer the next batch of decisions, or wait a moment.

        Returns False if all dialogues are over. Raises PromptTooLong; CallFailed, BudgetReached and RunFolderError, as
        Calls.take does.
        """
        self._ask_servers()
        if self._take_from_servers(0.0):
            return True
        if not self.wave:
            self.wave = self._next_wave()
        if not self.wave:
            if self.is_waiting:
                self._take_from_servers(WAIT_S)
                return True
            return False
        batch = self.wave[: self.batch_size]
        writer = self.writers[batch[0][1]]
        assert isinstance(writer.by, TextModel)
        keys = [self._key(table, role, len(table.open[role])) for table, role in batch]
        requests = [Request(*each) for each in zip(self._prompts(batch), keys, strict=True)]
        try:
            assert writer.sampling is not None
            answers = writer.by.sample(requests, writer.sampling)
        except PromptRefused as error:
            table, role = batch[error.index]
            raise PromptTooLong(table.question.number, role, writer.name, error) from error
        self.wave = self.wave[len(batch) :]
        for (table, role), request, answer in zip(batch, requests, answers, strict=True):
            self._take(table, role, request.prompt, answer)
        return True

    def _next_wave(self) -> list[tuple[Table, str]]:
        """Return the decisions that wait for the model for which most wait; of equal ones, that of the first role."""
        waiting: dict[str, list[tuple[Table, str]]] = {writer.name: [] for writer in self.writers.values()}
        for table in self._parts():
            for role in table.open:
                if not isinstance(self.writers[role].by, ServerModel):
                    waiting[self.writers[role].name].append((table, role))
        return max(waiting.values(), key=len)

    def _ask_servers(self) -> None:
        """Ask for all answers of servers for which a dialogue waits and nobody has asked."""
        if self.calls is None:
            return
        if self.calls.session != self._session:  # nothing that was asked before will come
            self._session, self._asked, self._moved = self.calls.session, {}, list(self.tables)
            self._waiting.clear()
        groups: dict[tuple[Any, ...], list[tuple[Table, str, Prompt]]] = {}
        open_now = [(part, role) for each in self._moved for part in each.all_parts() for role in part.open]
        of_servers = [each for each in open_now if isinstance(self.writers[each[1]].by, ServerModel)]
        new = {(id(t), role): (t, role) for t, role in of_servers if (id(t), role) not in self._waiting}
        asked = list(new.values())
        for (table, role), prompt in zip(asked, self._prompts(asked), strict=True):
            self._waiting.add((id(table), role))
            groups.setdefault((role, prompt, *self._event(table, role)), []).append((table, role, prompt))
        self._moved = []
        for group in groups.values():
            for first in range(0, len(group), MOST_TOGETHER):
                self._ask(group[first : first + MOST_TOGETHER])

    def _event(self, table: Table, role: str) -> tuple[int, ...]:
        """Return what decisions with the same prompt have in common that begin to wait at the same moment.

        It must follow from answers alone: after a kill the same decisions make up a call. So these are the decisions of
        a question before which no model has said anything, and those of the continuations of one round.
        """
        at = (table.question.number, table.dialogue.round)
        if table.open[role]:
            return (*at, table.rollout, table.path, len(table.open[role]))
        if self.num_continuations > 1:
            parent = table.path // self.num_continuations
            return at if parent == 1 else (*at, table.rollout, parent)
        has_begun = any(row.stop != "scripted" and row.round < table.dialogue.round for row in table.rows)
        return (*at, table.rollout) if has_begun else at

    def _ask(self, group: list[tuple[Table, str, Prompt]]) -> None:
        """Ask a server by one call for the answers to one prompt."""
        table, role, prompt = group[0]
        writer, number = self.writers[role], table.question.number
        assert isinstance(writer.by, ServerModel)
        attempt = len(table.open[role])
        decisions: list[list[int | str]] = [[number, t.rollout, t.node(role), role, attempt] for t, _, _ in group]
        try:
            assert writer.sampling is not None
            ticket = writer.by.ask(prompt, self._key(table, role, attempt), decisions, writer.sampling)
        except PromptRefused as error:
            raise PromptTooLong(number, role, writer.name, error) from error
        self._asked[ticket] = group

    def _take_from_servers(self, wait_s: float) -> bool:
        """Go on with what has come; wait at most so long if nothing has. Returns whether anything has."""
        if not self._asked:
            return False
        assert self.calls is not None
        found = self.calls.take(self._asked, wait_s)
        for ticket, reply in found.items():
            group = self._asked.pop(ticket)
            sampling = self.writers[group[0][1]].sampling
            assert sampling is not None
            most = len(group) * sampling.max_tokens
            self._counts["tokens"] += most if reply.num_tokens is None else reply.num_tokens
            for (table, role, prompt), answer in zip(group, answers_of(reply), strict=True):
                self._waiting.discard((id(table), role))
                self._take(table, role, prompt, answer)
        return bool(found)

    def _prompts(self, decisions: Sequence[tuple[Table, str]]) -> list[Prompt]:
        """Write what roles read: once for all continuations, and the first prompt once for all roll-outs."""
        places = [({} if table.open[role] else self._known(table), role) for table, role in decisions]
        new = {
            (id(known), role): (known, role, (table.dialogue, role, table.open[role]))
            for (known, role), (table, _) in zip(places, decisions, strict=True)
            if role not in known
        }
        written = self.game.write_prompts([turn for _, _, turn in new.values()])
        for (known, role, _), prompt in zip(new.values(), written, strict=True):
            known[role] = prompt
        return [known[role] for known, role in places]

    def _known(self, table: Table) -> dict[str, Prompt]:
        """Return the prompts of a dialogue's round that are written, by role, where nobody has been asked again."""
        which = (table.question.number, table.dialogue.round, table.dialogue.variant)
        return table.prompts if any(table.dialogue.rounds) else self._openings.setdefault(which, {})

    def _key(self, table: Table, role: str, attempt: int) -> int:
        """Return the key of an answer, by roll-out, node, role and attempt."""
        of_node = fold_number(fold_number(table.key, 1), table.node(role))
        return fold_number(fold_number(of_node, self.game.roles.index(role)), attempt)

    def _take(self, table: Table, role: str, prompt: Prompt, answer: Answer) -> None:
        """Go on with what a model has answered."""
        self._moved.append(table)
        self._counts["tokens"] += len(answer.ids)
        sampling = self.writers[role].sampling
        assert sampling is not None
        self._answer(table, role, prompt, replace(answer, text=sampling.cut(answer.text)))
        self._let_scripts_answer(table)

    def _let_scripts_answer(self, table: Table) -> None:
        """Play on until a model must answer, or the dialogue is over."""
        while (role := next((each for each in table.open if self._is_scripted(each)), None)) is not None:
            script = self.writers[role].by
            assert isinstance(script, TextScript)
            text = script.answer(table.dialogue, role, self._key(table, role, 0))
            [prompt] = self._prompts([(table, role)])
            self._answer(table, role, prompt, Answer(text, (), (), (), "stop"))
        for part in table.parts:
            self._let_scripts_answer(part)

    def _is_scripted(self, role: str) -> bool:
        return isinstance(self.writers[role].by, TextScript)

    def _answer(self, table: Table, role: str, prompt: Prompt, answer: Answer) -> None:
        """Let a role do what was answered, or have it asked again."""
        found, failed = self.game.read(table.dialogue.turns()[role], answer.text), table.open[role]
        if isinstance(found, Fault) and len(failed) < self.writers[role].num_retries:
            failed.append((answer.text, found))
        else:
            decision = None if isinstance(found, Fault) else found.decision
            self._do(table, self._row(table, role, prompt, answer, decision, len(failed) + 1), found)

    def _do(self, table: Table, row: DecisionRow, move: Move | Fault) -> None:
        """Note a decision; the last one of a round ends it. move: a fault that is not asked about again is silence."""
        table.rows.append(row)
        table.moves[row.role] = SILENT if isinstance(move, Fault) else move
        del table.open[row.role]
        if not table.open:
            ended = table.dialogue.round
            table.dialogue = table.dialogue.after(table.moves)
            self._begin_round(table, ended)

    def _begin_round(self, table: Table, ended: int = 0) -> None:
        """Begin the next round of a dialogue; where models answer in it, a tree forks.

        ended: the round that has just ended, from which on rounds are counted.
        """
        table.begin_round()
        self._counts["env_steps"] += table.dialogue.round - ended
        self._counts["episodes"] += table.dialogue.is_over
        if self.num_continuations > 1 and not all(map(self._is_scripted, table.open)):
            table.fork(self.num_continuations, self._most_decisions)

    def _row(
        self, table: Table, role: str, prompt: Prompt, answer: Answer, verdict: Verdict, attempts: int
    ) -> DecisionRow:
        teacher = self.writers[role].teacher
        taught = None if teacher is None else teacher.answer(table.dialogue, role, self._key(table, role, TEACHER))
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
            taught=taught,
            returns=None,
        )

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
        answered = torch.frombuffer(bytearray(rows), dtype=torch.uint8)
        return {"rows": answered, "failed": failed, "wave": wave, "tokens": self._counts["tokens"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, of dialogues with the same arguments."""
        rows = read_rollouts(state["rows"].numpy().tobytes(), "the checkpoint's dialogues")
        self._begin([(table.question, table.rollout, table.key) for table in self.tables])
        numbers = {(table.question.number, table.rollout): number for number, table in enumerate(self.tables)}
        parts = {(number, part.path): part for number, root in enumerate(self.tables) for part in root.all_parts()}
        for row in rows.rows:  # those of a part before those of its continuations
            number = numbers[row.question, row.rollout]
            part = parts[number, 1 + row.node // self._most_decisions]
            self._do(part, row, self.game.read(part.dialogue.turns()[row.role], row.answer))
            parts |= {(number, each.path): each for each in part.parts}
        self._counts["tokens"] = state["tokens"]
        for number, path, role, texts in state["failed"]:
            part = parts[number, path]
            found = [(text, self.game.read(part.dialogue.turns()[role], text)) for text in texts]
            part.open[role] = [(text, fault) for text, fault in found if isinstance(fault, Fault)]
        self.wave = [(parts[number, path], role) for number, path, role in state["wave"]]
