"""How the trials of a sweep have ended, as the study has it. Imports nothing heavy but Optuna."""

import math
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

STATES = ("succeeded", "failed", "pruned", "skipped", "running")
DEFINITION = "sweep"  # user attribute of the study: the sweep without what may differ between its processes
SKIPPED = "skipped"  # user attribute: why a trial was not run
FAILURE = "failure"  # user attribute: why it failed
VALUES = "values"  # user attribute: the objective of the run of each seed that ended, by seed
ENV_STEPS = "env_steps"  # user attribute: how many its runs have played
SECONDS = "seconds"  # user attribute: how long its runs have worked, all together


def best_of(trials: Sequence[FrozenTrial], goal: str) -> FrozenTrial | None:
    """The best complete trial, of equal ones the first."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    sign = 1.0 if goal == "max" else -1.0
    return max(done, key=lambda trial: (sign * (trial.value or 0.0), -trial.number), default=None)


def state_of(trial: FrozenTrial) -> str:
    """succeeded, failed, pruned, skipped or running."""
    if SKIPPED in trial.user_attrs:
        return "skipped"
    names = {TrialState.COMPLETE: "succeeded", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    return names.get(trial.state, "running")


def value_of(trial: FrozenTrial) -> float | None:
    """Its value; of a pruned one the last by which that was decided. Of one that was pruned between its seeds there is
    none: Optuna takes the value of its last seed."""
    return None if state_of(trial) == "pruned" and trial.user_attrs.get(VALUES) else trial.value


def env_steps_of(trial: FrozenTrial) -> float:
    steps = trial.user_attrs.get(ENV_STEPS, 0)
    return steps if isinstance(steps, int | float) and math.isfinite(steps) else 0


def seconds_of(trial: FrozenTrial) -> float | None:
    """How long its runs have worked, all together; None if nobody has measured it."""
    seconds = trial.user_attrs.get(SECONDS)
    return seconds if isinstance(seconds, int | float) and 0 <= seconds < math.inf else None
