"""All algorithms, and what a whole run says: the config models are assembled here.

There may be several kinds of run; the class of the trainer says which one it trains. Each kind is a BaseRunConfig with
keys of its own. RunConfig is the one in which players play games.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.callbacks import AnyCallbackConfig
from palestra.config import (
    ByKey,
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnreadConfig,
    UserConfig,
    admitted_class,
    check_overridden,
    load_config,
    load_stored_config,
    walk,
)
from palestra.config.errors import listed
from palestra.evaluation.config import BestConfig, EvaluationConfig, EvaluatorsConfig, best_errors, evaluation_errors
from palestra.games import AnyGameConfig
from palestra.players import SCRIPTED, FromRunConfig, ScriptedPlayerConfig, script_error
from palestra.recording import RecorderConfig, check_recorders
from palestra.recording.aggregates import Statistic
from palestra.runtime.intervals import Interval, Limit
from palestra.storage.disk import RunFolderError
from palestra.storage.mirror import MirrorConfig

AnyAlgorithm = Annotated[DQNConfig | PPOConfig | SACConfig | TD3Config | UserConfig, ByName(user_class=Algorithm)]


class LearningPlayerConfig(Config):
    algorithm: AnyAlgorithm
    """how the player learns"""
    warm_start: FromRunConfig | None
    """begin with the networks of a player of another run; optimizer, memory and schedules begin anew; null: do not"""


class ExecutionConfig(Config):
    device: Annotated[str, Field(pattern=r"^(cpu|cuda|mps|xpu)(:[0-9]+)?$")]
    """cpu, cuda, cuda:1, ..."""
    num_threads: Annotated[int, Field(ge=1, le=1024)]
    """threads of a CPU"""
    kernel: Literal["numba", "torch"]
    """of the polyhedra game and of classic control; numba: fast on a CPU; torch: on any device; the results are the
    same"""
    gradients: Literal["by_hand", "autograd"]
    """by_hand: on a CPU, the gradients of plain mlps and of the stock losses come from kernels, which are several times
    as fast; where a loss was changed, torch's autograd runs all the same; autograd: always"""
    compile: bool
    """compile the update (torch.compile): half a minute at the start, then faster; plain mlps on a CPU need none"""


class OutputConfig(Config):
    display: Literal["auto", "plain", "quiet"]
    """auto: live on a terminal, plain lines elsewhere; plain; quiet: errors alone"""
    record: Interval | None
    """when the metrics of training are recorded; null: at the end alone"""
    statistics: Annotated[list[Statistic], Field(min_length=1)]
    """what a record says of the numbers since the last one; mean stands under the bare name, the others as loss/std"""
    info: list[NonEmptyStr]
    """fields of the environments' info that are recorded, inner ones as episode/r; of Gymnasium environments alone"""
    recorders: Annotated[list[RecorderConfig], AfterValidator(check_recorders)]
    """where the records go besides records.jsonl; []: nowhere"""
    save: Interval | None
    """when checkpoints are saved, besides the start and the end; null: never, the run cannot be resumed"""
    keep_last: PositiveInt
    """checkpoints kept, counted from the latest"""
    keep_every: PositiveInt | None
    """keep every n-th checkpoint for good; null: no such"""
    checkpoint_folder: Annotated[str, Field(pattern="^/")] | None
    """an absolute path, on another disk say: checkpoints and replay rows lie there, in a folder of the run's name and
    id; null: in the run's own folder"""
    stop_within_s: PositiveFloat
    """seconds from SIGINT or SIGTERM to the end of the process; who has not saved by then leaves without, and a resume
    replays what was lost"""
    mirror: MirrorConfig | None
    """a copy of the checkpoints elsewhere, from which the run can be resumed; null: none"""

    @model_validator(mode="after")
    def _check_mirror(self) -> Self:
        if self.mirror is not None and self.save is None:
            raise ConfigError(
                [
                    ConfigErrorItem(
                        "mirror", "expected null, because nothing is saved that a mirror could hold, got a mirror"
                    )
                ]
            )
        return self


class TrainerBase:
    """What the classes that `trainer` may name have in common: `palestra.training.lifecycle.Lifecycle` derives from it.

    run_config: the kind of run that it trains. A class of one's own carries its own keys as `Config`, a UserConfig.
    """

    run_config: ClassVar[type["BaseRunConfig"]]


class InTurnConfig(Config):
    name: Literal["in_turn"]
    """in each epoch every learning player takes one turn, in the order of `players`"""


AnyTrainerConfig = Annotated[InTurnConfig | UserConfig, ByName(user_class=TrainerBase)]


class BaseRunConfig(Config):
    """What every run says, whatever it trains. The keys that a kind of run adds stand between `trainer` and `stop`.

    units: what intervals and limits of this kind of run may count.
    """

    units: ClassVar[tuple[str, ...]] = ("opt_steps", "epochs", "minutes")

    seed: NonNegativeInt
    """all chance comes from here"""
    trainer: AnyTrainerConfig
    """who learns when: by name, or a class of your own"""
    stop: Limit
    """when the run is done"""
    callbacks: list[AnyCallbackConfig]
    """what else is done at the trainer's hooks: by name, or classes of your own"""
    execution: ExecutionConfig
    """where and how it is computed; equal bits only while unchanged"""
    output: OutputConfig
    """what is shown and kept; changes no bit"""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for name in ("stop", "callbacks", "execution", "output"):  # last, wherever the keys of the kind were added
            cls.__pydantic_fields__[name] = cls.__pydantic_fields__.pop(name)

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        expected = f"expected one of {listed(self.units)}"
        counting = ((keys, value) for keys, value in walk(self) if isinstance(value, Interval | Limit))
        errors = [
            ConfigErrorItem(".".join((*keys, "unit")), f"{expected}, got {value.unit!r}")
            for keys, value in counting
            if value.unit not in self.units
        ]
        if errors:
            raise ConfigError(errors)
        return self


class RunConfig(BaseRunConfig):
    """A run in which players play games. Experiment: seed to callbacks. Execution: equal bits only while unchanged.
    Output: changes no bit."""

    units = ("opt_steps", "env_steps", "epochs", "minutes")

    game: AnyGameConfig
    """the rules"""
    num_worlds: PositiveInt
    """games that a learning player plays at a time"""
    roles: dict[str, str]
    """who sits in which role"""
    players: dict[str, Annotated[LearningPlayerConfig | ScriptedPlayerConfig | FromRunConfig, ByKey()]]
    """the players by name: each learns, is scripted, or comes from a run"""
    evaluations: list[EvaluationConfig]
    """games apart from training; []: none"""
    best: BestConfig | None
    """what makes a checkpoint the best one; null: no best one is kept"""
    evaluators: EvaluatorsConfig | None
    """processes that play the evaluations while training goes on; null: training waits for each evaluation"""

    @model_validator(mode="after")
    def _check_seats(self) -> Self:
        if any(isinstance(game, UnreadConfig) for game in (self.game, *(each.game for each in self.evaluations))):
            return self  # nobody knows its roles
        scripts = {name: getattr(config, "scripted", None) for name, config in self.players.items()}
        roles = self.game.declared_roles()
        errors = [
            *self._role_errors(roles),
            *evaluation_errors(self.evaluations, self.game, roles, scripts),
            *best_errors(self.best, self.evaluations, roles, self.learners()),
        ]
        if self.evaluators is not None and not self.evaluations:
            errors.append(
                ConfigErrorItem(
                    "evaluators", "expected null, because there are no evaluations, got a number of processes"
                )
            )
        if self.output.info and not self.game.has_info:
            message = f"expected [], for the game {self.game.name!r} has no info fields, got {len(self.output.info)}"
            errors.append(ConfigErrorItem("output.info", message))
        if errors:
            raise ConfigError(errors)
        return self

    def learners(self) -> list[str]:
        """The players that learn."""
        return [name for name, config in self.players.items() if isinstance(config, LearningPlayerConfig)]

    def seats(self, player: str, roles: Sequence[str]) -> list[str]:
        """The roles in which a player sits, in the order of `roles`, those of the game. For a player from a run that
        sits in none: those in which evaluations want it."""
        sits = [role for role in roles if self.roles.get(role) == player]
        if sits or not isinstance(self.players[player], FromRunConfig):
            return sits
        pairings = [pairing for evaluation in self.evaluations for pairing in evaluation.pairings]
        return [role for role in roles if any(pairing.get(role) == player for pairing in pairings)]

    def _role_errors(self, roles: Sequence[str]) -> list[ConfigErrorItem]:
        expected = f"expected one of the players: {', '.join(self.players)}"
        faults: list[tuple[str, str]] = []
        for role in roles:
            if role not in self.roles:
                faults.append((f"roles.{role}", f"missing; {expected}"))
        for role, player in self.roles.items():
            config = self.players.get(player)
            if role not in roles:
                faults.append((f"roles.{role}", f"unknown key; the known roles: {', '.join(roles)}"))
            elif config is None:
                there = ", ".join(self.players)
                message = f"expected a player of this file ({there}; or players.{player} in it), got {player!r}"
                faults.append((f"roles.{role}", message))
            elif isinstance(config, ScriptedPlayerConfig) and (fault := script_error(config.scripted, self.game, role)):
                faults.append((f"players.{player}.scripted", fault))
        for player in self.players:
            if not self.seats(player, roles):
                message = "expected a player that sits in a role, or one of another run that plays in a pairing"
                faults.append((f"players.{player}", f"{message}, got one that does neither"))
            if player in SCRIPTED:
                faults.append((f"players.{player}", "expected another name, got that of a scripted player"))
        if not self.learners():
            faults.append(("players", "expected at least one player with an algorithm, got none"))
        return [ConfigErrorItem(*fault) for fault in faults]


def kind_of_run(data: Any) -> type[BaseRunConfig]:
    """The kind of run that plain data describe, which their trainer tells. Where nothing tells, or the trainer may not
    be imported, players play: checking the data says what is wrong."""
    trainer = data.get("trainer") if isinstance(data, dict) else None
    name = trainer.get("name") if isinstance(trainer, dict) else None
    if not isinstance(name, str) or ":" not in name:
        return RunConfig
    try:
        found = admitted_class(name, TrainerBase)
    except ValueError:
        return RunConfig
    return RunConfig if found is None else found.run_config


def read_config(config: str | Path | dict[str, Any] | BaseRunConfig, overrides: Sequence[str] = ()) -> Any:
    """The config of a run from a path, a mapping or itself: a BaseRunConfig, a RunConfig where players play. Raises
    ConfigError with every fault at once."""
    if isinstance(config, str | Path):
        return load_config(config, overrides, kind_of_run)
    data = config.model_dump() if isinstance(config, BaseRunConfig) else config
    return check_overridden(data, overrides, kind_of_run)


def read_stored_config(path: Path, overrides: Sequence[str] = ()) -> Any:
    """The config of a run, as `read_config`. Raises RunFolderError where it differs from what was written, ConfigError
    for overrides that do not fit it, UntrustedError for what it names that the user has not trusted."""
    if overrides:
        read_stored_config(path)
        return load_stored_config(path, overrides, kind_of_run)
    try:
        return load_stored_config(path, (), kind_of_run)
    except ConfigError as error:
        raise RunFolderError(f"{path} differs from what was written:\n{error}") from error
