"""Frozen weights keep their bits, whatever the algorithm, the optimizer and the way that gradients are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from palestra.callbacks.callback import Callback
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.trainer import Trainer
from palestra.optimizers import AdamConfig, SGDConfig
from palestra.players.player import Metrics, Player
from palestra.run.branching import extend

MakeConfig = Callable[..., dict[str, Any]]
CONFIGS = Path(__file__).parents[2] / "configs"
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
SGD = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}


class Watch(Callback):
    """Keeps the parameters of a network after every opt step, by name."""

    def __init__(self, net: str) -> None:
        super().__init__(None)
        self.net = net
        self.seen: list[dict[str, Tensor]] = []

    def before_train(self, trainer: Trainer) -> None:
        self.look(trainer.learners[0])

    def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
        if player is trainer.learners[0]:
            self.look(player)

    def look(self, player: Player) -> None:
        self.seen.append({name: p.detach().clone() for name, p in player.nets[self.net].named_parameters()})


def freezing(file: str, net: str, pattern: str, optimizer: dict[str, Any], num_opt_steps: int | None) -> dict[str, Any]:
    """A shipped config, small; its first player's weights are frozen."""
    config = load_yaml(CONFIGS / f"{file}.yml")
    config |= {"num_worlds": 4, "evaluations": [], "best": None, "stop": {"after": 12, "unit": "opt_steps"}}
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    player = next(iter(config["players"]))
    for entry in config["players"].values():
        small = {"batch_size": 8, "warmup_env_steps": 8, "updates_per_turn": 4, "rollout_length": 8}
        small |= {"num_minibatches": 4}
        entry["algorithm"] |= {key: value for key, value in small.items() if key in entry["algorithm"]}
        for key in ("optimizer", "policy_optimizer", "critic_optimizer"):
            if key in entry["algorithm"]:
                entry["algorithm"][key] = optimizer
    freeze = {"name": "freeze", "player": player, "net": net, "weights": [pattern], "num_opt_steps": num_opt_steps}
    return config | {"callbacks": [freeze]}


CASES = [
    ("dqn-cartpole", "q", "layers.0.*"),
    ("dqn-polyhedra", "q", "point_layers.*.weight"),
    ("ppo-cartpole", "actor_critic", "policy.layers.[02].*"),
    ("ppo-pendulum", "actor_critic", "head.log_std"),
    ("sac-pendulum", "critics", "0.*"),
    ("sac-pendulum", "policy", "layers.4.bias"),
    ("td3-pendulum", "policy", "layers.0.weight"),
    ("td3-pendulum", "critics", "1.layers.2.*"),
]


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize(("file", "net", "pattern"), CASES)
def test_frozen_weights_keep_their_bits_and_the_others_learn(
    file: str, net: str, pattern: str, optimizer: dict[str, Any], tmp_path: Path
) -> None:
    watch = Watch(net)
    trainer = Trainer(freezing(file, net, pattern, optimizer, 4), run=tmp_path / "run", callbacks=[watch])
    (mask,) = [callback._mask(trainer) for callback in trainer.callbacks if hasattr(callback, "_mask")]
    trainer.fit()
    sizes = [value.numel() for value in watch.seen[0].values()]
    frozen = {name for name, part in zip(watch.seen[0], mask.split(sizes), strict=True) if part.any()}
    assert 0 < len(frozen) < len(sizes)
    step = 4 if file.startswith("ppo") else 1  # a pass is four opt steps at once
    thawed = 4 // step
    for name in watch.seen[0]:
        moved = [not torch.equal(a[name], b[name]) for a, b in zip(watch.seen, watch.seen[1:], strict=False)]
        assert moved[thawed] or net == "policy", name  # TD3's policy waits for its turn
        assert any(moved[thawed:]), name
        assert any(moved[:thawed]) == (name not in frozen), name


@pytest.mark.parametrize("config", [AdamConfig(**ADAM), SGDConfig(**SGD)], ids=["adam", "sgd"])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_others_move_as_if_the_frozen_ones_were_not_there(config: Any, compiles: bool) -> None:
    """Also when they freeze with momentum, and thaw in code that was compiled before."""
    whole, part = torch.arange(1.0, 7.0), torch.arange(1.0, 4.0)
    optimizer, alone = config.build(whole), config.build(part)
    for each in (optimizer, alone):
        each.learning_rate.fill_(0.1)

    def step(gradient: Tensor) -> Any:
        gradient, norm = optimizer.clip(gradient, 1.0)
        optimizer.step(gradient)
        return norm

    step = torch.compile(step) if compiles else step
    mask = torch.tensor([False] * 3 + [True] * 3)
    gradients = [torch.tensor([1.0, -2.0, 0.5, 8.0, 9.0, -7.0]) * (i + 1) for i in range(6)]
    for number, gradient in enumerate(gradients):
        if number == 2:
            optimizer.freeze(mask)
            held = [whole[3:].clone(), *(value[3:].clone() for value in optimizer.state.values() if value.ndim)]
            part.copy_(whole[:3])
            for name, value in alone.state.items():
                value.copy_(optimizer.state[name][:3] if value.ndim else optimizer.state[name])
        if number == 5:
            optimizer.thaw(mask)
        norm = step(gradient.clone())
        if 2 <= number < 5:
            gradient, own_norm = alone.clip(gradient[:3].clone(), 1.0)
            alone.step(gradient)
            torch.testing.assert_close(torch.as_tensor(norm), torch.as_tensor(own_norm), check_dtype=False)
            torch.testing.assert_close(whole[:3], part)
            now = [whole[3:], *(value[3:] for value in optimizer.state.values() if value.ndim)]
            assert all(torch.equal(a, b) for a, b in zip(held, now, strict=True))
    assert not torch.equal(held[0], whole[3:])


def test_what_two_masks_hold_is_free_when_both_are_gone() -> None:
    optimizer = SGDConfig(**SGD).build(torch.zeros(3))
    one, two = torch.tensor([True, True, False]), torch.tensor([False, True, True])
    optimizer.freeze(one)
    optimizer.freeze(two)
    assert optimizer.frozen.tolist() == [True, True, True]
    optimizer.thaw(one)
    assert optimizer.frozen.tolist() == [False, True, True]
    optimizer.thaw(two)
    assert optimizer.frozen.tolist() == [False, False, False]


def test_a_resumed_run_freezes_for_the_rest_alone(make_config: MakeConfig, tmp_path: Path) -> None:
    freeze = {"name": "freeze", "player": "host", "net": "q", "weights": ["*"], "num_opt_steps": 6}
    states = []
    for stops in ([10], [4, 10]):
        run = tmp_path / str(len(stops))
        config = make_config({"callbacks": [freeze], "stop.after": 2 * stops[0]})
        trainer = Trainer(config, run=run)
        start = [p.detach().clone() for p in trainer.host_net.parameters()]
        trainer.fit()
        for stop in stops[1:]:
            assert all(torch.equal(a, b) for a, b in zip(start, trainer.host_net.parameters(), strict=True))
            extend(run, [f"stop.after={2 * stop}"])
            trainer = Trainer.load(run)
            trainer.fit()
        assert not all(torch.equal(a, b) for a, b in zip(start, trainer.host_net.parameters(), strict=True))
        states.append([*trainer.host_net.parameters(), *trainer.host_optimizer.state.values()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"player": "agnt"}, "callbacks.0.player: expected the name of a player that learns: host, agent; got 'agnt'"),
        ({"net": "target"}, "callbacks.0.net: expected a network of 'host' that learns ('q'), got 'target'"),
        ({"weights": ["layers.0.*", "body.*"]}, "callbacks.0.weights.1: expected parameters among 'l"),
        ({"num_opt_steps": 0}, "callbacks.0.num_opt_steps: expected an integer >= 1 or null, got 0"),
    ],
)
def test_what_cannot_be_frozen_is_told_before_there_is_a_run(
    changes: dict[str, Any], told: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    freeze = {"name": "freeze", "player": "host", "net": "q", "weights": ["*"], "num_opt_steps": None} | changes
    with pytest.raises(ConfigError) as error:
        Trainer(make_config({"callbacks": [freeze]}), run=tmp_path / "run").fit()
    assert str(error.value).startswith(told)
    assert not (tmp_path / "run").exists()
