"""Runs that are extended beyond their end, and runs that branch off a checkpoint."""

import copy
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from conftest import TINY_FIT

import palestra
from palestra.algorithms.algorithm import Algorithm
from palestra.callbacks import Callback
from palestra.config import ConfigError, InBranch, PositiveInt, UserConfig, check
from palestra.kinds.data.config import FitConfig
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.trainer import Trainer
from palestra.nets import NetConfig
from palestra.players.player import Metrics, Player
from palestra.run.branching import Change, differences, extend, is_fixed
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_config
from palestra.run.shipped import shipped_configs
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError, MissingCheckpointError

MakeConfig = Callable[..., dict[str, Any]]

HOST = "players.host.algorithm"


def state(run: Path, which: str | int = "latest") -> dict[str, Any]:
    return Checkpoints(RunFolder.open(run), keep_last=1, keep_every=None).load(which).state


def changes(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "changes.jsonl").read_text().splitlines()]


def same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one == two)


def weights(run: Path, player: str, which: str | int = "latest") -> Any:
    return state(run, which)["players"][player]["nets"]


@pytest.fixture
def run(make_config: MakeConfig, tmp_path: Path) -> Path:
    Trainer(
        make_config({"output.save": {"every": 8, "unit": "opt_steps"}, "output.keep_last": 9}), run=tmp_path / "run"
    ).fit()
    return tmp_path / "run"


def test_differences_name_the_deepest_keys(make_config: MakeConfig) -> None:
    config = make_config()
    other = copy.deepcopy(config)
    other["players"]["host"]["algorithm"]["gamma"] = 0.5
    other["players"]["agent"]["algorithm"]["transitions"] = {"name": "n_step", "steps": 3}
    other["output"]["keep_every"] = 7
    found = differences(check(config, RunConfig), check(other, RunConfig))
    assert Change("players.host.algorithm.gamma", 0.95, 0.5) in found
    assert Change("players.agent.algorithm.transitions.steps", None, 3) in found
    assert Change("output.keep_every", config["output"]["keep_every"], 7) in found
    assert len(found) == 4
    assert differences(check(config, RunConfig), check(config, RunConfig)) == []


def test_an_extended_run_learns_what_a_longer_one_learns(run: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    extend(run, ["stop.after=40"])
    Trainer.load(run).fit()
    Trainer(make_config({"stop.after": 40}), run=tmp_path / "longer").fit()
    assert same(state(run)["players"], state(tmp_path / "longer")["players"])
    assert palestra.load_config(run / "config.yml").stop.after == 40
    (change,) = changes(run)
    assert (change["key"], change["before"], change["after"]) == ("stop.after", 24.0, 40.0)
    assert change["counters"]["opt_steps"] == 24


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stop.after=20", "stop.after: expected more than the 24 opt_steps that the run has reached, got 20"),
        (
            "players.host.algorithm.gamma=0.5",
            r"^players\.host\.algorithm\.gamma: expected 0\.95, as before, got 0\.5; to change it, branch off a check",
        ),
        ("seed=0", "stop: expected another end, as stop.after=.*, got the same"),
    ],
)
def test_an_extension_that_is_none_is_refused_and_changes_nothing(run: Path, override: str, message: str) -> None:
    before = (run / "config.yml").read_text()
    with pytest.raises(ConfigError, match=message):
        extend(run, [override])
    assert (run / "config.yml").read_text() == before
    assert not (run / "changes.jsonl").exists()


@pytest.mark.parametrize("refused", ["changes.jsonl", "config.yml"])
def test_an_extension_that_the_disk_refuses_changes_nothing(
    refused: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend(run, ["stop.after=30"])
    before = [(run / name).read_bytes() for name in ("config.yml", "changes.jsonl")]

    original = Folder.write

    def write(folder: Folder, name: str, content: bytes) -> None:
        if name == refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(folder, name, content)

    monkeypatch.setattr(Folder, "write", write)
    with pytest.raises(OSError, match="No space left"):
        extend(run, ["stop.after=40"])
    assert [(run / name).read_bytes() for name in ("config.yml", "changes.jsonl")] == before


def test_an_extension_that_was_killed_before_the_config_was_written_is_noted_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Folder.write

    def write(folder: Folder, name: str, content: bytes) -> None:
        if name == "config.yml":
            raise KeyboardInterrupt  # as good as a kill: nothing is put right
        original(folder, name, content)

    monkeypatch.setattr(Folder, "write", write)
    with pytest.raises(KeyboardInterrupt):
        extend(run, ["stop.after=40"])
    monkeypatch.undo()
    assert palestra.load_config(run / "config.yml").stop.after == 24
    extend(run, ["stop.after=40"])
    assert [(change["before"], change["after"]) for change in changes(run)] == [(24.0, 40.0)]


def test_a_branch_without_changes_goes_on_to_the_same_bits(run: Path, tmp_path: Path) -> None:
    checkpoint = run / "checkpoints/00000001"
    Trainer.branch(checkpoint, [], run=tmp_path / "branch").fit()
    assert same(state(tmp_path / "branch")["players"], state(run)["players"])
    assert json.loads((tmp_path / "branch/run.json").read_text())["branched_from"] == str(checkpoint)
    assert changes(tmp_path / "branch") == []


def test_a_branch_begins_with_the_state_of_its_checkpoint_and_its_own_config(run: Path, tmp_path: Path) -> None:
    overrides = ["players.host.algorithm.gamma=0.5", "stop.after=30"]
    Trainer.branch(run / "checkpoints/00000002", overrides, run=tmp_path / "branch").fit()
    first, origin = state(tmp_path / "branch", 0), state(run, 2)
    assert same(first["players"], origin["players"])
    assert state(tmp_path / "branch")["counters"]["opt_steps"] == 30
    assert [(change["key"], change["after"]) for change in changes(tmp_path / "branch")] == [
        ("players.host.algorithm.gamma", 0.5),
        ("stop.after", 30.0),
    ]
    assert palestra.load_config(tmp_path / "branch/config.yml").players["host"].algorithm.gamma == 0.5  # type: ignore[union-attr]


def test_a_branch_off_the_end_is_evaluated_and_saved(run: Path, tmp_path: Path) -> None:
    last = state(run)
    Trainer.branch(run / "checkpoints/00000003", ["players.host.algorithm.gamma=0.5"], run=tmp_path / "branch").fit()
    assert same(state(tmp_path / "branch")["players"], last["players"])
    kinds = [record["kind"] for record in read_records(tmp_path / "branch/records.jsonl")]
    assert kinds.count("evaluation") == 2


def test_a_branch_killed_before_its_first_checkpoint_begins_at_its_origin_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer.branch(run / "checkpoints/00000001", ["seed=7"], run=tmp_path / "branch")
    monkeypatch.setattr(trainer, "save", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    Trainer.load(tmp_path / "branch").fit()
    assert same(state(tmp_path / "branch", 0)["players"], state(run, 1)["players"])
    assert [change["key"] for change in changes(tmp_path / "branch")] == ["seed"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("num_worlds=4", "num_worlds"),
        ("game.max_value=9", "game.max_value"),
        ("players.host.algorithm.net.net_arch=[4]", "players.host.algorithm.net.net_arch"),
        ("players.host.algorithm.dueling=true", "players.host.algorithm.dueling"),
        ("players.host.algorithm.transitions={name: n_step, steps: 2}", "players.host.algorithm.transitions"),
        ("players.host.algorithm.replay_buffer.capacity=99", "players.host.algorithm.replay_buffer.capacity"),
        (
            "players.host.algorithm.optimizer={name: sgd, momentum: 0.9, weight_decay: 0.0}",
            "players.host.algorithm.opt",
        ),
    ],
)
def test_a_branch_cannot_change_what_its_state_is_made_of(run: Path, override: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer.branch(run / "checkpoints/00000001", [override], run=tmp_path / "branch")
    assert any(
        error.path.startswith(key) and "00000001 depends, got " in error.message for error in caught.value.errors
    )
    assert not (tmp_path / "branch").exists()


class Twins(Algorithm):
    """With networks under names of its own."""

    class Config(UserConfig):
        left: NetConfig
        """one network"""
        num_heads: Annotated[PositiveInt, InBranch.FIXED]
        """of which the other consists"""
        patience: PositiveInt
        """which is no part of the state"""

    def policy(self, explore: bool) -> Any:
        raise NotImplementedError

    def learn(self, turn: Any) -> None:
        raise NotImplementedError


def test_fields_of_an_algorithm_of_ones_own_say_what_a_branch_may_change(make_config: MakeConfig) -> None:
    data, net = make_config(), {"name": "mlp", "net_arch": [4], "activation": "relu"}
    name = f"{__name__}:Twins"
    data["players"]["host"]["algorithm"] = {"name": name, "left": net, "num_heads": 2, "patience": 3}
    config = check(data, RunConfig)
    fixed = [key for key in ("name", "left.net_arch", "num_heads", "patience") if is_fixed(f"{HOST}.{key}", config)]
    assert fixed == ["name", "left.net_arch", "num_heads"]


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("ppo-cartpole", ["optimizer.name", "objective.name", "centralized_critic", "initialization.policy_gain"]),
        (
            "sac-pendulum",
            ["num_critics", "entropy_coefficient.name", "entropy_coefficient.initial", "policy_optimizer.name"],
        ),
        ("ppo-pendulum", ["box_actions.initial_log_std"]),
        ("td3-pendulum", ["num_critics"]),
        ("iql-pendulum", ["loss.num_critics", "loss.name", "target", "box_actions.name"]),
    ],
)
def test_what_an_algorithm_stores_may_not_change_in_a_branch(file: str, keys: list[str]) -> None:
    config = read_config(shipped_configs()[file])
    free = ["optimizer.beta1", "objective.epsilon.value", "entropy_coefficient.value", "loss.expectile", "target.tau"]
    assert [key for key in [*keys, *free] if is_fixed(f"players.agent.algorithm.{key}", config)] == keys


def test_the_weights_of_a_group_may_not_change_in_a_branch() -> None:
    config = check(TINY_FIT, FitConfig)
    assert is_fixed("learning.groups.0.weights", config)
    assert not is_fixed("learning.groups.0.learning_rate.value", config)


def test_a_branch_off_a_run_is_told_its_checkpoints(run: Path, tmp_path: Path) -> None:
    its = rf"{run}/checkpoints/latest or {run}/checkpoints/best$"
    with pytest.raises(RunFolderError, match=f"^expected a checkpoint, got the run {run}; give one of its own: {its}"):
        Trainer.branch(run, [], run=tmp_path / "branch")


def test_a_branch_off_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RunFolderError, match=r"expected a checkpoint, such as runs/mine/checkpoints/latest, got .*: .* is not a run"
    ):
        Trainer.branch(tmp_path / "run/checkpoints/00000001", [], run=tmp_path / "branch")


# ---- a branch and its callbacks, a branch that fails -----------------------------------------------------


class Counting(Callback):
    """Counts opt steps, over all the lives of a run."""

    def __init__(self) -> None:
        super().__init__(None)
        self.num_steps = 0

    def after_step(self, *_: object) -> None:
        self.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps = state["num_steps"]


def test_a_branch_can_be_given_callbacks_that_begin_anew(run: Path, tmp_path: Path) -> None:
    counting = Counting()
    origin = run / "checkpoints/00000002"
    Trainer.branch(origin, [], run=tmp_path / "branch", callbacks=[counting]).fit()
    assert counting.num_steps == 8
    again = Counting()
    extend(tmp_path / "branch", ["stop.after=26"])
    Trainer.load(tmp_path / "branch", callbacks=[again]).fit()
    assert again.num_steps == 10


def test_callbacks_of_the_run_get_their_state_back_in_its_branch(make_config: MakeConfig, tmp_path: Path) -> None:
    Trainer(make_config(), run=tmp_path / "run", callbacks=[Counting()]).fit()
    counting, new = Counting(), Counting()
    origin = tmp_path / "run/checkpoints/00000002"
    Trainer.branch(origin, [], run=tmp_path / "branch", callbacks=[counting, new]).fit()
    assert (counting.num_steps, new.num_steps) == (24, 8)
    with pytest.raises(
        CheckpointError,
        match=r"expected 1 callbacks, as when the run was saved, got 0; give Trainer\.load or Trainer\.branch those",
    ):
        Trainer.branch(origin, [], run=tmp_path / "without").fit()
    assert not (tmp_path / "without").exists()


def test_the_kinds_of_the_callbacks_cannot_change_in_a_branch(run: Path, tmp_path: Path) -> None:
    schedule = "{name: constant, value: 0.5}"
    at = "{after: 6, unit: opt_steps}"
    callbacks = (
        f"callbacks=[{{name: change_schedule, player: host, key: learning_rate, at: {at}, schedule: {schedule}}}]"
    )
    with pytest.raises(
        ConfigError,
        match=r"callbacks: expected \[\], on which the state in \S+ depends, got \[{'name': 'change_schedule'.*\.\.\.$",
    ):
        Trainer.branch(run / "checkpoints/00000001", [callbacks], run=tmp_path / "branch")


def test_a_branch_that_fails_leaves_no_folder(run: Path, tmp_path: Path) -> None:
    """Whatever fails before the state is there: a damaged file, a state that does not fit, a mirror out of reach."""
    origin = run / "checkpoints/00000001"
    (tmp_path / "file").touch()
    mirror = f"{{url: 'file://{tmp_path}/file/below', options: {{}}, attempts: 1, first_wait_s: 0.0, end_wait_s: 1.0}}"
    with pytest.raises(ConfigError, match=r"^output\.mirror: "):
        Trainer.branch(origin, [f"output.mirror={mirror}"], run=tmp_path / "branch").fit()
    (origin / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is damaged"):
        Trainer.branch(origin, [], run=tmp_path / "branch").fit()
    assert not (tmp_path / "branch").exists()


def test_a_branch_that_finds_its_folder_taken_leaves_what_is_there(run: Path, tmp_path: Path) -> None:
    (tmp_path / "branch").mkdir()
    (tmp_path / "branch/mine").touch()
    with pytest.raises(RunFolderError, match="exists already"):
        Trainer.branch(run / "checkpoints/00000001", [], run=tmp_path / "branch").fit()
    assert (tmp_path / "branch/mine").exists()


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_latest_and_best_are_checkpoints_to_branch_off(pointer: str, run: Path, tmp_path: Path) -> None:
    path = run / "checkpoints" / pointer
    Trainer.branch(path, ["stop.after=25"], run=tmp_path / "branch").fit()
    assert same(state(tmp_path / "branch", 0)["players"], state(run, pointer)["players"])
    path.unlink()
    with pytest.raises(MissingCheckpointError, match=f"there is no checkpoint .*{pointer}; expected latest, best, a"):
        Trainer.branch(path, [], run=tmp_path / "another")


# ---- players of other runs in the seats ----------------------------------------------------------------


def test_a_branch_takes_another_stored_player_in_the_place_of_one(
    run: Path, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Another run, and another checkpoint of the same run: the copy that the origin has is of neither."""
    other, first = tmp_path / "other", tmp_path / "first"
    Trainer(make_config({"seed": 5}), run=other).fit()
    agent = {"from_run": str(run), "player": "agent", "checkpoint": "latest"}
    Trainer(make_config({"players.agent": agent, "best": None}), run=first).fit()
    assert same(weights(first, "agent"), weights(run, "agent"))
    wanted = {f"players.agent.from_run={other}": weights(other, "agent")}
    wanted["players.agent.checkpoint='1'"] = weights(run, "agent", 1)
    wanted["players.agent.player=agent"] = weights(run, "agent")
    for number, (override, expected) in enumerate(wanted.items()):
        new = tmp_path / f"new-{number}"
        Trainer.branch(first / "checkpoints/00000001", [override], run=new).fit()
        assert same(weights(new, "agent"), expected)
    other.rename(tmp_path / "away")
    extend(tmp_path / "new-0", ["stop.after=32"])
    Trainer.load(tmp_path / "new-0").fit()
    assert same(weights(tmp_path / "new-0", "agent"), weights(tmp_path / "away", "agent"))


# ---- other players in the seats ------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [1, 2])
def test_a_frozen_player_stays_as_it_was_and_the_other_goes_on(run: Path, checkpoint: int, tmp_path: Path) -> None:
    origin, new = run / f"checkpoints/{checkpoint:08d}", tmp_path / "new"
    trainer = Trainer.branch(origin, ["best=null"], run=new, freeze=["agent"])
    assert [player.name for player in trainer.learners] == ["host"]
    trainer.fit()
    before, after = state(run, checkpoint), state(new)
    assert same(before["players"]["agent"]["nets"], after["players"]["agent"]["nets"])
    assert not same(before["players"]["host"]["nets"], after["players"]["host"]["nets"])
    assert after["counters"]["opt_steps"] == 24
    host, agent = (after["players"][name] for name in ("host", "agent"))
    assert host["replay_buffer"]["num_added"] > before["players"]["host"]["replay_buffer"]["num_added"]
    assert host["opt_steps"] == 24 - before["players"]["agent"]["opt_steps"]
    assert agent["opt_steps"] == before["players"]["agent"]["opt_steps"]


@pytest.mark.parametrize(("frozen", "turn", "epochs"), [("host", 0, 0), ("agent", 1, 1)])
def test_a_branch_goes_on_in_the_turn_in_which_its_checkpoint_was_saved(
    frozen: str, turn: int, epochs: int, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Saved after the first of the agent's two updates. Where the agent learns on, its turn ends after the second, with
    the epoch; where the host does, it has had its turn, and one more update belongs to the next epoch."""
    saved = {"output.save": {"every": 3, "unit": "opt_steps"}, "output.keep_last": 99, "stop.after": 7}
    Trainer(make_config(saved), run=tmp_path / "run").fit()
    every = [each.name for each in sorted((tmp_path / "run/checkpoints").glob("0*"))]
    number = next(int(name) for name in every if state(tmp_path / "run", int(name))["counters"]["opt_steps"] == 3)
    before = state(tmp_path / "run", number)
    assert before["turn"] == 1
    overrides, new = ["best=null", "stop.after=4"], tmp_path / "new"
    Trainer.branch(tmp_path / f"run/checkpoints/{number:08d}", overrides, run=new, freeze=[frozen]).fit()
    assert state(new, 0)["turn"] == turn
    assert state(new)["counters"]["opt_steps"] == 4
    assert state(new)["counters"]["epochs"] - before["counters"]["epochs"] == epochs


def test_a_branch_begins_with_the_state_of_those_who_learn_on(run: Path, tmp_path: Path) -> None:
    """Checkpoint 0 of the branch: optimizer, memory and networks of the host are those of the checkpoint."""
    Trainer.branch(run / "checkpoints/00000002", ["best=null"], run=tmp_path / "new", freeze=["agent"]).fit()
    before, after = (state(path, which)["players"]["host"] for path, which in ((run, 2), (tmp_path / "new", 0)))
    assert same(before["nets"], after["nets"])
    assert same(before["optimizers"], after["optimizers"])
    assert same(before["replay_buffer"], after["replay_buffer"])


def test_a_branch_with_a_frozen_player_needs_the_other_run_no_more(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    Trainer.branch(run / "checkpoints/00000002", ["best=null"], run=new, freeze=["agent"]).fit()
    frozen = weights(new, "agent")
    run.rename(tmp_path / "away")
    extend(new, ["stop.after=40"])
    Trainer.load(new).fit()
    assert state(new)["counters"]["opt_steps"] == 40
    assert same(frozen, weights(new, "agent"))


def test_a_killed_branch_with_a_frozen_player_learns_what_an_unbroken_one_learns(run: Path, tmp_path: Path) -> None:
    """Stopped in the middle and resumed, against one fit."""
    branches = {
        name: Trainer.branch(run / "checkpoints/00000002", ["best=null"], run=tmp_path / name, freeze=["host"])
        for name in ("whole", "broken")
    }
    stopped = branches["broken"]
    after_step = stopped.after_step

    def stop(player: Player, metrics: Metrics) -> None:
        after_step(player, metrics)
        if stopped.opt_steps == 20:
            stopped.run.signals.received = 15

    stopped.after_step = stop  # type: ignore[method-assign]
    for trainer in branches.values():
        trainer.fit()
    assert state(tmp_path / "broken")["counters"]["opt_steps"] == 20
    Trainer.load(tmp_path / "broken").fit()
    assert same(state(tmp_path / "broken")["players"], state(tmp_path / "whole")["players"])
    assert same(weights(tmp_path / "broken", "host"), weights(run, "host", 2))


def test_a_scripted_player_takes_a_place(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    trainer = Trainer.branch(
        run / "checkpoints/latest", ["best=null", "stop.after=40"], run=new, replace={"host": "zeillinger"}
    )
    trainer.fit()
    assert state(new)["players"].keys() == {"agent"}
    assert {change["key"].split(".")[1] for change in changes(new) if change["key"].startswith("players")} == {"host"}
    assert state(new)["counters"]["opt_steps"] == 40


@pytest.mark.parametrize(
    ("freeze", "replace", "message"),
    [
        (["nobody"], {}, r"--freeze: expected a player that learns \(host, agent\), got 'nobody'"),
        ([], {"nobody": "zeillinger"}, r"--replace: expected a player \(.*host.*\), got 'nobody'"),
        (["host"], {"host": "zeillinger"}, "--replace: expected a player that is not held fixed, got 'host'"),
        ([], {"host": "nobody"}, r"players\.host\.scripted: expected a scripted player .*, got 'nobody'"),
    ],
)
def test_seats_that_cannot_be_filled_are_refused(
    freeze: list[str], replace: dict[str, str], message: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer.branch(run / "checkpoints/latest", [], run=tmp_path / "new", freeze=freeze, replace=replace)
    assert not (tmp_path / "new").exists()
