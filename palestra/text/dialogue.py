"""A dialogue in words, by the rules of a protocol: who must answer now, what an answer changes, and who is paid."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from palestra.games.dialogue.protocol import Protocol, Verdict
from palestra.text.grammar import Move, Turn


@dataclass(frozen=True)
class Question:
    """What a dialogue is about.

    number: which one of its epoch or evaluation it is. fields: texts by name. label: 0 or 1, which decision is right.
    """

    number: int
    fields: Mapping[str, str]
    label: int


@dataclass(frozen=True)
class TextDialogue:
    """A dialogue after some rounds. It never changes: `after` gives another one, so that dialogues may fork.

    variant: of the protocol. rounds: what each role did that had a turn, by round. rewards: what each role got, by
    round. verdicts: by verifier, None before a decision.
    """

    protocol: Protocol
    question: Question
    variant: int
    rounds: tuple[Mapping[str, Move], ...] = ()
    rewards: tuple[Mapping[str, float], ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.verdicts:
            object.__setattr__(self, "verdicts", dict.fromkeys(self.protocol.verifiers))

    @property
    def round(self) -> int:
        """The number of the round that comes next."""
        return len(self.rounds)

    @cached_property
    def is_over(self) -> bool:
        return self.protocol.is_over(self.round, self.verdicts)

    @property
    def returns(self) -> dict[str, float]:
        """The sum of what each role got."""
        return {role: sum(rewards[role] for rewards in self.rewards) for role in self.protocol.roles}

    def turns(self) -> Mapping[str, Turn]:
        """Return who must answer in this round, all at once, and what each may do; {} if nobody can do anything."""
        return self._turns

    @cached_property
    def _turns(self) -> dict[str, Turn]:
        found = {} if self.is_over else {role: self._turn(role) for role in self.protocol.roles}
        return {role: turn for role, turn in found.items() if turn.channels or turn.may_decide}

    def _turn(self, role: str) -> Turn:
        rules, now = self.protocol, (self.round, self.variant)
        if not rules.has_turn(role, *now, self.verdicts.get(role)):
            return Turn((), may_decide=False)
        channels = tuple(channel for channel in rules.channels if rules.speaks(role, channel, *now))
        return Turn(channels, role in rules.verifiers and rules.may_decide(role, *now))

    def is_last_chance(self, role: str) -> bool:
        """Tell whether a role may decide now and in no later round."""
        rules, later = self.protocol, range(self.round + 1, self.protocol.max_rounds)
        turn = self.turns().get(role)
        return turn is not None and turn.may_decide and not any(rules.may_decide(role, r, self.variant) for r in later)

    def after(self, moves: Mapping[str, Move]) -> "TextDialogue":
        """Return the dialogue after a round in which each role that has a turn has moved.

        Raises ValueError for a dialogue that is over, and for moves that the turns do not allow.
        """
        turns = self.turns()
        if self.is_over or moves.keys() != turns.keys():
            expected = "none, because the dialogue is over" if self.is_over else ", ".join(turns) or "none"
            raise ValueError(f"expected moves of {expected}, got those of {', '.join(moves) or 'none'}")
        for role, move in moves.items():
            if not move.messages.keys() <= set(turns[role].channels):
                raise ValueError(f"expected {role!r} to speak in {turns[role].channels}, got {set(move.messages)}")
            if move.decision is not None and not turns[role].may_decide:
                raise ValueError(f"expected no decision of {role!r} in round {self.round}, got {move.decision}")
        decided = {role: move.decision for role, move in moves.items() if move.decision is not None}
        verdicts = {**self.verdicts, **decided}
        rewards = self._rewards(verdicts)
        return replace(self, rounds=(*self.rounds, moves), rewards=(*self.rewards, rewards), verdicts=verdicts)

    def _rewards(self, verdicts: Mapping[str, Verdict]) -> dict[str, float]:
        """Return what each role gets by this round. verdicts: after it."""
        rules, rewards = self.protocol, dict.fromkeys(self.protocol.roles, 0.0)
        for verifier in rules.verifiers:
            if rules.goes_on(verifier, self.round, self.variant, verdicts):
                for role in rules.paid_for(verifier):
                    rewards[role] += rules.rewards.go_on
        if rules.is_over(self.round + 1, verdicts):
            for role in rules.roles:
                rewards[role] += rules.reward(role, verdicts, self.question.label, self.variant)
        return rewards

    def heard(self, role: str, round: int) -> list[dict[str, Any]]:
        """List what others said in a round in the channels that a role sees, in the order of roles and channels.

        Each message is what the part `heard` of a prompt is told: the name of who said it, channel, text and round.
        """
        moves, seen = self.rounds[round], self.protocol.channels
        return [
            {"name": other, "channel": channel, "text": text, "round": round}
            for other in self.protocol.roles
            if other in moves and other != role
            for channel, text in moves[other].messages.items()
            if role in seen[channel]
        ]
