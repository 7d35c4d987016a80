"""How one player learns: the base of all algorithms."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from palestra.algorithms.parts.exported import Deterministic, DeterministicRecurrent
from palestra.algorithms.turn import Turn
from palestra.config import Config, ConfigErrorItem
from palestra.games.game import Observation
from palestra.games.policy import Memory, Policy
from palestra.nets.flat import FlatNet
from palestra.nets.kernels.plain import edits_of
from palestra.players.player import Player
from palestra.runtime.guard import Kernel, find_edit, kernel_properties, reachable


class Algorithm(ABC):
    """The base of all algorithms: how one player acts and learns.

    A subclass must implement `policy` and `learn`. It may override `predictor`, `choice_values`, `module`,
    `warm_start`, `learning_rate_of`, `forget_waiting`, and both or none of `state_dict`, `load_state_dict`, and of
    `acting_state`, `load_acting_state`.
    Its `__init__` fills the player's `nets`, `optimizers`, `lr_schedule`, `er_schedule` and `replay_buffer`.

    Hand-written kernels that stand in for methods are attributes of type `kernel_property`, named `..._kernel`, and
    None where the methods themselves run. They are chosen when they are first asked for, and anew when a run begins,
    after the callbacks' `before_train`. Whoever edits something while a run is under way calls `begin_run`.
    Call `begin_run`, `may_run` and `kernels_in_use`, but do not override them.
    """

    common_state: ClassVar[tuple[str, ...]] = ()
    """The entries of `state_dict` that are the same in all replicas of a run; a save compares them."""

    def __init__(self, config: Any, player: Player) -> None:
        self._edits: dict[str, str] = {}
        self.config, self.player = config, player

    @abstractmethod
    def policy(self, explore: bool) -> Policy:
        """Return the policy by which the player acts now; without exploration it depends on the networks alone."""

    def predictor(self, deterministic: bool) -> Policy:
        """Return the policy of `Player.predict`: it plays the best or likeliest actions, or acts as in training."""
        return self.policy(explore=not deterministic)

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor] | None:
        """Return the player's number for every choice, to be shown to people, or None if it has no such numbers.

        The result is what the numbers are ("Q-value", "probability"), and the numbers, float32 (B, flags). Actions that
        are vectors of numbers have none. The arguments are those of `Policy.act`.
        """
        return None

    def module(self) -> Deterministic | DeterministicRecurrent:
        """Return the module that `palestra export` writes: it acts as the player does without exploration.

        It maps the observation (dict of (B, ...)) and the legal actions (B, flags) to the action and the value or logit
        of every choice, float32 (B, flags). A recurrent player's module also takes and gives the memory. Raises
        NotImplementedError, which says why, where a player cannot be exported.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `module`, so its players cannot be exported")

    @abstractmethod
    def learn(self, turn: Turn) -> None:
        """Play and learn for one turn: roll out, sample, update.

        A run that was stopped inside a turn calls `learn` again: the items of the turn's loops that are done are
        skipped, and the code between the loops runs again.
        """

    def learning_rate_of(self, optimizer: str) -> float:
        """Return the present learning rate of the optimizer of this name, for calls of its `step` by hand.

        Raises ValueError for a player without a schedule.
        """
        if self.player.lr_schedule is None:
            raise ValueError(f"{type(self).__name__} has no lr_schedule for {optimizer!r}; fill its learning_rate")
        return self.player.lr_schedule(self.player.opt_steps)

    def forget_waiting(self) -> None:  # noqa: B027 (most keep nothing)
        """Drop the rows of earlier roll-outs that wait to be learned from; the replay buffer keeps its rows.

        It is called between two turns, when the player was frozen and learns again.
        """

    def warm_start(self, nets: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy the networks of another run's player into this one, before the first turn.

        nets: their weights, by the names in its `player.nets`. If only the bodies are taken, the weights of the outputs
        are this player's own. Raises ValueError or RuntimeError if they do not fit.
        """
        if missing := self.player.nets.keys() - nets.keys():
            raise ValueError(f"it has the networks {', '.join(nets)}, but no {', '.join(sorted(missing))}")
        for name, net in self.player.nets.items():
            net.load_state_dict(nets[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the algorithm itself, {} if it has none.

        Checkpoints hold the player's networks, optimizers, replay buffer and the progress of its turn anyway.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ValueError(f"expected an empty state ({type(self).__name__} keeps none), got {list(state)}")

    def acting_state(self) -> dict[str, Any]:
        """Return what decides how the player explores, besides networks, counters and schedules; {} if nothing does.

        Actors play by it (`actors` of a run), in place of the player that learns.
        """
        return {}

    def load_acting_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (most have none)
        """Restore what `acting_state` returned, in a player that an actor plays by."""

    # ---- hand-written kernels ------------------------------------------------------------------------------

    def may_run(self, kernel: Kernel) -> bool:
        """Return whether a kernel still computes what the methods say that it stands in for.

        Ask this after all other conditions: if somebody has edited these methods, `begin_run` reports it.
        """
        if (edit := find_edit(kernel, self)) is not None:
            self._edits[kernel.name] = f"{edit}: {kernel.cost}"
        return edit is None

    def begin_run(self) -> list[str]:
        """Choose the kernels anew, by what methods and networks are now, and return a line for each that steps aside.

        It is called when a run begins.
        """
        for part in [*reachable(self)]:
            for name in kernel_properties(part.__class__):
                vars(part).pop(name, None)
            if isinstance(part, FlatNet):
                part.renew()
        self._edits = {}
        self.kernels_in_use()
        is_on_cpu = self.player.device.type == "cpu"
        return [*self._edits.values(), *(edits_of(self.player.nets.values()) if is_on_cpu else [])]

    def kernels_in_use(self) -> dict[str, str]:
        """Return, by the name of each kernel, whether it computes ("by hand") or the methods do ("torch")."""
        names = [name for name in kernel_properties(type(self)) if name.endswith("_kernel")]
        return {name: "torch" if getattr(self, name) is None else "by hand" for name in names}


@dataclass(frozen=True)
class Seat:
    """The worlds of a learning player, its moves in a round of each, and the roles in which it sits."""

    num_worlds: int
    num_moves: int
    num_roles: int


class AlgorithmConfig(Config):
    """The base of the configs of algorithms."""

    usual: ClassVar[Any] = {"gamma": 0.99, "evaluation": "deterministic", "learning_rate_factors": {}}
    usual_run: ClassVar[Mapping[str, Any]] = {}
    """keys of a run that a first file has with this algorithm"""

    name: str

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        """Return errors, at paths below this config, of values that do not fit the size of the player's roll-outs."""
        return []

    def build(self, player: Player) -> "Algorithm":
        raise NotImplementedError
