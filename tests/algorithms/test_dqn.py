"""Covers palestra.algorithms.parts.replay, palestra.games.game."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.kernels import choices
from palestra.algorithms.parts.exploration import best_legal
from palestra.algorithms.turn import Turn
from palestra.buffers.prioritized import PrioritizedReplay
from palestra.config import check
from palestra.games.game import Observation
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.optimizers import OptimizerConfig, SGDConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import world_keys
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.transitions import Transitions, join_roles
from tests.algorithms.probing import assert_goes_on_in_a_fresh_object

CPU = torch.device("cpu")
GAME = NimGame(NimConfig(name="nim", num_heaps=2, max_stones=2, observation=UNCHANGED), CPU)
WITH_BATCH_NORM = {"name": "mlp", "net_arch": [16, "b", "r8"], "activation": "relu"}


def dqn_config(**changes: Any) -> DQNConfig:
    data = {
        "name": "dqn",
        "gamma": 0.5,
        "double": True,
        "dueling": False,
        "value": {"name": "expected", "huber_delta": 1.0},
        "transitions": {"name": "one_step"},
        "rollout_length": 3,
        "updates_per_turn": 4,
        "warmup_env_steps": 0,
        "batch_size": 16,
        "target": {"name": "polyak", "tau": 0.25, "interval": 1},
        "max_grad_norm": None,
        "net": {"name": "mlp", "net_arch": [16], "activation": "relu"},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 10},
        "exploration": {
            "name": "epsilon_greedy",
            "epsilon": {"name": "linear", "initial": 1.0, "final": 0.0, "num_steps": 10},
        },
        "replay_buffer": {"name": "uniform", "capacity": 1000, "layout": "whole", "scratch_folder": None},
    }
    return check(data | changes, DQNConfig)


def make_dqn(compiled: bool = False, **changes: Any) -> DQN:
    spaces, actions = GAME.spaces["first"], GAME.action_spaces["first"]
    player = Player("player", GAME.roles, spaces, actions, CPU, seed=1, compile=compiled, by_hand=True)
    dqn = dqn_config(**changes).build(player)
    player.algorithm = dqn
    return dqn


def batch_of(num: int, seed: int = 0) -> Transitions:
    """Random rows; a third each is terminated, truncated, and neither."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(num) % 3
    legal = torch.rand(num, 4, generator=generator) < 0.5
    legal[:, 1] = True
    return Transitions(
        observation={"heaps": torch.rand(num, 2, 3, generator=generator)},
        action=torch.randint(4, (num,), generator=generator),
        reward=torch.randn(num, generator=generator),
        next_observation={"heaps": torch.rand(num, 2, 3, generator=generator)},
        next_legal=legal & (kind != 0).unsqueeze(1),
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.ones(num, dtype=torch.bool),
        extras={},
        legal=torch.ones(num, 4, dtype=torch.bool),
    )


def batch_by_hand(legal: list[list[int]], reward: list[float], terminated: list[bool]) -> Transitions:
    batch = batch_of(len(reward))
    batch.next_legal, batch.reward = torch.tensor(legal, dtype=torch.bool), torch.tensor(reward)
    batch.terminated = torch.tensor(terminated)
    batch.truncated = ~batch.terminated
    return batch


# ---- the target and the loss -----------------------------------------------------------------------------

ONLINE = torch.tensor([[1.0, 5.0, 3.0, 9.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
TARGET = torch.tensor([[8.0, 2.0, 4.0, 9.0], [10.0, 20.0, 30.0, 40.0], [7.0, 7.0, 7.0, 7.0]])
BATCH = batch_by_hand([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], [0.0, 1.0, -1.0], [False, False, True])


@pytest.mark.parametrize(
    ("choosing", "expected"), [(ONLINE, [1.0, 11.0, -1.0]), (TARGET, [4.0, 11.0, -1.0])], ids=["double", "not double"]
)
def test_target_computed_by_hand(choosing: Tensor, expected: list[float]) -> None:
    """Of three rows, all cut off but the last, which is terminated; double chooses action 1 in the first, worth 2."""
    assert make_dqn().target(TARGET, choosing, BATCH).tolist() == expected


def test_illegal_actions_never_enter_the_target() -> None:
    batch, dqn = batch_of(60), make_dqn()
    choosing, target = torch.randn(60, 4), torch.randn(60, 4)
    expected = dqn.target(target, choosing, batch)
    wild_choosing, wild_target = (torch.where(batch.next_legal, q, 1e9) for q in (choosing, target))
    assert torch.equal(dqn.target(wild_target, wild_choosing, batch), expected)


def test_nothing_after_a_terminated_game_enters_the_target() -> None:
    batch = batch_of(60)
    target = make_dqn().target(torch.full((60, 4), 1e9), torch.full((60, 4), 1e9), batch)
    assert torch.equal(target[batch.terminated], batch.reward[batch.terminated])
    assert (target[~batch.terminated] > 1e8).all()


def test_rows_that_were_learned_from_are_drawn_again_by_their_td_errors() -> None:
    replay = {"name": "prioritized", "alpha": 1.0, "beta": {"name": "constant", "value": 0.4}, "eps": 1e-6}
    dqn, batch = (
        make_dqn(replay_buffer=replay | {"capacity": 1000, "layout": "whole", "scratch_folder": None}),
        batch_of(60),
    )
    assert isinstance(dqn.buffer, PrioritizedReplay)
    dqn.buffer.add(batch.rows(), batch.valid)
    _, _, td_error = dqn.gradient(batch)
    assert td_error is not None
    dqn.opt_step(dqn.buffer.sample(16))
    drawn = dqn.buffer.drawn
    assert torch.allclose(dqn.buffer.tree.leaves[drawn].float(), td_error.abs()[drawn], rtol=1e-4, atol=1e-6)


def test_loss_is_the_huber_loss_of_the_actions_taken() -> None:
    """TD errors 0.5, 3 and 1 with delta 2: 0.125, 2 * (3 - 1) and 0.5."""
    q = torch.tensor([[0.5, 9.0], [9.0, 3.0], [9.0, -1.0]], requires_grad=True)
    batch, dqn = batch_of(3), make_dqn(value={"name": "expected", "huber_delta": 2.0})
    batch.action = torch.tensor([0, 1, 1])
    terms = dqn.loss(q, torch.zeros(3), batch)
    terms["loss_td"].backward()
    assert terms["loss_td"].item() == pytest.approx((0.125 + 4.0 + 0.5) / 3)
    assert dqn.priorities(q.detach(), torch.zeros(3), batch).tolist() == [0.5, 3.0, -1.0]
    assert float(terms["q_mean"]) == pytest.approx(2.5 / 3)
    assert float(terms["td_error"]) == pytest.approx(4.5 / 3)
    assert q.grad is not None
    assert torch.allclose(q.grad, torch.tensor([[0.5, 0.0], [0.0, 2.0], [0.0, -1.0]]) / 3)


# ---- acting ------------------------------------------------------------------------------------------------


def test_exploration_follows_its_schedule_and_is_absent_when_not_asked_for() -> None:
    dqn = make_dqn()
    for opt_steps, expected in ((0, 1.0), (5, 0.5), (10, 0.0)):
        dqn.player.opt_steps = opt_steps
        assert dqn.policy(explore=True).exploration == expected
        assert dqn.policy(explore=False).exploration == 0.0


def test_acting_uses_the_newest_weights_in_evaluation_mode() -> None:
    dqn = make_dqn(net=WITH_BATCH_NORM)
    batch = batch_of(16)
    for step in range(3):
        dqn.online.net.train()
        before = copy.deepcopy(dqn.player.nets["q"].state_dict())
        q = dqn.policy(explore=False).values(batch.observation)
        assert torch.equal(q, copy.deepcopy(dqn.online.net).eval()(batch.observation))
        assert all(torch.equal(value, before[name]) for name, value in dqn.player.nets["q"].state_dict().items())
        dqn.opt_step(batch_of(16, seed=step).rows())


@pytest.mark.parametrize("net_arch", [[16], [16, "b"]])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_kernel_chooses_as_the_exploration_does_by_the_values(net_arch: list[Any], epsilon: float) -> None:
    net = {"name": "mlp", "net_arch": net_arch, "activation": "tanh"}
    exploration = {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": epsilon}}
    dqn = make_dqn(net=net, exploration=exploration)
    policy = dqn.policy(explore=True)
    assert policy.choose is choices.choose_greedily
    for seed in range(3):
        dqn.opt_step(batch_of(16, seed).rows())  # it sees the weights of today
        batch, keys = batch_of(300, seed), world_keys(seed, 300, CPU)
        action = policy.act(batch.observation, batch.next_legal, keys, {}).action
        values = copy.deepcopy(dqn.online.net).eval()(batch.observation)
        assert torch.equal(action, dqn.config.exploration.choose(values, batch.next_legal, keys, epsilon))


@pytest.mark.parametrize(
    "changes",
    [
        {"dueling": True},
        {"exploration": {"name": "softmax", "temperature": {"name": "constant", "value": 1.0}}},
        {"value": {"name": "quantile", "num_quantiles": 4, "huber_delta": 1.0}},
        {"net": {"name": "mlp", "net_arch": [16], "activation": "gelu"}},
    ],
)
def test_whatever_finds_the_values_a_kernel_chooses_by_them_unless_they_are_chosen_otherwise(
    changes: dict[str, Any],
) -> None:
    dqn = make_dqn(**changes)
    assert (dqn.acting_kernel is None) == ("exploration" in changes)
    assert dqn.policy(explore=True).choose == (dqn.acting_kernel or dqn.config.exploration.choose)


def test_a_class_of_ones_own_acts_by_its_own_values() -> None:
    class Contrary(DQN):
        def values(self, observation: Observation) -> Tensor:
            return -super().values(observation)

    stock = make_dqn()
    contrary = Contrary(stock.config, stock.player)
    batch = batch_of(50)
    action = contrary.policy(explore=False).act(batch.observation, batch.next_legal, torch.arange(50), {}).action
    assert torch.equal(action, best_legal(-contrary.online.net(batch.observation), batch.next_legal))


# ---- an opt step ---------------------------------------------------------------------------------------------


def torch_optimizer(config: OptimizerConfig, net: nn.Module) -> torch.optim.Optimizer:
    if isinstance(config, SGDConfig):
        return torch.optim.SGD(net.parameters(), momentum=config.momentum, weight_decay=config.weight_decay)
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(net.parameters(), betas=betas, eps=config.eps, weight_decay=config.weight_decay)


class PlainDQN:
    """The same update, written with torch's own parts: autograd, AdamW or SGD, clip_grad_norm_."""

    def __init__(self, dqn: DQN) -> None:
        self.config, self.q, self.target = dqn.config, copy.deepcopy(dqn.online.net), copy.deepcopy(dqn.target_net.net)
        for net in (self.q, self.target):
            for parameter in net.parameters():
                parameter.data = parameter.data.clone()
        self.optimizer = torch_optimizer(self.config.optimizer, self.q)

    def opt_step(self, batch: Transitions, step: int) -> float:
        config = self.config
        with torch.no_grad():
            self.q.eval()
            best = self.q if config.double else self.target
            choice = best(batch.next_observation).masked_fill(~batch.next_legal, -torch.inf).argmax(1, keepdim=True)
            value = self.target(batch.next_observation).gather(1, choice).squeeze(1)
            target = batch.reward + config.gamma * value * ~batch.terminated
        self.q.train()
        taken = self.q(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        self.optimizer.zero_grad()
        nn.functional.huber_loss(taken, target, delta=config.value.huber_delta).backward()
        norm = nn.utils.clip_grad_norm_(self.q.parameters(), config.max_grad_norm or torch.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate(step)
        self.optimizer.step()
        return float(norm)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_grad_norm": 0.05},
        # Before a batch norm the gradient of a bias is but rounding noise, which Adam blows up unless eps is large.
        {
            "net": WITH_BATCH_NORM,
            "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-3, "weight_decay": 0.0},
        },
        {"optimizer": {"name": "adam", "beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.3}},
        {
            "optimizer": {"name": "sgd", "momentum": 0.5, "weight_decay": 0.1},
            "value": {"name": "expected", "huber_delta": 0.3},
        },
    ],
)
def test_opt_steps_are_those_of_plain_torch(changes: dict[str, Any], double: bool) -> None:
    dqn = make_dqn(**changes, double=double, target={"name": "polyak", "tau": 1.0, "interval": 1000})
    plain = PlainDQN(dqn)
    for step in range(6):
        batch = batch_of(32, seed=step)
        norm = float(dqn.opt_step(batch.rows())["grad_norm"])
        dqn.player.opt_steps += 1
        assert norm == pytest.approx(plain.opt_step(batch, step), rel=1e-4)
    for (name, value), expected in zip(
        dqn.player.nets["q"].state_dict().items(), plain.q.state_dict().values(), strict=True
    ):
        assert torch.allclose(value, expected, atol=1e-5), name


@pytest.mark.slow
def test_a_compiled_opt_step_is_the_eager_one_within_rounding() -> None:
    """Two of them in one process, for what was compiled for one network is not another's."""
    adam = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-3, "weight_decay": 0.1}
    gelu = {"name": "mlp", "net_arch": [16], "activation": "gelu"}  # no gradients by hand
    for changes in ({"net": gelu}, {"net": WITH_BATCH_NORM, "optimizer": adam, "max_grad_norm": 0.1}):
        eager, fast = make_dqn(**changes), make_dqn(compiled=True, **changes)
        for step in range(4):
            rows = batch_of(16, seed=step).rows()
            expected, metrics = eager.opt_step(rows), fast.opt_step(rows)
            assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
                {k: float(v) for k, v in expected.items()}, rel=1e-4
            )
            for dqn in (eager, fast):
                dqn.player.opt_steps += 1
        for net in ("q", "target"):
            values, others = (dqn.player.nets[net].state_dict() for dqn in (eager, fast))
            assert all(torch.allclose(value, others[name], atol=1e-5) for name, value in values.items())


def test_the_target_follows_a_share_of_the_way_after_every_step() -> None:
    dqn = make_dqn(net=WITH_BATCH_NORM)
    for step in range(3):
        before = copy.deepcopy(dqn.player.nets["target"].state_dict())
        dqn.opt_step(batch_of(16, seed=step).rows())
        online = dqn.player.nets["q"].state_dict()
        for name, value in dqn.player.nets["target"].state_dict().items():
            if value.is_floating_point():
                assert torch.allclose(value, 0.75 * before[name] + 0.25 * online[name], atol=1e-6), name
    assert not torch.equal(dqn.player.nets["target"].state_dict()["layers.1.running_mean"], torch.zeros(16))


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_moves_at_every_interval_and_is_untouched_between(tau: float) -> None:
    dqn = make_dqn(net=WITH_BATCH_NORM, target={"name": "polyak", "tau": tau, "interval": 3})
    expected = copy.deepcopy(dqn.player.nets["target"].state_dict())
    for step in range(1, 8):
        dqn.opt_step(batch_of(16, seed=step).rows())
        dqn.player.opt_steps += 1
        if step % 3 == 0:
            for name, new in dqn.player.nets["q"].state_dict().items():
                expected[name] = expected[name].lerp(new, tau) if new.is_floating_point() else new.clone()
        assert all(torch.equal(value, expected[name]) for name, value in dqn.player.nets["target"].state_dict().items())


def test_the_target_starts_equal_and_learns_nothing_by_itself() -> None:
    dqn = make_dqn(target={"name": "polyak", "tau": 1.0, "interval": 1000})
    before = copy.deepcopy(dqn.player.nets["target"].state_dict())
    assert all(torch.equal(value, before[name]) for name, value in dqn.player.nets["q"].state_dict().items())
    dqn.opt_step(batch_of(16).rows())
    assert all(torch.equal(value, before[name]) for name, value in dqn.player.nets["target"].state_dict().items())
    assert not dqn.target_net.net.training


def test_training_does_not_touch_the_users_global_random_state() -> None:
    def numbers() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = numbers()
    seed()
    dqn = make_dqn(net=WITH_BATCH_NORM)
    RecordingTurn(dqn).run()
    assert numbers() == expected


# ---- a turn ----------------------------------------------------------------------------------------------------


class RecordingTurn(Turn):
    """Plays Nim for the algorithm, and writes down what it is asked for. `visit`: called at every safe point."""

    def __init__(self, dqn: DQN, visit: Callable[[], None] = lambda: None) -> None:
        super().__init__(dqn.player)
        dqn.player.num_worlds = 32
        self.visit = visit
        self.fused_game = FusedGame(GAME, {})
        self.player.worlds = self.player.worlds or self.fused_game.new_worlds(32, 0, "play")
        self.calls: list[str] = []

    def collect(self, num_rounds: int) -> Transitions:
        self.calls.append(f"collect {num_rounds}")
        assert self.player.worlds is not None
        self.fused_game.policies = dict.fromkeys(GAME.roles, self.player.policy(explore=True))
        self.player.env_steps += 32 * num_rounds
        by_role = self.fused_game.collect(self.player.worlds, self.player.roles, num_rounds)
        return join_roles(by_role, self.player.moves, 32)

    def before_step(self) -> None:
        self.calls.append("before")

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        self.calls.append("after")
        self.player.opt_steps += num_opt_steps

    def safe_point(self) -> None:
        self.calls.append("safe point")
        self.visit()


def test_a_turn_rolls_out_and_then_updates() -> None:
    dqn = make_dqn()
    turn = RecordingTurn(dqn)
    turn.run()
    assert turn.calls == ["collect 3", "safe point"] + ["before", "after", "safe point"] * 4
    assert dqn.buffer.num_added > 0
    assert dqn.buffer.num_samples == 4


def test_warm_up_gathers_and_does_not_update() -> None:
    dqn = make_dqn(warmup_env_steps=200)
    turn = RecordingTurn(dqn)
    before = copy.deepcopy(dqn.player.nets["q"].state_dict())
    turn.run()
    turn.run()
    assert turn.calls == ["collect 3", "safe point"] * 2
    assert all(torch.equal(value, before[name]) for name, value in dqn.player.nets["q"].state_dict().items())
    turn.run()
    assert turn.calls[4:] == ["collect 3", "safe point"] + ["before", "after", "safe point"] * 4


def test_there_is_no_update_before_the_first_transition() -> None:
    dqn = make_dqn(rollout_length=1)
    turn = RecordingTurn(dqn)
    turn.run()  # one round: nobody has decided twice
    assert len(dqn.buffer) == 0
    assert turn.calls == ["collect 1", "safe point"]


@pytest.mark.parametrize("leave_at", range(1, 11))
def test_a_turn_left_at_any_safe_point_goes_on_right_there_in_a_fresh_object(leave_at: int) -> None:
    assert_goes_on_in_a_fresh_object(lambda visit: RecordingTurn(make_dqn(), visit), leave_at)


def test_equal_seeds_learn_the_same_to_the_bit() -> None:
    weights = []
    for _ in range(2):
        dqn = make_dqn(net=WITH_BATCH_NORM)
        turn = RecordingTurn(dqn)
        for _ in range(3):
            turn.run()
        weights.append(dqn.player.nets["q"].state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize(
    "changes",
    [
        {"dueling": True},
        {"net": WITH_BATCH_NORM},
        {"value": {"name": "quantile", "num_quantiles": 4, "huber_delta": 1.0}},
        {"net": {"name": "mlp", "net_arch": [16], "activation": "gelu"}},
    ],
)
def test_other_networks_learn_by_autograd(changes: dict[str, Any]) -> None:
    assert make_dqn(**changes).gradient_kernel is None
    assert make_dqn().gradient_kernel is not None
