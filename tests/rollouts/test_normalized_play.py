"""Roll-outs of games whose observations are normalised: what they count is what numpy counts in the same games without
normalisation, and each row holds what the player got at that moment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palestra.config import check
from palestra.evaluation.evaluator import play_games
from palestra.games import OneGame, TensorGame
from palestra.games.game import Kernel
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.world import TensorWorld
from palestra.players import make_script
from palestra.randomness import base_key, fold, random_choice, world_keys
from palestra.rollouts.fused import FusedGame, Worlds
from palestra.rollouts.transitions import Transitions

Data = dict[str, Any]
CPU = torch.device("cpu")
EPS = 1e-8
NORMALIZE: Data = {"normalize": {"eps": EPS}, "clip": None}
PLAIN: Data = {"normalize": None, "clip": None}
NIM: Data = {"name": "nim", "num_heaps": 3, "max_stones": 3}
CARTPOLE: Data = {
    "name": "cartpole",
    "max_rounds": 7,
    "initial_low": -0.2,
    "initial_high": 0.2,
    "sutton_barto_reward": False,
}
POLYHEDRA: Data = {
    **{"name": "polyhedra", "variant": "basic", "dimension": 3, "max_num_points": 5, "max_value": 9},
    **{"initial_points": None, "reduction": "vertices", "rescale": False, "rescale_state": False},
    **{"max_rounds": 4, "reward": {"name": "win"}},
}


class Random:
    """Random play that depends on nothing it observes."""

    observes: Observes = "observation"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(random_choice(keys, legal), {}, memory)


class Watching(Random):
    """Also keeps what it gets in a role, and where it decides."""

    def __init__(self, game: TensorGame, role: str) -> None:
        self.game, self.role = game, role
        self.views: list[Tensor] = []
        self.deciding: list[Tensor] = []
        self.worlds: Worlds | None = None

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        assert self.worlds is not None
        self.views.append(next(iter(view.values())))
        self.deciding.append(self.game.deciding(self.worlds.state)[:, self.game.roles.index(self.role)])
        return super().act(view, legal, keys, memory)


def make(rules: Data, observation: Data, kernel: Kernel = "torch") -> TensorGame:
    game = check({"game": rules | {"observation": observation}}, OneGame).game.build(CPU, kernel)
    assert isinstance(game, TensorGame)
    return game


def play(game: TensorGame, role: str, num_rounds: int) -> tuple[Watching, list[Transitions]]:
    """The role's player, and the experience that is collected of the role, round by round."""
    watching = Watching(game, role)
    fused = FusedGame(game, {**dict.fromkeys(game.roles, Random()), role: watching})
    worlds = watching.worlds = fused.new_worlds(6, 3, "play")
    return watching, [fused.collect(worlds, (role,), 1)[role] for _ in range(num_rounds)]


@pytest.mark.parametrize(
    ("rules", "role"), [(NIM, "first"), (NIM, "second"), (POLYHEDRA, "host"), (POLYHEDRA, "agent")]
)
def test_a_role_that_is_collected_counts_what_it_observes_where_it_decides(rules: Data, role: str) -> None:
    game = make(rules, NORMALIZE)
    play(game, role, 25)
    plain, _ = play(make(rules, PLAIN), role, 25)
    rows = torch.cat([view[where] for view, where in zip(plain.views, plain.deciding, strict=True)]).double()
    assert game.observation_transform is not None
    moments = game.observation_transform.moments[role]["heaps" if rules is NIM else "points"]
    if rules is NIM:
        assert np.allclose(moments.mean, rows.mean(0), rtol=1e-9)
        assert np.allclose(moments.variance, rows.numpy().var(0), rtol=1e-9)
    else:
        rows = rows[(rows >= 0).all(dim=2)]
        assert np.allclose(moments.variance, rows.square().mean(0), rtol=1e-9)
    assert int(moments.count) == len(rows) > 50
    for other in game.roles:
        counts = [int(each.count) for each in game.observation_transform.moments[other].values()]
        assert all(count > 0 for count in counts) == (other == role)


def test_rows_hold_what_the_player_got_at_the_moment() -> None:
    """It is normalised with all that was observed until then, and stays as it is in both rows that hold it."""
    watching, rows = play(make(NIM, NORMALIZE), "first", 25)
    plain, plain_rows = play(make(NIM, PLAIN), "first", 25)
    last, observed = torch.zeros(6, 3, 4), np.empty((0, 3, 4))
    for view, raw, where, row, plain_row in zip(
        watching.views, plain.views, plain.deciding, rows, plain_rows, strict=True
    ):
        observed = np.concatenate([observed, raw[where].double().numpy()])
        expected = (raw[where].numpy() - observed.mean(0)) / np.sqrt(observed.var(0) + EPS)
        assert np.allclose(view[where], expected, rtol=1e-4, atol=1e-4)
        going_on = row.valid & ~row.terminated
        assert torch.equal(row.observation["heaps"][row.valid], last[row.valid])
        assert torch.equal(row.next_observation["heaps"][going_on], view[going_on])
        for name in ("valid", "terminated", "reward"):
            assert torch.equal(getattr(row, name), getattr(plain_row, name))
        last = torch.where(where.view(-1, 1, 1), view, last)
    assert len(observed) > 50


def test_playing_without_collecting_counts_nothing() -> None:
    game = make(NIM, NORMALIZE)
    fused = FusedGame(game, dict.fromkeys(game.roles, Random()))
    worlds = fused.new_worlds(6, 3, "play")
    before = str(game.state_dict())
    fused.collect(worlds, (), 5)
    play_games(game, dict.fromkeys(game.roles, Random()), 30, 20, 1)
    assert str(game.state_dict()) == before
    fused.collect(worlds, ("first",), 1)
    assert str(game.state_dict()) != before


# ---- a lone role ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_a_lone_role_counts_every_observation_once_those_that_begin_games_too(kernel: Kernel) -> None:
    """As GymnasiumWorld does: an ended game's last observation, and the next one's first."""
    game, plain = make(CARTPOLE, NORMALIZE, kernel), make(CARTPOLE, PLAIN, kernel)
    keys = world_keys(base_key(0, "starts"), 5, CPU)
    world, raw_world = TensorWorld(game, keys), TensorWorld(plain, keys)
    seen = [raw_world.observation["observation"]]

    def normal(rows: Tensor) -> Any:
        every = torch.cat(seen).double().numpy()
        return (rows.numpy() - every.mean(0)) / np.sqrt(every.var(0) + EPS)

    num_ends = 0
    for step in range(30):
        step_keys = fold(keys, step)
        action = random_choice(step_keys, torch.ones(5, 2, dtype=torch.bool))
        raw, outcome = raw_world.step(action, step_keys), world.step(action, step_keys)
        seen.append(raw.observation["observation"])
        assert np.allclose(outcome.observation["observation"], normal(seen[-1]), rtol=1e-3, atol=1e-4)
        ended = raw.terminated | raw.truncated
        if ended.any():
            seen.append(raw_world.observation["observation"][ended])
            assert np.allclose(world.observation["observation"][ended], normal(seen[-1]), rtol=1e-3, atol=1e-4)
        assert torch.equal(world.observation["observation"][~ended], outcome.observation["observation"][~ended])
        num_ends += int(ended.sum())
    assert game.observation_transform is not None
    moments, every = game.observation_transform.moments["agent"]["observation"], torch.cat(seen).double()
    assert num_ends > 10
    assert int(moments.count) == len(every)
    assert np.allclose(moments.mean, every.mean(0), rtol=1e-9)
    assert np.allclose(moments.variance, every.numpy().var(0), rtol=1e-9)


def test_a_loaded_world_shows_what_it_showed_and_counts_nothing_again() -> None:
    """At every step, of which some have ended games: their worlds were normalised later than the others."""
    game, other = make(CARTPOLE, NORMALIZE), make(CARTPOLE, NORMALIZE)
    keys = world_keys(base_key(0, "starts"), 5, CPU)
    world, loaded = TensorWorld(game, keys), TensorWorld(other, fold(keys, 9))
    for step in range(20):
        other.load_state_dict(game.state_dict())
        loaded.load_state_dict(world.state_dict())
        assert torch.equal(loaded.observation["observation"], world.observation["observation"])
        assert str(other.state_dict()) == str(game.state_dict())
        action = torch.full((5,), step % 2)
        one, two = (each.step(action, fold(keys, step)) for each in (world, loaded))
        assert torch.equal(one.observation["observation"], two.observation["observation"])
        assert torch.equal(world.observation["observation"], loaded.observation["observation"])


# ---- who observes --------------------------------------------------------------------------------------


def test_a_script_that_observes_the_state_gets_it_as_it_is() -> None:
    """The optimal player of Nim wins as before, whatever is done with observations."""
    returns = []
    for observation in (PLAIN, NORMALIZE):
        game = make(NIM, observation)
        policies = {"first": make_script("nim_optimal", game, "first"), "second": Random()}
        returns.append(play_games(game, policies, 100, 20, 0).returns["first"])
    assert torch.equal(*returns)
