"""PPO: advantages, the loss, acting, opt steps and turns, against definitions, plain torch, and known values."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PLAIN
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributions as theirs

import palestra
from palestra.algorithms.kernels.ppo import compute_advantages
from palestra.algorithms.parts.actor_critic import HeadedNet
from palestra.algorithms.parts.advantages import Experience, Sequences, generalized_advantages, values
from palestra.algorithms.ppo import PPO, PPOConfig
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import ConfigError, check
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.players.player import Metrics, Player
from palestra.randomness import world_keys
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.transitions import Transitions, join_roles
from palestra.storage.records_file import read_records
from palestra.training.checks import TrainingFailed
from tests.algorithms.probing import assert_goes_on_in_a_fresh_object

CPU = torch.device("cpu")
GAME = NimGame(NimConfig(name="nim", num_heaps=2, max_stones=2, observation=UNCHANGED), CPU)
MLP = {"name": "mlp", "net_arch": [16], "activation": "tanh"}
LAYER_NORM = {"name": "mlp", "net_arch": [16, "l"], "activation": "relu"}
SPACES = {"seen": Space((3,), torch.float32, padded=False)}
CLIP = {"name": "clip", "epsilon": {"name": "constant", "value": 0.2}}
METRICS = {"loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "value_mean", "grad_norm"}
PENALTY = {"name": "kl_penalty", "coefficient": 0.5, "target": None}
ORTHOGONAL = {"name": "orthogonal", "hidden_gain": 1.5, "policy_gain": 0.01, "value_gain": 1.0}
CLIPPED = {"name": "clipped_gaussian", "initial_log_std": -0.3}
SQUASHED = {"name": "squashed_gaussian", "initial_log_std": -0.3}


def separate(net: dict[str, Any] = MLP) -> dict[str, Any]:
    return {"name": "separate", "policy": net, "value": net}


def shared(net: dict[str, Any] = MLP) -> dict[str, Any]:
    return {"name": "shared", "net": net}


def constant(value: float) -> dict[str, Any]:
    return {"name": "constant", "value": value}


BASE: dict[str, Any] = {
    "name": "ppo",
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "rollout_length": 6,
    "num_passes": 3,
    "num_minibatches": 2,
    "objective": CLIP,
    "value_clip": None,
    "value_coefficient": 0.5,
    "entropy_coefficient": constant(0.01),
    "max_grad_norm": 0.5,
    "target_kl": None,
    "normalize_advantages": True,
    "body": separate(),
    "centralized_critic": False,
    "initialization": ORTHOGONAL,
    "box_actions": None,
    "evaluation": "deterministic",
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-5, "weight_decay": 0.0},
    "learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 10},
    "learning_rate_factors": {},
}


def ppo_config(**changes: Any) -> PPOConfig:
    return check(BASE | changes, PPOConfig)


def make_ppo(
    actions: ActionSpace | None = None,
    compiled: bool = False,
    make: type[PPO] = PPO,
    by_hand: bool = True,
    **changes: Any,
) -> Any:
    """For Nim in both seats, or for a lone agent with other actions."""
    if actions is None:
        seats: Any = (GAME.roles, GAME.spaces["first"], GAME.action_spaces["first"])
    else:
        seats = (("agent",), SPACES, actions)
    player = Player("player", *seats, CPU, seed=1, compile=compiled, by_hand=by_hand)
    player.algorithm = make(ppo_config(**changes), player)
    return player.algorithm


# ---- advantages --------------------------------------------------------------------------------------------


def random_sequences(num_steps: int, num_sequences: int, seed: int) -> Sequences:
    """In which games end in both ways and rows are invalid."""
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, num_steps, num_sequences, generator=generator)
    kind = torch.randint(5, (num_steps, num_sequences), generator=generator)
    valid = torch.rand(num_steps, num_sequences, generator=generator) < 0.7
    return Sequences(reward, value, next_value, kind == 0, kind == 1, valid)


def defined_advantage(s: Sequences, t: int, w: int, gamma: float, gae_lambda: float) -> float:
    """The sum of discounted TD errors of one decision, as eq. 16 writes it."""
    rows = [row for row in range(t, len(s.valid)) if s.valid[row, w]]
    total, weight = 0.0, 1.0
    for here, following in zip(rows, [*rows[1:], None], strict=True):
        if s.terminated[here, w]:
            ahead = 0.0
        elif s.truncated[here, w] or following is None:
            ahead = float(s.next_value[here, w])
        else:
            ahead = float(s.value[following, w])
        total += weight * (float(s.reward[here, w]) + gamma * ahead - float(s.value[here, w]))
        weight *= gamma * gae_lambda
        if s.terminated[here, w] or s.truncated[here, w]:
            break
    return total


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_the_sums_that_define_them(steps: int, num: int, seed: int, gamma: float, decay: float) -> None:
    s = random_sequences(steps, num, seed)
    expected = [
        [defined_advantage(s, t, w, gamma, decay) if s.valid[t, w] else 0.0 for w in range(num)] for t in range(steps)
    ]
    found, _ = compute_advantages(s, gamma, decay)
    assert torch.allclose(found, torch.tensor(expected), atol=1e-4)
    assert torch.allclose(generalized_advantages(s, gamma, decay), found, atol=1e-5)


def test_advantages_computed_by_hand() -> None:
    """One game of two steps is over, the next one is cut off after one, the third goes on."""
    column = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    none = torch.zeros(4, 1, dtype=torch.bool)
    terminated, truncated = none.clone(), none.clone()
    terminated[1] = truncated[2] = True
    s = Sequences(column, torch.full((4, 1), 10.0), torch.full((4, 1), 20.0), terminated, truncated, ~none)
    found = generalized_advantages(s, 0.5, 0.5).flatten().tolist()
    last, cut, over = 4 + 0.5 * 20 - 10, 3 + 0.5 * 20 - 10, 2 - 10
    assert found == [1 + 0.5 * 10 - 10 + 0.25 * over, over, cut, last]


def ready_transitions(ppo: PPO, num_worlds: int = 4, seed: int = 0) -> Transitions:
    """Random rows as a roll-out of the lone agent would give them, acted by its policy."""
    generator = torch.Generator().manual_seed(seed)
    num, flags = ppo.config.rollout_length * len(ppo.player.moves) * num_worlds, ppo.player.action_space.num_flags
    observation = {k: torch.randn(num, *space.shape, generator=generator) for k, space in ppo.player.spaces.items()}
    legal = torch.rand(num, flags, generator=generator) < 0.7
    if flags:
        legal[:, 0] = legal[:, -1] = True
    with torch.no_grad():
        decision = ppo.policy(explore=True).act(observation, legal, world_keys(seed, num, CPU), {})
    kind = torch.randint(8, (num,), generator=generator)
    return Transitions(
        observation=observation,
        action=decision.action,
        reward=torch.randn(num, generator=generator),
        next_observation={name: value + 0.1 for name, value in observation.items()},
        next_legal=legal,
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.rand(num, generator=generator) < 0.8,
        extras=decision.extras,
        legal=legal,
    )


@pytest.mark.parametrize("body", [separate(), shared()])
@pytest.mark.parametrize("moves", [("agent",), ("agent", "agent"), ("other", "agent", "agent", "other", "other")])
def test_every_role_of_every_world_is_a_sequence(moves: tuple[str, ...], body: dict[str, Any]) -> None:
    """Rows lie round by round, in a round move by move, in a move world by world."""
    ppo = make_ppo(Discrete(3), body=body)
    ppo.player.roles, ppo.player.moves = tuple(dict.fromkeys(moves)), moves
    batch = ready_transitions(ppo)
    ppo.prepare(batch)
    assert ppo.passes.experience is not None
    value, next_value = (values(ppo.critic, x, {}) for x in (batch.observation, batch.next_observation))
    assert torch.allclose(ppo.passes.experience.value, value, atol=1e-6)
    for role in ppo.player.roles:
        for world in range(4):
            places = [
                (t * len(moves) + k) * 4 + world for t in range(6) for k, name in enumerate(moves) if name == role
            ]
            columns = (batch.reward, value, next_value, batch.terminated, batch.truncated, batch.valid)
            s = Sequences(*(column[places].unsqueeze(1) for column in columns))
            expected = generalized_advantages(s, 0.9, 0.8).squeeze(1)
            assert torch.allclose(ppo.passes.experience.advantage[places], expected, atol=1e-5)
    assert torch.allclose(ppo.passes.experience.value_target, ppo.passes.experience.advantage + value, atol=1e-6)
    assert torch.equal(ppo.passes.experience.weight, batch.valid.float())


def test_explained_variance_is_the_share_of_the_variance_of_the_targets_that_the_values_explain() -> None:
    ppo = make_ppo(Discrete(3))
    batch = ready_transitions(ppo)
    ppo.prepare(batch)
    assert ppo.passes.experience is not None
    target, value = (x[batch.valid] for x in (ppo.passes.experience.value_target, ppo.passes.experience.value))
    expected = 1 - (target - value).var() / target.var()
    assert float(ppo.passes.explained_variance) == pytest.approx(float(expected), rel=1e-4)


# ---- the loss --------------------------------------------------------------------------------------------------


def plain_loss(ppo: PPO, batch: Experience, net: nn.Module, coefficient: float, entropy_coefficient: float) -> Any:
    """The loss of a minibatch, as one writes it down with torch.distributions. coefficient: the clip range, or the KL
    coefficient."""
    config, space = ppo.config, ppo.player.action_space
    by_head = net(batch.observation, batch.memory, batch.episode_start)
    outputs, value = by_head["policy"], by_head["value"][:, 0]
    if isinstance(space, Box):
        normal = theirs.Independent(theirs.Normal(outputs, net.head.log_std.exp().expand_as(outputs)), 1)
        log_prob, entropy = normal.log_prob(batch.action), normal.entropy()
        if config.box_actions.name == "squashed_gaussian":
            low, high = torch.tensor(space.low), torch.tensor(space.high)
            log_prob = log_prob - ((high - low) / 2 * (1 - batch.action.tanh() ** 2)).log().sum(1)
            entropy = net.head.family.entropy(outputs, net.head.log_std)
    else:
        nums = [space.num] if isinstance(space, Discrete) else list(space.nums)
        logits = outputs.masked_fill(~batch.legal, -1e9).split(nums, 1)
        parts = [theirs.Categorical(logits=part) for part in logits]
        actions = batch.action.view(len(value), -1).unbind(1)
        log_prob = torch.stack([part.log_prob(action) for part, action in zip(parts, actions, strict=True)]).sum(0)
        entropy = torch.stack([part.entropy() for part in parts]).sum(0)
    counts = batch.weight > 0
    log_prob, entropy, value, old_log_prob, old_value, advantage, target = (
        x[counts] for x in (log_prob, entropy, value, batch.log_prob, batch.value, batch.advantage, batch.value_target)
    )
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)
    ratio = (log_prob - old_log_prob).exp()
    if config.objective.name == "clip":
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - coefficient, 1 + coefficient) * advantage)
    else:
        surrogate = ratio * advantage - coefficient * (ratio - 1 - ratio.log())
    error = (value - target) ** 2
    if config.value_clip is not None:
        clipped = old_value + (value - old_value).clamp(-config.value_clip, config.value_clip)
        error = torch.max(error, (clipped - target) ** 2)
    return -surrogate.mean() + config.value_coefficient * error.mean() - entropy_coefficient * entropy.mean()


ACTIONS: dict[str, tuple[ActionSpace, dict[str, Any]]] = {
    "discrete": (Discrete(3), {}),
    "multi-discrete": (MultiDiscrete((3, 2)), {}),
    "clipped box": (Box((-1.0, -0.5), (1.0, 2.0)), {"box_actions": CLIPPED}),
    "squashed box": (Box((-1.0, -0.5), (1.0, 2.0)), {"box_actions": SQUASHED}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "penalty": {"objective": PENALTY},
    "clipped value": {"value_clip": 0.1},
    "plain advantages": {"normalize_advantages": False},
    "shared body": {"body": shared()},
    "no kernel": {"body": separate(LAYER_NORM)},
    "no kernel, shared": {"body": shared(LAYER_NORM)},
    "no clipping of gradients, sgd": {
        "max_grad_norm": None,
        "optimizer": {"name": "sgd", "momentum": 0.5, "weight_decay": 0.0},
    },
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)
each_action = pytest.mark.parametrize("actions", ACTIONS)


def prepared(
    actions: str, setting: str, compiled: bool = False, make: type[PPO] = PPO, by_hand: bool = True, **more: Any
) -> Any:
    """A player with experience, whose policy has moved on since."""
    space, changes = ACTIONS[actions]
    ppo = make_ppo(space, compiled, make, by_hand, **(changes | SETTINGS[setting] | more))
    ppo.prepare(ready_transitions(ppo, num_worlds=50))
    with torch.no_grad():
        ppo.weights += 0.1 * torch.randn(len(ppo.weights), generator=torch.Generator().manual_seed(1))
    return ppo


def plain_optimizer(config: Any, net: nn.Module) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(net.parameters(), momentum=config.momentum, weight_decay=config.weight_decay)
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(net.parameters(), betas=betas, eps=config.eps, weight_decay=config.weight_decay)


@each_setting
@each_action
def test_opt_steps_are_those_of_plain_torch(actions: str, setting: str) -> None:
    ppo = prepared(actions, setting)
    config, experience = ppo.config, ppo.passes.experience
    assert experience is not None
    net = copy.deepcopy(ppo.net)
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()
    optimizer = plain_optimizer(config.optimizer, net)
    for step, index in enumerate(torch.arange(300).split(100)):
        batch = experience.minibatch(index)
        coefficient = 0.2 if config.objective.name == "clip" else 0.5
        loss = plain_loss(ppo, batch, net, coefficient, 0.01)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), config.max_grad_norm or torch.inf)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step)
        optimizer.step()
        found = opt_step(ppo, experience, index, step)
        assert found.keys() == METRICS
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
        assert found["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    for (name, value), expected in zip(ppo.net.state_dict().items(), net.state_dict().values(), strict=True):
        assert torch.allclose(value, expected, atol=3e-5), name


@each_setting
def test_a_minibatch_in_parts_is_the_whole_one(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parted = prepared("discrete", setting), prepared("discrete", setting)
    assert whole.passes.experience is not None
    expected = opt_step(whole, whole.passes.experience, torch.arange(300), 0)
    monkeypatch.setattr("palestra.algorithms.kernels.ppo.ROWS_AT_ONCE", 64)
    found = opt_step(parted, whole.passes.experience, torch.arange(300), 0)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert torch.allclose(parted.weights, whole.weights, rtol=1e-3, atol=1e-5)


def opt_step(ppo: PPO, experience: Experience, index: Tensor, number: int) -> Any:
    arrays = None if ppo.gradient_kernel is None else ppo.gradient_kernel.read(experience)
    return {name: float(value) for name, value in ppo.opt_step(experience, index, number, arrays).items()}


@pytest.mark.slow
@each_setting
@each_action
def test_compiled_opt_steps_are_those_of_eager_ones(actions: str, setting: str) -> None:
    eager, compiled = prepared(actions, setting), prepared(actions, setting, compiled=True, by_hand=False)
    assert eager.passes.experience is not None
    for step, index in enumerate(torch.arange(300).split(100)):
        found, expected = (opt_step(ppo, eager.passes.experience, index, step) for ppo in (compiled, eager))
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert torch.allclose(compiled.weights, eager.weights, atol=1e-4)


class Fixed:
    """A distribution of which log-probabilities and entropies are known."""

    def __init__(self, log_prob: Tensor, entropy: Tensor) -> None:
        self.numbers = log_prob, entropy

    def log_prob(self, action: Tensor) -> Tensor:
        return self.numbers[0]

    def entropy(self) -> Tensor:
        return self.numbers[1]

    def kl_divergence(self, other: Any) -> Tensor:
        raise NotImplementedError


def test_metrics_are_means_over_the_rows_that_count() -> None:
    """Ratios 2, 0.5 and 1 with advantages 1, -1, 3, clip range 0.2: surrogates 1.2, -0.8, 3; a fourth has no weight."""
    ratio, ones = torch.tensor([2.0, 0.5, 1.0, 99.0]), torch.ones(4)
    batch = Experience(
        observation={},
        memory={},
        episode_start=torch.zeros(1, 4, dtype=torch.bool),
        legal=ones.unsqueeze(1).bool(),
        action=torch.zeros(4, dtype=torch.int64),
        log_prob=torch.zeros(4),
        value=torch.zeros(4),
        advantage=torch.tensor([1.0, -1.0, 3.0, 99.0]),
        value_target=torch.tensor([1.0, 2.0, 3.0, 99.0]),
        weight=torch.tensor([1.0, 1.0, 1.0, 0.0]),
        role=torch.zeros(4, dtype=torch.int64),
    )
    ppo = make_ppo(Discrete(3))
    numbers = {
        "clip_range": torch.tensor(0.2),
        "kl_coefficient": torch.tensor(0.0),
        "entropy_coefficient": torch.tensor(0.01),
    }
    terms = ppo.loss(Fixed(ratio.log(), 4 * ones), 2 * ones, batch.normalized(False), **numbers)
    metrics = {"loss": float(total_loss(terms))} | {name: float(term) for name, term in metrics_of(terms).items()}
    policy_loss, value_loss = -(1.2 - 0.8 + 3.0) / 3, (1.0 + 0.0 + 1.0) / 3
    assert metrics == pytest.approx(
        {
            "loss": policy_loss + 0.5 * value_loss - 0.01 * 4,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": 4.0,
            "approx_kl": (2 - 1 - math.log(2) + 0.5 - 1 + math.log(2)) / 3,
            "clip_fraction": 2 / 3,
            "value_mean": 2.0,
        },
        rel=1e-5,
    )


def test_rows_that_do_not_count_change_nothing() -> None:
    for actions in ACTIONS:
        ppo = prepared(actions, "as it is")
        assert ppo.passes.experience is not None
        idle = ppo.passes.experience.weight == 0.0
        wild = ppo.passes.experience._replace(
            advantage=torch.where(idle, 1e3, ppo.passes.experience.advantage),
            value_target=torch.where(idle, 1e3, ppo.passes.experience.value_target),
        )
        expected = opt_step(ppo, ppo.passes.experience, torch.arange(300), 0)
        other = prepared(actions, "as it is")
        assert opt_step(other, wild, torch.arange(300), 0) == pytest.approx(expected, abs=1e-5)
        assert torch.allclose(other.weights, ppo.weights, atol=1e-6)


# ---- hooks: one term changed in a few lines ---------------------------------------------------------------------


class NearTheFrozenPPO(PPO):
    """The policy stays near another one, which is never changed."""

    frozen: HeadedNet

    def loss(self, distribution: Any, value: Tensor, batch: Experience, *numbers: Any, **named: Any) -> Any:
        frozen, _ = self.frozen.distribution_and_value(batch)
        kl = batch.mean(distribution.kl_divergence(frozen))
        return super().loss(distribution, value, batch, *numbers, **named) | {"loss_frozen": 2.0 * kl, "frozen_kl": kl}


class ClampedPPO(PPO):
    """Advantages reach no further than 1, value targets no further than 2."""

    def compute_advantages(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        advantage, value_target = super().compute_advantages(sequences)
        return advantage.clamp(-1.0, 1.0), value_target.clamp(-2.0, 2.0)


def plain_kl(ppo: PPO, batch: Experience, net: nn.Module, frozen: nn.Module) -> Tensor:
    """The mean divergence of a network's policy from that of a frozen one, as torch.distributions has it."""
    outputs, other = (x(batch.observation, batch.memory, batch.episode_start)["policy"] for x in (net, frozen))
    if isinstance(ppo.player.action_space, Box):
        p, q = (
            theirs.Independent(theirs.Normal(mean, x.head.log_std.exp().expand_as(mean)), 1)
            for mean, x in ((outputs, net), (other, frozen))
        )
        return theirs.kl_divergence(p, q)[batch.weight > 0].mean()
    nums = list(ppo.net.head.family.nums)
    both = [x.masked_fill(~batch.legal, -1e9).split(nums, 1) for x in (outputs, other)]
    parts = [theirs.kl_divergence(*(theirs.Categorical(logits=x) for x in pair)) for pair in zip(*both, strict=True)]
    return torch.stack(parts).sum(0)[batch.weight > 0].mean()


@each_action
def test_a_kl_to_a_frozen_policy_is_learned_and_recorded(actions: str) -> None:
    ppo = prepared(actions, "as it is", make=NearTheFrozenPPO)
    ppo.frozen = prepared(actions, "as it is").net
    with torch.no_grad():
        ppo.weights += 0.05  # or the two would agree, and the divergence had no slope
    assert ppo.passes.experience is not None
    net, index = copy.deepcopy(ppo.net), torch.arange(100)
    batch = ppo.passes.experience.minibatch(index)
    kl = plain_kl(ppo, batch, net, ppo.frozen)
    loss = plain_loss(ppo, batch, net, 0.2, 0.01) + 2.0 * kl
    expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))])
    gradient, _ = ppo.gradient(batch, *torch.tensor([0.2, 0.0, 0.01]))
    assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)
    found = opt_step(ppo, ppo.passes.experience, index, 0)
    assert found.keys() == METRICS | {"frozen_kl"}
    assert found["frozen_kl"] == pytest.approx(kl.item(), rel=1e-4)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert found["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-3)


def test_advantages_and_value_targets_of_ones_own_are_learned_from() -> None:
    stock, own = make_ppo(Discrete(3)), make_ppo(Discrete(3), make=ClampedPPO)
    vars(stock)["advantages_kernel"] = None  # it rounds otherwise than the methods
    for ppo in (stock, own):
        ppo.prepare(ready_transitions(ppo))
    assert stock.passes.experience is not None
    assert own.passes.experience is not None
    assert stock.passes.experience.advantage.abs().max() > 1.0
    assert torch.equal(own.passes.experience.advantage, stock.passes.experience.advantage.clamp(-1.0, 1.0))
    assert torch.equal(own.passes.experience.value_target, stock.passes.experience.value_target.clamp(-2.0, 2.0))


# ---- acting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [separate(), shared()])
@each_action
def test_play_and_learning_agree_on_every_probability(actions: str, body: dict[str, Any]) -> None:
    space, changes = ACTIONS[actions]
    ppo = make_ppo(
        space, **changes, body=body, num_minibatches=1, learning_rate=constant(0.0), initialization={"name": "stock"}
    )
    ppo.prepare(ready_transitions(ppo))
    metrics = ppo.make_pass()
    assert abs(float(metrics["approx_kl"])) < 1e-6
    assert metrics["clip_fraction"] == 0.0


def view_of(num: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    return {"seen": torch.ones(num, 3)}, torch.ones(num, 3, dtype=torch.bool), world_keys(0, num, CPU)


@pytest.mark.parametrize("evaluation", ["deterministic", "sampled"])
def test_evaluations_play_as_the_config_says(evaluation: str) -> None:
    ppo = make_ppo(Discrete(3), evaluation=evaluation)
    assert len(ppo.policy(explore=True).act(*view_of(100), {}).action.unique()) == 3
    actions = ppo.policy(explore=False).act(*view_of(100), {}).action.unique()
    assert len(actions) == (1 if evaluation == "deterministic" else 3)


@pytest.mark.parametrize("actions", [Discrete(3), MultiDiscrete((2, 3))])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_it_acts_as_the_head_does_by_the_logits_of_today(actions: ActionSpace, activation: str) -> None:
    net = {"name": "mlp", "net_arch": [16], "activation": activation}
    ppo = make_ppo(actions, body=separate(net), initialization={"name": "stock"})
    policy = ppo.policy(explore=True)
    for seed in range(3):
        batch = ready_transitions(ppo, num_worlds=50, seed=seed)
        legal = batch.legal & (torch.arange(300) % 10 > 0).unsqueeze(1)  # in some rows nothing is legal
        keys = world_keys(seed, 300, CPU)
        decision = policy.act(batch.observation, legal, keys, {})
        with torch.no_grad():
            action, extras = ppo.net.head.draw(ppo.net.policy(batch.observation), legal, keys)
        assert torch.equal(decision.action, action)
        assert decision.extras.keys() == extras.keys()
        assert torch.allclose(decision.extras["log_prob"], extras["log_prob"], atol=1e-6)
        ppo.prepare(batch)
        ppo.make_pass()  # it sees the weights of today


def test_box_actions_are_clipped_on_their_way_into_the_game_alone() -> None:
    ppo = make_ppo(Box((-0.1,), (0.2,)), box_actions=CLIPPED)
    seen, _, keys = view_of(1000)
    decision = ppo.policy(explore=True).act(seen, torch.ones(1000, 0, dtype=torch.bool), keys, {})
    assert (decision.action.min(), decision.action.max()) == (torch.tensor(-0.1), torch.tensor(0.2))
    assert decision.extras["sampled_action"].abs().max() > 1.0
    assert torch.equal(decision.extras["sampled_action"].clamp(-0.1, 0.2), decision.action)


# ---- factors of the learning rate -------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["as it is", "no kernel", "no clipping of gradients, sgd"])
def test_weights_step_by_the_factor_that_their_name_has(setting: str) -> None:
    factors = {"value.layers.0.*": 0.0, "policy.*": 0.5}
    stock, own = prepared("discrete", setting), prepared("discrete", setting, learning_rate_factors=factors)
    start = {name: weight.detach().clone() for name, weight in stock.net.named_parameters()}
    for ppo in (stock, own):
        opt_step(ppo, ppo.passes.experience, torch.arange(300), 0)
    whole = dict(stock.net.named_parameters())
    for name, weight in own.net.named_parameters():
        if name.startswith("value.layers.0."):
            assert torch.equal(weight, start[name])
        elif name.startswith("policy."):
            assert torch.allclose(weight - start[name], 0.5 * (whole[name] - start[name]), atol=1e-7)
            assert not torch.equal(weight, start[name])
        else:
            assert torch.equal(weight, whole[name])


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (
            {"values.*": 0.1},
            r"\.values\.\*: expected weights among 'policy.layers.0.weight', .*, got 'values",
        ),
        (
            {"*.bias": 0.1, "value.*": 0.0},
            r"\.value\.\*: expected one factor for value.layers.0.bias, got two, by '\*.b",
        ),
    ],
)
def test_factors_of_weights_that_there_are_not_or_of_two_patterns_are_told(
    factors: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^players\.player\.algorithm\.learning_rate_factors{message}"):
        make_ppo(learning_rate_factors=factors)


def test_a_factor_is_no_negative_number() -> None:
    with pytest.raises(ConfigError, match=r"^learning_rate_factors\.value\.\*: expected a number >= 0, got -1"):
        ppo_config(learning_rate_factors={"value.*": -1.0})


# ---- networks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [separate(), shared()])
def test_orthogonal_weights_have_their_gains(body: dict[str, Any]) -> None:
    ppo = make_ppo(Discrete(3), body=body, initialization=ORTHOGONAL | {"policy_gain": 0.1, "value_gain": 2.0})
    weights = {name: value for name, value in ppo.net.named_parameters() if name.endswith("weight")}
    for name, weight in weights.items():
        gains = torch.linalg.svdvals(weight)
        if "layers.0" in name:
            assert torch.allclose(gains, torch.full_like(gains, 1.5), atol=1e-5)
    policy = weights["policy.layers.2.weight"]
    value = policy[-1:] if body["name"] == "shared" else weights["value.layers.2.weight"]
    assert torch.allclose(policy[:3] @ policy[:3].T, 0.01 * torch.eye(3), atol=1e-5)
    assert value.norm().item() == pytest.approx(2.0, rel=1e-5)
    assert all((value == 0).all() for name, value in ppo.net.named_parameters() if name.endswith("bias"))


def test_batch_norm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"players.player.algorithm.body: expected a network without batch norm"):
        make_ppo(Discrete(3), body=separate({"name": "mlp", "net_arch": [8, "b"], "activation": "relu"}))


@pytest.mark.parametrize(
    ("actions", "box_actions", "message"),
    [
        (Discrete(3), CLIPPED, r"box_actions: expected null \(.* Discrete\(num=3\), not a Box\), got clipped_gaussian"),
        (Box((0.0,), (1.0,)), None, r"box_actions: expected clipped_gaussian or squashed_gaussian \(.*\), got null"),
        (Box((-math.inf,), (1.0,)), SQUASHED, r"name: expected clipped_gaussian \(.* has no bounds\), got squashed"),
    ],
)
def test_box_actions_must_fit_the_game(actions: ActionSpace, box_actions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"players.player.algorithm.*{message}"):
        make_ppo(actions, box_actions=box_actions)


# ---- passes ----------------------------------------------------------------------------------------------------


def test_a_pass_sees_every_row_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = make_ppo(Discrete(3), num_minibatches=5)
    ppo.prepare(ready_transitions(ppo))
    assert ppo.passes.experience is not None
    advantages, seen = ppo.passes.experience.advantage, []

    def look(experience: Experience, index: Tensor, *others: Any) -> Metrics:
        seen.append(experience.advantage[index])
        return {"approx_kl": 0.0}

    monkeypatch.setattr(ppo, "opt_step", look)
    ppo.make_pass()
    ppo.make_pass()
    assert sorted({len(part) for part in seen}) == [4, 5]  # 24 rows
    first, second = torch.cat(seen[:5]), torch.cat(seen[5:])
    assert torch.equal(first.sort().values, advantages.sort().values)
    assert torch.equal(second.sort().values, advantages.sort().values)
    assert not torch.equal(first, second)


def test_passes_end_once_the_policy_is_far_away() -> None:
    ppo = make_ppo(target_kl=1e-12)
    turn = RecordingTurn(ppo)
    turn.run()
    assert turn.calls == ["collect 6", "safe point", "before", "after 2", "safe point"]


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 2.0), (1e9, 0.5), (None, 1.0)])
def test_the_kl_coefficient_follows_its_target(target: float | None, factor: float) -> None:
    ppo = make_ppo(objective=PENALTY | {"target": target})
    for expected in (0.5 * factor, 0.5 * factor**2):
        RecordingTurn(ppo).run()
        assert ppo.kl_coefficient == expected
    branch = make_ppo(objective=PENALTY | {"target": target, "coefficient": 9.0})
    branch.load_state_dict(ppo.state_dict())
    assert branch.kl_coefficient == 9.0 * factor**2


@pytest.mark.parametrize(("kl", "factor"), [(0.019, 0.5), (0.021, 1.0), (0.03, 1.0), (0.044, 1.0), (0.046, 2.0)])
def test_the_kl_coefficient_stays_within_a_factor_of_its_target(kl: float, factor: float) -> None:
    """Schulman et al. 2017, section 4: halved below 1 / 1.5 of the target, doubled beyond 1.5 times it."""
    ppo = make_ppo(objective=PENALTY | {"target": 0.03})
    ppo.adapt_kl_coefficient({"approx_kl": torch.tensor(kl)})
    assert ppo.kl_coefficient == 0.5 * factor


# ---- a turn ------------------------------------------------------------------------------------------------------


class RecordingTurn(Turn):
    """Plays Nim for the algorithm, and writes down what it is asked for. `visit`: called at every safe point."""

    def __init__(self, ppo: PPO, visit: Callable[[], None] = lambda: None) -> None:
        super().__init__(ppo.player)
        ppo.player.num_worlds = 16
        self.visit = visit
        self.fused_game = FusedGame(GAME, {})
        self.player.worlds = self.player.worlds or self.fused_game.new_worlds(16, 0, "play")
        self.calls: list[str] = []

    def collect(self, num_rounds: int) -> Transitions:
        self.calls.append(f"collect {num_rounds}")
        assert self.player.worlds is not None
        self.fused_game.policies = dict.fromkeys(GAME.roles, self.player.policy(explore=True))
        by_role = self.fused_game.collect(self.player.worlds, self.player.roles, num_rounds)  # type: ignore[arg-type]
        return join_roles(by_role, self.player.moves, 16)

    def before_step(self) -> None:
        self.calls.append("before")

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        by_role = {f"{name}/{role}" for name in METRICS - {"grad_norm"} for role in GAME.roles}
        assert METRICS | {"explained_variance"} | by_role == set(metrics)
        self.calls.append(f"after {num_opt_steps}")
        self.player.opt_steps += num_opt_steps

    def safe_point(self) -> None:
        self.calls.append("safe point")
        self.visit()


def test_a_turn_rolls_out_and_then_passes_over_it() -> None:
    ppo = make_ppo()
    turn = RecordingTurn(ppo)
    turn.run()
    assert turn.calls == ["collect 6", "safe point"] + ["before", "after 2", "safe point"] * 3
    assert (ppo.passes.experience, ppo.player.turn_progress) == (None, {})


@pytest.mark.parametrize("leave_at", range(1, 9))
def test_a_turn_left_at_any_safe_point_goes_on_right_there_in_a_fresh_object(leave_at: int) -> None:
    assert_goes_on_in_a_fresh_object(lambda visit: RecordingTurn(make_ppo(), visit), leave_at)


def test_equal_seeds_learn_the_same_to_the_bit() -> None:
    ppos = make_ppo(), make_ppo()
    for ppo in ppos:
        turn = RecordingTurn(ppo)
        for _ in range(3):
            turn.run()
    assert torch.equal(ppos[0].weights, ppos[1].weights)


# ---- what it learns: games whose values are known ------------------------------------------------------------------

FIXED = torch.tensor([[1.0, 0.0]])
BOTH = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
DISCOUNTED = sum(0.9**t for t in range(4))
PROBES: dict[str, tuple[Tensor, list[float], list[float] | None]] = {
    "constant": (FIXED, [1.0], None),
    "observation": (BOTH, [1.0, -1.0], None),
    "delayed": (FIXED, [0.9], None),
    "two_step": (FIXED, [0.9], [1.0]),
    "policy": (FIXED, [1.0], [1.0]),
    "both": (BOTH, [1.0, 1.0], [1.0, -1.0]),
    "endless": (FIXED, [10.0], None),
    "identity": (BOTH, [DISCOUNTED, DISCOUNTED], [1.0, -1.0]),
}
"""what is seen, the value there at gamma 0.9, and the right move"""


def probe_config(kind: str, continuous: bool, **changes: Any) -> dict[str, Any]:
    box = {"box_actions": CLIPPED} if continuous else {}
    algorithm = (
        BASE
        | box
        | {
            "rollout_length": 8,
            "num_passes": 4,
            "num_minibatches": 4,
            "gae_lambda": 0.95,
            "body": separate(MLP | {"net_arch": [32]}),
            "entropy_coefficient": constant(0.0),
            "learning_rate": {"name": "linear", "initial": 5e-3, "final": 0.0, "num_steps": 800},
        }
    )
    return {
        "seed": 0,
        "trainer": {"name": "in_turn"},
        "game": {"name": "tests.probes:Probe", "kind": kind, "continuous": continuous, "limit": 4},
        "num_worlds": 32,
        "num_replicas": 1,
        "actors": None,
        "roles": {"agent": "agent"},
        "players": {
            "agent": {
                "algorithm": algorithm | changes,
                "warm_start": None,
                "updates": {"name": "constant"},
                "meets": None,
            }
        },
        "stop": {"after": 800, "unit": "opt_steps"},
        "evaluations": [],
        "best": None,
        "evaluators": None,
        "callbacks": [],
        "execution": {
            "device": "cpu",
            "num_threads": 1,
            "num_processes": 1,
            "timeout_s": 600.0,
            "max_restarts": 0,
            "kernel": "torch",
            "step_within_s": None,
            "gradients": "by_hand",
            "compile": False,
            "actor_processes": 0,
        },
        "output": {
            "display": "quiet",
            "record": None,
            "statistics": ["mean"],
            "layer_norms": False,
            "info": [],
            "recorders": [],
            "save": None,
            "keep_last": 1,
            "keep_every": None,
            "replay_in_checkpoints": "all",
            "checkpoint_folder": None,
            "stop_within_s": 60.0,
            "mirror": None,
        },
    }


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("kind", PROBES)
def test_probes_are_learned_to_their_known_values(kind: str, continuous: bool, tmp_path: Path) -> None:
    trainer = palestra.PPOTrainer(probe_config(kind, continuous), run=tmp_path / "run")
    trainer.fit()
    ppo = trainer.players["agent"].algorithm
    seen, expected, moves = PROBES[kind]
    assert values(ppo.critic, {"seen": seen}, {}).tolist() == pytest.approx(
        expected, abs=0.01 if kind == "endless" else 0.05
    )
    if moves is not None:
        legal = torch.ones(len(seen), 0 if continuous else 2, dtype=torch.bool)
        action = ppo.policy(explore=False).act({"seen": seen}, legal, world_keys(0, len(seen), CPU), {}).action
        assert torch.equal(torch.sign(action.flatten() - (0.0 if continuous else 0.5)), torch.tensor(moves))


def test_a_policy_that_diverges_is_blamed(tmp_path: Path) -> None:
    """The loss divides by the deviations of its actions, which are 0 here."""
    config = probe_config("delayed", True, box_actions=CLIPPED | {"initial_log_std": -120.0})
    with pytest.raises(
        TrainingFailed, match=r"^the player in 'agent': expected finite .* \(it has diverged\); nothing"
    ):
        palestra.PPOTrainer(config, run=tmp_path / "run").fit()


@pytest.mark.parametrize(
    "changes", [{"body": shared()}, {"box_actions": SQUASHED}, {"objective": PENALTY | {"target": 0.01}}]
)
def test_the_hardest_probe_is_learned_in_other_ways(changes: dict[str, Any], tmp_path: Path) -> None:
    trainer = palestra.PPOTrainer(probe_config("identity", "box_actions" in changes, **changes), run=tmp_path / "run")
    trainer.fit()
    found = values(trainer.players["agent"].algorithm.critic, {"seen": BOTH}, {})
    assert found.tolist() == pytest.approx([DISCOUNTED] * 2, abs=0.1)


def test_cartpole_is_solved(tmp_path: Path) -> None:
    """A mean return of 475 over 100 episodes, with the shipped settings, in palestra's own CartPole."""
    file = Path(__file__).parents[2] / "configs" / "ppo-cartpole.yml"
    config = palestra.load_config(file).model_dump()
    config["game"] = {
        "name": "cartpole",
        "sutton_barto_reward": False,
        "initial_low": -0.05,
        "initial_high": 0.05,
        "max_rounds": 500,
        "observation": PLAIN,
    }
    config["evaluations"][0] |= {"interval": None, "num_games": 1, "pairings": [{"agent": "agent"}]}
    config["best"] = None
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    trainer = palestra.PPOTrainer(config, run=tmp_path / "run")
    trainer.fit()
    (figures,) = read_records(tmp_path / "run" / "records.jsonl")[-2]["pairs"]
    assert figures["scores"]["return/agent"] >= 475.0
