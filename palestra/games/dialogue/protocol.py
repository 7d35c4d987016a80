"""What a protocol is: who speaks when, who decides, and what they get for it.

Plain functions of numbers, which know no tensors, so that dialogues of text follow the same classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, ClassVar, Literal

from palestra.config import Config
from palestra.config.errors import enumerated

REJECT = 0
ACCEPT = 1
Verdict = Literal[0, 1] | None  # None: no decision before the dialogue was over
VERDICTS: tuple[Verdict, ...] = (0, 1, None)
DECISIONS = ("reject", "accept", "go on")  # a verifier's choices; the first two are verdicts
GO_ON = 2
MOST_LISTED = 4  # rounds; of more, if equally far apart, only the first two and the last are named


class RewardsConfig(Config):
    usual: ClassVar = {
        **{"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0},
        **{"prover": 1.0, "shared": False},
    }

    right: float
    """a verifier that decides for the label"""
    wrong: float
    """a verifier that decides against the label"""
    out_of_time: float
    """a verifier that has not decided after the last round"""
    go_on: float
    """a verifier, each time that it could have decided and the dialogue goes on"""
    prover: float
    """a prover when a verifier decides for its side"""
    shared: bool
    """true: provers get the rewards of the (first) verifier instead"""


class Protocol(ABC):
    """The rules of a dialogue. Rounds and variants count from 0; in a round everyone speaks who may, at once.

    Must be set: `roles`; `verifiers`, those of them that decide; `channels`, each with the roles that see it; `sides`,
    by prover the verdict for which it argues (REJECT or ACCEPT), or one for each variant, as a tuple. In each round of
    each variant at most one role speaks in a channel. May be set: `num_variants`; each is as likely as the others, it
    is drawn for every game, and nobody sees it; a prover whose side depends on it sees its own side. Must be
    implemented: `speaks`; may be: `is_active`, `reward`, `paid_for`.

    A verifier takes part until it has decided, and the dialogue lasts until all have decided: `has_turn`, `is_over` and
    `goes_on` say this once, for dialogues of tensors and of text.

    `__init__` is called with the config, whose `rewards` are a RewardsConfig, and sets `min_rounds` and `max_rounds`. A
    protocol of your own carries its keys as `Config`, a UserConfig.
    """

    roles: tuple[str, ...]
    verifiers: tuple[str, ...]
    channels: Mapping[str, tuple[str, ...]]
    sides: Mapping[str, int | tuple[int, ...]]
    num_variants: int = 1

    def __init__(self, config: Any, min_rounds: int, max_rounds: int) -> None:
        """Make a protocol whose decisions and end come at their time.

        min_rounds: decisions of a verifier before so many rounds do not count, and cannot be made. max_rounds: after so
        many rounds without a decision the dialogue is over.
        """
        self.config, self.min_rounds, self.max_rounds = config, min_rounds, max_rounds
        self.rewards: RewardsConfig = config.rewards

    @abstractmethod
    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        """Tell whether a role sends a message in a channel in this round."""

    def is_active(self, verifier: str, round: int, variant: int) -> bool:
        """Tell whether a verifier has its turn, in which it may decide: where it speaks."""
        return any(self.speaks(verifier, channel, round, variant) for channel in self.channels)

    def may_decide(self, verifier: str, round: int, variant: int) -> bool:
        """Tell whether a decision of a verifier counts in this round."""
        return round + 1 >= self.min_rounds and self.is_active(verifier, round, variant)

    def has_turn(self, role: str, round: int, variant: int, verdict: Verdict) -> bool:
        """Tell whether a role has its turn. verdict: its own so far, with which a verifier's part has ended."""
        if verdict is not None:
            return False
        if role in self.verifiers and self.is_active(role, round, variant):
            return True
        return any(self.speaks(role, channel, round, variant) for channel in self.channels)

    def is_over(self, round: int, verdicts: Mapping[str, Verdict]) -> bool:
        """Tell whether the dialogue is over before a round: all verifiers have decided, or it is out of time."""
        return round >= self.max_rounds or None not in verdicts.values()

    def side(self, prover: str, variant: int) -> int:
        """Return the verdict for which a prover argues."""
        side = self.sides[prover]
        return side[variant] if isinstance(side, tuple) else side

    def sees_side(self, role: str) -> bool:
        """Tell whether a role is shown its side in every game, because the variant decides it."""
        return role not in self.verifiers and isinstance(self.sides[role], tuple)

    def reward(self, role: str, verdicts: Mapping[str, Verdict], label: int, variant: int) -> float:
        """Return what a role gets when the dialogue is over. verdicts: by verifier. label: 0 or 1."""
        if role in self.verifiers or self.rewards.shared:
            if (verdict := verdicts[role if role in self.verifiers else self.verifiers[0]]) is None:
                return self.rewards.out_of_time
            return self.rewards.right if verdict == label else self.rewards.wrong
        return self.rewards.prover if self.side(role, variant) in verdicts.values() else 0.0

    def paid_for(self, verifier: str) -> tuple[str, ...]:
        """Return the roles that get `go_on` each time that a verifier could have decided and the dialogue goes on."""
        shares = self.rewards.shared and verifier == self.verifiers[0]
        return tuple(role for role in self.roles if role == verifier or (shares and role not in self.verifiers))

    def goes_on(self, verifier: str, round: int, variant: int, verdicts: Mapping[str, Verdict]) -> bool:
        """Tell whether a verifier could decide in a round and goes on. verdicts: after the round."""
        could_decide = verdicts[verifier] is None and self.may_decide(verifier, round, variant)
        return could_decide and not self.is_over(round + 1, verdicts)

    def speakers(self, channel: str) -> list[str]:
        """Return the roles that ever speak in a channel, in the order of `roles`."""
        return [role for role in self.roles if any(self.speaks(role, channel, *when) for when in self.moments())]

    def moments(self) -> Iterator[tuple[int, int]]:
        """Go through every round of every variant."""
        return product(range(self.max_rounds), range(self.num_variants))


def faults_of_names(protocol: Protocol) -> list[str]:
    """Say what is wrong with the roles, channels, sides and rounds of a protocol, in a line each."""
    named = [
        *(("verifiers", role) for role in protocol.verifiers),
        *(("sides", role) for role in protocol.sides),
        *((f"channels: {channel!r}", role) for channel, seen_by in protocol.channels.items() for role in seen_by),
    ]
    faults = [
        f"{place}: expected one of the roles {', '.join(protocol.roles)}, got {role!r}"
        for place, role in named
        if role not in protocol.roles
    ]
    for place, names in (("roles", protocol.roles), ("channels", protocol.channels)):
        faults += [f"{place}: expected names without '/', got {name!r}" for name in names if "/" in name]
    if not protocol.verifiers:
        faults.append("verifiers: expected at least one, because somebody must decide, got none")
    if not 1 <= protocol.min_rounds <= protocol.max_rounds:
        got = f"min_rounds {protocol.min_rounds} and max_rounds {protocol.max_rounds}"
        faults.append(f"expected 1 <= min_rounds <= max_rounds, got {got}")
    for role in protocol.roles:
        side = protocol.sides.get(role)
        sides = side if isinstance(side, tuple) else (side,) * protocol.num_variants
        if role not in protocol.verifiers and (
            len(sides) != protocol.num_variants or any(each not in (REJECT, ACCEPT) for each in sides)
        ):
            expected = "expected 0 (reject) or 1 (accept)"
            expected += f", or a tuple of {protocol.num_variants}," if isinstance(side, tuple) else ""
            faults.append(f"sides: {expected} of the prover {role!r}, got {'none' if side is None else repr(side)}")
    return faults


def faults_of_turns(protocol: Protocol) -> Iterator[str]:
    """Say what is wrong with who speaks and decides when, in a line each."""
    for channel, seen_by in protocol.channels.items():
        speakers = protocol.speakers(channel)
        for role in speakers:
            if role not in seen_by:
                got = ", ".join(seen_by)
                yield f"expected {role!r}, which speaks in the channel {channel!r}, to see it, got only {got}"
        for round, variant in protocol.moments():
            at_once = [role for role in speakers if protocol.speaks(role, channel, round, variant)]
            if len(at_once) > 1:
                yield f"expected one role to speak in {channel!r} in round {round}, got {' and '.join(at_once)}"
                break
    for verifier in protocol.verifiers:
        for variant in range(protocol.num_variants):
            if not any(protocol.may_decide(verifier, round, variant) for round in range(protocol.max_rounds)):
                where = f" in variant {variant}" if protocol.num_variants > 1 else ""
                when = (
                    f"(from round {protocol.min_rounds - 1} on, wherever `is_active` is true: where it speaks, unless"
                )
                expected = f"expected a round in which {verifier!r} can decide{where} {when} overridden)"
                yield f"{expected}, got none in {protocol.max_rounds} rounds"
                break
    provers = [role for role in protocol.roles if role not in protocol.verifiers]
    for role in provers:
        if not any(role in protocol.speakers(channel) for channel in protocol.channels):
            yield f"expected the prover {role!r} to speak in some channel, got none"


class ProtocolConfig(Config):
    """Base of the configs of the protocols of this package."""

    made: ClassVar[type[Protocol]]

    name: str
    rewards: RewardsConfig
    """what verifiers and provers get; all rewards but `go_on` come when the dialogue is over"""

    def build(self) -> Protocol:
        return self.made(self)  # type: ignore[call-arg]


# ---- in plain words ----------------------------------------------------------------------------------------


def turns_in_words(name: str, protocol: Protocol) -> list[str]:
    """Describe a protocol: a line on the whole, one for each channel, one for each turn.

    Rounds (of a variant) that are alike share a line. name: the protocol's.
    """
    rounds, variants = protocol.max_rounds, protocol.num_variants
    drawn = f", in {variants} variants, one of which is drawn for every game" if variants > 1 else ""
    head = f"dialogue {name}: {'at most ' * (rounds > 1)}{rounds} round{'s' * (rounds != 1)}{drawn}"
    channels = [f"  channel {channel}: seen by {enumerated(seen)}" for channel, seen in protocol.channels.items()]
    for role in filter(protocol.sees_side, protocol.roles):
        sides = [f"{DECISIONS[protocol.side(role, k)]} in variant {k}" for k in range(variants)]
        channels.append(f"  {role} argues for {enumerated(sides)}, and sees for which")
    return [head, *channels, *(f"  {when}: {turn}" for when, turn in _turns(protocol))]


def sights_in_words(scenario: Any) -> list[str]:
    """Say in a line which of the fields or columns of a scenario each role sees, if its config names them."""
    sees: Mapping[str, Sequence[str]] = getattr(scenario, "sees", {})
    told = (f"{role} sees {enumerated(names) if names else 'nothing'}" for role, names in sees.items())
    return [f"  of {scenario.name}: {'; '.join(told)}"] if sees else []


def drawn_sides(protocol: Protocol, roles: Sequence[str], variant: int) -> str:
    """Say for which verdicts those of some roles argue whose sides are drawn, as "; prover argues for accept"."""
    told = [(role, protocol.side(role, variant)) for role in roles if protocol.sees_side(role)]
    return "".join(f"; {role} argues for {DECISIONS[side]}" for role, side in told)


def _turns(protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Give the turns in the order of their first rounds: when they are, and what happens in them."""
    variants = range(protocol.num_variants)
    alike: dict[tuple[str, ...], list[int]] = {}  # what happens, by variant, and in which rounds
    for round in range(protocol.max_rounds):
        alike.setdefault(tuple(_turn(protocol, round, variant) for variant in variants), []).append(round)
    for by_variant, rounds in alike.items():
        steps = {after - before for before, after in pairwise(rounds)}
        are_many = len(rounds) > MOST_LISTED and len(steps) == 1
        listed = f"{rounds[0]}, {rounds[1]}, ..., {rounds[-1]}" if are_many else enumerated([*map(str, rounds)])
        when = f"round{'s' * (len(rounds) > 1)} {listed}"
        for turn in dict.fromkeys(by_variant):
            those = [str(variant) for variant in variants if by_variant[variant] == turn]
            everywhere = len(those) == len(variants)
            yield when if everywhere else f"{when}, variant{'s' * (len(those) > 1)} {enumerated(those)}", turn


def _turn(protocol: Protocol, round: int, variant: int) -> str:
    parts = []
    for role in protocol.roles:
        spoken = [channel for channel in protocol.channels if protocol.speaks(role, channel, round, variant)]
        does = [f"speaks in {enumerated(spoken)}"] if spoken else []
        if role in protocol.verifiers and protocol.may_decide(role, round, variant):
            does.append("may decide")
        if does:
            parts.append(f"{role} {', '.join(does)}")
    return "; ".join(parts) or "nobody speaks"
