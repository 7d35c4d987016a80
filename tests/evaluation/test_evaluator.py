from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from palestra.evaluation import evaluator
from palestra.evaluation.evaluator import STREAM, Games, play_games
from palestra.games.game import TensorGame, wins_by_return
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.policy import Decision, Memory, Observes, Policy
from palestra.games.polyhedra.game import MAX_COORDINATE, PolyhedraGame
from palestra.players import make_script
from palestra.randomness import base_key, fold, random_choice, world_keys
from tests.games.plain_polyhedra import polyhedra_config
from tests.games.tag_game import TagGame
from tests.games.test_classic_control import ACROBOT

CPU = torch.device("cpu")


def polyhedra(**changes: object) -> PolyhedraGame:
    return PolyhedraGame(polyhedra_config(**changes), CPU, "numba")


def nim() -> NimGame:
    return NimGame(NimConfig(name="nim", num_heaps=2, max_stones=3, observation=UNCHANGED), CPU)


def scripts(game: TensorGame, *names: str) -> dict[str, Policy]:
    return {role: make_script(name, game) for role, name in zip(game.roles, names, strict=True)}


class Remembering:
    """Plays at random with what it remembers: how often it has acted."""

    observes: Observes = "observation"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        count = memory.get("count", torch.zeros_like(keys))
        return Decision(random_choice(fold(keys, count), legal), {}, {"count": count + 1})


GAMES: dict[str, TensorGame] = {
    "polyhedra": polyhedra(max_num_points=6, max_value=4),
    "polyhedra, cut off by itself": polyhedra(max_rounds=3, reward={"name": "points", "weight": 0.5}),
    "polyhedra, cut off here and there": polyhedra(
        initial_points=[[[2**k, 0, 3], [0, 2 ** (k - 1), 5], [7, 1, 2**k]] for k in (2, 44, 49)],
        reward={"name": "length"},
    ),
    "nim": nim(),
    "two together": TagGame(2, "together"),
    "two one by one": TagGame(2, "one by one"),
    "three at will": TagGame(3, "at will"),
}


def plain_games(game: TensorGame, policies: Mapping[str, Policy], num: int, max_rounds: int, seed: int) -> Games:
    """`play_games`, one game at a time."""
    finished, lengths, returns, tallies = [], [], [], dict.fromkeys(game.tallies, 0)
    taken = {role: torch.zeros(space.num_flags, dtype=torch.int64) for role, space in game.action_spaces.items()}
    for key in world_keys(base_key(seed, STREAM), num, CPU).split(1):
        state, memory, number = game.reset(fold(key, 0)), dict[str, Memory](), 0
        length, earned, is_over, is_cut = 0, torch.zeros(len(game.roles)), not game.deciding(state).any(), False
        while not is_over and not is_cut and length < max_rounds:
            length += 1
            for move in game.moves:
                number += 1
                if is_over or is_cut:
                    continue
                move_key, actions = fold(key, number), {}
                for role in move:
                    policy = policies[role]
                    view = {"observation": game.observe(state, role), "state": state, "nothing": {}}[policy.observes]
                    role_key = move_key + game.roles.index(role) + 1
                    decision = policy.act(view, game.legal(state, role), role_key, memory.get(role, {}))
                    actions[role] = decision.action
                    if game.deciding(state)[0, game.roles.index(role)]:
                        memory[role] = decision.memory
                        taken[role][decision.action] += 1
                state, rewards, terminated, truncated = game.transition(state, actions, move_key + len(game.roles) + 1)
                earned += rewards[0]
                is_over, is_cut = bool(terminated.all()), bool(truncated)
        if length:
            finished.append(is_over)
            lengths.append(length)
            returns.append(earned)
            tallies = {name: value + int(state[name]) for name, value in tallies.items()}
    columns = dict(zip(game.roles, torch.stack(returns).unbind(1), strict=True))
    counts = (num - len(lengths), tallies, taken, {})
    return Games(torch.tensor(finished), torch.tensor(lengths), columns, *counts, game.declared_scores, {}, {})


@pytest.mark.parametrize("max_rounds", [2, 60])
@pytest.mark.parametrize("name", GAMES)
def test_games_are_those_of_a_plain_loop(name: str, max_rounds: int) -> None:
    """In batches from which ended games are dropped, in ones in which they stay, and one by one."""
    game = GAMES[name]
    policies: dict[str, Policy] = {role: Remembering() for role in game.roles}
    batched = play_games(game, policies, 60, max_rounds, seed=3)
    plain = plain_games(game, policies, 60, max_rounds, seed=3)
    assert torch.equal(batched.finished, plain.finished)
    assert torch.equal(batched.lengths, plain.lengths)
    for role in game.roles:
        assert torch.equal(batched.returns[role], plain.returns[role])
        assert torch.equal(batched.actions[role], plain.actions[role])
    assert (batched.started_over, batched.tallies) == (plain.started_over, plain.tallies)


def test_ended_games_are_dropped_from_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Watched(Remembering):
        def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
            sizes.append(len(keys))
            return super().act(view, legal, keys, memory)

    game = nim()
    play_games(game, {role: Watched() for role in game.roles}, 200, 20, seed=0)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 100 < sizes[0]


def test_who_watches_hears_how_many_games_are_over_and_which_round_it_is() -> None:
    game, heard = nim(), list[tuple[int, int]]()
    games = play_games(game, scripts(game, "random", "random"), 200, 20, 0, lambda *told: heard.append(told))
    over = [sum(length <= num for length in games.lengths.tolist()) for num in range(len(heard))]
    assert heard == [(games.started_over + num, number) for number, num in enumerate(over)]
    assert 0 < heard[-1][0] < 200


def test_all_pairings_start_from_the_same_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    game, starts = polyhedra(), []

    class Recorded(evaluator.Batch):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            starts.append(self.state["points"].clone())

    monkeypatch.setattr(evaluator, "Batch", Recorded)
    for pairing in (("random", "greedy"), ("zeillinger", "random")):
        play_games(game, scripts(game, *pairing), 50, 3, seed=0)
    play_games(game, scripts(game, "random", "random"), 20, 3, seed=0)
    play_games(game, scripts(game, "random", "random"), 20, 3, seed=1)
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0][:20], starts[2])
    assert not torch.equal(starts[2], starts[3])


def test_figures_computed_by_hand() -> None:
    """The host always picks both coordinates, the agent always the first: it ends after one round; the third is over
    before it begins. With the last axis the first board takes 4 rounds, the second 2."""
    boards = [[[1, 0], [0, 4]], [[1, 0], [0, 2]], [[5, 5]]]
    game = polyhedra(dimension=2, initial_points=boards, reward={"name": "length"})
    for agent, rounds_of_boards in (("choose_first", (1, 1)), ("choose_last", (4, 2))):
        games = play_games(game, scripts(game, "all_coordinates", agent), 300, 3, seed=0)
        counts = torch.bincount(starts_of(game, 300), minlength=3)
        num, summary = int(counts[:2].sum()), games.summary()
        rounds = [min(length, 3) for length in rounds_of_boards]
        steps = int(counts[0]) * rounds[0] + int(counts[1]) * rounds[1]
        finished = num if agent == "choose_first" else int(counts[1])
        assert summary["started_over"] == int(counts[2])
        assert (summary["games"], summary["steps"]) == (num, steps)
        assert (summary["finished"], summary["truncated"]) == (finished, num - finished)
        assert summary["scores"]["rho"] == finished / steps
        assert summary["actions"] == {"host": [steps], "agent": [steps, 0] if agent == "choose_first" else [0, steps]}
        assert summary["scores"]["return/host"] == -summary["scores"]["return/agent"] == pytest.approx(-steps / num)


def starts_of(game: PolyhedraGame, num: int) -> Tensor:
    """Which of the boards each game of an evaluation of seed 0 starts from."""
    points = game.reset(fold(world_keys(base_key(0, STREAM), num, CPU), 0))["points"]
    assert game.boards is not None
    return (points.unsqueeze(1) == game.boards).all((2, 3)).to(torch.int8).argmax(1)


def test_of_two_roles_each_wins_its_share_and_equal_returns_count_half() -> None:
    returns = {"host": torch.tensor([1.0, 1.0, 0.0, 2.0]), "agent": torch.tensor([0.0, -1.0, 0.0, 3.0])}
    games = Games(
        torch.ones(4, dtype=torch.bool), torch.ones(4), returns, 0, {}, {}, {}, (), {}, wins_by_return(returns)
    )
    summary = games.summary()
    assert (summary["won"], summary["contests"]) == ({"host": 0.625, "agent": 0.375}, 4)


def test_of_host_and_agent_a_round_is_a_contest_and_rho_the_share_that_the_host_wins() -> None:
    game = polyhedra()
    summary = play_games(game, scripts(game, "random", "random"), 40, 3, seed=0).summary()
    assert summary["contests"] == summary["steps"]
    assert summary["won"]["host"] == summary["scores"]["rho"]
    assert 0 < summary["won"]["host"] < 1
    assert sum(summary["won"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("found", [{}, {"rho": 0.5, "roh": 0.25}])
def test_a_game_must_give_the_scores_that_it_declares(found: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    game = polyhedra()
    monkeypatch.setattr(game, "scores", lambda ends: found)
    with pytest.raises(TypeError, match="expected the declared scores rho, return/host, return/agent from the game"):
        play_games(game, scripts(game, "random", "random"), 4, 3, seed=0).summary()


def test_games_that_overflow_are_truncated_and_counted() -> None:
    most = int(MAX_COORDINATE)
    game = polyhedra(dimension=2, initial_points=[[[1, most], [2, 0]], [[1, 0], [0, 1]]])
    summary = play_games(game, scripts(game, "all_coordinates", "choose_last"), 100, 50, seed=0).summary()
    num_far = int((starts_of(game, 100) == 0).sum())
    assert 0 < num_far < 100
    assert (summary["overflow"], summary["truncated"], summary["finished"]) == (num_far, num_far, 100 - num_far)
    assert summary["steps"] == 100


def test_nothing_but_started_over_games_gives_no_figures() -> None:
    game = polyhedra(initial_points=[[[1, 2, 3]]])
    summary = play_games(game, scripts(game, "random", "random"), 5, 50, seed=0).summary()
    assert (summary["games"], summary["started_over"], summary["steps"]) == (0, 5, 0)
    assert str(summary["scores"]["rho"]) == "nan"


def test_games_from_equal_starts_count_as_dependent_in_intervals() -> None:
    game = nim()
    games = play_games(game, scripts(game, "nim_optimal", "random"), 200, 100, seed=0)
    starts = game.reset(fold(world_keys(base_key(0, STREAM), 200, CPU), 0))["heaps"]
    starts = starts[starts.sum(dim=1) > 0]
    values, groups = games.returns["first"].double(), starts.unique(dim=0, return_inverse=True)[1]
    sums = torch.stack([(values - values.mean())[groups == group].sum() for group in groups.unique()])
    half = 1.959964 * float((sums.square().sum() * len(sums) / (len(sums) - 1)).sqrt()) / len(values)
    summary = games.summary()
    assert summary["distinct"] == {"starts": len(sums)} == {"starts": 15}
    low, high = summary["intervals"]["return/first"]
    assert (high - low) / 2 == pytest.approx(half)


def test_games_of_a_game_with_one_start_and_of_different_starts_are_independent() -> None:
    for game in (GAMES["two together"], GAMES["polyhedra"], ACROBOT.build(CPU, "torch")):
        summary = play_games(game, scripts(game, *["random"] * len(game.roles)), 40, 30, seed=0).summary()
        assert "distinct" not in summary
        assert summary["intervals"]
