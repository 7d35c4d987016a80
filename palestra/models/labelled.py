"""The shipped models of labelled items: a classifier and a regressor, with any network by name or of one's own.

Letters: B items of a batch; K classes; D numbers to predict.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from palestra.config import Config, ConfigError, Fraction, PositiveFloat, PositiveInt
from palestra.data.items import LABEL
from palestra.games.spaces import Space, best_choice
from palestra.models.model import Model, Terms, score
from palestra.nets import NetConfig, make_net
from palestra.nets.weights import output_weights
from palestra.randomness import base_key, random_floats


def spaces_of(batch: Any) -> dict[str, Space]:
    """Return the spaces of all entries of items but their label.

    Raises ConfigError if their batch is not a mapping of tensors with a label.
    """
    if not isinstance(batch, Mapping):
        raise ConfigError.at("", f"expected items that are mappings of tensors or numbers, got {type(batch).__name__}")
    if odd := [name for name, value in batch.items() if not isinstance(value, Tensor) or value.dim() == 0]:
        expected = f"expected tensors or numbers as the entry {odd[0]!r} of items"
        raise ConfigError.at("", f"{expected}, got {type(batch[odd[0]]).__name__}")
    if LABEL not in batch or len(batch) == 1:
        expected = f"expected items with the entry {LABEL!r} and at least one other"
        raise ConfigError.at("", f"{expected}, got {', '.join(batch) or 'none'}")
    inputs = {name: value for name, value in batch.items() if name != LABEL}
    return {name: Space(tuple(value.shape[1:]), value.dtype, padded=False) for name, value in inputs.items()}


def class_fault(num_classes: int, batch: Any) -> tuple[int, str] | None:
    """Return the place of an item of a batch whose label is no class, and what it has; None if all are classes."""
    label = batch.get(LABEL) if isinstance(batch, Mapping) else None
    if not isinstance(label, Tensor):
        return 0, f"no entry {LABEL!r} that is a number"
    if label.dtype != torch.int64 or label.dim() != 1:
        kind = str(label.dtype).removeprefix("torch.")
        return 0, f"a label of {kind} {tuple(label.shape[1:])}; expected an integer, int64, as the number of a class"
    if not (wrong := (label < 0) | (label >= num_classes)).any():
        return None
    place = int(wrong.nonzero()[0])
    return place, f"the label {int(label[place])}; expected 0 to {num_classes - 1} (model.num_classes is {num_classes})"


class LabelledConfig(Config):
    """Base of the configs of models that learn the entry `label` of items from all others."""

    def build(self, spaces: Mapping[str, Space], seed: int) -> "LabelledModel":
        """Make the model, with the network's weights by the seed. spaces: of all entries but the label."""
        raise NotImplementedError


class LabelledModel(Model):
    """A network that maps all entries of an item but its label to outputs.

    spaces: of these entries, which are its attribute, too. num_outputs: of the network. seed: of its weights.
    """

    def __init__(self, config: Any, spaces: Mapping[str, Space], num_outputs: int, seed: int) -> None:
        super().__init__(config)
        self.spaces, self.names = dict(spaces), tuple(spaces)
        self.net = make_net(config.net, dict(spaces), num_outputs, base_key(seed, "model"))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.net({name: batch[name] for name in self.names})

    def output_weights(self) -> list[str]:
        """Name the weights that make the outputs; all others are the body (palestra.nets.weights.output_weights)."""
        return [f"net.{name}" for name in output_weights(self.net)]


class ClassifierConfig(LabelledConfig):
    usual: ClassVar = {"label_smoothing": 0.0, "class_weights": None}

    name: Literal["classifier"]
    """predicts to which of several classes an item belongs"""
    net: NetConfig
    """the network, with an output for each class"""
    num_classes: Annotated[PositiveInt, Field(ge=2)]
    """how many classes there are; labels are 0, 1, ..."""
    label_smoothing: Fraction
    """share of the probability that is spread over all classes (Szegedy et al. 2016); 0.0: none"""
    class_weights: list[PositiveFloat] | None
    """how much an item of each class counts in the loss; null: all alike"""

    def build(self, spaces: Mapping[str, Space], seed: int) -> "Classifier":
        return Classifier(self, spaces, self.num_classes, seed)


class Classifier(LabelledModel):
    """Learns by cross-entropy. Items have int64 labels, batches (B,)."""

    scores = (
        score("accuracy", "share of items whose class is found", "share", better="high"),
        score("loss", "mean cross-entropy of an item", "nat", better="low"),
    )

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Terms:
        label = batch[LABEL]
        entropy = functional.cross_entropy(
            outputs, label, reduction="none", label_smoothing=self.config.label_smoothing
        )
        terms = {"loss_label": entropy, "accuracy": (outputs.argmax(dim=1) == label).float()}
        if self.config.class_weights is not None:
            terms["weight"] = torch.tensor(self.config.class_weights, device=label.device)[label]
        return terms

    def evaluation_step(self, batch: Mapping[str, Tensor]) -> Terms:
        outputs, label = self(batch), batch[LABEL]
        entropy = functional.cross_entropy(outputs, label, reduction="none")
        scores = {"accuracy": (outputs.argmax(dim=1) == label).float(), "loss": entropy}
        return scores | {"outputs": outputs, "label": label}

    def predict(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the likeliest class of each item, `class` (B,), and the `probability` of every class (B, K)."""
        logits = self(batch).float()
        return {"class": logits.argmax(dim=1), "probability": logits.softmax(dim=1)}

    def select_action(self, observation: Mapping[str, Tensor], legal: Tensor) -> Tensor:
        """Return the likeliest class in each of B worlds that is a legal action. legal: bool (B, K)."""
        return best_choice(self(observation), legal)

    def sample_action(self, observation: Mapping[str, Tensor], legal: Tensor, keys: Tensor) -> Tensor:
        """Draw a class in each of B worlds among the legal actions, as probable as it is among these."""
        logits = self(observation).double()
        sums = logits.masked_fill(~(legal | ~legal.any(dim=1, keepdim=True)), -torch.inf).softmax(dim=1).cumsum(dim=1)
        return torch.searchsorted(sums, random_floats(keys, 1) * sums[:, -1:], right=True).squeeze(1)


class RegressorConfig(LabelledConfig):
    usual: ClassVar = {"num_outputs": 1, "loss": "squared", "huber_delta": None}

    name: Literal["regressor"]
    """predicts numbers"""
    net: NetConfig
    """the network, with an output for each number"""
    num_outputs: PositiveInt
    """how many numbers an item's label has"""
    loss: Literal["squared", "absolute", "huber"]
    """of the error in each number"""
    huber_delta: PositiveFloat | None
    """above it the Huber loss grows linearly; null with any other loss"""

    def build(self, spaces: Mapping[str, Space], seed: int) -> "Regressor":
        return Regressor(self, spaces, self.num_outputs, seed)


class Regressor(LabelledModel):
    """Learns by the error of its predictions. Items have float32 labels, batches (B,) or (B, D)."""

    scores = (
        score("loss", "mean loss of an item", "loss", better="low"),
        score("absolute_error", "mean absolute error of an item", "label", better="low"),
    )

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Terms:
        predicted, label = outputs, batch[LABEL].reshape(outputs.shape).to(outputs.dtype)
        match self.config.loss:
            case "squared":
                loss = functional.mse_loss(predicted, label, reduction="none")
            case "absolute":
                loss = functional.l1_loss(predicted, label, reduction="none")
            case _:
                loss = functional.huber_loss(predicted, label, reduction="none", delta=self.config.huber_delta)
        return {"loss_label": loss.mean(dim=1), "absolute_error": (predicted - label).abs().mean(dim=1)}

    def evaluation_step(self, batch: Mapping[str, Tensor]) -> Terms:
        outputs = self(batch)
        terms = self.loss(outputs, batch)
        scores = {"loss": terms["loss_label"], "absolute_error": terms["absolute_error"]}
        return scores | {"outputs": outputs, "label": batch[LABEL]}
