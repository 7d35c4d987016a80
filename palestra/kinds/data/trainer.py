"""Trains a model on data: its epochs are passes over the training data, and its opt steps are batches."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from palestra.config import ConfigError, below, cut, running_own
from palestra.config.errors import enumerated
from palestra.config.own_classes import names_of_ours, require_used
from palestra.data.items import TensorItems, moved
from palestra.data.loading import Batches, Dealt, Loader
from palestra.data.own_loaders import LoaderConfig, OwnLoader
from palestra.data.reading import BatchKey, DataFailed, Reader, Unread
from palestra.data.rows import RowsData
from palestra.data.sets import TRAIN, files_of, make_sets, num_items, overlaps, require_same_sets
from palestra.data.workers import deaths_held
from palestra.kinds.data.config import FitConfig
from palestra.kinds.data.judging import SetEvaluations
from palestra.kinds.data.models import start_model
from palestra.models.gradients import Belongs, ModelFailed, TermsError, found_in, said_by, sizes_of, told
from palestra.models.gradients import num_items as items_of
from palestra.models.labelled import ClassifierConfig, LabelledConfig, class_fault, spaces_of
from palestra.models.learning import Learner, LearningConfig, LossScale, joined
from palestra.models.model import Model, Terms
from palestra.nets.weights import evaluation_mode, in_evaluation, set_in_evaluation
from palestra.randomness import base_key, fold_number, restored_global_states, seeded_global_state
from palestra.recording.aggregates import Aggregates
from palestra.recording.results import Stage, Task
from palestra.run.copies import find_copy, spaces_to_store, write_copy
from palestra.run.run import Standing
from palestra.run.trained_models import make_model
from palestra.runtime.intervals import Counter, count
from palestra.runtime.scores import SEAT
from palestra.scaling.exchange import ReplicaFailed
from palestra.scaling.link import RankLost
from palestra.scaling.means import LockstepError
from palestra.scaling.replica import Replica
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder
from palestra.training.async_evaluations import make_evaluating
from palestra.training.checks import TrainingFailed
from palestra.training.training import Training, replicas_in_words

HANDED_OVER = {"handed_over_by": "set_model"}


class FitTrainer(Training):
    """Trains the model of a config on its data.

    Arguments as for Training. May be overridden: `train_step`, which learns from a batch, the hooks `before_step` and
    `after_step` around it, and what Training lists. In an epoch the hooks are called in this order: `before_epoch`; for
    each batch `before_step`, `train_step`, `after_step`; the evaluations that are due; `after_epoch`.

    model: what learns. learner: makes its opt steps; callbacks know it as the player `model`. data: the sets by name.
    step_terms: what `train_step` has returned last.

    Where the config says `model: null`, `set_model` hands the model over before `fit`.
    """

    config: FitConfig  # more exact than that of Training
    model: Model
    step_terms: Terms

    run_config = FitConfig
    rated = ("opt_steps", "items")
    recurs = "opt_steps"
    failures = (DataFailed, ModelFailed)
    is_counted = True
    opt_steps = Counter("fit")
    items = Counter("fit")
    epochs = Counter("fit")

    def _build(self) -> None:
        config = self.config
        self.data = make_sets(config.sets(), config.seed)
        self.check_of_batches = self._check_of_batches()
        self.loader = self._train_loader()
        self.batch = 0  # the number of the next one in its epoch
        self.num_batches = 0  # that all replicas have taken since the run began; the draws of a step go by it
        self.epoch_is_over = False  # and `after_epoch` not yet called
        self._belongs: dict[str, Belongs | None] = {}  # by loader
        self.terms = Aggregates(config.output.statistics)
        # losses since `fault` looked, each with this replica's own and its opt step
        self._unchecked: list[tuple[Any, Any, int, BatchKey]] = []
        self.key = fold_number(base_key(config.seed, "model/step"), 0)
        self._is_given = False  # whether `set_model` has handed the model over
        if config.model is not None:
            spaces = None
            if isinstance(config.model, LabelledConfig):
                batch = self._first_batch()
                with below(f"data.{TRAIN}"):
                    spaces = spaces_of(batch)
            self._take(make_model(config, spaces), config)

    def _take(self, model: Model, config: FitConfig) -> None:
        """Let a model learn, which a config may name. After an error everything but the model is as it was.

        Raises ConfigError, RunFolderError if it has not the weights that the run began with.
        """
        if self.run.resumed and (given := find_copy(self.run.folder.players, SEAT, HANDED_OVER)) is not None:
            tensors = given.tensors()
            try:
                model.load_state_dict(tensors)
            except RuntimeError as error:
                message = f"expected a model with the weights with which the run began, got another: {error}"
                raise RunFolderError(f"{self.run.folder.path}: {message}") from error
        if config.warm_start is not None and self.run.begins_anew():
            self.run.beginnings = [start_model(model, config.warm_start)]
        if any(map(is_lazy, (*model.parameters(), *model.buffers()))):  # as those of nn.LazyLinear are
            with seeded_global_state(base_key(config.seed, "model/lazy")):
                make_real(model, self._first_batch())
        model.to(self.device)
        if not model.training:  # else its modules keep the modes in which they were made
            model.train()
        with below("learning.groups"):
            learner = Learner(model, config.learning)
        self.run.config, self.model, self.learner, self.learners = config, model, learner, [learner]
        is_own = type(self).train_step is not FitTrainer.train_step
        own_step = f"{type(self).__module__}.{type(self).__qualname__}.train_step" if is_own else None
        self.replicas = ModelReplicas(self.replica, model, self.learner, own_step)
        self.judging = SetEvaluations(self)
        self.evaluating = make_evaluating(self.progress, self.checkpoints, self.judging)

    @classmethod
    def by_role(cls, config: FitConfig, models: Any) -> Mapping[str, Any]:
        if models is None:
            return {}
        return {SEAT: models[SEAT] if isinstance(models, Mapping) and SEAT in models else models}

    def set_model(self, role: str | Model, model: Model | None = None) -> None:
        """Let a model of your own learn, where the config says `model: null`. To be called before `fit`.

        The config takes up the model's class, if it can be imported from a module, with the keys that the model was
        made with: then any command goes on with the run. Otherwise only Python does, and hands a model over again. Its
        weights are those of checkpoint 0. role: may be left out; else "model". Raises TypeError for what is no Model,
        ValueError if the config names a model, ConfigError for one that does not fit, RuntimeError once the run has
        begun.
        """
        self.run.require_unopened("set_model")
        given = role if model is None else model
        if not isinstance(given, Model):
            raise TypeError(
                f"set_model: expected an object of a class that derives from palestra.Model, got {cut(repr(given))}"
            )
        require_used(type(given), names_of_ours(Model), "model")
        if self.config.model is not None and self.replica.leads:  # another replica has the config that the leader made
            raise ValueError(f"set_model: expected `model: null` in the config, got {self.config.model.name!r}")
        copied = self.lockstep.copy_of(SEAT, given)
        self._take(given, self.config.with_model(given))
        self.lockstep.handed_over[SEAT], self._is_given = copied, True
        if self.config.model is None:
            self.run.note_call(f"set_model({SEAT!r}, ...)")

    def require_ready(self) -> None:
        if not hasattr(self, "model"):
            if self.run.resumed:
                raise self.run.folder.not_rebuildable()
            expected = "expected a model by name, or a class of your own as package.module:Class, with its keys"
            only = "got null, which a program alone can mean, by FitTrainer(config).set_model(model)"
            raise ConfigError.at("model", f"{expected}, {only}")
        super().require_ready()
        if not self.run.resumed:
            self._try_items()
            if isinstance(self.loader, Loader):
                with restored_global_states():
                    num = len(self.loader.order(0))
                    read = lambda: self.moved(self._first_batch())  # noqa: E731
                    require_items_for_batch_norm(self.model, read, num, self.config.learning)
            self.judging.try_metrics()

    @classmethod
    def bounds(cls, config: FitConfig) -> list[str]:
        only = "model: only a program can train this, which hands a model over by FitTrainer(config).set_model(model)"
        found = overlaps(sets := make_sets(config.sets(), config.seed), config.sets())
        if isinstance(train := sets.get(TRAIN), RowsData) and train.unseen:
            found.insert(0, f"  of data.{TRAIN}: the model does not see {cut(enumerated(train.unseen), 200)}")
        return found if config.model is not None else [only, *found]

    @classmethod
    def check(cls, config: FitConfig) -> None:
        """As in Training; of a model that a program hands over nothing can be tried."""
        training = cls(config)
        if config.model is not None:
            training.require_ready()

    def before_train(self) -> None:
        """As in Training; says first which sets have rows from which the model also learns."""
        if not any(self.counts().values()):
            for line in overlaps(self.data, self.config.sets()):
                self.log(line)
        super().before_train()

    def _try_items(self) -> None:
        """Read the first item of each data set that is used, and see that workers can. Raises ConfigError."""
        for loader in {
            each.reader.name: each for each in (self.loader, *self.judging.loaders.values()) if isinstance(each, Loader)
        }.values():
            try:
                loader.first_batch()
                loader.require_sendable()
            except DataFailed as error:
                raise ConfigError.at("", str(error)) from error

    def choose_kernels(self) -> None:
        if (note := self.config.execution.loading.note()) is not None:
            self.run.display.warn(note)

    def _begin_run(self, folder: RunFolder) -> None:
        if self._is_given:
            write_copy(folder.players, SEAT, HANDED_OVER, self.model.state_dict())

    def _first_batch(self) -> Any:
        """Read the batch of one item, or the first one of a loader of the user's own. Raises ConfigError."""
        try:
            return self.loader.first_batch()
        except DataFailed as error:
            raise ConfigError.at("", str(error)) from error

    def _check_of_batches(self) -> Callable[[Any], tuple[int, str] | None] | None:
        """Return what finds labels that the model does not know. Raises ConfigError for those that lie in tensors."""
        model = self.config.model
        if not isinstance(model, ClassifierConfig):
            return None
        for name in dict.fromkeys([TRAIN, *(each.data for each in self.config.evaluations)]):  # others may lack labels
            data = self.data.get(name)
            if isinstance(data, TensorItems) and (fault := class_fault(model.num_classes, data.entries)) is not None:
                raise ConfigError.at(f"data.{name}", f"item {fault[0]} has {fault[1]}")
        return partial(class_fault, model.num_classes)

    def items_in(self, name: str) -> int:
        """Return how many items a data set has."""
        with below(f"data.{name}"):
            return num_items(self.data[name], self.config.sets()[name])

    def _train_loader(self) -> Batches:
        config, learning = self.config, self.config.learning
        train = config.data[TRAIN]
        if isinstance(train, LoaderConfig):
            with below(f"data.{TRAIN}"):
                loader = OwnLoader(train, f"data.{TRAIN}", config.seed, self.warn)
            loader.check = self.check_of_batches
            return loader
        assert learning.order is not None and learning.batch_size is not None  # noqa: PT018
        num = self.items_in(TRAIN)
        if learning.last_batch == "drop" and num < learning.batch_size:
            why = f"because the {num} items of data.{TRAIN} make no whole batch (learning.batch_size)"
            raise ConfigError.at("learning.last_batch", f"expected 'keep', {why}, got 'drop'")
        with below("learning.order"):
            order = learning.order.build(self.data[TRAIN], num, config.seed)
        return self.loader_of(TRAIN, order.indices, learning.batch_size, learning.last_batch == "drop")

    def loader_of(
        self, name: str, order: Callable[[int], torch.Tensor], batch_size: int, drop_last: bool = False
    ) -> Loader:
        data, config = self.data[name], self.config
        collate = getattr(data, "collate", None)
        reader = Reader(f"data.{name}", data, collate, config.learning.seeding, config.seed)
        reader.check = self.check_of_batches
        return Loader(reader, config.execution.loading, order, batch_size, drop_last, pin=self.device.type == "cuda")

    # ---- the stages of a run -----------------------------------------------------------------------------

    @classmethod
    def train_stage(cls, config: FitConfig) -> Stage:
        size = config.learning.batch_size
        batches = "the batches of its loader" if size is None else f"batches of {size} items"
        what = f"in each epoch the model learns from data.{TRAIN}, in {batches}"
        if (num := config.num_replicas) > 1:
            in_all = "" if size is None else f", {num * size:,} items"
            what += f"; an opt step learns from {num} batches{in_all}, one in each of {replicas_in_words(config)}"
        return Stage(what, config.stop.after, config.stop.unit)

    @classmethod
    def test_stage(cls, config: FitConfig) -> Stage:
        names = ", ".join(each.name for each in config.evaluations)
        return Stage(f"the final evaluations: {names}" if names else "no evaluation", None, "")

    @contextmanager
    def train_context(self) -> Iterator[None]:
        """As in Training; a worker that dies while the model computes is told where the next batch is awaited."""
        with super().train_context(), deaths_held():
            yield

    @contextmanager
    def test_context(self) -> Iterator[None]:
        """As in Training; the model is in evaluation mode, and afterwards in the mode that it had."""
        with super().test_context(), evaluation_mode([self.model]):
            yield

    def _train(self) -> None:
        """One epoch: the model learns from the batches that it has not yet seen in it."""
        self.run.time_log.switch("data")
        place = self.replica
        for dealt in self.loader.dealt(self.epochs, self.batch, place.index, place.num, self._size_of):
            self.run.time_log.switch("update")
            self.before_step()
            self._learn_from(dealt)
            if self.opt_steps == 0 and (names := self.learner.unreached()):
                line = f"no term of the loss reaches {', '.join(names)}"
                self.run.display.warn(f"{line}; a weight stays as it is while none does")
                self.note("unreached", line)
            num_batches = len(dealt.sizes)
            self.batch, self.num_batches = self.batch + num_batches, self.num_batches + num_batches
            count(self, opt_steps=1, items=sum(dealt.sizes))
            count(self.learner, opt_steps=1)
            self.epoch_counts["updates"] += 1
            self.after_step()
            self.safe_point()
            self.run.time_log.switch("data")
        self.batch = 0

    def _learn_from(self, dealt: Dealt) -> None:
        """Make an opt step, and note what it has come to."""
        self.replicas.begin(dealt.num_items)
        try:
            with seeded_global_state(fold_number(self.key, self.num_batches + self.replica.index)):
                batch = self.moved(dealt.batch)
                self.learner.dealt = (batch, self.belongs(self.loader, dealt.key, batch))
                terms = self.train_step(batch, dealt.key.number)
            own = {name: term.detach() if isinstance(term, torch.Tensor) else term for name, term in terms.items()}
            self.step_terms = self.replicas.end(own)
            self.terms.add(self.step_terms)
        except (TrainingFailed, LockstepError, ReplicaFailed, RankLost):
            raise
        except Exception as error:
            raise told(error, type(self.model).__name__, dealt.key) from error
        own_loss = own.get("loss", 0.0) if self.learner.own_loss is None else self.learner.own_loss
        self._unchecked.append((self.step_terms.get("loss", 0.0), own_loss, self.opt_steps, dealt.key))

    def belongs(self, loader: Batches, key: BatchKey, batch: Any) -> Belongs | None:
        """Return which parts of a batch belong to items, as the model says, or batches of two sizes tell.

        None: the first tensor has a row for each.
        """
        num = self.config.learning.num_microbatches if loader is self.loader else 1
        if self.model.per_item is not None or not isinstance(loader, Loader):
            return said_by(self.model)
        with suppress(TermsError):  # of a batch in which nothing counts items
            if num == 1 and items_of(batch) == len(key.items):
                return None
        name = loader.reader.name
        if name not in self._belongs:
            read = [loader.reader[BatchKey(0, 0, items)] for items in ((0,), (0, 0))]
            self._belongs[name] = None if any(isinstance(each, Unread) for each in read) else found_in(*read)
        return self._belongs[name]

    def _size_of(self, key: BatchKey, batch: Any) -> int:
        """Count the items of a batch. Raises ModelFailed."""
        try:
            return len(key.items) or items_of(batch)
        except TermsError as error:
            raise told(error, "", key) from error

    def _end_epoch(self) -> None:
        """Do what is due, of which `after_epoch` comes after the evaluations, and before record and checkpoint."""
        self.epoch_is_over = True
        self.safe_point()
        self._before_record()  # if nothing was due
        self.lockstep.agree_on_end()
        if self.end_reason is not None:
            self.safe_point()

    def _before_record(self) -> None:
        if self.epoch_is_over:
            self.epoch_is_over = False
            self.after_epoch()

    def before_step(self) -> None:
        for callback in self.callbacks:
            callback.before_step(self, self.learner)

    def train_step(self, batch: Any, index: int) -> Terms:
        """Learn from a batch of the training data, and return what is recorded. index: its number in the epoch.

        The global generator of torch is seeded by the run's seed and the number of the batch since the run began, for
        dropout and the like. An override may make steps of its own, by `learner.step(loss, weights)`. It is called in
        every replica, and both kinds of steps descend the mean of all.
        """
        return self.learner.opt_step(batch)

    def after_step(self) -> None:
        for callback in self.callbacks:
            callback.after_step(self, self.learner, self.step_terms)

    def moved(self, batch: Any) -> Any:
        """Return a batch on the run's device."""
        return batch if self.device.type == "cpu" else moved(batch, self.device)

    def close(self) -> None:
        for loader in (self.loader, *self.judging.loaders.values()):
            loader.close()

    # ---- what is recorded, and the state ---------------------------------------------------------------------

    def fault(self, with_parameters: bool) -> str | None:
        unchecked, self._unchecked = self._unchecked, []
        tensors = [torch.as_tensor(loss, device=self.device) for loss, *_ in unchecked]
        losses = torch.stack(tensors).tolist() if tensors else []  # so a GPU is awaited once
        for loss, (_, own, number, key) in zip(losses, unchecked, strict=True):
            if not math.isfinite(loss):
                of_all = self.replica.each("whose loss is no finite number", (math.isfinite(float(own)), key))
                first = next((each for is_finite, each in of_all if not is_finite), key)
                return f"the loss is {loss} at opt step {number}, counted from 0: {first}"
        if with_parameters and not all(vector.weights.isfinite().all() for vector in self.learner.vectors):
            return f"a weight is no finite number at opt step {self.opt_steps}"
        scale = self.learner.scale
        if scale is not None and float(scale.value) < LossScale.smallest:
            return f"gradients are no finite numbers with any loss scale down to {float(scale.value):.1g}"
        return None

    def shown_metrics(self) -> Mapping[str, Mapping[str, float]]:
        return {SEAT: self.terms.shown() | self.learner.rates()}

    def _record_fields(self) -> dict[str, Any]:
        return {"players": {SEAT: self.learner.rates() | self.terms.take()}}

    def standing(self) -> Standing:
        """As in Training, with the epoch as a task."""
        standing = super().standing()
        if standing.stage != "train" or self.loader.num is None:
            return standing
        epoch = Task(f"epoch {self.epochs}", self.batch, self.loader.num, "batches")
        return standing._replace(tasks=[epoch, *standing.tasks])

    def state_dict(self) -> dict[str, Any]:
        own = {
            "batch": self.batch,
            "num_batches": self.num_batches,
            "loader": self.loader.state_dict(),
            "files": files_of(self.data),
            "epoch_is_over": self.epoch_is_over,
            "model": dict(self.model.state_dict()),
            "spaces": spaces_to_store(self.model),
            "in_evaluation": in_evaluation(self.model),
            "learner": self.learner.state_dict(),
            "terms": self.terms.state_dict(),
        }
        return super().state_dict() | own

    def state_of_branch(self, state: dict[str, Any]) -> dict[str, Any]:
        """As in Training; a branch begins with the schedules of its config."""
        return super().state_of_branch(state) | {"learner": state["learner"] | {"schedules": {}}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        require_same_sets(state["files"], self.data)
        self.batch, self.num_batches, self.epoch_is_over = state["batch"], state["num_batches"], state["epoch_is_over"]
        self.loader.load_state_dict(state["loader"])
        self.model.load_state_dict(state["model"])
        set_in_evaluation(self.model, state["in_evaluation"])
        self.learner.load_state_dict(state["learner"])
        self.terms.load_state_dict(state["terms"], self.device)


class ModelReplicas:
    """What the replica of a model does together with the others in an opt step; alone, it does nothing.

    Between `begin` and `end` the learner takes part in the mean of each gradient. Then the statistics of batch norm,
    and whatever else changes in the model's buffers, get the mean of their changes; so a buffer that is constant keeps
    its bits. own_step: the name of a step of the user's own, whose terms are this replica's; None: the learner makes
    it, and its terms are means already.
    """

    def __init__(self, replica: Replica, model: Model, learner: Learner, own_step: str | None) -> None:
        self.replica, self.model, self.learner, self.own_step = replica, model, learner, own_step
        self._num_means, self._before = 0, torch.zeros(0, device=learner.device)
        if not replica.is_alone:
            learner.mean = replica.mean

    def begin(self, num_items: int) -> None:
        """Begin an opt step. num_items: of this replica's batch, as which it counts in means."""
        self.learner.num_items, self.learner.own_loss = num_items, None
        if not self.replica.is_alone:
            self._num_means = self.replica.num_means
            if buffers := self._buffers():
                self._before = joined(buffers)

    @torch.no_grad()
    def end(self, terms: Terms) -> Terms:
        """Return the means of the terms of a step over replicas. Raises TrainingFailed for one without the others."""
        if self.replica.is_alone:
            return terms
        if self.replica.num_means == self._num_means:
            expected = "expected steps by `self.learner.opt_step(batch)` or `self.learner.step(loss, weights)`"
            raise TrainingFailed(f"{self.own_step} has made an opt step without the other replicas; {expected}")
        buffers = self._buffers()
        own = {} if self.own_step is None else terms
        if not own and not buffers:
            return terms
        before = self._before
        now = joined(buffers) if buffers else before
        changes = torch.where(now == before, 0.0, now - before)  # infinities stay, too
        change, means = self.replica.mean(changes, own, self.learner.num_items)
        for buffer, value in zip(buffers, (before + change).split([each.numel() for each in buffers]), strict=True):
            buffer.copy_(value.view_as(buffer))
        return terms | means

    def _buffers(self) -> list[Tensor]:
        """Return the model's buffers that are numbers."""
        return [each for each in self.model.buffers() if each.is_floating_point()]


ONE_VALUE = "more than 1 value per channel"  # in what torch says of a batch that is too small


def make_real(model: nn.Module, batch: Any) -> None:
    """Let a batch give lazy weights their sizes. Raises ConfigError if the model fails on it."""
    what = f"{type(model).__name__}, whose lazy weights get their sizes from a first item,"
    with running_own("model", f"{what} fails on it"), torch.no_grad(), evaluation_mode([model]):
        model(batch)


def require_items_for_batch_norm(
    model: nn.Module, first_batch: Callable[[], Any], num_items: int, learning: LearningConfig
) -> None:
    """Raise ConfigError if batch norm gets a batch of one item, or a piece of one, with which it cannot learn.

    first_batch: reads a batch of one item. num_items: of an epoch.
    """
    norms = [name for name, each in model.named_modules() if isinstance(each, _BatchNorm) and each.training]
    assert learning.batch_size is not None
    size, num = min(learning.batch_size, num_items), learning.num_microbatches
    rest = num_items % size if learning.last_batch == "keep" else 0
    is_whole = 1 in sizes_of(size, num)
    if not norms or not (is_whole or 1 in sizes_of(rest, num)):
        return
    try:
        with torch.no_grad():
            copy.deepcopy(model)(first_batch())
    except ValueError as error:
        if ONE_VALUE not in str(error):
            return
        why = f"because batch norm ({norms[0]}) cannot learn from one item"
        key, expected, got = "last_batch", "'drop'", f"'keep', which leaves one of {num_items} for a batch or a piece"
        if is_whole and num > 1:
            key, expected, got = "num_microbatches", f"pieces of at least 2 of {size} items", str(num)
        elif is_whole:
            key, expected, got = "batch_size", "at least 2 items", str(size)
        raise ConfigError.at(f"learning.{key}", f"expected {expected}, {why}, got {got}") from error
