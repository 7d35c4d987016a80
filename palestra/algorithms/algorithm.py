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
    """How one player learns.

    Must be implemented: `policy`, `learn`; may be: `predictor`, `choice_values`, `module`, `warm_start`,
    `learning_rate_of`, `forget_waiting`, and both or none of `state_dict`, `load_state_dict`.
    `__init__` fills the player's `nets`, `optimizers`, `lr_schedule`, `er_schedule`, `replay_buffer`.

    Hand-written kernels that stand in for methods are attributes of type `kernel_property`, named `..._kernel`, and
    None where the methods themselves run. They are chosen when they are first asked for, and anew when a run begins,
    after the callbacks' `before_train`. Whoever edits something while a run is under way calls `begin_run`.
    To be called, not overridden: `begin_run`, `may_run`, `kernels_in_use`.
    """

    def __init__(self, config: Any, player: Player) -> None:
        self._edits: dict[str, str] = {}
        self.config = config
        self.player = player

    @abstractmethod
    def policy(self, explore: bool) -> Policy:
        """How the player acts with its present weights; without exploration, its networks are all that counts."""

    def predictor(self, deterministic: bool) -> Policy:
        """How `Player.predict` acts: by the likeliest or best actions, or as in training."""
        return self.policy(explore=not deterministic)

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor] | None:
        """What the player makes of all choices, for people who ask: what the numbers are ("Q-value", "probability"),
        and the numbers, float32 (B, flags); None where there are none, as with vectors of numbers. Arguments: as those
        of `act`.
        """
        return None

    def module(self) -> Deterministic | DeterministicRecurrent:
        """How the player acts without exploration, for `palestra export`: observation (dict of (B, ...)), legal actions
        (B, flags) -> action, and the value or logit of every choice, float32 (B, flags); of a recurrent player also
        its memory, in and out. NotImplementedError says why not.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `module`, so its players cannot be exported")

    @abstractmethod
    def learn(self, turn: Turn) -> None:
        """One turn of the player: roll out, sample, update.

        A run that was stopped inside a turn calls it again: what stands in loops of the turn and is done is passed
        over, what stands between them is done again.
        """

    def learning_rate_of(self, optimizer: str) -> float:
        """What an optimizer of the player, by its name, learns at now, where somebody calls its `step` by hand.

        Raises ValueError for a player without a schedule.
        """
        if self.player.lr_schedule is None:
            raise ValueError(f"{type(self).__name__} has no lr_schedule for {optimizer!r}; fill its learning_rate")
        return self.player.lr_schedule(self.player.opt_steps)

    def forget_waiting(self) -> None:  # noqa: B027 (most keep nothing)
        """Called between two turns, when the player has been frozen and learns again: drop rows of earlier roll-outs
        that wait to be learned from. What lies in a replay buffer stays.
        """

    def warm_start(self, nets: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Begin with the networks of another run's player, before the first turn.

        nets: their weights, by the names in its `player.nets`; where only their body is taken, with this player's own
        outputs. Raises ValueError or RuntimeError if they do not fit.
        """
        if missing := self.player.nets.keys() - nets.keys():
            raise ValueError(f"it has the networks {', '.join(nets)}, but no {', '.join(sorted(missing))}")
        for name, net in self.player.nets.items():
            net.load_state_dict(nets[name])

    def state_dict(self) -> dict[str, Any]:
        """State that checkpoints must hold besides the player's networks, optimizers and replay buffer and how far its
        turn has come; {} if there is none.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state:
            raise ValueError(f"expected nothing to load, for {type(self).__name__} keeps nothing; got {list(state)}")

    # ---- hand-written kernels ------------------------------------------------------------------------------

    def may_run(self, kernel: Kernel) -> bool:
        """Whether a kernel computes what the methods say that it stands in for.

        Ask it last: where somebody has changed these, `begin_run` says so.
        """
        edit = find_edit(kernel, self)
        if edit is not None:
            self._edits[kernel.name] = f"{edit}: {kernel.cost}"
        return edit is None

    def begin_run(self) -> list[str]:
        """Choose kernels anew, by what methods and networks are now; called when a run begins.

        Gives a line for each kernel that steps aside.
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
        """What computes: by the name of the kernel "by hand", or "torch"."""
        names = [name for name in kernel_properties(type(self)) if name.endswith("_kernel")]
        return {name: "torch" if getattr(self, name) is None else "by hand" for name in names}


@dataclass(frozen=True)
class Seat:
    """How often a learning player decides in a round of its worlds.

    num_moves: the moves in which it may; num_roles: the roles in which it sits.
    """

    num_worlds: int
    num_moves: int
    num_roles: int


class AlgorithmConfig(Config):
    """Base of the configs of algorithms, which stand beside their algorithm and build it."""

    usual: ClassVar[Any] = {"gamma": 0.99, "evaluation": "deterministic", "learning_rate_factors": {}}
    usual_run: ClassVar[Mapping[str, Any]] = {}
    """keys of a run that a first file has with this algorithm"""

    name: str

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        """What does not go with the size of the player's roll-outs, with paths below this config."""
        return []

    def build(self, player: Player) -> "Algorithm":
        raise NotImplementedError
