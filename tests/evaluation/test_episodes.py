"""Evaluation in Gymnasium environments: exactly so many episodes, from the same seeds, none favoured."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palestra.config import check
from palestra.evaluation.episodes import play_episodes
from palestra.evaluation.evaluator import STREAM
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.seeding import episode_seed
from palestra.games.gymnasium.world import GymnasiumWorld
from palestra.games.policy import Decision, Memory, Observes
from palestra.players import make_script
from palestra.randomness import base_key, random_choice
from palestra.runtime.signals import Interrupted
from tests.games.gym_worlds import CPU, MODES, cart_pole, gym_game, played


def walk_lengths(num_games: int, num_worlds: int) -> list[int]:
    """The lengths of a Walk's evaluation episodes, straight from their seeds, world by world."""
    lengths = []
    for world in range(num_worlds):
        for episode in range(num_games // num_worlds + (world < num_games % num_worlds)):
            generator = np.random.default_rng(episode_seed(base_key(0, STREAM), world, episode))
            generator.integers(1 << 20)
            lengths.append(int(generator.integers(1, 6)))
    return lengths


@pytest.mark.parametrize(("way", "mode"), [("sync", mode) for mode in MODES] + [("async", "next_step")])
@pytest.mark.parametrize(("num_games", "num_worlds"), [(7, 3), (2, 5), (6, 6)])
def test_every_world_plays_its_share_whatever_the_lengths(way: str, mode: str, num_games: int, num_worlds: int) -> None:
    game = gym_game(way, mode)
    games = play_episodes(game, make_script("random", game), num_games, num_worlds, 100, 0)
    lengths = walk_lengths(num_games, min(num_games, num_worlds))
    assert games.lengths.tolist() == lengths
    assert games.returns["agent"].tolist() == [length * (length + 1) / 2 for length in lengths]
    assert int(games.actions["agent"].sum()) == sum(lengths)
    assert games.summary()["games"] == num_games


def test_who_watches_hears_how_many_episodes_are_over_and_how_long_the_longest_in_play_is() -> None:
    game, heard = gym_game("sync", "same_step"), list[tuple[int, int]]()
    games = play_episodes(game, make_script("random", game), 5, 5, 100, 0, lambda *told: heard.append(told))
    over = [sum(length <= num for length in games.lengths.tolist()) for num in range(len(heard))]
    assert heard == [(num, number) for number, num in enumerate(over)]
    assert 0 < heard[-1][0] < 5
    heard.clear()
    games = play_episodes(game, make_script("random", game), 3, 2, 100, 26, lambda *told: heard.append(told))
    assert games.lengths.tolist() == [5, 5, 1]  # the second world plays on for nothing
    assert max(number for _, number in heard) == 4


@pytest.mark.parametrize("mode", MODES)
def test_every_evaluation_plays_the_same_and_training_goes_on_unmoved(mode: str) -> None:
    game = gym_game("sync", mode, observation={"normalize": {"eps": 1e-8}, "clip": None})
    world, twin = (game.make_world(3, 1, True) for _ in range(2))
    random, before = make_script("random", game), str(game.state_dict())
    first = play_episodes(game, random, 9, 3, 100, 0)
    assert str(game.state_dict()) == before
    some = played(world, 10)
    second = play_episodes(game, random, 9, 3, 100, 0)
    assert first.lengths.tolist() == second.lengths.tolist()
    assert first.returns["agent"].tolist() == second.returns["agent"].tolist()
    rewards = [outcome.raw_reward.tolist() for _, _, outcome in some + played(world, 10)]
    assert rewards == [twin.step(action, action).raw_reward.tolist() for action in [torch.zeros(3).long()] * 20]


@pytest.mark.parametrize("mode", MODES)
def test_long_episodes_are_cut_off_and_the_next_ones_begin(mode: str) -> None:
    game = gym_game("sync", mode)
    games = play_episodes(game, make_script("random", game), 40, 4, 2, 0)
    lengths = walk_lengths(40, 4)
    assert games.lengths.tolist() == [min(length, 2) for length in lengths]
    assert not games.finished[torch.tensor(lengths) > 2].any()
    assert games.finished.any()


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_memory_begins_anew_with_every_episode(mode: str) -> None:
    remembered: list[Tensor] = []

    class Counting:
        observes: Observes = "nothing"

        def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
            remembered.append(memory.get("count", torch.zeros_like(keys)))
            return Decision(random_choice(keys, legal), {}, {"count": remembered[-1] + 1})

    play_episodes(gym_game("sync", mode), Counting(), 12, 3, 100, 0)
    between = [0] if mode == "next_step" else []  # a step in which a world only begins anew
    for world, lengths in enumerate(torch.tensor(walk_lengths(12, 3)).view(3, 4).tolist()):
        expected = [count for length in lengths for count in (*range(length), *between)]
        found = torch.stack(remembered)[:, world].tolist()
        assert found[: len(expected)] == expected[: len(found)]


def test_an_entry_point_environment_plays_every_episode_beside_the_others() -> None:
    game = GymnasiumGame(check(cart_pole(vectorization={"name": "entry_point"}), GymnasiumConfig), CPU)
    games = [play_episodes(game, make_script("random", game), 30, 4, 25, 0) for _ in range(2)]
    assert len(games[0].lengths) == 30
    assert games[0].lengths.max() == 25
    assert games[0].returns["agent"].tolist() == games[0].lengths.tolist() == games[1].lengths.tolist()


def test_returns_are_the_environments_own_rewards() -> None:
    game = gym_game(reward={"normalize": {"gamma": 0.9, "eps": 1.0}, "clip": 0.1})
    games = play_episodes(game, make_script("random", game), 5, 2, 100, 0)
    assert games.returns["agent"].tolist() == [length * (length + 1) / 2 for length in walk_lengths(5, 2)]


WAYS = [("sync", mode, {}) for mode in MODES] + [
    ("async", "next_step", {}),
    *(
        ("entry_point", "", {"id": "tests.gym_probes:TellingVector-v0", "arguments": {"same_step": same_step}})
        for same_step in (True, False)
    ),
]


@pytest.mark.parametrize(("way", "mode", "changes"), WAYS)
def test_fields_of_info_are_those_of_the_games_that_count(way: str, mode: str, changes: dict[str, Any]) -> None:
    """A game's mean over its steps, and the value of its last step; of games that are cut off, too."""
    game = gym_game(way, mode, **{"id": "tests.gym_probes:Telling-v0", **changes})
    num_worlds = 20 if way == "entry_point" else 3  # worlds that cannot be restarted play one episode each
    fields = ["age", "rare", "inner/half", "is_odd", "episode/l", "word", "pair", "list", "absent"]
    games = play_episodes(game, make_script("random", game), 20, num_worlds, 4, 0, info=fields)
    lengths = games.lengths.tolist()
    assert set(lengths) == {1, 2, 3, 4}
    expected = {
        "info/age": [(length + 1) / 2 for length in lengths],
        "final_info/age": lengths,
        "info/rare": [3 for length in lengths if length >= 3],
        "final_info/rare": [3 for length in lengths if length == 3],
        "info/inner/half": [(length + 1) / 4 for length in lengths],
        "final_info/inner/half": [length / 2 for length in lengths],
        "info/is_odd": [(length + 1) // 2 / length for length in lengths],
        "final_info/is_odd": [length % 2 for length in lengths],
    }
    if way != "entry_point":  # which seeds its episodes itself
        full = walk_lengths(20, num_worlds)
        assert lengths == [min(length, 4) for length in full]
        expected |= {f"{kind}/episode/l": [n for n in full if n <= 4] for kind in ("info", "final_info")}
    else:
        del games.info["info/episode/l"], games.info["final_info/episode/l"]
    expected |= {f"{kind}/{name}": [] for kind in ("info", "final_info") for name in ("word", "pair", "list", "absent")}
    assert {name: values.tolist() for name, values in games.info.items()} == expected
    statistics = games.summary()["statistics"]
    assert statistics["final_info/age"]["max"] == 4
    assert np.isnan(statistics["info/absent"]["mean"])


def test_a_number_for_all_worlds_is_that_of_each_game() -> None:
    arguments = {"same_step": False}
    game = gym_game("entry_point", id="tests.gym_probes:TellingVector-v0", arguments=arguments)
    games = play_episodes(game, make_script("random", game), 20, 20, 4, 0, info=["steps"])
    assert games.info["final_info/steps"].tolist() == games.lengths.tolist()


def test_an_interrupted_evaluation_closes_its_environments() -> None:
    game, worlds = gym_game("async"), list[GymnasiumWorld]()
    steps = iter(range(4))

    def watch(num_over: int, num_rounds: int) -> None:
        worlds.extend(game._worlds)  # a world that is gone closes by itself
        if next(steps, None) is None:
            raise Interrupted

    with pytest.raises(Interrupted):
        play_episodes(game, make_script("random", game), 50, 2, 100, 0, watch)
    assert worlds
    assert not any("vector" in world.__dict__ for world in worlds)
