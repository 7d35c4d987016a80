"""PPO: advantages, the loss, acting, opt steps and turns, against definitions, plain torch, and known values."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributions as theirs

import palestra
from palestra.algorithms import ppo as ppo_module
from palestra.algorithms.algorithm import Turn
from palestra.algorithms.parts.advantages import Chains, Experience, _loop_over_steps, generalized_advantages
from palestra.algorithms.ppo import METRICS, PPO, Pace, PPOConfig, ppo_loss, scaled
from palestra.config import ConfigError, check
from palestra.games.nim import NimConfig, NimGame
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.players.player import Metrics, Player
from palestra.randomness import world_keys
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.transitions import Transitions
from palestra.storage.records_file import read_records
from tests.algorithms.probing import assert_goes_on_in_a_fresh_object

CPU = torch.device("cpu")
GAME = NimGame(NimConfig(name="nim", num_heaps=2, max_stones=2), CPU)
MLP = {"name": "mlp", "net_arch": [16], "activation": "tanh"}
LAYER_NORM = {"name": "mlp", "net_arch": [16, "l"], "activation": "relu"}
SEEN = {"seen": Space((3,), torch.float32, padded=False)}
CLIP = {"name": "clip", "epsilon": {"name": "constant", "value": 0.2}}
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
    "initialization": ORTHOGONAL,
    "box_actions": None,
    "evaluation": "deterministic",
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-5, "weight_decay": 0.0},
    "learning_rate": {"name": "linear", "initial": 0.01, "final": 0.001, "num_steps": 10},
}


def ppo_config(**changes: Any) -> PPOConfig:
    return check(BASE | changes, PPOConfig)


def make_ppo(actions: ActionSpace | None = None, compiled: bool = False, **changes: Any) -> PPO:
    """For Nim in both seats, or for a lone agent with other actions."""
    if actions is None:
        seats: Any = (GAME.roles, GAME.spaces["first"], GAME.action_spaces["first"])
    else:
        seats = (("agent",), SEEN, actions)
    player = Player("player", *seats, CPU, seed=1, compile=compiled, by_hand=True)
    player.algorithm = ppo_config(**changes).build(player)
    return player.algorithm  # type: ignore[return-value]


# ---- advantages --------------------------------------------------------------------------------------------


def chains(num_steps: int, num_chains: int, seed: int) -> Chains:
    """Random ones, in which games end in both ways and rows are invalid."""
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, num_steps, num_chains, generator=generator)
    kind = torch.randint(5, (num_steps, num_chains), generator=generator)
    valid = torch.rand(num_steps, num_chains, generator=generator) < 0.7
    return Chains(reward, value, next_value, kind == 0, kind == 1, valid)


def defined_advantage(c: Chains, t: int, w: int, gamma: float, gae_lambda: float) -> float:
    """The sum of discounted TD errors of one decision, as eq. 16 writes it."""
    rows = [s for s in range(t, len(c.valid)) if c.valid[s, w]]
    total, weight = 0.0, 1.0
    for here, following in zip(rows, [*rows[1:], None], strict=True):
        if c.terminated[here, w]:
            ahead = 0.0
        elif c.truncated[here, w] or following is None:
            ahead = float(c.next_value[here, w])
        else:
            ahead = float(c.value[following, w])
        total += weight * (float(c.reward[here, w]) + gamma * ahead - float(c.value[here, w]))
        weight *= gamma * gae_lambda
        if c.terminated[here, w] or c.truncated[here, w]:
            break
    return total


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_the_sums_that_define_them(steps: int, num: int, seed: int, gamma: float, decay: float) -> None:
    c = chains(steps, num, seed)
    expected = [
        [defined_advantage(c, t, w, gamma, decay) if c.valid[t, w] else 0.0 for w in range(num)] for t in range(steps)
    ]
    found = generalized_advantages(c, gamma, decay)
    assert torch.allclose(found, torch.tensor(expected), atol=1e-4)
    assert torch.allclose(_loop_over_steps(c, gamma, decay), found, atol=1e-5)


def test_advantages_computed_by_hand() -> None:
    """One game of two steps is over, the next one is cut off after one, the third goes on."""
    column = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    none = torch.zeros(4, 1, dtype=torch.bool)
    terminated, truncated = none.clone(), none.clone()
    terminated[1] = truncated[2] = True
    c = Chains(column, torch.full((4, 1), 10.0), torch.full((4, 1), 20.0), terminated, truncated, ~none)
    found = generalized_advantages(c, 0.5, 0.5).flatten().tolist()
    last, cut, over = 4 + 0.5 * 20 - 10, 3 + 0.5 * 20 - 10, 2 - 10
    assert found == [1 + 0.5 * 10 - 10 + 0.25 * over, over, cut, last]


def ready_transitions(ppo: PPO, num_worlds: int = 4, seed: int = 0) -> Transitions:
    """Random rows as a roll-out of the lone agent would give them, acted by its policy."""
    generator = torch.Generator().manual_seed(seed)
    num, flags = ppo.config.rollout_length * len(ppo.player.turns) * num_worlds, ppo.player.action_space.num_flags
    seen = {name: torch.randn(num, *s.shape, generator=generator) for name, s in ppo.player.spaces.items()}
    legal = torch.rand(num, flags, generator=generator) < 0.7
    if flags:
        legal[:, 0] = legal[:, -1] = True
    with torch.no_grad():
        decision = ppo.policy(explore=True).act(seen, legal, world_keys(seed, num, CPU), {})
    kind = torch.randint(8, (num,), generator=generator)
    return Transitions(
        observation=seen,
        action=decision.action,
        reward=torch.randn(num, generator=generator),
        next_observation={name: value + 0.1 for name, value in seen.items()},
        next_legal=legal,
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.rand(num, generator=generator) < 0.8,
        extras=decision.extras,
    )


@pytest.mark.parametrize("body", [separate(), shared()])
@pytest.mark.parametrize("turns", [("agent",), ("agent", "agent"), ("other", "agent", "agent", "other", "other")])
def test_every_role_of_every_world_is_a_chain(turns: tuple[str, ...], body: dict[str, Any]) -> None:
    """Rows lie round by round, in a round turn by turn, in a turn world by world."""
    ppo = make_ppo(Discrete(3), body=body)
    ppo.player.roles, ppo.player.turns = tuple(dict.fromkeys(turns)), turns
    batch = ready_transitions(ppo)
    ppo.digest(batch)
    assert ppo.experience is not None
    value, next_value = ppo.values(batch.observation, {}), ppo.values(batch.next_observation, {})
    assert torch.allclose(ppo.experience.value, value, atol=1e-6)
    for role in ppo.player.roles:
        for world in range(4):
            places = [
                (t * len(turns) + k) * 4 + world for t in range(6) for k, name in enumerate(turns) if name == role
            ]
            columns = (batch.reward, value, next_value, batch.terminated, batch.truncated, batch.valid)
            c = Chains(*(column[places].unsqueeze(1) for column in columns))
            expected = generalized_advantages(c, 0.9, 0.8).squeeze(1)
            assert torch.allclose(ppo.experience.advantage[places], expected, atol=1e-5)
    assert torch.allclose(ppo.experience.goal, ppo.experience.advantage + value, atol=1e-6)
    assert torch.equal(ppo.experience.weight, batch.valid.float())


def test_explained_variance_is_the_share_of_the_goals_that_the_values_tell() -> None:
    ppo = make_ppo(Discrete(3))
    batch = ready_transitions(ppo)
    ppo.digest(batch)
    assert ppo.experience is not None
    goal, value = (x[batch.valid] for x in (ppo.experience.goal, ppo.experience.value))
    expected = 1 - (goal - value).var() / goal.var()
    assert float(ppo.explained_variance) == pytest.approx(float(expected), rel=1e-4)


# ---- the loss --------------------------------------------------------------------------------------------------


def plain_loss(ppo: PPO, batch: Experience, net: nn.Module, epsilon_or_price: float, entropy_coefficient: float) -> Any:
    """The loss of a minibatch, as one writes it down with torch.distributions."""
    config, space = ppo.config, ppo.player.action_space
    outputs, value = net(batch.observation, batch.memory, batch.fresh)
    if isinstance(space, Box):
        normal = theirs.Independent(theirs.Normal(outputs, net.head.log_std.exp().expand_as(outputs)), 1)
        log_prob, entropy = normal.log_prob(batch.choice), normal.entropy()
        if config.box_actions.name == "squashed_gaussian":
            low, high = torch.tensor(space.low), torch.tensor(space.high)
            log_prob = log_prob - ((high - low) / 2 * (1 - batch.choice.tanh() ** 2)).log().sum(1)
            entropy = net.head.distribution.entropy(outputs, net.head.log_std)
    else:
        nums = [space.num] if isinstance(space, Discrete) else list(space.nums)
        logits = outputs.masked_fill(~batch.legal, -1e9).split(nums, 1)
        parts = [theirs.Categorical(logits=part) for part in logits]
        choices = batch.choice.view(len(value), -1).unbind(1)
        log_prob = torch.stack([part.log_prob(choice) for part, choice in zip(parts, choices, strict=True)]).sum(0)
        entropy = torch.stack([part.entropy() for part in parts]).sum(0)
    counts = batch.weight > 0
    log_prob, entropy, value, old_log_prob, old_value, advantage, goal = (
        x[counts] for x in (log_prob, entropy, value, batch.log_prob, batch.value, batch.advantage, batch.goal)
    )
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)
    ratio = (log_prob - old_log_prob).exp()
    if config.objective.name == "clip":
        gain = torch.min(ratio * advantage, ratio.clamp(1 - epsilon_or_price, 1 + epsilon_or_price) * advantage)
    else:
        gain = ratio * advantage - epsilon_or_price * (ratio - 1 - ratio.log())
    error = (value - goal) ** 2
    if config.value_clip is not None:
        near = old_value + (value - old_value).clamp(-config.value_clip, config.value_clip)
        error = torch.max(error, (near - goal) ** 2)
    return -gain.mean() + config.value_coefficient * error.mean() - entropy_coefficient * entropy.mean()


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
    "no twin": {"body": separate(LAYER_NORM)},
    "no twin, shared": {"body": shared(LAYER_NORM)},
    "no clipping of gradients, sgd": {
        "max_grad_norm": None,
        "optimizer": {"name": "sgd", "momentum": 0.5, "weight_decay": 0.0},
    },
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)
each_action = pytest.mark.parametrize("actions", ACTIONS)


def prepared(actions: str, setting: str, compiled: bool = False, **more: Any) -> PPO:
    """A player with experience, whose policy has moved on since."""
    space, changes = ACTIONS[actions]
    ppo = make_ppo(space, compiled, **(changes | SETTINGS[setting] | more))
    ppo.digest(ready_transitions(ppo, num_worlds=50))
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
    config, experience = ppo.config, ppo.experience
    assert experience is not None
    net = copy.deepcopy(ppo.net)
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()
    optimizer = plain_optimizer(config.optimizer, net)
    for step, index in enumerate(torch.arange(300).split(100)):
        batch = experience.part(index)
        price = 0.2 if config.objective.name == "clip" else 0.5
        loss = plain_loss(ppo, batch, net, price, 0.01)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), config.max_grad_norm or torch.inf)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step)
        optimizer.step()
        found = dict(zip((*METRICS, "grad_norm"), opt_step(ppo, experience, index, step).tolist(), strict=True))
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
        assert found["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    for (name, value), expected in zip(ppo.net.state_dict().items(), net.state_dict().values(), strict=True):
        assert torch.allclose(value, expected, atol=3e-5), name


@each_setting
def test_a_minibatch_in_parts_is_the_whole_one(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parted = prepared("discrete", setting), prepared("discrete", setting)
    assert whole.experience is not None
    expected = opt_step(whole, whole.experience, torch.arange(300), 0)
    monkeypatch.setattr("palestra.algorithms.kernels.ppo.ROWS_AT_ONCE", 64)
    found = opt_step(parted, whole.experience, torch.arange(300), 0)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert torch.allclose(parted.gradient, whole.gradient, rtol=1e-3, atol=1e-5)


def opt_step(ppo: PPO, experience: Experience, index: Tensor, number: int) -> Tensor:
    seen = None if ppo.by_hand is None else ppo.by_hand.see(experience)
    return ppo.opt_step(experience, index, number, seen)


@pytest.mark.slow
@each_setting
@each_action
def test_compiled_opt_steps_are_those_of_eager_ones(actions: str, setting: str) -> None:
    eager, compiled = prepared(actions, setting), prepared(actions, setting, compiled=True)
    assert eager.experience is not None
    compiled.by_hand = None
    for step, index in enumerate(torch.arange(300).split(100)):
        found, expected = (opt_step(ppo, eager.experience, index, step) for ppo in (compiled, eager))
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert torch.allclose(compiled.weights, eager.weights, atol=1e-4)


def test_metrics_are_means_over_the_rows_that_count() -> None:
    """Ratios 2, 0.5 and 1 with advantages 1, -1, 3, epsilon 0.2: gains 1.2, -0.8 and 3; a fourth row has no weight."""
    ratio, ones = torch.tensor([2.0, 0.5, 1.0, 99.0]), torch.ones(4)
    batch = Experience(
        observation={},
        memory={},
        fresh=torch.zeros(1, 4, dtype=torch.bool),
        legal=ones.unsqueeze(1).bool(),
        choice=torch.zeros(4, dtype=torch.int64),
        log_prob=torch.zeros(4),
        value=torch.zeros(4),
        advantage=torch.tensor([1.0, -1.0, 3.0, 99.0]),
        goal=torch.tensor([1.0, 2.0, 3.0, 99.0]),
        weight=torch.tensor([1.0, 1.0, 1.0, 0.0]),
    )
    config = ppo_config(normalize_advantages=False)
    pace = Pace(torch.tensor(0.01), torch.tensor(0.2))
    _, found = ppo_loss(ratio.log(), 4 * ones, 2 * ones, scaled(batch, config), pace, config)
    metrics = dict(zip(METRICS, found.tolist(), strict=True))
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
        assert ppo.experience is not None
        idle = ppo.experience.weight == 0.0
        wild = ppo.experience._replace(
            advantage=torch.where(idle, 1e3, ppo.experience.advantage), goal=torch.where(idle, 1e3, ppo.experience.goal)
        )
        expected, expected_gradient = opt_step(ppo, ppo.experience, torch.arange(300), 0), ppo.gradient.clone()
        other = prepared(actions, "as it is")
        assert torch.allclose(opt_step(other, wild, torch.arange(300), 0), expected, atol=1e-5)
        assert torch.allclose(other.gradient, expected_gradient, atol=1e-6)


# ---- acting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [separate(), shared()])
@each_action
def test_play_and_learning_agree_on_every_probability(actions: str, body: dict[str, Any]) -> None:
    space, changes = ACTIONS[actions]
    ppo = make_ppo(
        space, **changes, body=body, num_minibatches=1, learning_rate=constant(0.0), initialization={"name": "stock"}
    )
    ppo.digest(ready_transitions(ppo))
    ppo.passes_left = 1
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
def test_one_kernel_acts_as_the_head_does_by_the_logits(actions: ActionSpace, activation: str) -> None:
    net = {"name": "mlp", "net_arch": [16], "activation": activation}
    ppo = make_ppo(actions, body=separate(net), initialization={"name": "stock"})
    policy = ppo.policy(explore=True)
    assert policy.quick is not None
    for seed in range(3):
        batch = ready_transitions(ppo, num_worlds=50, seed=seed)
        legal = batch.extras["legal"] & (torch.arange(300) % 10 > 0).unsqueeze(1)  # in some rows nothing is legal
        keys = world_keys(seed, 300, CPU)
        decision = policy.act(batch.observation, legal, keys, {})
        with torch.no_grad():
            action, extras = ppo.net.head.draw(ppo.net.policy(batch.observation), legal, keys)
        assert torch.equal(decision.action, action)
        assert decision.extras.keys() == extras.keys()
        assert torch.equal(decision.extras["legal"], legal)
        assert torch.allclose(decision.extras["log_prob"], extras["log_prob"], atol=1e-6)
        ppo.digest(batch)
        ppo.make_pass()  # it sees the weights of today


@pytest.mark.parametrize(
    ("actions", "changes"),
    [
        (Box((-0.1,), (0.2,)), {"box_actions": CLIPPED}),
        (Discrete(3), {"body": shared()}),
        (Discrete(3), {"body": separate(LAYER_NORM)}),
    ],
)
def test_where_outputs_are_not_logits_alone_no_kernel_acts(actions: ActionSpace, changes: dict[str, Any]) -> None:
    assert make_ppo(actions, **changes).policy(explore=True).quick is None


def test_the_likeliest_action_needs_no_kernel_that_draws() -> None:
    assert make_ppo(Discrete(3)).policy(explore=False).quick is None


def test_box_actions_are_clipped_on_their_way_into_the_game_alone() -> None:
    ppo = make_ppo(Box((-0.1,), (0.2,)), box_actions=CLIPPED)
    seen, _, keys = view_of(1000)
    decision = ppo.policy(explore=True).act(seen, torch.ones(1000, 0, dtype=torch.bool), keys, {})
    assert (decision.action.min(), decision.action.max()) == (torch.tensor(-0.1), torch.tensor(0.2))
    assert decision.extras["choice"].abs().max() > 1.0
    assert torch.equal(decision.extras["choice"].clamp(-0.1, 0.2), decision.action)


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
    with pytest.raises(ConfigError, match=r"players.player.algorithm.body: batch norm does not go with PPO"):
        make_ppo(Discrete(3), body=separate({"name": "mlp", "net_arch": [8, "b"], "activation": "relu"}))


@pytest.mark.parametrize(
    ("actions", "box_actions", "message"),
    [
        (Discrete(3), CLIPPED, r"box_actions: the actions are Discrete\(num=3\), no Box; expected null"),
        (Box((0.0,), (1.0,)), None, "expected clipped_gaussian or squashed_gaussian"),
        (Box((-math.inf,), (1.0,)), SQUASHED, r"box_actions.name: Box\(.*\) has no bounds; expected clipped_gaussian"),
    ],
)
def test_box_actions_must_fit_the_game(actions: ActionSpace, box_actions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"players.player.algorithm.*{message}"):
        make_ppo(actions, box_actions=box_actions)


# ---- passes ----------------------------------------------------------------------------------------------------


def test_a_pass_sees_every_row_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = make_ppo(Discrete(3), num_minibatches=5)
    ppo.digest(ready_transitions(ppo))
    ppo.passes_left = 2
    assert ppo.experience is not None
    advantages, seen = ppo.experience.advantage, []

    def look(experience: Experience, index: Tensor, *others: Any) -> Tensor:
        seen.append(experience.advantage[index])
        return torch.zeros(len(METRICS) + 1)

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
    assert turn.calls == ["collect 6", "safe point", "before", "after 2", "before", "after 2"][:4]


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 2.0), (1e9, 0.5), (None, 1.0)])
def test_the_price_of_divergence_follows_its_target(target: float | None, factor: float) -> None:
    ppo = make_ppo(objective=PENALTY | {"target": target})
    for expected in (0.5 * factor, 0.5 * factor**2):
        RecordingTurn(ppo).run()
        assert ppo.kl_price == expected
    other = make_ppo(objective=PENALTY | {"target": target})
    other.load_state_dict(ppo.state_dict())
    assert other.kl_price == ppo.kl_price


# ---- a turn ------------------------------------------------------------------------------------------------------


class RecordingTurn(Turn):
    """Plays Nim for the algorithm, and writes down what it is asked for. `visit`: called at every safe point."""

    def __init__(self, ppo: PPO, visit: Callable[[], None] = lambda: None) -> None:
        super().__init__(ppo.player)
        self.visit = visit
        self.fused_game = FusedGame(GAME, {})
        self.player.worlds = self.player.worlds or self.fused_game.new_worlds(16, 0, "play")
        self.calls: list[str] = []

    def collect(self, num_rounds: int) -> Transitions:
        self.calls.append(f"collect {num_rounds}")
        assert self.player.worlds is not None
        self.fused_game.policies = dict.fromkeys(GAME.roles, self.player.policy(explore=True))
        return self.fused_game.collect(self.player.worlds, self.player.roles, num_rounds)  # type: ignore[arg-type]

    def before_step(self) -> None:
        self.calls.append("before")

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        assert {"loss", "grad_norm", "explained_variance", *METRICS} == set(metrics)
        self.calls.append(f"after {num_opt_steps}")
        self.player.opt_steps += num_opt_steps
        if not self._open:
            self.visit()

    def safe_point(self) -> None:
        self.calls.append("safe point")
        self.visit()


def test_a_turn_rolls_out_and_then_passes_over_it() -> None:
    ppo = make_ppo()
    turn = RecordingTurn(ppo)
    turn.run()
    assert turn.calls == ["collect 6", "safe point"] + ["before", "after 2"] * 3
    assert (ppo.experience, ppo.rolled_out) == (None, False)


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
        "roles": {"agent": "agent"},
        "players": {"agent": {"algorithm": algorithm | changes, "warm_start": None}},
        "stop": {"after": 800, "unit": "opt_steps"},
        "evaluations": [],
        "best": None,
        "evaluators": None,
        "callbacks": [],
        "execution": {"device": "cpu", "num_threads": 1, "kernel": "torch", "gradients": "by_hand", "compile": False},
        "output": {
            "display": "quiet",
            "record": None,
            "statistics": ["mean"],
            "info": [],
            "recorders": [],
            "save": None,
            "keep_last": 1,
            "keep_every": None,
            "checkpoint_folder": None,
            "stop_within_s": 60.0,
            "mirror": None,
        },
    }


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("kind", PROBES)
def test_probes_are_learned_to_their_known_values(kind: str, continuous: bool, tmp_path: Path) -> None:
    trainer = palestra.PPOTrainer(probe_config(kind, continuous), run=tmp_path / "run")
    trainer.fit()
    ppo = trainer.players["agent"].algorithm
    seen, values, moves = PROBES[kind]
    assert ppo.values({"seen": seen}, {}).tolist() == pytest.approx(values, abs=0.01 if kind == "endless" else 0.05)
    if moves is not None:
        legal = torch.ones(len(seen), 0 if continuous else 2, dtype=torch.bool)
        action = ppo.policy(explore=False).act({"seen": seen}, legal, world_keys(0, len(seen), CPU), {}).action
        assert torch.equal(torch.sign(action.flatten() - (0.0 if continuous else 0.5)), torch.tensor(moves))


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    "changes", [{"body": shared()}, {"box_actions": SQUASHED}, {"objective": PENALTY | {"target": 0.01}}]
)
def test_the_hardest_probe_is_learned_in_other_ways(changes: dict[str, Any], tmp_path: Path) -> None:
    trainer = palestra.PPOTrainer(probe_config("identity", "box_actions" in changes, **changes), run=tmp_path / "run")
    trainer.fit()
    assert trainer.players["agent"].algorithm.values({"seen": BOTH}, {}).tolist() == pytest.approx(
        [DISCOUNTED] * 2, abs=0.1
    )


@each_action
def test_a_loss_that_was_changed_is_the_one_that_is_learned(actions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients by hand are left out as soon as they are not those of `ppo_loss`."""
    space, changes = ACTIONS[actions]
    assert make_ppo(space, **changes).by_hand is not None
    original = ppo_module.ppo_loss

    def changed(log_prob: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        loss, metrics = original(log_prob, *others)
        return loss + 0.1 * log_prob.mean(), metrics

    monkeypatch.setattr(ppo_module, "ppo_loss", changed)
    assert make_ppo(space, **changes).by_hand is None


@pytest.mark.usefixtures("no_plots")
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
    }
    config["evaluations"][0] |= {"interval": None, "num_games": 1, "pairings": [{"agent": "agent"}]}
    config["best"] = None
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    trainer = palestra.PPOTrainer(config, run=tmp_path / "run")
    trainer.fit()
    (figures,) = read_records(tmp_path / "run" / "records.jsonl")[-2]["pairs"]
    assert figures["returns"]["agent"] >= 475.0
