"""The config of a run in which players play games, with the union of all algorithms."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from palestra.algorithms.algorithm import Algorithm
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.off_policy import OffPolicyConfig
from palestra.algorithms.on_policy import OnPolicyConfig
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.algorithms.td3_bc import TD3BCConfig
from palestra.buffers.data_set import DataSetReplayConfig
from palestra.config import (
    ByKey,
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    InBranch,
    NonNegativeInt,
    PositiveInt,
    UserConfig,
    has_unread,
    under,
    walk,
)
from palestra.config.errors import typed
from palestra.evaluation.config import AnyEvaluationConfig, EvaluationConfig, evaluation_errors
from palestra.evaluation.measures import GameMeasures
from palestra.games import AnyGameConfig, GameConfig
from palestra.kinds.games.meetings import MeetingConfig, meeting_errors, meetings_in_words, seat_errors
from palestra.models.sources import BodyStartConfig
from palestra.players import SCRIPTED, FromRunConfig, WarmStartConfig, own_script_model, scripts_in
from palestra.players.past import PastPlayerConfig
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.players.seated_models import SeatedModelConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.players.updates import AnyUpdatesConfig, idle_epoch
from palestra.run.base import EvaluatedRunConfig, TrainingClass, player_name_errors
from palestra.run.sections import ExecutionConfig, OutputConfig, ProcessesConfig

AnyAlgorithm = Annotated[
    DQNConfig | PPOConfig | SACConfig | TD3Config | TD3BCConfig | OnPolicyConfig | OffPolicyConfig | UserConfig,
    ByName(user_class=Algorithm),
]


class LearningPlayerConfig(Config):
    usual: ClassVar[Any] = {"updates": "constant", "meets": None}

    algorithm: Annotated[AnyAlgorithm, InBranch.SAME_PART]
    """how the player learns"""
    warm_start: Annotated[WarmStartConfig | BodyStartConfig, ByKey()] | None
    """begin with the networks of a player of another run, or with the body of a model in each of them that fits;
    optimizer, replay buffer and schedules begin anew; null: begin with random weights"""
    updates: Annotated[AnyUpdatesConfig, InBranch.FREE]
    """in which epochs the player learns; in the others it is frozen: it plays, and has no turn"""
    meets: Annotated[list[MeetingConfig], Field(min_length=1)] | None
    """who meets whom in the player's worlds; null: those sit there whom `roles` names"""


NoLearnerConfig = ScriptedPlayerConfig | FromRunConfig | TorchModuleConfig | SeatedModelConfig | PastPlayerConfig
AnyPlayer = Annotated[LearningPlayerConfig | NoLearnerConfig, ByKey(own_script_model)]


class InTurnConfig(Config):
    name: Literal["in_turn"]
    """in each epoch every learning player takes one turn, in the order of `players`"""


class TogetherConfig(Config):
    name: Literal["together"]
    """in each epoch one roll-out of shared worlds serves all learning players, who act as they are at its start; then
    they update, in the order of `players`"""


AnyTrainerConfig = Annotated[InTurnConfig | TogetherConfig | UserConfig, ByName(user_class=TrainingClass)]


def _check_num_worlds(value: Any) -> Any:
    """Check the numbers of worlds, and name each wrong one with its player, which pydantic does not in a union."""
    errors = []
    for player, number in (value if isinstance(value, dict) else {"": value}).items():
        if type(number) is not int:
            more = "" if isinstance(value, dict) else ", or a mapping with one for each learning player"
            errors.append(ConfigErrorItem(str(player), f"expected an integer >= 1{more}, got {typed(number)}"))
        elif number < 1:
            errors.append(ConfigErrorItem(str(player), f"expected an integer >= 1, got {number}"))
    ConfigError.require_none(errors)
    return value


class ActorsConfig(Config):
    usual: ClassVar[Any] = {"num": 1, "lag": 1}

    num: PositiveInt
    """into how many shares, of equal size, the worlds of each learning player are divided; an actor steps a share"""
    lag: NonNegativeInt
    """how many turns older than the present one the policy is that plays, so that actors play while the learner learns;
    0: none, and they only share the work"""


class RunConfig(EvaluatedRunConfig):
    """A run in which players play games.

    The keys from `seed` to `callbacks` are the experiment; `execution` may change results within rounding; `output`
    changes no bit.
    """

    counters = ("env_steps", "opt_steps", "epochs", "episodes")
    late = ("episodes",)
    axes = ("env_steps", "opt_steps")
    in_words = "a run in which players play games"
    options = ("--pairing", "--games", "--video", "--player", "--onnx", "--role", "--board")
    bitless = ("step_within_s", "actor_processes", *ProcessesConfig.bitless)
    usual: ClassVar[Any] = {"trainer": "in_turn", "num_worlds": 8, "num_replicas": 1}

    trainer: Annotated[AnyTrainerConfig, InBranch.SAME_PART]  # type: ignore[assignment]
    """who learns when: by name, or a class of your own"""
    game: Annotated[AnyGameConfig, InBranch.FIXED]
    """the rules"""
    num_worlds: Annotated[PositiveInt | dict[str, PositiveInt], BeforeValidator(_check_num_worlds), InBranch.FIXED]
    """how many games a learning player plays at the same time: one number for all, or a mapping with one for each"""
    num_replicas: Annotated[PositiveInt, InBranch.FIXED]
    """how many trainings learn the same networks in lockstep, each with worlds, memories and minibatches of its own:
    1, or a power of two"""
    actors: Annotated[ActorsConfig | None, InBranch.FIXED]
    """actors, which play in shares of the worlds, here or in processes of their own (execution.actor_processes), also
    while the learner learns; null: a player plays, then learns"""
    roles: Annotated[dict[str, str], InBranch.FIXED]
    """who sits in which role"""
    players: Annotated[dict[str, AnyPlayer], InBranch.FIXED]
    """the players by name: each learns, is scripted, comes from a run, or is a torch module or a model"""
    evaluations: list[AnyEvaluationConfig]
    """games that are played apart from training; []: none"""
    execution: ExecutionConfig
    """where and how the run is computed; equal bits are promised only while it is unchanged"""
    output: OutputConfig
    """what is shown and stored; it changes no bit of the results"""

    def axis(self) -> str:
        return self.axes[0] if any(map(self.plays, self.learners())) else "opt_steps"

    def are_scores_known(self) -> bool:
        of_evaluations = (part for each in self.evaluations for part in (each.game, getattr(each, "played_by", None)))
        return not any(map(has_unread, (self.game, *of_evaluations)))

    def errors(self) -> Iterator[ConfigErrorItem]:
        if self.are_scores_known():  # else roles are not, either
            scripts = scripts_in(self.players)
            roles = self.game.declared_roles()
            yield from self._role_errors(roles)
            yield from self._worlds_errors()
            yield from self._actors_errors()
            yield from self._play_errors()
            yield from meeting_errors(self, roles)
            yield from self._together_errors()
            yield from self._updates_errors()
            yield from evaluation_errors(self.evaluations, self.game, roles, scripts)
            games = ((f"evaluations.{number}.game", each.game) for number, each in enumerate(self.evaluations))
            own_games = {path: game for path, game in games if game is not None}
            yield from self.execution.step_errors({"game": self.game, **own_games})
            yield from info_errors("output.info", self.output.info, self.game)
        yield from super().errors()

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        return str(under(data, "game", "id") or under(data, "game", "name") or "")

    def measured_roles(self) -> Sequence[str]:
        return self.game.declared_roles()

    def measures_of_games(self) -> dict[str, GameMeasures]:
        """The measures that the game of each evaluation adds to its record, by the evaluation's name."""
        found = {}
        for each in self.evaluations:
            game = each.game or self.game
            info = () if game.environment_id() is None else self.output.info
            added = each.normalized_scores() if isinstance(each, EvaluationConfig) else ()
            found[each.name] = GameMeasures([*game.declared_scores(), *added], info)
        return found

    def limit_note(self) -> str | None:
        """A line for the user if only the rules of the game end an episode; None if it is also cut off."""
        if (key := self.game.unset_limit()) is None:
            return None
        game = self.game.environment_id() or self.game.name
        return (
            f"nothing ends the episodes of {game} but its own rules, which may never do so; game.{key}=1000, "
            "for instance, cuts them off (truncated) after 1,000 rounds"
        )

    def learners(self) -> list[str]:
        """The names of the players that learn."""
        return [name for name, config in self.players.items() if isinstance(config, LearningPlayerConfig)]

    def changing(self) -> list[str]:
        return [name for name, own in self.players.items() if isinstance(own, LearningPlayerConfig | PastPlayerConfig)]

    def cores(self) -> int:
        """As in BaseRunConfig, with the actors' processes, which each replica has."""
        return super().cores() + self.execution.num_threads * self.execution.actor_processes * self.num_replicas

    def environments(self) -> list[str]:
        games = (self.game, *(evaluation.game for evaluation in self.evaluations))
        ids = (game.environment_id() for game in games if game is not None)
        return list(dict.fromkeys(env_id for env_id in ids if env_id is not None))

    def data_set_of(self, player: str) -> DataSetReplayConfig | None:
        """The data set from which a player learns; None if it has none."""
        buffer = getattr(getattr(self.players[player], "algorithm", None), "replay_buffer", None)
        return buffer if isinstance(buffer, DataSetReplayConfig) else None

    def plays(self, player: str) -> bool:
        """Whether a learning player plays in worlds of its own; else it learns from recorded play alone."""
        data, algorithm = self.data_set_of(player), self.players[player].algorithm  # type: ignore[union-attr]
        return data is None or getattr(algorithm, "rollout_length", 0) is not None

    def pairing(self) -> dict[str, str]:
        return self.roles

    def copied(self) -> list[str]:
        return list(self.players)

    def scratch_folders(self) -> dict[str, str]:
        buffers = {name: getattr(self.players[name].algorithm, "replay_buffer", None) for name in self.learners()}  # type: ignore[union-attr]
        folders = {name: getattr(buffer, "scratch_folder", None) for name, buffer in buffers.items()}
        at = "players.{}.algorithm.replay_buffer.scratch_folder"
        return {at.format(name): folder for name, folder in folders.items() if folder is not None}

    def allows_in_branch(self, key: str, branched: Self) -> bool:
        """A player may stop learning; the others have as many worlds as before, however the config writes it.

        While nobody plays, worlds and actors may be others, and a game may take the place of `spaces`.
        """
        learning = branched.learners()
        if not any(map(self.plays, self.learners())):
            new = ["num_worlds", "actors", *(["game"] if self.game.name == "spaces" else [])]
            if key.partition(".")[0] in new:
                return True
        if key == "num_worlds":
            return all(self.worlds_of(name) == branched.worlds_of(name) for name in self.learners() if name in learning)
        others = [name for name in branched.players if name not in branched.changing()]
        return any(f"{key}.".startswith((f"players.{name}.", f"num_worlds.{name}.")) for name in others)

    def seat_overrides(self, origin: Mapping[str, str], freeze: Sequence[str], replace: Mapping[str, str]) -> list[str]:
        """As in BaseRunConfig; players that stop learning lose their numbers of worlds."""
        faults = [
            ConfigErrorItem(key, f"expected a player{which} ({', '.join(known)}), got {name!r}")
            for key, which, names, known in (
                ("--freeze", " that learns", freeze, self.learners()),
                ("--replace", "", replace, list(self.players)),
            )
            for name in names
            if name not in known
        ]
        faults += [
            ConfigErrorItem("--replace", f"expected a player that is not held fixed, got {name!r}")
            for name in freeze
            if name in replace
        ]
        ConfigError.require_none(faults)
        configs: dict[str, dict[str, str]] = {name: {"scripted": script} for name, script in replace.items()}
        configs |= {name: {**origin, "player": name} for name in freeze}
        overrides = [f"players.{name}={json.dumps(config)}" for name, config in configs.items()]
        if configs and isinstance(self.num_worlds, dict):
            left = {name: number for name, number in self.num_worlds.items() if name not in configs}
            overrides.append(f"num_worlds={json.dumps(left)}")
        return overrides

    def plan(self) -> list[str]:
        """Who acts when in the game, and who meets whom."""
        return [*self.game.describe_turns(), *meetings_in_words(self)]

    def notes(self) -> list[str]:
        """What may not be meant: episodes that nothing ends, and goals that nobody wants."""
        return [*filter(None, [self.limit_note()]), *super().notes()]

    def worlds_of(self, player: str) -> int:
        """The number of games that a learning player plays at the same time."""
        return self.num_worlds[player] if isinstance(self.num_worlds, dict) else self.num_worlds

    def most_worlds(self) -> int:
        """The largest number of games that are played at the same time: how many environments an evaluation steps."""
        return max(self.num_worlds.values()) if isinstance(self.num_worlds, dict) else self.num_worlds

    def seats(self, player: str, roles: Sequence[str]) -> list[str]:
        """The roles in which a player sits, in the order of `roles`, the roles of the game.

        Those of a player that learns are those in its own worlds. For any other player that sits in none, they are the
        roles that it has in the pairings of others, and of evaluations.
        """
        config, all_meets = self.players[player], [meets for each in self.learners() for meets in self.meets_of(each)]
        of_roles: Sequence[Mapping[str, str]] = [self.roles]
        if isinstance(config, LearningPlayerConfig):
            of_roles = [each.pairing for each in self.meets_of(player)] or of_roles
        elif player not in self.roles.values():
            of_roles = [each.pairing for each in all_meets]
            of_roles += [pairing for evaluation in self.evaluations for pairing in evaluation.pairings]
        return [role for role in roles if any(pairing.get(role) == player for pairing in of_roles)]

    def meets_of(self, player: str) -> Sequence[MeetingConfig]:
        """Who meets whom in the worlds of a learning player; nothing if those sit there whom `roles` names."""
        return self.players[player].meets or ()  # type: ignore[union-attr]

    def _worlds_errors(self) -> Iterator[ConfigErrorItem]:
        learners = self.learners()
        if not isinstance(self.num_worlds, dict) or not learners:
            return
        for player in [*learners, *(each for each in self.num_worlds if each not in learners)]:
            key = f"num_worlds.{player}"
            if player not in self.num_worlds:
                message = "expected an integer >= 1 for each player that learns, but the key is missing"
                yield ConfigErrorItem(key, message)
            elif player not in learners:
                known = f"the players that learn are {', '.join(learners)}"
                what = f"{player!r} does not learn, leave it out" if player in self.players else "unknown key"
                yield ConfigErrorItem(key, f"{what}; {known}")

    def _actors_errors(self) -> Iterator[ConfigErrorItem]:
        actors, processes = self.actors, self.execution.actor_processes
        if actors is None:
            if processes:
                message = f"expected 0, because `actors` is null, got {processes}"
                yield ConfigErrorItem("execution.actor_processes", message)
            return
        if processes and actors.num % processes:
            message = f"expected 0 or a divisor of actors.num = {actors.num}, got {processes}"
            yield ConfigErrorItem("execution.actor_processes", message)
        worlds = self.num_worlds if isinstance(self.num_worlds, dict) else {"": self.num_worlds}
        for player, num in worlds.items():
            if num % actors.num:
                key = f"num_worlds.{player}" if player else "num_worlds"
                message = f"expected a divisor of {key} = {num}, because actors share the worlds, got {actors.num}"
                yield ConfigErrorItem("actors.num", message)

    def _play_errors(self) -> Iterator[ConfigErrorItem]:
        """A fault for each key that needs play, where a player learns from recorded play alone; others of its game."""
        idle = [name for name in self.learners() if not self.plays(name)]
        given = {name: data for name in self.learners() if (data := self.data_set_of(name)) is not None}
        why = "because nobody plays (rollout_length: null)"
        if idle and isinstance(self.trainer, TogetherConfig):
            key, got = f"players.{idle[0]}.algorithm.rollout_length", "null, which trainer.name=in_turn allows"
            yield ConfigErrorItem(key, f"expected an integer >= 1 with trainer 'together', got {got}")
        if idle and len(idle) == len(self.learners()):
            if self.actors is not None:
                yield ConfigErrorItem("actors", f"expected null, {why}, got a mapping")
            for keys, value in walk(self):
                if getattr(value, "unit", None) == "env_steps":
                    expected = f"expected opt_steps, epochs or minutes, {why}"
                    yield ConfigErrorItem(".".join((*keys, "unit")), f"{expected}, got {value.unit!r}")
        for name, data in given.items():
            share, size = data.share_of_data, getattr(self.players[name].algorithm, "batch_size", 0)  # type: ignore[union-attr]
            if self.plays(name) and size and 0.0 < share < 1.0 and (num := round(share * size)) in (0, size):
                key, near = f"players.{name}.algorithm.replay_buffer.share_of_data", min(max(num, 1), size - 1) / size
                expected = f"expected 0.0, 1.0, or some of the {size} rows of a batch, such as {near:.6g}"
                yield ConfigErrorItem(key, f"{expected}, got {share} ({num} rows)")
            if getattr(getattr(self.game, "reward", None), "normalize", None) is not None:
                expected = f"expected null, because {name} learns from recorded play, whose rewards are the game's own"
                yield ConfigErrorItem("game.reward.normalize", f"{expected}, got a mapping")

    def _together_errors(self) -> Iterator[ConfigErrorItem]:
        """A fault for each key that does not fit one roll-out for all learning players."""
        if not isinstance(self.trainer, TogetherConfig):
            return
        if isinstance(self.num_worlds, dict):
            message = "expected one number with trainer 'together', whose players share their worlds, got a mapping"
            yield ConfigErrorItem("num_worlds", message)
        lengths = {name: getattr(self.players[name].algorithm, "rollout_length", None) for name in self.learners()}  # type: ignore[union-attr]
        known = {name: length for name, length in lengths.items() if length is not None}
        for name, length in known.items():
            first = next(iter(known))
            if length != known[first]:
                expected = f"expected {known[first]}, as of {first!r}, with trainer 'together' ('in_turn' allows any)"
                yield ConfigErrorItem(f"players.{name}.algorithm.rollout_length", f"{expected}, got {length}")

    def _updates_errors(self) -> Iterator[ConfigErrorItem]:
        """A fault if there is an epoch in which nobody learns."""
        updates = {name: self.players[name].updates for name in self.learners()}  # type: ignore[union-attr]
        end = self.stop.after if self.stop.unit == "epochs" else math.inf
        if updates and (epoch := idle_epoch(updates, end)) is not None:
            key = f"players.{next(iter(updates))}.updates" if len(updates) == 1 else "players"
            message = f"expected `updates` by which somebody learns in every epoch, but in epoch {epoch} nobody does"
            schedules = ", ".join(f"{name} {each.in_words()}" for name, each in updates.items())
            message += f" ({schedules}); as {{name: constant}} somebody always does"
            yield ConfigErrorItem(key, message)

    def _role_errors(self, roles: Sequence[str]) -> Iterator[ConfigErrorItem]:
        yield from seat_errors(self, roles, "roles", self.roles)
        for player in self.players:
            if not self.seats(player, roles):
                message = "expected a player that sits in a role, in its own `meets`, or without learning in a pairing"
                yield ConfigErrorItem(f"players.{player}", f"{message}, got one that does none of it")
        yield from player_name_errors(self.players, SCRIPTED)
        if not self.learners():
            yield ConfigErrorItem("players", "expected at least one player with an algorithm, got none")


def info_errors(path: str, info: Sequence[str], game: GameConfig) -> Iterator[ConfigErrorItem]:
    """A fault if fields of `info` are to be recorded in a game that has none. path: of the key that names them."""
    if info and game.environment_id() is None:
        expected = f"expected [], because the game {game.name!r} has no info fields"
        yield ConfigErrorItem(path, f"{expected}, got {', '.join(info)}")
