"""DQN's variants: targets, legal actions, priorities, transition builders of one's own, and games whose values are
known."""

import copy
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from probes import Kind
from torch import Tensor

from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.parts.return_distributions import of_action, with_fractions
from palestra.config import ConfigError, check, user_class_hashes
from palestra.games.spaces import Discrete, Space
from palestra.rollouts.transitions import Transitions
from tests.algorithms.probing import NUM_WORLDS, ProbeTurn, best_action, learn, make_probe, seat, seen

SPACES = {"seen": Space((2,), torch.float32, padded=False)}
EXPECTED = {"name": "expected", "huber_delta": 1.0}
C51 = {"name": "c51", "num_atoms": 41, "low": -2.0, "high": 6.0}
QUANTILE = {"name": "quantile", "num_quantiles": 8, "huber_delta": 1.0}
IMPLICIT = {
    "name": "implicit_quantile",
    "num_quantiles": 8,
    "num_target_quantiles": 8,
    "num_acting_quantiles": 16,
    "num_cosines": 16,
    "embedding_dim": 32,
    "huber_delta": 1.0,
}
HEADS = (EXPECTED, C51, QUANTILE, IMPLICIT)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "n-step": {"transitions": {"name": "n_step", "steps": 3}},
    "c51": {"value": C51},
    "quantile": {"value": QUANTILE},
    "implicit quantile": {"value": IMPLICIT},
    "dueling c51, n-step": {"dueling": True, "value": C51, "transitions": {"name": "n_step", "steps": 2}},
    "dueling implicit quantile": {"dueling": True, "value": IMPLICIT},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def variant_config(variant: str, **changes: Any) -> DQNConfig:
    data = {
        "name": "dqn",
        "gamma": 0.8,
        "double": True,
        "dueling": False,
        "value": EXPECTED,
        "transitions": {"name": "one_step"},
        "rollout_length": 2,
        "updates_per_turn": 4,
        "warmup_env_steps": 200,
        "batch_size": 32,
        "target": {"name": "polyak", "tau": 0.2, "interval": 1},
        "max_grad_norm": None,
        "net": {"name": "mlp", "net_arch": [32, 32], "activation": "relu"},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "constant", "value": 1e-2},
        "exploration": {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": 0.5}},
        "replay_buffer": {"name": "uniform", "capacity": 5000, "layout": "whole", "scratch_folder": None},
    }
    return check(data | VARIANTS[variant] | changes, DQNConfig)


def make_dqn(variant: str, compiled: bool = False, **changes: Any) -> DQN:
    return seat(variant_config(variant, **changes), SPACES, Discrete(4), compiled)


def batch_of(num: int, seed: int = 0) -> Transitions:
    """Random rows; a third each is terminated, truncated, and neither. Discounts and rewards are their own."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(num) % 3
    legal = torch.rand(num, 4, generator=generator) < 0.5
    legal[:, 1] = True
    return Transitions(
        observation={"seen": torch.randn(num, 2, generator=generator)},
        action=torch.randint(4, (num,), generator=generator),
        reward=torch.rand(num, generator=generator),
        next_observation={"seen": torch.randn(num, 2, generator=generator)},
        next_legal=legal & (kind != 0).unsqueeze(1),
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.ones(num, dtype=torch.bool),
        extras={"discount": 0.6 * torch.rand(num, generator=generator)},  # within the atoms of C51
        legal=torch.ones(num, 4, dtype=torch.bool),
    )


# ---- targets -------------------------------------------------------------------------------------------------


def outputs_of(head: dict[str, Any], seed: int) -> Tensor:
    """Something that a network could give for 4 actions in 60 rows."""
    shape = (60, 4) if head is EXPECTED else (60, 4, 41 if head is C51 else 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head["name"])
def test_targets_are_of_the_best_legal_action_and_of_none_after_the_end(head: dict[str, Any]) -> None:
    dqn, batch = make_dqn("plain", value=head), batch_of(60)
    value, choosing, next_outputs = dqn.config.value, outputs_of(head, 1), outputs_of(head, 2)
    found = dqn.target(next_outputs, choosing, batch)
    q_values = value.q_values(choosing)
    for row in range(60):
        legal = batch.next_legal[row].nonzero().squeeze(1).tolist()
        best = max(legal, key=lambda action: float(q_values[row, action]), default=0)
        next_value = 0.0 if batch.terminated[row] else float(value.q_values(next_outputs)[row, best])
        expected = float(batch.reward[row]) + float(batch.extras["discount"][row]) * next_value
        mean = float(found[row] @ torch.linspace(-2.0, 6.0, 41)) if head is C51 else float(found[row].mean())
        assert mean == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head["name"])
def test_no_output_after_the_end_enters_the_target(head: dict[str, Any]) -> None:
    batch, nothing = batch_of(60), torch.full_like(outputs_of(head, 1), torch.nan)
    target = make_dqn("plain", value=head).target(nothing, nothing, batch)
    assert torch.equal(target.view(60, -1).isnan().any(dim=1), ~batch.terminated)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head["name"])
def test_the_next_action_is_chosen_by_the_q_values_of_the_network_that_the_config_says(
    head: dict[str, Any], double: bool
) -> None:
    """Those by which a player acts; not the means over the fractions that were drawn for the target."""
    dqn, batch, found = make_dqn("plain", value=head, double=double, batch_size=60), batch_of(60), list[Tensor]()
    loss = dqn.loss
    dqn.loss = lambda outputs, value_target, batch: found.append(value_target) or loss(outputs, value_target, batch)
    for _ in range(5):  # the networks come apart
        dqn.opt_step(batch.rows())
        dqn.player.opt_steps += 1
    found.clear()
    batch.extras |= {"fractions": torch.rand(60, 8), "target_fractions": torch.rand(60, 8) ** 8}  # near 0, most of them
    observation = batch.next_observation
    with torch.no_grad():
        choosing = dqn.outputs((dqn.online if double else dqn.target_net)(observation))
        drawn = with_fractions(observation, batch.extras["target_fractions"] if head is IMPLICIT else None)
        expected = dqn.target(dqn.outputs(dqn.target_net(drawn)), choosing, batch)
    dqn.gradient(batch)
    assert torch.allclose(found[0], expected, atol=1e-5)


def test_rows_without_a_discount_of_their_own_have_gamma() -> None:
    dqn, batch, outputs = make_dqn("plain"), batch_of(60), outputs_of(EXPECTED, 1)
    batch.extras = {"discount": torch.full((60,), 0.8)}
    expected = dqn.target(outputs, outputs, batch)
    batch.extras = {}
    assert torch.equal(dqn.target(outputs, outputs, batch), expected)


# ---- acting and learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("explore", [True, False])
@every_variant
def test_illegal_actions_are_never_played(variant: str, explore: bool) -> None:
    softmax = {"name": "softmax", "temperature": {"name": "constant", "value": 1.0}}
    policy, batch = make_dqn(variant, exploration=softmax).policy(explore), batch_of(300)
    going_on = ~batch.terminated
    decision = policy.act(batch.observation, batch.next_legal, torch.arange(300), {})
    assert batch.next_legal[torch.arange(300), decision.action][going_on].all()
    assert len(decision.action.unique()) >= 3


@every_variant
def test_an_opt_step_lowers_the_loss_of_its_rows(variant: str) -> None:
    dqn = make_dqn(variant, batch_size=60, target={"name": "polyak", "tau": 1.0, "interval": 1000})
    rows = batch_of(60).rows()
    losses = []
    for _ in range(30):
        losses.append(float(dqn.opt_step(rows)["loss"]))
        dqn.player.opt_steps += 1
    assert fmean(losses[-5:]) < 0.7 * fmean(losses[:5])


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head["name"])
def test_priorities_follow_the_td_error_or_the_loss_of_a_distribution(head: dict[str, Any]) -> None:
    prioritized = {
        "name": "prioritized",
        "capacity": 100,
        "layout": "whole",
        "scratch_folder": None,
        "alpha": 1.0,
        "eps": 1e-6,
    }
    prioritized |= {"beta": {"name": "constant", "value": 0.5}}
    dqn = make_dqn("plain", value=head, replay_buffer=prioritized, batch_size=60)
    batch = batch_of(60)
    dqn.buffer.add(batch.rows(), batch.valid)
    found: list[Tensor] = []
    update = dqn.update_fast

    def watched(rows: Any) -> Any:
        found.extend([rows["extras.weight"].clone(), *losses_of(dqn, Transitions.from_rows(rows))])
        return update(rows)

    dqn.update_fast = watched
    loss = dqn.opt_step(dqn.buffer.sample(60))["loss"]
    weight, losses, td_error = found
    assert float(loss) == pytest.approx(float((weight * losses).mean()), rel=1e-5)
    expected = td_error.abs() if head is EXPECTED else losses
    priorities = dqn.buffer.tree.leaves[dqn.buffer.drawn]
    assert torch.allclose(priorities.float(), expected + 1e-6, atol=1e-6)


def rows_of_opt_steps(dqn: DQN, num: int) -> list[dict[str, Tensor]]:
    """What the update is given in so many opt steps on the same rows."""
    batch, found = batch_of(60), list[dict[str, Tensor]]()
    dqn.buffer.add(batch.rows(), batch.valid)
    update = dqn.update_fast

    def watched(rows: Any) -> Any:
        found.append({name: value.clone() for name, value in rows.items()})
        return update(rows)

    dqn.update_fast = watched
    for _ in range(num):
        dqn.opt_step(dqn.buffer.sample(60))
        dqn.player.opt_steps += 1
    return found


def test_weights_in_the_loss_follow_beta_as_the_player_s_opt_steps_go_on() -> None:
    """With beta 0 all weights are 1; it rises from there."""
    rising = {"name": "linear", "initial": 0.0, "final": 1.0, "num_steps": 2}
    replay = {
        "name": "prioritized",
        "capacity": 100,
        "layout": "whole",
        "scratch_folder": None,
        "alpha": 1.0,
        "eps": 1e-6,
    }
    first, second, third = (
        rows["extras.weight"]
        for rows in rows_of_opt_steps(make_dqn("plain", replay_buffer=replay | {"beta": rising}, batch_size=60), 3)
    )
    assert (first == 1.0).all()
    assert second.min() < 0.9
    assert third.min() < second.min()


def test_fractions_are_drawn_anew_for_every_opt_step() -> None:
    rows = rows_of_opt_steps(make_dqn("implicit quantile", batch_size=60), 3)
    drawn = [value.tolist() for each in rows for value in (each["extras.fractions"], each["extras.target_fractions"])]
    assert len({str(value) for value in drawn}) == 6
    again = rows_of_opt_steps(make_dqn("implicit quantile", batch_size=60), 3)
    assert all(
        torch.equal(one["extras.fractions"], two["extras.fractions"]) for one, two in zip(rows, again, strict=True)
    )


def losses_of(dqn: DQN, batch: Transitions) -> tuple[Tensor, Tensor]:
    """The losses of rows, and their TD errors, before an opt step."""
    with torch.no_grad():
        fractions = batch.extras.get("fractions"), batch.extras.get("target_fractions")
        next_outputs = dqn.outputs(dqn.target_net(with_fractions(batch.next_observation, fractions[1])))
        target = dqn.target(next_outputs, dqn.outputs(dqn.acting(batch.next_observation)), batch)
        outputs = dqn.outputs(dqn.online(with_fractions(batch.observation, fractions[0])))
        taken, value = of_action(outputs, batch.action), dqn.config.value
        return value.losses(taken, target, batch.extras), value.td_error(taken, target)


@pytest.mark.slow
@every_variant
def test_a_compiled_opt_step_is_the_eager_one_within_rounding(variant: str) -> None:
    eager, fast = make_dqn(variant, batch_size=16), make_dqn(variant, compiled=True, batch_size=16)
    for step in range(3):
        rows = batch_of(16, seed=step).rows()
        expected, metrics = eager.opt_step(rows), fast.opt_step(rows)
        assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
            {k: float(v) for k, v in expected.items()}, rel=1e-3
        )
        for dqn in (eager, fast):
            dqn.player.opt_steps += 1


def test_an_observation_that_has_fractions_already_is_refused() -> None:
    spaces = {"fractions": Space((2,), torch.float32, padded=False)}
    with pytest.raises(ConfigError, match=r"players.player.algorithm.value: expected no entry 'fractions'"):
        seat(variant_config("implicit quantile"), spaces, Discrete(4))


# ---- transition builders -----------------------------------------------------------------------------------


def test_tails_wait_for_the_next_turn_and_are_part_of_the_state() -> None:
    """Sums of 3 after turns of 2 rounds: the first turn stores nothing, and all that is played waits."""
    probe = make_probe("identity", continuous=False)
    config = variant_config("n-step", updates_per_turn=1, warmup_env_steps=10**6)
    dqn, again = (seat(config, probe.spaces["agent"], probe.action_spaces["agent"]) for _ in range(2))
    turn = ProbeTurn(dqn, probe)
    turn.run()
    assert len(dqn.buffer) == 0
    again.load_state_dict(copy.deepcopy(dqn.state_dict()))
    turn.run()
    assert len(dqn.buffer) == 4 * NUM_WORLDS  # games end after 4 steps
    again.buffer.add(*stored(again.transition_builder(turn.collected[-1])))
    assert str(again.buffer.rows(0, 4 * NUM_WORLDS)) == str(dqn.buffer.rows(0, 4 * NUM_WORLDS))


def stored(rows: Transitions) -> tuple[dict[str, Tensor], Tensor]:
    return rows.rows(), rows.valid


def test_a_transition_builder_of_ones_own_makes_the_rows(in_tmp_path: Path) -> None:
    (in_tmp_path / "halves.py").write_text(
        "from palestra.config import PositiveFloat, UserConfig\n"
        "from palestra.rollouts.n_step import TransitionBuilder\n\n"
        "class Scaled(TransitionBuilder):\n"
        "    class Config(UserConfig):\n"
        "        scale: PositiveFloat\n"
        '        """of every reward"""\n\n'
        "    def __call__(self, experience):\n"
        "        experience.reward = experience.reward * self.config.scale\n"
        "        return experience\n"
    )
    probe = make_probe("endless", continuous=False)
    config = variant_config("plain", transitions={"name": "halves:Scaled", "scale": 0.5}, warmup_env_steps=10**6)
    dqn = seat(config, probe.spaces["agent"], probe.action_spaces["agent"])
    ProbeTurn(dqn, probe).run()
    assert (dqn.buffer.rows(0, 16)["reward"] == 0.5).all()
    assert user_class_hashes(config).keys() == {"halves:Scaled"}
    with pytest.raises(ConfigError, match=r"transitions.name: .*, got 'n_steps'; did you mean 'n_step'"):
        variant_config("plain", transitions={"name": "n_steps", "steps": 3})


# ---- games whose values are known --------------------------------------------------------------------------

KNOWN: dict[Kind, dict[tuple[float, float], float]] = {
    "delayed": {(1.0, 0.0): 0.8, (1.0, 1.0): 1.0},
    "both": {(1.0, 0.0): 1.0, (-1.0, 0.0): 1.0},
    "endless": {(1.0, 0.0): 5.0, (-1.0, 0.0): 5.0},
}


# A variant of two parts, each of which learns every probe alone, learns that in which the action must fit what is seen.
@pytest.mark.parametrize(
    ("variant", "kind"),
    [(variant, kind) for variant, parts in VARIANTS.items() for kind in KNOWN if len(parts) < 2 or kind == "both"],
)
def test_probe_games_are_learnt(variant: str, kind: Kind) -> None:
    probe = make_probe(kind, continuous=False)
    num_steps = 600 if "implicit" in variant else 400  # products of features and embeddings settle more slowly
    falling = {"name": "linear", "initial": 1e-2, "final": 1e-5, "num_steps": num_steps}
    config = variant_config(variant, learning_rate=falling)
    dqn = learn(seat(config, probe.spaces["agent"], probe.action_spaces["agent"]), probe, num_steps)
    for place, value in KNOWN[kind].items():
        with torch.no_grad():
            assert float(dqn.values(seen(*place)).max()) == pytest.approx(value, abs=1e-2)
        if kind == "both":
            assert best_action(dqn, *place) == (place[0] > 0)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head["name"])
def test_who_may_choose_between_a_risk_and_a_sure_reward_is_not_valued_too_high(
    head: dict[str, Any], double: bool
) -> None:
    """State 0 leads to state 1, where one action gives 0.55, the other 2 or -1, each as often. Before, whoever chose by
    the fractions that were drawn for the target, of which a few are large by chance, found a quarter too much."""
    table = [(0, 0, 0.0), (0, 1, 0.0), (1, 0, 0.55), (1, 0, 0.55), (1, 1, 2.0), (1, 1, -1.0)]
    state, action, reward = (torch.tensor(column) for column in zip(*(16 * table), strict=True))
    batch = Transitions(
        observation={"seen": torch.eye(2)[state]},
        action=action,
        reward=reward,
        next_observation={"seen": torch.eye(2)[torch.ones_like(state)]},
        next_legal=torch.ones(96, 2, dtype=torch.bool),
        terminated=state == 1,
        truncated=torch.zeros(96, dtype=torch.bool),
        valid=torch.ones(96, dtype=torch.bool),
        extras={},
        legal=torch.ones(96, 2, dtype=torch.bool),
    )
    falling = {"name": "linear", "initial": 1e-2, "final": 1e-4, "num_steps": 400}
    config = variant_config("plain", value=head, double=double, gamma=0.9, batch_size=96, learning_rate=falling)
    dqn = seat(config, SPACES, Discrete(2))
    rows = batch.rows()
    for _ in range(400):
        dqn.opt_step(rows)
        dqn.player.opt_steps += 1
    with torch.no_grad():
        assert dqn.values({"seen": torch.eye(2)})[0].tolist() == pytest.approx([0.495, 0.495], abs=0.03)
