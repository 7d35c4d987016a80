"""An algorithm of one's own goes on to the same bits, wherever it is stopped."""

import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, get_type_hints

import torch
from rich.console import Console

from palestra.algorithms.algorithm import Algorithm
from palestra.commands.verify import Difference
from palestra.config import Config, ConfigError, ConfigErrorItem, UserConfig, failure
from palestra.games import read_game
from palestra.randomness import restored_global_states
from palestra.recording.recorders import without_clock
from palestra.runs.branching import tree_differences
from palestra.storage.records_file import read_records
from palestra.testing.sample_config import sample_config
from palestra.training import make_trainer
from palestra.training.trainer import Trainer

Data = dict[str, Any]

CARTPOLE = {"name": "cartpole", "max_rounds": 6, "initial_low": -0.2, "initial_high": 0.2, "sutton_barto_reward": False}
NIM = {"name": "nim", "num_heaps": 2, "max_stones": 3}
PENDULUM = {"name": "pendulum", "max_rounds": 6, "g": 10.0, "initial_angle": 3.0, "initial_speed": 1.0}
PROBES = [[CARTPOLE, NIM], [PENDULUM]]  # by the kind of actions
LEARNER, OTHER = "learner", "other"
NUM_TURNS = 4
MOST_SAFE_POINTS = 200
ALIASES = "palestra_checked_classes"  # a module that holds classes which no module has at its top


def check_algorithm(
    cls: type[Algorithm], config: Mapping[str, Any] | None = None, game: Mapping[str, Any] | None = None
) -> None:
    """Train a class for a few turns in small games, and again and again; all must come out in the same bits.

    Once it is left alone. Once the global random generators are elsewhere: same seed, same bits. Once it is stopped at
    every safe point, and a fresh object goes on from the checkpoint: whatever `learn` needs must be in `state_dict`.

    config: values for some of its keys; the others are made up. game: the config of a game to train in; None: of the
    kinds of actions that the class can learn with, all of a cart and pole, Nim with one player in both seats, and a
    pendulum. Raises ConfigError with every fault, a line each, and the method's name.
    """
    faults: list[ConfigErrorItem] = []
    unable: list[str] = []
    with _named(cls) as name, _own_state_folder(), restored_global_states(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algorithm = _algorithm_config(cls, name, config or {})
        kinds = PROBES if game is None else [[dict(game)]]
        for games in kinds:
            try:
                for each in games:
                    faults += _faults(cls, algorithm, each)
            except _Unable as error:
                unable.append(str(error))
    if len(unable) == len(kinds):  # one kind of actions is enough
        faults += [ConfigErrorItem("", line) for line in unable]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


# ---- one game --------------------------------------------------------------------------------------------


class Stopping:
    """Remembers what the player was at every safe point of a training, and leaves at one of them. stop_at: its number,
    from 1.

    Of its worlds nothing is remembered: records, which come later after a stop, empty their counters.
    """

    def __init__(self, trainer: Trainer, stop_at: int | None) -> None:
        self.trainer, self.stop_at = trainer, stop_at
        self.states: list[Data] = []
        trainer.watcher = self

    def before_safe_point(self) -> None:
        trainer = self.trainer
        state = {key: value for key, value in trainer.players[LEARNER].state_dict().items() if key != "worlds"}
        self.states.append(deepcopy(state))
        if len(self.states) > MOST_SAFE_POINTS:
            raise RuntimeError(f"{MOST_SAFE_POINTS} safe points in {trainer.epochs} turns, and no end")
        if len(self.states) == self.stop_at:
            trainer.signals.received = SIGTERM

    def after_safe_point(self) -> None:
        pass


class _Unable(Exception):
    """The class cannot be made for a game, or raises there."""


def _faults(cls: type[Algorithm], algorithm: Data, game: Data) -> list[ConfigErrorItem]:
    """What is wrong with an algorithm in one game. Raises _Unable where it does not get to an end."""
    config = _run_config(algorithm, game)
    with TemporaryDirectory(prefix="palestra-check-") as place:
        alone = _train(cls, Path(place) / "alone", config)
        if alone.trainer.opt_steps == 0:
            return [_fault(cls, "learn", "an opt step (turn.after_step)", f"none in {NUM_TURNS} turns")]
        torch.manual_seed(1)
        return _faults_of_chance(cls, alone, Path(place), config) + _faults_of_stops(cls, alone, Path(place), config)


def _faults_of_chance(cls: type[Algorithm], alone: Stopping, place: Path, config: Data) -> list[ConfigErrorItem]:
    """The same seed gives the same bits, wherever the global generators are by now."""
    again = _train(cls, place / "again", config)
    for number, (one, other) in enumerate(zip(alone.states, again.states, strict=False)):
        if told := _difference(one, other, number):
            return [_fault(cls, "learn", "the same bits from the same seed: chance from keys alone", told)]
    if told := _difference(_records(alone), _records(again), None):
        return [_fault(cls, "policy", "the same records from the same seed: chance from keys alone", told)]
    return []


def _faults_of_stops(cls: type[Algorithm], alone: Stopping, place: Path, config: Data) -> list[ConfigErrorItem]:
    """A fresh object goes on from every safe point to the next one as if nothing had been stopped."""
    run = place / "stopped"
    _train(cls, run, config, stop_at=1)
    for number, (before, after) in enumerate(zip(alone.states, [*alone.states[1:], None], strict=True)):
        expected = f"a fresh object to go on from safe point {number} as if nothing had been stopped"
        try:
            again = _train(cls, run, None, stop_at=2)
        except _Unable as error:
            return [ConfigErrorItem("", f"{error}; expected {expected}, by what state_dict remembers")]
        if told := _difference(before, again.states[0], number):
            return [_fault(cls, "load_state_dict", "a fresh object to be what state_dict has told", told)]
        told = "another number of safe points" if (after is None) != (len(again.states) == 1) else None
        if after is not None and len(again.states) > 1:
            told = _difference(after, again.states[1], number + 1)
        if told:
            return [_fault(cls, "learn", f"{expected}, by what state_dict remembers", told)]
    if told := _difference(_records(alone), _records(again), None):
        return [_fault(cls, "learn", "the same records with stops as without", told)]
    return []


def _train(cls: type[Algorithm], run: Path, config: Data | None, stop_at: int | None = None) -> Stopping:
    """A run that has begun, or gone on. Raises _Unable."""
    console = Console(quiet=True)
    try:
        trainer = (
            Trainer.load(run, console=console) if config is None else make_trainer(config, run=run, console=console)
        )
        made = type(trainer.players[LEARNER].algorithm)
        if made is not cls:
            raise TypeError(
                f"{cls.__name__} has no Config of its own, a subclass of UserConfig: {made.__name__} is made"
            )
        stopping = Stopping(trainer, stop_at)
        trainer.fit()
    except ConfigError as error:
        raise _Unable(f"{cls.__name__}.__init__: refuses: {'; '.join(str(error).splitlines())}") from error
    except Exception as error:
        raise _Unable(f"{cls.__name__}.{_method_of(cls, error)}: raises {failure(error)}") from error
    return stopping


def _method_of(cls: type[Algorithm], error: Exception) -> str:
    """The outermost method of the class that an exception came through."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if isinstance(frame.f_locals.get("self"), cls):
            return frame.f_code.co_name
        trace = trace.tb_next
    return "policy"


def _fault(cls: type[Algorithm], method: str, expected: str, got: str) -> ConfigErrorItem:
    return ConfigErrorItem(f"{cls.__name__}.{method}", f"expected {expected}, got {got}")


def _difference(before: Any, after: Any, number: int | None) -> str | None:
    """The first one in words, at a safe point by its number."""
    change = next(tree_differences(before, after), None)
    if change is None:
        return None
    where = "a record" if number is None else f"safe point {number}, counted from 0"
    return str(Difference(where, change))


def _records(stopping: Stopping) -> list[Data]:
    folder = stopping.trainer.opened_output().folder
    return [without_clock(record) for record in read_records(folder.records)]


# ---- what is trained -------------------------------------------------------------------------------------


@contextmanager
def _named(cls: type) -> Iterator[str]:
    """The class as a config names it. One that stands inside a function is put into a module meanwhile."""
    if getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls:
        yield f"{cls.__module__}:{cls.__name__}"
        return
    module = ModuleType(ALIASES)
    with suppress(TypeError):  # of a class that no file holds
        module.__file__ = inspect.getsourcefile(cls)
    setattr(module, cls.__name__, cls)
    sys.modules[ALIASES] = module
    try:
        yield f"{ALIASES}:{cls.__name__}"
    finally:
        del sys.modules[ALIASES]


@contextmanager
def _own_state_folder() -> Iterator[None]:
    """The runs of a check enter the class as trusted; that is forgotten with them."""
    key = "XDG_STATE_HOME"
    before = os.environ.get(key)
    with TemporaryDirectory(prefix="palestra-check-") as place:
        os.environ[key] = place
        try:
            yield
        finally:
            del os.environ[key]
            if before is not None:
                os.environ[key] = before


def _algorithm_config(cls: type[Algorithm], name: str, given: Mapping[str, Any]) -> Data:
    """A config of that class: of a user's own by its name, of ours by the name that its config has."""
    model = getattr(cls, "Config", None) or get_type_hints(cls).get("config")
    if not (isinstance(model, type) and issubclass(model, Config)):
        raise ConfigError([_fault(cls, "Config", "a subclass of UserConfig", repr(model))])
    names = {"name": name} if issubclass(model, UserConfig) else {}
    try:
        return sample_config(model, {**given, **names})
    except ValueError as error:
        raise ConfigError([ConfigErrorItem(f"{cls.__name__}.Config", str(error))]) from error


def _run_config(algorithm: Data, game: Data) -> Data:
    """A tiny run in which the algorithm has every seat that sees and does what the first one does."""
    made = read_game(game)
    first, *_ = made.roles
    alike = [
        role
        for role in made.roles
        if made.spaces[role] == made.spaces[first] and made.action_spaces[role] == made.action_spaces[first]
    ]
    roles = {role: LEARNER if role in alike else OTHER for role in made.roles}
    learner = {"algorithm": algorithm, "warm_start": None}
    other = {} if len(alike) == len(made.roles) else {OTHER: {"scripted": "random"}}
    pairing = {role: LEARNER if role in alike else "random" for role in made.roles}
    return {
        "seed": 0,
        "trainer": {"name": "in_turn"},
        "game": game,
        "num_worlds": 4,
        "roles": roles,
        "players": {LEARNER: learner, **other},
        "stop": {"after": NUM_TURNS, "unit": "epochs"},
        "evaluations": [
            {
                "name": "main",
                "interval": {"every": 2, "unit": "opt_steps"},
                "num_games": 4,
                "final_num_games": 4,
                "max_rounds": 6,
                "seed": None,
                "game": None,
                "pairings": [pairing],
            }
        ],
        "best": None,
        "evaluators": None,
        "callbacks": [],
        "execution": {"device": "cpu", "num_threads": 1, "kernel": "numba", "gradients": "by_hand", "compile": False},
        "output": {
            "display": "quiet",
            "record": {"every": 1, "unit": "epochs"},
            "statistics": ["mean"],
            "info": [],
            "recorders": [],
            "save": {"every": NUM_TURNS, "unit": "epochs"},
            "keep_last": 1,
            "keep_every": None,
            "checkpoint_folder": None,
            "stop_within_s": 60.0,
            "mirror": None,
        },
    }
