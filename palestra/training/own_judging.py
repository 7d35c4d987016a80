"""Evaluations of a training of one's own: what its `judge` says counts in `best`, sweeps and `palestra evaluate`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from palestra.config import PositiveInt, cut
from palestra.evaluation.config import TimedEvaluationConfig
from palestra.evaluation.evaluator import Watch
from palestra.evaluation.measures import MeasuredSet
from palestra.run.base import EvaluatedRunConfig
from palestra.runtime.scores import SEAT, DeclaredScore
from palestra.training.checks import TrainingFailed


class JudgementConfig(TimedEvaluationConfig):
    """An evaluation by the `judge` of a training."""

    usual: ClassVar[Any] = {
        "name": "main",
        "interval": {"every": 1, "unit": "epochs"},
        "at_start": True,
        "num_items": 1000,
        "final_num_items": 1000,
    }

    num_items: PositiveInt
    """items, games or whatever else is judged"""
    final_num_items: PositiveInt
    """the same at the end of a run, and of `palestra evaluate`"""


class JudgedRunConfig(EvaluatedRunConfig):
    """The keys of a run of a training of your own that judges what it trains. scores: those that `judge` gives."""

    scores: ClassVar[Sequence[DeclaredScore]] = ()
    changeable = ("evaluations",)

    evaluations: list[JudgementConfig]
    """what is judged apart from training, and when; []: nothing"""

    def measured(self) -> list[MeasuredSet]:
        names = [score.name for score in self.scores]
        return [MeasuredSet(each.name, each.interval, names) for each in self.evaluations]


class ModelJudging:
    """What the evaluations of a training have in common in which one model is judged, apart from any game."""

    counted = "items"

    def pairings(self, name: str, with_scripted: bool) -> list[dict[str, str]]:
        return [{SEAT: SEAT}]

    def most_rounds(self, name: str) -> int | None:
        return None

    def record(self, name: str, scores: Iterable[DeclaredScore], pair: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of an evaluation. pair: what was found, but for who was judged."""
        pairs = [{"players": {SEAT: SEAT}, "learned": [SEAT], **pair}]
        said = {"evaluation": name, "roles": [SEAT], "declared_scores": [asdict(score) for score in scores]}
        return said | {"counted": self.counted, "pairs": pairs, "ratings": None}


class Judging(ModelJudging):
    """The evaluations of a training whose config is a JudgedRunConfig."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.configs = {each.name: each for each in training.config.evaluations}

    def num(self, name: str, is_final: bool) -> int:
        config = self.configs[name]
        return int(config.final_num_items if is_final else config.num_items)

    def snapshot(self) -> dict[str, Any]:
        return self.training.state_dict() | {"evaluating": self.training.evaluating.state_of_branch()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave, or the state of a checkpoint; callbacks stay as they are."""
        callbacks = [each.state_dict() for each in self.training.callbacks]
        own = {"callbacks": callbacks, "evaluating": self.training.evaluating.state_of_branch()}
        self.training.load_state_dict({**state, **own})

    def play(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        """Judge, and return the evaluation's record. Raises TrainingFailed for scores that are not as declared."""
        found, declared = self.training.judge(name, num), self.training.config.scores
        try:
            scores = {score.name: float(found[score.name]) for score in declared}
        except (TypeError, ValueError, LookupError) as error:
            names = ", ".join(score.name for score in declared)
            what = f"{type(self.training).__name__}.judge: expected a mapping with a number for {names}"
            raise TrainingFailed(f"{what}, got {cut(repr(found))}") from error
        return self.record(name, declared, {"items": num, "scores": scores, "intervals": {}})
