"""The protocols once more, as a plain Python loop over one dialogue, written from their papers' rules alone."""

from collections.abc import Callable
from typing import Any

Turns = Callable[[int, int], list[tuple[str, str]]]  # (round, coin) -> who speaks in which channel


def turns_of(protocol: dict[str, Any]) -> Turns:
    """Who speaks where; the pair ("verifier", "") is a verifier that decides without a channel."""
    name = protocol["name"]
    if name == "nip":
        order = ["verifier", "prover"] if protocol["first"] == "verifier" else ["prover", "verifier"]
        return lambda r, coin: [(order[r % 2], "main")]
    if name == "adp":
        return lambda r, coin: [(["prover", "verifier"][r], "main")]
    if name == "merlin_arthur":
        return lambda r, coin: [("verifier" if r == 1 else f"prover{coin}", "main")]
    if name == "solo_verifier":
        return lambda r, coin: [("verifier", "")]
    verifier = [("verifier", "prover0"), ("verifier", "prover1")]
    provers = [("prover0", "prover0"), ("prover1", "prover1")]
    if protocol["order"] == "at_once":
        both = [verifier, provers] if protocol["first"] == "verifier" else [provers, verifier]
        return lambda r, coin: both[r % 2]
    one_by_one = [[each] for each in (provers if protocol["first_prover"] == "prover0" else provers[::-1])]
    cycle = [verifier, *one_by_one] if protocol["first"] == "verifier" else [*one_by_one, verifier]
    return lambda r, coin: cycle[r % 3]


def rounds_of(protocol: dict[str, Any]) -> tuple[int, int]:
    fixed = {"adp": (1, 2), "merlin_arthur": (1, 2), "solo_verifier": (1, 1)}
    return fixed.get(protocol["name"]) or (protocol["min_rounds"], protocol["max_rounds"])


def rewards_at_the_end(
    protocol: dict[str, Any], roles: tuple[str, ...], verdict: int | None, label: int, coin: int
) -> list[float]:
    pay = protocol["rewards"]
    of_verifier = pay["out_of_time"] if verdict is None else pay["right"] if verdict == label else pay["wrong"]
    opposed = protocol["name"] in ("debate", "merlin_arthur")
    found = []
    for role in roles:
        side = coin if protocol.get("stance") == "drawn" else 0 if opposed and role == "prover0" else 1
        if role == "verifier" or pay["shared"]:
            found.append(of_verifier)
        else:
            found.append(pay["prover"] if verdict == side else 0.0)
    return found


class PlainDialogue:
    """One dialogue. messages: by round and channel."""

    def __init__(self, protocol: dict[str, Any], roles: tuple[str, ...], label: int, coin: int) -> None:
        self.protocol, self.roles, self.label, self.coin = protocol, roles, label, coin
        self.turns, (self.fewest, self.most) = turns_of(protocol), rounds_of(protocol)
        self.round, self.verdict, self.over = 0, None, False
        self.messages: dict[tuple[int, str], int] = {}

    def speaking(self) -> list[tuple[str, str]]:
        return [] if self.over else self.turns(self.round, self.coin)

    def deciding(self) -> set[str]:
        return {role for role, _ in self.speaking()}

    def may_decide(self) -> bool:
        return "verifier" in self.deciding() and self.round + 1 >= self.fewest

    def step(self, tokens: dict[tuple[str, str], int], decision: int) -> list[float]:
        """tokens: by role and channel, of those who speak. decision: 0, 1, or 2 to go on."""
        if self.over:
            return [0.0] * len(self.roles)
        could_decide = self.may_decide()
        for role, channel in self.speaking():
            if channel:
                self.messages[self.round, channel] = tokens[role, channel]
        if self.may_decide() and decision < 2:
            self.verdict = decision
        self.round += 1
        self.over = self.verdict is not None or self.round == self.most
        if self.over:
            return rewards_at_the_end(self.protocol, self.roles, self.verdict, self.label, self.coin)
        go_on = self.protocol["rewards"]["go_on"] if could_decide else 0.0
        return [go_on if role == "verifier" or self.protocol["rewards"]["shared"] else 0.0 for role in self.roles]
