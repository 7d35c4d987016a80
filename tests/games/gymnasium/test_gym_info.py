"""Fields of the environments' info: every step counts once, resets never, however the environments begin anew.

Covers palestra.games.info.
"""

from typing import Any

import numpy as np
import pytest

from palestra.games.gymnasium import GymnasiumGame
from palestra.games.info import InfoFields
from tests.games.gym_worlds import MODES, gym_game, played

TELLING = "tests.gym_probes:Telling-v0"
NAMES = ["age", "pair", "list", "is_odd", "inner/half", "rare", "episode/l"]
KEY, NUM_WORLDS = 7, 3


class Kept:
    """Keeps what was gathered, by name."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}

    def add_numbers(self, name: str, values: np.ndarray) -> None:
        assert values.ndim == 1
        assert len(values) > 0
        self.values.setdefault(name, []).extend(values.tolist())

    def add_count(self, name: str, num: int) -> None:
        self.values.setdefault(name, []).extend([1] * num)

    def add(self, values: dict[str, np.ndarray]) -> None:
        for name, array in values.items():
            self.values.setdefault(name, []).extend(map(tuple, array.tolist()))


def watched(game: GymnasiumGame, names: list[str], num_steps: int) -> tuple[dict[str, list[Any]], InfoFields, Any]:
    """What is gathered in so many steps, the fields, and the outcomes."""
    kept: Any = Kept()
    world = game.make_world(NUM_WORLDS, KEY, training=True)
    fields = InfoFields(names, NUM_WORLDS, kept)
    world.read_info(fields)
    steps = [outcome for _, _, outcome in played(world, num_steps)]
    world.close()
    return kept.values, fields, steps


def expected_of(steps: Any) -> dict[str, list[Any]]:
    """What a Walk's observations say that its info has told, in the order of steps and worlds."""
    ages, ends = [], []
    for outcome in steps:
        age, over = outcome.observation["observation"][:, 1].int(), outcome.terminated | outcome.truncated
        ages += age[outcome.valid].tolist()
        ends += age[outcome.valid & over].tolist()
    found = {}
    for kind, numbers in (("info", ages), ("final_info", ends)):
        found |= {
            f"{kind}/age": numbers,
            f"{kind}/pair": [(age, -age) for age in numbers],
            f"{kind}/list": [(age, 0.5) for age in numbers],
            f"{kind}/is_odd": [age % 2 == 1 for age in numbers],
            f"{kind}/inner/half": [age / 2 for age in numbers],
            f"{kind}/rare": [age for age in numbers if age == 3],
            f"{kind}/episode/l": ends,
        }
    return found


def assert_same_values(found: dict[str, list[Any]], expected: dict[str, list[Any]], in_order: bool) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert values, name
        assert (found[name] if in_order else sorted(found[name])) == (values if in_order else sorted(values)), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_every_step_counts_once_and_resets_do_not(how: str, mode: str) -> None:
    found, _, steps = watched(gym_game(how, mode, id=TELLING), NAMES, 60)
    assert_same_values(found, expected_of(steps), in_order=mode != "same_step")


@pytest.mark.parametrize("same_step", [True, False])
def test_an_environments_own_vector_needs_no_masks(same_step: bool) -> None:
    changes = {"id": "tests.gym_probes:TellingVector-v0", "arguments": {"same_step": same_step}}
    found, fields, steps = watched(gym_game("entry_point", **changes), [*NAMES, "steps"], 60)
    expected = expected_of(steps) | {"info/steps": list(range(1, 61))}
    of_all = found.pop("final_info/steps", [])
    assert_same_values(found, expected, in_order=not same_step)
    assert of_all == [] if same_step else len(of_all) > 10  # it does not stand below final_info
    assert list(fields.news()) == []


def test_what_never_comes_or_is_no_number_is_told_once_with_what_came() -> None:
    game = gym_game("sync", "same_step", id=TELLING)
    found, fields, _ = watched(game, ["agee", "age", "word", "inner", "episode/r", "only_at_reset"], 60)
    there = "age, episode/l, inner/half, is_odd, list, pair, rare, word"
    num = len(found.pop("info/word/left_out"))
    assert found.keys() == {"info/age", "final_info/age"}
    assert list(fields.news()) == [
        f"output.info: no step had the field 'agee'; the fields are: {there}",
        f"output.info: expected numbers of one shape in 'word', got {num} other values; such values are left out, and "
        "counted as info/word/left_out",
        f"output.info: no step had the field 'inner'; the fields are: {there}",
        f"output.info: no step had the field 'episode/r'; the fields are: {there}",
        f"output.info: no step had the field 'only_at_reset'; the fields are: {there}",
    ]
    assert list(fields.news()) == []


@pytest.mark.parametrize("way", ["sync", "async"])
def test_what_nobody_records_is_left_alone_and_what_cannot_be_batched_is_counted(way: str) -> None:
    chatty, names = gym_game(way, "same_step", id="tests.gym_oddities:Chatty-v0"), ["mixed", "rows", "maybe/inner"]
    plain, _, steps = watched(chatty, [], 30)
    assert plain == {}
    found, fields, again = watched(chatty, names, 30)
    ages = [age for outcome in again for age in outcome.observation["observation"][:, 1].int().tolist()]
    assert ages == [age for outcome in steps for age in outcome.observation["observation"][:, 1].int().tolist()]
    even = [age for age in ages if age % 2 == 0]
    assert found["info/mixed"] == [age for age in ages if age % 2]
    assert len(found["info/mixed/left_out"]) == len(even)
    assert found["info/rows"] == [(0,)] * ages.count(1)
    assert len(found["info/rows/left_out"]) == len(ages) - ages.count(1)
    assert found["info/maybe/inner"] == even
    assert [line.split(", got")[0] for line in fields.news()] == [
        "output.info: expected numbers of one shape in 'mixed'",
        "output.info: expected numbers of one shape in 'rows'",
    ]


def test_where_no_field_comes_that_is_told() -> None:
    _, fields, _ = watched(gym_game(id="tests.gym_probes:Noise-v0"), ["age"], 0)
    assert list(fields.news()) == ["output.info: no step had the field 'age'; no step had any field"]
