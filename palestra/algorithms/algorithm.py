"""How one player learns: the base of all algorithms, and what they ask of the trainer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from palestra.config import Config, ConfigErrorItem
from palestra.games.game import Observation
from palestra.games.policy import Memory, Policy
from palestra.nets.flat import FlatNet
from palestra.nets.kernels.plain import edits_of
from palestra.nets.user_nets import RecurrentNet
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import RollOut
from palestra.runtime.guard import Kernel, find_edit, kernel_properties, reachable


class Deterministic(nn.Module):
    """How a player acts without chance: a network, and how its outputs and the legal actions become actions. The first
    `num_flags` outputs are the values of all choices, or their logits."""

    def __init__(self, net: nn.Module, choose: Callable[[Tensor, Tensor], Tensor], num_flags: int) -> None:
        super().__init__()
        self.net, self.choose, self.num_flags = net, choose, num_flags
        self.eval()

    def forward(self, observation: dict[str, Tensor], legal: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.net(observation)
        return self.choose(outputs, legal), outputs[:, : self.num_flags]


class DeterministicRecurrent(nn.Module):
    """As `Deterministic`, for a network with a memory, which goes in after the legal actions and comes out last.

    prefix: before the names of the network's memory where it lies in the player's.
    """

    def __init__(
        self, net: RecurrentNet, choose: Callable[[Tensor, Tensor], Tensor], num_flags: int, prefix: str
    ) -> None:
        super().__init__()
        self.net, self.choose, self.num_flags, self.prefix = net, choose, num_flags, prefix
        self.eval()

    def forward(
        self, observation: dict[str, Tensor], legal: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        outputs, after = self.net(observation, memory)
        return self.choose(outputs, legal), outputs[:, : self.num_flags], dict(after)


class Turn(ABC):
    """What an algorithm asks of the trainer while its player has its turn.

    A run may be saved and stopped at safe points, and a resumed run calls `learn` again from its top. So a turn is
    written as loops, which know by themselves what is done:

        for _ in turn.once("roll_out"):
            rows = self.player.join(turn.collect(16))
            self.buffer.add(rows.rows(), rows.valid)
        for _ in turn.times("updates", 8):
            turn.before_step()
            turn.after_step(self.opt_step())

    Where an item of a loop has come to its end, the loop notes that it is done, and then there is a safe point. What is
    done lies with the player (`turn_progress`), and in its checkpoints. A `learn` without loops is one piece.
    """

    def __init__(self, player: Player) -> None:
        self.player = player
        self._open: list[str] = []
        self._begun: set[str] = set()

    @abstractmethod
    def collect(self, num_rounds: int) -> RollOut:
        """Play the player's worlds on, in which all learning players explore, and give its experience by role, as a
        list with one entry. Where roles do not matter, `player.join` makes one batch of it. Counts env steps."""

    @abstractmethod
    def before_step(self) -> None:
        """Call before every opt step, or group of them."""

    @abstractmethod
    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        """Call after every opt step, or group of them whose means the metrics are: it counts them."""

    @abstractmethod
    def safe_point(self) -> None:
        """Evaluation, records, saves and the end. For algorithms that remember in their own state how far a turn has
        come; loops call it by themselves."""

    def once(self, what: str) -> Iterator[int]:
        """A loop of one item: `for _ in turn.once("roll_out")`."""
        return self.times(what, 1)

    def times(self, what: str, num: int) -> Iterator[int]:
        """A loop of `num` items, which gives their numbers, from 0 on; a resumed one goes on with the number that it
        began with. Loops may stand inside each other. Each has a name of its own: `what`."""
        name = "/".join([*self._open, what])
        if name in self._begun:
            raise RuntimeError(f"expected a name of its own for every loop of a turn, got {name!r} twice")
        self._begun.add(name)
        progress = self.player.turn_progress.setdefault(name, {"done": 0, "of": num})
        self._open.append(what)
        while progress["done"] < progress["of"]:
            num_begun = len(self._begun)
            yield progress["done"]
            if len(self._begun) > num_begun:
                self._forget_inside(name)
            progress["done"] += 1
            self.safe_point()
        self._open.pop()

    def last(self, what: str) -> None:
        """Let the item that is being done be the last one of its loop; in place of `break`."""
        if what not in self._open:
            raise RuntimeError(f"expected the name of an open loop ({', '.join(self._open)}), got {what!r}")
        progress = self.player.turn_progress["/".join(self._open[: self._open.index(what) + 1])]
        progress["of"] = progress["done"] + 1

    def run(self) -> None:
        """Let the player have the turn, or what is left of one that was stopped."""
        self._open, self._begun = [], set()
        assert self.player.algorithm is not None
        self.player.algorithm.learn(self)
        if self._open:
            learn = f"{type(self.player.algorithm).__name__}.learn"
            name = self._open[-1]
            raise RuntimeError(f"{learn} left the loop {name!r} by break or return; expected turn.last({name!r})")
        self.player.turn_progress.clear()

    def _forget_inside(self, name: str) -> None:
        """The loops inside an item begin anew with the next item."""
        for inner in [each for each in self._begun if each.startswith(f"{name}/")]:
            self._begun.remove(inner)
            del self.player.turn_progress[inner]


@dataclass(frozen=True)
class Seat:
    """How often a learning player decides in a round of its worlds. num_moves: the moves in which it may; num_roles:
    the roles in which it sits."""

    num_worlds: int
    num_moves: int
    num_roles: int


class AlgorithmConfig(Config):
    """Base of the configs of algorithms, which stand beside their algorithm and build it."""

    name: str

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        """What does not go with the size of the player's roll-outs, with paths below this config."""
        return []

    def build(self, player: Player) -> "Algorithm":
        raise NotImplementedError


def capacity_errors(capacity: int, num_transitions: int) -> list[ConfigErrorItem]:
    """Whether a replay buffer can hold what one roll-out brings, with the path below the algorithm's config."""
    if capacity >= num_transitions:
        return []
    message = f"expected at least {num_transitions} (a roll-out brings up to so many transitions), got {capacity}"
    return [ConfigErrorItem("replay_buffer.capacity", message)]


def total_loss(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum of the terms of a loss, in their order: of those whose names begin with `loss_`."""
    losses = [term for name, term in terms.items() if name.startswith("loss_")]
    if not losses:
        raise ValueError(f"expected a loss with at least one term named loss_*, got {sorted(terms)}")
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total


def join_terms(by_role: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The terms of a player's loss from those of each of its roles: their means, by the roles' shares of the rows. Of
    several roles also, to be recorded, each role's loss and its terms that do not begin with `loss_`, as NAME/ROLE.

    weights: by role, of all rows, 0.0 where they do not count for the role: float32 (M,).
    """
    first, *others = by_role
    if not others:
        return dict(by_role[first])
    nums = {role: of_role.sum() for role, of_role in weights.items()}
    total = torch.stack(list(nums.values())).sum().clamp(min=1.0)
    joined = {name: nums[first] / total * term for name, term in by_role[first].items()}
    for role in others:
        joined = {name: term + nums[role] / total * by_role[role][name] for name, term in joined.items()}
    for role, terms in by_role.items():
        recorded = {"loss": total_loss(terms).detach(), **metrics_of(terms)}
        joined |= {f"{name}/{role}": term for name, term in recorded.items()}
    return joined


def metrics_of(terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The terms of a loss that are recorded and not learned: all those whose names do not begin with `loss_`."""
    return {name: term.detach() for name, term in terms.items() if not name.startswith("loss_")}


def mean_metrics(steps: Sequence[Metrics]) -> dict[str, Tensor]:
    """The means of the metrics of several opt steps: numbers, or tensors without axes, of the same names."""
    rows = [list(metrics.values()) for metrics in steps]
    if all(isinstance(value, float) for value in rows[0]):
        table = torch.tensor(rows)
    else:
        table = torch.stack([torch.stack([torch.as_tensor(value).float() for value in row]) for row in rows])
    return dict(zip(steps[0], table.mean(dim=0).unbind(), strict=True))


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
        of `act`."""
        return None

    def module(self) -> Deterministic | DeterministicRecurrent:
        """How the player acts without exploration, for `palestra export`: observation (dict of (B, ...)), legal actions
        (B, flags) -> action, and the value or logit of every choice, float32 (B, flags); of a recurrent player also
        its memory, in and out. NotImplementedError says why not."""
        raise NotImplementedError(f"{type(self).__name__} has no `module`, so its players cannot be exported")

    @abstractmethod
    def learn(self, turn: Turn) -> None:
        """One turn of the player: roll out, sample, update. A run that was stopped inside a turn calls it again: what
        stands in loops of the turn and is done is passed over, what stands between them is done again."""

    def learning_rate_of(self, optimizer: str) -> float:
        """What an optimizer of the player, by its name, learns at now, where somebody calls its `step` by hand. Raises
        ValueError for a player without a schedule."""
        if self.player.lr_schedule is None:
            raise ValueError(f"{type(self).__name__} has no lr_schedule for {optimizer!r}; fill its learning_rate")
        return self.player.lr_schedule(self.player.opt_steps)

    def forget_waiting(self) -> None:  # noqa: B027 (most keep nothing)
        """Called between two turns, when the player has been frozen and learns again: drop rows of earlier roll-outs
        that wait to be learned from. What lies in a replay buffer stays."""

    def warm_start(self, nets: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Begin with the networks of another run's player, before the first turn. nets: their weights, by the names in
        its `player.nets`; where only their body is taken, with this player's own outputs. Raises ValueError or
        RuntimeError if they do not fit."""
        if missing := self.player.nets.keys() - nets.keys():
            raise ValueError(f"it has the networks {', '.join(nets)}, but no {', '.join(sorted(missing))}")
        for name, net in self.player.nets.items():
            net.load_state_dict(nets[name])

    def state_dict(self) -> dict[str, Any]:
        """State that checkpoints must hold besides the player's networks, optimizers and replay buffer and how far its
        turn has come; {} if there is none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state:
            raise ValueError(f"expected nothing to load, for {type(self).__name__} keeps nothing; got {list(state)}")

    # ---- hand-written kernels ------------------------------------------------------------------------------

    def may_run(self, kernel: Kernel) -> bool:
        """Whether a kernel computes what the methods say that it stands in for. Ask it last: where somebody has changed
        these, `begin_run` says so."""
        edit = find_edit(kernel, self)
        if edit is not None:
            self._edits[kernel.name] = f"{edit}: {kernel.cost}"
        return edit is None

    def begin_run(self) -> list[str]:
        """Choose kernels anew, by what methods and networks are now; called when a run begins. Gives a line for each
        kernel that steps aside."""
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
