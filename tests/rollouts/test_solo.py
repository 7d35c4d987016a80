"""SoloGame and TensorWorld: every step is a transition, ends are told apart, nothing crosses a reset."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from palestra.games.game import Observation, State, TensorGame
from palestra.games.policy import Decision, Memory
from palestra.games.spaces import Box, Discrete, Space
from palestra.games.world import TensorWorld
from palestra.randomness import random_integers
from palestra.rollouts.solo import SoloGame, SoloWorlds, _count_rows, _count_steps


class Corridor(TensorGame):
    """Walk by 0 or 1 from a random place to `goal`, which earns 10; each step earns -1; cut off after `limit` steps."""

    roles = ("agent",)
    moves = (("agent",),)
    quiet_moves = ()
    tallies = ("rests",)
    lockstep = True
    device = torch.device("cpu")

    def __init__(self, goal: int = 3, limit: int = 5) -> None:
        self.goal, self.limit = goal, limit
        self.spaces = {"agent": {"place": Space((2,), torch.float32, padded=False)}}
        self.action_spaces = {"agent": Discrete(2)}

    def reset(self, keys: Tensor) -> State:
        place = random_integers(keys, 1, self.goal).squeeze(1)
        return {"place": place, "age": torch.zeros_like(place), "rests": torch.zeros_like(place)}

    def deciding(self, state: State) -> Tensor:
        return (state["place"] < self.goal).unsqueeze(1)

    def observe(self, state: State, role: str) -> Observation:
        return {"place": torch.stack([state["place"], state["age"]], dim=1).float()}

    def legal(self, state: State, role: str) -> Tensor:
        return torch.ones(len(state["place"]), 2, dtype=torch.bool)

    def transition(
        self, state: State, actions: dict[str, Tensor], keys: Tensor
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        move = actions["agent"]
        new = {"place": state["place"] + move, "age": state["age"] + 1, "rests": state["rests"] + (1 - move)}
        over = new["place"] >= self.goal
        reward = torch.where(over, 9.0, -1.0).unsqueeze(1)
        return new, reward, over.unsqueeze(1), ~over & (new["age"] >= self.limit)


class Script:
    """Moves with the key's lowest bit; remembers how many decisions of the running game came before."""

    observes = "observation"

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        count = memory.get("count", torch.zeros_like(keys))
        return Decision(keys & 1, {"count": count}, {"count": count + 1})


def played(num_worlds: int = 7, seed: int = 0) -> tuple[SoloGame, SoloWorlds]:
    game = Corridor()
    solo = SoloGame(game, {"agent": Script()}, lambda num, key, first, keys: TensorWorld(game, keys))
    return solo, solo.new_worlds(num_worlds, seed, "play")


def test_rows_follow_each_other_until_their_game_ends() -> None:
    solo, worlds = played()
    rows = solo.collect(worlds, ("agent",), 40)["agent"]
    place, following = (x["place"].view(40, 7, 2) for x in (rows.observation, rows.next_observation))
    ended = (rows.terminated | rows.truncated).view(40, 7)
    action, age = rows.action.view(40, 7), place[:, :, 1]
    assert torch.equal(following[:, :, 0], place[:, :, 0] + action)  # the true one, also at an end
    assert torch.equal(place[1:][~ended[:-1]], following[:-1][~ended[:-1]])
    assert torch.equal(age[1:][ended[:-1]], torch.zeros(int(ended[:-1].sum())))
    assert rows.valid.all()
    assert rows.terminated.any()
    assert rows.truncated.any()


def test_rows_carry_the_legal_actions_of_both_observations() -> None:
    """In a corridor in which nobody may rest at place 0, the worlds of an even age aside."""

    def rule(place: Tensor, age: Tensor) -> Tensor:
        return torch.stack([(place > 0) | (age % 2 == 0), torch.ones_like(place, dtype=torch.bool)], dim=1)

    solo, worlds = played()
    solo.game.legal = lambda state, role: rule(state["place"], state["age"])  # type: ignore[attr-defined]
    rows = solo.collect(worlds, ("agent",), 40)["agent"]
    later = slice(7, None)  # the first worlds were made before the rule
    assert torch.equal(rows.legal[later], rule(*rows.observation["place"][later].unbind(1)))
    assert torch.equal(rows.next_legal, rule(*rows.next_observation["place"].unbind(1)))
    assert not rows.legal[later].all()
    assert not rows.always_legal


def test_a_game_without_a_policy_is_told_before_anything_is_played() -> None:
    solo, worlds = played()
    solo.policies.clear()
    with pytest.raises(ValueError, match=r"^expected a policy for each role \(agent\).*, got none for 'agent';"):
        solo.collect(worlds, ("agent",), 1)
    assert worlds.num_moves == 1


def test_ends_are_told_apart() -> None:
    solo, worlds = played()
    rows = solo.collect(worlds, ("agent",), 40)["agent"]
    arrived = rows.next_observation["place"][:, 0] >= 3
    late = rows.next_observation["place"][:, 1] >= 5
    assert torch.equal(rows.terminated, arrived)
    assert torch.equal(rows.truncated, late & ~arrived)
    assert torch.equal(rows.reward, torch.where(arrived, 9.0, -1.0))


def test_memory_begins_anew_with_every_game() -> None:
    solo, worlds = played()
    rows = solo.collect(worlds, ("agent",), 40)["agent"]
    assert torch.equal(rows.extras["count"], rows.observation["place"][:, 1].long())


def test_finished_games_are_counted_once() -> None:
    solo, worlds = played()
    rows = solo.collect(worlds, ("agent",), 40)["agent"]
    totals = solo.take_totals(worlds)
    ended = rows.terminated | rows.truncated
    assert totals["episodes"] == ended.sum()
    assert totals["terminated"] == rows.terminated.sum()
    assert totals["length"] == rows.next_observation["place"][ended, 1].sum()
    assert totals["return/agent"] == rows.reward.sum() - worlds.returns.sum()
    finished_rests = 40 * 7 - rows.action.sum() - worlds.world.state_dict()["state"]["rests"].sum()
    assert totals["rests"] == finished_rests
    assert not any(solo.take_totals(worlds).values())


def test_the_returns_of_the_last_100_games_are_kept_in_the_order_in_which_they_ended() -> None:
    solo, worlds = played()
    finished, returns = list[float](), [0.0] * 7
    for num_rounds in (40, 1, 40, 40):
        rows = solo.collect(worlds, ("agent",), num_rounds)["agent"]
        for row, (reward, ended) in enumerate(zip(rows.reward, rows.terminated | rows.truncated, strict=True)):
            returns[row % 7] += float(reward)
            if ended:
                finished.append(returns[row % 7])
                returns[row % 7] = 0.0
        assert solo.recent_returns(worlds).squeeze(1).tolist() == finished[-100:]
    assert len(finished) > 150


@pytest.mark.parametrize("split", [1, 3, 13])
def test_the_split_of_a_roll_out_changes_nothing(split: int) -> None:
    solo, worlds = played()
    whole = solo.collect(worlds, ("agent",), 39)["agent"].rows()
    other, others = played()
    parts = [other.collect(others, ("agent",), split)["agent"].rows() for _ in range(39 // split)]
    assert all(torch.equal(value, torch.cat([part[name] for part in parts])) for name, value in whole.items())


def test_a_stored_state_goes_on_to_the_same_bits() -> None:
    solo, worlds = played()
    solo.collect(worlds, ("agent",), 11)
    state = worlds.state_dict()
    other, others = played(seed=1)
    others.load_state_dict(state)
    rows, same = (game.collect(run, ("agent",), 20)["agent"].rows() for game, run in ((solo, worlds), (other, others)))
    assert all(torch.equal(value, same[name]) for name, value in rows.items())
    assert solo.take_totals(worlds) == other.take_totals(others)
    assert torch.equal(solo.recent_returns(worlds), other.recent_returns(others))


def test_box_actions_are_checked_against_their_bounds() -> None:
    from palestra.games.game import IllegalMove

    game = Corridor()
    game.action_spaces = {"agent": Box((-1.0,), (1.0,))}
    game.legal = lambda state, role: torch.ones(len(state["place"]), 0, dtype=torch.bool)  # type: ignore[method-assign]
    state = game.reset(torch.arange(3))
    game.step(state, {"agent": torch.tensor([[1.0], [-1.0], [0.5]])}, torch.arange(3))
    with pytest.raises(IllegalMove, match=r"expected a legal action of 'agent' in world 1 .*, got \[1.5\]"):
        game.step(state, {"agent": torch.tensor([[1.0], [1.5], [0.5]])}, torch.arange(3))


def test_games_are_counted_alike_row_by_row_and_step_by_step() -> None:
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(6, (30, 5), generator=generator)
    earned, valid = torch.randn(30, 5, generator=generator), kind != 5
    books = (torch.arange(5, dtype=torch.int32), torch.arange(5.0), torch.zeros(101, 1), torch.tensor(77))
    steps = tuple(column.flatten() for column in (earned, kind == 0, kind == 1, valid))
    arrays = [tuple(column.numpy() for column in columns) for columns in (steps, books)]
    by_row = map(torch.from_numpy, _count_rows(*arrays))
    for found, expected in zip(_count_steps(steps, books), by_row, strict=True):
        assert torch.allclose(found, expected)
