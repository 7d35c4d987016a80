"""off_policy: Q-learning there makes the steps of dqn; a plain SAC of one's own has the gradient of sac; bad losses.

Covers palestra.algorithms.losses.off_policy_loss, palestra.algorithms.losses.q_learning.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import DQN, OFF_POLICY, PRIORITIZED
from conftest import TINY
from torch import Tensor, nn

import palestra
from palestra.algorithms.losses.loss import Critic, Head
from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss, ReplayBatch
from palestra.algorithms.off_policy import OffPolicy, OffPolicyConfig
from palestra.algorithms.parts.return_distributions import of_action
from palestra.algorithms.sac import SAC, SACConfig
from palestra.config import ConfigError, PositiveFloat, UserConfig, check
from palestra.games import make_game
from palestra.games.spaces import ActionSpace, Box, Discrete
from palestra.randomness import fold, random_normals
from palestra.run.branching import tree_differences
from palestra.storage.records_file import read_records
from palestra.testing import check_algorithm
from tests.algorithms.probing import best_action, learn, make_probe, seat, seen
from tests.algorithms.test_ppo import constant
from tests.algorithms.test_sac import BASE as SAC_BASE
from tests.algorithms.test_sac import SPACES, batch_of
from tests.algorithms.test_two_states import STATES, every_mode, falling, trained
from tests.algorithms.test_two_states import off_policy as of_two_states
from tests.gym_probes import two_states_backup
from tests.probes import Kind

Data = dict[str, Any]
HERE = __name__
MLP: Data = {"name": "mlp", "net_arch": [8], "activation": "tanh"}
CARTPOLE: Data = {
    "name": "cartpole",
    "max_rounds": 6,
    "initial_low": -0.2,
    "initial_high": 0.2,
    "sutton_barto_reward": False,
    "observation": {"normalize": None, "clip": None},
}
PENDULUM: Data = {
    "name": "pendulum",
    "max_rounds": 6,
    "g": 10.0,
    "initial_angle": 3.0,
    "initial_speed": 1.0,
    "observation": {"normalize": None, "clip": None},
}
BY_STATE: Data = {"name": "state_dependent_gaussian", "log_std": {"min": -5.0, "max": 2.0}}


def run_config(algorithm: Data, game: Data = CARTPOLE) -> Data:
    """A tiny run of one player in all roles."""
    roles = make_game(game).roles
    learner = {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    config = copy.deepcopy(TINY) | {"game": game, "roles": dict.fromkeys(roles, "one"), "players": {"one": learner}}
    config["evaluations"][0] |= {"pairings": [config["roles"]]}
    config["best"] |= {"pairing": 0, "measure": f"return/{roles[0]}"}
    config["execution"]["gradients"] = "autograd"
    return config


# ---- Q-learning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("double", "buffer", "steps", "interval"),
    [(True, {}, 1, 1), (False, {}, 3, 2), (True, {"replay_buffer": PRIORITIZED}, 3, 1)],
)
def test_q_learning_as_a_plug_in_makes_the_opt_steps_of_dqn(
    double: bool, buffer: Data, steps: int, interval: int, tmp_path: Path
) -> None:
    changes = buffer | {
        "transitions": {"name": "n_step", "steps": steps},
        "target": {"name": "polyak", "tau": 0.1, "interval": interval},
    }
    plug_in = OFF_POLICY | {"loss": OFF_POLICY["loss"] | {"double": double}} | changes
    trainers = [
        palestra.Trainer(run_config(algorithm), run=tmp_path / algorithm["name"])
        for algorithm in (DQN | {"double": double} | changes, plug_in)
    ]
    dqn, ours = (trainer.players["one"] for trainer in trainers)
    ours.nets["heads"].net_of("q").load_state_dict(dqn.nets["q"].state_dict())  # type: ignore[operator]
    ours.algorithm.follow(1.0)  # type: ignore[union-attr]
    for trainer in trainers:
        trainer.fit()
    assert dqn.opt_steps == ours.opt_steps > 0
    assert torch.equal(dqn.algorithm.online.weights, ours.algorithm.weights)  # type: ignore[union-attr]
    assert torch.equal(dqn.algorithm.target_net.weights, ours.algorithm.target_weights)  # type: ignore[union-attr]
    for one, other in zip(dqn.nets["q"].buffers(), ours.nets["heads"].buffers(), strict=True):
        assert torch.equal(one, other)  # statistics of batch norm
    records = [
        [record["players"]["one"] for record in read_records(tmp_path / name / "records.jsonl") if "players" in record]
        for name in ("dqn", "off_policy")
    ]
    assert records[0] == records[1]


# ---- a plain SAC -----------------------------------------------------------------------------------------


class PlainSAC(OffPolicyLoss):
    """SAC's three losses (Haarnoja et al. 2018) as one, for actions of a Box."""

    class Config(UserConfig):
        target_entropy: float
        """nats"""
        initial: PositiveFloat
        """temperature at the start"""

    heads = ("policy", Critic("critic_0"), Critic("critic_1"))
    acts_by = "policy"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.log_alpha = nn.Parameter(torch.tensor(config.initial).log())
        self.weights = nn.ParameterDict({"log_alpha": self.log_alpha})

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        alpha = self.log_alpha.detach().exp()
        action, log_prob = batch.next_sample()
        least = torch.minimum(*(batch.target_action_values(critic, action) for critic in ("critic_0", "critic_1")))
        self.value_target = batch.reward + batch.discount * (least - alpha * log_prob)
        values = [batch.action_values(critic, batch.action) for critic in ("critic_0", "critic_1")]
        self.errors = torch.stack(values) - self.value_target
        action, log_prob = batch.sample()
        least = torch.minimum(*(batch.fixed_action_values(critic, action) for critic in ("critic_0", "critic_1")))
        shortfall = -log_prob.detach().mean() - self.config.target_entropy
        return {
            "loss_critics": 0.5 * sum(batch.mean(error.square()) for error in self.errors),  # type: ignore[dict-item]
            "loss_policy": (alpha * log_prob - least).mean(),
            "loss_alpha": self.log_alpha * shortfall,
            "entropy": -log_prob.mean(),
        }

    def priorities(self, batch: ReplayBatch) -> Tensor:
        return self.errors.abs().mean(dim=0)


PLAIN_SAC: Data = OFF_POLICY | {
    "loss": {"name": f"{HERE}:PlainSAC", "target_entropy": -1.0, "initial": 0.5},
    "body": {"name": "separate"} | dict.fromkeys(("policy", "critic_0", "critic_1"), MLP),
    "box_actions": BY_STATE,
    "exploration": None,
}
BOX = Box((-2.0, 0.0), (1.0, 4.0))


def off_policy(actions: ActionSpace, **changes: Any) -> OffPolicy:
    made: OffPolicy = seat(check(OFF_POLICY | changes, OffPolicyConfig), SPACES, actions)
    return made


def sac_like(plug_in: OffPolicy, **changes: Any) -> SAC:
    """SAC with the weights of a plug-in that has its heads."""
    config = SAC_BASE | {"policy_net": MLP, "critic_net": MLP, "gamma": plug_in.config.gamma} | changes
    sac: SAC = seat(check(config, SACConfig), SPACES, plug_in.player.action_space)
    net: Any = plug_in.net
    sac.policy_net.net.load_state_dict(net.net_of("policy").state_dict())
    for number, (critic, target) in enumerate(zip(sac.critics.nets, sac.targets.nets, strict=True)):
        critic.load_state_dict(net.net_of(f"critic_{number}").state_dict())
        target.load_state_dict(net.net_of(f"critic_{number}").state_dict())
    return sac


def with_drawn_values(rows: Any, space: Box) -> Any:
    """Rows whose actions are those of values before a tanh, which a policy that draws them keeps."""
    low, high = torch.tensor(space.low), torch.tensor(space.high)
    unit = (2.0 * rows.action - high - low) / (high - low)
    rows.extras = {"sampled_action": torch.atanh(unit)}
    return rows


def test_a_plain_sac_as_a_loss_of_ones_own_has_the_gradient_of_sac() -> None:
    ours = off_policy(BOX, **{key: PLAIN_SAC[key] for key in ("loss", "body", "box_actions", "exploration")})
    sac, rows = sac_like(ours), with_drawn_values(batch_of(24, BOX), BOX)
    gradient, metrics, _ = ours.gradient(rows)
    keys = [fold(fold(fold(ours.key, 0), draw).expand(24).contiguous(), torch.arange(24)) for draw in range(2)]
    noise = [random_normals(each, 2) for each in keys]
    alpha = torch.tensor(0.5)
    of_critics, _, _ = sac.critic_gradient(rows, noise[0], alpha)
    of_policy, entropy, _ = sac.policy_gradient(rows, noise[1], alpha)
    of_alpha, _ = sac.coefficient_gradient(entropy, rows)
    torch.testing.assert_close(gradient, torch.cat([of_policy, of_critics, of_alpha]), rtol=1e-5, atol=1e-6)
    assert float(metrics["entropy"]) == pytest.approx(float(entropy), rel=1e-5)
    assert metrics.keys() == {"loss", "entropy"}


def test_weights_of_the_loss_are_learned_kept_and_clipped_with_the_others(tmp_path: Path) -> None:
    trainer = palestra.Trainer(run_config(PLAIN_SAC, PENDULUM), run=tmp_path / "run")
    loss: Any = trainer.players["one"].algorithm.loss  # type: ignore[union-attr]
    trainer.fit()
    learned = loss.log_alpha.detach()
    assert not torch.isclose(learned, torch.tensor(0.5).log())
    assert torch.equal(palestra.load_player(tmp_path / "run").nets["loss"].log_alpha, learned)


def test_policies_of_discrete_actions_are_drawn_by_key_and_scored() -> None:
    actions = Discrete(4)
    body = {"name": "separate", "policy": MLP, "value": MLP}
    ours = off_policy(actions, loss={"name": f"{HERE}:Cloning"}, body=body, exploration=None)
    rows = batch_of(200, actions)
    rows.extras = {"log_prob": torch.zeros(200)}
    batch = ours.batch(rows, 3)
    (first, log_prob), (second, _) = batch.sample(), batch.sample()
    assert bool(rows.legal.gather(1, first.unsqueeze(1)).all())
    assert not torch.equal(first, second)
    torch.testing.assert_close(log_prob, batch.distribution.log_prob(first))
    following, log_prob = batch.next_sample()
    assert not log_prob.requires_grad
    torch.testing.assert_close(log_prob, batch.next_distribution.log_prob(following))
    assert torch.equal(ours.batch(rows, 3).sample()[0], first)
    assert not torch.equal(ours.batch(rows, 4).sample()[0], first)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_who_draws_without_gradients_first_learns_from_the_distribution_afterwards(context: Any) -> None:
    body = {"name": "separate", "policy": MLP, "value": MLP}
    ours = off_policy(Discrete(4), loss={"name": f"{HERE}:Cloning"}, body=body, exploration=None)
    rows = batch_of(9, Discrete(4))
    rows.extras = {"log_prob": torch.zeros(9)}
    for ask in (
        lambda batch: batch.sample(),
        lambda batch: batch.distribution.entropy(),
        lambda batch: batch.outputs["value"],
    ):
        batch = ours.batch(rows, 0)
        with context():
            ask(batch)
        assert batch.distribution.log_prob(batch.action).requires_grad
        assert batch.outputs["policy"].requires_grad
        assert batch.outputs["value"].requires_grad
        assert batch.sample()[1].requires_grad


def test_what_a_batch_says_of_rows_that_ended() -> None:
    rows = batch_of(9, Discrete(4))  # a third each has terminated, was cut off, and goes on
    rows.extras = {"discount": torch.full((9,), 0.25)}
    batch = off_policy(Discrete(4)).batch(rows, 0)
    assert batch.discount.tolist() == [0.0, 0.25, 0.25] * 3
    assert bool(batch.next_legal[rows.terminated].all())
    assert torch.equal(batch.next_legal[~rows.terminated], rows.next_legal[~rows.terminated])
    assert batch.weight.tolist() == [1.0] * 9
    assert not batch.next_outputs["q"].requires_grad
    assert not batch.target_outputs["q"].requires_grad
    assert batch.outputs["q"].requires_grad


# ---- known values -----------------------------------------------------------------------------------------

KNOWN: dict[Kind, dict[tuple[float, float, int], float]] = {  # sign, age, action to its value with gamma 0.8
    "constant": {(1, 0, 1): 1.0},
    "observation": {(1, 0, 1): 1.0, (-1, 0, 1): -1.0},
    "delayed": {(1, 0, 1): 0.8, (1, 1, 1): 1.0},
    "two_step": {(1, 0, 1): 0.8, (1, 0, 0): -0.8},
    "both": {(1, 0, 1): 1.0, (-1, 0, 1): -1.0},
    "endless": {(1, 0, 1): 5.0, (-1, 0, 0): 5.0},  # cut off after four steps: who takes that for an end is far off
}


@pytest.mark.parametrize("kind", KNOWN)
def test_probe_games_are_learnt_to_their_known_values(kind: Kind) -> None:
    probe = make_probe(kind, continuous=False)
    num_steps = 600 if kind == "endless" else 300  # values far from 0 settle more slowly
    config = OFF_POLICY | {
        "gamma": 0.8,
        "updates_per_turn": 2,
        "warmup_env_steps": 200,
        "batch_size": 64,
        "body": {"name": "shared", "net": {"name": "mlp", "net_arch": [32, 32], "activation": "relu"}},
        "learning_rate": falling(5e-3, num_steps),
        "learning_rate_factors": {},
        "exploration": {"name": "epsilon_greedy", "epsilon": constant(0.5)},
        "replay_buffer": OFF_POLICY["replay_buffer"] | {"capacity": 10_000},
    }
    made = seat(check(config, OffPolicyConfig), probe.spaces["agent"], probe.action_spaces["agent"])
    algorithm: OffPolicy = learn(made, probe, num_steps)
    for (sign, age, action), value in KNOWN[kind].items():
        assert float(algorithm.values(seen(sign, age))[0, action]) == pytest.approx(value, abs=2e-2)
    if kind == "both":
        assert (best_action(algorithm, 1, 0), best_action(algorithm, -1, 0)) == (1, 0)


@every_mode
def test_what_is_cut_off_is_not_taken_for_an_end(mode: str, tmp_path: Path) -> None:
    common = of_two_states({"name": "mlp", "net_arch": [], "activation": "relu"}, 0.1)
    algorithm = {key: value for key, value in common.items() if key in OFF_POLICY} | {
        "name": "off_policy",
        "loss": {"name": "q_learning", "double": False, "huber_delta": 100.0},
        "body": {"name": "separate", "q": {"name": "mlp", "net_arch": [], "activation": "relu"}},
        "initialization": {"name": "stock"},
        "box_actions": None,
        "exploration": {"name": "epsilon_greedy", "epsilon": constant(1.0)},
        "evaluation": "deterministic",
        "optimizer": common["critic_optimizer"],
        "learning_rate": falling(0.1),
        "learning_rate_factors": {},
    }
    player = trained(algorithm, "TwoStates", mode, tmp_path / "run")
    q = torch.zeros(2, 2).numpy()
    for _ in range(500):
        q = two_states_backup(q.max(axis=1), 0.9)
    learned: Any = player.algorithm
    assert learned.values(STATES).numpy() == pytest.approx(q, abs=2e-2)


# ---- how it plays and is kept ------------------------------------------------------------------------------


def test_evaluations_play_the_best_action_or_one_as_in_roll_outs() -> None:
    keys, legal = torch.arange(400), torch.ones(400, 4, dtype=torch.bool)
    view = {"seen": torch.randn(1, 3).expand(400, 3)}
    for evaluation in ("deterministic", "sampled"):
        ours = off_policy(Discrete(4), evaluation=evaluation)
        played = ours.policy(explore=False).act(view, legal, keys, {}).action
        assert (len(played.unique()) == 1) == (evaluation == "deterministic")
        assert len(ours.policy(explore=True).act(view, legal, keys, {}).action.unique()) == 4
        best = ours.values(view)[0].argmax()
        assert bool((ours.predictor(deterministic=True).act(view, legal, keys, {}).action == best).all())
        what, values = ours.choice_values(view, legal, {})  # type: ignore[misc]
        assert (what, int(values[0].argmax())) == ("value", int(best))
    sampled = off_policy(Discrete(4), evaluation="sampled")
    with pytest.raises(NotImplementedError, match="evaluation: expected 'deterministic'"):
        sampled.module()


@pytest.mark.parametrize("body", ["shared", "separate"])
def test_an_exported_module_plays_as_the_player_does(body: str) -> None:
    nets = {"name": "shared", "net": MLP} if body == "shared" else {"name": "separate", "q": MLP, "skill": MLP}
    ours = off_policy(Discrete(4), loss={"name": f"{HERE}:Skills"}, body=nets)
    view, legal = {"seen": torch.randn(20, 3)}, torch.rand(20, 4) < 0.7
    legal[:, 0] = True
    action, values = ours.module()(view, legal)
    torch.testing.assert_close(values, ours.values(view), rtol=1e-5, atol=1e-6)
    assert torch.equal(action, ours.policy(explore=False).act(view, legal, torch.arange(20), {}).action)


def test_a_warm_start_takes_the_heads_and_targets_begin_as_copies() -> None:
    one, other = (
        off_policy(BOX, **{k: PLAIN_SAC[k] for k in ("loss", "body", "box_actions", "exploration")}) for _ in range(2)
    )
    with torch.no_grad():
        one.weights.add_(1.0)
    other.warm_start({name: net.state_dict() for name, net in one.player.nets.items()})
    num = len(other.target_weights)
    assert torch.equal(other.weights[:num], one.weights[:num])
    assert torch.equal(other.target_weights, other.weights[:num])
    assert not torch.equal(other.weights[num:], one.weights[num:])  # the temperature begins anew
    with pytest.raises(ValueError, match="but no heads"):
        other.warm_start({"q": {}})


def test_factors_go_by_the_names_of_weights_those_of_the_loss_too(tmp_path: Path) -> None:
    config = PLAIN_SAC | {"learning_rate_factors": {"critic_*": 0.0, "loss.log_alpha": 0.0}}
    trainer = palestra.Trainer(run_config(config, PENDULUM), run=tmp_path / "run")
    player = trainer.players["one"]
    before = {name: copy.deepcopy(net.state_dict()) for name, net in player.nets.items()}
    trainer.fit()
    after = {name: net.state_dict() for name, net in player.nets.items()}
    changed = {change.key for change in tree_differences(before, after)}
    assert changed
    assert all(name.startswith(("heads.policy", "target.policy")) for name in changed)
    with pytest.raises(ConfigError, match=r"learning_rate_factors.value\.\*: expected weights among .*loss.log_alpha"):
        palestra.Trainer(run_config(PLAIN_SAC | {"learning_rate_factors": {"value.*": 1.0}}, PENDULUM))


def test_loss_trainer_trains_players_that_learn_by_a_loss_alone(tmp_path: Path) -> None:
    palestra.LossTrainer(run_config(OFF_POLICY), run=tmp_path / "run").fit()
    with pytest.raises(ConfigError, match="expected 'on_policy' or 'off_policy', got 'dqn'"):
        palestra.LossTrainer(run_config(DQN))


def test_it_goes_on_from_every_safe_point_and_equal_seeds_give_equal_bits() -> None:
    short = {"warmup_env_steps": 4, "transitions": {"name": "n_step", "steps": 2}, "replay_buffer": PRIORITIZED}
    check_algorithm(OffPolicy, OFF_POLICY | short, CARTPOLE)
    check_algorithm(OffPolicy, PLAIN_SAC | short, PENDULUM)


# ---- losses of one's own -----------------------------------------------------------------------------------


class Own(OffPolicyLoss):
    """Base of those below: a sound loss."""

    heads: Any = ("q",)
    acts_by = "q"

    class Config(UserConfig):
        pass

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        target = batch.reward + batch.discount * batch.target_outputs["q"].amax(dim=1)
        return {"loss_td": batch.mean((of_action(batch.outputs["q"], batch.action) - target).square())}


class Counting(Own):
    """Counts its calls, and draws a number in each."""

    calls = 0

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        self.calls += 1
        return {**super().terms(batch), "drawn": torch.rand(())}

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Cloning(OffPolicyLoss):
    """Behaviour cloning, with a value of what was earned at once."""

    heads = ("policy", "value")
    acts_by = "policy"

    class Config(UserConfig):
        pass

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        error = (batch.outputs["value"][:, 0] - batch.reward).square()
        return {"loss_policy": -batch.mean(batch.distribution.log_prob(batch.action)), "loss_value": batch.mean(error)}


class Skills(Own):
    heads = ("q", Head("skill", 3))

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        return super().terms(batch) | {"loss_skill": batch.outputs["skill"].square().mean()}


class NoLoss(Own):
    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        return {"q": batch.outputs["q"].mean()}


class UnnamedHead(Own):
    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        return {"loss_policy": batch.outputs["policy"].mean()}


class UnusedHead(Own):
    heads = ("q", "value")


class CannotAct(Own):
    heads = ("value",)


class TooFew(Own):
    heads = ("q", Head("skill", 3))
    acts_by = "skill"


class ActsByNothing(OffPolicyLoss):
    heads = ("q",)

    class Config(UserConfig):
        pass

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        return {"loss_q": batch.mean(batch.outputs["q"].sum(dim=1) - batch.advantage)}


class WantsAdvantages(ActsByNothing):
    acts_by = "q"


class RowsOfPriorities(Own):
    def priorities(self, batch: ReplayBatch) -> Tensor:
        return batch.outputs["q"]


class ReadsCritic(PlainSAC):
    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        return {"loss_critic": batch.outputs["critic_0"].mean()}


class NoCritic(Own):
    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        return {"loss_q": batch.action_values("q", batch.action).mean()}


CRITICS = {key: PLAIN_SAC[key] for key in ("loss", "body", "box_actions", "exploration")}
BAD: dict[str, tuple[Data, Data, str]] = {
    "no loss_*": ({"loss": {"name": f"{HERE}:NoLoss"}}, CARTPOLE, "loss.name: .* expected at least one named loss_"),
    "a head it did not name": (
        {"loss": {"name": f"{HERE}:UnnamedHead"}},
        CARTPOLE,
        r"loss.name: .* uses the head 'policy', which its `heads` \(q\) do not name",
    ),
    "a head it does not learn": (
        {"loss": {"name": f"{HERE}:UnusedHead"}, "body": {"name": "separate", "q": MLP, "value": MLP}},
        CARTPOLE,
        "loss.name: .* names heads of which it learns nothing: no loss_.* depends on the weights heads.value",
    ),
    "no head to act by": (
        {"loss": {"name": f"{HERE}:CannotAct"}},
        CARTPOLE,
        "loss.name: expected the head 'q', by which the player acts, got value",
    ),
    "a head with too few outputs to act by": (
        {"loss": {"name": f"{HERE}:TooFew"}, "body": {"name": "shared", "net": MLP}},
        CARTPOLE,
        "loss.name: expected a value for each of 2 actions of the head 'skill', by which the player acts, got 3",
    ),
    "nothing to act by": (
        {"loss": {"name": f"{HERE}:ActsByNothing"}},
        CARTPOLE,
        "loss.name: .* has no acts_by; expected the name of the head by which the player acts",
    ),
    "what a batch does not have": (
        {"loss": {"name": f"{HERE}:WantsAdvantages"}},
        CARTPOLE,
        "loss.name: .* a batch has no 'advantage'; it has observation, .* reward, ",
    ),
    "priorities that it has not": (
        {"loss": {"name": f"{HERE}:Own"}, "replay_buffer": PRIORITIZED},
        CARTPOLE,
        "replay_buffer.name: expected uniform .*no `priorities`.*, got 'prioritized'",
    ),
    "priorities of another shape": (
        {"loss": {"name": f"{HERE}:RowsOfPriorities"}, "replay_buffer": PRIORITIZED},
        CARTPOLE,
        r"loss.name: .* gives priorities of shape \(3, 2\); expected one of each row",
    ),
    "no target networks": ({"target": None}, CARTPOLE, "loss.name: .* asks for target networks.*`target` is null"),
    "values of actions that nobody reads": (
        {"loss": {"name": f"{HERE}:NoCritic"}},
        CARTPOLE,
        "loss.name: .* values of actions by the head 'q', which its `heads` name no Critic",
    ),
    "outputs of a critic": (
        CRITICS | {"loss": PLAIN_SAC["loss"] | {"name": f"{HERE}:ReadsCritic"}},
        PENDULUM,
        "loss.name: .* asks for the outputs of 'critic_0', which observes actions",
    ),
    "critics of discrete actions": (
        CRITICS | {"box_actions": None},
        CARTPOLE,
        "loss.name: expected Box actions .*, whose critics observe them, got Discrete",
    ),
    "values of a box": ({}, PENDULUM, "loss.name: expected Discrete actions for the loss 'q_learning', .* got Box"),
    "critics in a shared network": (
        CRITICS | {"body": {"name": "shared", "net": MLP}},
        PENDULUM,
        r"body.name: expected 'separate' \(the head 'critic_0' observes actions.*\), got 'shared'",
    ),
    "exploration beside a policy": (
        CRITICS | {"exploration": OFF_POLICY["exploration"]},
        PENDULUM,
        "exploration: expected null .*head 'policy'.*, got 'epsilon_greedy'",
    ),
    "values without exploration": (
        {"exploration": None},
        CARTPOLE,
        "exploration: expected epsilon_greedy or softmax .*the values of the head 'q'.*, got null",
    ),
    "a recurrent network": (
        {
            "body": {
                "name": "separate",
                "q": {
                    "name": "recurrent",
                    "encoder": MLP,
                    "encoder_width": 4,
                    "cell": "gru",
                    "hidden_size": 4,
                    "net_arch": [],
                    "activation": "tanh",
                },
            }
        },
        CARTPOLE,
        "body.q: expected a network without a memory, got a recurrent one",
    ),
    "a body without a head": (
        {"body": {"name": "separate"}},
        CARTPOLE,
        "body.q: expected a network for the head 'q', but the key is missing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_loss_is_one_line_before_anything_is_played(name: str, tmp_path: Path) -> None:
    changes, game, message = BAD[name]
    with pytest.raises(ConfigError, match=f"players.one.algorithm.{message}") as caught:
        palestra.Trainer(run_config(OFF_POLICY | changes, game), run=tmp_path / "run")
    assert len(caught.value.errors) == 1
    assert not (tmp_path / "run").exists()


def test_a_trial_leaves_no_trace() -> None:
    ours = off_policy(
        Discrete(4), body={"name": "separate", "q": {"name": "mlp", "net_arch": [8, "b"], "activation": "relu"}}
    )
    norms = [module for module in ours.net.modules() if isinstance(module, nn.BatchNorm1d)]
    assert norms
    assert all(int(norm.num_batches_tracked) == 0 for norm in norms)  # type: ignore[arg-type]
    assert ours.net.training
    before = torch.get_rng_state()
    counting = off_policy(Discrete(4), loss={"name": f"{HERE}:Counting"})
    assert torch.equal(before, torch.get_rng_state())
    assert counting.loss.state_dict() == {"calls": 0}


def test_a_policy_may_learn_from_memory_what_it_did(tmp_path: Path) -> None:
    """Without target networks, and of the values before a box clipped them."""
    for game, box in ((CARTPOLE, None), (PENDULUM, {"name": "clipped_gaussian", "initial_log_std": -0.5})):
        algorithm = OFF_POLICY | {
            "loss": {"name": f"{HERE}:Cloning"},
            "body": {"name": "separate", "policy": MLP, "value": MLP},
            "box_actions": box,
            "exploration": None,
            "target": None,
        }
        trainer = palestra.Trainer(run_config(algorithm, game), run=tmp_path / game["name"])
        player = trainer.players["one"]
        before = copy.deepcopy(player.nets["heads"].state_dict())
        trainer.fit()
        assert list(player.nets) == ["heads"]
        assert len(list(tree_differences(before, player.nets["heads"].state_dict()))) == len(before)
        assert player.replay_buffer is not None
        assert ("extras.sampled_action" in player.replay_buffer.sample(4)) == (box is not None)
