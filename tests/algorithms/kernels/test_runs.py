"""What a run says of its kernels: at the start, in its checkpoints, and when it goes on."""

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console

import palestra
from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.config import UserConfig, load_yaml
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player

ROOT = Path(__file__).parents[3]


class Penalized(DQN):
    """Large values are paid for."""

    class Config(UserConfig, DQNConfig):
        name: str

    def loss(self, outputs: Any, value_target: Any, batch: Any) -> Any:
        terms = super().loss(outputs, value_target, batch)
        return terms | {"loss_size": 0.01 * outputs.square().mean(), "size": outputs.abs().mean()}


def config(**changes: Any) -> dict[str, Any]:
    """dqn-cartpole for two turns."""
    data = load_yaml(ROOT / "configs" / "dqn-cartpole.yml")
    sizes = {"rollout_length": 4, "updates_per_turn": 3, "warmup_env_steps": 8, "batch_size": 8}
    data["players"]["agent"]["algorithm"] |= sizes | changes
    data["output"] |= {"display": "plain", "recorders": [], "save": {"every": 3, "unit": "opt_steps"}}
    return data | {"num_worlds": 4, "stop": {"after": 6, "unit": "opt_steps"}, "evaluations": [], "best": None}


def fit(trainer: Any) -> str:
    """Train, and give what was shown, in one line."""
    trainer.run.console = Console(file=io.StringIO(), width=200, color_system=None)
    trainer.fit()
    return re.sub(r"\s+", " ", trainer.run.console.file.getvalue())


def kernels_of(trainer: Trainer) -> dict[str, str]:
    found: dict[str, str] = trainer.players["agent"].state_dict()["kernels"]
    return found


def test_a_run_of_the_stock_loss_says_nothing_and_runs_by_hand(tmp_path: Path) -> None:
    trainer = Trainer(config(), run=tmp_path / "run")
    assert "autograd" not in fit(trainer)
    assert kernels_of(trainer) == {"gradient_kernel": "by hand", "acting_kernel": "by hand"}


def test_a_loss_of_ones_own_is_named_at_the_start_and_its_terms_are_recorded(tmp_path: Path) -> None:
    name = "tests.algorithms.kernels.test_runs:Penalized"
    trainer = Trainer(config(name=name), run=tmp_path / "run")
    said = fit(trainer)
    assert "players.agent: Penalized.loss differs from palestra's (test_runs.py, line " in said
    assert "autograd finds the gradients, and DQN in CartPole-v1 takes 1.4 to 1.8 times" in said
    assert kernels_of(trainer)["gradient_kernel"] == "torch"
    assert '"size"' in (tmp_path / "run" / "records.jsonl").read_text()


def test_a_loss_assigned_between_making_a_trainer_and_its_fit_is_learned(tmp_path: Path) -> None:
    trainer = Trainer(config(), run=tmp_path / "run")
    dqn: Any = trainer.players["agent"].algorithm
    stock = dqn.loss
    dqn.loss = lambda *rows: stock(*rows) | {"mine": rows[0].sum()}
    assert "DQN.loss differs from palestra's" in fit(trainer)
    assert '"mine"' in (tmp_path / "run" / "records.jsonl").read_text()


class Adding(palestra.Callback):
    """Adds a term to a loss before training, and notes what computes whenever a checkpoint was saved."""

    def __init__(self) -> None:
        self.saved: list[str] = []

    def after_save(self, training: Any, checkpoint: Path) -> None:
        self.saved.append(kernels_of(training)["gradient_kernel"])

    def before_train(self, training: Any) -> None:
        dqn = training.players["agent"].algorithm
        dqn.loss = lambda *rows: DQN.loss(dqn, *rows) | {"mine": rows[0].sum()}


def test_a_loss_that_a_callback_assigns_before_training_is_learned(tmp_path: Path) -> None:
    """Also where the kernel had been chosen already."""
    adding = Adding()
    trainer = Trainer(config(), run=tmp_path / "run", callbacks=[adding])
    assert kernels_of(trainer)["gradient_kernel"] == "by hand"
    assert "DQN.loss differs from palestra's" in fit(trainer)
    assert '"mine"' in (tmp_path / "run" / "records.jsonl").read_text()
    assert adding.saved == ["torch"] * 3  # also at opt step 0


def test_resume_says_what_runs_otherwise_than_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(Trainer(config(), run=run))
    file = run / "config.yml"
    file.write_text(
        file.read_text().replace("gradients: by_hand", "gradients: autograd").replace("after: 6", "after: 9")
    )
    said = fit(Trainer.load(run))
    assert "execution.gradients was by_hand, is autograd; equal bits are not promised" in said
    assert "players.agent.gradient_kernel was by hand, is torch; equal bits are not promised" in said
    assert "acting_kernel was" not in said


def test_by_hand_and_by_autograd_learn_the_same_within_rounding(tmp_path: Path) -> None:
    weights = []
    for way in ("by_hand", "autograd"):
        data = config()
        data["execution"]["gradients"] = way
        trainer = Trainer(data, run=tmp_path / way)
        fit(trainer)
        player: Player = trainer.players["agent"]
        weights.append(player.nets["q"].state_dict())
    one, other = weights
    assert all(value.allclose(other[name], atol=1e-5) for name, value in one.items())
    assert not all(value.equal(other[name]) for name, value in one.items()), "the two ways round otherwise"
