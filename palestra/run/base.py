"""The keys of every run, whatever it trains.

There are several kinds of run; the class of the trainer says which kind it trains (palestra.run.kinds). Each kind is a
BaseRunConfig with further keys.
"""

from abc import ABC
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import model_validator

from palestra.callbacks import AnyCallbackConfig
from palestra.callbacks.plateau import EvaluationMeasureConfig, PlateauConfig
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    InBranch,
    NonNegativeInt,
    UserConfig,
    replaced,
    under,
    walk,
)
from palestra.config.errors import listed
from palestra.evaluation.config import Delay, EvaluatorsConfig
from palestra.evaluation.measures import (
    BestConfig,
    GameMeasures,
    GoalKeys,
    Measure,
    MeasureKeys,
    best_errors,
    contrary_note,
    measure_errors,
)
from palestra.run.sections import MachineConfig, RunOutputConfig
from palestra.runtime.intervals import Interval, Limit
from palestra.storage.stored_files import LONGEST_NAME, quoted_name


class TrainingClass(ABC):
    """What the key `trainer` may name: `palestra.training.training.Training`, and what derives from it.

    run_config: the kind of run that it trains. A class of your own carries its keys as `Config`, a UserConfig.
    """

    run_config: ClassVar[type["BaseRunConfig"]]


ASKED: dict[str, Any] = {
    "name": "asked",
    "interval": None,
    "at_start": False,
    "num_games": 1000,
    "final_num_games": 1000,
    "seed": None,
}
"""the evaluation in which pairings are played if the run's config has no evaluation"""
LAST_KEYS = ("evaluations", "best", "evaluators", "stop", "budget", "callbacks", "execution", "output")


class BaseRunConfig(Config):
    """The keys of every run, whatever it trains. The keys that a kind of run adds stand between `trainer` and `stop`.

    Class variables and the methods below the keys say what else differs between kinds: commands, evaluators, sweeps,
    reports and callbacks ask for these, and not for the kind.

    counters: what it counts, in the order in which records have it, `opt_steps` and `epochs` among it. late: those that
    are counted only when something is recorded, so that nothing can be due by them. axes: those over which its curves
    go, the usual one first. in_words: what it is, for a user who expected another kind. is_open: whether callbacks may
    change schedules and weights of what learns. has_model: whether a model learns from data in it, with the keys
    `model` and `learning`. options: those of commands that mean something to it alone, as --games. bitless: keys of
    `execution` that change no bit, so that a run may be resumed with others. changeable: keys that may be others where
    a stored run of a training is evaluated, or what has learned there is used. extendable: those that `palestra extend`
    changes.
    """

    counters: ClassVar[tuple[str, ...]] = ("opt_steps", "epochs")
    late: ClassVar[tuple[str, ...]] = ()
    axes: ClassVar[tuple[str, ...]] = ("opt_steps",)
    in_words: ClassVar[str] = "a run in which nobody plays"
    is_open: ClassVar[bool] = True
    has_model: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    bitless: ClassVar[tuple[str, ...]] = ()
    changeable: ClassVar[tuple[str, ...]] = ()
    extendable: ClassVar[tuple[str, ...]] = ("stop",)
    usual: ClassVar[Any] = {"seed": 0, "stop": {"after": 50_000, "unit": "opt_steps"}, "callbacks": []}

    seed: NonNegativeInt
    """all random numbers of the run are derived from it"""
    trainer: Annotated[UserConfig, ByName(user_class=TrainingClass), InBranch.SAME_PART]
    """who learns when: a class of your own"""
    stop: Limit
    """when the run is done"""
    callbacks: Annotated[list[AnyCallbackConfig], InBranch.SAME_PART]
    """what is done at the hooks of the training besides training: by name, or classes of your own"""
    execution: MachineConfig
    """where and how the run is computed; equal bits are promised only while it is unchanged"""
    output: RunOutputConfig
    """what is shown and stored; it changes no bit of the results"""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for name in LAST_KEYS:
            if name in cls.__pydantic_fields__:
                cls.__pydantic_fields__[name] = cls.__pydantic_fields__.pop(name)

    @model_validator(mode="after")
    def _check(self) -> Self:
        ConfigError.require_none(self.errors())
        return self

    # ---- what a kind of run answers ------------------------------------------------------------------------

    def errors(self) -> Iterator[ConfigErrorItem]:
        """Find the errors that concern several keys; an override also gives those of its parent."""
        for keys, value in walk(self):
            if isinstance(value, Interval | Limit | Delay):
                known = self.steps() if isinstance(value, Delay) else self.units()
                if value.unit not in known:
                    message = f"expected one of {listed(known)}, got {value.unit!r}"
                    yield ConfigErrorItem(".".join((*keys, "unit")), message)
        replicas, processes = self.count_replicas(), self.count_processes()
        if replicas & (replicas - 1):
            yield ConfigErrorItem("num_replicas", f"expected 1 or a power of two, got {replicas}")
        elif replicas % processes:
            message = f"expected a divisor of num_replicas = {replicas}, got {processes}"
            yield ConfigErrorItem("execution.num_processes", message)

    def axis(self) -> str:
        """Return the counter over which its curves go."""
        return self.axes[0]

    @classmethod
    def steps(cls) -> tuple[str, ...]:
        """Return the counters that tell two moments of a run apart."""
        return tuple(name for name in cls.counters if name not in cls.late)

    @classmethod
    def units(cls) -> tuple[str, ...]:
        """Return the units that intervals and limits may have."""
        return (*cls.steps(), "minutes")

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        """Say what a run is about, as the name of a game; "" if that is not known. data: its config as plain data."""
        return ""

    @classmethod
    def learns_by(cls, data: Mapping[str, Any]) -> list[str]:
        """Name what learns in a run, as the algorithms of its players. data: its config as plain data."""
        names = (under(player, "algorithm", "name") for player in (under(data, "players") or {}).values())
        return [str(name) for name in names if name]

    def kept(self) -> Mapping[str, str]:
        """Return the keys below the changeable ones that stay as they are, each with the reason."""
        return {}

    def begin_change(self, overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the plain data that overrides change where the run is evaluated or used, and lines for the user.

        They are this config's, and what follows from the overrides.
        """
        return self.model_dump(), []

    def pairing_overrides(self, pairings: Sequence[Mapping[str, str]]) -> list[str]:
        """Return the overrides by which every evaluation of a stored run has these pairings.

        pairings: role -> player; roles that are left out keep the run's players.
        """
        return []

    def unjudged(self, overrides: Sequence[str]) -> Iterable[ConfigErrorItem]:
        """Find the overrides that were to change an evaluation, and change none."""
        return []

    def judged_by(self, evaluation: str) -> Sequence[Config]:
        """Return the sections by which an evaluation is made; one by other sections has another result."""
        return []

    def measured(self) -> Sequence[Any]:
        """Return the evaluations of the run, as whoever measures by them knows them."""
        return []

    def decisive(self) -> BestConfig | None:
        """Return what says which of two results of the run is better; None if nothing does."""
        return None

    def measured_roles(self) -> Sequence[str]:
        """Return the roles whose returns evaluations measure, and a training tells by `recent_returns`."""
        return []

    def measures_of_games(self) -> Mapping[str, GameMeasures]:
        """Return the measures that games add to the record of each evaluation, by its name."""
        return {}

    def learners(self) -> list[str]:
        """Return the names of the players that learn."""
        return []

    def changing(self) -> list[str]:
        """Return the names of the players that training changes: those that learn, and their past selves."""
        return self.learners()

    def pairing(self) -> Mapping[str, str] | None:
        """Return who sits where, as role -> player; None if no others can be asked to."""
        return None

    def copied(self) -> Sequence[str]:
        """Return the names of players of other runs, models and modules whose copies the run's folder may hold."""
        return []

    def scratch_folders(self) -> Mapping[str, str]:
        """Return the folders outside the run's own in which training writes what it needs no more, by dotted key."""
        return {}

    def allows_in_branch(self, key: str, branched: Self) -> bool:
        """Return whether a branch may change a key that is otherwise fixed. branched: the config of the branch."""
        return False

    def next_end(self, ended: str | None) -> str | None:
        """Return an override by which `palestra extend` lets a finished run go on; None if nothing does.

        ended: why it ended before its `stop`; None if it did not.
        """
        return f"stop.after={2 * self.stop.after:g}" if ended is None else None

    def goes_on_after(self, ended: str, before: Self) -> bool:
        """Return whether a run that ended early, for this reason and under the config `before`, goes on under this."""
        return False

    def seat_overrides(self, origin: Mapping[str, str], freeze: Sequence[str], replace: Mapping[str, str]) -> list[str]:
        """Return the overrides of a branch in which other players sit. Raises ConfigError.

        origin: run and checkpoint, as `from_run` has them. freeze: learning players that are held fixed as they are
        there. replace: scripted players, by the names of those whose places they take.
        """
        if freeze or replace:
            key = "--freeze" if freeze else "--replace"
            raise ConfigError.at(key, f"expected none, because the run is {self.in_words}")
        return []

    def count_replicas(self) -> int:
        """Return how many trainings learn the same in lockstep."""
        return getattr(self, "num_replicas", 1)

    def count_processes(self) -> int:
        """Return among how many processes the replicas are divided."""
        return getattr(self.execution, "num_processes", 1)

    def in_one_process(self) -> Self:
        """Return the config of the same run in one process, which has the same bits."""
        return self if self.count_processes() == 1 else replaced(self, "execution.num_processes", 1)

    def cores(self) -> int:
        """Return how many cores it keeps busy: the threads of all processes."""
        return self.execution.num_threads * self.count_processes()

    def learning_keys(self) -> list[str]:
        """Return where the hyperparameters stand by which it learns, as dotted keys."""
        return [f"players.{name}" for name in self.learners()]

    def plan(self) -> list[str]:
        """Return lines that say what the run does, besides its stages."""
        return []

    def prompts(self) -> list[str]:
        """Return lines that say what each role reads in one dialogue. Raises ConfigError where nobody reads prompts."""
        raise ConfigError.at("--prompts", f"expected a run in which players talk in words, got {self.in_words}")

    def limit_note(self) -> str | None:
        """Return a line for the user if it may be that nothing ends what is played; else None."""
        return None

    def contrary_note(self, path: str, keys: GoalKeys) -> str | None:
        """Return a line for the user if a goal is the contrary of what the players that learn want; else None."""
        return contrary_note(path, keys, self.measured(), self.measures_of_games(), self.learners())

    def notes(self) -> list[str]:
        """Return lines for the user about what may not be meant: goals of `best` and callbacks that nobody wants."""
        goals: dict[str, GoalKeys] = {} if (best := self.decisive()) is None else {"best": best}
        for index, each in enumerate(self.callbacks):
            if isinstance(each, PlateauConfig) and isinstance(each.of, EvaluationMeasureConfig):
                goals[f"callbacks.{index}"] = BestConfig(goal=each.goal, **each.of.model_dump(exclude={"name"}))
        return [note for path, keys in goals.items() if (note := self.contrary_note(path, keys))]

    def environments(self) -> list[str]:
        """Return the ids of the environments that are stepped, each once."""
        return []

    def measure(self, keys: MeasureKeys) -> Measure:
        """Return what reads a measure out of the records of evaluations."""
        return Measure(keys, self.measured(), self.measures_of_games())

    def measure_errors(self, keys: MeasureKeys) -> list[ConfigErrorItem]:
        """Find the errors in what is to be measured, with paths relative to it."""
        return measure_errors(keys, self.measured(), self.measured_roles(), self.measures_of_games(), self.changing())


def player_name_errors(names: Iterable[str], scripted: Collection[str]) -> Iterator[ConfigErrorItem]:
    """Yield a fault for each player whose name stands for another player in pairings, such as a scripted one."""
    for name in names:
        if name in scripted:
            yield ConfigErrorItem(f"players.{name}", "expected another name, got that of a scripted player")
        elif ":" in name:
            yield ConfigErrorItem(f"players.{name}", "expected a name without a colon: those with one are classes")
        elif (num := len(quoted_name(name))) > LONGEST_NAME:
            expected = f"expected a name that takes at most {LONGEST_NAME} bytes in names of files"
            yield ConfigErrorItem(f"players.{name}", f"{expected} (3 for a dot, 6 for an é), got one of {num}")


def of_this_file(what: str, names: Iterable[str]) -> str:
    """Say that something that a config declares was expected, such as `a player`. names: of what it declares."""
    return f"expected {what} of this file ({', '.join(names) or 'it has none'})"


def seat_faults(
    at: str, seats: Mapping[str, str], roles: Sequence[str], known: Collection[str], scripted: Collection[str]
) -> Iterator[ConfigErrorItem]:
    """Yield a fault for each role without a player, each unknown role, and each name that no known player has.

    at: where the seats stand. scripted: names of scripted players, who may need an entry of the file.
    """
    expected = of_this_file("a player", known)
    for role in roles:
        if role not in seats:
            yield ConfigErrorItem(f"{at}.{role}", f"{expected}, but the key is missing")
    for role, name in seats.items():
        new = f"players.NAME={{scripted: {name}}}" if name in scripted or ":" in name else f"players.{name}"
        if role not in roles:
            yield ConfigErrorItem(f"{at}.{role}", f"unknown key; the roles of the game are {', '.join(roles)}")
        elif name not in known:
            yield ConfigErrorItem(f"{at}.{role}", f"{expected}, got {name!r}; a new one needs {new}")


class EvaluatedRunConfig(BaseRunConfig):
    """The keys of a run with evaluations, each of which has at least `name`, `interval` and `at_start`."""

    evaluations: list[Any]
    """what is judged apart from training, and when; []: nothing"""
    best: BestConfig | None
    """which result makes a checkpoint the best one; null: no checkpoint is marked as best"""
    evaluators: EvaluatorsConfig | None
    """processes that evaluate while training goes on; null: training waits for each evaluation"""

    def errors(self) -> Iterator[ConfigErrorItem]:
        yield from super().errors()
        if self.evaluators is not None and not self.evaluations:
            yield ConfigErrorItem("evaluators", "expected null, because there are no evaluations, got a mapping")
        if self.are_scores_known():
            yield from best_errors(self.best, self.evaluations, self.measure_errors)

    def are_scores_known(self) -> bool:
        """Return whether `best` can be checked, because every class that declares scores may be imported."""
        return True

    def judged_by(self, evaluation: str) -> Sequence[Config]:
        return [each for each in self.evaluations if each.name == evaluation]

    def measured(self) -> Sequence[Any]:
        return self.evaluations

    def measures_of_games(self) -> dict[str, GameMeasures]:
        return {each.name: GameMeasures([], ()) for each in self.evaluations}

    def decisive(self) -> BestConfig | None:
        return self.best
