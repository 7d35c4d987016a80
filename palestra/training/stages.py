"""The two stages of a run: training in epochs, and the test at its end. What each says of itself before it begins, the
context in which it computes, and the evaluations of both."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

from palestra.recording.results import Stage
from palestra.runtime.signals import Interrupted
from palestra.training.evaluating import Evaluating
from palestra.training.progress import ProgressReporter
from palestra.training.run import RunOwner


class Stages(RunOwner):
    """What the two stages of a run do, how long they are, and in which contexts they compute.

    stage: the one that goes on. evaluating: what plays the evaluations of both.
    """

    stage: Literal["train", "test"] = "train"
    evaluating: Evaluating
    progress: ProgressReporter
    _tested: list[dict[str, Any]]  # the records of the evaluations in the test

    # ---- what they do ------------------------------------------------------------------------------------

    def _train(self) -> None:
        """One epoch. A run that is resumed at any safe point calls it again, and it must go on from there."""
        raise NotImplementedError

    def _test(self) -> None:
        """Play the final evaluations: all that the config names, each with its `final_num_games`.

        Called once, when the run is done, before its last record. A run that was killed or asked to leave inside calls
        it again when it is resumed. So what an override adds to the state of the run (`note`, `extra_state`) comes
        after the last of its evaluations, which raise Interrupted if a signal asks to leave.
        """
        self.evaluate(self.evaluating.at_end())

    # ---- what they say of themselves ---------------------------------------------------------------------

    @classmethod
    def train_stage(cls, config: Any) -> Stage:
        """What an epoch does, and how long training is, from the config alone. A class that does not declare it is
        described by the docstring of its `_train`."""
        return Stage(_own_words(cls, "_train"), config.stop.after, config.stop.unit)

    @classmethod
    def test_stage(cls, config: Any) -> Stage:
        """What the test does, and how long it is, from the config alone; as `train_stage`, by that of its `_test`."""
        if cls._test is Stages._test:
            return Stage("the final evaluations, if there are any", None, "")
        return Stage(_own_words(cls, "_test"), None, "")

    # ---- in which contexts -------------------------------------------------------------------------------

    @contextmanager
    def train_context(self) -> Iterator[None]:
        """The context of `fit`, entered once: gradients are on. An override also sets what roll-outs and updates are to
        find, such as kernels of attention."""
        with torch.enable_grad():
            yield

    @contextmanager
    def test_context(self) -> Iterator[None]:
        """The context of `_test` and of all evaluations that this process plays, inside that of training: gradients are
        off."""
        with torch.no_grad():
            yield

    # ---- evaluations -------------------------------------------------------------------------------------

    def evaluate(self, names: Sequence[str]) -> None:
        """Evaluate, and write the records of the results that count now; in the test, once it is over. If a signal
        comes, raise Interrupted and write none. names: of the evaluations."""
        if self.stage == "test":
            self._tested += self.evaluating.results(names, is_final=True)
            return
        context = self.test_context() if names else nullcontext()
        with self.clock.paused(), self.time_log.during("evaluation"), context:
            records = self.evaluating.results(names, is_final=False)
        self._count(records)

    def finish_with_test(self) -> None:
        """Do the test, as one piece: if a signal comes, raise Interrupted and write nothing of it."""
        if self.stage == "test":
            raise RuntimeError("expected no safe point (and no turn of a player) inside _test, got one")
        before, self._tested, self.stage = self.evaluating.state_dict(), [], "test"
        try:
            with self.clock.paused(), self.time_log.during("evaluation"), self.progress.during("testing", []):
                with self.test_context():
                    self._test()
                self._tested += self.evaluating.results([], is_final=True)  # what evaluators play since earlier
        except Interrupted:
            if self._tested:
                self.evaluating.load_state_dict(before)
            raise
        finally:
            self.stage = "train"
        self._count(self._tested)

    def _count(self, records: Sequence[dict[str, Any]]) -> None:
        """Write the records of evaluations, which may make a checkpoint the best one."""
        for record in records:
            self.opened_output().write(record)
            if record["kind"] == "evaluation":  # not one that has failed
                self.evaluating.update_best(record)
                self.after_evaluation(record)
        self.progress.show_news()

    def after_evaluation(self, record: Mapping[str, Any]) -> None:
        """A hook: the result of an evaluation counts."""


def _own_words(cls: type, method: str) -> str:
    """What the class that has this method says of it."""
    owner = next(each for each in cls.__mro__ if method in vars(each))
    first, *_ = inspect.cleandoc(getattr(owner, method).__doc__ or "").split("\n\n")
    said = " ".join(first.split()).removesuffix(".")
    return f"as {owner.__name__} says: {said}" if said else f"by {owner.__name__}"
