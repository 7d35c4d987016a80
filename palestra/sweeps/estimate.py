"""Estimates when a sweep will end: runs get their places in turn until the budget is used up, as it will happen."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

MOST_TRIALS = 1000  # that are followed one by one; of more, several are taken for one


@dataclass(frozen=True)
class Outlook:
    """What an estimate needs to know. num_places: so many runs are computed side by side.

    runs: of trials that have begun, the trial's number and the seconds that the run still takes; those that wait for a
    place come last. trial_s, trial_count: what one more trial takes, over all its runs; nan if it is not known.
    num_at_once: how many of its runs are computed side by side. count: of the trials that have ended, in the unit of
    the sweep. num_trials, max_count, begin_s: so many trials may still begin; none once trials that have ended have
    counted so much, nor after so many seconds. inf: no limit.
    """

    num_places: int
    runs: Sequence[tuple[int, float]]
    trial_s: float
    trial_count: float
    num_at_once: int
    count: float
    num_trials: float
    max_count: float
    begin_s: float


def seconds_left(outlook: Outlook) -> float:
    """Return the seconds until the last run ends; nan if that cannot be known."""
    if any(math.isnan(seconds) for _, seconds in outlook.runs):
        return math.nan
    places = [0.0] * outlook.num_places  # when each is free: a heap
    ends: dict[int, float] = {}
    for trial, seconds in outlook.runs:
        ends[trial] = max(ends.get(trial, 0.0), _occupy(places, seconds))
    if not _may_begin(outlook, outlook.count, 0.0, 0):
        return max(ends.values(), default=0.0)
    num_trials = _num_trials(outlook)
    if not math.isfinite(num_trials):
        return math.nan
    size = math.ceil(num_trials / MOST_TRIALS)  # so many trials are taken for one
    trial_s, trial_count = size * outlook.trial_s, size * outlook.trial_count
    outlook = replace(outlook, num_trials=outlook.num_trials / size)
    ended = [(end, trial_count) for end in ends.values()]  # a heap of what will have ended, and when
    heapq.heapify(ended)
    last, count, num_begun = max(ends.values(), default=0.0), outlook.count, 0
    while True:
        while ended and ended[0][0] <= places[0]:
            count += heapq.heappop(ended)[1]
        if not _may_begin(outlook, count, places[0], num_begun):
            return last
        end = max(_occupy(places, trial_s / outlook.num_at_once) for _ in range(outlook.num_at_once))
        heapq.heappush(ended, (end, trial_count))
        last, num_begun = max(last, end), num_begun + 1


def _occupy(places: list[float], seconds: float) -> float:
    """Give a run to the first place that is free; returns when the run ends."""
    end = places[0] + seconds
    heapq.heapreplace(places, end)
    return end


def _may_begin(outlook: Outlook, count: float, at_s: float, num_begun: int) -> bool:
    return num_begun < outlook.num_trials and not count >= outlook.max_count and at_s < outlook.begin_s


def _num_trials(outlook: Outlook) -> float:
    """Return about how many trials will begin; nan or inf if that cannot be known."""
    if not outlook.trial_s > 0.0:
        return math.nan
    nums = [outlook.num_trials, outlook.begin_s * outlook.num_places / outlook.trial_s]
    if outlook.max_count < math.inf:
        if math.isnan(outlook.trial_count):
            return math.nan
        left = outlook.max_count - outlook.count
        nums.append(left / outlook.trial_count if outlook.trial_count else math.inf)
    return min(nums)
