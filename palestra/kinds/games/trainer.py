"""Trainer: trains players in games.

Players learn by algorithms (palestra.algorithms, one file each). The trainer gives them their turns, plays the
roll-outs that they ask for, and records their metrics. palestra.training.training has what every training needs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from palestra.algorithms.algorithm import AlgorithmConfig, Seat
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.off_policy import OffPolicyConfig
from palestra.algorithms.on_policy import OnPolicyConfig
from palestra.algorithms.parts.replay import LearnsByReplay
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.algorithms.turn import Turn
from palestra.buffers.replay import ReplayBuffer
from palestra.config import Config, walk
from palestra.config.own_classes import is_ours
from palestra.games.config import NotDeclared
from palestra.games.info import InfoFields
from palestra.games.world import EnvironmentFailed, EnvironmentWorld
from palestra.kinds.games.actors import ActedGame, ActorsLost, Here, Place, There, notes_of_lag, snapshot_of
from palestra.kinds.games.checks import check_algorithms, fault_of_players
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.descriptions import final_evaluations, turns_in_words, updates_in_words
from palestra.kinds.games.given_data import give_data, require_room, require_same_play
from palestra.kinds.games.imported_players import copy_players
from palestra.kinds.games.parts import build_evaluations, build_parts, check_seat, warm_start
from palestra.kinds.games.seating import Seating, play_stream, seed_play
from palestra.kinds.games.stored import StoredGames
from palestra.kinds.games.user_nets import by_role, first_role, name_and_nets, name_in_seat, take_nets
from palestra.nets.weights import evaluation_mode, layers_of
from palestra.players import FromRunConfig
from palestra.players.player import Metrics, Player
from palestra.players.seated_models import SeatedModelConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.randomness import seed_global_state
from palestra.recording.aggregates import Aggregates
from palestra.recording.results import Stage
from palestra.rollouts import fuse
from palestra.rollouts.solo import SoloWorlds
from palestra.rollouts.transitions import Transitions, join_roles
from palestra.run.branching import unequal_bits
from palestra.run.run_checkpoints import stored_config
from palestra.run.sections import OutputConfig
from palestra.runtime.intervals import Counter, count
from palestra.runtime.limits import memory_needed
from palestra.runtime.threads import limited_threads
from palestra.storage.run_folder import RunFolder
from palestra.training.async_evaluations import make_evaluating
from palestra.training.opening import Models, Nets, calls_of
from palestra.training.training import Training, led
from palestra.training.workers import Terms

PARTS = {
    "net": "nets",
    "optimizer": "optimizers",
    "lr_scheduler": "lr_schedule",
    "er_scheduler": "er_schedule",
    "replay_buffer": "replay_buffer",
}


class PendingMetrics:
    """The metrics that have come since the last record.

    by_player: those of each learning player. info: the fields of the `info` of each player's environments; empty if the
    config names no field. Making this object lets the players' worlds collect these fields from now on.
    """

    def __init__(self, config: OutputConfig, learners: Sequence[Player]) -> None:
        statistics = config.statistics
        self.by_player = {player.name: Aggregates(statistics) for player in learners}
        self.info = {player.name: Aggregates(statistics) for player in learners if config.info}
        kinds = {"metrics": self.by_player, "info": self.info}
        self._all = {f"{kind}/{name}": each for kind, by_name in kinds.items() for name, each in by_name.items()}
        self.fields: list[InfoFields] = []
        for player in learners if config.info else ():
            if player.worlds is None:
                continue
            self.fields.append(InfoFields(config.info, player.num_worlds, self.info[player.name]))
            if isinstance(player.worlds, SoloWorlds):  # else actors read
                assert isinstance(player.worlds.world, EnvironmentWorld)
                player.worlds.world.read_info(self.fields[-1])

    def take(self, player: str, join: Callable[[str, Aggregates], None]) -> dict[str, Any]:
        """Give the entries of a record that concern a player, by name. What comes later belongs to the next record.

        join: adds what other replicas have gathered.
        """
        if self.info:
            join("fields of info", self.info[player])
        return self.by_player[player].take() | (self.info[player].take() if self.info else {})

    def join_info(self, read: Mapping[str, Any], device: torch.device) -> None:
        """Add what an actor has read of the fields of `info` of the one player in environments."""
        (sums,) = self.info.values()
        more = Aggregates(sums.statistics)
        more.load_state_dict(read["sums"], device)
        sums.join(more)
        self.fields[0].join(read["told"])

    def state_dict(self) -> dict[str, Any]:
        return {name: aggregates.state_dict() for name, aggregates in self._all.items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        for name, aggregates in self._all.items():
            if name in state:  # a branch may ask for more
                aggregates.load_state_dict(state[name], device)


def _count_opt_steps(trainer: "Trainer", player: Player, num: int) -> None:
    for each in (player, trainer):
        count(each, opt_steps=num)
    trainer.epoch_counts["updates"] += num


def _playing(player: Player) -> Player:
    if player.worlds is None:
        raise ValueError(f"expected a player that plays, got {player.name!r}, which learns from recorded play alone")
    return player


class SecondRollOut(RuntimeError):
    """An algorithm has asked for a second roll-out in one turn, where that is not possible."""


class PlayerTurn(Turn):
    """The trainer's side of a turn: what the algorithm of the player may ask of the trainer."""

    def __init__(self, trainer: "Trainer", player: Player) -> None:
        super().__init__(player)
        self.trainer = trainer

    def collect(self, num_rounds: int) -> Transitions:
        if self.trainer.config.actors is not None:
            if self.player.name in self.trainer.collected:
                got = f"got another one of {self.player.name!r}"
                raise SecondRollOut(f"expected one roll-out per turn with `actors`, which play ahead, {got}")
            self.trainer.collected.append(self.player.name)
        return self.trainer.roll_out_of(self.player, num_rounds)

    def run(self) -> None:
        super().run()
        if self.player.name in self.trainer.collected:
            self.trainer.collected.remove(self.player.name)

    def num_updates(self) -> int:
        return self.trainer.get_num_updates(self.player)

    def before_step(self) -> None:
        self.trainer.before_step(self.player)

    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        _count_opt_steps(self.trainer, self.player, num_opt_steps - 1)  # the hook counts the last one
        self.trainer.after_step(self.player, metrics)

    def safe_point(self) -> None:
        self.trainer.safe_point()


class Trainer(Training):
    """Trains the players of a config.

    Arguments as for Training. Raises ConfigError if the config names a trainer that is neither this class nor one that
    it derives from; `palestra.make_trainer(config)` builds the class that it names.

    May be overridden: `_train` and `_test`, with `train_stage` and `test_stage`; `get_num_updates`; the contexts
    `train_context` and `test_context`; and every hook (`before_train`, `before_epoch`, `after_roll_out`, `before_step`,
    `after_step`, `after_evaluation`, `after_save`, `after_epoch`, `after_train`); an override calls its parent.
    Nothing must be implemented.

    `_train` may use: `give_turn`, `learners`, `players`, `player_of`, `game`, `fused_game`, `config`, `device`; to
    learn by hand `roll_out`, `roll_out_of`, `before_step`, `after_step`, `safe_point`, `set_training`; of the player in
    each seat `host_net`, `host_optimizer`, `host_lr_scheduler`, `host_er_scheduler`, `host_replay_buffer` (and so for
    each role); `env_steps`, `opt_steps`, `epochs`, `episodes`, `epoch_counts`, which are only read; `evaluate`,
    `recent_returns`, `note`, `log`, `end_run`, `is_asked_to_leave`, `extra_state`; and `during`, a context in which the
    display says what a loop does now.
    """

    run_config = RunConfig
    stored = StoredGames
    rated = ("env_steps", "opt_steps")
    epoch_counter_names = ("roll_outs", "updates")
    config: RunConfig  # more exact than that of Training
    algorithms: ClassVar[tuple[type[AlgorithmConfig], ...]] = ()  # the only ones by which players learn; (): any
    failures = (EnvironmentFailed, ActorsLost)
    is_counted = True
    env_steps = Counter("roll_out(role, num_rounds)")
    opt_steps = Counter("after_step(player, metrics)")
    epochs = Counter("fit")
    episodes = Counter("record")

    def _build(self) -> None:
        check_algorithms(self.config, self.algorithms)
        run = self.run
        copies = run.copies
        self.imported = None if copies is None else copies.players  # players of other runs, as they were when it began
        # orthogonal weights depend on the number of threads
        with limited_threads(self.config.execution.num_threads), run.compiling.listening():
            self.parts = build_parts(self.config, run.device, self.imported, self.replica)
        self.game, self.players, self.learners = self.parts.game, self.parts.players, self.parts.learners
        for player in self.learners:
            player.is_counted = True
            if self.run.begins_anew() and (start := warm_start(player, self.config)) is not None:
                self.run.beginnings.append(start)
        with limited_threads(self.config.execution.num_threads):
            self.given_data = [*filter(None, (give_data(each, self.game, self.config) for each in self.learners))]
        if copies is not None and self.given_data:
            require_same_play(copies, self.config, self.game, self.given_data)
        if run.origin is not None:
            require_room(run.origin, self.buffers())
        run.beginnings += self.given_data
        run.data_files = {data.file: data.sha256 for data in self.given_data}
        self.has_statistics_in_common = self.config.actors is not None or not self.replica.is_alone
        if self.has_statistics_in_common:
            for each in self.game.statistics():
                each.begin_sharing()
        self.fused_game: Any = self._fuse()  # each kind has worlds of its own
        self.seating = Seating(self.parts)
        self.worlds = self._make_worlds()
        run.count_time_in(run.time_log, self.buffers())
        self.turn = 0  # the index in `learners` of the player whose turn it is
        self.collected: list[str] = []  # with actors: the players that have had the roll-out of a turn that is not over
        self.metrics = PendingMetrics(self.config.output, self.learners)
        self.evaluations = build_evaluations(self.parts)
        self.evaluating = make_evaluating(self.progress, self.checkpoints, self.evaluations)
        self._warned_inexact: set[str] = set()
        self.is_own = True  # whether code of the user's own trains
        self.draws = True  # whether code of the user's own may draw from torch's generators; ours draws from keys alone

    def _fuse(self) -> Any:
        """Make what plays: a FusedGame or a SoloGame, or the actors in its place."""
        if self.config.actors is None:
            return fuse(self.game)
        making = self._make_places, lambda: snapshot_of(self.parts, self.seating), self._count_ahead
        return ActedGame(self.parts, self.replica.index, *making)

    def _make_places(self) -> list[Place]:
        """Make the places of the actors: here, or in processes of their own, with as many in each."""
        config, run = self.config, self.run
        assert config.actors is not None
        num, numbers = config.execution.actor_processes, range(config.actors.num)
        if num == 0:
            return [Here(numbers, lambda: build_parts(config, run.device, run.folder.players, self.replica))]
        size, first = len(numbers) // num, num * self.replica.index
        server, execution = "palestra.kinds.games.actors:serve_actors", config.execution
        limits = execution.timeout_s, "execution.timeout_s", execution.max_restarts
        terms = Terms("actor", server, *limits, in_all=True)
        shares = [numbers[place * size : (place + 1) * size] for place in range(num)]
        tell = self.lockstep.head.training.run.display.error  # other replicas of a process show nothing
        return [There(share, run.folder, first + n, terms, tell, self._waiting) for n, share in enumerate(shares)]

    @contextmanager
    def _waiting(self) -> Iterator[Callable[[], None]]:
        """A context in which the learner waits for actors, and other processes for it. Gives what updates the display.

        How long actors may take, and how often, is limited by itself.
        """
        link = self.replica.link
        with self.run.time_log.during("waiting"), nullcontext() if link is None else link.busy():
            yield self.progress.show

    def _count_ahead(self) -> int:
        """Return how many roll-outs may be asked for beyond the next one: none across a change of who learns.

        It supposes that a player has a turn in each epoch in which it learns.
        """
        assert self.config.actors is not None
        updates = [self.config.players[player.name].updates for player in self.learners]  # type: ignore[union-attr]
        later = range(self.epochs, self.epochs + self.config.actors.lag + 1)
        who = [[each.learns(epoch) for each in updates] for epoch in later]
        return next((number for number, each in enumerate(who) if each != who[0]), len(who)) - 1

    def _make_worlds(self) -> dict[str, Any]:
        """Make the worlds in which learning players collect experience, if they do, by their names in checkpoints."""
        playing = [player for player in self.learners if self.config.plays(player.name)]
        for player in playing:
            path = f"num_worlds.{player.name}" if isinstance(self.config.num_worlds, dict) else "num_worlds"
            player.worlds = self._new_worlds(player.num_worlds, play_stream(player.name), path)
        return {player.name: player.worlds for player in playing}

    def _new_worlds(self, num: int, key: str, path: str) -> Any:
        """Make worlds of this replica. path: of the key that says how many."""
        with memory_needed(path):
            return self.fused_game.new_worlds(num, self.config.seed, key, self.replica.index * num)

    def set_model(self, role: str | Nets, nets: Nets | None = None) -> None:
        """Let the player in that seat learn with networks of your own, in place of those that the config names.

        To be called before `fit`, with all networks of the player at once. Where one player learns, the role may be
        left out: set_model(nets). A player that learns outside of `roles` is named in place of its role.

        The config takes up a function or a class of a module, which gives the network when it is called without
        arguments. A network that is handed over itself must be handed over again when the run is loaded, by
        `Trainer.load(run, models={role: nets})` or `models=nets`. It excludes `evaluators`: other processes cannot
        build it.

        nets: each maps an observation, a dict of tensors (B, ...), or the only entry of one, to (B, K), or is a
        RecurrentNet. The keys say where their configs stand below the algorithm: net, body.policy, critic_net (a list
        for several critics). A single network takes the place of the one that acts. Weights stay as they are. Raises
        ConfigError for networks that do not fit, ValueError for unknown roles and keys, for players that do not learn
        and for functions that cannot be imported, RuntimeError once the run has begun.
        """
        self.run.require_unopened("set_model")
        name, nets = name_and_nets(self.config, role, nets)
        player = self.players[name]
        copied = self.lockstep.copy_of(role := first_role(self.config, player.name), nets)
        config = take_nets(player, self.config, nets)
        self.lockstep.handed_over[role] = copied
        self.run.config, self.parts = config, replace(self.parts, config=config)
        self.run.count_time_in(self.run.time_log, self.buffers())
        self.run.note_call(*calls_of({role: nets}))

    @classmethod
    def by_role(cls, config: RunConfig, models: Models | None) -> Mapping[str, Nets]:
        return by_role(config, models)

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """As in Training; raises NotDeclared if networks of other runs need the exact actions of an environment."""
        fixed = FromRunConfig | TorchModuleConfig | SeatedModelConfig
        players: list[Any] = list(config.players.values())
        has_nets = any(isinstance(player, fixed) or getattr(player, "warm_start", None) for player in players)
        if has_nets and not config.game.declares_actions():
            raise NotDeclared
        super().check(config)

    @classmethod
    def check_keys(cls, config: RunConfig) -> None:
        """As in Training, with the seats of all players that learn."""
        for name in config.learners():  # a lone agent's environment has one move
            check_seat(config.players[name].algorithm, name, Seat(config.worlds_of(name), 1, 1))  # type: ignore[union-attr]
        super().check_keys(config)

    # ---- the stages of a run, and turns ------------------------------------------------------------------

    @classmethod
    def train_stage(cls, config: RunConfig) -> Stage:
        stage = super().train_stage(config)
        epoch = turns_in_words(config) if cls._train is Trainer._train else stage.description
        return replace(stage, description=epoch + updates_in_words(config))

    @classmethod
    def test_stage(cls, config: RunConfig) -> Stage:
        return final_evaluations(config) if cls._test is Trainer._test else super().test_stage(config)

    @contextmanager
    def test_context(self) -> Iterator[None]:
        """The context of Training, with networks that learn in evaluation mode; afterwards in their old modes."""
        with super().test_context(), evaluation_mode(net for each in self.learners for net in each.nets.values()):
            yield

    def _train(self) -> None:
        """One epoch: every player that learns now takes its turn. The attribute `turn` remembers whose turn it is."""
        while self.turn < len(self.learners):
            if not self.learners[self.turn].frozen:
                self.give_turn(self.learners[self.turn])
            self.turn += 1
        self.turn = 0

    def give_turn(self, player: Player) -> None:
        """Let a learning player take its turn: roll out, and learn by its algorithm.

        A run that is resumed in the middle of a turn must give it again; the turn then goes on where it was. Raises
        ValueError for a player that does not learn, or is frozen in this epoch.
        """
        if not player.learning or player.frozen:
            got = f"{player.name!r}, which is frozen in epoch {self.epochs}" if player.frozen else f"{player.name!r}"
            raise ValueError(f"expected a player that learns, got {got}")
        PlayerTurn(self, player).run()

    def get_num_updates(self, player: Player) -> int:
        """Return the opt steps that a player with a replay buffer makes in this turn: its `updates_per_turn`."""
        return int(player.algorithm.config.updates_per_turn)  # type: ignore[union-attr]

    def roll_out(self, role: str, num_rounds: int) -> Transitions:
        """Play on in the worlds of the player in that seat, and return its experience; counts env steps."""
        return self.roll_out_of(self.player_of(role), num_rounds)

    def roll_out_of(self, player: Player, num_rounds: int) -> Transitions:
        """Do `roll_out` for a learning player, which need not be the one that `roles` names for a seat."""
        return self._handed_out(player, self._play([_playing(player)], num_rounds))

    def _handed_out(self, player: Player, by_role: Mapping[str, Transitions]) -> Transitions:
        """Show a roll-out of a player to the callbacks, and return its rows as one batch."""
        self.after_roll_out(player, by_role)
        return join_roles(by_role, player.moves, player.num_worlds)

    def _play(self, collecting: Sequence[Player], num_rounds: int) -> dict[str, Transitions]:
        """Play on in worlds that these players have in common, and return the experience of their roles.

        All learning players explore, so that each also meets moves that its opponent would not choose by itself.
        """
        self.run.time_log.switch("play")
        roles, worlds = tuple(role for player in collecting for role in player.roles), collecting[0].worlds
        own = "" if "together" in self.worlds else collecting[0].name
        if not (are_actors := isinstance(self.fused_game, ActedGame)):
            self.seating.seat(self.fused_game, own, worlds, 0)
        if self.draws:
            seed_play(self.config.seed, own or roles[0], self.replica.index * collecting[0].num_worlds, worlds)
        by_role = self.fused_game.collect(worlds, roles, num_rounds)
        if self.has_statistics_in_common:
            self.lockstep.join_statistics(self.game, self.fused_game.added)
        if are_actors:
            self._note_actors(collecting)
            self.seating.add_results()
        num_steps = num_rounds * collecting[0].num_worlds * self.replica.num
        for each in (*collecting, self):
            count(each, env_steps=num_steps)
        self.epoch_counts["roll_outs"] += 1
        self.run.time_log.switch("memory")
        return by_role

    def _copy_past_selves(self) -> None:
        """Copy the players of which a copy is due, and draw anew which past selves sit in worlds."""
        if due := self.seating.due():
            steps = {name: self.counts()[name] for name in self.config.steps()}  # others depend on when it records
            self._store_copies(self.seating.copy(due, steps, self.replica))

    @led
    def _store_copies(self, new: Mapping[str, bytes]) -> None:
        if self.config.output.save is not None:
            for name, content in new.items():
                self.checkpoints.write_once("past", name, content)
            self.checkpoints.keep_once("past", {name for own in self.seating.files.values() for name in own.values()})

    def safe_point(self) -> None:
        if self.seating.past:
            self._copy_past_selves()
        super().safe_point()

    def _note_actors(self, collecting: Sequence[Player]) -> None:
        """Record how old the policy is that has played, and what actors have read of `info`."""
        for player in collecting:
            played = self.fused_game.played_by["players"][player.name]["opt_steps"]
            self.metrics.by_player[player.name].add({"weights_age": player.opt_steps - played})
        for read in self.fused_game.info:
            self.metrics.join_info(read, self.device)

    # ---- hooks: an override calls its parent ---------------------------------------------------------------

    def before_train(self) -> None:
        parts = [each for _, each in walk(self.config) if isinstance(each, Config)]
        is_named = any(each.user_names() or isinstance(each, FromRunConfig | SeatedModelConfig) for each in parts)
        self.is_own = not all(is_ours(type(each)) for each in (self, *(player.algorithm for player in self.learners)))
        has_own = self.is_own or not all(is_ours(type(each)) for each in self.callbacks)
        self.draws = is_named or has_own or bool(self.lockstep.head.handed_over)
        for player in self.learners if self.config.output.layer_norms else ():
            for optimizer in player.optimizers.values():
                optimizer.layers = layers_of(optimizer.weights, player.nets)
        super().before_train()

    def choose_kernels(self) -> None:
        self._copy_past_selves()
        for note in self.game.notes:
            self.log(note)
        for player in self.learners:
            for line in [*player.algorithm.begin_run(), *notes_of_lag(self.config, player.algorithm)]:
                self.log(f"players.{player.name}: {line}")

    def before_epoch(self) -> None:
        """Freeze and thaw players, as their `updates` say."""
        for player in self.learners:
            updates = self.config.players[player.name].updates  # type: ignore[union-attr]
            was_frozen, player.frozen = player.frozen, not updates.learns(self.epochs)
            if was_frozen and not player.frozen:
                if player.worlds is not None:
                    self.fused_game.forget_waiting(player.worlds, player.roles)
                player.algorithm.forget_waiting()
            if updates.cycle > 1:
                self.metrics.by_player[player.name].add({"learns": float(not player.frozen)})
        super().before_epoch()

    def after_roll_out(self, player: Player, by_role: Mapping[str, Transitions]) -> None:
        for callback in self.callbacks:
            callback.after_roll_out(self, player, by_role)

    def before_step(self, player: Player) -> None:
        self.lockstep.before_step()
        for callback in self.callbacks:
            callback.before_step(self, player)
        if self.draws:
            seed_global_state(player.own_key(f"opt_step/{player.opt_steps}"))
        self.run.time_log.switch("update")

    def after_step(self, player: Player, metrics: Metrics) -> None:
        """Count an opt step, and add up its metrics. Called once for a group of opt steps that are made at once."""
        self.lockstep.after_step(player)
        self.run.time_log.switch("other")
        _count_opt_steps(self, player, 1)
        self.metrics.by_player[player.name].add(metrics)
        for callback in self.callbacks:
            callback.after_step(self, player, metrics)

    # ---- players -----------------------------------------------------------------------------------------

    def set_training(self, training: bool) -> None:
        """Switch the networks of all learning players between training and evaluation mode."""
        for player in self.learners:
            player.set_training(training)

    def player_of(self, role: str) -> Player:
        """The player who sits in a role. Raises ValueError for an unknown role."""
        return self.players[name_in_seat(self.config.roles, role)]

    def recent_returns(self, role: str) -> list[float]:
        """Returns of the last 100 games of training in the worlds of the player in that seat, oldest first.

        They are sums of the environment's own rewards, played with exploration. All replicas must ask, and get those of
        each, one after the other. Waits for a GPU.
        """
        player = _playing(self.player_of(role))
        returns: Tensor = self.fused_game.recent_returns(player.worlds)[:, self.game.roles.index(role)]
        return [*chain.from_iterable(self.replica.each("recent returns", returns.tolist()))]

    def __getattr__(self, name: str) -> Any:
        """Give `host_net`, `host_optimizer`, `host_lr_scheduler`, `host_er_scheduler`, `host_replay_buffer`.

        For each role there are such parts of the player in that seat.
        """
        role, _, part = name.partition("_")
        run = self.__dict__.get("run")
        if run is not None and part in PARTS and role in run.config.roles:
            found = getattr(self.player_of(role), PARTS[part])
            return next(iter(found.values()), None) if isinstance(found, dict) else found
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # ---- what a kind of training adds ------------------------------------------------------------------------

    def fault(self, with_parameters: bool) -> str | None:
        return fault_of_players(self.learners, self.metrics.by_player, self.fused_game, with_parameters, self.is_own)

    def differences(self, state: Mapping[str, Any]) -> Iterator[str]:
        """A line for each kernel of a player that runs now and did not run before, or the other way round."""
        for player in self.learners:
            before, now = state["players"][player.name]["kernels"], player.algorithm.kernels_in_use()
            yield from unequal_bits(before, now, f"players.{player.name}")

    def buffers(self) -> dict[str, ReplayBuffer]:
        return {p.name: p.replay_buffer for p in self.learners if p.replay_buffer is not None}

    def shown_metrics(self) -> dict[str, dict[str, float]]:
        """Those of a player's episodes are from the last record, all others have come since then."""
        shown = {}
        for player in self.learners:
            before = self.run.records.history.last(player.name)
            names = [name for name in (*(f"return/{role}" for role in player.roles), "length") if name in before]
            names += [name for name in before if name.startswith("won/")]
            own = self.metrics.by_player[player.name].shown() | player.rates()
            shown[player.name] = {name: before[name] for name in names} | own
        return shown

    def _record_fields(self) -> dict[str, Any]:
        """The metrics of the players, and of the games of training that have finished."""
        players = {}
        episodes = {id(worlds): self._take_episodes(worlds) for worlds in self.worlds.values()}
        for player in self.learners:
            players[player.name] = {
                "env_steps": player.env_steps,
                "opt_steps": player.opt_steps,
                **player.rates(),
                **self.metrics.take(player.name, self.lockstep.join),
            }
            if isinstance(player.algorithm, LearnsByReplay):
                players[player.name] |= player.algorithm.terms_of_data()
            if player.worlds is None:
                continue
            players[player.name]["episodes"] = episodes[id(player.worlds)]
            if player.name in self.seating.blocks:
                players[player.name]["meets"] = self.seating.take(player.name, self.replica)
            if not self.fused_game.is_exact(player.worlds):
                players[player.name]["inexact"] = True
                if player.name not in self._warned_inexact:
                    self._warned_inexact.add(player.name)
                    where = f"the environments of player {player.name!r} could not be brought back as they were"
                    self.run.display.error(f"{where}: new episodes began, and equal bits are not promised")
        if not isinstance(self.fused_game, ActedGame):
            return {"players": players}
        of_all = self.replica.each("what actors have done", [*self.fused_game.take_clock()])
        actors = {str(number): each for number, each in enumerate(chain.from_iterable(of_all))}
        return {"players": players, "clock": {"actors": actors}}

    def _take_episodes(self, worlds: Any) -> dict[str, float]:
        """Count the games that have finished in these worlds since the last call. Gives their number and means."""
        of_all = self.replica.each("the games that have finished", self.fused_game.take_totals(worlds))
        totals = {name: sum(each[name] for each in of_all) for name in of_all[0]}
        number = int(totals.pop("episodes"))
        count(self, episodes=number)
        return {"number": number, **({name: value / number for name, value in totals.items()} if number else {})}

    def _errors_after_record(self, has_ended: bool) -> list[str]:
        # many fields of info come at an episode's end alone
        is_known = self.episodes or has_ended or self.config.stop.share(self.counters) >= 1.0
        lines = (line for fields in self.metrics.fields for line in fields.news())
        return list(dict.fromkeys(lines)) if is_known else []

    def state_dict(self) -> dict[str, Any]:
        # Worlds before the game: they may begin here, and the game's running statistics count that.
        worlds = {name: each.state_dict() for name, each in self.worlds.items()}
        players = {name: player.state_dict() for name, player in self.players.items() if player.algorithm is not None}
        acted: dict[str, Any] = {} if self.config.actors is None else {"collected": list(self.collected)}
        acted |= {"files": {data.player: data.sha256 for data in self.given_data}} if self.given_data else {}
        own = {"turn": self.turn, **acted, "metrics": self.metrics.state_dict(), "players": players, "worlds": worlds}
        own |= self.seating.state_dict() if self.seating.is_used else {}
        return super().state_dict() | own | {"game": self.game.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.turn, self.collected = state["turn"], list(state.get("collected", []))
        self.metrics.load_state_dict(state["metrics"], self.device)
        self.game.load_state_dict(state["game"])
        for name, player_state in state["players"].items():
            self.players[name].load_state_dict(player_state)
        if self.seating.is_used:
            self.seating.load_state_dict(state)
        for name, worlds in self.worlds.items():
            if name in state["worlds"]:
                worlds.load_state_dict(state["worlds"][name])
            else:  # the player begins to play here, in a branch
                self.players[name].algorithm.forget_waiting()  # type: ignore[union-attr]

    def without_rows(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state without rows. A turn that was not over begins anew, because its updates would find no rows."""
        anew: dict[str, Any] = {"replay_buffer": None, "turn_progress": {}}
        before: Mapping[str, Any] = state["players"]
        players = {name: was | anew if was["replay_buffer"] else was for name, was in before.items()}
        acted = {}
        if self.config.actors is not None:
            acted["collected"] = [name for name in self.collected if not before[name]["replay_buffer"]]
        return state | {"players": players, **acted}

    def state_of_branch(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of a branch, with the schedules of its config, and without players that no longer learn."""
        learning = [player.name for player in self.learners]
        players = {name: state["players"][name] | {"schedules": {}} for name in learning}
        was = state["config"]["players"]  # a checkpoint sorts keys; players learn in the order of the file
        before = [name for name in self.config.players if "algorithm" in was.get(name, {})]
        turn = sum(name in learning for name in before[: state["turn"]])
        new = {"players": players, "turn": turn}
        if state["config"]["game"]["name"] != self.config.game.name:  # in place of `spaces`
            new["game"] = self.game.state_dict()  # the statistics are the file's
        if self.config.actors is not None:
            new["collected"] = [name for name in state.get("collected", []) if name in learning]
            if was != stored_config(self.config)["players"]:  # roll-outs under way may be others
                anew: dict[str, Any] = {"pending": [], "asked": None}
                new["worlds"] = {name: each | anew for name, each in state["worlds"].items()}
        return super().state_of_branch(state) | new

    def _begin_run(self, folder: RunFolder) -> None:
        copy_players(self.config, self.players, folder.players, self.imported)

    def close(self) -> None:
        if isinstance(self.fused_game, ActedGame):
            self.fused_game.close()
        self.game.close()


class DQNTrainer(Trainer):
    """The Trainer whose players learn by DQN."""

    algorithms = (DQNConfig,)


class PPOTrainer(Trainer):
    """The Trainer whose players learn by PPO."""

    algorithms = (PPOConfig,)


class SACTrainer(Trainer):
    """The Trainer whose players learn by SAC."""

    algorithms = (SACConfig,)


class TD3Trainer(Trainer):
    """The Trainer whose players learn by TD3."""

    algorithms = (TD3Config,)


class LossTrainer(Trainer):
    """The Trainer whose players learn by a loss alone, one by name or one of your own.

    They learn on roll-outs of the present policy, or from a replay buffer.
    """

    algorithms = (OnPolicyConfig, OffPolicyConfig)
