"""TorchRL's losses and value estimators: the gradients of ours, exact resumes, what they learn, what is refused.

Covers palestra.algorithms.losses.torchrl, palestra.algorithms.losses.torchrl_modules.
"""

import json
import math
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import DQN, OFF_POLICY, ON_POLICY, PRIORITIZED, RECURRENT, TORCHRL_SAC
from torch import Tensor

import palestra
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.losses.loss import Critic, LossBatch
from palestra.algorithms.losses.torchrl import TorchRLLoss, TorchRLLossConfig, TorchRLReplayLoss
from palestra.algorithms.off_policy import OffPolicy, OffPolicyConfig
from palestra.algorithms.on_policy import OnPolicy, OnPolicyConfig
from palestra.algorithms.parts.advantages import Sequences
from palestra.algorithms.parts.estimators import GAEConfig, TDLambdaConfig, TorchRLEstimatorConfig, torchrl_module
from palestra.config import ConfigError, PositiveFloat, UserConfig, check
from palestra.games.spaces import Discrete
from palestra.players.player import Player
from palestra.randomness import base_key, seeded_global_state
from palestra.storage.records_file import read_records
from palestra.storage.stored_files import encode
from palestra.testing import check_algorithm
from tests.algorithms.probing import CPU, best_action, learn, make_probe, seat, seen
from tests.algorithms.test_off_policy import (
    BOX,
    CARTPOLE,
    MLP,
    PENDULUM,
    off_policy,
    run_config,
    sac_like,
    with_drawn_values,
)
from tests.algorithms.test_ppo import ACTIONS, SPACES, each_action, prepared
from tests.algorithms.test_ppo import BASE as PPO_BASE
from tests.algorithms.test_sac import SPACES as SAC_SPACES
from tests.algorithms.test_sac import batch_of
from tests.algorithms.test_two_states import falling
from tests.forked import run as run_forked

if find_spec("torchrl") is None:
    pytest.skip("torchrl is not installed", allow_module_level=True)
objectives = torchrl_module("torchrl.objectives")
Data = dict[str, Any]
HERE = __name__
NIM: Data = {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": {"normalize": None, "clip": None}}
SEPARATE: Data = {"body": {"name": "separate", "policy": MLP, "value": MLP}}


def loss_of(cls: str, **arguments: Any) -> Data:
    """The loss module of that name, with TorchRL's own values for all other arguments."""
    name = f"torchrl.objectives:{cls}"
    said = TorchRLLossConfig.parameters(getattr(objectives, cls)).values()
    usual = {each.name: None if each.default is each.empty else each.default for each in said}
    usual = {key: list(value) if isinstance(value, tuple) else value for key, value in usual.items()}
    return {"loss": {"name": name, "arguments": usual | arguments}}


def estimator_of(cls: str, **arguments: Any) -> Data:
    return {"estimator": {"name": f"torchrl.objectives.value:{cls}", "arguments": arguments}}


GAE: Data = estimator_of("GAE", gamma=0.95, lmbda=0.9, average_gae=False, vectorized=None)
DQN_LOSS: Data = loss_of("DQNLoss", loss_function="smooth_l1", double_dqn=True)
DISCRETE_SAC: Data = {
    **loss_of("DiscreteSACLoss", loss_function="l2", deactivate_vmap=True),
    "body": TORCHRL_SAC["body"],
    "exploration": None,
}


# ---- the gradients of ours -----------------------------------------------------------------------------


@each_action
@pytest.mark.parametrize("setting", ["as it is", "plain advantages", "shared body", "clipped value"])
def test_clip_ppo_loss_has_the_gradient_of_ppo(actions: str, setting: str) -> None:
    """On minibatches in which a fifth of the rows does not count."""
    ppo = prepared(actions, setting, by_hand=False)
    space, changes = ACTIONS[actions]
    config = {key: value for key, value in ON_POLICY.items() if key not in ("loss", "estimator")} | {
        **{key: getattr(ppo.config, key) for key in ("normalize_advantages",)},
        **loss_of(
            "ClipPPOLoss",
            clip_epsilon=0.2,
            entropy_coeff=0.01,
            critic_coeff=0.5,
            loss_critic_type="l2",
            clip_value=ppo.config.value_clip,
        ),
        **{"estimator": ON_POLICY["estimator"], "body": ppo.config.body.model_dump(), "box_actions": None},
        **changes,
    }
    player = Player("player", ("agent",), SPACES, space, CPU, seed=1, compile=False, by_hand=False)
    ours = OnPolicy(check(config, OnPolicyConfig), player)
    names = {name.replace("value.", "value."): value for name, value in ppo.net.state_dict().items()}
    ours.net.load_state_dict(names)
    for index in torch.arange(300).split(100):
        batch = ppo.passes.experience.minibatch(index)
        assert 0 < int((batch.weight == 0).sum()) < 100
        expected, _ = ppo.gradient(batch, torch.tensor(0.2), torch.tensor(0.0), torch.tensor(0.01))
        gradient, metrics = ours.gradient(batch)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
        assert {"clip_fraction", "kl_approx", "entropy", "ESS"} <= metrics.keys()
        of_parts = sum(float(value) for name, value in metrics.items() if name.endswith("_loss"))
        assert of_parts == pytest.approx(float(metrics["loss"]), rel=1e-4)


def test_rows_that_do_not_count_never_reach_the_module_and_a_minibatch_of_them_alone_teaches_nothing() -> None:
    ppo = prepared("discrete", "as it is", by_hand=False)
    config = ON_POLICY | loss_of("ClipPPOLoss") | {"body": ppo.config.body.model_dump()}
    player = Player("player", ("agent",), SPACES, Discrete(3), CPU, seed=1, compile=False, by_hand=False)
    ours = OnPolicy(check(config, OnPolicyConfig), player)
    ours.net.load_state_dict(ppo.net.state_dict())
    batch = ppo.passes.experience.minibatch(torch.arange(100))
    before, metrics = ours.gradient(batch)
    spoilt = batch.weight == 0
    wrong = batch._replace(
        observation={name: entry.masked_fill(spoilt.view(-1, 1), 1e6) for name, entry in batch.observation.items()},
        log_prob=batch.log_prob.masked_fill(spoilt, -50.0),
        advantage=batch.advantage.masked_fill(spoilt, 1e6),
        value_target=batch.value_target.masked_fill(spoilt, 1e6),
    )
    after, same = ours.gradient(wrong)
    assert torch.equal(before, after)
    assert {name: float(value) for name, value in metrics.items()} == {name: float(v) for name, v in same.items()}
    nothing, metrics = ours.gradient(batch._replace(weight=torch.zeros(100)))
    assert float(nothing.abs().max()) == float(metrics["loss"]) == 0.0


def dqn_of(plug_in: OffPolicy, double: bool, replay: Data | None = None) -> Any:
    keys = {key: value for key, value in DQN.items() if key != "net"}
    replays = {} if replay is None else {"replay_buffer": replay}
    config = check(keys | {"double": double, "net": MLP} | replays, DQNConfig)
    dqn = seat(config, SAC_SPACES, plug_in.player.action_space)
    for net in (dqn.online.net, dqn.target_net.net):
        net.load_state_dict(plug_in.net.net_of("q").state_dict())
    with torch.no_grad():
        dqn.target_net.weights.add_(0.1)
    return dqn


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
def test_dqn_loss_has_the_gradient_of_dqn(double: bool, steps: int) -> None:
    """With rows of one step and of several, with illegal actions, and with a target network of its own."""
    arguments = DQN_LOSS["loss"]["arguments"] | {"double_dqn": double}
    loss = {"loss": DQN_LOSS["loss"] | {"arguments": arguments}}
    ours = off_policy(Discrete(4), **loss, body={"name": "separate", "q": MLP})
    dqn, rows = dqn_of(ours, double), batch_of(30, Discrete(4))
    for _, target in ours.loss.module.target_value_network_params.items(True, True):  # type: ignore[attr-defined]
        target.data.add_(0.1)
    if steps > 1:
        rows.extras = {"discount": ours.config.gamma ** torch.randint(1, steps + 1, (30,)).float()}
    gradient, metrics, _ = ours.gradient(rows)
    expected, same, _ = dqn.gradient(rows)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert float(metrics["loss"]) == pytest.approx(float(same["loss"]), rel=1e-5)


def test_dqn_loss_weighs_rows_and_gives_priorities_as_dqn_does() -> None:
    replay = PRIORITIZED
    loss = {"loss": DQN_LOSS["loss"]}
    ours = off_policy(Discrete(4), **loss, body={"name": "separate", "q": MLP}, replay_buffer=replay)
    dqn, rows = dqn_of(ours, True, replay), batch_of(30, Discrete(4))
    for _, target in ours.loss.module.target_value_network_params.items(True, True):  # type: ignore[attr-defined]
        target.data.add_(0.1)
    rows.extras["weight"] = torch.linspace(0.1, 1.0, 30)
    gradient, metrics, priorities = ours.gradient(rows)
    expected, same, wanted = dqn.gradient(rows)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert float(metrics["loss"]) == pytest.approx(float(same["loss"]), rel=1e-5)
    assert priorities is not None
    torch.testing.assert_close(priorities, wanted.abs(), rtol=1e-4, atol=1e-5)


def drawn(algorithm: OffPolicy, num: int) -> list[Tensor]:
    """The noise that the module draws in the first opt step: for the actions in targets, and for the policy's."""
    player = algorithm.player
    with seeded_global_state(base_key(player.seed, f"player/{player.name}/torchrl/0")):
        return [torch.randn(num, 2) for _ in range(2)]


@pytest.mark.parametrize("fixed", [False, True])
def test_sac_loss_has_the_gradient_of_sac(fixed: bool) -> None:
    """TorchRL's squared error of the critics has no factor 1/2."""
    arguments = TORCHRL_SAC["loss"]["arguments"] | {"fixed_alpha": fixed, "target_entropy": -1.0}
    ours = off_policy(BOX, **TORCHRL_SAC | {"loss": TORCHRL_SAC["loss"] | {"arguments": arguments}})
    sac, rows = sac_like(ours), with_drawn_values(batch_of(24, BOX), BOX)
    gradient, metrics, _ = ours.gradient(rows)
    noise, alpha = drawn(ours, 24), torch.tensor(0.5)
    of_critics, _, _ = sac.critic_gradient(rows, noise[0], alpha)
    of_policy, entropy, _ = sac.policy_gradient(rows, noise[1], alpha)
    of_alpha, _ = sac.coefficient_gradient(entropy, rows)
    expected = torch.cat([of_policy, 2.0 * of_critics, *([] if fixed else [of_alpha])])
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(float(entropy), rel=1e-5)
    assert float(metrics["alpha"]) == pytest.approx(0.5)


def test_discrete_sac_loss_has_the_gradient_of_sac() -> None:
    ours = off_policy(Discrete(4), **DISCRETE_SAC)
    sac, rows = sac_like(ours, log_std=None), batch_of(24, Discrete(4))
    gradient, _, _ = ours.gradient(rows)
    alpha, noise = torch.tensor(1.0), torch.zeros(24, 0)
    of_critics, _, _ = sac.critic_gradient(rows, noise, alpha)
    of_policy, _, _ = sac.policy_gradient(rows, noise, alpha)
    expected = torch.cat([of_policy, 2.0 * of_critics])
    torch.testing.assert_close(gradient[:-1], expected, rtol=1e-4, atol=1e-5)


# ---- value estimators ----------------------------------------------------------------------------------


def some_sequences(seed: int, all_count: bool, T: int = 9, W: int = 4) -> Sequences:
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, T, W, generator=generator)
    kind = torch.randint(0, 5, (T, W), generator=generator)
    valid = torch.ones(T, W, dtype=torch.bool) if all_count else torch.rand(T, W, generator=generator) < 0.6
    return Sequences(reward, value, next_value, kind == 0, kind == 1, valid)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("vectorized", "all_count"), [(True, True), (False, True), (True, False), (False, False)])
def test_its_value_estimators_find_what_ours_find(seed: int, vectorized: bool, all_count: bool) -> None:
    """Also where some rows do not count, as in games of several roles."""
    sequences = some_sequences(seed, all_count)
    gae = GAEConfig(name="gae", gamma=0.9, gae_lambda=0.7).build().estimate(sequences)
    arguments = {"gamma": 0.9, "lmbda": 0.7, "vectorized": vectorized}
    theirs = estimator("GAE", average_gae=False, **arguments).estimate(sequences)
    td_lambda = TDLambdaConfig(name="td_lambda", gamma=0.9, td_lambda=0.7).build().estimate(sequences)
    of_lambda = estimator("TDLambdaEstimator", average_rewards=False, **arguments).estimate(sequences)
    for found, expected in ((theirs, gae), (of_lambda, td_lambda)):
        for one, other in zip(found, expected, strict=True):
            valid = sequences.valid
            torch.testing.assert_close(one[valid], other[valid], rtol=1e-4, atol=1e-5)
    for cls, factor in (("TD0Estimator", 0.0), ("TD1Estimator", 1.0)):
        found = estimator(cls, gamma=0.9, average_rewards=False).estimate(sequences)
        expected = TDLambdaConfig(name="td_lambda", gamma=0.9, td_lambda=factor).build().estimate(sequences)
        torch.testing.assert_close(found[1][valid], expected[1][valid], rtol=1e-4, atol=1e-5)


def estimator(cls: str, **arguments: Any) -> Any:
    return check(estimator_of(cls, **arguments)["estimator"], TorchRLEstimatorConfig).build()


# ---- as any other loss -----------------------------------------------------------------------------------

EVERY: dict[str, tuple[Any, Data, Data]] = {
    "ClipPPOLoss": (OnPolicy, ON_POLICY | loss_of("ClipPPOLoss") | GAE, CARTPOLE),
    "KLPENPPOLoss": (OnPolicy, ON_POLICY | loss_of("KLPENPPOLoss", delay_actor=True) | SEPARATE, CARTPOLE),
    "DQNLoss": (
        OffPolicy,
        OFF_POLICY
        | DQN_LOSS
        | {"body": {"name": "separate", "q": MLP}, "replay_buffer": PRIORITIZED}
        | {"transitions": {"name": "n_step", "steps": 2}, "target": {"name": "polyak", "tau": 0.5, "interval": 3}},
        CARTPOLE,
    ),
    "SACLoss": (OffPolicy, OFF_POLICY | TORCHRL_SAC, PENDULUM),
    "DiscreteSACLoss": (
        OffPolicy,
        OFF_POLICY
        | DISCRETE_SAC
        | loss_of("DiscreteSACLoss", deactivate_vmap=True, alpha_init=0.5, min_alpha=0.45, max_alpha=0.55),
        CARTPOLE,
    ),
}


@pytest.mark.parametrize("cls", EVERY)
def test_it_goes_on_from_every_safe_point_and_equal_seeds_give_equal_bits(cls: str) -> None:
    algorithm, config, game = EVERY[cls]
    check_algorithm(algorithm, config | ({"warmup_env_steps": 4} if algorithm is OffPolicy else {}), game)


def test_every_loss_on_roll_outs_is_trained(tmp_path: Path) -> None:
    for cls, game in (("PPOLoss", CARTPOLE), ("A2CLoss", NIM), ("ReinforceLoss", CARTPOLE)):
        passes = {"num_passes": 2 if cls == "PPOLoss" else 1}
        trainer = palestra.Trainer(run_config(ON_POLICY | loss_of(cls) | SEPARATE | passes, game), run=tmp_path / cls)
        trainer.fit()
        records = [
            record["players"]["one"] for record in read_records(tmp_path / cls / "records.jsonl") if "players" in record
        ]
        assert trainer.opt_steps == 24
        assert all(torch.isfinite(torch.tensor(record["loss"])) for record in records)


def test_target_networks_are_in_the_state_and_follow_at_their_interval() -> None:
    target = {"name": "polyak", "tau": 0.25, "interval": 2}
    ours = off_policy(BOX, **TORCHRL_SAC, target=target, warmup_env_steps=0, batch_size=8)
    state = ours.state_dict()["loss"]
    names = [name for name in state if name.startswith("target_qvalue_network_params.")]
    assert len(names) == len(list(ours.net.net_of("critic_0").parameters()))
    tensors: dict[str, Tensor] = {}
    encode(state, "", tensors)
    assert all(name.replace(".", "").replace("_", "").replace("/", "").isalnum() for name in tensors)
    rows = with_drawn_values(batch_of(8, BOX), BOX).rows()
    places = [name.partition("module.outputs.net.")[2] for name in names]
    before = {name: state[name].clone() for name in names}
    for step in range(2):
        ours.opt_step(rows)
        ours.player.opt_steps += 1
        for name, place in zip(names, places, strict=True):
            new = torch.stack([ours.net.net_of(f"critic_{i}").get_parameter(place).detach() for i in range(2)])
            expected = before[name] if step == 0 else before[name].lerp(new, 0.25)
            assert torch.equal(ours.state_dict()["loss"][name], expected)
            assert not torch.equal(new, before[name])


def test_targets_begin_as_copies_of_the_player_s_own_networks() -> None:
    ours: Any = off_policy(BOX, **TORCHRL_SAC)
    targets = ours.loss.module.target_qvalue_network_params
    for place, weight in ours.net.net_of("critic_0").named_parameters():
        other = ours.net.net_of("critic_1").get_parameter(place)
        key = ("module", "outputs", "net", *place.split("."))
        assert torch.equal(targets.get(key), torch.stack([weight.data, other.data]))


def kl_penalty(**arguments: Any) -> Any:
    config = ON_POLICY | loss_of("KLPENPPOLoss", delay_actor=True, **arguments) | SEPARATE
    player = Player("player", ("agent",), SPACES, Discrete(3), CPU, seed=1, compile=False, by_hand=False)
    return OnPolicy(check(config, OnPolicyConfig), player)


def test_a_coefficient_of_a_loss_begins_anew_in_a_branch_that_gives_it_another_value() -> None:
    before = kl_penalty()
    before.loss.module.beta.fill_(8.0)  # as it adapts
    for arguments, expected in (({}, 8.0), ({"beta": 3.0}, 3.0), ({"dtarg": 0.5}, 8.0)):
        branch = kl_penalty(**arguments)
        branch.load_state_dict(before.state_dict())
        assert branch.loss.module.beta == expected
        assert float(branch.loss.module.dtarg) == pytest.approx(arguments.get("dtarg", 0.01))


def test_the_target_of_delay_actor_is_the_policy_that_collected() -> None:
    ours = kl_penalty()
    module = ours.loss.module
    with torch.no_grad():
        ours.weights.add_(0.5)
    pairs = [
        (old, module.actor_network_params.get(key)) for key, old in module.target_actor_network_params.items(True, True)
    ]
    assert pairs
    assert not any(torch.equal(old, new) for old, new in pairs)
    ours.loss.before_turn()
    assert all(torch.equal(old, new) for old, new in pairs)


def test_a_temperature_beyond_its_bounds_comes_back_into_the_player_s_weights() -> None:
    _, config, _ = EVERY["DiscreteSACLoss"]
    ours = off_policy(Discrete(4), **{key: value for key, value in config.items() if key in DISCRETE_SAC})
    ours.weights.data[-1] = 1.0  # the logarithm of the temperature
    ours.gradient(batch_of(8, Discrete(4)))
    assert ours.weights[-1].item() == pytest.approx(math.log(0.55))


def test_a_warm_start_moves_the_targets_along() -> None:
    one, other = (off_policy(BOX, **TORCHRL_SAC) for _ in range(2))
    with torch.no_grad():
        one.weights.add_(0.5)
    other.warm_start({name: net.state_dict() for name, net in one.player.nets.items()})
    params = other.loss.module  # type: ignore[attr-defined]
    for key, target in params.target_qvalue_network_params.items(True, True):
        assert torch.equal(target, params.qvalue_network_params.get(key).data)
    assert torch.equal(other.weights[:-1], one.weights[:-1])


def test_the_temperature_stays_within_its_bounds_and_is_the_one_that_is_learned(tmp_path: Path) -> None:
    _, config, game = EVERY["DiscreteSACLoss"]
    trainer = palestra.Trainer(run_config(config, game), run=tmp_path / "run")
    player = trainer.players["one"]
    trainer.fit()
    log_alpha: Any = player.nets["loss"].log_alpha
    algorithm: Any = player.algorithm
    assert log_alpha.data_ptr() == algorithm.weights[-1:].data_ptr()
    alphas = [
        record["players"]["one"]["alpha"]
        for record in read_records(tmp_path / "run" / "records.jsonl")
        if "players" in record
    ]
    assert all(0.45 - 1e-6 <= alpha <= 0.55 + 1e-6 for alpha in alphas)
    assert len(set(alphas)) > 1


# ---- in Python ---------------------------------------------------------------------------------------------


class OwnClip(TorchRLLoss):
    class Config(UserConfig):
        clip: PositiveFloat
        """clipping range"""

    def make(self, networks: Mapping[str, Any]) -> Any:
        return objectives.ClipPPOLoss(networks["policy"], networks["value"], clip_epsilon=self.config.clip)


class OwnSAC(TorchRLReplayLoss):
    heads = ("policy", Critic("critic_0"))  # type: ignore[assignment]
    acts_by = "policy"  # type: ignore[assignment]

    class Config(UserConfig):
        pass

    def make(self, networks: Mapping[str, Any]) -> Any:
        return objectives.SACLoss(networks["policy"], networks["critic_0"], num_qvalue_nets=1, target_entropy=-1.0)


class OwnGamma(OwnClip):
    def make(self, networks: Mapping[str, Any]) -> Any:
        module = super().make(networks)
        module.make_value_estimator(gamma=0.1)
        return module


class TooManyCritics(OwnSAC):
    def make(self, networks: Mapping[str, Any]) -> Any:
        return objectives.SACLoss(networks["policy"], networks["critic_0"], num_qvalue_nets=2, target_entropy=-1.0)


class Half(objectives.ClipPPOLoss):  # type: ignore[name-defined, misc]
    """A loss module of the user's own, named in a file."""

    def loss_critic(self, tensordict: Any) -> Any:
        loss, *rest = super().loss_critic(tensordict)
        return 0.5 * loss, *rest


class NoModule(OwnClip):
    def make(self, networks: Mapping[str, Any]) -> Any:
        return networks["policy"]


class NoTerms(OwnClip):
    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return {name: term for name, term in super().terms(batch).items() if not name.startswith("loss_")}


@pytest.mark.parametrize("name", ["OwnClip", "OwnSAC"])
def test_a_subclass_makes_the_loss_module_itself(name: str, tmp_path: Path) -> None:
    clip = ON_POLICY | SEPARATE | {"loss": {"name": f"{HERE}:OwnClip", "clip": 0.1}}
    body = {"name": "separate", "policy": MLP, "critic_0": MLP | {"activation": "relu"}}
    sac = OFF_POLICY | TORCHRL_SAC | {"loss": {"name": f"{HERE}:OwnSAC"}, "body": body}
    config = run_config(clip) if name == "OwnClip" else run_config(sac, PENDULUM)
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    trainer.fit()
    assert trainer.opt_steps == 24


def test_a_gamma_inside_make_changes_nothing_and_a_line_at_the_start_says_so(tmp_path: Path) -> None:
    weights, lines = [], []
    for name in ("OwnClip", "OwnGamma"):
        loss = {"loss": {"name": f"{HERE}:{name}", "clip": 0.1}}
        trainer = palestra.Trainer(run_config(ON_POLICY | SEPARATE | loss), run=tmp_path / name)
        trainer.fit()
        algorithm = trainer.learners[0].algorithm
        assert isinstance(algorithm, OnPolicy)
        weights.append([*algorithm.net.parameters()])
        lines.append(algorithm.begin_run())
    assert all(map(torch.equal, *weights))
    assert lines[0] == []
    assert len(lines[1]) == 1
    assert f"{HERE}:OwnGamma calls make_value_estimator, whose gamma has no say" in lines[1][0]


def test_a_file_may_name_a_loss_module_of_the_users_own_which_the_run_keeps_the_hash_of(tmp_path: Path) -> None:
    assert TorchRLLossConfig.parameters(Half) == TorchRLLossConfig.parameters(objectives.ClipPPOLoss)
    loss = {"loss": loss_of("ClipPPOLoss")["loss"] | {"name": f"{HERE}:Half"}}
    palestra.Trainer(run_config(ON_POLICY | SEPARATE | loss), run=tmp_path / "run").fit()
    assert list(json.loads((tmp_path / "run" / "run.json").read_text())["user_classes"]) == [f"{HERE}:Half"]


# ---- bad input --------------------------------------------------------------------------------------------

CLIP: Data = loss_of("ClipPPOLoss")["loss"]
BAD: dict[str, tuple[Data, Data, str]] = {
    "a class that is none": (
        ON_POLICY | {"loss": CLIP | {"name": "torchrl.objectives:ClipPPOLos"}},
        CARTPOLE,
        "loss.name: expected a class of torchrl.objectives that derives from LossModule, got "
        "'torchrl.objectives:ClipPPOLos'; did you mean 'torchrl.objectives:ClipPPOLoss'?",
    ),
    "a class that is no loss module": (
        ON_POLICY | {"loss": CLIP | {"name": "torchrl.objectives:SoftUpdate"}},
        CARTPOLE,
        "loss.name: expected a class of torchrl.objectives that derives from LossModule, got .*:SoftUpdate'",
    ),
    "a module that is none": (
        ON_POLICY | {"loss": CLIP | {"name": "torchrl.losses:ClipPPOLoss"}},
        CARTPOLE,
        "loss.name: No module named 'torchrl.losses'; as in torchrl.objectives:LossModule",
    ),
    "no name of a class": (
        ON_POLICY | {"loss": CLIP | {"name": "ClipPPOLoss"}},
        CARTPOLE,
        "loss.name: expected one of .*'torchrl.objectives:Class'.*, got 'ClipPPOLoss'",
    ),
    "a loss from replay on roll-outs": (
        ON_POLICY | TORCHRL_SAC | {"loss": TORCHRL_SAC["loss"], "body": SEPARATE["body"], "exploration": 0},
        CARTPOLE,
        "exploration: unknown key",
    ),
    "a loss on roll-outs from replay": (
        OFF_POLICY | {"loss": CLIP},
        CARTPOLE,
        "loss.name: expected torchrl.objectives:DQNLoss, SACLoss, DiscreteSACLoss, a class of your own that derives "
        "from one, or a loss of your own that makes another, got 'torchrl.objectives:ClipPPOLoss'",
    ),
    "an argument is missing": (
        ON_POLICY | {"loss": CLIP | {"arguments": {k: v for k, v in CLIP["arguments"].items() if k != "clip_epsilon"}}},
        CARTPOLE,
        r"loss.arguments.clip_epsilon: expected a value \(usually 0.2\), but the key is missing",
    ),
    "an argument of a base class is missing": (
        ON_POLICY
        | {"loss": CLIP | {"arguments": {k: v for k, v in CLIP["arguments"].items() if k != "log_explained_variance"}}},
        CARTPOLE,
        "loss.arguments.log_explained_variance: expected a value",
    ),
    "an argument is unknown": (
        ON_POLICY | {"loss": CLIP | {"arguments": CLIP["arguments"] | {"clip_range": 0.2}}},
        CARTPOLE,
        "loss.arguments.clip_range: unknown argument of torchrl.objectives:ClipPPOLoss; did you mean 'clip_value'",
    ),
    "an argument that the run gives": (
        ON_POLICY | {"loss": CLIP | {"arguments": CLIP["arguments"] | {"device": "cpu"}}},
        CARTPOLE,
        r"loss.arguments.device: expected no such key, because the run gives it",
    ),
    "an argument of another kind": (
        ON_POLICY | loss_of("ClipPPOLoss", entropy_coeff="much"),
        CARTPOLE,
        "loss.arguments: 'torchrl.objectives:ClipPPOLoss' cannot be made: TypeError: entropy_coeff must be",
    ),
    "rows in place of numbers": (
        ON_POLICY | loss_of("ClipPPOLoss", reduction="none"),
        CARTPOLE,
        r"loss.name: .*:ClipPPOLoss' gives 'loss_objective' as torch.float32 of shape \(3,\); expected a number",
    ),
    "a penalty without the policy before": (
        ON_POLICY | loss_of("KLPENPPOLoss"),
        CARTPOLE,
        r"loss.arguments.delay_actor: expected true \(.*\), got false",
    ),
    "a recurrent network": (
        ON_POLICY | {"loss": CLIP, "body": {"name": "shared", "net": RECURRENT}},
        CARTPOLE,
        "body.net: expected a network without a memory for a loss of TorchRL, got a recurrent one",
    ),
    "batch norm": (
        OFF_POLICY | DQN_LOSS,
        CARTPOLE,
        "body: expected a network without batch norm",
    ),
    "sac of discrete actions": (
        OFF_POLICY | TORCHRL_SAC | {"box_actions": None},
        CARTPOLE,
        "loss.name: expected Box actions for the loss .*:SACLoss', whose critics observe them, got Discrete",
    ),
    "dqn of a box": (
        OFF_POLICY | DQN_LOSS | {"body": {"name": "separate", "q": MLP}},
        PENDULUM,
        "loss.name: expected Discrete actions for the loss .*:DQNLoss', which values each of them, got Box",
    ),
    "no targets asked for": (
        OFF_POLICY | TORCHRL_SAC | {"target": None},
        PENDULUM,
        r"target: expected a mapping with name, tau and interval \(.* 'torchrl.*' keeps target networks\), got null",
    ),
    "no targets kept": (
        OFF_POLICY | loss_of("DQNLoss", delay_value=False) | {"body": {"name": "separate", "q": MLP}},
        CARTPOLE,
        r"target: expected null \(the loss 'torchrl.objectives:.*' keeps no target networks\), got 'polyak'",
    ),
    "no number of critics": (
        OFF_POLICY
        | TORCHRL_SAC
        | {"loss": TORCHRL_SAC["loss"] | {"arguments": TORCHRL_SAC["loss"]["arguments"] | {"num_qvalue_nets": 0}}},
        PENDULUM,
        "loss.arguments.num_qvalue_nets: expected an integer >= 1, got 0",
    ),
    "more critics than heads": (
        OFF_POLICY
        | TORCHRL_SAC
        | {
            "loss": {"name": f"{HERE}:TooManyCritics"},
            "body": {"name": "separate", "policy": MLP, "critic_0": MLP},
        },
        PENDULUM,
        "loss.name: expected a head for each of 2 networks of the loss module in qvalue_network_params, got critic_0",
    ),
    "no module": (
        ON_POLICY | SEPARATE | {"loss": {"name": f"{HERE}:NoModule", "clip": 0.1}},
        CARTPOLE,
        "loss.name: expected a LossModule of `make`, got ProbabilisticTensorDictSequential",
    ),
    "no loss_*": (
        ON_POLICY | SEPARATE | {"loss": {"name": f"{HERE}:NoTerms", "clip": 0.1}},
        CARTPOLE,
        "loss.name: .* expected at least one named loss_",
    ),
    "an estimator that averages in a game of several roles": (
        ON_POLICY | estimator_of("GAE", gamma=0.95, lmbda=0.9, average_gae=True, vectorized=None),
        NIM,
        "estimator.name: expected an estimator that skips rows that do not count, .* got .*:GAE'",
    ),
    "an estimator that is none": (
        ON_POLICY | estimator_of("GA", gamma=0.9),
        CARTPOLE,
        "estimator.name: expected a class of torchrl.objectives.value that derives from ValueEstimatorBase, got .*:GA'",
    ),
    "an argument of an estimator is missing": (
        ON_POLICY | estimator_of("GAE", lmbda=0.9, average_gae=False, vectorized=None),
        CARTPOLE,
        "estimator.arguments.gamma: expected a value",
    ),
    "a loss without an estimator": (
        ON_POLICY | {"loss": CLIP, "estimator": {"name": "none"}},
        CARTPOLE,
        "estimator.name: expected gae or td_lambda or reward_to_go or torchrl for the loss .*, got 'none'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_line_before_anything_is_played(name: str, tmp_path: Path) -> None:
    algorithm, game, message = BAD[name]
    with pytest.raises(ConfigError, match=f"players.one.algorithm.{message}") as caught:
        palestra.Trainer(run_config(algorithm, game), run=tmp_path / "run")
    assert len(caught.value.errors) == 1
    assert not (tmp_path / "run").exists()


def test_nothing_else_imports_tensordict_and_check_needs_no_torchrl(tmp_path: Path) -> None:
    place, replay = tmp_path / "run.yml", tmp_path / "replay.yml"
    place.write_text(json.dumps(run_config(ON_POLICY | {"loss": CLIP} | GAE)))
    replay.write_text(json.dumps(run_config(OFF_POLICY | TORCHRL_SAC, PENDULUM)))
    program = (
        "import sys; sys.path[:0] = ['tests', '.']\n"
        "import palestra; from combinations import OFF_POLICY, ON_POLICY\n"
        "from tests.algorithms.test_off_policy import run_config\n"
        "for algorithm in (ON_POLICY, OFF_POLICY): palestra.Trainer(run_config(algorithm))\n"
        "assert not {'torchrl', 'tensordict'} & sys.modules.keys()\n"
        "sys.modules |= {'torchrl': None, 'tensordict': None}\n"
        "from typer.testing import CliRunner; from palestra.cli import app\n"
        f"for file in ({str(place)!r}, {str(replay)!r}):\n"
        "    for command in (['check'], ['train', '--quiet', '--run', file + '.run']):\n"
        "        result = CliRunner().invoke(app, [command[0], file, *command[1:]])\n"
        "        print(result.exit_code, ' '.join(result.output.split()))\n"
    )
    root = Path(__file__).parents[2]
    done = run_forked([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    checked, trained, *of_replay = done.stdout.splitlines()
    needs = "needs an extra: pip install 'palestra[torchrl]'"
    assert checked.startswith("0 ")
    assert "complete and consistent" in checked
    assert "only this machine lacks, so that train refuses it here: players.one.algorithm." in checked
    assert checked.endswith(f"{needs} not checked: all beside the file, which needs what is lacking")
    assert trained.startswith("2 players.one.algorithm.")
    assert trained.endswith(needs)
    assert [line[:2] for line in of_replay] == ["0 ", "2 "]


def test_importing_torchrl_leaves_how_processes_are_started() -> None:
    program = (
        "import multiprocessing; from palestra.algorithms.parts.estimators import torchrl_module\n"
        "torchrl_module('torchrl.objectives'); print(multiprocessing.get_start_method(allow_none=True))"
    )
    done = run_forked([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


# ---- it learns --------------------------------------------------------------------------------------------


# Its gradient and its estimators are those of PPO, which balances the pole in test_ppo.py.
@pytest.mark.slow
def test_clip_ppo_loss_balances_the_pole(tmp_path: Path) -> None:
    algorithm = {
        **ON_POLICY,
        **loss_of("ClipPPOLoss", entropy_coeff=0.0, critic_coeff=0.5, loss_critic_type="l2"),
        **estimator_of("GAE", gamma=0.98, lmbda=0.9, average_gae=False, vectorized=None),
        "rollout_length": 64,
        "num_passes": 4,
        "num_minibatches": 8,
        "body": {"name": "separate"} | dict.fromkeys(("policy", "value"), MLP | {"net_arch": [64, 64]}),
        "initialization": PPO_BASE["initialization"],
        "optimizer": PPO_BASE["optimizer"],
        "learning_rate": {"name": "linear", "initial": 2e-3, "final": 0.0, "num_steps": 1000},
    }
    game = CARTPOLE | {"max_rounds": 500, "initial_low": -0.05, "initial_high": 0.05}
    assert final_return(algorithm, game, tmp_path, 1000, num_worlds=32) > 400


def test_sac_loss_finds_the_best_numbers() -> None:
    probe = make_probe("both", continuous=True)
    relu = {"name": "mlp", "net_arch": [32, 32], "activation": "relu"}
    arguments = TORCHRL_SAC["loss"]["arguments"] | {"alpha_init": 1e-4, "fixed_alpha": True}
    config = (
        OFF_POLICY
        | TORCHRL_SAC
        | {
            "loss": TORCHRL_SAC["loss"] | {"arguments": arguments},
            "body": {"name": "separate"} | dict.fromkeys(("policy", "critic_0", "critic_1"), relu),
            "evaluation": "deterministic",
            "updates_per_turn": 2,
            "warmup_env_steps": 200,
            "batch_size": 64,
            "max_grad_norm": None,
            "learning_rate": falling(5e-3, 300),
            "replay_buffer": OFF_POLICY["replay_buffer"] | {"capacity": 10_000},
        }
    )
    made = seat(check(config, OffPolicyConfig), probe.spaces["agent"], probe.action_spaces["agent"])
    algorithm = learn(made, probe, 300)
    assert best_action(algorithm, 1, 0) > 0
    assert best_action(algorithm, -1, 0) < 0
    observation = seen(1, 0) | {"action": torch.tensor([[best_action(algorithm, 1, 0)]])}
    value = float(algorithm.net.net_of("critic_0")(observation).detach())
    assert value == pytest.approx(1.0, abs=5e-2)


@pytest.mark.slow
def test_sac_loss_swings_the_pendulum_up(tmp_path: Path) -> None:
    relu = {"name": "mlp", "net_arch": [64, 64], "activation": "relu"}
    algorithm = {
        **OFF_POLICY,
        **TORCHRL_SAC,
        "gamma": 0.99,
        "body": {"name": "separate"} | dict.fromkeys(("policy", "critic_0", "critic_1"), relu),
        "warmup_env_steps": 500,
        "batch_size": 128,
        "updates_per_turn": 2,
        "target": {"name": "polyak", "tau": 0.01, "interval": 1},
        "max_grad_norm": None,
        "learning_rate": {"name": "constant", "value": 2e-3},
        "evaluation": "deterministic",
        "replay_buffer": OFF_POLICY["replay_buffer"] | {"capacity": 50_000},
    }
    game = PENDULUM | {"max_rounds": 200, "initial_angle": 3.14159}
    assert final_return(algorithm, game, tmp_path, 6000, num_worlds=2) > -300


def final_return(algorithm: Data, game: Data, place: Path, opt_steps: int, num_worlds: int) -> float:
    config = run_config(algorithm, game) | {"num_worlds": num_worlds, "stop": {"after": opt_steps, "unit": "opt_steps"}}
    config["evaluations"][0] |= {"interval": None, "final_num_games": 50, "max_rounds": 500}
    config |= {"best": None}
    config["output"] |= {"record": None, "save": None}
    palestra.Trainer(config, run=place / "run").fit()
    *_, last = (record for record in read_records(place / "run" / "records.jsonl") if record["kind"] == "evaluation")
    return float(last["pairs"][0]["scores"]["return/agent"])
