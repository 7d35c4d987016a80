"""Training in Gymnasium environments: known values, resume to the bit, loaded players, processes that end."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LEARNER, MakeConfig
from resuming import assert_same_bits, fit, stopping_at

import palestra
from palestra.cli import main
from palestra.config import check, render
from palestra.run.checkpoints import Checkpoints
from palestra.run.run_checkpoints import stored_config
from palestra.storage.run_folder import RunFolder
from palestra.training.stored_training import StoredRun
from tests.forked import Forked
from tests.forked import run as run_forked
from tests.games.gym_worlds import MODES, cart_pole, gym_data
from tests.gym_probes import two_states_values

Data = dict[str, Any]
NORMALIZE = {
    "observation": {"normalize": {"eps": 1e-8}, "clip": 10.0, "channels": None},
    "reward": {"normalize": {"gamma": 0.99, "eps": 1e-8}, "clip": 10.0},
}


def how(name: str, mode: str) -> Data:
    return {"name": name, "autoreset": mode}


def lone_agent(make_config: MakeConfig, game: Data, changes: Data | None = None) -> Data:
    """The tiny run with one agent in a Gymnasium environment."""
    alone = {
        "game": game,
        "num_worlds": 4,
        "num_replicas": 1,
        "actors": None,
        "roles": {"agent": "agent"},
        "players": {"agent": LEARNER},
        "evaluations.0.pairings": [{"agent": "agent"}, {"agent": "random"}],
        "best": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max"},
        "evaluations.0.max_rounds": 30,
    }
    return make_config(alone | (changes or {}))


def records(run: Path) -> list[Data]:
    """The records of a run, without what the clock says."""
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "clock"} for line in lines]


# ---- what is learned ---------------------------------------------------------------------------------


VARIANTS: dict[str, Data] = {
    "plain": {},
    "dueling": {"dueling": True},
    "c51": {"value": {"name": "c51", "num_atoms": 41, "low": 0.0, "high": 10.0}, "batch_size": 64},
    "quantile": {
        "value": {"name": "quantile", "num_quantiles": 4, "huber_delta": 1.0},
        "learning_rate": {"name": "linear", "initial": 0.03, "final": 0.0, "num_steps": 800},
    },
    "implicit quantile": {
        "value": {
            "name": "implicit_quantile",
            "num_quantiles": 4,
            "num_target_quantiles": 4,
            "num_acting_quantiles": 8,
            "num_cosines": 4,
            "embedding_dim": 8,
            "huber_delta": 1.0,
        }
    },
}


@pytest.mark.parametrize(
    ("variant", "mode"),
    [*(("plain", mode) for mode in MODES), *((variant, MODES[0]) for variant in list(VARIANTS)[1:])],
)
def test_dqn_learns_the_known_values_under_termination_and_truncation(
    make_config: MakeConfig, tmp_path: Path, variant: str, mode: str
) -> None:
    game = gym_data(id="tests.gym_probes:TwoStates-v0", arguments={"limit": 4}, vectorization=how("sync", mode))
    learner = copy.deepcopy(LEARNER)
    learner["algorithm"] |= {
        "gamma": 0.9,
        "double": False,
        "updates_per_turn": 2,
        "warmup_env_steps": 400,
        "batch_size": 256,
        "target": {"name": "polyak", "tau": 1.0, "interval": 10},
        "max_grad_norm": None,
        "net": {"name": "mlp", "net_arch": [], "activation": "relu"},
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "linear", "initial": 0.1, "final": 0.0, "num_steps": 800},
        "exploration": {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": 1.0}},
        "replay_buffer": {"name": "uniform", "capacity": 10000, "layout": "whole", "scratch_folder": None},
    }
    learner["algorithm"] |= VARIANTS[variant]
    changes = {"players": {"agent": learner}, "evaluations": [], "best": None, "stop.after": 800, "output.save": None}
    trainer = palestra.Trainer(lone_agent(make_config, game, changes), run=tmp_path / "run")
    trainer.fit()
    with torch.no_grad():
        values = trainer.player_of("agent").algorithm.values({"observation": torch.eye(2)})
    assert np.allclose(values, two_states_values(0.9), atol=1e-2)


# ---- fields of info ------------------------------------------------------------------------------------


def told(make_config: MakeConfig, mode: str, info: list[str], changes: Data | None = None) -> Data:
    game = gym_data(id="tests.gym_probes:Telling-v0", vectorization=how("sync", mode))
    output = {"output.info": info, "output.statistics": ["mean", "max", "count"], "stop.after": 10}
    every = {"output.record": {"every": 3, "unit": "opt_steps"}, "output.save": {"every": 2, "unit": "opt_steps"}}
    return lone_agent(make_config, game, output | every | (changes or {}))


@pytest.mark.parametrize("mode", MODES)
def test_named_fields_of_info_are_recorded_and_nothing_else_changes(
    make_config: MakeConfig, tmp_path: Path, mode: str
) -> None:
    """The age after each step of an episode: those of a Walk of length n are 1 to n."""
    fit(tmp_path / "plain", told(make_config, mode, []))
    fit(tmp_path / "run", told(make_config, mode, ["age", "pair"]))
    found, plain = records(tmp_path / "run"), records(tmp_path / "plain")
    training = [record["players"]["agent"] for record in found if record["kind"] == "training"]
    assert sum(record["episodes"]["number"] > 0 for record in training) > 1
    before = 0
    for record in training:
        num_steps, num_ends = record["env_steps"] - before, record["episodes"]["number"]
        before = record["env_steps"]
        if num_ends == 0:
            assert "final_info/age" not in record
            continue
        num_resets = num_steps - record["info/age/count"]
        assert num_resets == 0 if mode != "next_step" else abs(num_resets - num_ends) <= 4  # worlds
        assert record["final_info/age/count"] == num_ends
        assert record["final_info/age"] == record["episodes"]["length"]
        assert record["final_info/age/max"] <= record["info/age/max"] <= 5
        assert sum(record["info/pair"]["histogram"]["counts"]) == 2 * record["info/age/count"]
    for record in found:
        for player in record.get("players", {}).values():
            for name in [name for name in player if name.startswith(("info/", "final_info/"))]:
                del player[name]
        for pair in record.get("pairs", []):
            statistics = pair["statistics"]
            assert statistics["final_info/age"] == statistics["episode_length"]
            for name in [name for name in statistics if name.startswith(("info/", "final_info/"))]:
                del statistics[name]
    assert found == plain


def test_fields_of_info_of_a_run_that_was_stopped_are_those_of_one_that_was_not(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = told(make_config, "same_step", ["age", "pair", "inner/half"])
    fit(tmp_path / "whole", config)
    with stopping_at(7):  # between two records
        fit(tmp_path / "run", config)
    assert records(tmp_path / "run") != records(tmp_path / "whole")
    fit(tmp_path / "run")
    assert list(map(json.dumps, records(tmp_path / "run"))) == list(map(json.dumps, records(tmp_path / "whole")))


def test_a_field_of_info_that_never_comes_is_told_once_with_those_that_came(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path / "run", told(make_config, "same_step", ["rage", "age"], {"output.display": "plain"}))
    output = " ".join(capfd.readouterr().out.split())
    assert output.count("output.info: no step had the field 'rage'; the fields are: age, ") == 1
    assert "the field 'age'" not in output


def test_fields_of_info_are_refused_where_the_game_has_none(make_config: MakeConfig) -> None:
    with pytest.raises(
        palestra.ConfigError,
        match=r"^output\.info: expected \[\], because the game 'polyhedra' has no info fields, got age$",
    ):
        palestra.Trainer(make_config({"output.info": ["age"]}))


# ---- resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectorization", [*(how("sync", mode) for mode in MODES), how("async", "same_step")])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    make_config: MakeConfig, tmp_path: Path, vectorization: Data
) -> None:
    changes: Data = {
        "stop.after": 40,
        "num_worlds": 2,
        "num_replicas": 1,
        "actors": None,
        "evaluations.0.num_games": 2,
        "evaluations.0.final_num_games": 3,
    }
    changes["evaluations.0.interval"] = {"every": 20, "unit": "opt_steps"}  # each starts processes
    config = lone_agent(make_config, cart_pole(vectorization=vectorization, **NORMALIZE), changes)

    class Stop(palestra.Callback):
        def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
            if trainer.opt_steps == 29:
                trainer.run.signals.received = signal.SIGTERM

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    palestra.Trainer(config, run=whole).fit()
    palestra.Trainer(config, run=stopped, callbacks=[Stop(None)]).fit()
    resumed = palestra.Trainer.load(stopped, callbacks=[palestra.Callback(None)])
    resumed.fit()
    assert resumed.players["agent"].worlds.world.exact
    assert records(stopped) == records(whole)
    states = [str(Checkpoints(RunFolder(run), 1, None).load("latest").state["players"]) for run in (whole, stopped)]
    assert states[0] == states[1]


def test_environments_that_cannot_be_brought_back_are_told_in_display_and_records(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = lone_agent(make_config, gym_data(id="tests.gym_probes:Forgetful-v0"), {"evaluations": [], "best": None})
    with stopping_at(20):
        fit(tmp_path / "run", config)
    with pytest.warns(UserWarning, match="did not give the same observations when it was replayed"):
        fit(tmp_path / "run")
    told = [line["players"]["agent"].get("inexact") for line in records(tmp_path / "run")]
    assert told == sorted(told, key=bool)
    assert set(told) == {None, True}
    said = capfd.readouterr().out.replace("\n", " ")
    assert said.count("the environments of player 'agent' could not be brought back as they were") == 1


def test_records_hold_the_environments_own_returns(make_config: MakeConfig, tmp_path: Path) -> None:
    palestra.Trainer(lone_agent(make_config, cart_pole(**NORMALIZE), {"stop.after": 80}), run=tmp_path / "run").fit()
    episodes = [
        line["players"]["agent"]["episodes"] for line in records(tmp_path / "run") if line["kind"] == "training"
    ]
    finished = [entry for entry in episodes if entry["number"]]
    assert finished
    assert all(entry["return/agent"] == entry["length"] for entry in finished)  # a pole earns 1 a step
    evaluations = [line for line in records(tmp_path / "run") if line["kind"] == "evaluation"]
    assert [pair["games"] for pair in evaluations[-1]["pairs"]] == [12, 12]


def test_a_loaded_player_sees_what_it_saw(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = palestra.Trainer(lone_agent(make_config, cart_pole(**NORMALIZE)), run=run)
    trainer.fit()
    player = palestra.load_player(run)
    assert str(player.game.state_dict()) == str(trainer.game.state_dict())
    raw = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    seen, was_seen = (
        game.transformed("agent", game.read_observation("agent", raw)[0]) for game in (player.game, trainer.game)
    )
    assert torch.equal(seen["observation"], was_seen["observation"])
    assert not torch.equal(seen["observation"], torch.from_numpy(raw))


def test_a_loaded_player_chooses_as_the_environment_takes_it(make_config: MakeConfig, tmp_path: Path) -> None:
    palestra.Trainer(lone_agent(make_config, gym_data(**NORMALIZE)), run=tmp_path / "run").fit()
    player = palestra.load_player(tmp_path / "run")
    raw = np.random.default_rng(0).normal(scale=3.0, size=(50, 3))
    view = player.game.transformed("agent", player.game.read_observation("agent", raw)[0])
    legal, keys = torch.ones(50, 3, dtype=torch.bool), torch.arange(50)
    expected = player.policy(explore=False).act(view, legal, keys, {}).action + 5  # a Walk's actions begin at 5
    actions, memory = player.predict(raw)
    assert (actions.tolist(), memory) == (expected.tolist(), None)
    assert len(set(expected.tolist())) > 1
    assert [int(player.predict(one)[0]) for one in raw] == expected.tolist()
    with pytest.raises(ValueError, match=r"expected an observation of Box.*, got one of shape \(4,\)"):
        player.predict(np.zeros(4))


# ---- what is remembered ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_no_row_of_a_memory_crosses_a_reset(make_config: MakeConfig, tmp_path: Path, mode: str, steps: int) -> None:
    learner = copy.deepcopy(LEARNER)
    learner["algorithm"] |= {
        "transitions": {"name": "n_step", "steps": steps},
        "replay_buffer": {"name": "uniform", "capacity": 2000, "layout": "whole", "scratch_folder": None},
        "rollout_length": 7,
    }
    changes = {
        "players": {"agent": learner},
        "stop": {"after": 560, "unit": "env_steps"},
        "evaluations": [],
        "best": None,
    }
    config = lone_agent(make_config, gym_data(vectorization=how("sync", mode)), changes)
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    trainer.fit()
    buffer = trainer.player_of("agent").replay_buffer
    kept = buffer.rows(0, buffer.num_added)
    (tag, age, _), (next_tag, next_age, _) = (
        kept[f"{name}.observation"].unbind(1) for name in ("observation", "next_observation")
    )
    num = next_age - age
    assert torch.equal(tag, next_tag)
    assert ((num >= 1) & (num <= steps)).all()
    ended = kept["terminated"]
    kind = tag % 3  # a Walk is cut off where it is 1, else it terminates
    assert (kind[ended] != 1).all()
    assert set(num[ended].tolist()) == set(range(1, steps + 1))
    gamma, ages = learner["algorithm"]["gamma"], age.unsqueeze(1) + 1 + torch.arange(steps)
    counted = torch.arange(steps) < num.unsqueeze(1)
    assert torch.allclose(kept["reward"], (ages * counted * gamma ** torch.arange(steps)).sum(1))
    assert torch.allclose(kept["extras.discount"], gamma**num)
    if mode != "next_step":  # every step is a row, but for those that wait for more
        assert 560 - 4 * (steps - 1) <= len(tag) <= 560


def test_an_evaluation_teaches_the_statistics_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    trained = palestra.Trainer(lone_agent(make_config, cart_pole(**NORMALIZE)), run=tmp_path / "run")
    trained.fit()
    evaluating = StoredRun.open(tmp_path / "run")
    evaluating.load("latest")
    evaluating.evaluate("main", 8)
    assert str(evaluating.game.state_dict()) == str(trained.game.state_dict())


TWO_RUNS = """
import sys
from pathlib import Path
from palestra.cli import main
for name in ("ppo-cartpole", "sac-pendulum"):
    changes = ["stop={after: 12, unit: opt_steps}", "num_worlds=2", "output.display=quiet", "output.save=null"]
    changes += ["output.record={every: 4, unit: opt_steps}", "evaluations.0.final_num_games=2"]
    changes += ["evaluations.0.num_games=2", "evaluations.0.max_rounds=20", "output.recorders=[]"]
    path = "players.agent.algorithm."
    if name.startswith("ppo"):
        changes += [path + "rollout_length=16"]
    else:
        changes += [path + "warmup_env_steps=8"]
    try:
        main(["train", f"configs/{name}.yml", *changes, "--run", f"{sys.argv[1]}/{name}"])
    except SystemExit as left:
        assert not left.code
"""


def test_two_processes_with_one_seed_write_the_same_records(tmp_path: Path) -> None:
    """Which have hash seeds of their own: an interpreter's, and that of the process in which forks begin."""
    root = Path(__file__).parent.parent
    folders = [tmp_path / "some", tmp_path / "others"]
    one, other = ([sys.executable, "-c", TWO_RUNS, str(folder)] for folder in folders)
    subprocess.run(one, cwd=root, env=os.environ | {"PYTHONHASHSEED": "1"}, check=True)
    run_forked(other, cwd=root, check=True)
    for name in ("ppo-cartpole", "sac-pendulum"):
        some, others = (records(folder / name) for folder in folders)
        assert len(some) >= 4
        assert some == others


# ---- what is odd -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "sac"])
def test_a_dict_with_an_image_is_learned_and_resumed(tmp_path: Path, algorithm: str) -> None:
    """The config is the one that the command line prints; a stopped run goes on to the same bits."""
    from palestra.commands.starting import starting_config

    path = "players.agent.algorithm."
    changes = ["num_worlds=3", "stop={after: 6, unit: opt_steps}", "output.save={every: 2, unit: opt_steps}"]
    changes += ["evaluations=[]", "best=null", "output.display=quiet", "execution.compile=false", "output.recorders=[]"]
    if algorithm == "ppo":
        changes += [path + "rollout_length=8", path + "num_minibatches=3", path + "num_passes=1"]
    else:
        changes += [path + "warmup_env_steps=12", path + "batch_size=4", path + "rollout_length=3"]
        changes += [path + "updates_per_turn=2", path + "replay_buffer.capacity=50"]
    config = starting_config(algorithm, ["tests.gym_oddities:Cockpit-v0"])

    class Stop(palestra.Callback):
        def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
            if trainer.opt_steps == 3:
                trainer.run.signals.received = signal.SIGTERM

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    palestra.Trainer(config, run=whole, overrides=changes).fit()
    palestra.Trainer(config, run=stopped, overrides=changes, callbacks=[Stop(None)]).fit()
    palestra.Trainer.load(stopped, callbacks=[palestra.Callback(None)]).fit()
    states = [str(Checkpoints(RunFolder(run), 1, None).load("latest").state["players"]) for run in (whole, stopped)]
    assert states[0] == states[1]
    assert records(stopped)[-1] == records(whole)[-1]


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ppo"])
def test_a_locked_joint_is_played_as_its_one_value_and_the_rest_is_learned(tmp_path: Path, algorithm: str) -> None:
    from palestra.commands.starting import starting_config

    path = "players.agent.algorithm."
    changes = ["num_worlds=2", "stop={after: 6, unit: opt_steps}", "output.save=null", "evaluations=[]", "best=null"]
    changes += ["output.display=quiet", "execution.compile=false", "output.recorders=[]", "execution.num_threads=1"]
    if algorithm == "ppo":
        changes += [path + "rollout_length=8", path + "num_minibatches=2", path + "num_passes=1"]
        changes += [path + "box_actions={name: squashed_gaussian, initial_log_std: 0.0}"]
    else:
        changes += [path + "warmup_env_steps=4", path + "batch_size=4", path + "replay_buffer.capacity=50"]
    config = starting_config(algorithm, ["tests.gym_oddities:Locked-v0"])
    trainer = palestra.Trainer(config, run=tmp_path / "run", overrides=changes)
    trainer.fit()
    player = trainer.players["agent"]
    assert player.opt_steps == 6
    assert all(bool(weight.isfinite().all()) for net in player.nets.values() for weight in net.parameters())
    for deterministic in (True, False):
        action, _ = player.predict(np.zeros((5, 1), np.float32), deterministic=deterministic)
        assert action[:, 1].tolist() == [np.float32(0.3)] * 5


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_numbers_that_are_none_end_the_run_in_one_line(make_config: MakeConfig, tmp_path: Path, where: str) -> None:
    game = gym_data(id="tests.gym_oddities:NotANumber-v0", arguments={"where": where})
    config = lone_agent(make_config, game, {"evaluations": [], "best": None, "stop.after": 600})
    with pytest.raises(palestra.TrainingFailed) as caught:
        palestra.Trainer(config, run=tmp_path / "run").fit()
    message = str(caught.value)
    entry = "the reward" if where == "reward" else "the observation[0]"
    assert re.search(
        rf"world \d, step 3 of episode \d+: expected a finite number as {re.escape(entry)}, got nan", message
    )


# ---- environments that fail --------------------------------------------------------------------------


def palestra_says(capfd: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line of errors of a command that leaves with this code."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capfd.readouterr()
    assert left.value.code == code, err
    assert "Traceback" not in out + err
    assert len(err.splitlines()) == (0 if code == 0 else 1)
    return err.strip()


def breaking(make_config: MakeConfig, tmp_path: Path, way: str, how: str, changes: Data | None = None) -> Path:
    """The config of a run whose environments break in their 20th step, where there is no file `mended`."""
    arguments = {"how": how, "at": 20, "mended": str(tmp_path / "mended")}
    game = gym_data(
        id="tests.gym_oddities:Breaking-v0", arguments=arguments, vectorization={"name": way, "autoreset": "same_step"}
    )
    saving = {"output.save": {"every": 2, "unit": "opt_steps"}, "stop.after": 60}
    config = lone_agent(make_config, game, saving | (changes or {}))
    (tmp_path / "run.yml").write_text(render(config, palestra.RunConfig))
    return tmp_path / "run.yml"


@pytest.mark.parametrize(
    ("way", "fault", "told"),
    [
        ("sync", "raise", "ArithmeticError: the sum is too large (gym_oddities.py, line "),
        ("sync", "exit", "SystemExit: 3 (gym_oddities.py, line "),
        ("sync", "shape", "expected shape (3,) of the observation, as in its space, got (2,)"),
        ("async", "panic", "Panic: all is lost (gym_oddities.py, line "),
        ("async", "_exit", "its process ended with exit code 3"),
        ("async", "stop", "expected an answer within 1.5 s, because execution.step_within_s is 1.5, got none from its"),
    ],
)
def test_an_environment_that_fails_ends_the_run_in_one_line_and_it_goes_on_from_its_checkpoint(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str], way: str, fault: str, told: str
) -> None:
    """A mended one makes of it the run that it would have been."""
    limit = {"execution.step_within_s": 1.5} if fault == "stop" else {}
    file, run, whole = (
        breaking(make_config, tmp_path, way, fault, {"evaluations": [], "best": None, **limit}),
        tmp_path / "run",
        tmp_path / "whole",
    )
    said = palestra_says(capfd, 1, "train", str(file), "--run", str(run))
    assert re.match(r"tests.gym_oddities:Breaking-v0, world 0, step \d of episode \d+: ", said)
    last = max(path.name for path in (run / "checkpoints").glob("[0-9]*"))
    resume = f"the last checkpoint is {last}; to resume: palestra resume {run}"
    left = f"{resume}; its traceback: {run / 'failure.txt'}"
    assert told in said
    assert said.endswith(f"; {left}")
    written = (run / "failure.txt").read_text()
    assert "Traceback (most recent call last)" in written
    assert told.partition(" (")[0].replace("the sum is", "the sum\nis") in written
    (tmp_path / "mended").touch()
    palestra_says(capfd, 0, "resume", str(run), "--quiet")
    palestra_says(capfd, 0, "train", str(file), "--run", str(whole), "--quiet")
    assert_same_bits(run, whole)


@pytest.mark.parametrize("where", ["game", "evaluations.0.game"])
@pytest.mark.parametrize("way", ["sync", "entry_point"])
def test_how_long_a_step_may_take_needs_environments_that_can_be_ended(
    make_config: MakeConfig, way: str, where: str
) -> None:
    inside = cart_pole(vectorization=how(way, "next_step") if way == "sync" else {"name": way})
    games = {"game": cart_pole(vectorization=how("async", "next_step")), where: inside}
    config = lone_agent(make_config, games.pop("game"), {**games, "execution.step_within_s": 5.0})
    with pytest.raises(palestra.ConfigError) as caught:
        check(config, palestra.RunConfig)
    why = f"{where} steps its environments in the process that trains ({where}.vectorization.name=async does not)"
    assert str(caught.value) == f"execution.step_within_s: expected null, because {why}, got 5"


def test_how_long_a_step_may_take_is_nothing_that_bits_depend_on(make_config: MakeConfig) -> None:
    game = cart_pole(vectorization=how("async", "next_step"))
    some, other = (
        stored_config(check(lone_agent(make_config, game, {"execution.step_within_s": limit}), palestra.RunConfig))
        for limit in (None, 5.0)
    )
    assert some == other
    assert "num_threads" in some["execution"]


def test_an_environment_that_fails_in_an_evaluation_or_a_verification_is_told_in_one_line(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seldom = {"output.save": {"every": 60, "unit": "opt_steps"}, "best": None}
    file, run = breaking(make_config, tmp_path, "sync", "raise", seldom), tmp_path / "run"
    (tmp_path / "mended").touch()
    palestra_says(capfd, 0, "train", str(file), "--run", str(run), "--quiet")
    (tmp_path / "mended").unlink()
    said = palestra_says(capfd, 1, "evaluate", str(run), "--games", "40")
    failure = run / "evaluations" / "failure.txt"
    assert re.match(r"tests.gym_oddities:Breaking-v0, in an evaluation, world 0, step \d of episode \d+: Arith", said)
    assert said.endswith(f"; its traceback: {failure}")
    assert "Traceback (most recent call last)" in failure.read_text()
    said = palestra_says(capfd, 1, "verify", str(run), "--from", "0")
    assert said.startswith(f"{run} could not be trained again: tests.gym_oddities:Breaking-v0, ")
    assert said.endswith(")")  # the line of its source; nothing is told of a folder that is gone
    assert not (run / "failure.txt").exists()


def test_an_environment_that_fails_under_the_profiler_is_told_in_one_line(
    make_config: MakeConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = breaking(make_config, tmp_path, "sync", "raise")
    said = palestra_says(capfd, 1, "profile", str(file), "--out", str(tmp_path / "trace.json"))
    assert said.endswith(")")
    assert not (tmp_path / "trace.json").exists()


# ---- processes ---------------------------------------------------------------------------------------


def test_no_worker_outlives_a_run(make_config: MakeConfig, tmp_path: Path) -> None:
    config = lone_agent(make_config, cart_pole(vectorization=how("async", "next_step")))
    seen: set[Any] = set()

    class Watch(palestra.Callback):
        def after_epoch(self, trainer: Any) -> None:
            for world in trainer.game._worlds:
                seen.update(world.vector.processes)

    trainer = palestra.Trainer(config, run=tmp_path / "run", callbacks=[Watch(None)])
    trainer.fit()
    assert len(seen) == 4
    assert not any(process.is_alive() for process in seen)


def test_no_worker_outlives_a_run_that_fails(make_config: MakeConfig, tmp_path: Path) -> None:
    game = gym_data(id="tests.gym_probes:Faulty-v0", arguments={"limit": 27}, vectorization=how("async", "next_step"))
    trainer = palestra.Trainer(lone_agent(make_config, game, {"evaluations": [], "best": None}), run=tmp_path / "run")
    with pytest.raises(palestra.TrainingFailed, match="ArithmeticError: the sum is too large"):
        trainer.fit()
    assert not any("vector" in world.__dict__ for world in trainer.game._worlds)


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_a_run_ends_its_workers(make_config: MakeConfig, tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM comes in the middle of a step that never ends."""
    game = gym_data(id="tests.gym_probes:Slow-v0", vectorization=how("async", "next_step"))
    changes: Data = {"evaluations": [], "best": None, "stop.after": 10**6}
    if number == signal.SIGTERM:
        game |= {"id": "tests.gym_oddities:Breaking-v0", "arguments": {"how": "gil", "at": 1, "mended": ""}}
        changes["output.stop_within_s"] = 0.3
    (tmp_path / "run.yml").write_text(render(lone_agent(make_config, game, changes), palestra.RunConfig))
    root = Path(__file__).parent.parent
    program = "from palestra.cli import main; main()"
    arguments = ["train", str(tmp_path / "run.yml"), "--run", str(tmp_path / "run"), "--quiet"]
    command = [sys.executable, "-c", program, *arguments]
    process = Forked(command, cwd=root, start_new_session=True, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    latest = tmp_path / "run" / "checkpoints" / "latest"
    while (len(workers := children_of(process.pid)) < 4 or not latest.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert len(workers) == 4
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    no_safe_point = "SIGTERM: expected a safe point within output.stop_within_s = 0.3 s, got none"
    assert said.startswith(no_safe_point) == (number == signal.SIGTERM)
