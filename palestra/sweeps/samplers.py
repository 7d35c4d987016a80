"""Samplers of Optuna whose draws depend on the sweep's seed and on the trial's number alone.

They depend neither on the process that asks, nor on how often it was killed or run again after a failure.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from palestra.sweeps.outcomes import rank_of


class SamplerOfTrials(BaseSampler):
    """Draws each key of each trial with a sampler of its own. make: makes one from a seed."""

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self.make, self.seed = make, seed

    def _sampler(self, study: Study, trial: FrozenTrial, name: str = "") -> BaseSampler:
        number = rank_of(trial, study.get_trials(deepcopy=False))
        digest = hashlib.sha256(f"{self.seed}/{number}/{name}".encode()).digest()
        return self.make(int.from_bytes(digest[:4], "little"))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler(study, trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler(study, trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler(study, trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._sampler(study, trial).after_trial(study, trial, state, values)


class SamplerOfGrid(BaseSampler):
    """Gives the n-th trial (`rank_of`) the n-th point.

    (Optuna's own shuffles the points, and wants all keys in all of them.)
    """

    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        self.points = points

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.points[rank_of(trial, study.get_trials(deepcopy=False))][param_name]
