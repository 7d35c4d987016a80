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
BEST_SHARE = 0.1  # of the trials, which are compared with all


@dataclass(frozen=True)
class Importance:
    """shares: of each key, the largest first; they add up to 1. Empty if there is nothing to say. text: what they rest
    on, or why there are none."""

    shares: Mapping[str, float]
    text: str


def importance_of(data: SweepData, trials: Sequence[TrialData]) -> Importance:
    """Of the trials that succeeded; a key that only some of them have counts where it occurs."""
    usable = [trial for trial in trials if trial.state == "succeeded" and math.isfinite(trial.value)]
    if len(usable) < FEWEST_TRIALS:
        return Importance({}, f"The importance of keys needs {FEWEST_TRIALS} trials that succeeded; {len(usable)} have.")
    if len({trial.value for trial in usable}) == 1:
        return Importance({}, f"The importance of keys is unknown: all {len(usable)} trials have the same value.")
    searched = {axis.key for axis in data.axes}
    try:
        found = _shares(data, usable)
    except (ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        return Importance({}, f"Optuna cannot compute the importance of keys: {error!s:.200}")
    found = {key: share for key, share in found.items() if key in searched and math.isfinite(share)}
    total = sum(found.values())
    if total <= 0:
        return Importance({}, f"The importance of keys is unknown: none tells the best of {len(usable)} trials apart.")
    shares = {key: share / total for key, share in sorted(found.items(), key=lambda item: -item[1])}
    num_best = max(2, math.ceil(BEST_SHARE * len(usable)))
    few = ", which is few: take it as a hint" if num_best < 5 else ""
    return Importance(shares, f"By PED-ANOVA: the best {num_best} of {len(usable):,} trials against all{few}.")


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
