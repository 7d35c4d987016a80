"""A model that learns from data: what it computes, what it is to make small, and by which scores it is judged.

Letters: B items of a batch.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from palestra.config import Config, ConfigError, UserConfig, check, import_path
from palestra.config.errors import shown
from palestra.runtime.scores import SEAT, DeclaredScore

Keys = Config  # of a model; a class of its own names them `Config`
Terms = dict[str, Tensor]
WEIGHT = "weight"  # the entry of terms and of an evaluation's numbers that says how much each item counts


def score(name: str, meaning: str, unit: str, better: str) -> DeclaredScore:
    """Declare a score of a model. unit: what it is counted in; a "share" lies between 0 and 1. better: high or low."""
    if better not in ("high", "low"):
        raise ValueError(f"expected high or low, got {better!r}")
    high, low = ((SEAT,), ()) if better == "high" else ((), (SEAT,))
    return DeclaredScore(name=name, meaning=meaning, unit=unit, high_for=high, low_for=low, shown=True)


class Model(nn.Module):
    """Base of models that learn from data.

    config: an object of the class's `Config`, or a mapping of its keys.

    Must be written: `forward` and `loss`. May be: `training_step`, `evaluation_step` with `scores`, `predict`;
    `select_action` and `sample_action`, of a model that plays; `output_weights`, where the outputs are not made by the
    last linear layer (palestra.nets.weights).

    Config: the model of its keys, a UserConfig. scores: what `evaluation_step` gives, declared by `score`; of a model
    that declares none the loss is its score. per_item: the entries of a batch that have a row for each item; None: they
    are found.
    """

    per_item: ClassVar[tuple[str, ...] | None] = None
    learner: Any = None  # makes its opt steps, where a trainer has it (palestra.models.learning)
    Config: ClassVar[type[Keys]] = UserConfig
    scores: ClassVar[tuple[DeclaredScore, ...]] = (score("loss", "mean loss of an item", "loss", better="low"),)

    def __init__(self, config: Keys | Mapping[str, Any]) -> None:
        super().__init__()
        self.config: Any = keys_of(type(self), config)

    @abstractmethod
    def forward(self, batch: Any) -> Any:
        """Compute the outputs for a batch, as the data set collates it."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Any) -> Terms:
        """Return named terms, one number per item each, (B,): those named loss_* add up to what is made small.

        All others are recorded. An entry `weight`, (B,), says how much each item counts, such as its number of tokens.
        A term without the axis of items, as of a contrastive loss, stands for the whole batch.
        """

    def training_step(self, batch: Any) -> Terms:
        """Return the terms of a batch; gradients flow from them."""
        return self.loss(self(batch), batch)

    def evaluation_step(self, batch: Any) -> Terms:
        """Return the numbers per item, (B,), of which the scores are the means; `weight` as in `loss`.

        Metrics of an evaluation take two further entries: `outputs` and `label`, (B, ...).
        """
        terms = self.loss(self(batch), batch)
        loss: Any = sum(term for name, term in terms.items() if name.startswith("loss_"))
        return {"loss": loss, **({WEIGHT: terms[WEIGHT]} if WEIGHT in terms else {})}

    def predict(self, batch: Any) -> Any:
        """Return what is told of each item where the model is used: tensors (B, ...), alone or in dicts and tuples."""
        return self(batch)

    def state_dict(self, *arguments: Any, optimizers: bool = False, **named: Any) -> Any:
        """Return the weights by name, as torch does; with `optimizers` also the state by which their learning goes on.

        Raises RuntimeError for `optimizers` of a model that no trainer has.
        """
        weights = super().state_dict(*arguments, **named)
        return {"weights": weights, "learner": self._require_learner().state_dict()} if optimizers else weights

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, with or without optimizers. Raises RuntimeError for what does not fit."""
        if "learner" not in state:
            self.load_state_dict(state)
            return
        learner = self._require_learner()
        self.load_state_dict(state["weights"])
        learner.load_state_dict(state["learner"])

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: all but the learner, whose weights are those of this model."""
        return self.__dict__ | {"learner": None}

    def _require_learner(self) -> Any:
        if self.learner is None:
            raise RuntimeError("expected a model of a trainer, which has optimizers, got one without")
        return self.learner

    def select_action(self, observation: Mapping[str, Tensor], legal: Tensor) -> Tensor:
        """Return the action in each of B worlds, without chance. legal: bool (B, flags)."""
        raise NotImplementedError(f"{type(self).__name__} has no select_action, by which a model plays")

    def sample_action(self, observation: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        """Draw the action in each of B worlds, by the keys alone: int64 (B,). legal: bool (B, flags)."""
        raise NotImplementedError(f"{type(self).__name__} has no sample_action, by which a model plays")


def keys_of(kind: type[Model], config: Keys | Mapping[str, Any]) -> Keys:
    """Return the keys of a model as an object of its `Config`. Raises ConfigError for keys that do not fit."""
    if isinstance(config, Keys):
        return config
    if not isinstance(config, Mapping):
        expected = f"expected a mapping of the keys of {kind.__name__}, or an object of its Config"
        raise ConfigError.at("model", f"{expected}, got {shown(config)}")
    try:
        name = import_path(kind)
    except ValueError:  # of a notebook, or inside a function
        name = f"{kind.__module__}:{kind.__qualname__}"
    return check({"name": name, **config}, kind.Config)
