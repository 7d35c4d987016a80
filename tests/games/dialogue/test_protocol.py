"""Who speaks when and where, in words: against the plain rules of every protocol, and exactly for some of them."""

import re
from itertools import product
from typing import Any

import pytest

from palestra.config.validation import checked
from palestra.games.dialogue.protocol import Protocol, turns_in_words
from palestra.games.dialogue.protocols import (
    AnyProtocolConfig,
)

TWO: dict[str, Any] = {"order": "in_sequence", "first": "provers", "first_prover": "prover1"}


def protocol(name: str, **keys: Any) -> Any:
    """The config of a protocol with its usual keys."""
    return checked({"name": name, **keys}, AnyProtocolConfig)


CONFIGS = {
    "nip": protocol("nip"),
    "long nip": protocol("nip", min_rounds=4, max_rounds=100, first="prover"),
    "adp": protocol("adp"),
    "adp, side drawn": protocol("adp", stance="drawn"),
    "merlin_arthur": protocol("merlin_arthur"),
    "debate": protocol("debate"),
    "debate in sequence": protocol("debate", **TWO, min_rounds=4),
    "mnip": protocol("mnip", max_rounds=3),
    "solo_verifier": protocol("solo_verifier"),
}
EXACT = {
    "nip": """
        dialogue nip: at most 8 rounds
          channel main: seen by prover and verifier
          rounds 0, 2, 4 and 6: verifier speaks in main, may decide
          rounds 1, 3, 5 and 7: prover speaks in main
        """,
    "long nip": """
        dialogue nip: at most 100 rounds
          channel main: seen by prover and verifier
          rounds 0, 2, ..., 98: prover speaks in main
          round 1: verifier speaks in main
          rounds 3, 5, ..., 99: verifier speaks in main, may decide
        """,
    "adp, side drawn": """
        dialogue adp: at most 2 rounds, in 2 variants, one of which is drawn for every game
          channel main: seen by prover and verifier
          prover argues for reject in variant 0 and accept in variant 1, and sees for which
          round 0: prover speaks in main
          round 1: verifier speaks in main, may decide
        """,
    "merlin_arthur": """
        dialogue merlin_arthur: at most 2 rounds, in 2 variants, one of which is drawn for every game
          channel main: seen by prover0, prover1 and verifier
          round 0, variant 0: prover0 speaks in main
          round 0, variant 1: prover1 speaks in main
          round 1: verifier speaks in main, may decide
        """,
    "mnip": """
        dialogue mnip: at most 3 rounds
          channel prover0: seen by prover0 and verifier
          channel prover1: seen by prover1 and verifier
          rounds 0 and 2: verifier speaks in prover0 and prover1, may decide
          round 1: prover0 speaks in prover0; prover1 speaks in prover1
        """,
    "debate in sequence": """
        dialogue debate: at most 8 rounds
          channel prover0: seen by prover0, prover1 and verifier
          channel prover1: seen by prover0, prover1 and verifier
          rounds 0, 3 and 6: prover1 speaks in prover1
          rounds 1, 4 and 7: prover0 speaks in prover0
          round 2: verifier speaks in prover0 and prover1
          round 5: verifier speaks in prover0 and prover1, may decide
        """,
    "solo_verifier": """
        dialogue solo_verifier: 1 round
          round 0: verifier may decide
        """,
}


class Chorus(Protocol):
    """Three variants, of which two are alike, and rounds in which nothing happens."""

    roles = ("a", "b", "judge")
    verifiers = ("judge",)
    channels = {"air": roles}  # noqa: RUF012
    sides = {"a": 0, "b": 1}  # noqa: RUF012
    num_variants = 3

    def __init__(self) -> None:
        super().__init__(protocol("nip"), min_rounds=1, max_rounds=9)

    def speaks(self, role: str, channel: str, round: int, variant: int) -> bool:
        if round in (0, 1, 4):
            return role == ("a" if variant == 1 else "b")
        return role == "judge" and round == 6


@pytest.mark.parametrize("name", EXACT)
def test_the_turns_of_a_protocol_in_words(name: str) -> None:
    config = CONFIGS[name]
    lines = re.sub(r"^ {8}", "", EXACT[name], flags=re.M).strip().splitlines()
    assert turns_in_words(config.name, config.build()) == lines


def test_variants_that_are_alike_share_a_line() -> None:
    assert turns_in_words("mine:Chorus", Chorus()) == [
        "dialogue mine:Chorus: at most 9 rounds, in 3 variants, one of which is drawn for every game",
        "  channel air: seen by a, b and judge",
        "  rounds 0, 1 and 4, variants 0 and 2: b speaks in air",
        "  rounds 0, 1 and 4, variant 1: a speaks in air",
        "  rounds 2, 3, 5, 7 and 8: nobody speaks",
        "  round 6: judge speaks in air, may decide",
    ]


def rounds_in(text: str, most: int) -> list[int]:
    """0, 2, ..., 98 and the like, read again."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if "..." in text:
        first, second, last = numbers
        return list(range(first, last + 1, second - first))
    assert max(numbers) < most
    return numbers


@pytest.mark.parametrize("name", [*CONFIGS, "chorus"])
def test_the_lines_say_of_every_round_what_the_protocol_says(name: str) -> None:
    """Read back into who speaks where, and who may decide."""
    protocol = Chorus() if name == "chorus" else CONFIGS[name].build()
    told: dict[tuple[int, int], str] = {}
    for line in turns_in_words(name, protocol):
        found = re.fullmatch(r"  rounds? ([\d,. and]+?)(?:, variants? ([\d,and ]+))?: (.*)", line)
        if found is None:
            continue
        rounds, variants, turn = found.groups()
        drawn = range(protocol.num_variants) if variants is None else map(int, re.findall(r"\d+", variants))
        for moment in product(rounds_in(rounds, protocol.max_rounds), list(drawn)):
            assert moment not in told
            told[moment] = turn
    assert sorted(told) == sorted(protocol.moments())
    for (round, variant), turn in told.items():
        by_role = {part.split()[0]: part for part in turn.split("; ")} if turn != "nobody speaks" else {}
        for role in protocol.roles:
            said = re.search(r"speaks in ([^,]*)", by_role.get(role, ""))
            channels = said[1].split(" and ") if said else []
            assert channels == [each for each in protocol.channels if protocol.speaks(role, each, round, variant)]
            decides = role in protocol.verifiers and protocol.may_decide(role, round, variant)
            assert ("may decide" in by_role.get(role, "")) == decides
