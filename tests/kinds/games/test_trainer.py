"""The trainer: lifecycle, hooks, counters, intervals, safe points, metrics, errors, players that do not learn.

Covers palestra.games.polyhedra.rewards, palestra.kinds.games.checks, palestra.runtime.intervals,
palestra.training.checks.
"""

import errno
import inspect
import io
import math
import multiprocessing
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from combinations import config_of
from conftest import MakeRun
from rich.console import Console

import palestra
from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.dqn import DQN
from palestra.callbacks import Callback
from palestra.config import ConfigError, load_yaml
from palestra.evaluation.evaluations import BestScore
from palestra.games.polyhedra.rewards import Reward
from palestra.kinds.games.trainer import PARTS, Trainer
from palestra.nets.weights import flatten_weights, layers_of
from palestra.optimizers import SGDConfig
from palestra.players.player import Metrics, Player
from palestra.recording.recorders import without_clock
from palestra.run.checkpoints import Checkpoints
from palestra.runtime.intervals import Interval
from palestra.runtime.timing import PHASES, TrainingClock
from palestra.storage.disk import Folder
from palestra.storage.records_file import read_records
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training

MakeConfig = Callable[..., dict[str, Any]]


@contextmanager
def default_doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def trained(config: dict[str, Any], run: Path, *callbacks: Callback) -> Trainer:
    trainer = Trainer(config, run=run, callbacks=callbacks)
    trainer.fit()
    return trainer


def records(trainer: Trainer, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(trainer.run.folder.records) if record["kind"] == kind]


def saved_state(trainer: Trainer, which: str | int = "latest") -> dict[str, Any]:
    return Checkpoints(trainer.run.folder, keep_last=1, keep_every=None).load(which).state


def parameters(player: Player) -> list[torch.Tensor]:
    return [value.clone() for net in player.nets.values() for value in net.state_dict().values()]


def assert_equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


# ---- lifecycle and hooks -------------------------------------------------------------------------------


class Spy(Callback):
    """Writes down every hook that it sees, with the counters of that moment."""

    def __init__(self) -> None:
        super().__init__(None)
        self.seen: list[tuple[Any, ...]] = []

    def before_train(self, trainer: Trainer) -> None:
        self.seen.append(("before_train",))

    def before_epoch(self, trainer: Trainer) -> None:
        self.seen.append(("before_epoch", trainer.epochs, dict(trainer.epoch_counts)))

    def before_step(self, trainer: Trainer, player: Player) -> None:
        self.seen.append(("before_step", player.name, trainer.opt_steps))

    def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
        assert math.isfinite(float(metrics["loss"]))
        self.seen.append(("after_step", player.name, trainer.opt_steps, dict(trainer.epoch_counts)))

    def after_evaluation(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        self.seen.append(("after_evaluation", trainer.opt_steps, len(record["pairs"])))

    def after_epoch(self, trainer: Trainer) -> None:
        self.seen.append(("after_epoch", trainer.epochs, dict(trainer.epoch_counts)))

    def after_train(self, trainer: Trainer) -> None:
        self.seen.append(("after_train", trainer.finished))


def test_hooks_come_in_order_with_the_right_arguments(make_config: MakeConfig, tmp_path: Path) -> None:
    changes = {"stop": {"after": 4, "unit": "epochs"}, "players.agent": {"scripted": "random"}}
    spy = Spy()
    trained(make_config(changes | {"evaluations.0.interval": {"every": 2, "unit": "epochs"}}), tmp_path / "run", spy)
    assert spy.seen == [
        ("before_train",),
        ("after_evaluation", 0, 3),
        ("before_epoch", 0, {"roll_outs": 0, "updates": 0}),  # warm-up: 16 env steps
        ("after_epoch", 1, {"roll_outs": 1, "updates": 0}),
        ("before_epoch", 1, {"roll_outs": 0, "updates": 0}),
        ("before_step", "host", 0),
        ("after_step", "host", 1, {"roll_outs": 1, "updates": 1}),
        ("before_step", "host", 1),
        ("after_step", "host", 2, {"roll_outs": 1, "updates": 2}),
        ("after_epoch", 2, {"roll_outs": 1, "updates": 2}),
        ("after_evaluation", 2, 1),
        ("before_epoch", 2, {"roll_outs": 0, "updates": 0}),
        ("before_step", "host", 2),
        ("after_step", "host", 3, {"roll_outs": 1, "updates": 1}),
        ("before_step", "host", 3),
        ("after_step", "host", 4, {"roll_outs": 1, "updates": 2}),
        ("after_epoch", 3, {"roll_outs": 1, "updates": 2}),
        ("before_epoch", 3, {"roll_outs": 0, "updates": 0}),
        ("before_step", "host", 4),
        ("after_step", "host", 5, {"roll_outs": 1, "updates": 1}),
        ("before_step", "host", 5),
        ("after_step", "host", 6, {"roll_outs": 1, "updates": 2}),
        ("after_epoch", 4, {"roll_outs": 1, "updates": 2}),
        ("after_evaluation", 6, 3),
        ("after_train", True),
    ]


class Counting(Callback):
    """Counts opt steps, and keeps the count over a stop."""

    def __init__(self) -> None:
        super().__init__(None)
        self.num = 0

    def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
        self.num += 1
        if self.num == 9 and trainer.opt_steps == 9:
            trainer.run.signals.received = signal.SIGTERM

    def state_dict(self) -> dict[str, Any]:
        return {"num": self.num}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num = state["num"]


def test_a_callback_gets_its_state_back(make_config: MakeConfig, tmp_path: Path) -> None:
    assert not trained(make_config(), tmp_path / "run", Counting()).finished
    counting = Counting()
    Trainer.load(tmp_path / "run", callbacks=[counting]).fit()
    assert counting.num == 24


def test_a_run_that_is_resumed_without_its_callbacks_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    trained(make_config(), tmp_path / "run", Counting())
    with pytest.raises(CheckpointError, match="expected 1 callbacks, as when the run was saved, got 0"):
        Trainer.load(tmp_path / "run").fit()


def test_a_callback_is_named_in_a_config(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "own_callback.py").write_text(
        "import palestra\nfrom palestra.config import PositiveInt, UserConfig\n\n"
        "class Halving(palestra.Callback):\n"
        "    class Config(UserConfig):\n        every: PositiveInt\n\n"
        "    def after_epoch(self, trainer):\n"
        "        trainer.halved = trainer.epochs // self.config.every\n"
    )
    config = make_config({"callbacks": [{"name": "own_callback:Halving", "every": 2}]})
    trainer = trained(config, in_tmp_path / "run")
    assert trainer.halved == trainer.epochs // 2 > 0
    with pytest.raises(palestra.ConfigError, match=r"callbacks\.0\.every: expected .*, but the key is missing"):
        Trainer(make_config({"callbacks": [{"name": "own_callback:Halving"}]}))


def test_a_subclass_may_override_hooks_and_the_training_logic(make_config: MakeConfig, tmp_path: Path) -> None:
    class HostOnly(Trainer):
        def _train(self) -> None:
            self.learners = [self.players["host"]]
            super()._train()

        def after_step(self, player: Player, metrics: Metrics) -> None:
            super().after_step(player, metrics)
            self.last = player.name

    trainer = HostOnly(make_config({"evaluations": [], "best": None}), run=tmp_path / "run")
    trainer.fit()
    assert (trainer.last, trainer.opt_steps) == ("host", 24)
    assert (trainer.players["host"].opt_steps, trainer.players["agent"].opt_steps) == (24, 0)


@pytest.mark.parametrize("interface", [Trainer, Algorithm])
def test_the_docstring_lists_what_may_be_overridden_and_what_must_be(interface: type) -> None:
    """The names in code quotes after "must implement" and "may override" are those of the code."""
    document = inspect.getdoc(interface) or ""
    must = re.search(r"must implement ([^.]*)", document)
    listed = set(re.findall(r"`(\w+)`", must[1])) if must else set()
    assert listed == getattr(interface, "__abstractmethods__", set())
    assert bool(must) or "Nothing must be implemented" in document
    if interface is Trainer:
        may = re.search(r"May be overridden: (.*?); an override", document, re.DOTALL)
        assert may is not None
        hooks = {name for name in vars(Callback) if name.startswith(("before_", "after_"))}
        own = {"_train", "_test", "train_stage", "test_stage", "train_context", "test_context", "get_num_updates"}
        assert set(re.findall(r"`(\w+)`", may[1])) == hooks | own
        assert all(callable(getattr(Trainer, name)) for name in hooks | own)
    else:
        may = re.search(r"may override ([^.]*)\.", document)
        assert may is not None
        called = re.search(r"Call ([^.]*), but do not override them\.", document)
        assert called is not None
        own = {name for name, value in vars(Algorithm).items() if callable(value) and not name.startswith("_")}
        own -= set(re.findall(r"`(\w+)`", called[1]))
        assert set(re.findall(r"`(\w+)`", may[1])) == own - listed


def test_the_docstring_lists_all_that_a_train_of_ones_own_may_use(make_config: MakeConfig) -> None:
    listed = re.search(r"`_train` may use: (.*?)\n\n|\Z", (inspect.getdoc(Trainer) or "") + "\n\n", re.DOTALL)
    assert listed is not None
    names, trainer = set(re.findall(r"`(\w+)`", listed[1])), Trainer(make_config())
    assert [name for name in names if not hasattr(trainer, name)] == []
    assert {f"host_{part}" for part in PARTS} <= names
    document = (Path(__file__).parents[3] / "docs/own-trainer.md").read_text()
    used = {name for name in re.findall(r"(?:self|trainer)\.([a-z]\w*|roll_out)", document) if hasattr(trainer, name)}
    hooks_and_life = {"fit", "save", "load", "branch", "extend", "copy", "run", "set_model", "finished", "replica"}
    assert used - names - hooks_and_life == set()
    own = {name for name, value in vars(Trainer).items() if callable(value) and not hasattr(Training, name)}
    own = {name for name in own if not name.startswith(("_", "before_", "after_")) or name == "roll_out"}
    assert own - names - {"set_model", "get_num_updates"} == set()
    assert {"fused_game", "safe_point", "before_step", "after_step"} <= names


@pytest.mark.parametrize("hook", [name for name in vars(Callback) if name.startswith(("before_", "after_"))])
def test_a_hook_of_the_trainer_takes_what_that_of_a_callback_takes(hook: str) -> None:
    of_trainer = list(inspect.signature(getattr(Trainer, hook)).parameters)
    of_callback = list(inspect.signature(getattr(Callback, hook)).parameters)
    assert [name for name in of_callback if name != "training"] == of_trainer


# ---- counters and intervals ----------------------------------------------------------------------------


def test_counters_count_worlds_rounds_and_both_players(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config({"stop": {"after": 5, "unit": "epochs"}}), tmp_path / "run")
    host, agent = trainer.players["host"], trainer.players["agent"]
    assert (trainer.epochs, trainer.env_steps, host.env_steps, agent.env_steps) == (5, 80, 40, 40)
    assert (trainer.opt_steps, host.opt_steps, agent.opt_steps) == (16, 8, 8)
    episodes = [player["episodes"]["number"] for r in records(trainer, "training") for player in r["players"].values()]
    assert trainer.episodes == sum(episodes) > 0


def test_warm_up_skips_updates(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"stop": {"after": 3, "unit": "epochs"}, "players.agent.algorithm.warmup_env_steps": 1000})
    trainer = trained(config, tmp_path / "run")
    assert (trainer.players["host"].opt_steps, trainer.players["agent"].opt_steps) == (4, 0)


class Growing(Trainer):
    """Gives the host one opt step more in each turn."""

    def get_num_updates(self, player: Player) -> int:
        return self.epochs if player.name == "host" else super().get_num_updates(player)


def test_a_trainer_says_how_many_updates_a_turn_has(make_config: MakeConfig, tmp_path: Path) -> None:
    changes = {"stop": {"after": 5, "unit": "epochs"}, "evaluations": [], "best": None}
    trainer = Growing(make_config(changes), run=tmp_path / "run")
    trainer.fit()
    host, agent = (trainer.players[name].opt_steps for name in ("host", "agent"))
    num_epochs = agent // trainer.players["agent"].algorithm.config.updates_per_turn  # type: ignore[union-attr]
    assert 2 <= num_epochs <= 5  # after the warm-up
    assert host == sum(range(5 - num_epochs, 5))
    Growing.get_num_updates = lambda self, player: 0.5  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(TypeError, match=r"^expected an integer >= 0 as the number of updates, got 0\.5$"):
        Growing(make_config(changes), run=tmp_path / "other").fit()


def test_a_memory_that_is_still_empty_skips_updates(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"stop": {"after": 2, "unit": "epochs"}, "players.host.algorithm.warmup_env_steps": 0})
    trainer = trained(config, tmp_path / "run")
    assert trainer.players["host"].opt_steps == 2  # a transition takes two decisions


@pytest.mark.parametrize(
    ("unit", "every", "expected"),
    [
        ("opt_steps", 5, [5, 10, 15, 20, 24]),
        ("opt_steps", 2.5, [3, 5, 8, 10, 13, 15, 18, 20, 23, 24]),
        ("env_steps", 30, [32, 64, 96, 112]),
        ("epochs", 2, [2, 4, 6, 6]),
    ],
)
def test_what_is_due_happens_at_the_first_safe_point_at_or_after_a_multiple(
    unit: str, every: float, expected: list[int], make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = trained(make_config({"output.record": {"every": every, "unit": unit}}), tmp_path / "run")
    found = [record[unit] for record in records(trainer, "training")]
    assert found == expected  # the last one is the end of the run


def test_minutes_count_training_alone(make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("palestra.runtime.timing.perf_counter", lambda: now[0])

    class Slow(Callback):
        def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
            now[0] += 30.0

    def play_slowly(*arguments: object, **_: object) -> dict[str, Any]:
        now[0] += 1000.0
        return {"evaluation": "main", "roles": [], "declared_scores": [], "pairs": []}

    monkeypatch.setattr("palestra.evaluation.evaluations.Evaluations.play", play_slowly)
    config = make_config(
        {
            "best": None,
            "evaluations.0.interval": {"every": 2, "unit": "minutes"},
            "output.record": {"every": 1, "unit": "minutes"},
            "stop": {"after": 5, "unit": "minutes"},
        }
    )
    trainer = trained(config, tmp_path / "run", Slow(None))
    assert trainer.opt_steps == 10
    assert [record["opt_steps"] for record in records(trainer, "training")] == [2, 4, 6, 8, 10]
    assert [record["opt_steps"] for record in records(trainer, "evaluation")] == [0, 4, 8, 10]
    clock = records(trainer, "training")[1]["clock"]
    assert set(clock.pop("time")) == set(PHASES)
    assert clock == {
        "train_seconds": 120.0,
        "env_steps_per_s": pytest.approx((records(trainer, "training")[1]["env_steps"] - 48) / 60, abs=0.5),
        "opt_steps_per_s": pytest.approx(2 / 60),
    }


def test_time_since_the_last_record_counts_after_a_resume(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("palestra.runtime.timing.perf_counter", lambda: now[0])

    class Slow(Callback):
        def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
            now[0] += 30.0

    config = make_config(
        {
            "best": None,
            "evaluations": [],
            "output.record": {"every": 2, "unit": "minutes"},
            "output.save": {"every": 100, "unit": "minutes"},
            "stop": {"after": 5, "unit": "minutes"},
        }
    )
    trainer = Trainer(config, run=tmp_path / "run", callbacks=[Slow(None)])
    for num_steps in (3, 3, 1):  # the first is before the first record; each time another process goes on
        trainer.fit(num_steps, "opt_steps")
        trainer = Trainer.load(tmp_path / "run", callbacks=[Slow(None)])
    trainer.fit()
    assert trainer.opt_steps == 10
    assert [record["opt_steps"] for record in records(trainer, "training")] == [4, 8, 10]
    clocks = [record["clock"] for record in records(trainer, "training")]
    assert [clock["train_seconds"] for clock in clocks] == [120.0, 240.0, 300.0]
    assert [sum(clock["time"].values()) for clock in clocks] == [120.0, 120.0, 60.0]


def test_a_clock_does_not_count_while_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("palestra.runtime.timing.perf_counter", lambda: now[0])
    clock = TrainingClock()
    clock.set_before(5.0)
    with clock.running():
        now[0] = 1.0
        with clock.paused():
            now[0] = 100.0
            assert clock.seconds == 6.0
        now[0] = 102.0
    now[0] = 1000.0
    assert clock.seconds == 8.0
    clock.set_before(6.0)
    assert clock.seconds == 9.0


def test_intervals_are_due_once_per_multiple_passed() -> None:
    interval = Interval.model_validate({"every": 10, "unit": "opt_steps"})

    def due(before: int, now: int) -> bool:
        return interval.due({"opt_steps": before}, {"opt_steps": now})

    assert [due(0, 9), due(9, 10), due(10, 11), due(8, 31), due(10, 10)] == [False, True, False, True, False]


def test_evaluation_comes_before_the_record_and_the_record_before_the_save(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds: list[tuple[str, int]] = []

    def spied(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def spy(self: Trainer, *arguments: Any) -> Any:
            deeds.append((name, self.opt_steps))
            return original(self, *arguments)

        return spy

    for name in ("evaluate", "record", "save"):
        monkeypatch.setattr(Trainer, name, spied(name, getattr(Trainer, name)))
    every = {"every": 8, "unit": "opt_steps"}
    config = make_config({"output.record": every, "stop": {"after": 18, "unit": "opt_steps"}})
    trained(config, tmp_path / "run")
    assert deeds == [
        *(("evaluate", 0), ("save", 0)),
        *(("evaluate", 8), ("record", 8), ("save", 8)),
        *(("evaluate", 16), ("record", 16), ("save", 16)),
        *(("evaluate", 18), ("record", 18), ("save", 18)),
    ]


def test_the_last_evaluation_plays_the_final_number_of_games(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config(), tmp_path / "run")
    found = [[pair["games"] + pair["started_over"] for pair in r["pairs"]] for r in records(trainer, "evaluation")]
    assert found == [[8, 8, 8], [8, 8], [8, 8], [12, 12, 12]]


def test_checkpoint_0_is_the_untrained_players(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    trainer, fresh = trained(config, tmp_path / "run"), Trainer(config)
    for name, player in fresh.players.items():
        state = saved_state(trainer, 0)["players"][name]
        assert state["opt_steps"] == state["env_steps"] == 0
        assert_same_state(state["nets"]["q"], dict(player.nets["q"].state_dict()))


def test_records_tell_losses_rates_and_episodes(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config(), tmp_path / "run")
    host = records(trainer, "training")[-1]["players"]["host"]
    assert host.keys() >= {"loss", "q_mean", "grad_norm", "learning_rate", "exploration", "episodes"}
    assert (host["learning_rate"], host["exploration"]) == (pytest.approx(0.001), pytest.approx(0.1))
    found = [r["players"]["host"]["episodes"] for r in records(trainer, "training")]
    ended = next(episodes for episodes in found if episodes["number"] > 0)
    assert ended["terminated"] + ended["truncated"] == 1.0
    assert (ended["length"] >= 1.0, ended["return/host"]) == (True, ended["terminated"])
    assert ended["return/agent"] == -ended["return/host"]


def test_the_returns_of_training_s_own_games_are_there_and_survive_a_stop(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = trained(make_config(), tmp_path / "run")
    episodes = [record["players"]["host"]["episodes"] for record in records(trainer, "training")]
    returns = trainer.recent_returns("host")
    assert 0 < len(returns) == sum(each["number"] for each in episodes) <= 100
    assert sum(returns) == pytest.approx(
        sum(each["number"] * each["return/host"] for each in episodes if each["number"])
    )
    loaded = Trainer.load(tmp_path / "run")
    loaded.fit()
    assert loaded.recent_returns("host") == returns


def test_the_mean_of_a_metric_is_over_the_steps_since_the_last_record(make_config: MakeConfig, tmp_path: Path) -> None:
    losses: list[float] = []

    class Listening(Callback):
        def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
            if player.name == "host":
                losses.append(float(metrics["loss"]))

    trainer = trained(make_config(), tmp_path / "run", Listening(None))
    second = records(trainer, "training")[1]["players"]["host"]
    first = records(trainer, "training")[0]["players"]["host"]
    assert (first["opt_steps"], second["opt_steps"]) == (2, 4)
    assert second["loss"] == pytest.approx(sum(losses[2:4]) / 2, rel=1e-5)


# ---- bits ----------------------------------------------------------------------------------------------


def without_best(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in ("evaluating", "is_best", "config")}


def assert_same_state(one: Any, two: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, two)
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same_state(one[key], two[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_same_state(a, b)
    else:
        assert one == two


def test_evaluations_records_and_saves_change_no_bit_of_training(make_config: MakeConfig, tmp_path: Path) -> None:
    rare = {"evaluations": [], "best": None, "output.record": None, "output.save": {"every": 1000, "unit": "opt_steps"}}
    often = {"every": 1, "unit": "opt_steps"}
    dense = {"evaluations.0.interval": often, "output.record": often, "output.save": often}
    one = saved_state(trained(make_config(rare), tmp_path / "rare"))
    two = saved_state(trained(make_config(dense), tmp_path / "dense"))
    assert_same_state(without_best(one), without_best(two))


def test_an_evaluation_leaves_modes_and_state_as_they_were(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config(), tmp_path / "run")
    before = trainer.state_dict()
    for mode in (True, False):
        trainer.set_training(mode)
        with trainer.test_context():
            trainer.evaluations.play("main", 8, with_scripted=True)
        assert {net.training for player in trainer.learners for net in player.nets.values()} == {mode}
    trainer.load_state_dict(before)
    assert_same_state(trainer.state_dict(), before)


def test_a_state_that_is_loaded_is_the_state_that_was_given(make_config: MakeConfig) -> None:
    given, other = Trainer(make_config()), Trainer(make_config({"seed": 1}))
    given.roll_out("host", 7)
    given.set_training(False)
    other.load_state_dict(given.state_dict())
    assert_same_state(other.state_dict(), given.state_dict())


def test_fit_leaves_the_user_s_process_as_it_was(make_config: MakeConfig, tmp_path: Path) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)

    def surroundings() -> tuple[Any, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        rng_states = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())
        return *rng_states, handlers, torch.get_num_threads(), torch.is_grad_enabled()

    before = surroundings()
    trained(make_config({"execution.num_threads": torch.get_num_threads() + 1}), tmp_path / "run")
    assert surroundings() == before


def test_fit_works_in_a_thread(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config(), run=tmp_path / "run")
    thread = threading.Thread(target=trainer.fit)
    thread.start()
    thread.join(60.0)
    assert trainer.finished


class Wanderer(Callback):
    """Does what an environment may do when an evaluation makes it."""

    def after_evaluation(self, training: Any, record: Mapping[str, Any]) -> None:
        os.chdir("/")
        torch.set_num_threads(2)
        torch.set_grad_enabled(False)


def test_code_that_changes_directory_threads_and_gradients_costs_neither_checkpoints_nor_bits(
    make_config: MakeConfig, in_tmp_path: Path
) -> None:
    found = []
    for stop in (None, 12):  # without a new number of threads, the second run would have one from 12 to 16
        os.chdir(in_tmp_path)
        Trainer(make_config(), run=f"run-{stop}", callbacks=[Wanderer(None)]).fit(stop)
        os.chdir(in_tmp_path)
        trainer = Trainer.load(f"run-{stop}", callbacks=[Wanderer(None)])
        trainer.fit()
        found.append(trainer)
    os.chdir(in_tmp_path)
    one, two = ([without_clock(record) for record in read_records(each.run.folder.records)] for each in found)
    assert one == two
    assert [each.run.folder.checkpoints.kind("00000003") for each in found] == ["folder", "folder"]


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        (lambda: torch.device("meta"), "torch.set_default_device(None), because execution.device is enough, got meta"),
        (lambda: torch.autocast("cpu"), "training outside of torch.autocast"),
        (torch.inference_mode, "training outside of torch.inference_mode"),
        (default_doubles, "torch.set_default_dtype(torch.float32), got torch.float64"),
    ],
)
def test_what_would_change_all_numbers_of_a_run_is_refused_before_there_is_a_folder(
    inside: Callable[[], AbstractContextManager[Any]], line: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = Trainer(make_config(), run=tmp_path / "run")
    for begin in (trainer.fit, lambda: Trainer(make_config())):
        with inside(), pytest.raises(ConfigError) as raised:
            begin()
        assert str(raised.value) == f"torch: expected {line}"
    assert not (tmp_path / "run").exists()


def test_a_script_that_trains_where_workers_import_it_makes_no_run_there(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)  # as while they begin
    with pytest.raises(RuntimeError, match=r'expected fit\(\) below `if __name__ == "__main__":`'):
        Trainer(make_config(), run=tmp_path / "run").fit()
    assert not (tmp_path / "run").exists()


def test_a_plot_that_matplotlib_refuses_to_draw_is_one_line_at_the_end(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("Key backend: 'nonsense' is not a valid value")

    monkeypatch.setattr("palestra.run.run.plot_scores", refuse)
    assert trained(make_config(), tmp_path / "run").finished
    assert "scores.png could not be written: Key backend: 'nonsense'" in "".join(capsys.readouterr())


def test_players_are_not_loaded_where_torch_would_make_other_networks(
    make_config: MakeConfig, uninterrupted_run: MakeRun
) -> None:
    run = uninterrupted_run(make_config())
    with default_doubles(), pytest.raises(ConfigError, match=r"torch.set_default_dtype\(torch.float32\)"):
        palestra.load_player(run, "host")
    with torch.inference_mode():
        palestra.load_player(run, "host")


def test_a_stopped_trainer_object_goes_on_by_itself(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config(), tmp_path / "run", Counting())
    assert not trainer.finished
    trainer.fit()
    assert trainer.finished
    trained(make_config(), tmp_path / "uninterrupted")
    one, two = (read_records(tmp_path / name / "records.jsonl") for name in ("run", "uninterrupted"))
    assert [without_clock(record) for record in one] == [without_clock(record) for record in two]


# ---- errors --------------------------------------------------------------------------------------------


def all_finite(state: dict[str, Any]) -> bool:
    nets = [net for player in state["players"].values() for net in player["nets"].values()]
    return all(bool(value.isfinite().all()) for net in nets for value in net.values())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_loss_that_is_no_number_fails_the_run_and_keeps_a_sound_checkpoint(
    optimizer: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    path = "players.host.algorithm."
    changes: dict[str, Any] = {
        path + "learning_rate": {"name": "constant", "value": 1e38},
        "output.save": {"every": 1, "unit": "opt_steps"},
    }
    if optimizer == "sgd":
        changes[path + "optimizer"] = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
    trainer = Trainer(make_config(changes), run=tmp_path / "run")
    with pytest.raises(TrainingFailed) as caught:
        trainer.fit()
    assert re.fullmatch(
        r"player 'host', opt step \d+: (the loss is (nan|inf)|a parameter is no finite number); "
        rf"a resumed run would fail again; to change the config: "
        rf"palestra branch {tmp_path / 'run'}/checkpoints/\d{{8}} KEY=VALUE",
        str(caught.value),
    )
    assert all_finite(saved_state(trainer))


def test_a_parameter_that_is_no_number_is_never_saved(make_config: MakeConfig, tmp_path: Path) -> None:
    class Breaking(Callback):
        def after_step(self, trainer: Trainer, player: Player, metrics: Metrics) -> None:
            if trainer.opt_steps == 8:
                next(trainer.host_net.parameters()).data.fill_(math.nan)

    trainer = Trainer(make_config(), run=tmp_path / "run", callbacks=[Breaking(None)])
    with pytest.raises(TrainingFailed, match="player 'host', opt step 4: a parameter is no finite number"):
        trainer.fit()
    assert all_finite(saved_state(trainer))
    assert saved_state(trainer)["counters"]["opt_steps"] == 0


def test_a_scratch_disk_without_room_fails_the_run_in_one_line(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    config = make_config({"players.host.algorithm.replay_buffer.scratch_folder": str(tmp_path)})
    with pytest.raises(TrainingFailed) as caught:
        Trainer(config, run=tmp_path / "run").fit()
    assert re.fullmatch(
        rf"there is no room in replay_buffer.scratch_folder {tmp_path} for \S+ GiB of the replay buffer: .*; "
        rf"the last checkpoint is 00000000; to resume: palestra resume {tmp_path / 'run'}",
        str(caught.value),
    )


def test_a_scratch_folder_that_is_not_there_is_an_error_of_the_config(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"players.host.algorithm.replay_buffer.scratch_folder": "not/there"})
    with pytest.raises(ConfigError) as caught:
        Trainer(config, run=tmp_path / "run").fit()
    expected = "expected a folder in which files can be made, got 'not/there'"
    assert str(caught.value) == f"players.host.algorithm.replay_buffer.scratch_folder: {expected}"
    assert not (tmp_path / "run").exists()


def test_a_game_that_stands_still_after_a_cut_fails_the_run(in_tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "docs" / "examples"
    source = (folder / "pennies.py").read_text()
    cut = "torch.zeros_like(over).unsqueeze(1).expand(-1, 2), over"
    (in_tmp_path / "short_pennies.py").write_text(
        source.replace("over.unsqueeze(1).expand(-1, 2), torch.zeros_like(over)", cut)
    )
    config = load_yaml(folder / "pennies.yml") | {"evaluations": [], "best": None, "num_worlds": 3}
    config["game"] = {"name": "short_pennies:Pennies", "num_rounds": 30}  # more than are tried when it is built
    trainer = Trainer(config, run=in_tmp_path / "run")
    message = r"Pennies.deciding: expected each role .* plays on, got none in any world of player 'player'; a resumed"
    with pytest.raises(TrainingFailed, match=message):
        trainer.fit()


class Freezing(Callback):
    """Lets a layer ask for no gradient, before the run or at its first opt step."""

    def __init__(self, hook: str) -> None:
        super().__init__(None)
        self.hook = hook

    def freeze(self, hook: str, training: Any) -> None:
        if self.hook == hook:
            training.players["host"].nets["q"].get_parameter("layers.0.weight").requires_grad_(False)

    def before_train(self, training: Any) -> None:
        self.freeze("before_train", training)

    def before_step(self, training: Any, player: Any) -> None:
        self.freeze("before_step", training)


@pytest.mark.parametrize("hook", ["before_train", "before_step"])
def test_weights_that_ask_for_no_gradient_are_told(hook: str, make_config: MakeConfig, tmp_path: Path) -> None:
    plain = {"players.host.algorithm.net.net_arch": [8]}  # learns by hand
    trainer = Trainer(make_config(plain), run=tmp_path / "run", callbacks=[Freezing(hook)])
    told = r"^players.host: expected weights of 'q' that require a gradient, got 'layers.0.weight' without; use the ca"
    with pytest.raises(TrainingFailed, match=told):
        trainer.fit()


def test_a_reward_of_the_user_s_own_that_is_no_number_fails_the_run(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "own_reward.py").write_text(
        "import torch\nfrom palestra.config import UserConfig\nfrom palestra.games.polyhedra.rewards import Reward\n\n"
        "class Nan(Reward):\n    class Config(UserConfig):\n        pass\n\n"
        "    def __call__(self, before, after, won):\n        return torch.full((len(won), 2), torch.nan)\n"
    )
    config = make_config({"game.reward": {"name": "own_reward:Nan"}, "best": None})
    trainer = Trainer(config, run=in_tmp_path / "run")
    with pytest.raises(TrainingFailed, match=r"^PolyhedraGame.transition: expected finite numbers for .host., got nan"):
        trainer.fit()
    assert all_finite(saved_state(trainer))
    assert issubclass(type(trainer.game.reward), Reward)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"best.pairing": 2}, "best.pairing: expected a pairing with a player that learns (0, 1), got 2"),
        ({"best.pairing": 7}, "best.pairing: expected a pairing with a player that learns (0, 1), got 7"),
        (
            {"best.measure": "return/hosts"},
            "best.measure: expected one of 'rho', 'return/host', 'return/agent', 'length', 'won/host', 'won/agent' (",
        ),
        (
            {"execution.device": "gpu"},
            "execution.device: expected cpu, cuda, mps or xpu, or one of several as cuda:1, got 'gpu'; GPUs of Nvidia",
        ),
        (
            {"execution.step_within_s": 5.0},
            "execution.step_within_s: expected null, because no game here is an environment, got 5",
        ),
        (
            {"roles.agent": "host"},
            "players.agent: expected a player that sits in a role",
        ),
        ({"players.host": {"scripted": "zeilinger"}}, "players.host.scripted: expected a scripted player ("),
        (
            {"players.host": {"scripted": "greedy"}},
            "players.host.scripted: expected the role agent for the player 'greedy', got 'host'",
        ),
    ],
)
def test_a_config_that_cannot_be_played_is_told_before_anything_is_made(
    changes: dict[str, Any], expected: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(palestra.ConfigError) as caught:
        Trainer(make_config(changes), run=tmp_path / "run")
    assert any(str(error).startswith(expected) for error in caught.value.errors), str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what a machine without a GPU says")
def test_a_device_that_is_not_there_is_a_clear_error(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(
        palestra.ConfigError, match=r"^execution\.device: expected a device of this machine, got 'cuda': "
    ):
        Trainer(make_config({"execution.device": "cuda", "execution.kernel": "torch"}), run=tmp_path / "run")


def test_one_player_cannot_sit_where_it_sees_and_does_different_things(make_config: MakeConfig) -> None:
    with pytest.raises(
        palestra.ConfigError, match=r"^roles\.agent: expected 'agent' to observe and act like 'host', for"
    ):
        Trainer(make_config({"roles.agent": "host", "players.agent": ..., "evaluations": [], "best": None}))


def test_overrides_replace_what_a_mapping_or_a_config_object_says(make_config: MakeConfig) -> None:
    once = Trainer(make_config(), overrides=["num_worlds=5"])
    again = Trainer(once.config, overrides=["seed=9"])
    assert (once.config.num_worlds, again.config.num_worlds, again.config.seed) == (5, 5, 9)


# ---- players and their parts ---------------------------------------------------------------------------


def test_the_parts_of_a_player_are_found_by_role(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config({"roles": {"host": "h", "agent": "a"}, "evaluations": [], "best": None} | {
        "players": {"h": make_config()["players"]["host"], "a": {"scripted": "random"}}
    }))  # fmt: skip
    player = trainer.players["h"]
    assert trainer.host_net is player.nets["q"]
    assert trainer.host_optimizer is player.optimizers["q"]
    assert trainer.host_lr_scheduler is player.lr_schedule
    assert trainer.host_er_scheduler is player.er_schedule
    assert trainer.host_replay_buffer is player.replay_buffer
    assert trainer.agent_optimizer is None
    assert trainer.agent_er_scheduler is None
    with pytest.raises(AttributeError, match="has no attribute 'host_brain'"):
        trainer.host_brain  # noqa: B018


def test_set_training_switches_every_net(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config())
    for mode in (False, True):
        trainer.set_training(mode)
        assert {net.training for player in trainer.learners for net in player.nets.values()} == {mode}


@pytest.mark.parametrize(("role", "num_actions"), [("host", 4), ("agent", 3)])
def test_a_roll_out_gives_the_experience_of_its_role(role: str, num_actions: int, make_config: MakeConfig) -> None:
    trainer = Trainer(make_config())
    transitions = trainer.roll_out(role, 5)
    assert transitions.next_legal.shape == (40, num_actions)
    assert 0 < int(transitions.valid.sum()) <= 40
    assert int(transitions.action[transitions.valid].max()) < num_actions
    assert (trainer.env_steps, trainer.players[role].env_steps, trainer.epoch_counts["roll_outs"]) == (40, 40, 1)


def test_players_that_learn_explore_in_every_roll_out_and_those_held_fixed_never(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    def exploration(trainer: Trainer) -> dict[str, float]:
        trainer.roll_out("agent", 1)
        return {role: policy.exploration for role, policy in trainer.fused_game.policies.items()}  # type: ignore[attr-defined]

    assert exploration(Trainer(make_config())) == {"host": 1.0, "agent": 1.0}
    trained(make_config(), tmp_path / "source")
    entry = {"from_run": str(tmp_path / "source"), "player": "host", "checkpoint": "latest"}
    assert exploration(Trainer(make_config({"players.host": entry, "evaluations": [], "best": None}))) == {
        "host": 0.0,
        "agent": 1.0,
    }


def test_a_player_from_a_run_plays_as_it_was_left_and_never_changes(make_config: MakeConfig, tmp_path: Path) -> None:
    source = trained(make_config(), tmp_path / "source")
    entry = {"from_run": str(tmp_path / "source"), "player": "host", "checkpoint": "latest"}
    trainer = Trainer(make_config({"players.host": entry, "best.pairing": 1}), run=tmp_path / "run")
    before = parameters(trainer.players["host"])
    assert_equal(before, parameters(source.players["host"]))
    trainer.fit()
    assert_equal(parameters(trainer.players["host"]), before)
    assert [player.name for player in trainer.learners] == ["agent"]
    assert trainer.players["agent"].opt_steps == 24


def test_a_run_with_a_player_from_a_run_resumes(make_config: MakeConfig, tmp_path: Path) -> None:
    trained(make_config(), tmp_path / "source")
    entry = {"from_run": str(tmp_path / "source"), "player": "host", "checkpoint": "0"}
    config = make_config({"players.host": entry, "best.pairing": 1})
    trained(config, tmp_path / "run", Counting())
    resumed = Trainer.load(tmp_path / "run", callbacks=[Counting()])
    resumed.fit()
    uninterrupted = trained(config, tmp_path / "uninterrupted")
    assert_same_state(without_callbacks(saved_state(resumed)), without_callbacks(saved_state(uninterrupted)))


def without_callbacks(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "callbacks"}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"from_run": "nowhere", "player": "host", "checkpoint": "latest"}, "nowhere is not a run"),
        (
            {"from_run": "source", "player": "hots", "checkpoint": "latest"},
            "expected a player that learned in source, got 'hots'",
        ),
        ({"from_run": "source", "player": "host", "checkpoint": "99"}, "there is no checkpoint 00000099"),
        ({"from_run": "source", "player": "host", "checkpoint": "newest"}, "there is no checkpoint newest"),
        (
            {"from_run": "source", "player": "agent", "checkpoint": "latest"},
            "expected a player that fits the role 'host'",
        ),
    ],
)
def test_a_player_that_cannot_come_from_a_run_is_one_clear_error(
    entry: dict[str, Any], expected: str, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    trained(make_config(), in_tmp_path / "source")
    with pytest.raises(palestra.ConfigError) as caught:
        Trainer(make_config({"players.host": entry, "evaluations": [], "best": None}))
    [error] = caught.value.errors
    assert error.path.startswith("players.host.from_run")
    assert expected in error.message
    assert len(error.message) < 1000


def test_load_player_acts_as_the_trained_one(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config(), tmp_path / "run")
    keys = torch.arange(64)
    state = trainer.game.reset(keys)
    view, legal = trainer.game.observe(state, "host"), trainer.game.legal(state, "host")
    actions = [
        player.policy(explore=False).act(view, legal, keys, {}).action
        for player in (trainer.players["host"], palestra.load_player(tmp_path / "run", "host"))
    ]
    assert torch.equal(*actions)


def test_load_player_wants_a_name_where_several_learned(make_config: MakeConfig, tmp_path: Path) -> None:
    trained(make_config(), tmp_path / "both")
    with pytest.raises(
        ValueError, match=r"expected a player that learned in .* \(host, agent\), got none; name it by --player"
    ):
        palestra.load_player(tmp_path / "both")
    trained(make_config({"players.agent": {"scripted": "random"}}), tmp_path / "one")
    assert palestra.load_player(tmp_path / "one", checkpoint="best").name == "host"


def test_dqn_trainer_takes_players_that_learn_by_dqn(make_config: MakeConfig, in_tmp_path: Path) -> None:
    assert isinstance(palestra.DQNTrainer(make_config()).players["host"].algorithm, DQN)
    (in_tmp_path / "own_algorithm.py").write_text(
        "from palestra.algorithms.dqn import DQN\nfrom palestra.config import UserConfig\n\n"
        "class Own(DQN):\n    class Config(UserConfig):\n        pass\n"
    )
    config = make_config({"players.host.algorithm": {"name": "own_algorithm:Own"}})
    with pytest.raises(
        palestra.ConfigError, match=r"players\.host\.algorithm\.name: expected 'dqn', got 'own_algorithm:Own'"
    ):
        palestra.DQNTrainer(config)


def test_the_best_checkpoint_is_that_of_the_best_evaluation(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = trained(make_config({"stop": {"after": 60, "unit": "opt_steps"}}), tmp_path / "run")
    rho = {record["opt_steps"]: record["pairs"][0]["scores"]["rho"] for record in records(trainer, "evaluation")}
    best = saved_state(trainer, "best")
    assert rho[best["counters"]["opt_steps"]] == best["evaluating"]["best_score"] == max(rho.values())


def test_a_best_that_is_nan_is_told_once(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_scores.py").write_text("def score(pair):\n    return float('nan')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = io.StringIO()
    config = make_config({"best.measure": "odd_scores:score", "output.display": "plain"})
    trainer = Trainer(config, run=tmp_path / "run", console=Console(file=shown, width=200))
    trainer.fit()
    told = "warning: best: odd_scores:score of evaluation 'main' is nan at opt step 0; a checkpoint with nan is never"
    assert shown.getvalue().count(told) == shown.getvalue().count("is nan") == 1
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_plain_lines_tell_where_the_run_is(make_config: MakeConfig, tmp_path: Path) -> None:
    console = Console(record=True, width=120, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    Trainer(make_config({"output.display": "plain"}), run=tmp_path / "run", console=console).fit()
    text = console.export_text()
    assert "24" in text
    assert str(tmp_path / "run") in text.replace("\n", "")


@pytest.mark.parametrize("measure", ["length", "rho"])
def test_plain_lines_tell_the_score_that_decides_best_unless_they_show_it(
    measure: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    shown = io.StringIO()
    config = make_config({"best.measure": measure, "output.display": "plain"})
    trainer = Trainer(config, run=tmp_path / "run", console=Console(file=shown, width=200))
    trainer.fit()
    lines = [line for line in shown.getvalue().splitlines() if line.startswith("evaluation main at opt step")]
    found = records(trainer, "evaluation")
    assert len(lines) == len(found)
    for line, record in zip(lines, found, strict=True):
        length = record["pairs"][0]["statistics"]["episode_length"]["mean"]
        assert (f"; best goes by length {length:.3g}" in line) == (measure == "length"), line
        assert ("best goes by" in line) == (measure == "length")


def test_a_second_fit_of_a_finished_trainer_changes_nothing(make_config: MakeConfig, in_tmp_path: Path) -> None:
    trainer = palestra.Trainer(make_config({"output.save": None}), run="run")
    trainer.fit()
    steps, records = trainer.opt_steps, Path("run/records.jsonl").read_bytes()
    trainer.fit()
    assert (trainer.opt_steps, Path("run/records.jsonl").read_bytes()) == (steps, records)


# ---- a disk that refuses -------------------------------------------------------------------------------


def refuse_saves(monkeypatch: pytest.MonkeyPatch, refused: Callable[[int], bool]) -> list[int]:
    """Let the disk be full while the n-th checkpoint is written, for every n (from 0) that is refused; gives the n."""
    numbers: list[int] = []
    original = Folder.write_new

    def write(folder: Folder, name: str, content: bytes) -> None:
        if name == "tensors.safetensors":
            numbers.append(len(numbers))
            if refused(numbers[-1]):
                raise OSError(errno.ENOSPC, "No space left on device")
        original(folder, name, content)

    monkeypatch.setattr(Folder, "write_new", write)
    return numbers


def test_a_save_that_fails_is_told_and_changes_nothing_else(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config({"output.save": {"every": 8, "unit": "opt_steps"}, "output.display": "plain"})
    Trainer(config, run=tmp_path / "whole").fit()
    refuse_saves(monkeypatch, lambda number: number in (1, 2))
    shown = io.StringIO()
    trainer = Trainer(config, run=tmp_path / "run", console=Console(file=shown, width=1000))
    trainer.fit()
    assert "error: checkpoint 00000001 could not be saved" in shown.getvalue()
    assert shown.getvalue().count("could not be saved") == 1  # until one has succeeded
    assert f"{tmp_path / 'run/checkpoints/00000003'}: a save has succeeded again\n" in shown.getvalue()
    assert "No space left on device" in shown.getvalue()
    assert "training goes on" in shown.getvalue()
    own, whole = (Checkpoints(RunFolder.open(tmp_path / name), 1, None).load("latest") for name in ("run", "whole"))
    assert own.manifest.files == whole.manifest.files
    records, others = ((tmp_path / name / "records.jsonl") for name in ("run", "whole"))
    assert [without_clock(r) for r in read_records(records)] == [without_clock(r) for r in read_records(others)]


@pytest.mark.parametrize("what", ["tensors.safetensors", "best"])
def test_a_best_that_could_not_be_saved_leaves_its_place_to_the_next_that_is_better_than_the_saved(
    what: str, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rho = {0: 1.0, 8: 3.0, 16: 2.0, 24: 0.5}  # by opt step; the save at 8 fails
    method = "write" if what == "best" else "write_new"
    write = getattr(Folder, method)

    def refuse(folder: Folder, name: str, content: bytes) -> None:
        if name == what and trainer.opt_steps == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, name, content)

    def improves(best: BestScore, record: Mapping[str, Any]) -> bool:
        pairs = [pair | {"scores": pair["scores"] | {"rho": rho[trainer.opt_steps]}} for pair in record["pairs"]]
        return original(best, {**record, "pairs": pairs})

    original = BestScore.improves
    monkeypatch.setattr(Folder, method, refuse)
    monkeypatch.setattr(BestScore, "improves", improves)
    intervals = {"output.save": {"every": 8, "unit": "opt_steps"}, "evaluations.0.interval.every": 8}
    trainer = Trainer(make_config({**intervals, "stop.after": 24}), run=tmp_path / "run")
    with pytest.raises(CheckpointError, match="the best players of the run are in no checkpoint"):
        trainer.fit()
    assert saved_state(trainer, "best")["counters"]["opt_steps"] == 16


def test_a_last_save_that_fails_is_an_error_at_the_end_and_leaves_the_checkpoint_before(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_saves(monkeypatch, lambda number: number >= 2)
    trainer = Trainer(make_config({"output.save": {"every": 8, "unit": "opt_steps"}}), run=tmp_path / "run")
    with pytest.raises(CheckpointError, match="No space left on device"):
        trainer.fit()
    assert trainer.finished
    assert Checkpoints(RunFolder.open(tmp_path / "run"), 1, None).load("latest").counters["opt_steps"] == 8


def test_weights_begin_the_same_whatever_threads_the_process_has() -> None:
    config = palestra.load_config(Path(__file__).parents[3] / "configs" / "ppo-cartpole.yml")
    before, weights = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            weights.append(Trainer(config).player_of("agent").weights()["nets"])
    finally:
        torch.set_num_threads(before)
    for name, net in weights[0].items():
        for key, value in net.items():
            assert torch.equal(value, weights[1][name][key])


# ---- norms of layers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "nets"),
    [
        ("dqn", {"q": ""}),
        ("ppo", {"actor_critic": ""}),
        ("sac", {"policy": "policy_", "critics": "critic_"}),
        ("td3", {}),
    ],
)
def test_norms_of_layers_make_up_those_of_the_whole(algorithm: str, nets: dict[str, str], tmp_path: Path) -> None:
    nets = nets or {"policy": "policy_", "critics": "critic_"}
    memory = {"replay": "uniform", "transitions": "one step"}
    choices = {
        "dqn": memory | {"value": "expected", "dueling": "no"},
        "ppo": {"objective": "clip", "body": "shared"},
        "sac": memory | {"entropy": "automatic"},
        "td3": memory | {"policy_interval": "1"},
    }[algorithm]
    kind = "box" if algorithm in ("sac", "td3") else "discrete"
    config = config_of(algorithm, {"game": "classic control", "actions": kind, **choices})
    config["players"]["agent"]["algorithm"] |= {"num_minibatches": 1, "num_passes": 1} if algorithm == "ppo" else {}
    config["output"] |= {"layer_norms": True, "record": {"every": 1, "unit": "opt_steps"}}
    trainer = trained(config, tmp_path / "with")
    last = [record["players"]["agent"] for record in records(trainer, "training")][-1]
    for net, prefix in nets.items():
        of_weights = [value for name, value in last.items() if name.startswith(f"weight_norm/{net}.")]
        of_gradient = [value for name, value in last.items() if name.startswith(f"grad_norm/{net}.")]
        assert len(of_weights) == len(of_gradient) > 1
        assert math.hypot(*of_gradient) == pytest.approx(last[f"{prefix}grad_norm"], rel=1e-5)
    layer = trainer.players["agent"].nets["policy" if "policy" in nets else next(iter(nets))]
    names = {name.rpartition(".")[0] for name, _ in layer.named_parameters()}
    assert {name for name in last if name.startswith("weight_norm/")} >= {
        f"weight_norm/{next(iter(nets))}.{name}" for name in names
    }
    config["output"]["layer_norms"] = False
    without = trained(config, tmp_path / "without")
    assert not any(name.startswith("weight_norm/") for name in without.metrics.by_player["agent"].shown())
    for name, net in trainer.players["agent"].nets.items():
        same = without.players["agent"].nets[name].state_dict()
        assert all(torch.equal(value, same[key]) for key, value in net.state_dict().items()), name


def test_the_norms_of_a_layer_are_those_of_its_weights_and_of_its_part_of_the_gradient() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    weights = flatten_weights(net)
    optimizer = SGDConfig(name="sgd", momentum=0.0, weight_decay=0.0).build(weights)
    gradient = torch.arange(13.0)
    assert optimizer.layer_norms(gradient) == {}
    optimizer.layers = layers_of(weights, {"other": torch.nn.Linear(2, 3), "q": net})
    optimizer.freeze(torch.arange(13) == 12)
    found = {name: value.item() for name, value in optimizer.layer_norms(gradient).items()}
    assert found == pytest.approx(
        {
            "weight_norm/q.0": torch.cat([net[0].weight.flatten(), net[0].bias]).norm().item(),
            "weight_norm/q.2": torch.cat([net[2].weight.flatten(), net[2].bias]).norm().item(),
            "grad_norm/q.0": torch.arange(9.0).norm().item(),
            "grad_norm/q.2": torch.arange(9.0, 12.0).norm().item(),
        }
    )
