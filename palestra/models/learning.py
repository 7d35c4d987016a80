"""How the weights of a model learn: groups with an optimizer each, clipping, precision, and an average of the weights.

Letters: P weights of a vector.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.graph import increment_version

from palestra.config import Config, Decay, InBranch, PositiveFloat, PositiveInt
from palestra.config.errors import listed
from palestra.data.order import AnyOrderConfig
from palestra.models.gradients import Belongs, find_gradient, num_items, said_by
from palestra.models.groups import Group, GroupConfig, Vector, groups_of
from palestra.models.model import Model, Terms
from palestra.optimizers import Optimizer
from palestra.randomness import restored_torch_states
from palestra.runtime.scores import SEAT
from palestra.schedules import Schedule, read_schedule, successor

Mean = Callable[[Tensor, Mapping[str, Any], Tensor | float], tuple[Tensor, dict[str, Any]]]
"""gives the mean over replicas of a gradient and of metrics, by the weight of this one (palestra.scaling.replica)"""


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers of some tensors as one vector: float32, or float64 if a tensor is."""
    dtype = torch.float32
    for each in tensors:
        dtype = torch.promote_types(dtype, each.dtype)
    return torch.cat([each.detach().flatten().to(dtype) for each in tensors])


def take_mean(mean: Mean, vectors: Sequence[Vector], terms: Terms, weight: Tensor | float) -> Terms:
    """Give vectors the mean of their gradients over replicas, and return that of the terms.

    weight: of this replica. A weight that a term reaches in any replica counts as reached in all. What is drawn from
    the global generators afterwards does not depend on what other replicas have drawn meanwhile.
    """
    gradients, flags = (
        [vector.gradient for vector in vectors],
        [each for vector in vectors for each in vector.unreached],
    )
    reached = torch.tensor(flags, device=gradients[0].device).logical_not()
    with restored_torch_states():
        found, terms = mean(joined([*gradients, reached]), terms, weight)  # (P + W,)
    *parts, shares = found.split([*map(len, gradients), len(flags)])
    are_unreached = iter((shares == 0).tolist())
    for vector, part in zip(vectors, parts, strict=True):
        vector.gradient.copy_(part)
        vector.unreached = [next(are_unreached) for _ in vector.parameters]
    return terms


# ---- what a run must say -----------------------------------------------------------------------------


class EMAConfig(Config):
    """An exponential moving average of the weights."""

    decay: Decay
    """share of the average that stays at each opt step"""


class LearningConfig(Config):
    """How a model learns from its items."""

    usual: ClassVar = {
        "order": "shuffled",
        "batch_size": 64,
        "last_batch": "keep",
        "seeding": "per_item",
        "num_microbatches": 1,
        "groups": [{}],
        "max_grad_norm": None,
        "ema": None,
        "precision": "float32",
    }

    order: Annotated[AnyOrderConfig | None, InBranch.FIXED]
    """in which order an epoch reads the items of data.train; null with a loader of your own, which makes batches"""
    batch_size: Annotated[PositiveInt | None, InBranch.FIXED]
    """items of an opt step, in each replica; null with a loader of your own"""
    last_batch: Annotated[Literal["keep", "drop"] | None, InBranch.FIXED]
    """what becomes of the last batch of an epoch where it is smaller; null with a loader of your own"""
    seeding: Annotated[Literal["per_item"] | None, InBranch.FIXED]
    """per_item: the generators of Python, NumPy and PyTorch are seeded by seed, epoch and item before an item is read;
    null: nothing is seeded, and an item that draws random numbers is an error"""
    num_microbatches: PositiveInt
    """in how many pieces the gradient of a batch is computed, one after the other; it changes rounding alone"""
    groups: Annotated[list[GroupConfig], Field(min_length=1), InBranch.SAME_PART]
    """the weights that learn, by pattern; each is in exactly one group"""
    max_grad_norm: PositiveFloat | None
    """the gradient of all weights is scaled down to this norm if it is longer; null: never"""
    ema: Annotated[EMAConfig | None, InBranch.SAME_PART]
    """an average of the weights beside them, with which evaluations and exports may go; null: none"""
    precision: Literal["float32", "bfloat16", "float16"]
    """of the model's computations; weights and gradients stay in their own; float16, with a loss scale, needs a GPU"""


class LearnsBy(Protocol):
    """The config of a `Learner`: LearningConfig, or another that has these keys."""

    num_microbatches: int
    groups: list[GroupConfig]
    max_grad_norm: float | None

    @property
    def ema(self) -> EMAConfig | None: ...

    @property
    def precision(self) -> str: ...


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass that computes in a precision."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, getattr(torch, precision))


# ---- an opt step -------------------------------------------------------------------------------------


class LossScale:
    """The factor of a loss by which small gradients survive in float16 (Micikevicius et al. 2018).

    A gradient that overflows halves it, and its step is left out; many steps without one double it.

    value: float32 (). num_steps: without an overflow, since it was doubled or halved.
    """

    growth_interval = 2000  # steps
    smallest = 2.0**-14  # that is of use: float16 holds gradients of 10**9 with it

    def __init__(self, device: torch.device) -> None:
        self.value, self.num_steps = torch.full((), 2.0**16, device=device), 0

    def update(self, has_overflowed: bool) -> None:
        """Take note of a step."""
        self.num_steps = 0 if has_overflowed else self.num_steps + 1
        if has_overflowed or self.num_steps == self.growth_interval:
            self.value *= 0.5 if has_overflowed else 2.0
            self.num_steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": float(self.value), "num_steps": self.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.value.fill_(state["value"])
        self.num_steps = state["num_steps"]


class Learner:
    """Makes the opt steps of a model. For callbacks it is a player, by the name `model`, with one net of that name.

    A weight with `requires_grad=False` is left alone; tied weights count once. A weight that no term of a batch reaches
    stays as it is.

    opt_steps: those of the model so far, by which schedules go; the trainer counts them. mean: gives the mean of a
    gradient over the replicas of a run; None: there is one. num_items: of the batch from which it learns, by which a
    step along a loss of one's own counts in the mean; 0 where no gradient of its own counts. own_loss: that of the last
    batch before the mean. dealt: a batch, and which of its parts belong to items.
    """

    name = SEAT
    mean: Mean | None = None
    num_items: int = 0
    own_loss: Tensor | None = None
    dealt: tuple[Any, Belongs | None] = (None, None)

    def __init__(self, model: Model, config: LearnsBy) -> None:
        self.model, self.config = model, config
        self.opt_steps = 0
        parameters = dict(model.named_parameters())
        group_of = groups_of(model, config.groups)
        self.groups: list[Group] = []
        for place, each in enumerate(config.groups):
            own = [parameters[name] for name, number in group_of.items() if number == place]
            kinds = dict.fromkeys((weight.dtype, weight.device) for weight in own)
            vectors = [Vector([w for w in own if (w.dtype, w.device) == kind]) for kind in kinds]
            made = [(vector, each.optimizer.build(vector.weights)) for vector in vectors]
            self.groups.append(Group(each.weights, each.learning_rate, made))
        self.vectors = [vector for group in self.groups for vector, _ in group.vectors]
        self.weights = [weight for vector in self.vectors for weight in vector.parameters]
        self.averages = [vector.weights.detach().clone() for vector in self.vectors] if config.ema else []
        self.device = self.weights[0].device
        self.scale = LossScale(self.device) if config.precision == "float16" else None
        self.nets, self.optimizers = {SEAT: model}, {SEAT: self}
        model.learner = self
        self.changed_schedules: dict[str, Schedule] = {}
        self._frozen: list[tuple[Tensor, list[Tensor]]] = []  # the masks of callbacks, each with that of every vector

    def context(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass, which sets its precision."""
        return computing_in(self.config.precision, self.device)

    def opt_step(self, batch: Any) -> Terms:
        """Learn from a batch, and return the means of the terms of its loss, with `loss` and `grad_norm`.

        Raises TermsError.
        """
        belongs = self.dealt[1] if self.dealt[0] is batch else said_by(self.model)
        # losses are sums over items here, and means elsewhere: so they are scaled as elsewhere
        scale = None if self.scale is None else self.scale.value / num_items(batch, belongs)
        num = self.config.num_microbatches
        found = find_gradient(self.model, batch, num, self.weights, self.context, scale, belongs)
        divisor: Tensor | float = (found.total if scale is None else found.total * scale) if found.means else 1.0
        return self._descend(self.groups, found.sums, divisor, found.means, found.total if self.num_items else 0.0)

    def step(self, loss: Tensor, weights: str | list[str]) -> Terms:
        """Make a step of one group alone, along the gradient of a loss, for a `train_step` of your own.

        loss: (). weights: the group's pattern. Returns the norm of the gradient. Raises ValueError for another pattern.
        """
        if not (groups := [group for group in self.groups if group.weights == weights]):
            known = listed(str(group.weights) for group in self.groups)
            raise ValueError(f"step: expected the pattern of a group ({known}), got {weights!r}")
        parameters = [each for vector, _ in groups[0].vectors for each in vector.parameters]
        divisor = torch.ones((), device=self.device) if self.scale is None else self.scale.value
        gradient = torch.autograd.grad(loss if self.scale is None else loss * divisor, parameters, allow_unused=True)
        metrics = self._descend(groups, gradient, divisor, {}, self.num_items)
        increment_version(parameters)  # so that autograd refuses a loss that was computed with the weights before
        return metrics

    @torch.no_grad()
    def _descend(
        self,
        groups: Sequence[Group],
        sums: Sequence[Tensor | None],
        divisor: Tensor | float,
        terms: Terms,
        weight: Tensor | float,
    ) -> Terms:
        """Step along a gradient, one tensor for each weight of some groups, that is to be divided.

        weight: of the gradient and of the terms in the mean over replicas. Returns the terms, with the norm.
        """
        stepping = [each for group in groups for each in group.vectors]
        start = 0
        for vector, _ in stepping:
            vector.take_up()
            vector.take(sums[start : start + len(vector.parameters)])
            start += len(vector.parameters)
            vector.gradient.div_(divisor)
        if self.mean is not None:
            self.own_loss = terms.get("loss", self.own_loss)
            terms = take_mean(self.mean, [vector for vector, _ in stepping], terms, weight)
        for vector, optimizer in stepping if self._frozen else ():
            vector.gradient.copy_(optimizer.without_frozen(vector.gradient))
        norm, metrics = self._clip([vector for vector, _ in stepping]), dict(terms)
        if self.scale is not None:
            metrics["loss_scale"] = self.scale.value.clone()
            has_overflowed = not bool(norm.isfinite())
            metrics["skipped_steps"] = torch.tensor(float(has_overflowed))
            self.scale.update(has_overflowed)
            if has_overflowed:
                return metrics
        for group in groups:
            rate = group.learning_rate(self.opt_steps)
            for vector, optimizer in group.vectors:
                if all(vector.unreached):
                    continue
                optimizer.learning_rate.fill_(rate)
                if (unreached := vector.mask(vector.unreached) if any(vector.unreached) else None) is not None:
                    optimizer.freeze(unreached)
                optimizer.step(vector.gradient)
                if unreached is not None:
                    optimizer.thaw(unreached)
                vector.hand_over()
        if self.config.ema is not None:
            for average, vector in zip(self.averages, self.vectors, strict=True):
                if any(vector is each for each, _ in stepping):
                    average.lerp_(vector.weights.detach(), 1.0 - self.config.ema.decay)
        return metrics | {"grad_norm": norm}

    def _clip(self, vectors: Sequence[Vector]) -> Tensor:
        """Scale the gradient of vectors down to `max_grad_norm`; returns the norm that it had."""
        gradients = [vector.gradient for vector in vectors]
        norms = [torch.linalg.vector_norm(each).float() for each in gradients]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        if self.config.max_grad_norm is not None:
            factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for each in gradients:
                each.mul_(factor)
        return norm

    def unreached(self) -> list[str]:
        """Return the names of the weights that no term of the last batch has reached."""
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        flags = (is_unreached for vector in self.vectors for is_unreached in vector.unreached)
        return [names[id(weight)] for weight, is_unreached in zip(self.weights, flags, strict=False) if is_unreached]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the model has the averages of its weights, where there are averages."""
        for vector in self.vectors:
            vector.take_up()
        held = [vector.weights.detach().clone() for vector in self.vectors] if self.averages else []
        self.take_averages()
        try:
            yield
        finally:
            for vector, weights in zip(self.vectors, held, strict=False):
                vector.weights.data.copy_(weights)
                vector.hand_over()

    def take_averages(self) -> None:
        """Give the model the averages of its weights, where there are averages."""
        for vector, average in zip(self.vectors, self.averages, strict=False):
            vector.weights.data.copy_(average)
            vector.hand_over()

    # ---- what callbacks use, as of a player ----------------------------------------------------------------

    def rates(self) -> dict[str, float]:
        """Return the present learning rate of each group, by its number where there are several."""
        if len(rates := [group.learning_rate(self.opt_steps) for group in self.groups]) == 1:
            return {"learning_rate": rates[0]}
        return {f"learning_rate/{number}": rate for number, rate in enumerate(rates)}

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules that `change_schedule` can change, by their paths below `learning`."""
        return {f"groups.{number}.learning_rate": group.learning_rate for number, group in enumerate(self.groups)}

    def change_schedule(self, key: str, schedule: Schedule | Mapping[str, Any]) -> None:
        """Replace a schedule, as `Player.change_schedule` does; `key` is its path below `learning`."""
        schedule = successor(self.schedules(), key, schedule)
        number = list(self.schedules()).index(key)
        self.groups[number] = self.groups[number]._replace(learning_rate=schedule)
        self.changed_schedules[key] = schedule

    def freeze(self, mask: Tensor) -> None:
        """Freeze weights until `thaw` gets the same mask object.

        mask: bool, of all weights of the model as one vector, in their order there; each is in it as a whole.
        """
        parameters = list(self.model.parameters())
        parts = mask.split([p.numel() for p in parameters])
        is_in = {id(p): bool(part.any()) for p, part in zip(parameters, parts, strict=True)}
        masks = [vector.mask([is_in[id(p)] for p in vector.parameters]) for vector in self.vectors]
        for optimizer, own in zip(self._every_optimizer(), masks, strict=True):
            optimizer.freeze(own)
        self._frozen.append((mask, masks))

    def thaw(self, mask: Tensor) -> None:
        """Undo `freeze` of the same mask object."""
        masks = next(own for whole, own in self._frozen if whole is mask)
        for optimizer, own in zip(self._every_optimizer(), masks, strict=True):
            optimizer.thaw(own)
        self._frozen = [each for each in self._frozen if each[0] is not mask]

    def _every_optimizer(self) -> list[Optimizer]:
        return [optimizer for group in self.groups for _, optimizer in group.vectors]

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizers, averages and schedules; the weights are the model's, but for rounded ones."""
        return {
            "opt_steps": self.opt_steps,
            "optimizers": [[optimizer.state_dict() for _, optimizer in group.vectors] for group in self.groups],
            "averages": list(self.averages),
            "unrounded": [vector.weights.detach() for vector in self.vectors if vector.is_rounded],
            "scale": None if self.scale is None else self.scale.state_dict(),
            "schedules": {key: schedule.state_dict() for key, schedule in self.changed_schedules.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.opt_steps = state["opt_steps"]
        for group, states in zip(self.groups, state["optimizers"], strict=True):
            for (_, optimizer), own in zip(group.vectors, states, strict=True):
                optimizer.load_state_dict(own)
        self.load_averages(state["averages"])
        for vector, weights in zip((each for each in self.vectors if each.is_rounded), state["unrounded"], strict=True):
            vector.weights.data.copy_(weights)
            vector.take_up()
        if self.scale is not None and state["scale"] is not None:  # a branch may begin with float16
            self.scale.load_state_dict(state["scale"])
        for key, schedule in state["schedules"].items():
            self.change_schedule(key, read_schedule(schedule))

    def load_averages(self, averages: Sequence[Tensor]) -> None:
        """Take over averages of weights, one for each vector."""
        for average, value in zip(self.averages, averages, strict=True):
            average.copy_(value)
