"""How a sweep ends trials without prospects. Optuna's pruners decide; their terms are kept."""

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from palestra.config import ByName, Fraction, NonNegativeInt, PositiveInt, UserConfig
from palestra.run.base import BaseRunConfig
from palestra.sweeps.search import SelfMade

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial


class Pruning:
    """Base of pruning of your own: `pruner` makes an Optuna pruner.

    over_seeds: whether a trial reports the value of each of its seeds, one after the other, at steps 0, 1, ...; else it
    reports its value at each evaluation, at steps in the unit of the evaluation's interval. num_seeds: in the latter
    case, so many seeds, the first ones, run first, and the interquartile mean of their values is reported.
    """

    over_seeds = False
    num_seeds = 1

    def __init__(self, config: Any) -> None:
        self.config = config

    def pruner(self) -> "BasePruner":
        raise NotImplementedError


def first_step(bases: Mapping[str, BaseRunConfig]) -> dict[str, int]:
    """Return the first evaluation of runs by which they are compared, by its unit; {} where one has no such count."""
    found: dict[str, int] = {}
    for base in bases.values():
        best = base.decisive()
        compared = (each.interval for each in base.measured() if best and each.name == best.evaluation)
        interval = next(compared, None)
        if interval is None or interval.unit == "minutes":
            return {}
        found[interval.unit] = max(found.get(interval.unit, 0), math.ceil(interval.every))
    return found


def _first(key: str, bases: Mapping[str, BaseRunConfig]) -> dict[str, int]:
    steps = list(first_step(bases).values())
    return {key: steps[0]} if steps else {}


class _Shipped(SelfMade):
    """Pruning that is its own maker of pruners, and has the terms of `Pruning`."""

    over_seeds: ClassVar = False


class MedianConfig(_Shipped):
    """Ends a trial whose value is worse than the median of earlier trials at the same step."""

    name: Literal["median"]

    @classmethod
    def usual(cls, said: Mapping[str, Any], bases: Mapping[str, BaseRunConfig]) -> dict[str, Any]:
        return {"num_seeds": 1, "startup_trials": 5, **_first("warmup_steps", bases)}

    num_seeds: PositiveInt
    """so many seeds of a trial, the first ones, run first; the interquartile mean of their values decides whether it is
    pruned; the others run if it is not"""
    startup_trials: NonNegativeInt
    """no trial is pruned before so many are complete"""
    warmup_steps: NonNegativeInt
    """no trial is pruned before this step, in the unit of the evaluation's interval"""

    def pruner(self) -> "BasePruner":
        from optuna.pruners import MedianPruner

        return MedianPruner(n_startup_trials=self.startup_trials, n_warmup_steps=self.warmup_steps)


class SuccessiveHalvingConfig(_Shipped):
    """Asynchronous successive halving (Li et al. 2020).

    At the steps min_resource, min_resource * reduction_factor, ... only the best 1 / reduction_factor of the trials
    that came so far go on.
    """

    name: Literal["successive_halving"]

    @classmethod
    def usual(cls, said: Mapping[str, Any], bases: Mapping[str, BaseRunConfig]) -> dict[str, Any]:
        return {"num_seeds": 1, "reduction_factor": 3, **_first("min_resource", bases)}

    num_seeds: PositiveInt
    """so many seeds of a trial, the first ones, run first; the interquartile mean of their values decides whether it is
    pruned; the others run if it is not"""
    min_resource: PositiveInt
    """the first step at which a trial may end, in the unit of the evaluation's interval"""
    reduction_factor: Annotated[int, Field(ge=2)]
    """the share of the trials that go on is 1 / reduction_factor"""

    def pruner(self) -> "BasePruner":
        from optuna.pruners import SuccessiveHalvingPruner

        return SuccessiveHalvingPruner(min_resource=self.min_resource, reduction_factor=self.reduction_factor)


class WilcoxonConfig(_Shipped):
    """Ends a trial as soon as Wilcoxon's signed-rank test says that it is worse than the best one on the same seeds.

    The seeds of a trial run one after the other.
    """

    usual: ClassVar = {"p_threshold": 0.1, "startup_seeds": 2}
    over_seeds: ClassVar = True
    num_seeds: ClassVar = 1

    name: Literal["wilcoxon"]
    p_threshold: Fraction
    """a trial ends if the p-value is below this"""
    startup_seeds: Annotated[int, Field(ge=2)]
    """no trial is pruned before so many of its seeds are done"""

    def pruner(self) -> "BasePruner":
        from optuna.pruners import WilcoxonPruner

        return WilcoxonPruner(p_threshold=self.p_threshold, n_startup_steps=self.startup_seeds)


AnyPruningConfig = Annotated[
    MedianConfig | SuccessiveHalvingConfig | WilcoxonConfig | UserConfig, ByName(user_class=Pruning)
]


# ---- decisions that a kill cannot change ------------------------------------------------------------------


def decide(study: "Study", pruner: "BasePruner", trial: "FrozenTrial") -> bool:
    """Ask the pruner whether it ends a trial at its last reported step.

    Asked again about the same step, after a kill at any moment, it says the same. A pruner may note things in the trial
    (successive halving notes which rungs it has passed), and would take the same step for a later rung if it found its
    own notes. So the notes are held back until the decision is stored.
    """
    key = f"pruning/{trial.last_step}"
    if (stored := trial.user_attrs.get(key)) is None:
        view, notes = copy.copy(study), _Notes(study._storage)
        view._storage = notes  # type: ignore[assignment]
        stored = {"prune": bool(pruner.prune(view, trial)), "notes": notes.held}
        if notes.held:
            study._storage.set_trial_user_attr(trial._trial_id, key, stored)
    for name, value in stored["notes"].items():
        if trial.system_attrs.get(name) != value:
            study._storage.set_trial_system_attr(trial._trial_id, name, value)
    return bool(stored["prune"])


class _Notes:
    """A study's storage that holds back what a pruner notes in a trial."""

    def __init__(self, storage: Any) -> None:
        self._storage, self.held = storage, dict[str, Any]()

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self.held[key] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)
