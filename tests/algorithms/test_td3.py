"""TD3: its parts against definitions, its opt step against plain torch, and games whose values are known."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from probes import Kind
from scipy.stats import kstest
from torch import Tensor, nn

from palestra.algorithms.parts.distributions import HalfWidths
from palestra.algorithms.td3 import TD3, NoisyPolicy, TD3Config
from palestra.algorithms.terms import total_loss
from palestra.config import ConfigError, check
from palestra.games.spaces import ActionSpace, Box, Discrete, Space
from palestra.randomness import fold, random_normals, world_keys
from palestra.rollouts.transitions import Transitions
from tests.algorithms.probing import (
    ProbeTurn,
    assert_goes_on_in_a_fresh_object,
    best_action,
    learn,
    make_probe,
    seat,
    seen,
)

CPU = torch.device("cpu")
BOX = Box((-1.0, 0.0), (1.0, 6.0))
CENTER, HALF_WIDTH = torch.tensor([0.0, 3.0]), torch.tensor([1.0, 3.0])
SPACES = {"seen": Space((3,), torch.float32, padded=False)}
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
SGD = {"name": "sgd", "momentum": 0.5, "weight_decay": 0.1}
MLP = {"name": "mlp", "net_arch": [16], "activation": "relu"}
WITH_BATCH_NORM = {"name": "mlp", "net_arch": [16, "b", "r8"], "activation": "relu"}


def rate(initial: float, num_steps: int) -> dict[str, Any]:
    return {"name": "linear", "initial": initial, "final": 0.1 * initial, "num_steps": num_steps}


BASE: dict[str, Any] = {
    "name": "td3",
    "gamma": 0.8,
    "num_critics": 2,
    "transitions": {"name": "one_step"},
    "rollout_length": 3,
    "updates_per_turn": 4,
    "policy_interval": 2,
    "warmup_env_steps": 0,
    "batch_size": 16,
    "target": {"name": "polyak", "tau": 0.25, "interval": 2},
    "smoothing": {"std": 0.2, "max_noise": 0.5},
    "exploration": {"name": "gaussian", "std": rate(0.3, 10)},
    "max_grad_norm": None,
    "policy_net": MLP,
    "critic_net": MLP,
    "policy_optimizer": ADAM,
    "critic_optimizer": ADAM,
    "policy_learning_rate": rate(0.01, 10),
    "critic_learning_rate": rate(0.02, 10),
    "replay_buffer": {"name": "uniform", "capacity": 1000, "layout": "whole", "scratch_folder": None},
}


def td3_config(**changes: Any) -> TD3Config:
    return check(BASE | changes, TD3Config)


def make_td3(compiled: bool = False, **changes: Any) -> TD3:
    return seat(td3_config(**changes), SPACES, BOX, compiled)


def batch_of(num: int, seed: int = 0) -> Transitions:
    """Random rows; a third each is terminated, truncated, and neither."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(num) % 3
    return Transitions(
        observation={"seen": torch.randn(num, 3, generator=generator)},
        action=CENTER + HALF_WIDTH * (2.0 * torch.rand(num, 2, generator=generator) - 1.0),
        reward=torch.randn(num, generator=generator),
        next_observation={"seen": torch.randn(num, 3, generator=generator)},
        next_legal=torch.ones(num, 0, dtype=torch.bool),
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.ones(num, dtype=torch.bool),
        extras={},
        legal=torch.ones(num, 0, dtype=torch.bool),
    )


# ---- targets and losses ----------------------------------------------------------------------------------


def test_targets_bootstrap_where_a_game_was_cut_off_and_not_where_it_terminated() -> None:
    batch, td3 = batch_of(6), make_td3()
    target = td3.target(torch.tensor([[11.0], [10.0]]).expand(-1, 6), batch)
    assert torch.allclose(target, batch.reward + torch.tensor([0.0, 8.0, 8.0] * 2))
    nothing_known = td3.target(torch.full((2, 6), torch.nan), batch)
    assert torch.equal(nothing_known.isnan(), ~batch.terminated)


def test_target_actions_are_smoothed_by_clipped_noise_and_stay_within_bounds() -> None:
    td3 = make_td3(smoothing={"std": 0.2, "max_noise": 0.5})
    outputs = torch.atanh(torch.tensor([[0.0, 0.3, -0.8, 0.9]]))
    smoothed = td3.target_actions(outputs, torch.tensor([[1.0, -9.0, -9.0, 2.0]]))
    assert smoothed.tolist() == [pytest.approx([0.2, -0.2, -1.0, 1.0])]


def test_the_critics_losses_are_mean_squares_added_up() -> None:
    q_values = torch.tensor([[1.0, 2.0], [0.0, 4.0]])
    terms = make_td3().critic_loss(q_values, torch.tensor([0.0, 2.0]), batch_of(2))
    assert {name: float(term) for name, term in terms.items()} == pytest.approx(
        {"loss_critics": (1 + 0) / 2 + (0 + 4) / 2, "q_mean": 7 / 4}
    )


PRIORITIZED = {
    "name": "prioritized",
    "capacity": 100,
    "layout": "whole",
    "scratch_folder": None,
    "alpha": 1.0,
    "beta": {"name": "constant", "value": 1.0},
    "eps": 1e-6,
}


def test_after_n_steps_the_next_value_counts_gamma_to_the_n() -> None:
    batch = replace(batch_of(6), extras={"discount": torch.full((6,), 0.5)})
    target = make_td3().target(torch.tensor([[11.0], [10.0]]).expand(-1, 6), batch)
    assert torch.allclose(target, batch.reward + torch.tensor([0.0, 5.0, 5.0] * 2))


def test_rows_drawn_by_priority_carry_their_weights_in_the_mean() -> None:
    batch = replace(batch_of(2), extras={"weight": torch.tensor([1.0, 0.25])})
    terms = make_td3().critic_loss(torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([0.0, 2.0]), batch)
    assert float(terms["loss_critics"]) == pytest.approx((1 + 0) / 2 + (0 + 0.25 * 4) / 2)


def test_an_opt_step_weighs_rows_and_gives_them_new_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    td3 = make_td3(replay_buffer=PRIORITIZED)
    batch = batch_of(8)
    taken: dict[str, Tensor] = {}
    td3.buffer.add(batch.rows(), batch.valid)
    td3.buffer.tree.set(torch.arange(8), torch.arange(1.0, 9.0, dtype=torch.float64))
    loss, priorities = td3.critic_loss, td3.priorities

    def watched_loss(q_values: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        taken["weight"] = batch.extras["weight"].clone()
        return loss(q_values, value_target, batch)

    def watched_priorities(q_values: Tensor, value_target: Tensor, batch: Transitions) -> Tensor:
        taken["priorities"] = priorities(q_values, value_target, batch)
        return taken["priorities"]

    monkeypatch.setattr(td3, "critic_loss", watched_loss)
    monkeypatch.setattr(td3, "priorities", watched_priorities)
    rows = td3.buffer.sample(16)
    drawn = td3.buffer.drawn.clone()
    td3.opt_step(rows)
    assert torch.allclose(taken["weight"], (drawn.min() + 1.0) / (drawn + 1.0))
    last = {int(place): float(error) for place, error in zip(drawn, taken["priorities"], strict=True)}
    for place in range(8):
        expected = last[place] + 1e-6 if place in last else place + 1.0
        assert float(td3.buffer.tree.leaves[place]) == pytest.approx(expected), place


def test_priorities_are_the_mean_errors_of_all_critics() -> None:
    q_values, value_target = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([0.0, 3.0])
    assert make_td3().priorities(q_values, value_target, batch_of(2)).tolist() == [0.5, 1.5]


# ---- a changed term --------------------------------------------------------------------------------------


class ClampedTargets(TD3):
    """Values lie between -1 and 1, whatever the target critics say."""

    def target(self, next_q_values: Tensor, batch: Transitions) -> Tensor:
        return super().target(next_q_values.clamp(-1.0, 1.0), batch)


class HuberCritics(TD3):
    """Large TD errors count linearly; the largest one is recorded."""

    def critic_loss(self, q_values: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        errors = q_values - value_target
        loss = nn.functional.huber_loss(q_values, value_target.expand_as(q_values))
        return {"loss_critics": loss, "largest_td_error": errors.detach().abs().max()}


class NearTheData(TD3):
    """TD3+BC (Fujimoto and Gu 2021): the policy also stays near the actions that were taken."""

    def policy_loss(self, q_values: Tensor, actions: Tensor, batch: Transitions) -> dict[str, Tensor]:
        scale = 2.5 / q_values.abs().mean().detach()
        distance = (actions - self.half_widths(batch.action)).square().mean()
        return {"loss_policy": -scale * q_values.mean(), "loss_distance": distance, "distance": distance}


def critics_parts(td3: TD3, batch: Transitions) -> tuple[Tensor, Tensor]:
    """Values of the actions taken, (critics, B), and the smallest ones at s', (B,), without smoothing."""
    q_values = td3.critics(batch.observation | {"action": td3.half_widths(batch.action)}).squeeze(2)
    with torch.no_grad():
        next_actions = torch.tanh(td3.target_policy(batch.next_observation))
        next_q_values = td3.target_critics(batch.next_observation | {"action": next_actions}).squeeze(2)
    return q_values, next_q_values.amin(0)


def test_a_changed_target_is_the_one_that_is_learned() -> None:
    changed, batch = ClampedTargets(td3_config(), make_td3().player), batch_of(32)
    with torch.no_grad():
        changed.target_critics.weights.mul_(5.0)
    gradient, metrics, _ = changed.critic_gradient(batch, torch.zeros(32, 2))
    q_values, next_value = critics_parts(changed, batch)
    assert (next_value.abs() > 1.0).any()
    value_target = batch.reward + 0.8 * next_value.clamp(-1.0, 1.0) * ~batch.terminated
    loss = sum(nn.functional.mse_loss(row, value_target) for row in q_values)
    assert isinstance(loss, Tensor)
    assert torch.allclose(gradient, changed.critics.gradient(loss), atol=1e-6)
    assert float(metrics["critic_loss"]) == pytest.approx(float(loss.detach()))


def test_a_changed_loss_of_the_critics_is_learned_and_its_metrics_are_recorded() -> None:
    changed, batch = HuberCritics(td3_config(), make_td3().player), batch_of(32)
    gradient, metrics, _ = changed.critic_gradient(batch, torch.zeros(32, 2))
    q_values, next_value = critics_parts(changed, batch)
    value_target = (batch.reward + 0.8 * next_value * ~batch.terminated).expand_as(q_values)
    loss = nn.functional.huber_loss(q_values, value_target)
    assert torch.allclose(gradient, changed.critics.gradient(loss), atol=1e-6)
    assert float(metrics["critic_loss"]) == pytest.approx(float(loss.detach()))
    assert float(metrics["largest_td_error"]) == pytest.approx(float((q_values - value_target).detach().abs().max()))
    assert "largest_td_error" in changed.opt_step(batch.rows())
    assert "q_mean" not in metrics


def test_a_term_added_to_the_policys_loss_is_learned_and_recorded() -> None:
    changed, batch = NearTheData(td3_config(), make_td3().player), batch_of(32)
    gradient, metrics = changed.policy_gradient(batch)
    actions = torch.tanh(changed.policy_net(batch.observation))
    q_values = changed.frozen_critic(batch.observation | {"action": actions})
    distance = (actions - (batch.action - CENTER) / HALF_WIDTH).square().mean()
    loss = distance - 2.5 * q_values.mean() / q_values.abs().mean().detach()
    assert torch.allclose(gradient, changed.policy_net.gradient(loss), atol=1e-6)
    assert float(metrics["policy_loss"]) == pytest.approx(float(loss.detach()))
    assert float(metrics["distance"]) == pytest.approx(float(distance.detach()))


def test_a_method_replaced_on_an_instance_is_the_one_that_is_learned() -> None:
    changed, stock, batch = make_td3(), make_td3(), batch_of(32)
    original = changed.critic_loss
    changed.critic_loss = lambda *arguments: {"loss_double": 2.0 * total_loss(original(*arguments))}
    (gradient, metrics, _), (before, metrics_before, _) = (
        td3.critic_gradient(batch, torch.zeros(32, 2)) for td3 in (changed, stock)
    )
    assert torch.allclose(gradient, 2.0 * before)
    assert float(metrics["critic_loss"]) == pytest.approx(2.0 * float(metrics_before["critic_loss"]))


# ---- acting --------------------------------------------------------------------------------------------------


class FixedAction(nn.Module):
    """The same outputs everywhere: 0.1 and -0.9 after the tanh."""

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return torch.atanh(torch.tensor([0.1, -0.9])).expand(len(observation["seen"]), -1)


def units(net: nn.Module | None, std: float, num: int = 20_000) -> Tensor:
    """What is played, in half-widths of the Box."""
    policy = NoisyPolicy(net, HalfWidths(BOX, CPU), std)
    keys, legal = world_keys(0, num, CPU), torch.ones(num, 0, dtype=torch.bool)
    return (policy.act({"seen": torch.zeros(num, 3)}, legal, keys, {}).action - CENTER) / HALF_WIDTH


def test_without_noise_the_nets_action_is_played() -> None:
    assert torch.allclose(units(FixedAction(), 0.0, num=3), torch.tensor([0.1, -0.9]).expand(3, -1))


def test_exploration_is_normal_noise_clipped_to_the_bounds() -> None:
    first, second = units(FixedAction(), 0.2).unbind(1)
    assert kstest(first, "norm", (0.1, 0.2)).pvalue > 1e-4
    clipped = (second == -1.0).double().mean()
    assert float(clipped) == pytest.approx(0.3085, abs=0.01)  # beyond half a standard deviation
    assert second.min() == -1.0


def test_uniform_actions_fill_the_box() -> None:
    for column in units(None, 0.0).unbind(1):
        assert kstest(column, "uniform", (-1.0, 2.0)).pvalue > 1e-4


def test_players_act_at_random_in_warm_up_then_with_noise_by_its_schedule_and_without_where_nobody_explores() -> None:
    td3 = make_td3(warmup_env_steps=8)
    assert td3.policy(explore=True).net is None
    assert td3.policy(explore=False).net is td3.acting
    td3.player.env_steps = 8
    for opt_steps, std in ((0, 0.3), (10, 0.03)):
        td3.player.opt_steps = opt_steps
        assert td3.policy(explore=True).net is td3.acting
        assert td3.policy(explore=True).std == pytest.approx(std)
        assert td3.policy(explore=False).std == 0.0


# ---- an opt step ---------------------------------------------------------------------------------------------


class PlainTD3:
    """The same update, written with torch's own parts: separate tensors, `backward`, its optimizers."""

    def __init__(self, td3: TD3) -> None:
        self.config, self.noise_key = td3.config, td3.noise_key
        self.nets = {name: copy.deepcopy(net) for name, net in td3.player.nets.items()}
        for parameter in (p for net in self.nets.values() for p in net.parameters()):
            parameter.data = parameter.data.clone()
        self.optimizers = {
            "critics": self.torch_optimizer(self.config.critic_optimizer, self.nets["critics"]),
            "policy": self.torch_optimizer(self.config.policy_optimizer, self.nets["policy"]),
        }

    def torch_optimizer(self, config: Any, net: nn.Module) -> torch.optim.Optimizer:
        if config.name == "sgd":
            return torch.optim.SGD(net.parameters(), 0.0, config.momentum, weight_decay=config.weight_decay)
        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(net.parameters(), 0.0, betas, config.eps, config.weight_decay)

    def values(self, critics: Any, observation: dict[str, Tensor], action: Tensor) -> Tensor:
        return torch.cat([critic(observation | {"action": action}) for critic in critics], dim=1)

    def opt_step(self, batch: Transitions, step: int) -> None:
        config, nets = self.config, self.nets
        noise = random_normals(fold(self.noise_key, step), 2 * len(batch.reward)).view(-1, 2)
        with torch.no_grad():
            blur = (noise * config.smoothing.std).clamp(-config.smoothing.max_noise, config.smoothing.max_noise)
            action = (torch.tanh(nets["target_policy"](batch.next_observation)) + blur).clamp(-1, 1)
            value = self.values(nets["target_critics"], batch.next_observation, action).amin(1)
            target = batch.reward + config.gamma * value * ~batch.terminated
        taken = self.values(nets["critics"], batch.observation, (batch.action - CENTER) / HALF_WIDTH)
        loss = sum(nn.functional.mse_loss(column, target) for column in taken.unbind(1))
        self.step("critics", loss, config.critic_learning_rate(step))
        if (step + 1) % config.policy_interval == 0:
            nets["critics"].eval()
            action = torch.tanh(nets["policy"](batch.observation))
            loss = -self.values(list(nets["critics"])[:1], batch.observation, action).mean()
            self.step("policy", loss, config.policy_learning_rate(step))
            nets["critics"].train()
        if (step + 1) % config.target.interval == 0:
            for name in ("policy", "critics"):
                old, new = nets[f"target_{name}"].state_dict(), nets[name].state_dict()
                for key, value in old.items():
                    moved = value + config.target.tau * (new[key] - value) if value.is_floating_point() else new[key]
                    value.copy_(moved)

    def step(self, name: str, loss: Tensor, learning_rate: float) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.nets[name].parameters(), self.config.max_grad_norm or torch.inf)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_critics": 1, "policy_interval": 1, "max_grad_norm": 0.05},
        {"num_critics": 3, "policy_interval": 3, "target": {"name": "polyak", "tau": 0.5, "interval": 1}},
        {"policy_optimizer": SGD, "critic_optimizer": SGD},
        # Adam would make steps of the rounding errors that are the gradients of biases before batch norm
        {
            "policy_optimizer": SGD,
            "critic_optimizer": SGD,
            "policy_net": WITH_BATCH_NORM,
            "critic_net": WITH_BATCH_NORM,
        },
    ],
)
def test_opt_steps_are_those_of_plain_torch(changes: dict[str, Any]) -> None:
    td3 = make_td3(**changes)
    plain = PlainTD3(td3)
    for step in range(6):
        batch = batch_of(32, seed=step)
        td3.opt_step(batch.rows())
        td3.player.opt_steps += 1
        plain.opt_step(batch, step)
    for net, expected in plain.nets.items():
        state = td3.player.nets[net].state_dict()
        assert all(torch.allclose(state[name], value, atol=1e-5) for name, value in expected.state_dict().items()), net


def test_the_policy_moves_at_its_interval_alone_and_its_metrics_are_recorded_then() -> None:
    td3 = make_td3(policy_interval=3)
    always = ["critic_grad_norm", "critic_loss", "loss", "q_mean"]
    for step in range(1, 7):
        before = td3.policy_net.weights.detach().clone()
        metrics = td3.opt_step(batch_of(16, seed=step).rows())
        td3.player.opt_steps += 1
        is_due = step % 3 == 0
        assert torch.equal(td3.policy_net.weights, before) != is_due
        assert sorted(metrics) == (sorted([*always, "policy_loss", "policy_grad_norm"]) if is_due else always)
        total = metrics["critic_loss"] + metrics.get("policy_loss", 0.0)
        assert float(metrics["loss"]) == pytest.approx(float(total))


@pytest.mark.slow
def test_a_compiled_opt_step_is_the_eager_one_within_rounding() -> None:
    """Steps so large that a policy that follows the critics as they were before would be another."""
    changes: dict[str, Any] = {"critic_learning_rate": rate(0.3, 10), "critic_optimizer": SGD}
    eager, fast = make_td3(**changes), make_td3(compiled=True, **changes)
    for step in range(4):
        rows = batch_of(16, seed=step).rows()
        expected, metrics = eager.opt_step(rows), fast.opt_step(rows)
        assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
            {k: float(v) for k, v in expected.items()}, rel=1e-3, abs=1e-5
        )
        for td3 in (eager, fast):
            td3.player.opt_steps += 1
    for net in eager.player.nets:
        values, others = (td3.player.nets[net].state_dict() for td3 in (eager, fast))
        assert all(torch.allclose(value, others[name], atol=1e-4) for name, value in values.items())


# ---- a turn ----------------------------------------------------------------------------------------------------


def make_turn(visit: Callable[[], None] = lambda: None, **changes: Any) -> ProbeTurn:
    probe = make_probe("identity", continuous=True)
    return ProbeTurn(seat(td3_config(**changes), probe.spaces["agent"], probe.action_spaces["agent"]), probe, visit)


def td3_of(turn: ProbeTurn) -> TD3:
    assert isinstance(turn.player.algorithm, TD3)
    return turn.player.algorithm


def test_warm_up_gathers_and_does_not_update() -> None:
    turn = make_turn(warmup_env_steps=48)
    turn.run()
    assert turn.calls == ["collect 3", "safe point"]
    turn.run()
    assert turn.calls[2:] == ["collect 3", "safe point"] + ["before", "after", "safe point"] * 4
    assert td3_of(turn).buffer.num_added == 48


@pytest.mark.parametrize("leave_at", range(1, 11))
def test_a_turn_left_at_any_safe_point_goes_on_right_there_in_a_fresh_object(leave_at: int) -> None:
    assert_goes_on_in_a_fresh_object(make_turn, leave_at)


# ---- games whose values are known ------------------------------------------------------------------------------

# What critics must come to by the end, for the best action: (sign, age) to the value; and whether it is positive.
KNOWN: dict[Kind, dict[tuple[float, float], float]] = {
    "constant": {(1, 0): 1.0},
    "observation": {(1, 0): 1.0, (-1, 0): -1.0},
    "delayed": {(1, 0): 0.8, (1, 1): 1.0},
    "two_step": {(1, 0): 0.8, (1, 1): 1.0},
    "policy": {(1, 0): 1.0},
    "both": {(1, 0): 1.0, (-1, 0): 1.0},
    "endless": {(1, 0): 5.0, (-1, 0): 5.0},
}
POSITIVE: dict[Kind, dict[tuple[float, float], bool]] = {
    "two_step": {(1, 0): True},
    "policy": {(1, 0): True},
    "both": {(1, 0): True, (-1, 0): False},
    "identity": {(1, 0): True, (-1, 0): False, (1, 1): True, (-1, 3): False},
}


@pytest.mark.parametrize("kind", [*KNOWN, "identity"])
def test_probe_games_are_learnt(kind: Kind) -> None:
    probe = make_probe(kind, continuous=True)
    wide = {"name": "mlp", "net_arch": [32, 32], "activation": "relu"}
    num_steps = 600 if kind == "endless" else 400  # values far from 0 settle more slowly
    config = td3_config(
        rollout_length=1,
        updates_per_turn=2,
        warmup_env_steps=200,
        batch_size=64,
        target={"name": "polyak", "tau": 0.1, "interval": 1},
        exploration={"name": "gaussian", "std": {"name": "constant", "value": 0.3}},
        policy_net=wide,
        critic_net=wide,
        policy_learning_rate=rate(5e-3, num_steps),
        critic_learning_rate=rate(5e-3, num_steps),
    )
    td3 = learn(seat(config, probe.spaces["agent"], probe.action_spaces["agent"]), probe, num_steps)
    for place, is_positive in POSITIVE.get(kind, {}).items():
        assert (best_action(td3, *place) > 0) == is_positive
    for place, value in KNOWN.get(kind, {}).items():
        view = seen(*place) | {"action": torch.tensor([[best_action(td3, *place)]])}
        for critic in td3.critics.nets:
            assert float(critic(view).detach()) == pytest.approx(value, abs=1e-2)


# ---- configs that do not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "spaces", "message"),
    [
        (Discrete(3), SPACES, "algorithm.name: expected Box actions for 'td3', got "),
        (Box((0.0,), (math.inf,)), SPACES, "algorithm.name: expected a Box with finite bounds"),
        (BOX, {"action": SPACES["seen"]}, "algorithm.critic_net: expected no entry 'action' in the observation"),
    ],
)
def test_players_that_td3_cannot_be_are_refused(actions: ActionSpace, spaces: dict[str, Space], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        seat(td3_config(), spaces, actions)
    assert f"players.player.{message}" in str(raised.value)
