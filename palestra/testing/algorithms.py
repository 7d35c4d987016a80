"""Checks that an algorithm of your own computes the same bits wherever it is stopped, and learns in replicas."""

import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import islice
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from traceback import walk_tb
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest.mock import patch

import torch
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from palestra.algorithms.algorithm import Algorithm
from palestra.commands.replay import Difference
from palestra.config import Config, ConfigError, ConfigErrorItem, InBranch, UserConfig, failure
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.config.variants import Variants, members_of, names_of
from palestra.games import make_game
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.trainer import SecondRollOut, Trainer
from palestra.randomness import restored_global_states
from palestra.recording.recorders import without_clock
from palestra.run.branching import tree_differences
from palestra.storage.records_file import read_records
from palestra.training.checks import Watcher
from palestra.training.opening import make_trainer

Data = dict[str, Any]

PLAIN: Data = {"observation": {"normalize": None, "clip": None}}
SHORT: Data = {"max_rounds": 6, **PLAIN}
CARTPOLE = {"name": "cartpole", "initial_low": -0.2, "initial_high": 0.2, "sutton_barto_reward": False, **SHORT}
NIM = {"name": "nim", "num_heaps": 2, "max_stones": 3, **PLAIN}
PENDULUM = {"name": "pendulum", "g": 10.0, "initial_angle": 3.0, "initial_speed": 1.0, **SHORT}
PROBES = [[CARTPOLE, NIM], [PENDULUM]]  # by the kind of actions
LEARNER, OTHER = "learner", "other"
NUM_TURNS = 4
MOST_SAFE_POINTS = 200
ALIASES = "palestra_checked_classes"  # a module for classes that are defined inside functions


def check_algorithm(
    cls: type[Algorithm], config: Mapping[str, Any] | None = None, game: Mapping[str, Any] | None = None
) -> None:
    """Train a class for a few turns in small games, several times; the results must be the same bits.

    The first training is not interrupted. The second has other states of the global random generators: the same seed
    must give the same bits. The third is stopped at every safe point, and a fresh object goes on from the checkpoint:
    everything that `learn` needs must be in `state_dict`. In the fourth two replicas learn in lockstep, for which
    `self.player.mean_over_replicas` stands between gradient and step. In the fifth an actor plays, to whom
    `acting_state` must give all that the player explores by besides networks and counters; where turns have several
    roll-outs, none can.

    config: values for some keys of the class; the others are made up. game: the config of a game to train in; None: a
    cart and pole, Nim with one player in both seats, and a pendulum, of which the class must be able to play either the
    first two or the last. Raises ConfigError with a line for every fault, which begins with the method's name.
    """
    faults: list[ConfigErrorItem] = []
    unable: list[str] = []
    with (
        _named(cls) as name,
        TemporaryDirectory(prefix="palestra-check-") as place,
        patch.dict(os.environ, XDG_STATE_HOME=place),  # where the runs of the check note their trust
        restored_global_states(),
        warnings.catch_warnings(),
    ):
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
    ConfigError.require_none(faults)


# ---- one game --------------------------------------------------------------------------------------------


class Stopping(Watcher):
    """Stores the player's state at every safe point of a training, and stops the run at one of them.

    stop_at: the number of that safe point, counted from 1; None: none.
    """

    def __init__(self, trainer: Trainer, stop_at: int | None) -> None:
        self.trainer, self.stop_at = trainer, stop_at
        self.states: list[Data] = []
        trainer.watcher = self

    def before_safe_point(self) -> None:
        trainer = self.trainer
        self.states.append(deepcopy(trainer.players[LEARNER].state_dict()))
        if len(self.states) > MOST_SAFE_POINTS:
            raise RuntimeError(f"expected at most {MOST_SAFE_POINTS} safe points, got more in {trainer.epochs} turns")
        if len(self.states) == self.stop_at:
            trainer.run.signals.received = SIGTERM


class _Unable(Exception):
    """An object of the class cannot be made for a game, or raises there."""


def _faults(cls: type[Algorithm], algorithm: Data, game: Data) -> list[ConfigErrorItem]:
    """Return the faults of an algorithm in one game. Raises _Unable if its training does not reach the end."""
    config = _run_config(algorithm, game)
    with TemporaryDirectory(prefix="palestra-check-") as place:
        alone = _train(cls, Path(place) / "alone", config)
        if alone.trainer.opt_steps == 0:
            return [_fault(cls, "learn", "an opt step (turn.after_step)", f"none in {NUM_TURNS} turns")]
        torch.manual_seed(1)
        found = [faults_of(cls, alone, Path(place), config) for faults_of in (_faults_of_chance, _faults_of_stops)]
        faults = [fault for each in found for fault in islice(each, 1)]  # the first of each; the others follow from it
        try:
            if not faults:
                _train(cls, Path(place) / "replicas", config | {"num_replicas": 2})
        except _Unable as error:
            return [ConfigErrorItem("", f"{error}, with num_replicas: 2")]
        return faults or [*islice(_faults_of_actors(cls, alone, Path(place), config), 1)]


def _faults_of_chance(cls: type[Algorithm], alone: Stopping, place: Path, config: Data) -> Iterator[ConfigErrorItem]:
    """Yield faults, if the same seed gives other bits with other states of the global generators."""
    again = _train(cls, place / "again", config)
    why = "from the same seed: random numbers from keys alone"
    for number, (one, other) in enumerate(zip(alone.states, again.states, strict=False)):
        yield from _differences(cls, "learn", f"the same bits {why}", one, other, number)
    yield from _differences(cls, "policy", f"the same records {why}", _records(alone), _records(again))


def _faults_of_stops(cls: type[Algorithm], alone: Stopping, place: Path, config: Data) -> Iterator[ConfigErrorItem]:
    """Yield faults, if a fresh object that goes on from a safe point computes other bits up to the next one."""
    again = _train(cls, place / "stopped", config, stop_at=1)
    for number, (before, after) in enumerate(zip(alone.states, [*alone.states[1:], None], strict=True)):
        expected = f"a fresh object to go on from safe point {number} as if nothing had been stopped"
        try:
            again = _train(cls, place / "stopped", None, stop_at=2)
        except _Unable as error:
            yield ConfigErrorItem("", f"{error}; expected {expected}, from state_dict alone")
            return
        restored = "a fresh object to have the state that state_dict returned"
        yield from _differences(cls, "load_state_dict", restored, before, again.states[0], number)
        expected = f"{expected}, from state_dict alone"
        if (after is None) != (len(again.states) == 1):
            yield _fault(cls, "learn", expected, "another number of safe points")
        elif after is not None:
            yield from _differences(cls, "learn", expected, after, again.states[1], number + 1)
    yield from _differences(cls, "learn", "the same records with stops as without", _records(alone), _records(again))


def _faults_of_actors(cls: type[Algorithm], alone: Stopping, place: Path, config: Data) -> Iterator[ConfigErrorItem]:
    """Yield faults, if an actor does not play as the player itself does.

    Where observations are normalised it does not: the same rows are added up in another order.
    """
    if alone.trainer.game.statistics():
        return
    try:
        again = _train(cls, place / "acted", config | {"actors": {"num": 1, "lag": 0}})
    except _Unable as error:
        if not isinstance(error.__cause__, SecondRollOut):
            yield ConfigErrorItem("", f"{error}, with actors")
        return
    why = "an actor to play to the same bits: from acting_state all that it explores by besides networks and counters"
    for number, (one, other) in enumerate(zip(alone.states, again.states, strict=False)):
        yield from _differences(cls, "acting_state", why, one, other, number)


def _differences(
    cls: type[Algorithm], method: str, expected: str, before: Any, after: Any, number: int | None = None
) -> Iterator[ConfigErrorItem]:
    """Yield a fault for each difference. number: that of the safe point; None for records."""
    for change in tree_differences(before, after):
        where = "a record" if number is None else f"safe point {number}, counted from 0"
        yield _fault(cls, method, expected, str(Difference(where, change)))


def _train(cls: type[Algorithm], run: Path, config: Data | None, stop_at: int | None = None) -> Stopping:
    """Begin a run with a config, or go on with it (config None). Raises _Unable."""
    console = Console(quiet=True)
    try:
        trainer = (
            Trainer.load(run, console=console) if config is None else make_trainer(config, run=run, console=console)
        )
        if (made := type(trainer.players[LEARNER].algorithm)) is not cls:
            raise TypeError(
                f"expected {cls.__name__} to have a Config of its own, a subclass of UserConfig, got one that builds "
                f"{made.__name__}"
            )
        stopping = Stopping(trainer, stop_at)
        trainer.fit()
    except ConfigError as error:
        raise _Unable(f"{cls.__name__}.__init__: refuses: {'; '.join(str(error).splitlines())}") from error
    except Exception as error:
        raise _Unable(f"{cls.__name__}.{_method_of(cls, error)}: raises {failure(error)}") from error
    return stopping


def _method_of(cls: type[Algorithm], error: Exception) -> str:
    """Return the outermost method of the class that an exception came through."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return next((each.f_code.co_name for each in frames if isinstance(each.f_locals.get("self"), cls)), "policy")


def _fault(cls: type[Algorithm], method: str, expected: str, got: str) -> ConfigErrorItem:
    return ConfigErrorItem(f"{cls.__name__}.{method}", f"expected {expected}, got {got}")


def _records(stopping: Stopping) -> list[Data]:
    return [without_clock(record) for record in read_records(stopping.trainer.run.folder.records)]


# ---- what is trained -------------------------------------------------------------------------------------


@contextmanager
def _named(cls: type) -> Iterator[str]:
    """Give a class its name in configs. A class that is defined inside a function is put into a module meanwhile."""
    if getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls:
        yield f"{cls.__module__}:{cls.__name__}"
        return
    module = ModuleType(ALIASES)
    with suppress(TypeError):  # raised for a class without a source file
        module.__file__ = inspect.getsourcefile(cls)
    setattr(module, cls.__name__, cls)
    sys.modules[ALIASES] = module
    try:
        yield f"{ALIASES}:{cls.__name__}"
    finally:
        del sys.modules[ALIASES]


def _algorithm_config(cls: type[Algorithm], name: str, values: Mapping[str, Any]) -> Data:
    """Return a config of the class.

    name: the class as package.module:Class, for a user's own. values: of some keys.
    """
    model = getattr(cls, "Config", None) or get_type_hints(cls).get("config")
    if not (isinstance(model, type) and issubclass(model, Config)):
        raise ConfigError([_fault(cls, "Config", "a subclass of UserConfig", repr(model))])
    names = {"name": name} if issubclass(model, UserConfig) else {}
    try:
        return sample_config(model, {**values, **names})
    except ValueError as error:
        raise ConfigError.at(f"{cls.__name__}.Config", str(error)) from error


def _run_config(algorithm: Data, game: Data) -> Data:
    """Return the config of a tiny run.

    The algorithm sits in every role with the observations and actions of the first.
    """
    made = make_game(game)
    first, *_ = made.roles
    spaces = {role: (made.spaces[role], made.action_spaces[role]) for role in made.roles}
    roles = {role: LEARNER if spaces[role] == spaces[first] else OTHER for role in made.roles}
    other = {OTHER: {"scripted": "random"}} if OTHER in roles.values() else {}
    pairing = {role: LEARNER if name == LEARNER else "random" for role, name in roles.items()}
    interval, numbers = {"every": 2, "unit": "opt_steps"}, {"num_games": 4, "final_num_games": 4, "max_rounds": 6}
    turns = {"every": 1, "unit": "epochs"}
    told = {
        "game": game,
        "num_worlds": 4,
        "roles": roles,
        "players": {LEARNER: {"algorithm": algorithm}, **other},
        "stop": {"after": NUM_TURNS, "unit": "epochs"},
        "evaluations": [{"interval": interval, "pairings": [pairing], **numbers}],
        "output": {"display": "quiet", "record": turns, "recorders": [], "save": turns | {"every": NUM_TURNS}},
    }
    data: Data = completed(told, Place(RunConfig))
    return data


CANDIDATES: tuple[Any, ...] = (0.05, 2, 0.5, 1, 0, False, None, "a", [], {})
BY_KEY = {"capacity": 256, "rollout_length": 2}  # a replay buffer must hold a roll-out, and somebody must play
NET = {"name": "mlp", "net_arch": [8], "activation": "tanh"}


def sample_config(model: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return data that the model accepts.

    values: those of some keys. Raises ValueError if no value is found for another key.
    """
    data = {name: value for name, value in BY_KEY.items() if name in model.model_fields} | dict(values)
    for name, field in model.model_fields.items():
        if name not in data:
            metadata = [item for item in field.metadata if not isinstance(item, InBranch)]
            kind: Any = Annotated[field.annotation, *metadata] if metadata else field.annotation
            try:
                data[name] = _sample(kind)
            except ValueError:
                expected = "expected a value in `config`, because none can be made up"
                raise ValueError(f"{name}: {expected}, got none") from None
    return data


def _sample(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated and any(isinstance(mark, Variants) for mark in arguments[1:]):
        by_name = names_of(members_of(arguments[0]))
        return NET if NET["name"] in by_name else sample_config(next(iter(by_name.values())), {})
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType) and NoneType in arguments:
        return None
    if isinstance(kind, type) and issubclass(kind, Config):
        return sample_config(kind, {})
    adapter = TypeAdapter(kind)
    for value in CANDIDATES:
        with suppress(ValidationError, ConfigError):
            adapter.validate_python(value, strict=True)
            return value
    raise ValueError
