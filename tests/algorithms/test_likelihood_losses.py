"""BC, AWAC and IQL: what they learn of an enumerated game is known, and so is what a batch says of actions taken.

Covers palestra.algorithms.losses.awac, palestra.algorithms.losses.bc, palestra.algorithms.losses.iql.
"""

from typing import Any

import numpy as np
import pytest
import torch
from combinations import OFF_POLICY, PRIORITIZED
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palestra.algorithms.losses.off_policy_loss import ReplayBatch
from palestra.algorithms.off_policy import OffPolicy, OffPolicyConfig
from palestra.algorithms.parts.action_heads import BoxHead, GaussianHead
from palestra.config import ConfigError, check
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.randomness import world_keys
from palestra.rollouts.transitions import Transitions
from tests.algorithms.probing import CPU, seat
from tests.algorithms.test_sac import SPACES, batch_of
from tests.algorithms.test_two_states import ADAM, LINEAR, falling
from tests.gym_probes import two_states_backup

Data = dict[str, Any]
Table = np.ndarray
MLP: Data = {"name": "mlp", "net_arch": [8], "activation": "tanh"}
BOX = Box((-2.0, 0.0, 3.0), (1.0, 4.0, 3.0))  # the last number is fixed
LOSSES: dict[str, Data] = {
    "bc": {"name": "bc"},
    "awac": {"name": "awac", "num_critics": 2, "temperature": 0.5, "max_weight": 20.0},
    "iql": {"name": "iql", "num_critics": 2, "expectile": 0.8, "temperature": 0.5, "max_weight": 20.0},
}
HEADS = {"bc": ["policy"], "awac": ["policy", "critic_0", "critic_1"]}
HEADS["iql"] = [*HEADS["awac"], "value"]
BOX_ACTIONS: dict[str, Data] = {
    "clipped_gaussian": {"initial_log_std": -0.5},
    "squashed_gaussian": {"initial_log_std": -0.5},
    "state_dependent_gaussian": {"log_std": {"min": -5.0, "max": 2.0}},
}


def learner(
    name: str,
    actions: ActionSpace,
    spaces: dict[str, Space] = SPACES,
    box: str = "clipped_gaussian",
    net: Data = MLP,
    loss: Data | None = None,
    **changes: Any,
) -> OffPolicy:
    config = OFF_POLICY | {
        "loss": LOSSES[name] | (loss or {}),
        "body": {"name": "separate"} | dict.fromkeys(HEADS[name], net),
        "box_actions": {"name": box} | BOX_ACTIONS[box] if isinstance(actions, Box) else None,
        "exploration": None,
        "target": None if name == "bc" else {"name": "polyak", "tau": 0.1, "interval": 1},
        "max_grad_norm": None,
    }
    made: OffPolicy = seat(check(config | changes, OffPolicyConfig), spaces, actions)
    return made


# ---- an enumerated game ----------------------------------------------------------------------------------

GAMMA = 0.8
REWARDS = np.array([[1.0, 0.0, -0.5], [0.3, 1.5, 0.0], [0.0, 0.8, 9.0]])  # by state and action
NEXT = np.array([[1, 2, 0], [0, 2, 1], [0, 1, 2]])
ENDS = np.array([[False, False, False], [False, True, False], [False, False, False]])
LEGAL = np.array([[True, True, True], [True, True, True], [True, True, False]])
COUNTS = np.array([[6, 3, 1], [5, 2, 3], [4, 6, 0]])
BEHAVIOUR = COUNTS / COUNTS.sum(axis=1, keepdims=True)
STATES = {"state": Space((3,), torch.float32, padded=False)}


def data() -> Transitions:
    """Every pair of a state and a legal action, as often as the counts say; all that go on are cut off."""
    state, action = np.nonzero(COUNTS)
    state, action = (np.repeat(each, COUNTS[state, action]) for each in (state, action))
    following, one_hot = NEXT[state, action], np.eye(3, dtype=np.float32)
    ends = torch.from_numpy(ENDS[state, action])
    return Transitions(
        observation={"state": torch.from_numpy(one_hot[state])},
        action=torch.from_numpy(action),
        reward=torch.from_numpy(REWARDS[state, action]).float(),
        next_observation={"state": torch.from_numpy(one_hot[following])},
        next_legal=torch.from_numpy(LEGAL[following]),
        terminated=ends,
        truncated=~ends,
        valid=torch.ones(len(state), dtype=torch.bool),
        extras={},
        legal=torch.from_numpy(LEGAL[state]),
    )


def q_values(values: Table) -> Table:
    return np.where(LEGAL, REWARDS + GAMMA * ~ENDS * values[NEXT], 0.0)


def expectiles(q: Table, weights: Table, expectile: float) -> Table:
    """Of the values in each row."""
    values = (weights * q).sum(axis=1)
    for _ in range(50):
        share = weights * np.where(q > values[:, None], expectile, 1.0 - expectile)
        values = (share * q).sum(axis=1) / share.sum(axis=1)
    return values


def weighted(advantages: Table, loss: Data) -> Table:
    """The behaviour's probabilities, times the weights of a loss."""
    policy = BEHAVIOUR * np.minimum(np.exp(advantages / loss["temperature"]), loss["max_weight"])
    return np.asarray(policy / policy.sum(axis=1, keepdims=True))


def trained(name: str, num_steps: int, rows: Transitions | None = None, **changes: Any) -> OffPolicy:
    """A learner that has made so many opt steps on all data of the enumerated game."""
    common = {"gamma": GAMMA, "optimizer": ADAM, "learning_rate": falling(0.05, num_steps), "net": LINEAR}
    made, columns = learner(name, Discrete(3), STATES, **common | changes), (rows or data()).rows()
    for _ in range(num_steps):
        made.opt_step(columns)
        made.player.opt_steps += 1
    return made


def batch_by_state(made: OffPolicy, legal: Table = LEGAL) -> ReplayBatch:
    """A row for each state."""
    num, zeros = len(legal), torch.zeros(len(legal))
    observation, flags = {"state": torch.eye(num)}, torch.from_numpy(legal)
    ends = torch.zeros(num, dtype=torch.bool)
    rows = Transitions(observation, zeros.long(), zeros, observation, flags, ends, ends, ~ends, {}, flags)
    return made.batch(rows, 0)


def policy_of(made: OffPolicy) -> Table:
    (log_probs,) = batch_by_state(made).distribution.log_probs  # type: ignore[union-attr]
    return log_probs.detach().exp().numpy()


def test_the_policy_of_bc_is_that_of_the_data() -> None:
    policy = policy_of(trained("bc", 400))
    assert policy == pytest.approx(BEHAVIOUR, abs=1e-2)
    assert policy[2, 2] == 0.0


@pytest.mark.parametrize("max_weight", [100.0, 1.0])
def test_the_policy_of_awac_is_the_weighted_one_and_its_critics_have_its_values(max_weight: float) -> None:
    """Illegal actions have no part in the values: the critics never learn theirs."""
    loss = LOSSES["awac"] | {"max_weight": max_weight}
    policy = BEHAVIOUR
    for _ in range(200):
        values = np.zeros(3)
        for _ in range(100):
            values = (policy * q_values(values)).sum(axis=1)
        policy = weighted(q_values(values) - values[:, None], loss)
    made = trained("awac", 1500, loss=loss)
    assert policy_of(made) == pytest.approx(policy, abs=1e-2)
    assert policy_of(made)[2, 2] == 0.0
    batch = batch_by_state(made)
    for critic in ("critic_0", "critic_1"):
        learned = batch.outputs[critic].detach().numpy()
        assert learned[LEGAL] == pytest.approx(q_values(values)[LEGAL], abs=1e-2)
    assert batch.policy_value(["critic_0", "critic_1"]).numpy() == pytest.approx(values, abs=1e-2)


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_the_value_of_iql_is_the_expectile_and_its_policy_the_weighted_one(expectile: float) -> None:
    """At 0.5 it is the behaviour's value."""
    loss, values = LOSSES["iql"] | {"expectile": expectile, "max_weight": 1.0}, np.zeros(3)
    for _ in range(100):
        values = expectiles(q_values(values), BEHAVIOUR, expectile)
    made = trained("iql", 1500, loss=loss)
    assert batch_by_state(made).outputs["value"].detach()[:, 0].numpy() == pytest.approx(values, abs=1e-2)
    policy = policy_of(made)
    assert policy == pytest.approx(weighted(q_values(values) - values[:, None], loss), abs=1e-2)
    assert policy[2, 2] == 0.0


def test_the_behaviours_values_of_two_states_are_learned() -> None:
    """Whoever takes a cut for an end, or an end for a cut, is far off."""
    behaviour, values = np.array([[0.75, 0.25], [0.5, 0.5]]), np.zeros(2)
    for _ in range(500):
        values = (behaviour * two_states_backup(values, 0.9)).sum(axis=1)
    now, action = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 0, 0, 1, 1])
    ends, states = (now == 1) & (action == 1), torch.eye(2)
    rows = Transitions(
        observation={"state": states[now]},
        action=action,
        reward=torch.tensor([[0.1, 0.0], [1.0, 2.0]])[now, action],
        next_observation={"state": states[(now == 0).long() * action]},
        next_legal=torch.ones(8, 2, dtype=torch.bool),
        terminated=ends,
        truncated=~ends,
        valid=torch.ones(8, dtype=torch.bool),
        extras={},
        legal=torch.ones(8, 2, dtype=torch.bool),
    )
    spaces = {"state": Space((2,), torch.float32, padded=False)}
    made = learner(
        *("iql", Discrete(2), spaces),
        net=LINEAR,
        loss={"expectile": 0.5},
        gamma=0.9,
        target={"name": "polyak", "tau": 0.3, "interval": 1},
        optimizer=ADAM,
        learning_rate=falling(0.1, 1500),
    )
    for _ in range(1500):
        made.opt_step(rows.rows())
        made.player.opt_steps += 1
    learned = batch_by_state(made, np.ones((2, 2), dtype=bool)).outputs["value"]
    assert learned.detach()[:, 0].numpy() == pytest.approx(values, abs=1e-2)


@pytest.mark.parametrize("name", LOSSES)
def test_a_player_never_draws_an_illegal_action(name: str) -> None:
    made, num = learner(name, Discrete(4)), 500
    view, legal = {"seen": torch.randn(1, 3).expand(num, 3)}, torch.tensor([[True, False, True, False]]).expand(num, -1)
    for explore in (True, False):
        action = made.policy(explore).act(view, legal, world_keys(0, num, CPU), {}).action
        assert set(action.tolist()) <= {0, 2}
    assert set(made.policy(True).act(view, legal, world_keys(0, num, CPU), {}).action.tolist()) == {0, 2}


# ---- their gradients -------------------------------------------------------------------------------------


def gradient_of_policy(made: OffPolicy, rows: Transitions) -> dict[str, Tensor]:
    """By the weights with which the player acts, by name."""
    weights = dict(made.net.named_parameters())
    parts = made.gradient(rows)[0].split([weight.numel() for weight in weights.values()])
    named = dict(zip(weights, parts, strict=True))
    return {name: part for name, part in named.items() if name.startswith(("policy.", "head."))}


@pytest.mark.parametrize("actions", [Discrete(4), *BOX_ACTIONS])
@pytest.mark.parametrize("name", ["awac", "iql"])
def test_with_weights_of_one_the_policys_gradient_is_that_of_bc(name: str, actions: Any) -> None:
    space, box = (actions, "clipped_gaussian") if isinstance(actions, Discrete) else (BOX, actions)
    rows = batch_of(32, space)
    rows.action = torch.arange(32) % 4 if isinstance(space, Discrete) else rows.action
    rows.legal[:] = True
    ours, cloned = (
        gradient_of_policy(learner(each, space, box=box, loss=loss), rows)
        for each, loss in ((name, {"temperature": 1e30}), ("bc", {}))
    )
    assert ours.keys() == cloned.keys()
    for weight in ours:
        assert bool(cloned[weight].any())
        torch.testing.assert_close(ours[weight], cloned[weight], rtol=0.0, atol=1e-6)
    other = gradient_of_policy(learner(name, space, box=box), rows)
    assert not torch.allclose(other["policy.layers.0.weight"], cloned["policy.layers.0.weight"], atol=1e-3)


@pytest.mark.parametrize("space", [Discrete(4), BOX])
@pytest.mark.parametrize("name", ["awac", "iql"])
def test_the_critics_gradient_and_the_priorities_are_those_of_their_td_errors(name: str, space: ActionSpace) -> None:
    made, rows = learner(name, space, replay_buffer=PRIORITIZED), batch_of(24, space)
    rows.legal[:] = True
    rows.extras = {"weight": torch.rand(24), "discount": torch.full((24,), 0.7)}
    with torch.no_grad():
        made.target_net.policy(rows.observation)  # type: ignore[union-attr, operator]
        made.target_weights.mul_(1.5)
    batch = made.batch(rows, 0)
    if name == "iql":
        next_value = batch.next_outputs["value"][:, 0]
    elif isinstance(space, Box):
        action, _ = made.batch(rows, 0).next_sample()
        next_value = torch.minimum(*(batch.target_action_values(f"critic_{i}", action) for i in range(2)))
    else:
        (log_probs,) = batch.next_distribution.log_probs  # type: ignore[union-attr]
        next_value = (log_probs.exp() * torch.minimum(*(batch.target_outputs[f"critic_{i}"] for i in range(2)))).sum(1)
    target = rows.reward + 0.7 * next_value * ~rows.terminated
    errors = torch.stack([batch.taken_values(f"critic_{i}") - target for i in range(2)])
    gradient, metrics, priorities = made.gradient(rows)
    assert priorities is not None
    torch.testing.assert_close(priorities, errors.detach().abs().mean(dim=0))
    loss = (errors.square().sum(dim=0) * rows.extras["weight"]).mean()
    assert float(metrics["critic_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    weights = dict(made.net.named_parameters())
    named = dict(zip(weights, gradient.split([each.numel() for each in weights.values()]), strict=True))
    mine = {key: weight for key, weight in weights.items() if key.startswith("critic_")}
    for key, each in zip(mine, torch.autograd.grad(loss, list(mine.values())), strict=True):
        torch.testing.assert_close(named[key], each.flatten(), rtol=1e-4, atol=1e-6)


# ---- what a batch says of actions that somebody else chose -------------------------------------------------


@pytest.mark.parametrize("box", BOX_ACTIONS)
def test_log_probabilities_are_finite_on_the_bounds_and_have_finite_gradients(box: str) -> None:
    made, rows = learner("bc", BOX, box=box), batch_of(3, BOX)
    rows.action = torch.stack([torch.tensor(BOX.low), torch.tensor(BOX.high), torch.tensor([-0.5, 2.0, 3.0])])
    batch = made.batch(rows, 0)
    assert bool(batch.action.isfinite().all())
    assert bool(batch.log_prob.isfinite().all())
    assert bool(made.gradient(rows)[0].isfinite().all())


@pytest.mark.parametrize("box", BOX_ACTIONS)
def test_a_drawn_action_has_the_same_log_probability_if_only_the_action_is_known(box: str) -> None:
    made, rows = learner("bc", BOX, box=box), batch_of(200, BOX)
    decision = made.policy(explore=True).act(rows.observation, rows.legal, world_keys(0, 200, CPU), {})
    low, high = torch.tensor(BOX.low[:2]), torch.tensor(BOX.high[:2])
    margin = 0.02 * (high - low)  # beyond it a value was clipped, or a tanh is hard to invert
    inside = ((decision.action[:, :2] > low + margin) & (decision.action[:, :2] < high - margin)).all(dim=1)
    assert int(inside.sum()) > 10
    rows.action = decision.action
    found = made.batch(rows, 0)
    torch.testing.assert_close(found.log_prob[inside], decision.extras["log_prob"][inside], rtol=1e-3, atol=1e-3)
    rows.extras = {"sampled_action": decision.extras["sampled_action"]}
    known = made.batch(rows, 0)
    assert torch.equal(known.action, decision.extras["sampled_action"])
    torch.testing.assert_close(known.log_prob, decision.extras["log_prob"], rtol=1e-4, atol=1e-4)


@given(st.lists(st.floats(-1.0, 1.0, width=32), min_size=2, max_size=2))
def test_what_was_drawn_for_an_action_is_played_as_this_action(unit: list[float]) -> None:
    center, half_width = torch.tensor([-0.5, 2.0, 3.0]), torch.tensor([1.5, 2.0, 0.0])
    action = (center + half_width * torch.tensor([*unit, 0.0])).unsqueeze(0)
    for head in GAUSSIAN_HEADS:
        again = head.action(head.sampled(action))
        torch.testing.assert_close(again, action, rtol=0.0, atol=1e-5)
        if isinstance(head, BoxHead) and "Clipped" in type(head.family).__name__:
            assert torch.equal(again, action)


GAUSSIAN_HEADS: list[GaussianHead] = [learner("bc", BOX, box=box).net.head for box in BOX_ACTIONS]  # type: ignore[misc]


@pytest.mark.parametrize("box", BOX_ACTIONS)
def test_values_of_the_actions_taken_and_the_targets_are_those_at_the_observations(box: str) -> None:
    made, rows = learner("iql", BOX, box=box), batch_of(16, BOX)
    rows.action[0], rows.action[1] = torch.tensor(BOX.low), torch.tensor(BOX.high)
    batch = made.batch(rows, 0)
    seen = rows.observation | {"action": (rows.action - torch.tensor([-0.5, 2.0, 3.0])) / torch.tensor([1.5, 2.0, 1.0])}
    expected = made.net.critic_0(seen)[:, 0]  # type: ignore[operator]
    assert batch.taken_values("critic_0").requires_grad
    torch.testing.assert_close(batch.taken_values("critic_0"), expected)
    torch.testing.assert_close(batch.target_taken_values("critic_0"), expected.detach())
    torch.testing.assert_close(batch.action_values("critic_0", batch.action), expected)
    with torch.no_grad():
        made.target_weights.zero_()
    assert not bool(made.batch(rows, 0).target_taken_values("critic_0").any())
    assert bool(made.batch(rows, 0).taken_values("critic_0").any())


def test_the_policys_value_of_a_box_is_that_of_an_action_that_it_draws() -> None:
    made, rows = learner("awac", BOX), batch_of(16, BOX)
    action, _ = made.batch(rows, 5).sample()
    batch = made.batch(rows, 5)
    critics = ["critic_0", "critic_1"]
    expected = torch.minimum(*(batch.action_values(critic, action) for critic in critics))
    found = batch.policy_value(critics)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach())
    assert not torch.equal(found, batch.policy_value(critics))  # another action


def test_a_body_that_all_heads_share_learns_the_same_terms() -> None:
    made = learner("iql", Discrete(4), body={"name": "shared", "net": MLP})
    rows = batch_of(16, Discrete(4))
    batch = made.batch(rows, 0)
    outputs = made.net.split(made.net.net_of("policy")(rows.observation))
    taken = outputs["critic_1"].gather(1, rows.action.unsqueeze(1))[:, 0]
    torch.testing.assert_close(batch.taken_values("critic_1"), taken)
    torch.testing.assert_close(batch.target_taken_values("critic_1"), taken.detach())
    assert bool(made.gradient(rows)[0].isfinite().all())


# ---- what does not fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "actions", "changes", "message"),
    [
        ("awac", BOX, {"target": None}, "loss.name: 'awac' asks for target networks.*`target` is null"),
        ("iql", Discrete(4), {"target": None}, "loss.name: 'iql' asks for target networks.*`target` is null"),
        (
            *("bc", BOX, {"target": {"name": "polyak", "tau": 0.1, "interval": 1}}),
            r"target: expected null \(the loss 'bc' keeps no target networks\), got 'polyak'",
        ),
        (
            *("iql", BOX, {"body": {"name": "shared", "net": MLP}}),
            "body.name: expected 'separate' .the head 'critic_0' observes actions.*, got 'shared'",
        ),
        (
            *("awac", MultiDiscrete((2, 3)), {}),
            "loss.name: expected Discrete or Box actions for the loss 'awac', which values them, got MultiDiscrete",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(name: str, actions: ActionSpace, changes: Data, message: str) -> None:
    with pytest.raises(ConfigError, match=f"algorithm.{message}") as caught:
        learner(name, actions, **changes)
    assert len(caught.value.errors) == 1


def test_choices_of_several_discrete_actions_are_cloned() -> None:
    actions = MultiDiscrete((2, 3))
    made, rows = learner("bc", actions), batch_of(8, Discrete(5))
    rows.action, rows.legal = torch.stack([torch.arange(8) % 2, torch.arange(8) % 3], dim=1), torch.ones(8, 5) > 0
    first, second = made.net.policy(rows.observation).split([2, 3], dim=1)  # type: ignore[operator]
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(first, rows.action[:, 0]) + cross_entropy(second, rows.action[:, 1])
    assert float(made.gradient(rows)[1]["policy_loss"]) == pytest.approx(float(expected.detach()), rel=1e-5)
