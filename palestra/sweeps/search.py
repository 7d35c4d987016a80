"""How a sweep chooses points: grid, random, TPE, or a search of the user's own. Optuna's samplers do it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import model_validator

from palestra.config import ByName, Config, ConfigError, NonNegativeInt, PositiveInt, UserConfig
from palestra.run.base import BaseRunConfig

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class Search:
    """Base of a search of your own: its method `sampler` makes a sampler of Optuna.

    For instance:

        class Gaussian(Search):
            Config = UserConfig

            def sampler(self, seed):
                return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)
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


class RandomConfig(SelfMade):
    """Independent draws."""

    name: Literal["random"]

    def sampler(self, seed: int) -> "BaseSampler":
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)


class TPEConfig(SelfMade):
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


AnySearchConfig = Annotated[GridConfig | RandomConfig | TPEConfig | UserConfig, ByName(user_class=Search)]
