"""Runs that go on differently: resume, extend, branch, copies, buffers alone, networks that were handed over."""

import json
import shutil
from pathlib import Path

import pytest
from resuming import assert_same_bits

from palestra.config import load_yaml
from tests.doors.conftest import Shell

pytestmark = pytest.mark.slow
NET = """
import torch


class Flat(torch.nn.Sequential):
    def forward(self, observation):
        return super().forward(observation["observation"])


def build():
    torch.manual_seed(0)
    return Flat(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
"""
DQN = ("dqn", "CartPole-v1", "stop.after=600", "evaluations=[]", "best=null", "warmup_env_steps=200")
SAVING = "output.save={every: 100, unit: opt_steps}"


def opt_steps(run: Path) -> int:
    latest = (run / "checkpoints" / "latest").read_text().strip()
    found: int = json.loads((run / "checkpoints" / latest / "manifest.json").read_text())["counters"]["opt_steps"]
    return found


def test_a_killed_run_is_resumed_verified_and_extended(shell: Shell) -> None:
    shell("train", *DQN, SAVING, "--run", "alone", "--quiet")
    shell.kill("train", *DQN, SAVING, "--run", "run", "--quiet", at=Path("run/checkpoints/00000002"))
    shell("resume", "run", "--quiet")
    assert_same_bits(shell.folder / "run", shell.folder / "alone")
    shell("verify", "run")
    assert "palestra extend run stop.after=" in shell("resume", "run")
    shell("extend", "run", "stop.after=800", "--quiet")
    assert opt_steps(shell.folder / "run") == 800


def test_a_branch_goes_on_with_one_side_alone(shell: Shell, runs: Path) -> None:
    shutil.copytree(runs / "polyhedra", shell.folder / "run")
    latest = "run/checkpoints/latest"
    later = ("stop.after=400", "interval.every=100", "--quiet")
    shell("branch", latest, "--freeze", "agent", *later, "--run", "frozen")
    agent = load_yaml(shell.folder / "frozen" / "config.yml")["players"]["agent"]
    assert (agent["player"], agent["checkpoint"]) == ("agent", "00000003")
    shell("branch", latest, "--replace", "agent=greedy", *later, "--run", "replaced")
    assert load_yaml(shell.folder / "replaced" / "config.yml")["players"]["agent"] == {"scripted": "greedy"}
    error = shell("branch", "run", code=2)
    assert "give one of its own: run/checkpoints/latest or run/checkpoints/best" in error
    shutil.rmtree(shell.folder / "run")
    shell("evaluate", "frozen", "--games", "10")


def test_fit_in_parts_copy_and_extend_in_python(shell: Shell) -> None:
    shell.write("run.yml", shell("config", *DQN, SAVING))
    shell("train", "run.yml", "--run", "alone", "--quiet", "stop.after=900")
    shell.python(
        "trainer = palestra.Trainer('run.yml', run='run')",
        "trainer.fit(num_steps=200, unit='opt_steps')",
        "assert trainer.opt_steps == 200 and not trainer.finished",
        "trainer.fit()",
        "assert trainer.finished and trainer.opt_steps == 600",
        "other = trainer.copy('copied'); other.fit()",
        "for each in (trainer, other):",
        "    each.extend(['stop.after=900'])",
        "    each.fit()",
    )
    checkpoints = [shell.folder / run / "checkpoints" for run in ("alone", "run", "copied")]
    tensors = {
        (each / (each / "latest").read_text().strip() / "tensors.safetensors").read_bytes() for each in checkpoints
    }
    assert len(tensors) == 1
    assert opt_steps(shell.folder / "copied") == 900


def test_a_network_that_was_handed_over_is_evaluated_exported_and_branched(shell: Shell) -> None:
    shell.write("mine.py", NET)
    shell.write("run.yml", shell("config", *DQN))
    shell.python(
        "import mine",
        "named = palestra.Trainer('run.yml', run='named'); named.set_model('agent', mine.build); named.fit()",
        "given = palestra.Trainer('run.yml', run='given'); given.set_model('agent', mine.build()); given.fit()",
        "models = {'agent': mine.build()}",
        "palestra.Trainer.load('given', models=models)",
        "palestra.load_player('given', models=models).predict([0.0, 0, 0, 0])",
        "palestra.StoredRun.open('given', models=models)",
        "latest = 'given/checkpoints/latest'",
        "palestra.Trainer.branch(latest, ['stop.after=700'], models=models, run='further').fit()",
    )
    shell("ask", "named", "--observation", "[0.1, 0, 0, 0]")
    shell("export", "named")
    shell("branch", "named/checkpoints/latest", "stop.after=700", "--run", "branch", "--quiet")
    error = shell("branch", "given/checkpoints/latest", "stop.after=700", code=2)
    assert "given was trained with objects that no config names" in error
    assert "models={'agent': ...}" in error


def test_a_buffer_is_left_out_of_checkpoints_and_saved_alone(shell: Shell) -> None:
    shell.write("run.yml", shell("config", *DQN, "output.replay_in_checkpoints=none"))
    shell.python(
        "from palestra.run.replay_file import load_replay, save_replay",
        "trainer = palestra.Trainer('run.yml', run='run'); trainer.fit()",
        "save_replay(trainer.agent_replay_buffer, 'rows')",
        "again = palestra.Trainer.load('run')",
        "assert len(again.agent_replay_buffer) == 0",
        "load_replay(again.agent_replay_buffer, 'rows')",
        "assert len(again.agent_replay_buffer) == len(trainer.agent_replay_buffer) > 0",
        "again.extend(['stop.after=700']); again.fit()",
    )
    assert list((shell.folder / "run" / "buffers").glob("*.safetensors")) == []
    assert list((shell.folder / "rows").glob("*.safetensors")) != []
