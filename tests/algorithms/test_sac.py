"""SAC: its parts against definitions, its opt step against plain torch, and games whose values are known."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from probes import Kind
from torch import Tensor, nn
from torch import distributions as theirs

from palestra.algorithms.parts.sampled_actions import SampledActions
from palestra.algorithms.sac import SAC, AutomaticConfig, SACConfig
from palestra.config import ConfigError, check
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
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
BOX, DISCRETE = Box((-1.0, 0.0), (1.0, 6.0)), Discrete(4)
SPACES = {"seen": Space((3,), torch.float32, padded=False)}
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
SGD = {"name": "sgd", "momentum": 0.5, "weight_decay": 0.1}
MLP = {"name": "mlp", "net_arch": [16], "activation": "relu"}
WITH_BATCH_NORM = {"name": "mlp", "net_arch": [16, "b", "r8"], "activation": "relu"}
LOG_STD = {"min": -5.0, "max": 2.0}


def rate(initial: float, num_steps: int) -> dict[str, Any]:
    return {"name": "linear", "initial": initial, "final": 0.1 * initial, "num_steps": num_steps}


def automatic(target: dict[str, Any], initial: float = 0.5) -> dict[str, Any]:
    return {
        "name": "automatic",
        "initial": initial,
        "target_entropy": target,
        "optimizer": ADAM,
        "learning_rate": rate(0.02, 10),
    }


BASE: dict[str, Any] = {
    "name": "sac",
    "gamma": 0.8,
    "num_critics": 2,
    "transitions": {"name": "one_step"},
    "rollout_length": 3,
    "updates_per_turn": 4,
    "warmup_env_steps": 0,
    "batch_size": 16,
    "target": {"name": "polyak", "tau": 0.25, "interval": 1},
    "entropy_coefficient": automatic({"name": "number", "value": -1.0}),
    "log_std": LOG_STD,
    "max_grad_norm": None,
    "policy_net": MLP,
    "critic_net": MLP,
    "policy_optimizer": ADAM,
    "critic_optimizer": ADAM,
    "policy_learning_rate": rate(0.01, 10),
    "critic_learning_rate": rate(0.02, 10),
    "evaluation": "deterministic",
    "replay_buffer": {"name": "uniform", "capacity": 1000, "layout": "whole", "scratch_folder": None},
}


def sac_config(**changes: Any) -> SACConfig:
    return check(BASE | changes, SACConfig)


def make_sac(actions: ActionSpace = BOX, compiled: bool = False, **changes: Any) -> SAC:
    if isinstance(actions, Discrete):
        changes = {"log_std": None} | changes
    return seat(sac_config(**changes), SPACES, actions, compiled)


def batch_of(num: int, actions: ActionSpace = BOX, seed: int = 0) -> Transitions:
    """Random rows; a third each is terminated, truncated, and neither."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(num) % 3
    if isinstance(actions, Box):
        low, high = torch.tensor(actions.low), torch.tensor(actions.high)
        action = low + (high - low) * torch.rand(num, len(low), generator=generator)
    else:
        action = torch.randint(4, (num,), generator=generator)
    legal, next_legal = (torch.rand(2, num, actions.num_flags, generator=generator) < 0.5).unbind()
    legal[:, 1:2] = next_legal[:, 2:3] = True
    return Transitions(
        observation={"seen": torch.randn(num, 3, generator=generator)},
        action=action,
        reward=torch.randn(num, generator=generator),
        next_observation={"seen": torch.randn(num, 3, generator=generator)},
        next_legal=next_legal & (kind != 0).unsqueeze(1),
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.ones(num, dtype=torch.bool),
        extras={},
        legal=legal,
    )


# ---- targets and losses ----------------------------------------------------------------------------------


def drawn(num: int, log_prob: float = 0.0) -> SampledActions:
    """One action per row, of which all have the same log-probability."""
    return SampledActions({}, torch.ones(num, 1), torch.full((num, 1), log_prob))


def test_targets_bootstrap_where_a_game_was_cut_off_and_not_where_it_terminated() -> None:
    """The smaller value is 10; log-probability -1 at 0.5 each adds 0.5; gamma is 0.8."""
    batch, values = batch_of(6), torch.tensor([11.0, 10.0]).view(2, 1, 1).expand(-1, 6, -1)
    target = make_sac().target(values, drawn(6, log_prob=-1.0), batch, torch.tensor(0.5))
    assert torch.allclose(target, batch.reward + torch.tensor([0.0, 8.4, 8.4] * 2))


def test_nothing_after_a_terminated_game_enters_a_target() -> None:
    batch = batch_of(6)
    target = make_sac().target(torch.full((2, 6, 1), torch.nan), drawn(6), batch, torch.tensor(0.5))
    assert torch.equal(target.isnan(), ~batch.terminated)


def test_targets_of_discrete_actions_are_means_over_all_of_them() -> None:
    """Probabilities 3/4 and 1/4, values 1 and 5: mean 2, entropy 0.5623 nats at 0.1 each."""
    weights, batch = torch.tensor([[0.75, 0.25]]).expand(3, -1), batch_of(3, DISCRETE)
    actions = SampledActions({}, weights, weights.log())
    target = make_sac(DISCRETE).target(torch.tensor([[[1.0, 5.0]] * 3]), actions, batch, torch.tensor(0.1))
    assert (target - batch.reward).tolist() == pytest.approx([0.0, *[0.8 * (2.0 + 0.1 * 0.562335)] * 2])


def test_the_critics_losses_are_half_mean_squares_added_up() -> None:
    q_values = torch.tensor([[1.0, 2.0], [0.0, 4.0]])
    terms = make_sac().critic_loss(q_values, torch.tensor([0.0, 2.0]), batch_of(2))
    assert {name: float(term) for name, term in terms.items()} == pytest.approx(
        {"loss_critics": (1 + 0) / 4 + (0 + 4) / 4, "q_mean": 7 / 4}
    )


def test_the_policys_loss_is_minus_the_soft_value() -> None:
    """Of the smaller values 1 and 3, log-probability -1 at 0.5 each adds 0.5."""
    values = torch.tensor([[1.0, 4.0], [2.0, 3.0]]).unsqueeze(2)
    terms = make_sac().policy_loss(values, drawn(2, log_prob=-1.0), batch_of(2), torch.tensor(0.5))
    assert {name: float(term) for name, term in terms.items()} == pytest.approx({"loss_policy": -2.5, "entropy": 1.0})


def test_the_coefficients_loss_is_its_logarithm_times_the_missing_entropy() -> None:
    sac = make_sac(entropy_coefficient=automatic({"name": "number", "value": -1.0}))
    terms = sac.coefficient_loss(torch.tensor(0.3), torch.tensor(2.0), batch_of(2))
    assert {name: float(term) for name, term in terms.items()} == pytest.approx({"loss_coefficient": 0.3 * (2.0 + 1.0)})


@pytest.mark.parametrize(
    ("target", "actions", "expected"),
    [
        ({"name": "number", "value": -2.5}, BOX, -2.5),
        ({"name": "number", "value": 0.3}, DISCRETE, 0.3),
        ({"name": "per_dimension", "factor": -1.0}, BOX, -2.0),
        ({"name": "per_log_actions", "factor": 0.5}, DISCRETE, 0.5 * (math.log(4) + math.log(2)) / 2),
    ],
)
def test_target_entropies(target: dict[str, Any], actions: ActionSpace, expected: float) -> None:
    sac, batch = make_sac(actions, entropy_coefficient=automatic(target)), batch_of(2, actions)
    batch.legal = torch.tensor([[True, True, True, True], [False, True, False, True]])
    assert float(sac.target_entropy(batch)) == pytest.approx(expected)


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
    values = torch.tensor([11.0, 10.0]).view(2, 1, 1).expand(-1, 6, -1)
    target = make_sac().target(values, drawn(6), batch, torch.tensor(0.0))
    assert torch.allclose(target, batch.reward + torch.tensor([0.0, 5.0, 5.0] * 2))


def test_rows_drawn_by_priority_carry_their_weights_in_the_mean() -> None:
    batch = replace(batch_of(2), extras={"weight": torch.tensor([1.0, 0.25])})
    terms = make_sac().critic_loss(torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([0.0, 2.0]), batch)
    assert float(terms["loss_critics"]) == pytest.approx(0.5 * ((1 + 0) / 2 + (0 + 0.25 * 4) / 2))


def test_an_opt_step_weighs_rows_and_gives_them_new_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    sac = make_sac(replay_buffer=PRIORITIZED)
    batch = batch_of(8)
    taken: dict[str, Tensor] = {}
    sac.buffer.add(batch.rows(), batch.valid)
    sac.buffer.tree.set(torch.arange(8), torch.arange(1.0, 9.0, dtype=torch.float64))
    loss, priorities = sac.critic_loss, sac.priorities

    def watched_loss(q_values: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        taken["weight"] = batch.extras["weight"].clone()
        return loss(q_values, value_target, batch)

    def watched_priorities(q_values: Tensor, value_target: Tensor, batch: Transitions) -> Tensor:
        taken["priorities"] = priorities(q_values, value_target, batch)
        return taken["priorities"]

    monkeypatch.setattr(sac, "critic_loss", watched_loss)
    monkeypatch.setattr(sac, "priorities", watched_priorities)
    rows = sac.buffer.sample(16)
    drawn = sac.buffer.drawn.clone()
    sac.opt_step(rows)
    assert torch.allclose(taken["weight"], (drawn.min() + 1.0) / (drawn + 1.0))
    last = {int(place): float(error) for place, error in zip(drawn, taken["priorities"], strict=True)}
    for place in range(8):
        expected = last[place] + 1e-6 if place in last else place + 1.0
        assert float(sac.buffer.tree.leaves[place]) == pytest.approx(expected), place


def test_priorities_are_the_mean_errors_of_all_critics() -> None:
    q_values, value_target = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([0.0, 3.0])
    assert make_sac().priorities(q_values, value_target, batch_of(2)).tolist() == [0.5, 1.5]


# ---- a changed term --------------------------------------------------------------------------------------


class WithoutEntropyInTargets(SAC):
    """The entropy is earned by the policy alone (Ball et al. 2023, "Efficient Online Reinforcement Learning")."""

    def target(self, next_q_values: Tensor, next_actions: SampledActions, batch: Transitions, alpha: Tensor) -> Tensor:
        return super().target(next_q_values, next_actions, batch, torch.zeros(()))


class SmallValues(SAC):
    """Large values cost something."""

    def critic_loss(self, q_values: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        return super().critic_loss(q_values, value_target, batch) | {"loss_size": 1e-3 * q_values.square().mean()}


class MeanOfCritics(SAC):
    """The policy follows the mean of the critics, not the smallest value."""

    def policy_loss(
        self, q_values: Tensor, actions: SampledActions, batch: Transitions, alpha: Tensor
    ) -> dict[str, Tensor]:
        mean = q_values.mean(dim=0, keepdim=True)
        return super().policy_loss(mean, actions, batch, alpha) | {"q_spread": q_values.std(dim=0).mean()}


class LinearCoefficient(SAC):
    """Equation 18 to the letter: by alpha and not by its logarithm."""

    def coefficient_loss(self, log_alpha: Tensor, entropy: Tensor, batch: Transitions) -> dict[str, Tensor]:
        return {"loss_coefficient": log_alpha.exp() * (entropy - self.target_entropy(batch))}


def own(cls: type[SAC], actions: ActionSpace = BOX, **changes: Any) -> SAC:
    """A class of one's own in the place of SAC."""
    stock = make_sac(actions, **changes)
    return cls(stock.config, stock.player)


@pytest.mark.parametrize("actions", [BOX, DISCRETE], ids=["box", "discrete"])
def test_a_changed_target_is_the_one_that_is_learned(actions: ActionSpace) -> None:
    """Without entropy in targets, critics learn what they learn at a coefficient of 0; the policy does not."""
    fixed: Any = [{"entropy_coefficient": {"name": "fixed", "value": value}} for value in (0.3, 0.0)]
    changed, stock, without = (
        own(WithoutEntropyInTargets, actions, **fixed[0]),
        *(make_sac(actions, **c) for c in fixed),
    )
    for sac in (changed, stock, without):
        sac.opt_step(batch_of(32, actions).rows())
    assert torch.allclose(changed.critics.weights, without.critics.weights, atol=1e-6)
    assert not torch.allclose(changed.critics.weights, stock.critics.weights, atol=1e-6)
    assert not torch.allclose(changed.policy_net.weights, without.policy_net.weights, atol=1e-6)


def test_a_term_added_to_the_critics_loss_is_learned_and_recorded() -> None:
    changed, stock, batch = own(SmallValues), make_sac(), batch_of(32)
    noise, alpha = random_normals(torch.arange(32), 2), torch.tensor(0.4)
    (gradient, metrics, _), (before, metrics_before, _) = (
        s.critic_gradient(batch, noise, alpha) for s in (changed, stock)
    )
    q_values = stock.critics(batch.observation | stock.head.critic_inputs(batch.action))
    term = 1e-3 * q_values.square().mean()
    assert torch.allclose(gradient, before + stock.critics.gradient(term), atol=1e-6)
    assert float(metrics["critic_loss"]) == pytest.approx(float(metrics_before["critic_loss"] + term.detach()))
    assert changed.opt_step(batch.rows())["critic_loss"] > stock.opt_step(batch.rows())["critic_loss"]


def test_a_changed_loss_of_the_policy_is_learned_and_its_metrics_are_recorded() -> None:
    changed, stock = own(MeanOfCritics), make_sac()
    batch, noise, alpha = batch_of(32), random_normals(torch.arange(32), 2), torch.tensor(0.4)
    gradient, entropy, metrics = changed.policy_gradient(batch, noise, alpha)
    actions = stock.head.sample_actions(stock.policy_net(batch.observation), batch.legal, noise)
    q_values = stock.frozen_critics(batch.observation | actions.critic_inputs)
    loss = (alpha * actions.log_probs - q_values.mean(dim=0)).mean()
    assert torch.allclose(gradient, stock.policy_net.gradient(loss), atol=1e-6)
    assert entropy == metrics["entropy"]
    found = changed.opt_step(batch.rows())
    assert found["q_spread"] > 0.0
    assert found["policy_loss"] != stock.opt_step(batch.rows())["policy_loss"]


def test_a_changed_loss_of_the_coefficient_is_learned_and_recorded() -> None:
    changed, stock = own(LinearCoefficient), make_sac()
    for sac in (changed, stock):
        entropy = torch.tensor(2.0)
        gradient, metrics = sac.coefficient_gradient(entropy, batch_of(2))
        alpha = float(sac.log_alpha.detach().exp())
        factor = alpha if sac is changed else 1.0
        assert gradient.tolist() == pytest.approx([3.0 * factor])
        assert float(metrics["coefficient_loss"]) == pytest.approx(3.0 * (alpha if sac is changed else math.log(alpha)))


# ---- acting --------------------------------------------------------------------------------------------------

KEYS = world_keys(0, 5, CPU)


@pytest.mark.parametrize("actions", [BOX, DISCRETE])
def test_players_act_at_random_in_warm_up_then_by_their_policy_or_as_evaluation_says(
    actions: ActionSpace,
) -> None:
    legal = torch.ones(5, actions.num_flags, dtype=torch.bool)
    view, keys = {"seen": torch.randn(5, 3)}, KEYS
    for evaluation in ("deterministic", "sampled"):
        sac = make_sac(actions, warmup_env_steps=8, evaluation=evaluation)
        outputs = sac.acting(view)
        expected = {
            "uniform": sac.head.uniform(legal, keys),
            "sampled": sac.head.sample(outputs, legal, keys),
            "deterministic": sac.head.mode(outputs, legal),
        }
        for env_steps, explore, mode in ((7, True, "uniform"), (8, True, "sampled"), (0, False, evaluation)):
            sac.player.env_steps = env_steps
            decision = sac.policy(explore).act(view, legal, keys, {})
            assert torch.equal(decision.action, expected[mode])


def test_acting_uses_the_newest_weights_in_evaluation_mode() -> None:
    sac = make_sac(policy_net=WITH_BATCH_NORM, critic_net=WITH_BATCH_NORM)
    batch = batch_of(16)
    for step in range(3):
        before = copy.deepcopy(sac.policy_net.net.state_dict())
        expected = sac.head.mode(copy.deepcopy(sac.policy_net.net).eval()(batch.observation), batch.legal)
        assert torch.equal(sac.predictor(True).act(batch.observation, batch.legal, KEYS, {}).action, expected)
        assert all(torch.equal(value, before[name]) for name, value in sac.policy_net.net.state_dict().items())
        sac.opt_step(batch_of(16, seed=step).rows())


def test_discrete_choices_have_the_probabilities_by_which_they_are_drawn() -> None:
    sac, batch = make_sac(DISCRETE), batch_of(1, DISCRETE)
    view, legal = {"seen": batch.observation["seen"][:1].expand(20000, -1)}, torch.tensor([[True, True, False, True]])
    legal = legal.expand(20000, -1)
    valued = sac.choice_values(view, legal, {})
    assert valued is not None
    name, probabilities = valued
    assert name == "probability"
    drawn_actions = sac.predictor(deterministic=False).act(view, legal, torch.arange(20000), {}).action
    shares = torch.bincount(drawn_actions, minlength=4) / 20000
    assert torch.allclose(probabilities[0], shares, atol=0.02)
    assert probabilities[0, 2] == 0
    assert make_sac(BOX).choice_values(view, legal[:, :0], {}) is None


# ---- an opt step ---------------------------------------------------------------------------------------------


class PlainSAC:
    """The same update, written with torch's own parts: separate tensors, `backward`, its optimizers and
    distributions."""

    def __init__(self, sac: SAC, actions: ActionSpace) -> None:
        self.config, self.actions, self.noise_key = sac.config, actions, sac.noise_key
        self.policy, self.critics, self.targets = (copy.deepcopy(net) for net in sac.player.nets.values())
        for parameter in (p for net in (self.policy, self.critics, self.targets) for p in net.parameters()):
            parameter.data = parameter.data.clone()
        self.log_alpha = sac.log_alpha.detach().clone().requires_grad_()
        self.optimizers = [
            self.torch_optimizer(self.config.critic_optimizer, self.critics.parameters()),
            self.torch_optimizer(self.config.policy_optimizer, self.policy.parameters()),
        ]
        if isinstance(self.config.entropy_coefficient, AutomaticConfig):
            self.optimizers.append(self.torch_optimizer(self.config.entropy_coefficient.optimizer, [self.log_alpha]))

    def torch_optimizer(self, config: Any, parameters: Any) -> torch.optim.Optimizer:
        if config.name == "sgd":
            return torch.optim.SGD(parameters, 0.0, config.momentum, weight_decay=config.weight_decay)
        return torch.optim.AdamW(parameters, 0.0, (config.beta1, config.beta2), config.eps, config.weight_decay)

    def draw(self, observation: dict[str, Tensor], legal: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions in half-widths, probabilities, log-probabilities."""
        outputs = self.policy(observation)
        if isinstance(self.actions, Discrete):
            log_probs = outputs.masked_fill(~legal, -1e9).log_softmax(1)
            return noise, log_probs.exp(), log_probs
        mean, log_std = outputs.chunk(2, 1)
        std = log_std.clamp(-5.0, 2.0).exp()
        value = mean + std * noise
        action = torch.tanh(value)
        log_prob = theirs.Normal(mean, std).log_prob(value)
        log_prob = log_prob - theirs.TanhTransform().log_abs_det_jacobian(value, action)
        return action, torch.ones(len(noise), 1), log_prob.sum(1, keepdim=True)

    def values(self, nets: nn.ModuleList, observation: dict[str, Tensor], action: Tensor) -> Tensor:
        return torch.stack([net(observation | {"action": action}) for net in nets])

    def opt_step(self, batch: Transitions, step: int) -> None:
        config, num = self.config, len(batch.reward)
        size = len(BOX.low) if isinstance(self.actions, Box) else 0
        noises = random_normals(fold(self.noise_key, step), 2 * num * size).view(2, num, size)
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            self.policy.eval()
            action, probs, log_probs = self.draw(batch.next_observation, batch.next_legal, noises[0])
            q = self.values(self.targets, batch.next_observation, action).amin(0)
            value = (probs * (q - alpha * log_probs)).sum(1)
            target = batch.reward + config.gamma * value * ~batch.terminated
        self.policy.train()
        if isinstance(self.actions, Discrete):
            q = self.values(self.critics, batch.observation, noises[0])
            taken = q.gather(2, batch.action.view(1, -1, 1).expand(len(q), -1, -1)).squeeze(2)
        else:
            unit = (batch.action - torch.tensor([0.0, 3.0])) / torch.tensor([1.0, 3.0])
            taken = self.values(self.critics, batch.observation, unit).squeeze(2)
        loss = sum(0.5 * nn.functional.mse_loss(row, target) for row in taken)
        self.step(0, loss, self.critics, config.critic_learning_rate(step))

        self.critics.eval()
        action, probs, log_probs = self.draw(batch.observation, batch.legal, noises[1])
        q = self.values(self.critics, batch.observation, action).amin(0)
        self.step(1, (probs * (alpha * log_probs - q)).sum(1).mean(), self.policy, config.policy_learning_rate(step))
        self.critics.train()
        coefficient = config.entropy_coefficient
        if isinstance(coefficient, AutomaticConfig):
            mean_log_prob = (probs * log_probs).sum(1).mean().detach()
            loss = -(self.log_alpha * (mean_log_prob + coefficient.target_entropy.value)).sum()
            self.step(2, loss, None, coefficient.learning_rate(step))
        if (step + 1) % config.target.interval == 0:
            pairs = zip(self.targets.state_dict().values(), self.critics.state_dict().values(), strict=True)
            for old, new in pairs:
                old.copy_(old + config.target.tau * (new - old) if old.is_floating_point() else new)

    def step(self, index: int, loss: Tensor, net: nn.Module | None, learning_rate: float) -> None:
        optimizer = self.optimizers[index]
        optimizer.zero_grad()
        loss.backward()
        if net is not None:
            nn.utils.clip_grad_norm_(net.parameters(), self.config.max_grad_norm or torch.inf)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()


@pytest.mark.parametrize("actions", [BOX, DISCRETE], ids=["box", "discrete"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_critics": 1, "max_grad_norm": 0.05},
        {"num_critics": 3, "target": {"name": "polyak", "tau": 0.5, "interval": 2}},
        {"entropy_coefficient": {"name": "fixed", "value": 0.3}},
        {"entropy_coefficient": {"name": "fixed", "value": 0.0}},
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
def test_opt_steps_are_those_of_plain_torch(changes: dict[str, Any], actions: ActionSpace) -> None:
    sac = make_sac(actions, **changes)
    plain = PlainSAC(sac, actions)
    for step in range(5):
        batch = batch_of(32, actions, seed=step)
        sac.opt_step(batch.rows())
        sac.player.opt_steps += 1
        plain.opt_step(batch, step)
    nets = zip(sac.player.nets.values(), (plain.policy, plain.critics, plain.targets), strict=True)
    for net, expected in nets:
        for (name, value), other in zip(net.state_dict().items(), expected.state_dict().values(), strict=True):
            assert torch.allclose(value, other, atol=1e-5), name
    assert torch.allclose(sac.log_alpha, plain.log_alpha, atol=1e-6)


def test_metrics_have_their_names_and_add_up() -> None:
    metrics = make_sac().opt_step(batch_of(32).rows())
    names = "loss critic_loss q_mean policy_loss entropy coefficient_loss entropy_coefficient"
    assert sorted(metrics) == sorted([*names.split(), "critic_grad_norm", "policy_grad_norm"])
    assert float(metrics["loss"]) == pytest.approx(float(metrics["critic_loss"] + metrics["policy_loss"]))
    assert float(metrics["entropy_coefficient"]) == pytest.approx(0.5)  # the one that the losses were made with


def test_a_fixed_coefficient_is_that_of_the_config_and_a_learned_one_that_of_the_state() -> None:
    fixed: Any = [{"entropy_coefficient": {"name": "fixed", "value": value}} for value in (0.3, 0.1)]
    for before, after, expected in [
        (*fixed, 0.1),
        ({}, {"entropy_coefficient": automatic({"name": "number", "value": -1.0}, 9.0)}, 0.5),
    ]:
        branch = make_sac(**after)
        branch.load_state_dict(make_sac(**before).state_dict())
        assert branch.log_alpha.exp().item() == pytest.approx(expected)


@pytest.mark.parametrize(("target", "grows"), [(50.0, True), (-50.0, False)])
def test_the_coefficient_grows_where_the_entropy_is_below_its_target(target: float, grows: bool) -> None:
    sac = make_sac(entropy_coefficient=automatic({"name": "number", "value": target}))
    sac.opt_step(batch_of(32).rows())
    assert (float(sac.log_alpha.detach().exp()) > 0.5) == grows


@pytest.mark.slow
@pytest.mark.parametrize("actions", [BOX, DISCRETE], ids=["box", "discrete"])
def test_a_compiled_opt_step_is_the_eager_one_within_rounding(actions: ActionSpace) -> None:
    """Steps so large that a policy that follows the critics as they were before would be another."""
    target = {"name": "polyak", "tau": 0.5, "interval": 2}
    changes: dict[str, Any] = {"critic_learning_rate": rate(0.3, 10), "critic_optimizer": SGD, "target": target}
    changes |= dict.fromkeys(("policy_net", "critic_net"), MLP | {"activation": "gelu"})  # no gradients by hand
    eager, fast = make_sac(actions, **changes), make_sac(actions, compiled=True, **changes)
    for step in range(4):
        rows = batch_of(16, actions, seed=step).rows()
        expected, metrics = eager.opt_step(rows), fast.opt_step(rows)
        assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
            {k: float(v) for k, v in expected.items()}, rel=1e-3, abs=1e-5
        )
        for sac in (eager, fast):
            sac.player.opt_steps += 1
    for net in eager.player.nets:
        values, others = (sac.player.nets[net].state_dict() for sac in (eager, fast))
        assert all(torch.allclose(value, others[name], atol=1e-4) for name, value in values.items())
    assert torch.allclose(eager.log_alpha, fast.log_alpha)


# ---- a turn ----------------------------------------------------------------------------------------------------


def make_turn(continuous: bool = True, visit: Callable[[], None] = lambda: None, **changes: Any) -> ProbeTurn:
    probe = make_probe("identity", continuous)
    config = sac_config(**{"log_std": LOG_STD if continuous else None} | changes)
    return ProbeTurn(seat(config, probe.spaces["agent"], probe.action_spaces["agent"]), probe, visit)


def sac_of(turn: ProbeTurn) -> SAC:
    assert isinstance(turn.player.algorithm, SAC)
    return turn.player.algorithm


def test_a_turn_rolls_out_and_then_updates() -> None:
    turn = make_turn()
    turn.run()
    assert turn.calls == ["collect 3", "safe point"] + ["before", "after", "safe point"] * 4
    assert sac_of(turn).buffer.num_added == 24


def test_warm_up_gathers_and_does_not_update() -> None:
    turn = make_turn(warmup_env_steps=48)
    turn.run()
    assert turn.calls == ["collect 3", "safe point"]
    turn.run()
    assert turn.calls[2:] == ["collect 3", "safe point"] + ["before", "after", "safe point"] * 4


@pytest.mark.parametrize("leave_at", range(1, 11))
def test_a_turn_left_at_any_safe_point_goes_on_right_there_in_a_fresh_object(leave_at: int) -> None:
    assert_goes_on_in_a_fresh_object(lambda visit: make_turn(visit=visit), leave_at)


@pytest.mark.parametrize("continuous", [True, False])
def test_equal_seeds_learn_the_same_to_the_bit(continuous: bool) -> None:
    weights = []
    for _ in range(2):
        turn = make_turn(continuous)
        for _ in range(3):
            turn.run()
        weights.append(sac_of(turn).targets.weights)
    assert torch.equal(*weights)


# ---- games whose values are known ------------------------------------------------------------------------------

# What critics must come to by the end: (sign, age, action) to the value. Actions: 1 or -1, for a Discrete 1 or 0.
KNOWN: dict[Kind, dict[tuple[float, float, float], float]] = {
    "constant": {(1, 0, 1): 1.0},
    "observation": {(1, 0, 1): 1.0, (-1, 0, 1): -1.0},
    "delayed": {(1, 0, 1): 0.8, (1, 1, 1): 1.0},
    "two_step": {(1, 0, 1): 0.8, (1, 1, 1): 1.0},
    "policy": {(1, 0, 1): 1.0},
    "both": {(1, 0, 1): 1.0, (-1, 0, -1): 1.0},
    "endless": {(1, 0, 1): 5.0, (-1, 0, 1): 5.0},
}
BEST: dict[Kind, list[tuple[float, float, float]]] = {
    "two_step": [(1, 0, 1)],
    "policy": [(1, 0, 1)],
    "both": [(1, 0, 1), (-1, 0, -1)],
    "identity": [(1, 0, 1), (-1, 0, -1), (1, 1, 1), (-1, 3, -1)],
}


def learnt(kind: Kind, continuous: bool) -> SAC:
    """With an entropy coefficient so small that values are those without entropy."""
    probe = make_probe(kind, continuous)
    wide = {"name": "mlp", "net_arch": [32, 32], "activation": "relu"}
    num_steps = 600 if kind == "endless" else 300  # values far from 0 settle more slowly
    config = sac_config(
        rollout_length=1,
        updates_per_turn=2,
        warmup_env_steps=200,
        batch_size=64,
        target={"name": "polyak", "tau": 0.1, "interval": 1},
        entropy_coefficient={"name": "fixed", "value": 1e-6},
        log_std=LOG_STD if continuous else None,
        policy_net=wide,
        critic_net=wide,
        policy_learning_rate=rate(5e-3, num_steps),
        critic_learning_rate=rate(5e-3, num_steps),
    )
    return learn(seat(config, probe.spaces["agent"], probe.action_spaces["agent"]), probe, num_steps)


@pytest.mark.parametrize("continuous", [True, False], ids=["box", "discrete"])
@pytest.mark.parametrize("kind", [*KNOWN, "identity"])
def test_probe_games_are_learnt(kind: Kind, continuous: bool) -> None:
    sac = learnt(kind, continuous)
    for sign, age, move in BEST.get(kind, []):
        action = best_action(sac, sign, age)
        assert (action > 0 if continuous else action == 1) == (move > 0)
    for (sign, age, _), value in KNOWN.get(kind, {}).items():
        view, action = seen(sign, age), torch.tensor([[best_action(sac, sign, age)]])
        for critic in sac.critics.nets:
            q = critic(view | {"action": action}) if continuous else critic(view)[:, int(action)]
            assert float(q.detach()) == pytest.approx(value, abs=1e-2)


def test_the_entropy_comes_to_its_target() -> None:
    """In `constant` nothing but entropy is to be earned: without a target the policy would be uniform, log 2."""
    probe = make_probe("constant", continuous=True)
    coefficient = automatic({"name": "number", "value": 0.2}) | {"learning_rate": rate(0.02, 600)}
    changes = {"rollout_length": 1, "warmup_env_steps": 64, "batch_size": 64, "entropy_coefficient": coefficient}
    rates = {"policy_learning_rate": rate(5e-3, 600), "critic_learning_rate": rate(5e-3, 600)}
    sac = seat(sac_config(**changes, **rates), probe.spaces["agent"], probe.action_spaces["agent"])
    turn = ProbeTurn(sac, probe)
    while sac.player.opt_steps < 600:
        turn.run()
    entropies = [float(metrics["entropy"]) for metrics in turn.metrics[-50:]]
    assert sum(entropies) / 50 == pytest.approx(0.2, abs=0.1)


# ---- configs that do not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "changes", "message"),
    [
        (MultiDiscrete((2, 3)), {}, "algorithm.name: expected Box or Discrete actions for 'sac', got "),
        (Box((0.0,), (math.inf,)), {}, "algorithm.name: expected a Box with finite bounds"),
        (
            BOX,
            {"log_std": None},
            "algorithm.log_std: expected a mapping with min and max (the actions are a Box), got null",
        ),
        (DISCRETE, {"log_std": LOG_STD}, "algorithm.log_std: expected null (the actions are discrete), got a mapping"),
        (
            BOX,
            {"entropy_coefficient": automatic({"name": "per_log_actions", "factor": 0.5})},
            "algorithm.entropy_coefficient.target_entropy.name: expected per_dimension or number",
        ),
        (
            DISCRETE,
            {"entropy_coefficient": automatic({"name": "per_dimension", "factor": -1.0})},
            "algorithm.entropy_coefficient.target_entropy.name: expected per_log_actions or number",
        ),
    ],
)
def test_actions_that_the_config_does_not_fit_are_refused(
    actions: ActionSpace, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        make_sac(actions, **changes)
    assert f"players.player.{message}" in str(raised.value)


def test_an_observation_with_an_entry_action_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"critic_net: expected no entry 'action' in the observation"):
        seat(sac_config(), {"action": SPACES["seen"]}, BOX)


def test_bounds_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"log_std.min: expected a number below max, 2.0, got 2.0"):
        sac_config(log_std={"min": 2.0, "max": 2.0})
