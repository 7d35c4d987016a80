"""Checks that a model of your own keeps the promises of Model.

Letters: B items of a batch; K actions.
"""

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from palestra.config import ConfigError
from palestra.data.items import joined_items
from palestra.models.gradients import find_gradient, num_items, pieces
from palestra.models.model import Model
from palestra.models.scoring import ItemScores
from palestra.nets.weights import evaluation_mode
from palestra.randomness import restored_global_states
from palestra.testing.tryout import CannotGoOn, TryOut

NUM_ITEMS = 6
RTOL, ATOL = 1e-3, 1e-5  # between numbers of which rounding alone may differ


def check_model(cls: type[Model], config: Mapping[str, Any], data: Any) -> None:
    """Check what a class computes for the first items of a data set, in evaluation mode.

    It checks the terms of its loss, and that the gradient is the same in one piece and in several; that it gives the
    scores that it declares, and the same ones for each item alone; that it writes nothing to the batch; that a fresh
    model with its `state_dict` computes the same bits; and, if it has them, that `select_action` and `sample_action`
    choose legal actions, the latter by the keys alone. They get the batch as the observation.

    config: its keys. data: map-style, with a `collate` if it has one. Raises ConfigError with a line for every fault,
    which begins with the name of the method.
    """
    with restored_global_states():
        tryout = _TryOut(cls, config, data)
        with suppress(CannotGoOn):
            tryout.check()
    ConfigError.require_none(tryout.faults)


class _TryOut(TryOut):
    """Tries one model on one batch."""

    def __init__(self, cls: type[Model], config: Mapping[str, Any], data: Any) -> None:
        super().__init__(cls.__name__)
        self.cls, self.config = cls, config
        items = [data[index] for index in range(min(NUM_ITEMS, len(data)))]
        self.batch = (getattr(data, "collate", None) or joined_items)(items)

    def check(self) -> None:
        model = self.call("__init__", self.cls, self.config)
        before = deepcopy(self.batch)
        with evaluation_mode([model]):
            self.try_loss(model)
            with torch.no_grad():
                self.try_scores(model)
                self.try_state(model)
                self.try_actions(model)
        if not _equal(before, self.batch):
            self.fault("loss", "expected the batch to stay as it is, got another one")

    def try_loss(self, model: Model) -> None:
        weights = [each for each in model.parameters() if each.requires_grad]
        terms = self.call("loss", model.training_step, self.batch)
        nums = (1, 1, 1 if any(term.dim() == 0 for term in terms.values()) else 3)  # a term of the whole batch is one
        whole, again, cut = (
            self.call("loss", find_gradient, model, self.batch, num, weights, torch.enable_grad).sums for num in nums
        )
        if not _equal(whole, again):
            self.fault("loss", "expected the same gradient of the same batch in evaluation mode, got another")
        elif not _close(whole, cut):
            self.fault("loss", "expected the same gradient in one piece and in 3 (num_microbatches), got another")

    def try_scores(self, model: Model) -> None:
        whole = self.scores(model, [self.batch])
        alone = self.scores(model, pieces(self.batch, num_items(self.batch)))
        for name, values in whole.items():
            if not bool(values.isfinite().all()):
                self.fault("evaluation_step", f"expected finite numbers as the score {name!r}, got others")
            elif not torch.allclose(values, alone[name], rtol=RTOL, atol=ATOL):
                message = f"expected the same score {name!r} of an item alone and in a batch, got another"
                self.fault("evaluation_step", message)

    def scores(self, model: Model, batches: Any) -> dict[str, Tensor]:
        scores = ItemScores(model.scores)
        for batch in batches:
            self.call("evaluation_step", lambda batch=batch: scores.add(model.evaluation_step(batch), num_items(batch)))
        return {name: torch.cat(values) for name, values in scores.values.items()}

    def try_state(self, model: Model) -> None:
        fresh = self.call("__init__", self.cls, self.config).eval()
        self.call("load_state_dict", lambda: fresh.load_state_dict(model.state_dict()))
        if not _equal(model(self.batch), fresh(self.batch)):
            self.fault("state_dict", "expected a fresh model with the same state to compute the same bits, got others")

    def try_actions(self, model: Model) -> None:
        outputs = self.call("forward", model, self.batch)
        for method in ("select_action", "sample_action"):
            if getattr(self.cls, method) is getattr(Model, method):
                continue
            size, num = len(outputs), outputs.shape[1]
            legal = torch.ones(size, num, dtype=torch.bool)
            legal[:, 0] = False
            keys = (torch.arange(size),) if method == "sample_action" else ()
            chosen = [self.call(method, getattr(model, method), self.batch, legal, *keys) for _ in range(2)]
            if chosen[0].shape != (size,) or chosen[0].dtype != torch.int64:
                got = f"{str(chosen[0].dtype).removeprefix('torch.')} {tuple(chosen[0].shape)}"
                self.fault(method, f"expected actions int64 ({size},), got {got}")
            elif not torch.equal(*chosen):
                self.fault(method, "expected the same actions of the same arguments, got others")
            elif not bool(legal.gather(1, chosen[0].unsqueeze(1)).all()):
                self.fault(method, f"expected legal actions, got {chosen[0].tolist()}, of which 0 is not legal")


def _leaves(tree: Any) -> list[Any]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, Tensor)]


def _equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_leaves(one), _leaves(other), strict=True))


def _close(one: Any, other: Any) -> bool:
    return all(torch.allclose(a, b, rtol=RTOL, atol=ATOL) for a, b in zip(_leaves(one), _leaves(other), strict=True))
