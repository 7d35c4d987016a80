from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palestra
from palestra.config import load_yaml
from palestra.evaluation.evaluator import STREAM, play_games
from palestra.games.game import IllegalMove, State
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.policy import Policy
from palestra.players import make_script
from palestra.players.player import Player
from palestra.randomness import base_key, fold, world_keys

CPU = torch.device("cpu")
CONFIG = Path(__file__).parents[2] / "configs" / "dqn-nim.yml"
Heaps = tuple[int, ...]


def make(num_heaps: int, max_stones: int) -> NimGame:
    return NimGame(NimConfig(name="nim", num_heaps=num_heaps, max_stones=max_stones, observation=UNCHANGED), CPU)


def state_of(*heaps: Heaps, mover: int = 0) -> State:
    return {"heaps": torch.tensor(heaps), "mover": torch.full((len(heaps),), mover)}


def moves(heaps: Heaps) -> dict[tuple[int, int], Heaps]:
    """Where each move, stones k from heap h, leads."""
    return {
        (h, k): (*heaps[:h], heaps[h] - k, *heaps[h + 1 :]) for h in range(len(heaps)) for k in range(1, heaps[h] + 1)
    }


@cache
def is_won(heaps: Heaps) -> bool:
    """Whether the player to move can force a win, by enumeration."""
    return any(not is_won(left) for left in moves(heaps).values())


# ---- the rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_heaps", "max_stones"), [(1, 5), (2, 4), (3, 3)])
def test_every_move_from_every_position_is_that_of_the_rules(num_heaps: int, max_stones: int) -> None:
    game = make(num_heaps, max_stones)
    for heaps in product(range(max_stones + 1), repeat=num_heaps):
        expected = moves(heaps)
        state = state_of(heaps)
        legal = game.legal(state, "first")[0].nonzero().flatten().tolist()
        assert [(action // max_stones, action % max_stones + 1) for action in legal] == sorted(expected)
        for (h, k), left in expected.items():
            action = torch.tensor([h * max_stones + k - 1])
            after, rewards, terminated, truncated = game.step(state, {"first": action}, action)
            over = not any(left)
            assert tuple(after["heaps"][0].tolist()) == left
            assert after["mover"].tolist() == [1]
            assert rewards.tolist() == [[1.0, -1.0] if over else [0.0, 0.0]]
            assert (terminated.tolist(), truncated.tolist()) == ([[over, over]], [False])


def test_who_takes_the_last_stone_wins_from_either_seat() -> None:
    game, one = make(1, 3), torch.tensor([0])
    assert game.step(state_of((1,)), {"first": one}, one)[1].tolist() == [[1.0, -1.0]]
    assert game.step(state_of((1,), mover=1), {"second": one}, one)[1].tolist() == [[-1.0, 1.0]]


def test_worlds_at_different_moves_hear_their_own_mover() -> None:
    game = make(2, 3)
    state = {"heaps": torch.tensor([[3, 0], [3, 0], [0, 0]]), "mover": torch.tensor([0, 1, 0])}
    assert game.deciding(state).tolist() == [[True, False], [False, True], [False, False]]
    actions = {"first": torch.tensor([0, 5, 5]), "second": torch.tensor([5, 1, 5])}
    assert game.step(state, actions, state["mover"])[0]["heaps"].tolist() == [[2, 0], [1, 0], [0, 0]]


def test_a_game_that_is_over_stays_as_it_is() -> None:
    game, any_action = make(2, 3), torch.tensor([4])
    before = state_of((0, 0), mover=1)
    after, rewards, terminated, truncated = game.transition(before, {"first": any_action}, any_action)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([[0.0, 0.0]], [[True, True]], [False])


@pytest.mark.parametrize("action", [-1, 2, 5, 6])
def test_the_public_step_refuses_illegal_moves(action: int) -> None:
    expected = rf"^expected a legal action of 'first' in world 0 \(\[0, 1, 3, 4\]\), got {action}$"
    with pytest.raises(IllegalMove, match=expected):
        make(2, 3).step(state_of((2, 2)), {"first": torch.tensor([action])}, torch.tensor([0]))


def test_both_seats_see_heaps_one_hot() -> None:
    game = make(2, 3)
    for role in game.roles:
        seen = game.observe(state_of((3, 1)), role)["heaps"]
        assert seen.tolist() == [[[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]]
        assert (seen.shape[1:], seen.dtype) == (game.spaces[role]["heaps"].shape, game.spaces[role]["heaps"].dtype)


def test_fresh_heaps_take_every_position() -> None:
    heaps = make(2, 3).reset(torch.arange(1000))["heaps"]
    assert {tuple(row) for row in heaps.tolist()} == set(product(range(4), repeat=2))


# ---- solved ----------------------------------------------------------------------------------------------


def test_enumeration_agrees_with_bouton() -> None:
    for a, b, c in product(range(5), repeat=3):
        assert is_won((a, b, c)) == (a ^ b ^ c != 0)


@pytest.mark.parametrize(("num_heaps", "max_stones"), [(1, 4), (3, 4), (4, 3)])
def test_the_optimal_player_leaves_a_lost_position_wherever_it_can(num_heaps: int, max_stones: int) -> None:
    game = make(num_heaps, max_stones)
    positions = [heaps for heaps in product(range(max_stones + 1), repeat=num_heaps) if any(heaps)]
    assert blunders(game, make_script("nim_optimal", game), positions) == []


def test_in_a_lost_position_the_optimal_player_takes_the_first_legal_move() -> None:
    game = make(3, 3)
    lost = [heaps for heaps in product(range(4), repeat=3) if any(heaps) and not is_won(heaps)]
    state = state_of(*lost)
    actions = (
        make_script("nim_optimal", game).act(state, game.legal(state, "first"), torch.arange(len(lost)), {}).action
    )
    assert [(action // 3, action % 3 + 1) for action in actions.tolist()] == [min(moves(heaps)) for heaps in lost]


@pytest.mark.parametrize("opponent", ["random", "choose_first", "choose_last"])
@pytest.mark.parametrize("seat", [0, 1])
def test_the_optimal_player_never_loses_a_won_position(seat: int, opponent: str) -> None:
    game = make(3, 4)
    names = ["nim_optimal", opponent] if seat == 0 else [opponent, "nim_optimal"]
    policies = {role: make_script(name, game) for role, name in zip(game.roles, names, strict=True)}
    games = play_games(game, policies, num_games=1500, max_rounds=20, seed=0)
    starts = game.reset(first_keys(1500))["heaps"].tolist()
    won = torch.tensor([is_won(tuple(heaps)) == (seat == 0) for heaps in starts if any(heaps)])
    assert games.finished.all()
    assert (games.returns[game.roles[seat]][won] == 1.0).all()


def first_keys(num: int) -> Tensor:
    """The keys from which an evaluation of seed 0 makes its starts."""
    return fold(world_keys(base_key(0, STREAM), num, CPU), 0)


def blunders(game: NimGame, policy: Policy, positions: list[Heaps]) -> list[tuple[Heaps, tuple[int, int]]]:
    """The won positions from which a player does not leave a lost one, with its move."""
    won = [heaps for heaps in positions if is_won(heaps)]
    state = state_of(*won)
    view = state if policy.observes == "state" else game.observe(state, "first")
    actions = policy.act(view, game.legal(state, "first"), torch.arange(len(won)), {}).action.tolist()
    chosen = [(action // game.config.max_stones, action % game.config.max_stones + 1) for action in actions]
    return [(heaps, move) for heaps, move in zip(won, chosen, strict=True) if is_won(moves(heaps)[move])]


# ---- learned -----------------------------------------------------------------------------------------------


def trained(data: dict[str, Any], folder: Path) -> palestra.Trainer:
    """A run of the shipped config, or of a part of it, without what it shows and keeps."""
    data["output"] |= {"display": "quiet", "recorders": [], "save": None}
    trainer = palestra.Trainer(data | {"evaluations": [], "best": None}, run=folder / "run")
    trainer.fit()
    return trainer


def blunders_of(player: Player, game: Any) -> list[tuple[Heaps, tuple[int, int]]]:
    positions = list(product(range(game.config.max_stones + 1), repeat=game.config.num_heaps))
    return blunders(game, player.policy(explore=False), positions)


def test_dqn_in_both_seats_learns_to_play_nim_perfectly(tmp_path: Path) -> None:
    trainer = trained(load_yaml(CONFIG), tmp_path)
    [player] = trainer.learners
    assert player.roles == ("first", "second")
    assert blunders_of(player, trainer.game) == []


def test_two_players_learn_from_their_own_seats(tmp_path: Path) -> None:
    data = load_yaml(CONFIG)
    algorithm = data["players"]["player"]["algorithm"]
    data["game"] |= {"num_heaps": 2, "max_stones": 2}
    learner = {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    data["players"] = {"one": learner, "two": learner}
    data |= {"roles": {"first": "one", "second": "two"}, "stop": {"after": 800, "unit": "opt_steps"}}
    trainer = trained(data, tmp_path)
    assert [player.roles for player in trainer.learners] == [("first",), ("second",)]
    assert [blunders_of(player, trainer.game) for player in trainer.learners] == [[], []]
