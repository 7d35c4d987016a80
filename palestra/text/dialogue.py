"""A dialogue in words, by the rules of a protocol: who must answer now, what an answer means, and who is paid.

An answer is a decision, or messages in channels. Its grammar has literals alone, no regular expressions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pydantic import model_validator

from palestra.config import Config, ConfigError, ConfigErrorItem, NonEmptyStr, cut
from palestra.games.dialogue.protocol import ACCEPT, REJECT, VERDICTS, Protocol, Verdict


@dataclass(frozen=True)
class Turn:
    """What a role may do in a round: speak in channels, decide, or both."""

    channels: tuple[str, ...]
    may_decide: bool


@dataclass(frozen=True)
class Move:
    """What a role has done in a turn.

    answer: as it was written; None: the role is silent. decision: None: it goes on. messages: by channel.
    """

    answer: str | None
    decision: Verdict
    messages: Mapping[str, str]


SILENT = Move(None, None, {})


@dataclass(frozen=True)
class Fault:
    """Why an answer is asked for again. kind: `decision`, `header`, `empty` or `channel`. message: for the role."""

    kind: str
    message: str


class GrammarConfig(Config):
    accept: NonEmptyStr
    """the answer that accepts, as a whole; blanks and line breaks around it do not count"""
    reject: NonEmptyStr
    """the answer that rejects"""
    headers: dict[str, NonEmptyStr]
    """by channel, the line below which a role writes its message if it speaks in several channels at once"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], protocol: Protocol | None) -> dict[str, Any]:
        words: dict[str, Any] = {"accept": "accept", "reject": "reject", "headers": {}}
        if protocol is None:
            return words
        several = {channel for role in protocol.roles for channel in spoken_at_once(protocol, role)}
        return words | {"headers": {channel: f"# {channel}" for channel in protocol.channels if channel in several}}

    @model_validator(mode="after")
    def _check_words(self) -> "GrammarConfig":
        ConfigError.require_none(self._faults())
        return self

    def _faults(self) -> Iterator[ConfigErrorItem]:
        words = {"accept": self.accept, "reject": self.reject}
        words |= {f"headers.{channel}": header for channel, header in self.headers.items()}
        before: dict[str, str] = {}
        for path, word in words.items():
            if word != word.strip() or len(word.splitlines()) > 1:
                yield ConfigErrorItem(path, f"expected one line without blanks at its ends, got {cut(repr(word))}")
            if word in before:
                yield ConfigErrorItem(path, f"expected another text than that of {before[word]}, got {cut(repr(word))}")
            before[word] = path


class Grammar:
    """Reads answers, and writes what scripted players say. Raises ConfigError for channels that do not fit."""

    def __init__(self, config: GrammarConfig, protocol: Protocol) -> None:
        self.config, self.words = config, (config.reject, config.accept)  # by verdict
        ConfigError.require_none(_faults_of_headers(config, protocol))

    def read(self, answer: str, turn: Turn) -> Move | Fault:
        """Say what an answer means in a turn, or why it must be asked for again."""
        if not (text := answer.strip()):
            return Fault("empty", "The answer is empty.")
        for verdict, word in zip(VERDICTS, self.words, strict=False):
            if text == word:
                if turn.may_decide:
                    return Move(answer, verdict, {})
                return Fault("decision", f"{word!r} is a decision, which cannot be made now.")
        if not turn.channels:
            return Fault("channel", f"The answer must be {self.words[ACCEPT]!r} or {self.words[REJECT]!r}.")
        if len(turn.channels) == 1:
            return Move(answer, None, {turn.channels[0]: text})
        return self._messages(answer, turn.channels)

    def _messages(self, answer: str, channels: Sequence[str]) -> Move | Fault:
        """Divide an answer at the lines that are headers of the channels."""
        by_header = {self.config.headers[channel]: channel for channel in channels}
        lines: dict[str, list[str]] = {}
        current: list[str] | None = None
        for line in answer.split("\n"):
            channel = by_header.get(line.strip())
            if channel is not None and channel in lines:
                return Fault("header", f"The line {line.strip()!r} stands twice.")
            if channel is not None:
                current = lines.setdefault(channel, [])
            elif current is not None:
                current.append(line)
            elif line.strip():
                return Fault("header", f"The answer must begin with one of the lines {_quoted(by_header)}.")
        if missing := [header for header, channel in by_header.items() if channel not in lines]:
            return Fault("header", f"The answer lacks {_quoted(missing)}, each on a line of its own.")
        messages = {channel: "\n".join(lines[channel]).strip() for channel in channels}
        if "" in messages.values():
            empty = [header for header, channel in by_header.items() if not messages[channel]]
            return Fault("empty", f"There is no message below {_quoted(empty)}.")
        return Move(answer, None, messages)

    def write(self, messages: Mapping[str, str]) -> str:
        """Write the answer that says these messages, by channel. `read` gives them back, up to blanks at their ends."""
        if len(messages) == 1:
            return next(iter(messages.values()))
        return "\n".join(f"{self.config.headers[channel]}\n{text}" for channel, text in messages.items())


def spoken_at_once(protocol: Protocol, role: str) -> set[str]:
    """Return the channels in which a role speaks together with another one."""
    turns = [[c for c in protocol.channels if protocol.speaks(role, c, *when)] for when in protocol.moments()]
    return {channel for channels in turns if len(channels) > 1 for channel in channels}


def _faults_of_headers(config: GrammarConfig, protocol: Protocol) -> Iterator[ConfigErrorItem]:
    for channel in config.headers:
        if channel not in protocol.channels:
            known = ", ".join(protocol.channels) or "none"
            yield ConfigErrorItem(f"headers.{channel}", f"unknown key; the channels of the protocol are {known}")
    several = {channel: role for role in protocol.roles for channel in spoken_at_once(protocol, role)}
    for channel in protocol.channels:
        if channel in several and channel not in config.headers:
            why = f"because {several[channel]!r} speaks there and elsewhere at once, but the key is missing"
            yield ConfigErrorItem(f"headers.{channel}", f"expected a line to write above a message, {why}")


def _quoted(headers: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(map(repr, headers))


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
