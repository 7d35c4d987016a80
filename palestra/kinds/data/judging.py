"""Judges the model of a training by data sets."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from palestra.config import ConfigError, below, walk
from palestra.data.items import TensorItems
from palestra.data.loading import in_order
from palestra.data.reading import BatchKey, Unread
from palestra.data.sets import require_same_sets
from palestra.data.workers import deaths_held
from palestra.evaluation.evaluator import Watch
from palestra.models.gradients import TermsError, told
from palestra.models.gradients import num_items as items_of
from palestra.models.metrics import NotComputed, SetMetrics
from palestra.models.scoring import ItemScores
from palestra.nets.weights import evaluation_mode
from palestra.randomness import base_key, restored_global_states, seeded_global_state
from palestra.runtime.statistics import num_clusters
from palestra.training.own_judging import ModelJudging


class SetEvaluations(ModelJudging):
    """Judges a model by data sets."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        evaluations = trainer.config.evaluations
        self.configs = {each.name: each for each in evaluations}
        self._same: dict[str, Tensor | None] = {}  # by set
        self.sizes = {each.name: trainer.items_in(each.data) for each in evaluations}
        self.loaders = {
            each.name: trainer.loader_of(each.data, in_order(self.sizes[each.name]), each.batch_size)
            for each in evaluations
        }

    def num(self, name: str, is_final: bool) -> int:
        return self.sizes[name]

    def snapshot(self) -> dict[str, Any]:
        averages = list(self.trainer.learner.averages)
        return {"model": dict(self.trainer.model.state_dict()), "learner": {"averages": averages}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave, or the state of a checkpoint."""
        require_same_sets(state.get("files", {}), self.trainer.data)
        self.trainer.model.load_state_dict(state["model"])
        self.trainer.learner.load_averages(state["learner"]["averages"])

    def try_metrics(self) -> None:
        """Try the metrics of every evaluation on the first batch of its set, before anything is written.

        Raises ConfigError for those that fail, or whose results are not such as records hold and others measure by.
        """
        trainer = self.trainer
        for place, (name, config) in enumerate(self.configs.items()):
            if not config.metrics:
                continue
            with below(f"evaluations.{place}.metrics"), restored_global_states(), evaluation_mode([trainer.model]):
                metrics = SetMetrics(config.metrics)
                reader = self.loaders[name].reader
                size = min(config.batch_size, self.sizes[name])
                if isinstance(batch := reader[BatchKey(0, 0, tuple(range(size)))], Unread):
                    continue  # the evaluation tells it, with the traceback in failure.txt
                try:
                    with torch.no_grad(), trainer.learner.context():
                        numbers = trainer.model.evaluation_step(trainer.moved(batch))
                except Exception:
                    continue  # told by the evaluation, too
                try:
                    metrics.add(numbers)
                    found = metrics.results().scores
                except NotComputed:
                    continue  # perhaps because it is not the whole set
                except TermsError as error:
                    raise ConfigError.at("", f"{error}; tried on the first batch of data.{config.data}") from error
            missing = {score.name for _, score, _ in metrics.metrics if score is not None} - found.keys()
            for keys, value in walk(trainer.config):
                if getattr(value, "evaluation", None) == name and getattr(value, "measure", None) in missing:
                    expected = f"expected a number, but what {value.measure!r} computes in evaluation {name!r} is none"
                    raise ConfigError.at(".".join((*keys, "measure")), expected)

    def _clusters(self, data: str) -> Tensor | None:
        """Number the different items of a set of tensors; None if no two are equal, or that is not known."""
        if data not in self._same:
            items = self.trainer.data[data]
            self._same[data] = items.clusters() if isinstance(items, TensorItems) else None
        return self._same[data]

    def play(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        """Judge the model by all items of a set, and return the evaluation's record."""
        trainer, config = self.trainer, self.configs[name]
        same = self._clusters(config.data)
        model = trainer.model
        scores = ItemScores(trainer.model.scores, same)
        metrics = SetMetrics(config.metrics)
        num_done = 0
        key_of_draws = base_key(trainer.config.seed, f"evaluation/{name}")
        weights = trainer.learner.averaged() if config.weights == "averaged" else nullcontext()
        with weights, seeded_global_state(key_of_draws), deaths_held():
            for key, batch in self.loaders[name].batches(0):
                found = trainer.moved(batch)
                try:
                    with trainer.learner.context():
                        numbers = model.evaluation_step(found)
                    scores.add(numbers, items_of(found, trainer.belongs(self.loaders[name], key, found)))
                    metrics.add(numbers)
                except Exception as error:
                    what = f"evaluation_step of {type(model).__name__}"
                    raise told(error, what, f"evaluation {name}, {key}") from error
                num_done += len(key.items)
                watch(num_done, 0)
        try:
            of_set = metrics.results()
        except TermsError as error:
            raise told(error, "a metric", f"evaluation {name}") from error
        estimates = scores.estimates()
        pair = {
            "items": num,
            **({} if same is None else {"distinct": {"items": num_clusters(same)}}),
            "scores": {name: each.value for name, each in estimates.items()} | of_set.scores,
            "intervals": {name: [each.low, each.high] for name, each in estimates.items()},
            "extremes": scores.extremes(),
            "tables": of_set.tables,
        }
        return self.record(name, (*model.scores, *of_set.declared), pair)
