"""How important each key of a sweep is: PED-ANOVA by Optuna (Watanabe et al. 2023)."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from palestra.report.sweep_reading import SweepData, TrialData

FEWEST_TRIALS = 5
FEW_TRIALS = 50  # of which importance is a hint at most
BEST_SHARE = 0.1  # of the trials, which are compared with all


@dataclass(frozen=True)
class Importance:
    """The importance of keys. shares: of each key, the largest first; they add up to 1.

    why_not: why there are none. num_trials: on which they rest.
    """

    shares: Mapping[str, float]
    why_not: str
    num_trials: int


def importance_of(data: SweepData, trials: Sequence[TrialData]) -> Importance:
    """Compute the importance of keys from the trials that succeeded.

    A key that only some of them have counts where it occurs; one that has the same value in all of them does not count.
    """
    usable = [trial for trial in trials if trial.state == "succeeded" and math.isfinite(trial.value)]
    num = len(usable)
    if num < FEWEST_TRIALS:
        return Importance(
            {}, f"it needs {FEWEST_TRIALS} trials that succeeded with a finite value, and {num} have", num
        )
    if len({trial.value for trial in usable}) == 1:
        return Importance({}, f"all {num:,} trials have the same value", num)
    varied = {
        axis.key for axis in data.axes if len({axis.at(t.point[axis.key]) for t in usable if axis.key in t.point}) > 1
    }
    try:
        found = _shares(data, usable)
    except (ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        return Importance({}, f"Optuna cannot compute it: {error!s:.200}", num)
    found = {key: share for key, share in found.items() if key in varied and math.isfinite(share)}
    total = sum(found.values())
    if total <= 0:
        return Importance({}, f"no key tells the best of {num:,} trials from the others", num)
    return Importance({key: found[key] / total for key in sorted(found, key=lambda key: -found[key])}, "", num)


def _shares(data: SweepData, trials: Sequence[TrialData]) -> dict[str, float]:
    study = optuna.create_study(direction="maximize" if data.config.objective.goal == "max" else "minimize")
    study.add_trials(
        create_trial(
            state=TrialState.COMPLETE,
            value=trial.value,
            params=dict(trial.point),
            distributions=dict(trial.distributions),
        )
        for trial in trials
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, which the text says
        evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        return get_param_importances(study, evaluator=evaluator, normalize=False)
