"""Every example of the documents that trains is killed by SIGKILL, goes on to the same bits, and is verified."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from palestra import load_player, make_trainer
from palestra.commands.check import dry_run
from palestra.commands.replay import verify
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.trainer import Trainer
from palestra.run.kinds import read_config
from palestra.testing import check_algorithm
from palestra.testing.algorithms import CARTPOLE
from tests.docs.examples import EXAMPLES, ROOT, Data, block, blocks, shown, small
from tests.forked import PALESTRA, Forked
from tests.forked import run as run_forked
from tests.resuming import assert_same_bits, at_call

# ---- in processes of their own, forked from one that has never trained -------------------------------------


def train(name: str, folder: str, kill_at: int | None, is_verified: bool) -> None:
    """Begin a run, or go on with it; then verify it. kill_at: the safe point before which the process dies, from 1."""
    example, run, names = EXAMPLES[name], Path(folder), dict[str, Any]()
    if example.give or example.callbacks:
        exec(example.code, names)
    callbacks = example.callbacks(names) if example.callbacks else []
    if run.exists():
        trainer = Trainer.load(run, callbacks=callbacks)
    else:
        trainer = make_trainer(small(example), run=run, callbacks=callbacks)
    if example.give:
        example.give(trainer, names)
    with at_call(Trainer, "safe_point", kill_at or 0, lambda *_: os.kill(os.getpid(), signal.SIGKILL)) as safe_points:
        trainer.fit()
    assert trainer.finished
    Path("num_safe_points").write_text(str(len(safe_points)))
    if is_verified:
        verdict = verify(run, None)
        assert verdict.difference is None, str(verdict.difference)
        assert verdict.end is not None


class ForkedExample(Forked):
    imported = (*PALESTRA, "palestra.commands.replay", "torchrl.objectives", __name__)


def exit_code(place: Path, *arguments: Any) -> int:
    program = f"import json, sys; from {__name__} import train; train(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-c", program, json.dumps(arguments)]
    return run_forked(command, cwd=place, timeout=120.0, start=ForkedExample).returncode


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_that_is_killed_goes_on_to_the_same_bits_and_is_reproduced(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    (tmp_path / f"{example.module}.py").write_text(example.code)
    assert exit_code(tmp_path, name, "alone", None, False) == 0
    num_safe_points = int((tmp_path / "num_safe_points").read_text())
    assert num_safe_points > 4
    assert exit_code(tmp_path, name, "run", num_safe_points // 2 + 1, False) == -signal.SIGKILL
    is_named = example.give is None and example.callbacks is None
    assert exit_code(tmp_path, name, "run", None, is_named) == 0
    assert_same_bits(tmp_path / "run", tmp_path / "alone")


def test_every_class_of_the_documents_takes_part() -> None:
    found = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for each in blocks(page.name)
        for name in re.findall(r"^class (\w+)", each, re.M)
    }
    helpers = {"Sampling", "EpsilonGreedy", "Remembering", "Segments"}  # of Reinforce, Sarsa and RetraceDQN
    helpers |= {"SoftDQN", "MunchausenDQN"}  # which keep nothing: tests/docs/test_targets.py
    helpers |= {"Digits", "Net"}  # tests/docs/test_examples.py
    helpers |= {"Points", "LoaderKeys", "Exact"}  # tests/docs/test_models.py
    helpers |= {"Ring", "GAN", "Adversaries"}  # tests/docs/test_examples.py
    helpers |= {"Sums", "Polite", "Repeats", "BestOfN", "Contested"}  # tests/docs/test_text.py
    helpers |= {"Minority"}  # tests/docs/test_documents.py
    helpers |= {"Race"}  # a game, which keeps nothing: tests/docs/test_self_play.py
    helpers |= {"Gaussian", "Continued"}  # searches, which keep nothing: tests/docs/test_sweeps.py, test_populations.py
    helpers |= {"Escape"}  # its scores alone: tests/docs/test_documents.py
    helpers |= {"Probed", "WithKernels"}  # tests/training/test_stages.py
    helpers |= {"RegressionConfig", "Regression"}  # tests/training/test_training.py
    taken = {name for example in EXAMPLES.values() for name in re.findall(r"class (\w+)", example.part)}
    assert found == taken | helpers


def test_the_checks_of_the_documents_pass(in_tmp_path: Path) -> None:
    for name in ("reinforce", "game", "rollback"):
        example = EXAMPLES[name]
        (in_tmp_path / f"{example.module}.py").write_text(block(example.page, example.part))
    for page, call in [("own-algorithm.md", "check_algorithm"), ("games.md", "check_game")]:
        exec(block(page, f"import {call}"), {})
    exec("import gymnasium\n" + block("gymnasium.md", "import check_environment"), {})
    import losses  # type: ignore[import-not-found]

    check_algorithm(losses.RollbackPPO, {"rollback": 0.3}, CARTPOLE)
    check_algorithm(losses.HuberSAC, game=CARTPOLE)


def test_the_hidden_opponents_of_the_page_fit_the_config_that_it_trains(in_tmp_path: Path) -> None:
    code = {"stubborn": [("own-parts.md", "class Stubborn"), ("own-opponent.md", "class Lazy")]}
    code["pretrained"] = [("own-opponent.md", "def build")]
    for module, parts in code.items():
        (in_tmp_path / f"{module}.py").write_text("\n\n".join(block(*part) for part in parts))
    names: Data = {}
    exec(block("own-opponent.md", "def build"), names)
    save_file(names["build"]().state_dict(), in_tmp_path / "net.safetensors")
    config = load_yaml(ROOT / "configs" / "dqn-polyhedra.yml")
    config["players"] |= shown("own-opponent.md", "hidden: {scripted")["players"]
    [evaluation] = shown("own-opponent.md", "name: hidden")["evaluations"]
    config["evaluations"].append(config["evaluations"][0] | evaluation)
    _, lacks, unchecked = dry_run(read_config(config), ())
    assert [*lacks, *unchecked] == []


def test_the_reference_of_the_document_is_the_checkpoint_that_training_began_with(in_tmp_path: Path) -> None:
    config = load_yaml(ROOT / "configs" / "ppo-cartpole.yml")
    config |= {"num_worlds": 2, "stop": {"after": 2, "unit": "opt_steps"}, "evaluations": [], "best": None}
    config["output"] |= {"recorders": [], "display": "quiet"}
    player = config["players"]["agent"]
    player["algorithm"] |= {"rollout_length": 8, "num_minibatches": 2}
    make_trainer(config, run="reference").fit()
    example = EXAMPLES["near the start"]
    sys.modules.pop("losses", None)
    (in_tmp_path / "losses.py").write_text(example.code)
    example.change(config)
    player["warm_start"] = {"from_run": "reference", "player": "agent", "checkpoint": "latest", "take": "all"}
    trainer = make_trainer(config, run="near")
    trainer.fit()
    reference = load_player("reference").nets["actor_critic"].state_dict()
    nets = trainer.players["agent"].nets
    assert all(torch.equal(value, reference[name]) for name, value in nets["start"].state_dict().items())
    assert not all(torch.equal(value, reference[name]) for name, value in nets["actor_critic"].state_dict().items())
    (in_tmp_path / "losses.py").write_text(example.code + WITHOUT_WARM_START)
    sys.modules.pop("losses")
    player["algorithm"]["name"] = "losses:Referred"
    with pytest.raises(ConfigError, match=r"it has the networks actor_critic, but no start$"):
        make_trainer(config)


WITHOUT_WARM_START = """

class Referred(NearTheStartPPO):
    warm_start = PPO.warm_start
"""
