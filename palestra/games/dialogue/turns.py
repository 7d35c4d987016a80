"""Who speaks when and where in a dialogue, and who decides: a protocol in plain words."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from palestra.config.errors import enumerated
from palestra.games.dialogue.protocol import DECISIONS, Protocol

MOST_LISTED = 4  # rounds; of more, if equally far apart, only the first two and the last are named


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
        when = f"round{'s' * (len(rounds) > 1)} {_rounds_text(rounds)}"
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


def _rounds_text(rounds: Sequence[int]) -> str:
    """Write rounds as text, such as "0 and 1" or "0, 2, ..., 98"."""
    steps = {after - before for before, after in pairwise(rounds)}
    if len(rounds) > MOST_LISTED and len(steps) == 1:
        return f"{rounds[0]}, {rounds[1]}, ..., {rounds[-1]}"
    return enumerated([str(round) for round in rounds])
