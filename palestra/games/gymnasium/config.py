"""The config of a Gymnasium environment, which is checked without making the environment or importing any extra."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, Discount, NonEmptyStr, PositiveFloat, admit
from palestra.games.config import GameConfig
from palestra.games.gymnasium.arguments import argument_errors, id_error
from palestra.games.gymnasium.masks import EXPECTED, INFO, METHOD, OBSERVATION
from palestra.games.gymnasium.spaces import Channels
from palestra.games.gymnasium.wrappers import AnyWrapper
from palestra.games.normalization import ObservationConfig

Autoreset = Literal["next_step", "same_step", "disabled"]


class _AutoresetConfig(Config):
    usual: ClassVar = {"autoreset": "same_step"}

    name: str
    autoreset: Autoreset
    """when an environment is reset after an episode's end: by the next step, in the same step, or by palestra; the
    experience is the same, but next_step spends a step on every reset"""


class SyncConfig(_AutoresetConfig):
    name: Literal["sync"]
    """one after the other in this process"""


class AsyncConfig(_AutoresetConfig):
    name: Literal["async"]
    """each in a process of its own; faster for slow environments"""


class EntryPointConfig(Config):
    name: Literal["entry_point"]
    """the environment's own vector environment, which declares its autoreset mode; a resumed run is not exact"""


class EnvironmentObservationConfig(ObservationConfig):
    channels: Channels | None
    """of images with three or four axes, where the axis of their channels is: before height and width, or after them;
    null: where their shapes tell, which must then be so"""


class RewardNormalizationConfig(Config):
    gamma: Discount
    """discount of the returns by whose standard deviation rewards are divided"""
    eps: PositiveFloat
    """added to the variance"""


class RewardConfig(Config):
    """What is done with the rewards to learn from; returns in records and evaluations are the environment's own."""

    normalize: RewardNormalizationConfig | None
    """divide by the running standard deviation of the discounted return; null: no"""
    clip: PositiveFloat | None
    """then clip to -clip..clip; null: no"""


class EnvironmentConfig(GameConfig):
    """The config of a Gymnasium environment; palestra.games.gymnasium.game builds the game."""

    name: Literal["gymnasium"]
    """any environment of Gymnasium (Towers et al. 2024)"""
    id: NonEmptyStr
    """the environment: CartPole-v1, ALE/Pong-v5, or module:Name-v0 for one of your own"""
    arguments: dict[str, Any]
    """all arguments of the environment; after max_episode_steps an episode is truncated (null: never)"""
    wrappers: list[AnyWrapper]
    """from the innermost to the outermost"""
    vectorization: Annotated[SyncConfig | AsyncConfig | EntryPointConfig, ByName(usual="sync")]
    """how many environments step together"""
    observation: EnvironmentObservationConfig
    """what is done with observations"""
    reward: RewardConfig
    """what is done with rewards"""
    action_mask: str | None
    """where the environment gives the mask of legal actions, a flag for each: info.NAME, observation.NAME (an entry of
    a Dict, which players then do not observe) or action_masks(); null: every action is legal"""

    def own_modules(self) -> list[str]:
        return [self.id.rpartition(":")[0]] if ":" in self.id else []

    @property
    def is_vector(self) -> bool:
        """Tell whether the config asks for the environment's own vector environment."""
        return isinstance(self.vectorization, EntryPointConfig)

    @model_validator(mode="after")
    def _check_environment(self) -> Self:
        errors = []
        for module in self.own_modules():
            admit(module)  # it is imported when the environment is made
        if (fault := id_error(self.id)) is not None:
            errors.append(ConfigErrorItem("id", fault))
        for item in argument_errors(self.id, self.arguments, self.is_vector):
            errors.append(ConfigErrorItem(f"arguments.{item.path}", item.message))
        if self.is_vector and self.wrappers:
            message = f"expected [], because entry_point environments take no wrappers, got {len(self.wrappers)}"
            errors.append(ConfigErrorItem("wrappers", message))
        source = self.action_mask
        if source is not None and source != METHOD and not re.fullmatch(rf"({INFO}|{OBSERVATION}).+", source):
            errors.append(ConfigErrorItem("action_mask", f"{EXPECTED}, got {source!r}"))
        elif source is not None and self.is_vector and not source.startswith(OBSERVATION):
            message = f"expected {OBSERVATION}NAME or null of an entry_point environment, got {source!r}"
            errors.append(ConfigErrorItem("action_mask", message))
        ConfigError.require_none(errors)
        return self
