"""The state of a player, and the protocol of the algorithm by which it learns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from palestra.buffers.replay import ReplayBuffer
from palestra.config import ConfigError, replaced
from palestra.games.game import Game, Observation, cleared
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import ActionSpace, Space
from palestra.nets.weights import in_evaluation, set_in_evaluation
from palestra.optimizers import Optimizer
from palestra.players.scripted import Script
from palestra.randomness import base_key, world_keys
from palestra.recording.values import Recordable
from palestra.rollouts.fused import Worlds
from palestra.rollouts.solo import SoloWorlds
from palestra.runtime.intervals import Counter, set_counts
from palestra.schedules import Schedule, read_schedule, schedules_in, successor
from palestra.storage.stored_files import CheckpointError

Metrics = Mapping[str, Recordable]


class Learner(Protocol):
    """What a player uses of its algorithm (palestra.algorithms.algorithm.Algorithm)."""

    config: Any
    common_state: ClassVar[tuple[str, ...]]

    def policy(self, explore: bool) -> Policy: ...

    def predictor(self, deterministic: bool) -> Policy: ...

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor] | None: ...

    def module(self) -> nn.Module: ...

    def learn(self, turn: Any) -> None: ...

    def forget_waiting(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def acting_state(self) -> dict[str, Any]: ...

    def load_acting_state(self, state: dict[str, Any]) -> None: ...

    def begin_run(self) -> list[str]: ...

    def kernels_in_use(self) -> dict[str, str]: ...


class AnyReplica(Protocol):
    """What a player uses of the place of its training among replicas (palestra.scaling.replica.Replica)."""

    index: int
    num: int

    def mean(
        self, gradient: Tensor, metrics: Mapping[str, Any], weight: Tensor | float | None = None
    ) -> tuple[Tensor, dict[str, Any]]: ...

    def each(self, what: str, value: Any) -> list[Any]: ...


@dataclass(repr=False)
class Player:
    """A player, who sits in one or more roles.

    A scripted player has a `script`; any other one has an `algorithm`, which has set the other attributes.

    spaces, action_space: of its roles. compile: whether the config asks for torch.compile. by_hand: whether it asks for
    gradients by hand. learning: whether the trainer gives it turns. opt_steps, env_steps: its own counters; its
    schedules read opt_steps. is_counted: whether a trainer counts these, so that nobody else may assign them. worlds:
    the games in which it collects experience. num_worlds: how many of them; 0 for a player that does not learn.
    scripts: the script in further roles. moves: the role of each of its moves in one round, in order; () if each role
    has one. lr_schedule, er_schedule: of the learning rate and of the exploration rate. game: the one that it plays; of
    a player that was loaded from a run, with the state that it had there. critic_spaces: by role, what the game shows
    critics alone. num_predictions: calls of `predict`. frozen: whether it has no turn in this epoch
    (palestra.players.updates). turn_progress: how far the loops of an unfinished turn have come
    (palestra.algorithms.turn.Turn). replica: the place of its training among those that learn the same networks; None:
    it learns alone. lacks: why it cannot act, of a player that a checkpoint lacks; None: it can.
    """

    name: str
    roles: tuple[str, ...]
    spaces: dict[str, Space]
    action_space: ActionSpace
    device: torch.device
    seed: int
    compile: bool
    by_hand: bool
    moves: tuple[str, ...] = ()
    num_worlds: int = 0
    learning: bool = False
    script: Script | None = None
    scripts: dict[str, Script] = field(default_factory=dict)
    algorithm: Learner | None = None
    nets: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    lr_schedule: Schedule | None = None
    er_schedule: Schedule | None = None
    changed_schedules: dict[str, Schedule] = field(default_factory=dict)
    replay_buffer: ReplayBuffer | None = None
    worlds: Worlds | SoloWorlds | None = None
    game: Game | None = None
    critic_spaces: Mapping[str, dict[str, Space]] = field(default_factory=dict)
    is_counted: bool = False
    num_predictions: int = 0
    frozen: bool = False
    turn_progress: dict[str, dict[str, int]] = field(default_factory=dict)
    replica: AnyReplica | None = None
    lacks: str | None = None

    opt_steps = Counter("after_step(player, metrics) of the trainer")
    env_steps = Counter("roll_out(role, num_rounds) of the trainer")

    def __post_init__(self) -> None:
        self.moves = self.moves or self.roles
        set_counts(self, opt_steps=0, env_steps=0)

    def key(self, what: str) -> int:
        """Return a key of random numbers of the player's own, the same in all replicas. what: what they are for."""
        return base_key(self.seed, f"player/{self.name}/{what}")

    def own_stream(self, what: str) -> str:
        """Return the name of a stream of random numbers that no other replica draws. what: what they are for."""
        stream = f"player/{self.name}/{what}"
        return stream if self.replica is None or self.replica.index == 0 else f"{stream}/replica/{self.replica.index}"

    def own_key(self, what: str) -> int:
        """Return the key of `own_stream`."""
        return base_key(self.seed, self.own_stream(what))

    # ---- replicas: trainings that learn the same networks in lockstep --------------------------------------

    def mean_over_replicas(
        self, gradient: Tensor, metrics: Mapping[str, Any], weight: Tensor | float | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the mean of a gradient over all replicas of the run, and the means of its metrics; alone, these.

        To be called between gradient and step, once for each gradient. weight: how much this replica counts, such as
        the number of rows behind its gradient, or a tensor of addends; 0 without rows. None: all count alike.
        """
        return (gradient, dict(metrics)) if self.replica is None else self.replica.mean(gradient, metrics, weight)

    def in_each_replica(self, what: str, value: Any) -> list[Any]:
        """Return a value of each replica of the run, in their order. what: says what it is."""
        return [value] if self.replica is None else self.replica.each(what, value)

    @property
    def compiles_opt_steps(self) -> bool:
        """Whether whole opt steps may be compiled: not where they wait for other replicas on the way."""
        return self.compile and self.replica is None

    def require_actions(self, algorithm: str, *kinds: type[ActionSpace]) -> None:
        """Raise ConfigError unless the player's actions are of one of these kinds."""
        if not isinstance(self.action_space, kinds):
            can = " or ".join(kind.__name__ for kind in kinds)
            message = f"expected {can} actions for {algorithm!r}, got {self.action_space}, those of {self.roles[0]!r}"
            raise ConfigError.at(f"players.{self.name}.algorithm.name", message)

    def sampling_export_error(self) -> str:
        """Write the error of exporting a player that samples its actions, which is not possible."""
        key = f"players.{self.name}.algorithm.evaluation"
        return (
            f"{key}: expected 'deterministic', because an exported policy cannot sample actions, got 'sampled'; "
            f"to change it, branch off a checkpoint with {key}=deterministic"
        )

    def fits(self, spaces: Mapping[str, Space], action_space: ActionSpace) -> bool:
        """Tell whether it can sit in a role with these observations and actions.

        A scripted player always can, because it is made for its seat.
        """
        return self.script is not None or (self.spaces == spaces and self.action_space == action_space)

    def policy(self, explore: bool, role: str | None = None) -> Policy:
        """Return how this player acts with its current weights, with or without exploration.

        role: in which it sits, for a scripted player, which is made anew for each role; None: the first of its roles.
        Raises CheckpointError for a player that its checkpoint lacks.
        """
        if self.script is not None:
            return self._script_in(role or self.roles[0])
        if self.lacks is not None:
            raise CheckpointError(self.lacks)
        assert self.algorithm is not None
        return self.algorithm.policy(explore)

    def predict(
        self,
        observation: Any,
        state: Memory | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        legal: Any = None,
        role: str | None = None,
    ) -> tuple[Any, Memory | None]:
        """Return its actions on one observation or a batch, in the form in which the game takes them, and its memory.

        The memory is to be passed as `state` with the next observation; it is None if the player has none.
        observation: the game's own, of its role, as `Game.read_observation` takes it; of an environment in the
        environment's own form.
        episode_start: bool, one or (B,), where the memory begins anew. deterministic: the likeliest or best action;
        otherwise as in training, drawn or with exploration. legal: bool, (flags of the action space,) or (B, flags);
        None: those that the observation tells. role: in which it observes this; None: the first of its roles, which is
        refused of several where their observations are normalised by statistics of each role, and of a script. Raises
        TypeError for a player that knows no game or acts by the game's whole state, ValueError for other shapes and
        where `legal` or `role` is needed.
        """
        if self.game is None:
            raise TypeError(f"expected a player of a trainer or a loaded one, got {self.name!r}, which knows no game")
        role = self.role_of(role)
        if (policy := self.predictor(deterministic, role)).observes == "state":
            raise TypeError(f"expected a player that acts by observations, got {self.name!r}, which needs the state")
        own, is_single = self.game.read_observation(role, observation)
        num = len(next(iter(own.values())))
        memory = {} if state is None else state
        if episode_start is not None:
            memory = cleared(memory, torch.as_tensor(episode_start, dtype=torch.bool, device=self.device).reshape(-1))
        self.num_predictions += 1
        key = self.key(f"prediction/{self.num_predictions}")
        with torch.no_grad():
            keys = world_keys(key, num, self.device)
            decision = policy.act(self.game.transformed(role, own), self._legal(role, legal, own, num), keys, memory)
        actions = self.game.own_actions(decision.action)
        return actions[0] if is_single else actions, decision.memory or None

    def predictor(self, deterministic: bool, role: str) -> Policy:
        """Return how `predict` acts in a role."""
        if self.lacks is not None:
            raise CheckpointError(self.lacks)
        return self._script_in(role) if self.algorithm is None else self.algorithm.predictor(deterministic)

    def _script_in(self, role: str) -> Script:
        assert self.script is not None
        if role == self.roles[0] or self.game is None:
            return self.script
        if role not in self.scripts:
            self.scripts[role] = self.script.for_seat(self.game, role)
        return self.scripts[role]

    def role_of(self, role: str | None) -> str:
        """Return the role that was named, or the first one if all of the player's roles are the same to it."""
        assert self.game is not None
        if role is None and len(self.roles) > 1 and (self.script is not None or self.game.transforms_by_role):
            why = "which depends on it" if self.script is not None else "because each has running statistics of its own"
            raise ValueError(f"expected the role of {self.name!r} ({', '.join(self.roles)}), {why}, got none")
        if role is not None and role not in self.roles:
            raise ValueError(f"expected a role in which {self.name!r} sits ({', '.join(self.roles)}), got {role!r}")
        return role or self.roles[0]

    def _legal(self, role: str, legal: Any, own: Observation, num: int) -> Tensor:
        """Return the legal actions: bool (num, flags of the action space). own: the game's own observation."""
        assert self.game is not None
        shape = (num, self.game.action_spaces[role].num_flags)
        flags = self.game.legal_by(role, own) if legal is None else torch.as_tensor(legal, dtype=torch.bool)
        if flags is None:
            raise ValueError(f"expected the legal actions of {role!r}, bool of shape {shape}, got None")
        flags = (flags.unsqueeze(0) if flags.dim() == 1 else flags).to(self.device)
        if flags.shape != shape:
            raise ValueError(f"expected the legal actions of {role!r}, bool of shape {shape}, got {tuple(flags.shape)}")
        return flags

    def __repr__(self) -> str:
        kind = self.script.kind if self.script is not None else self.algorithm.config.name  # type: ignore[union-attr]
        num_weights = sum(weight.numel() for net in self.nets.values() for weight in net.parameters())
        facts = [kind, f"in {' and '.join(self.roles)}"]
        if self.algorithm is not None:
            facts += [f"{self.opt_steps:,} opt steps", f"{num_weights:,} weights", f"on {self.device}"]
            facts += [] if self.learning else ["held fixed"]
        return f"<player {self.name!r}: {', '.join(facts)}>"

    def set_training(self, training: bool) -> None:
        """Switch the networks between training and evaluation mode (batch norm, dropout)."""
        for net in self.nets.values():
            net.train(training)

    def counted_opt_steps(self) -> int | None:
        """Return its opt steps if a trainer counts them, else None."""
        return self.opt_steps if self.is_counted else None

    def rates(self) -> dict[str, float]:
        """Return the current values of the schedules, by name."""
        schedules = {"learning_rate": self.lr_schedule, "exploration": self.er_schedule}
        return {name: schedule(self.opt_steps) for name, schedule in schedules.items() if schedule is not None}

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules that `change_schedule` can change, by their path in the algorithm's config."""
        assert self.algorithm is not None
        found = schedules_in(self.algorithm.config)
        return {key: value for key, value in found.items() if not key.startswith("replay_buffer.")}  # it has its own

    def change_schedule(self, key: str, schedule: Schedule | Mapping[str, Any]) -> None:
        """Replace a schedule from now on; checkpoints store the new one.

        key: its path in the config of the algorithm, such as "learning_rate". schedule: a mapping as in a file will do;
        it, too, is a function of all opt steps of the player since the start of the run. Raises ConfigError.
        """
        assert self.algorithm is not None
        schedule = successor(self.schedules(), key, schedule)
        before = self.schedules()[key]
        self.algorithm.config = replaced(self.algorithm.config, key, schedule)
        self.changed_schedules[key] = schedule
        if self.lr_schedule is before:
            self.lr_schedule = schedule
        if self.er_schedule is before:
            self.er_schedule = schedule

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state but its worlds and the rows of the replay buffer.

        The trainer keeps the worlds; checkpoints store the rows in segments.
        """
        assert self.algorithm is not None
        return self.weights() | {
            "in_evaluation": {name: in_evaluation(net) for name, net in self.nets.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "algorithm": self.algorithm.state_dict(),
            "kernels": self.algorithm.kernels_in_use(),
            "frozen": self.frozen,
            "turn_progress": {loop: dict(progress) for loop, progress in self.turn_progress.items()},
            "schedules": {key: schedule.state_dict() for key, schedule in self.changed_schedules.items()},
            "replay_buffer": None if self.replay_buffer is None else self.replay_buffer.state_dict(),
        }

    def acting_state(self) -> dict[str, Any]:
        """Return the share of `state_dict` that acting as in training needs, and what the algorithm explores by."""
        assert self.algorithm is not None
        return self.weights() | {
            "in_evaluation": {name: in_evaluation(net) for name, net in self.nets.items()},
            "schedules": {key: schedule.state_dict() for key, schedule in self.schedules().items()},
            "acting": self.algorithm.acting_state(),
        }

    def load_acting_state(self, state: Mapping[str, Any]) -> None:
        """Load what `acting_state` has returned."""
        assert self.algorithm is not None
        self._load_nets(state)
        for key, schedule in self.schedules().items():
            if (new := state["schedules"][key]) != schedule.state_dict():
                self.change_schedule(key, read_schedule(new))
        self.algorithm.load_acting_state(state["acting"])

    def weights(self) -> dict[str, Any]:
        """Return the share of `state_dict` that acting without exploration needs."""
        nets = {name: net.state_dict() for name, net in self.nets.items()}
        return {"opt_steps": self.opt_steps, "env_steps": self.env_steps, "nets": nets}

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Load what `weights` has returned."""
        set_counts(self, opt_steps=state["opt_steps"], env_steps=state["env_steps"])
        for name, net in self.nets.items():
            net.load_state_dict(state["nets"][name])

    def _load_nets(self, state: Mapping[str, Any]) -> None:
        self.load_weights(state)
        for name, net in self.nets.items():
            set_in_evaluation(net, state["in_evaluation"][name])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.algorithm is not None
        self._load_nets(state)
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.algorithm.load_state_dict(state["algorithm"])
        self.frozen = state["frozen"]
        self.turn_progress = {loop: dict(progress) for loop, progress in state["turn_progress"].items()}
        for key, schedule in state["schedules"].items():
            self.change_schedule(key, read_schedule(schedule))
        if self.replay_buffer is not None and state["replay_buffer"] is not None:  # of a checkpoint with its rows
            self.replay_buffer.load_state_dict(state["replay_buffer"])
