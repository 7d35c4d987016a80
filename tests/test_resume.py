"""A run that was stopped or killed anywhere, and resumed, ends in the same bits as one that never stopped."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from combinations import C51, IMPLICIT_QUANTILE, KL_PENALTY, PPO, PRIORITIZED, QUANTILE, RECURRENT, SAC, TD3
from conftest import PLAIN, TINY, TINY_FIT, MakeRun
from resuming import (
    Killed,
    all_checkpoints,
    assert_same_bits,
    at_call,
    fit,
    kill,
    pointed_at,
    records,
    send_signal,
    stopping_at,
)
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.evaluation import evaluator
from palestra.kinds.games.trainer import DQNTrainer, Trainer
from palestra.optimizers import TorchOptimizerConfig
from palestra.run.replay_file import load_replay, save_replay
from palestra.run.run import ProgressReporter
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from tests.forked import Forked

PALESTRA = (sys.executable, "-c", "from palestra.cli import main; main()")
PATIENCE_S = 300.0

MakeConfig = Callable[..., dict[str, Any]]


def _torch(name: str, **arguments: Any) -> dict[str, Any]:
    usual = TorchOptimizerConfig.in_full(f"torch.optim:{name}")
    return usual | {"arguments": usual["arguments"] | arguments}


def num_safe_points(config: dict[str, Any], run: Path) -> int:
    """Of an uninterrupted run, which is made on the way."""
    with stopping_at(0) as calls:
        assert fit(run, config).finished
    return len(calls)


# ---- stopped at safe points ----------------------------------------------------------------------------

ON_A_PROBE: dict[str, Any] = {
    "game": {"name": "probes:Probe", "kind": "identity", "continuous": True, "limit": 3},
    "roles": {"agent": "host"},
    "players.agent": ...,
    "evaluations.0.pairings": [{"agent": "host"}],
    "best": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max"},
}

RECURRENT_PPO = PPO | {"body": {"name": "shared", "net": RECURRENT}}
IN_GYMNASIUM: dict[str, Any] = {
    "name": "gymnasium",
    "id": "tests.gym_probes:Walk-v0",
    "arguments": {},
    "wrappers": [],
    "vectorization": {"name": "sync", "autoreset": "next_step"},
    "observation": {"normalize": {"eps": 1e-8}, "clip": 5.0, "channels": None},
    "reward": {"normalize": None, "clip": None},
    "action_mask": None,
}

# Evaluations and saves as in the tiny run, in a third of its opt steps; the replay buffer is filled all the same.
SHORT: dict[str, Any] = {
    "evaluations.0.interval": {"every": 4, "unit": "opt_steps"},
    "output.record": {"every": 2, "unit": "opt_steps"},
    "output.save": {"every": 4, "unit": "opt_steps"},
    "stop": {"after": 8, "unit": "opt_steps"},
}
MODEL = "a model"
CONFIGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "nothing saved on the way": {"output.save": {"every": 1000, "unit": "opt_steps"}},
    "intervals in env steps": {
        "evaluations.0.interval": {"every": 40, "unit": "env_steps"},
        "output.record": {"every": 17, "unit": "env_steps"},
        "output.save": {"every": 33, "unit": "env_steps"},
        "stop": {"after": 100, "unit": "env_steps"},
    },
    "intervals in epochs": {
        "evaluations.0.interval": {"every": 2, "unit": "epochs"},
        "output.record": {"every": 1, "unit": "epochs"},
        "output.save": {"every": 3, "unit": "epochs"},
        "stop": {"after": 6, "unit": "epochs"},
    },
    "everything at once": {
        "evaluations.0.interval": {"every": 1, "unit": "opt_steps"},
        "output.record": {"every": 1, "unit": "opt_steps"},
        "output.save": {"every": 1, "unit": "opt_steps"},
        "stop": {"after": 8, "unit": "opt_steps"},
    },
    "other numbers of worlds": {"num_worlds": {"host": 8, "agent": 3}},
    "no evaluation": {"evaluations": [], "best": None, "output.record": None},
    "long roll-outs": {"players.host.algorithm.rollout_length": 3, "players.agent.algorithm.updates_per_turn": 5},
    "copied target, sgd, deep sets": {
        "players.host.algorithm.target": {"name": "polyak", "tau": 1.0, "interval": 3},
        "players.host.algorithm.optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0},
        "players.host.algorithm.net": {"name": "deep_sets", "point_widths": [8], "head_widths": [8]},
    },
    "optimizers of torch": {
        "players.host.algorithm.optimizer": _torch("NAdam", weight_decay=0.01),
        "players.agent.algorithm.optimizer": _torch("RMSprop", momentum=0.9),
    },
    "prioritized replay, softmax": {
        "players.host.algorithm.replay_buffer": PRIORITIZED,
        "players.host.algorithm.exploration": {
            "name": "softmax",
            "temperature": {"name": "linear", "initial": 1.0, "final": 0.1, "num_steps": 8},
        },
    },
    "dueling dqn of 3 steps": {
        "players.host.algorithm.dueling": True,
        "players.host.algorithm.transitions": {"name": "n_step", "steps": 3},
    },
    "c51, prioritized": {
        "players.host.algorithm.value": C51,
        "players.host.algorithm.replay_buffer": PRIORITIZED,
    },
    "quantiles, dueling implicit quantiles, prioritized": {
        "players.host.algorithm.value": QUANTILE,
        "players.agent.algorithm.dueling": True,
        "players.agent.algorithm.value": IMPLICIT_QUANTILE,
        "players.agent.algorithm.replay_buffer": PRIORITIZED,
    },
    "torch kernel, residual net": {
        "execution.kernel": "torch",
        "players.agent.algorithm.net": {"name": "mlp", "net_arch": [8, "r8"], "activation": "relu"},
    },
    "only the host learns": {"players.agent": {"scripted": "greedy"}},
    "ppo against dqn": {"players.host.algorithm": PPO},
    "sac": ON_A_PROBE | {"players.host.algorithm": SAC},
    "sac with discrete actions against dqn": {"players.host.algorithm": SAC | {"log_std": None}},
    "td3": ON_A_PROBE | {"players.host.algorithm": TD3},
    "ppo in both seats, adaptive price, a network without a kernel": {
        "game": {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN},
        "roles": {"first": "host", "second": "host"},
        "players.host.algorithm": PPO
        | {
            "body": {"name": "shared", "net": {"name": "mlp", "net_arch": [8, "l"], "activation": "relu"}},
            "objective": KL_PENALTY,
        },
        "players.agent": ...,
        "evaluations.0.pairings": [{"first": "host", "second": "random"}, {"first": "random", "second": "host"}],
        "best": {"evaluation": "main", "pairing": 1, "measure": "return/second", "goal": "max"},
    },
    "recurrent ppo": ON_A_PROBE
    | {
        "game": ON_A_PROBE["game"] | {"continuous": False},
        "players.host.algorithm": PPO
        | {"body": {"name": "separate", "policy": RECURRENT, "value": RECURRENT | {"cell": "gru"}}},
    },
    "recurrent ppo in gymnasium": ON_A_PROBE | {"game": IN_GYMNASIUM, "players.host.algorithm": RECURRENT_PPO},
    "recurrent ppo in both seats": {
        "game": {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN},
        "roles": {"first": "host", "second": "host"},
        "players.host.algorithm": RECURRENT_PPO,
        "players.agent": ...,
        "evaluations.0.pairings": [{"first": "host", "second": "random"}, {"first": "random", "second": "host"}],
        "best": {"evaluation": "main", "pairing": 1, "measure": "return/second", "goal": "max"},
    },
    "self-play of 2 steps": {
        "game": {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN},
        "players.host.algorithm.transitions": {"name": "n_step", "steps": 2},
        "roles": {"first": "host", "second": "host"},
        "players.agent": ...,
        "evaluations.0.pairings": [{"first": "host", "second": "random"}, {"first": "random", "second": "host"}],
        "best": {"evaluation": "main", "pairing": 1, "measure": "return/second", "goal": "max"},
    },
}


@pytest.mark.parametrize("name", [*CONFIGS, MODEL])
def test_a_run_stopped_at_every_safe_point_ends_in_the_same_bits(
    name: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config({}, TINY_FIT) if name == MODEL else make_config(SHORT | CONFIGS[name])
    run, uninterrupted = tmp_path / "run", tmp_path / "uninterrupted"
    least = num_safe_points(config, uninterrupted)
    with stopping_at(2):
        trainer = fit(run, config)
    stops = 1
    while not trainer.finished:
        with stopping_at(2):  # the first one is the one that it stopped at
            trainer = fit(run)
        stops += 1
        assert stops <= 2 * least, "resuming does not get on"
    assert stops >= least - 1
    assert_same_bits(run, uninterrupted)


@pytest.mark.parametrize("name", ["as it is", *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS)])
def test_a_run_stopped_once_anywhere_ends_in_the_same_bits(
    name: str, request: pytest.FixtureRequest, make_config: MakeConfig, tmp_path: Path
) -> None:
    config, uninterrupted = make_config(CONFIGS[name]), tmp_path / "uninterrupted"
    stride = 1 if request.node.get_closest_marker("slow") else 4
    for safe_point in range(1, num_safe_points(config, uninterrupted), stride):
        run = tmp_path / f"stopped-at-{safe_point}"
        with stopping_at(safe_point):
            assert not fit(run, config).finished
        assert fit(run).finished
        assert_same_bits(run, uninterrupted)


def test_a_signal_that_comes_at_the_end_of_a_safe_point_loses_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"output.save": {"every": 1000, "unit": "opt_steps"}, "evaluations": [], "best": None})
    with at_call(ProgressReporter, "show", 20, send_signal):
        trainer = fit(tmp_path / "run", config)
    assert 0 < trainer.opt_steps < 24
    latest = pointed_at(tmp_path / "run", "latest")
    assert latest is not None
    assert latest["counters"]["opt_steps"] == trainer.opt_steps


def test_two_runs_that_differ_in_their_seed_differ_in_every_checkpoint(make_config: MakeConfig, tmp_path: Path) -> None:
    for seed in (0, 1):
        fit(tmp_path / str(seed), make_config({"seed": seed}))
    zero, one = (all_checkpoints(tmp_path / str(seed)) for seed in (0, 1))
    assert [checkpoint for checkpoint in zero if checkpoint in one] == []
    assert records(tmp_path / "0") != records(tmp_path / "1")


def test_a_run_resumed_with_full_segments_of_replay_rows_ends_in_the_same_bits(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    replay = {"name": "uniform", "capacity": 20000, "layout": "whole", "scratch_folder": None}
    config = make_config(
        {
            "num_worlds": 2000,
            "num_replicas": 1,
            "players.host.algorithm.replay_buffer": replay,
            "players.agent.algorithm.replay_buffer": replay,
            "evaluations": [],
            "best": None,
            "stop": {"after": 60, "unit": "opt_steps"},
            "output.save": {"every": 9, "unit": "opt_steps"},
        }
    )
    fit(tmp_path / "uninterrupted", config)
    with stopping_at(70):
        fit(tmp_path / "run", config)
    assert list((tmp_path / "run" / "buffers").iterdir())
    fit(tmp_path / "run")
    assert_same_bits(tmp_path / "run", tmp_path / "uninterrupted")


# ---- stopped in an evaluation --------------------------------------------------------------------------


def test_a_run_stopped_in_any_evaluation_ends_in_the_same_bits(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    with at_call(evaluator.Batch, "play_round", 0, kill) as rounds:
        fit(tmp_path / "uninterrupted", config)
    num_interrupted = 0
    for number in range(1, len(rounds), 7):
        run = tmp_path / f"stopped-in-round-{number}"
        with at_call(evaluator.Batch, "play_round", number, send_signal):
            trainer = fit(run, config)
        num_interrupted += not trainer.finished
        fit(run)
        assert_same_bits(run, tmp_path / "uninterrupted")
    assert num_interrupted >= len(rounds) // 7


def test_an_evaluation_does_not_hold_up_a_signal(make_config: MakeConfig, tmp_path: Path) -> None:
    with at_call(evaluator.Batch, "play_round", 2, send_signal) as rounds:
        trainer = fit(tmp_path / "run", make_config())
    assert (len(rounds), trainer.opt_steps, records(tmp_path / "run")) == (2, 0, [])


# ---- killed --------------------------------------------------------------------------------------------


def calls_to_the_disk(config: dict[str, Any], run: Path) -> int:
    """Of an uninterrupted run, which is made on the way."""
    with at_call(os, "fsync", 0, kill) as calls:
        fit(run, config)
    return len(calls)


def assert_survives_a_kill_at(number: int, config: dict[str, Any], folder: Path) -> None:
    run = folder / f"killed-at-{number}"
    with at_call(os, "fsync", number, kill), pytest.raises(Killed):
        fit(run, config)
    if (run / "config.yml").exists():
        assert fit(run).finished
        assert_same_bits(run, folder / "uninterrupted")


def test_a_run_killed_while_it_saves_ends_in_the_same_bits(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"output.save": {"every": 4, "unit": "opt_steps"}})
    num_calls = calls_to_the_disk(config, tmp_path / "uninterrupted")
    for number in range(1, num_calls, 9):
        assert_survives_a_kill_at(number, config, tmp_path)


@pytest.mark.slow
def test_a_run_killed_at_any_call_to_the_disk_ends_in_the_same_bits(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"output.save": {"every": 1, "unit": "opt_steps"}, "output.keep_every": None})
    for number in range(1, calls_to_the_disk(config, tmp_path / "uninterrupted")):
        assert_survives_a_kill_at(number, config, tmp_path)


def test_the_best_checkpoint_stays_the_best_after_a_kill_before_it_is_marked(
    make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    run, config = tmp_path / "run", make_config()
    uninterrupted = uninterrupted_run(config)
    num_best = 0
    with at_call(palestra.run.run_checkpoints.Checkpoints, "mark_best", 1, kill), pytest.raises(Killed):
        fit(run, config)
    while True:
        num_best += 1
        try:
            with at_call(
                palestra.run.run_checkpoints.Checkpoints, "mark_best", 2, kill
            ):  # the first repeats the one that was lost
                if fit(run).finished:
                    break
        except Killed:
            pass
    assert_same_bits(run, uninterrupted)


def test_a_run_killed_before_its_first_checkpoint_starts_at_0_and_says_so(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str], uninterrupted_run: MakeRun
) -> None:
    run, config = tmp_path / "run", make_config({"output.display": "plain"})
    uninterrupted = uninterrupted_run(config)
    with at_call(Trainer, "save", 1, kill), pytest.raises(Killed):
        fit(run, config)
    capfd.readouterr()
    fit(run)
    assert f"{run} has no checkpoint: it starts at 0" in capfd.readouterr().out
    assert_same_bits(run, uninterrupted)


def test_a_run_that_saves_nothing_has_no_checkpoint_and_starts_at_0(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with stopping_at(20):
        fit(run, make_config({"output.save": None}))
    assert list((run / "checkpoints").iterdir()) == []
    before = fit(run)
    assert (before.finished, before.opt_steps) == (True, 24)
    fit(tmp_path / "uninterrupted", make_config({"output.save": None}))
    assert records(run) == records(tmp_path / "uninterrupted")


# ---- what resuming says and leaves alone ---------------------------------------------------------------


def folder_bytes(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_a_finished_run_says_so_and_nothing_changes(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    fit(run, make_config({"output.display": "plain", "output.recorders": [{"name": "tensorboard"}, {"name": "csv"}]}))
    before = folder_bytes(run)
    capfd.readouterr()
    assert fit(run).finished
    assert "it is finished" in capfd.readouterr().out
    assert folder_bytes(run) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_leads_to_the_same_bits(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str], uninterrupted_run: MakeRun
) -> None:
    run, config = tmp_path / "run", make_config({"output.display": "plain"})
    uninterrupted = uninterrupted_run(config)
    fit(run, config)
    latest = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    (latest / "tensors.safetensors").write_bytes(b"?")
    capfd.readouterr()
    fit(run)
    assert f"checkpoint {latest} is damaged: tensors.safetensors" in capfd.readouterr().out
    assert records(run) == records(uninterrupted)
    assert pointed_at(run, "latest") == pointed_at(uninterrupted, "latest")


@pytest.mark.parametrize(("kind", "key"), [("versions", "torch"), ("machine", "processor")])
def test_what_is_not_as_it_was_is_named(
    kind: str,
    key: str,
    make_config: MakeConfig,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stopping_at(20):
        fit(tmp_path / "run", make_config({"output.display": "plain"}))
    before = getattr(palestra.run.run_checkpoints, kind)()
    monkeypatch.setattr(palestra.run.run_checkpoints, kind, lambda: before | {key: "another"})
    capfd.readouterr()
    fit(tmp_path / "run")
    line = f"{kind}.{key} was {before[key]}, is another; equal bits are not promised"
    assert line in capfd.readouterr().out.replace("\n", "")


def test_resuming_counts_the_time_of_training_on(make_config: MakeConfig, tmp_path: Path) -> None:
    with stopping_at(30):
        first = fit(tmp_path / "run", make_config())
    fit(tmp_path / "run")
    times = [
        record["clock"]["train_seconds"]
        for record in read_records(tmp_path / "run" / "records.jsonl")
        if record["kind"] == "training"
    ]
    assert times == sorted(times)
    assert times[-1] > first.run.clock.seconds


def test_load_gives_the_class_that_was_asked(make_config: MakeConfig, tmp_path: Path) -> None:
    with stopping_at(20):
        fit(tmp_path / "run", make_config())
    trainer = DQNTrainer.load(tmp_path / "run")
    trainer.fit()
    assert (type(trainer), trainer.finished) == (DQNTrainer, True)


# ---- other processes -----------------------------------------------------------------------------------


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [*PALESTRA, *map(str, arguments)]
    return Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_training(run: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has its first record of training."""
    deadline = time.monotonic() + PATIENCE_S
    while not ((run / "records.jsonl").exists() and '"training"' in (run / "records.jsonl").read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write_config(config: dict[str, Any], folder: Path) -> Path:
    """As JSON, which is YAML too."""
    path = folder / "tiny.yml"
    path.write_text(json.dumps(config))
    return path


LONG = {
    "stop": {"after": 400, "unit": "opt_steps"},
    "evaluations.0.interval": {"every": 150, "unit": "opt_steps"},
    "output.record": {"every": 20, "unit": "opt_steps"},
    "output.save": {"every": 50, "unit": "opt_steps"},
}


@pytest.mark.parametrize(("number", "of"), [(signal.SIGINT, TINY), (signal.SIGTERM, TINY), (signal.SIGTERM, TINY_FIT)])
def test_a_signal_saves_and_leaves_and_another_process_goes_on_to_the_bit(
    number: int, of: dict[str, Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    config, run = make_config({**LONG, "output.save": {"every": 10**6, "unit": "opt_steps"}}, of), tmp_path / "run"
    process = start("train", write_config(config, tmp_path), "--run", run)
    wait_for_training(run, process)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 128 + number
    assert len(all_checkpoints(run)) == 2  # the first and this one
    fit(tmp_path / "uninterrupted", config)
    assert start("resume", run).wait(PATIENCE_S) == 0
    assert_same_bits(run, tmp_path / "uninterrupted")


def test_a_second_signal_leaves_at_once(make_config: MakeConfig, tmp_path: Path) -> None:
    """Also from code that never reaches a safe point."""
    (tmp_path / "stuck.py").write_text(
        "import time\nimport palestra\nfrom palestra.config import UserConfig\n\n"
        "class Stuck(palestra.Callback):\n"
        "    class Config(UserConfig):\n        pass\n\n"
        "    def before_epoch(self, trainer):\n"
        "        print('stuck', flush=True)\n        while True:\n            time.sleep(0.01)\n"
    )
    file = write_config(make_config({"callbacks": [{"name": "stuck:Stuck"}]}), tmp_path)
    process = Forked([*PALESTRA, "train", str(file)], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    while "stuck" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    process.stdout.close()


@pytest.mark.parametrize("num_kills", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_a_run_killed_again_and_again_ends_in_the_same_bits(
    num_kills: int, make_config: MakeConfig, tmp_path: Path
) -> None:
    config, run, rng = make_config(LONG), tmp_path / "run", random.Random(num_kills)
    fit(tmp_path / "uninterrupted", config)
    process = start("train", write_config(config, tmp_path), "--run", run)
    for _ in range(num_kills):
        length = (run / "records.jsonl").stat().st_size if (run / "records.jsonl").exists() else 0
        deadline = time.monotonic() + PATIENCE_S
        while not (run / "records.jsonl").exists() or (run / "records.jsonl").stat().st_size == length:
            if process.poll() is not None:
                break
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = start("resume", run, "--quiet")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert_same_bits(run, tmp_path / "uninterrupted")


def test_another_process_computes_the_same_bits(make_config: MakeConfig, tmp_path: Path) -> None:
    file = write_config(make_config(), tmp_path)
    assert start("train", file, "--run", tmp_path / "there").wait(PATIENCE_S) == 0
    fit(tmp_path / "here", make_config())
    assert all_checkpoints(tmp_path / "there") == all_checkpoints(tmp_path / "here")
    assert_same_bits(tmp_path / "there", tmp_path / "here")


def test_a_second_process_on_the_same_run_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with stopping_at(20):
        fit(run, make_config())
    before = folder_bytes(run)
    with RunFolder.open(run).lock():
        process = start("resume", run)
        _, errors = process.communicate(timeout=PATIENCE_S)
    in_use = f"{run} is in use by process {os.getpid()}; wait for it or stop it"
    assert (process.returncode, errors.splitlines()[-1:]) == (2, [in_use])
    assert folder_bytes(run) == before


def test_saves_on_signals_use_up_no_number_and_keep_every_keeps_the_same_ones(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    saves = {"output.save": {"every": 4, "unit": "opt_steps"}, "output.keep_last": 1, "output.keep_every": 2}
    fit(tmp_path / "uninterrupted", make_config(saves))
    with stopping_at(9):
        fit(tmp_path / "run", make_config(saves))
    for safe_point in (3, 5, 11):
        with stopping_at(safe_point):
            trainer = fit(tmp_path / "run")
        assert trainer.checkpoints.stands_on == trainer.checkpoints.number + 1  # it stands between two that are due
        assert trainer.checkpoints.number in trainer.checkpoints.stored.numbers()  # and the one before is kept
    assert fit(tmp_path / "run").finished
    assert_same_bits(tmp_path / "run", tmp_path / "uninterrupted")
    own, other = (sorted(os.listdir(tmp_path / name / "checkpoints")) for name in ("run", "uninterrupted"))
    assert own == other


# ---- checkpoints without replay rows -------------------------------------------------------------------


def rows_in(run: Path) -> dict[int, bool]:
    """Which checkpoints hold rows of all replay buffers; the others hold none."""
    manifests = {
        int(path.parent.name): json.loads(path.read_text()) for path in run.glob("checkpoints/*/manifest.json")
    }
    buffers = {number: manifest["buffers"] for number, manifest in manifests.items()}
    assert all(held.keys() in (set(), {"host", "agent"}) for held in buffers.values())
    return {number: any(held[name]["num_added"] for name in held) for number, held in sorted(buffers.items())}


@pytest.mark.parametrize("which", ["all", "resumable", "none"])
def test_checkpoints_hold_the_rows_that_the_config_says_and_the_run_is_the_same(
    which: str, make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    uninterrupted = uninterrupted_run(make_config())
    run = tmp_path / "run"
    fit(run, make_config({"output.replay_in_checkpoints": which}))
    fit(run)  # it is finished
    assert records(run) == records(uninterrupted)
    assert rows_in(run) == {0: False, 1: which != "none", 2: which != "none", 3: which == "all"}
    if which == "none":
        assert not (run / "buffers").exists()


@pytest.mark.parametrize("stop", [5, 12, 19, 26, 33])
def test_a_run_with_rows_in_its_resumable_checkpoints_ends_in_the_same_bits(
    stop: int, make_config: MakeConfig, tmp_path: Path, uninterrupted_run: MakeRun
) -> None:
    config = make_config({"output.replay_in_checkpoints": "resumable"})
    uninterrupted = uninterrupted_run(config)
    with at_call(Trainer, "safe_point", stop, kill), pytest.raises(Killed):
        fit(tmp_path / "run", config)
    fit(tmp_path / "run")
    assert_same_bits(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("stop", range(2, 34, 6))
def test_a_run_without_rows_in_its_checkpoints_goes_on_with_empty_buffers_and_says_so(
    stop: int, make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"output.replay_in_checkpoints": "none", "output.display": "plain"}
    with stopping_at(stop):
        stopped = fit(tmp_path / "run", make_config(changes | {"players.host.algorithm.replay_buffer": PRIORITIZED}))
    steps, had_rows = stopped.opt_steps, not stopped.host_replay_buffer.is_empty
    capfd.readouterr()
    resumed = Trainer.load(tmp_path / "run")
    resumed.fit(num_steps=1, unit="opt_steps")
    told = "holds no replay rows (output.replay_in_checkpoints): the replay buffer of player 'host' begins empty"
    assert (told in capfd.readouterr().out.replace("\n", "")) == had_rows
    assert resumed.opt_steps == steps + 1
    resumed.fit()
    assert resumed.finished


def test_a_memory_that_was_saved_alone_goes_on_in_a_run_without_rows(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"output.replay_in_checkpoints": "none"})
    first = Trainer(config, run=tmp_path / "run")
    first.fit(num_steps=1, unit="epochs")
    first.fit(num_steps=1, unit="epochs")  # a turn is not cut in two
    for role in ("host", "agent"):
        save_replay(getattr(first, f"{role}_replay_buffer"), tmp_path / role)
    first.fit()
    again = Trainer(config, run=tmp_path / "other")
    again.fit(num_steps=2, unit="epochs")
    loaded = Trainer.load(tmp_path / "other")
    for role in ("host", "agent"):
        load_replay(getattr(loaded, f"{role}_replay_buffer"), tmp_path / role)
    loaded.fit()
    assert_same_bits(tmp_path / "other", tmp_path / "run")


def test_a_finished_run_without_its_last_rows_is_extended_and_verified(
    make_config: MakeConfig, in_tmp_path: Path
) -> None:
    changes = {"output.replay_in_checkpoints": "resumable", "output.display": "plain"}
    fit(Path("run"), make_config(changes))
    assert rows_in(Path("run")) == {0: False, 1: True, 2: True, 3: False}
    result = CliRunner().invoke(app, ["verify", "run"])
    assert result.exit_code == 0, result.output
    assert "00000002" in result.output
    result = CliRunner().invoke(app, ["verify", "run", "--from", "3"])
    assert result.exit_code == 2
    assert "--from: expected a checkpoint with replay rows" in result.output
    result = CliRunner().invoke(app, ["extend", "run", "stop.after=40"])
    assert result.exit_code == 0, result.output
    assert "checkpoint 00000003 holds no replay rows" in result.output.replace("\n", "")
