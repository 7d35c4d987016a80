"""Dialogues that are being played, and trees of them: who must still answer, and what was decided."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean

from palestra.text.chat import Prompt
from palestra.text.dialogue import Question, TextDialogue
from palestra.text.grammar import Fault, Move
from palestra.text.rollouts import DecisionRow


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
            part = Table(self.question, self.rollout, self.key, self.dialogue)
            part.open, part.prompts = {role: [] for role in self.open}, self.prompts
            part.path, part.first = path, (path - 1) * most_decisions
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
