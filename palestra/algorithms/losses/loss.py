"""Losses on roll-outs: functions of a plain batch that give named terms. off_policy_loss.py has those on replayed rows.

Letters: M rows, T decisions of each of W sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import cached_property, wraps
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from palestra.algorithms.parts.actor_critic import POLICY, VALUE, HeadedNet
from palestra.algorithms.parts.advantages import Experience
from palestra.algorithms.parts.distributions import Distribution
from palestra.algorithms.terms import total_loss
from palestra.config import Config, ConfigError, UnreadConfig, cut, running_own
from palestra.config.validation import checked
from palestra.games.policy import Memory
from palestra.games.spaces import ActionSpace, Box, Space
from palestra.nets.inputs import zeros_of
from palestra.nets.recurrent import NamedNet
from palestra.nets.weights import without_gradient
from palestra.players.player import Player
from palestra.randomness import seeded_global_state

P = ParamSpec("P")
R = TypeVar("R")
NUM_TRIED = 3  # rows
RECORDED = (  # of a player beside the terms of its loss
    *("loss", "grad_norm", "learning_rate", "exploration", "data_passes"),
    *("env_steps", "opt_steps", "episodes", "actions", "inexact"),
)
Q = "q"  # the head with a value for each discrete action


class Head(NamedTuple):
    """A head other than `policy`, `value` and `label`: its name, and how many outputs it has."""

    name: str
    num_outputs: int


class Critic(NamedTuple):
    """A head with one output, whose network observes an action of a Box beside the player's observation.

    The entry `action` has the action in half-widths of the Box from its centre.
    """

    name: str

    @property
    def num_outputs(self) -> int:
        return 1


class ActionValues(NamedTuple):
    """A head that, like `q`, has a value for each discrete action."""

    name: str


class TakenValue(NamedTuple):
    """A head with values of the actions taken: a Critic where actions are a Box, ActionValues where they are discrete.

    batch.taken_values(name) has them.
    """

    name: str


AnyHead = str | Head | Critic | ActionValues | TakenValue


def with_gradients(compute: Callable[P, R]) -> Callable[P, R]:
    """Compute with gradients also under no_grad, because a loss that asks later for the same number may need them."""

    @wraps(compute)
    def computed(*arguments: P.args, **named: P.kwargs) -> R:
        with nullcontext() if torch.is_grad_enabled() else torch.inference_mode(False):
            return compute(*arguments, **named)

    return computed


class LossFault(Exception):
    """A fault of a loss that asks for what it cannot have."""


BATCH_HAS = (
    "it has observation, legal, action, weight, old_log_prob, old_value, advantage, value_target, log_prob, entropy, "
    "value, distribution, outputs, opt_steps and mean; rewards reach an estimator, in its sequences"
)


class LossBatch:
    """The rows of a minibatch, as a loss gets them.

    From the roll-out it has: observation, by entry (M, ...); legal, bool (M, flags of the action space); action, as the
    policy drew it; old_log_prob, old_value (M,); advantage, value_target (M,), which the estimator found, advantages
    normalized if the config says so; weight float32 (M,), which sums to 1, and is 0.0 where a row does not count.
    By the present weights, with gradients: log_prob, entropy, value (M,); distribution; outputs, by head (M, K).
    opt_steps: the player's opt steps so far, for schedules.

    If a player sits in several roles, a loss gets a batch for each role. Each has all rows, but the rows of other roles
    do not count.

    net: the networks. rows: the minibatch, with weights that sum to 1. estimates: whether there are advantages. now:
    the outputs of another batch with the same observations; None: they are computed when they are asked for.
    """

    def __init__(
        self, net: HeadedNet, rows: Experience, opt_steps: int, estimates: bool, now: "Now | None" = None
    ) -> None:
        self.net, self.rows, self.opt_steps, self.estimates = net, rows, opt_steps, estimates
        self.now = Now(net, rows) if now is None else now
        self.observation, self.legal, self.action, self.weight = rows.observation, rows.legal, rows.action, rows.weight
        self.old_log_prob = rows.log_prob

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a batch has no {name!r}; {BATCH_HAS}")

    def mean(self, column: Tensor) -> Tensor:
        """Return the mean over the rows that count. column: float32 (M,)."""
        return torch.dot(self.weight, column)

    @property
    def old_value(self) -> Tensor:
        if VALUE not in self.net.heads:
            raise LossFault(f"uses the head {VALUE!r}, which its `heads` ({', '.join(self.net.heads)}) do not name")
        return self.rows.value

    @property
    def advantage(self) -> Tensor:
        self._require_estimates("advantages")
        return self.rows.advantage

    @property
    def value_target(self) -> Tensor:
        self._require_estimates("value targets")
        return self.rows.value_target

    @property
    def outputs(self) -> "_Outputs":
        return self.now.outputs

    @property
    def distribution(self) -> Distribution:
        """The distribution of actions under the present policy."""
        return self.now.distribution

    @property
    def log_prob(self) -> Tensor:
        return self.now.log_prob

    @property
    def entropy(self) -> Tensor:
        return self.now.entropy

    @property
    def value(self) -> Tensor:
        return self.now.outputs[VALUE][:, 0]

    def _require_estimates(self, what: str) -> None:
        if not self.estimates:
            raise LossFault(f"asks for {what}, which the estimator 'none' does not give")


class Now:
    """The outputs of the networks for a minibatch, each computed once, with gradients, when it is first asked for."""

    def __init__(self, net: HeadedNet, rows: Experience) -> None:
        self.net, self.rows = net, rows

    @cached_property
    @with_gradients
    def outputs(self) -> "_Outputs":
        return _Outputs(self.net(self.rows.observation, self.rows.memory, self.rows.episode_start))

    @cached_property
    @with_gradients
    def distribution(self) -> Distribution:
        return self.net.head.distribution(self.outputs[POLICY], self.rows.legal)

    @cached_property
    @with_gradients
    def log_prob(self) -> Tensor:
        return self.distribution.log_prob(self.rows.action)

    @cached_property
    @with_gradients
    def entropy(self) -> Tensor:
        return self.distribution.entropy()


class _Outputs(dict[str, Tensor]):
    def __missing__(self, head: str) -> Tensor:
        raise LossFault(f"uses the head {head!r}, which its `heads` ({', '.join(self)}) do not name")


class Loss(ABC):
    """The base of both kinds of losses. notes: lines for the user when a run begins."""

    heads: tuple[AnyHead, ...]
    notes: Sequence[str] = ()

    def __init__(self, config: Any) -> None:
        self.config = config

    def begin(self, net: HeadedNet, player: Player) -> None:  # noqa: B027 (most losses need neither)
        """Prepare the loss once, when there are networks, before anything is computed."""

    @abstractmethod
    def terms(self, batch: Any) -> dict[str, Tensor]:
        """Return terms by name, scalars: those named loss_* add up to the loss, the others are recorded."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the loss remembers from turn to turn, beside its weights."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most losses remember nothing)
        """Restore what `state_dict` returned."""


class OnPolicyLoss(Loss):
    """The base of losses on a player's own roll-outs.

    A class of your own derives from it and carries its `Config`, a UserConfig with the loss's keys.

    It may set `heads`, the outputs that it learns: `policy` (by which the player acts), `value`, `label` (two logits),
    or Head(name, num_outputs) for another one; `estimators`, the names of those that it can learn from, None: any.
    Both may be properties, which read `config`. `is_of_one_pass` says that it holds only as long as the policy is the
    one that collected the roll-out; then `num_passes` must be 1. It must implement `terms`, and may implement `begin`,
    `before_turn`, `is_last_pass`, `after_turn`, and both or none of `state_dict`, `load_state_dict`.
    """

    heads: tuple[AnyHead, ...] = (POLICY, VALUE)
    estimators: tuple[str, ...] | None = None
    is_of_one_pass: bool = False

    def before_turn(self) -> None:
        """Prepare for a new roll-out, while the networks still have the weights that collected it."""

    def is_last_pass(self, metrics: Mapping[str, Tensor]) -> bool:
        """Return whether the pass just made shall be the last one over the roll-out.

        metrics: means over this pass, by the names of the terms that are recorded.
        """
        return False

    def after_turn(self, metrics: Mapping[str, Tensor]) -> None:
        """Finish a roll-out after its last pass, whose metrics these are."""


class LossConfig(Config):
    """The base of the configs of the losses of this package."""

    made: ClassVar[Any]
    usual_algorithm: ClassVar[Mapping[str, Any]] = {}
    """keys of the algorithm that a first file has with this loss"""

    name: str

    def build(self) -> Any:
        return self.made(self)


def usual_loss(said: Any, union: Any) -> Any:
    """Build the loss of which a first file says this much; None if keys are missing or it may not be imported."""
    config = checked(said, union)
    return None if config is None else loss_of(config)


def loss_of(config: Any) -> Any:
    """Build the loss that a config names; None if its module may not be imported here.

    Raises ConfigError, at a path below the algorithm's config, for a class that cannot be made, or whose attributes
    have wrong values.
    """
    if isinstance(config, UnreadConfig):
        return None
    with running_own("loss.name", f"{config.name!r} fails"):
        loss = config.build()
        fault = _class_fault(loss)
    if fault is not None:
        raise ConfigError.at("loss.name", f"{config.name!r} {fault}")
    return loss


def _class_fault(loss: Any) -> str | None:
    heads = loss.heads
    is_sound = isinstance(heads, tuple | list) and all(isinstance(head, AnyHead) for head in heads)
    if not is_sound or not heads or len(set(head_names(loss))) < len(heads):
        return f"has the heads {cut(repr(heads))}; expected different names, or Head(name, num_outputs), in a tuple"
    if not getattr(loss, "acts_by", POLICY):
        return "has no acts_by; expected the name of the head by which the player acts"
    keeps = [name for name in ("state_dict", "load_state_dict") if getattr(type(loss), name) is not getattr(Loss, name)]
    if len(keeps) == 1:
        return f"has {keeps[0]} alone of state_dict and load_state_dict; expected both or none"
    return None


def head_names(loss: Any) -> list[str]:
    return [head if isinstance(head, str) else head.name for head in loss.heads]


def critics_of(loss: Any, space: ActionSpace) -> list[str]:
    """Name the heads of a loss that observe an action, if the actions are these."""
    kinds = (Critic, TakenValue) if isinstance(space, Box) else Critic
    return [head.name for head in loss.heads if isinstance(head, kinds)]


def head_sizes(loss: Any, config: Any, others: Mapping[str, int]) -> dict[str, int]:
    """Return how many outputs each head of a loss has, the policy's first and the value's last.

    others: the outputs of further heads that the algorithm knows by name, beside `value` and `label`. Raises
    ConfigError, at paths below the algorithm's config.
    """
    known = {VALUE: 1, "label": 2} | dict(others)
    sizes: dict[str, int] = {}
    for name, head in zip(head_names(loss), loss.heads, strict=True):
        if isinstance(head, Head | Critic):
            sizes[name] = head.num_outputs
        elif isinstance(head, TakenValue):
            sizes[name] = known.get(Q, 1)
        elif isinstance(head, ActionValues) and Q in known:
            sizes[name] = known[Q]
        elif head in known:
            sizes[name] = known[head]
        else:
            expected = f"expected heads of {config.name!r} among {', '.join(known)}, or Head(name, num_outputs)"
            raise ConfigError.at("loss.name", f"{expected}, got {name!r}")
    order = [name for name in sizes if name not in (POLICY, VALUE)]
    return {name: sizes[name] for name in (POLICY, *order, VALUE) if name in sizes}


# ---- tried once before anything is played ------------------------------------------------------------------


def try_loss(loss: Loss, config: Any, compute: Callable[[], Any], weights: Mapping[str, Tensor]) -> None:
    """Let a loss compute its terms once, from rows of zeros, and restore its state.

    compute: gives the terms. weights: those that the loss must depend on, by name. Raises ConfigError, at paths below
    the algorithm's config, for a loss that fails or has no loss_*, and for terms that are no numbers or have no
    gradient.
    """
    state = deepcopy(loss.state_dict())
    with running_own("loss.name", f"{config.name!r} fails"), torch.enable_grad(), seeded_global_state(0):
        try:
            fault = _fault_of(compute(), weights)
        except LossFault as error:
            fault = str(error)
    if fault is not None:
        raise ConfigError.at("loss.name", f"{config.name!r} {fault}")
    loss.load_state_dict(state)


def _fault_of(terms: Any, weights: Mapping[str, Tensor]) -> str | None:
    if not isinstance(terms, Mapping):
        return f"gives {type(terms).__name__}; expected a dict of tensors, terms by name"
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            return f"gives {name!r} as {type(term).__name__}; expected a tensor, a number without axes"
        if name in RECORDED:
            return f"names a term {name!r}; expected another name, because records have something else under it"
        if term.shape != () or not term.is_floating_point():
            return f"gives {name!r} as {term.dtype} of shape {tuple(term.shape)}; expected a number without axes"
    if not any(name.startswith("loss_") for name in terms):
        return f"gives the terms {', '.join(terms) or 'none'}; expected at least one named loss_*, which is learned"
    if not (unused := without_gradient(total_loss(terms), weights)):
        return None
    more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
    return f"names heads of which it learns nothing: no loss_* depends on the weights {unused[0]}{more}"


def rows_of_zeros(net: HeadedNet, spaces: dict[str, Space], player: Player) -> Experience:
    """Make a minibatch on which a loss is tried. spaces: of the critic's observations."""
    M, device = NUM_TRIED, player.device
    zeros, space = torch.zeros(M, device=device), player.action_space
    memory: Memory = {}
    for head in net.heads:
        memory |= NamedNet(head, net.net_of(head)).initial_memory(M, device)
    return Experience(
        observation=zeros_of(spaces, M, device=device),
        memory=memory,
        episode_start=torch.ones(1, M, dtype=torch.bool, device=device),
        legal=torch.ones(M, space.num_flags, dtype=torch.bool, device=device),
        action=torch.zeros(M, *space.shape, dtype=space.dtype, device=device),
        log_prob=zeros,
        value=zeros,
        advantage=zeros,
        value_target=zeros,
        weight=torch.full((M,), 1.0 / M, device=device),
        role=torch.zeros(M, dtype=torch.int64, device=device),
    )
