"""How a sweep chooses points: grid, random, TPE, in generations, or a search of the user's own.

Optuna's samplers do it; how generations follow each other is in palestra.sweeps.evolution.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from palestra.config import (
    ByName,
    Config,
    ConfigError,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserConfig,
)
from palestra.run.base import BaseRunConfig
from palestra.runtime.intervals import Limit

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


class Succession:
    """What a search says of trials that go on from others. As it stands here, all begin anew, and none waits.

    Trials are those of the sweep by rank: trials[n] is the n-th one, and the last one that began there if it was run
    again.
    """

    @property
    def size(self) -> int | None:
        """How many trials are a generation; None: there are no generations.

        The budget ends a sweep after whole ones, what has failed is run again only until the next one begins, and the
        runs of two generations before keep no replay rows.
        """
        return None

    def parent(self, trial: "FrozenTrial", trials: "Sequence[FrozenTrial]") -> "FrozenTrial | None":
        """Return the trial from whose runs those of a trial branch off; None: they begin anew.

        trial: one of the trials, with its point.
        """
        return None

    def may_begin(self, rank: int, trials: "Sequence[FrozenTrial]") -> bool:
        """Return whether the next trial may begin, besides what the budget says. Asked again while others run.

        rank: that of the next one, which is the number of trials.
        """
        return True


class Search(Succession):
    """Base of a search of your own: its method `sampler` makes a sampler of Optuna.

    For instance:

        class Gaussian(Search):
            Config = UserConfig

            def sampler(self, seed):
                return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)

    It may let trials branch off others (`parent`), and wait for others (`may_begin`).
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def sampler(self, seed: int) -> "BaseSampler":
        """Make a sampler whose draws `seed` determines. Each trial has one of its own, so it may keep no state."""
        raise NotImplementedError


class SelfMade(Config):
    """A part that is built by its config alone."""

    def build(self) -> Self:
        return self


class GridConfig(Config):
    """All combinations of values, in the order of the space, the last key fastest."""

    name: Literal["grid"]


class RandomConfig(SelfMade, Succession):
    """Independent draws."""

    name: Literal["random"]

    def sampler(self, seed: int) -> "BaseSampler":
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)


class TPEConfig(SelfMade, Succession):
    """Tree-structured Parzen estimator (Bergstra et al. 2011; Watanabe 2023)."""

    name: Literal["tpe"]

    @classmethod
    def usual(cls, said: Mapping[str, Any], bases: Mapping[str, BaseRunConfig]) -> dict[str, Any]:
        several = {"multivariate": True, "group": len(bases) > 1}  # bases have different keys
        return {"startup_trials": 10, "ei_candidates": 24, "constant_liar": True, **several}

    startup_trials: NonNegativeInt
    """so many trials are drawn at random first"""
    ei_candidates: PositiveInt
    """how many candidates are drawn for each key, of which the one with the best expected improvement is taken"""
    multivariate: bool
    """whether keys are drawn together, and not each on its own"""
    group: bool
    """with multivariate: whether keys that only some trials have are drawn in groups"""
    constant_liar: bool
    """whether trials that still run count as bad ones, so that trials side by side differ"""

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.group and not self.multivariate:
            raise ConfigError.at("group", "expected false without multivariate, got true")
        return self

    def sampler(self, seed: int) -> "BaseSampler":
        from optuna.samplers import TPESampler

        return TPESampler(
            seed=seed,
            n_startup_trials=self.startup_trials,
            n_ei_candidates=self.ei_candidates,
            multivariate=self.multivariate,
            group=self.group,
            constant_liar=self.constant_liar,
        )


class MutationConfig(Config):
    usual: ClassVar = {"factors": [0.8, 1.2], "redraw": 0.25}

    factors: Annotated[list[PositiveFloat], Field(min_length=1)]
    """a number is multiplied by one of these, and stays within its bounds and steps; an integer moves by a step at
    least; a choice moves to a neighbour in its list"""
    redraw: Fraction
    """the probability with which a key is drawn anew instead"""


class EvolutionConfig(Config):
    """Generations: the worst members of one are replaced by changed copies of the best, weights included.

    With crossover: false, factors [0.8, 1.2], quantile 0.25 and redraw 0.25 it is population based training (Jaderberg
    et al. 2017).
    """

    name: Literal["evolution"]

    @classmethod
    def usual(cls, said: Mapping[str, Any], bases: Mapping[str, BaseRunConfig]) -> dict[str, Any]:
        stop = next(iter(bases.values())).stop
        generation = {"after": math.ceil(stop.after / NUM_GENERATIONS), "unit": stop.unit}
        return {"size": 8, "generation": generation, "quantile": 0.25, "crossover": False, "mutation": {}}

    size: PositiveInt
    """how many members a generation has; budget.trials is a multiple of it"""
    generation: Limit
    """how long a member trains, in place of the base's `stop`"""
    quantile: Annotated[Fraction, Field(le=0.5)]
    """the best and the worst quantile * size members of a generation, rounded up: the worst ones are replaced by
    children of the best; 0: nobody is"""
    crossover: bool
    """whether a child has each key from one of two members of the best quantile, and all else from the first of them;
    else everything comes from one"""
    mutation: MutationConfig
    """how the keys of a child change"""

    @model_validator(mode="after")
    def _check_quantile(self) -> Self:
        if self.quantile and self.size == 1:
            raise ConfigError.at(
                "quantile", f"expected 0 with size 1, which holds no other member, got {self.quantile}"
            )
        return self


NUM_GENERATIONS = 10  # of the usual sweep, which divide its base's `stop`

AnySearchConfig = Annotated[
    GridConfig | RandomConfig | TPEConfig | EvolutionConfig | UserConfig, ByName(user_class=Search)
]
