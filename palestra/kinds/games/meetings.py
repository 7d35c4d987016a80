"""Who meets whom in the worlds of a learning player: each pairing has a fixed block of them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from palestra.config import Config, ConfigErrorItem
from palestra.players import SCRIPTED, script_error
from palestra.players.past import PastPlayerConfig, PrioritizedChoiceConfig
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.run.base import of_this_file, seat_faults

TOLERANCE = 1e-3  # of a number of worlds, because 0.333333 means a third


class MeetingConfig(Config):
    share: Annotated[float, Field(gt=0, le=1)]
    """of the player's worlds; all shares add up to 1.0"""
    pairing: dict[str, str]
    """for every role a player of this file: itself, or whom it meets there"""


class Block(NamedTuple):
    """The worlds of a pairing, which follow each other.

    worlds: their numbers, among all worlds of the learning player in a replica. shares: in a role in which past selves
    sit, the worlds of each of them.
    """

    name: str
    pairing: Mapping[str, str]
    worlds: range
    shares: Mapping[str, Sequence[range]]


def blocks_of(learner: str, meets: Sequence[MeetingConfig], num_worlds: int, players: Mapping[str, Any]) -> list[Block]:
    """Divide the worlds of a learning player, in the order of its pairings. players: their configs, by name."""
    found, first = [], 0
    for each in meets:
        worlds = range(first, first := first + round(each.share * num_worlds))
        shares = {}
        for role, name in each.pairing.items():
            if isinstance(config := players[name], PastPlayerConfig):
                bounds = [worlds.start + n * len(worlds) // config.num_seated for n in range(config.num_seated + 1)]
                shares[role] = [range(*ends) for ends in pairwise(bounds)]
        found.append(Block(block_name(learner, each.pairing), each.pairing, worlds, shares))
    return found


def block_name(learner: str, pairing: Mapping[str, str]) -> str:
    """Name a pairing by those whom the learning player meets, with their roles."""
    return ",".join(f"{role}={name}" for role, name in pairing.items() if name != learner) or "itself"


def meetings_in_words(config: Any) -> Iterator[str]:
    """Say who meets whom, and in how many worlds, for each player whose config says it."""
    for name in config.learners():
        if (meets := config.players[name].meets) is None:
            continue
        for block in blocks_of(name, meets, config.worlds_of(name), config.players):
            seats = ", ".join(f"{role} {block.pairing[role]}" for role in config.game.declared_roles())
            nums = {role: len(shares) for role, shares in block.shares.items()}
            past = [f"{num} past {'self' if num == 1 else 'selves'} at a time in {role}" for role, num in nums.items()]
            of_past = f" ({', '.join(past)})" if past else ""
            yield f"worlds of {name}: {len(block.worlds):,} of {config.worlds_of(name):,} with {seats}{of_past}"


def meeting_errors(config: Any, roles: Sequence[str]) -> Iterator[ConfigErrorItem]:
    """Give the faults of `meets` and of past players. config: of the run. roles: of its game."""
    learners = config.learners()
    for name, player in config.players.items():
        if isinstance(player, PastPlayerConfig):
            at = f"players.{name}"
            if len(roles) == 1:
                expected = "expected a game of two roles or more, in which past selves meet others"
                yield ConfigErrorItem(at, f"{expected}, got one of one role")
            if player.past_of not in learners:
                known = of_this_file("a player that learns", learners)
                new = "" if player.past_of in config.players else f"; a new one needs players.{player.past_of}"
                yield ConfigErrorItem(f"{at}.past_of", f"{known}, got {player.past_of!r}{new}")
            if player.num_seated > player.num_kept:
                expected = f"expected at most num_kept = {player.num_kept}"
                yield ConfigErrorItem(f"{at}.num_seated", f"{expected}, got {player.num_seated}")
            if isinstance(player.choice, PrioritizedChoiceConfig) and len(roles) != 2:
                expected = f"expected 'uniform' in a game of {len(roles)} roles, in which nobody wins against another"
                yield ConfigErrorItem(f"{at}.choice.name", f"{expected}, got 'prioritized'")
    for name in [each for each in learners if not isinstance(config.num_worlds, dict) or each in config.num_worlds]:
        if (meets := config.players[name].meets) is not None:
            yield from _meets_errors(config, roles, name, meets)


def _meets_errors(
    config: Any, roles: Sequence[str], learner: str, meets: Sequence[MeetingConfig]
) -> Iterator[ConfigErrorItem]:
    at, num = f"players.{learner}.meets", config.worlds_of(learner)
    why = {
        "in a game of one role": len(roles) == 1,
        "with trainer 'together', whose players share their worlds": config.trainer.name == "together",
        "because it does not play (rollout_length: null)": not config.plays(learner),
    }
    if reason := next((reason for reason, holds in why.items() if holds), None):
        yield ConfigErrorItem(at, f"expected null {reason}, got a list")
        return
    for number, each in enumerate(meets):
        yield from seat_errors(config, roles, place := f"{at}.{number}.pairing", each.pairing)
        if learner not in (sitters := each.pairing.values()):
            yield ConfigErrorItem(place, f"expected {learner!r} in one of its roles, got {', '.join(sitters)}")
    named = Counter(block_name(learner, dict(sorted(each.pairing.items()))) for each in meets)
    for twice in [name for name, count in named.items() if count > 1]:
        yield ConfigErrorItem(at, f"expected each pairing once, with the whole of its share, got {twice} twice")
    total, sizes = sum(each.share for each in meets), [each.share * num for each in meets]
    if abs(total * num - num) > TOLERANCE * len(meets):
        yield ConfigErrorItem(at, f"expected shares that add up to 1.0, got {total:.6g}")
        return
    for number, (each, size) in enumerate(zip(meets, sizes, strict=True)):
        if abs(size - round(size)) > TOLERANCE or round(size) == 0:
            near = dict.fromkeys(f"{max(1, whole) / num:.6g}" for whole in (int(size), int(size) + 1))
            expected = f"expected a whole number of the {num} worlds, such as {' or '.join(near)}"
            yield ConfigErrorItem(f"{at}.{number}.share", f"{expected}, got {each.share:g} ({size:.6g} worlds)")
            continue
        for sitter in dict.fromkeys(each.pairing.values()):
            past = config.players.get(sitter)
            if isinstance(past, PastPlayerConfig) and round(size) < past.num_seated:
                least = f"expected at least {past.num_seated} worlds, players.{sitter}.num_seated"
                yield ConfigErrorItem(f"{at}.{number}.share", f"{least}, got {each.share:g} ({round(size)} of {num})")


def seat_errors(config: Any, roles: Sequence[str], at: str, seats: Mapping[str, str]) -> Iterator[ConfigErrorItem]:
    """Give the faults of a mapping that names a player of the file for every role. at: its path."""
    yield from seat_faults(at, seats, roles, config.players, SCRIPTED)
    for role, name in seats.items():
        player = config.players.get(name)
        if role in roles and isinstance(player, ScriptedPlayerConfig):
            if (fault := script_error(player, config.game, role)) is not None:
                yield ConfigErrorItem(f"players.{name}.scripted", fault)
        elif at == "roles" and isinstance(player, PastPlayerConfig):
            fault = f"expected a player as it is now (past selves sit in pairings), got {name!r}"
            yield ConfigErrorItem(f"{at}.{role}", fault)
