"""The study of a sweep: its trials as Optuna keeps them, and how processes share them.

A trial is claimed with the sweep's id in one write, so that whoever finds it running, and its lock free, knows that its
process is dead.
"""

import functools
import hashlib
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import optuna
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from palestra.config import ConfigError, UserConfig, cut
from palestra.config.rendering import inline_flow
from palestra.run.branching import tree_differences
from palestra.storage.disk import RunFolderError
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.evolution import Evolution
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.outcomes import (
    DEFINITION,
    FAILED_BEFORE,
    FAILURE,
    PARENT,
    RETRY_OF,
    lineage_of,
    parent_of,
    place_of,
    rank_of,
    ranked,
    standing,
    state_of,
    why_of,
)
from palestra.sweeps.pruning import decide
from palestra.sweeps.search import EvolutionConfig, GridConfig, Succession
from palestra.sweeps.space import BASE, Space
from palestra.sweeps.stored import errors_of_study, require_sound

# what may differ between the processes of one study
FREE = ("place", "storage", "budget", "max_restarts", "base")


P = ParamSpec("P")
T = TypeVar("T")


def _asking(method: "Callable[Concatenate[SweepStudy, P], T]") -> "Callable[Concatenate[SweepStudy, P], T]":
    """Turn what the study's storage raises in a method into one line."""

    @functools.wraps(method)
    def asking(self: "SweepStudy", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with errors_of_study(self.folder):
            return method(self, *args, **kwargs)

    return asking


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


class SamplerOfGrid(RandomSampler):
    """Gives the n-th trial (`rank_of`) the n-th point. Like one that draws at random, it is asked key by key.

    (Optuna's own shuffles the points, and wants all keys in all of them.)
    """

    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.points = points

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.points[rank_of(trial, study.get_trials(deepcopy=False))][param_name]


class SamplerOfMembers(RandomSampler):
    """Gives each trial the point of its member. Like one that draws at random, it is asked key by key."""

    def __init__(self, evolution: Evolution) -> None:
        super().__init__()
        self.evolution = evolution

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        trials = study.get_trials(deepcopy=False)
        return self.evolution.member(rank_of(trial, trials), ranked(trials)).point[param_name]


class SweepStudy:
    """The open study of a sweep. is_over_seeds: whether a trial is pruned between its seeds, not at evaluations.

    search: says which trials branch off others, and when they may begin.

    Raises ConfigError if it cannot be reached, or is that of another sweep; RunFolderError and OSError, as all of its
    methods, if its storage is damaged or refuses.
    """

    def __init__(self, folder: SweepFolder, config: SweepConfig, space: Space, search: Succession) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # the user chose them
        self.folder, self.id, self.config, self.space, self.search = folder, folder.id, config, space, search
        self.pruning = None if config.pruning is None else config.pruning.build()
        self.is_over_seeds = self.pruning is not None and self.pruning.over_seeds
        self.pruner = optuna.pruners.NopPruner() if self.pruning is None else self.pruning.pruner()
        with errors_of_study(folder):
            self.study = optuna.create_study(
                storage=config.storage.open(folder.root, for_writing=True),
                sampler=self._sampler(),
                pruner=self.pruner,
                study_name=config.storage.study,
                direction="maximize" if config.objective.goal == "max" else "minimize",
                load_if_exists=True,
            )
            self._require_same()
            require_sound(folder, self.study, config.objective.goal)
            if DEFINITION not in self.study.user_attrs:
                self.study.set_user_attr(DEFINITION, self._definition())

    def _sampler(self) -> Any:
        match self.config.search:
            case GridConfig():
                return SamplerOfGrid(self.space.points())
            case EvolutionConfig():
                assert isinstance(self.search, Evolution)
                return SamplerOfMembers(self.search)
            case search:
                return SamplerOfTrials(search.build().sampler, self.config.seed)

    def _definition(self) -> dict[str, Any]:
        data = {key: value for key, value in self.config.model_dump().items() if key not in FREE}
        return data | {"base": {name: base.data for name, base in self.space.bases.items()}}

    def _require_same(self) -> None:
        """Raise ConfigError if the study holds another sweep."""
        ours, theirs = self._definition(), self.study.user_attrs.get(DEFINITION)
        where = f"study {self.config.storage.study!r}"
        if theirs is None and self.study.get_trials(deepcopy=False):
            raise ConfigError.at("storage.study", f"expected a new study, got {where}, which palestra did not make")
        if theirs is not None and (changes := list(tree_differences(theirs, ours))):
            key, there, here = changes[0]
            message = f"expected a new study or that of this sweep, got {where}, in which {key} is"
            raise ConfigError.at("storage.study", f"{message} {inline_flow(there)}, not {inline_flow(here)}")
        if self.search.size is not None and not all(map(self.is_ours, self.study.get_trials(deepcopy=False))):
            message = f"expected trials of this folder alone, whose runs others branch off, got {where} of another one"
            raise ConfigError.at("storage.study", message)

    @_asking
    def trials(self) -> list[FrozenTrial]:
        """Return all trials, without failed ones that others have taken over."""
        return standing(self.study.get_trials(deepcopy=False))

    @_asking
    def ranked(self) -> list[FrozenTrial]:
        """Return the trials by their ranks, as `Succession` has them."""
        return ranked(self.study.get_trials(deepcopy=False))

    @_asking
    def rank(self, trial: FrozenTrial) -> int:
        return rank_of(trial, self.study.get_trials(deepcopy=False))

    def is_ours(self, trial: FrozenTrial) -> bool:
        return trial.user_attrs.get("folder") == self.id

    @_asking
    def running(self) -> list[FrozenTrial]:
        """Return the trials that nobody has ended."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    @_asking
    def claim(self) -> FrozenTrial:
        """Add a new trial, without a point yet, and return it."""
        token = uuid.uuid4().hex
        self.study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={"folder": self.id, "claim": token}))
        return next(trial for trial in self.running() if trial.user_attrs.get("claim") == token)

    @_asking
    def retry(self, failed: FrozenTrial) -> None:
        """Let a trial that has failed be run again: by a new one, as Optuna ends each once, with its point and runs."""
        attributes = {"folder": self.id, RETRY_OF: place_of(failed), FAILED_BEFORE: why_of(failed)}
        attributes |= {PARENT: failed.user_attrs[PARENT]} if PARENT in failed.user_attrs else {}
        again = create_trial(
            state=TrialState.RUNNING, params=failed.params, distributions=failed.distributions, user_attrs=attributes
        )
        self.study.add_trial(again)

    @_asking
    def point(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the trial's point; what was drawn before a kill is kept.

        Raises ConfigError if the user's own search fails.
        """
        try:
            return self.space.suggest(Trial(self.study, trial._trial_id))
        except Exception as error:
            if not isinstance(self.config.search, UserConfig):
                raise
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> ConfigError:
        """Return the error of a search of the user's own."""
        return ConfigError.at("search", f"{self.config.search.name} raised {type(error).__name__}: {error}")

    def may_begin(self) -> bool:
        """Return whether the search lets another trial begin. Raises ConfigError if the user's own fails."""
        trials = self.ranked()
        try:
            return bool(self.search.may_begin(len(trials), trials))
        except Exception as error:
            raise self._raised(error) from error

    def parent(self, number: int) -> FrozenTrial | None:
        """Return the trial from whose runs those of another one branch off, and note it; None: they begin anew.

        Raises ConfigError if the user's own search fails; RunFolderError for one from which nothing can branch off.
        """
        trials = self.ranked()
        known = {each.number: each for each in trials if each.number <= number}
        trial = known.pop(number)
        try:
            noted = parent_of(trial)
            parent = self.search.parent(trial, trials) if noted is None else known[noted]
        except Exception as error:
            raise self._raised(error) from error
        if parent is None:
            return None
        if getattr(parent, "number", None) not in known:
            what = f"expected an earlier trial, or None, as the parent of trial {number}"
            raise ConfigError.at("search", f"{what} from {self.config.search.name}, got {cut(repr(parent), 100)}")
        if (state := state_of(parent)) != "succeeded" or not self.is_ours(parent):
            where = "" if self.is_ours(parent) else ", whose runs lie in another folder"
            raise RunFolderError(f"it branches off trial {parent.number}, which is {state}{where}")
        if parent.params.get(BASE) != trial.params.get(BASE):
            raise RunFolderError(f"it branches off trial {parent.number}, which has another base")
        self.note(number, {PARENT: parent.number})
        return parent

    def config_of(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return the config of a trial's runs, as plain data; its `stop` comes after those from which it branches off.

        Raises ConfigError as `Space.config_at`, and for a `stop` in another unit, or in minutes.
        """
        config, *before = [self.space.config_at(each.params) for each in lineage_of(trial, self.trials())[::-1]]
        if not before:
            return config
        stops = [each["stop"] for each in (config, *before)]
        if len(units := {stop["unit"] for stop in stops}) > 1 or "minutes" in units:
            message = f"expected the same unit in trials that branch off each other, not minutes, got {sorted(units)}"
            raise ConfigError.at("stop.unit", message)
        return config | {"stop": {**config["stop"], "after": sum(stop["after"] for stop in stops)}}

    @_asking
    def report(self, number: int, step: int, value: float) -> bool:
        """Report a trial's value at a step, once, and say whether the pruner ends the trial there."""
        trial = self.trial(number)
        if step not in trial.intermediate_values:
            self.study._storage.set_trial_intermediate_value(trial._trial_id, step, value)
            trial = self.trial(number)
        return trial.last_step == step and decide(self.study, self.pruner, trial)

    @_asking
    def note(self, number: int, facts: Mapping[str, Any]) -> None:
        trial = self.trial(number)
        for name, value in facts.items():
            if trial.user_attrs.get(name) != value:
                self.study._storage.set_trial_user_attr(trial._trial_id, name, value)

    @_asking
    def trial(self, number: int) -> FrozenTrial:
        storage = self.study._storage
        return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number))

    @_asking
    def complete(self, number: int, value: float) -> None:
        self.study.tell(number, value, skip_if_finished=True)

    @_asking
    def prune(self, number: int) -> None:
        self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)

    @_asking
    def fail(self, number: int, why: str, attribute: str = FAILURE) -> None:
        self.note(number, {attribute: why})
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
