"""`scenario`: what a role of a dialogue observes before anything is said, and the labels, as a data set."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import model_validator

from palestra.config import ConfigError, NonEmptyStr, PositiveInt, UnreadConfig, below, failure
from palestra.config.errors import listed
from palestra.config.places import place_of
from palestra.config.usual import completed
from palestra.data.items import LABEL, TensorItems
from palestra.data.sets import DataConfig, FileRows
from palestra.games.dialogue.game import AnyScenarioConfig, DialogueConfig, DialogueGame
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.scenario import instance_of
from palestra.games.dialogue.tryout import first_protocol, make_protocol
from palestra.games.normalization import UNCHANGED
from palestra.randomness import base_key, world_keys


class ScenarioDataConfig(DataConfig):
    judged_by: ClassVar = {"held_out": True}

    name: Literal["scenario"]
    """what a role of a dialogue observes before anything is said; the label of the instance is to be predicted"""
    protocol: AnyProtocolConfig
    """who speaks when, who decides, and what they get for it"""
    scenario: AnyScenarioConfig
    """the instances, the tokens of which messages are made, and what each role sees"""
    role: NonEmptyStr
    """the role that observes"""
    held_out: bool
    """true: instances as evaluations draw them; false: as training does"""
    num_items: PositiveInt
    """how many instances are drawn, by the run's seed"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        usual: dict[str, Any] = {"protocol": "nip", "scenario": "witness", "held_out": False, "num_items": 20_000}
        made = first_protocol(said)
        usual |= {} if made is None else {"role": made.verifiers[0]}
        with below("scenario"):
            return usual | {"scenario": completed(said.get("scenario", "witness"), place_of(AnyScenarioConfig), made)}

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if not isinstance(self.protocol, UnreadConfig):
            with below("protocol"):
                roles = make_protocol(self.protocol).roles
            if self.role not in roles:
                raise ConfigError.at("role", f"expected one of {listed(roles)}, got {self.role!r}")
        return self

    def build(self, train: Any, seed: int) -> "ScenarioData":
        return ScenarioData(self, seed)


class ScenarioData(TensorItems):
    """Items are the observations of a role in new games of a dialogue, with the label.

    Item i is what `role` observes in the game that `reset` makes of the i-th key of the stream "data/training" or
    "data/held out" of the run's seed. Raises ConfigError, with paths relative to the config.
    """

    num_classes = 2

    def __init__(self, config: ScenarioDataConfig, seed: int) -> None:
        device = torch.device("cpu")
        rules = DialogueConfig(
            name="dialogue", protocol=config.protocol, scenario=config.scenario, observation=UNCHANGED
        )
        with below("scenario"):
            game = DialogueGame(rules, device, "torch")
            self.scenario, self.files = game.scenario, game.scenario.files
            if LABEL in game.spaces[config.role]:
                raise ConfigError.at("", f"expected other entries than {LABEL!r} in what {config.role!r} sees")
            keys = world_keys(
                base_key(seed, f"data/{'held out' if config.held_out else 'training'}"), config.num_items, device
            )
            try:
                state = (game.held_out() if config.held_out else game).reset(keys)
                observation = game.observe(state, config.role)
            except Exception as error:  # of a scenario of the user's own
                raise ConfigError.at("", f"{config.scenario.name!r} fails: {failure(error)}") from error
        self.instances = instance_of(state)
        if self.files and "row" in self.instances:
            split, rows = (getattr(config.scenario, "held_out", None),), self.instances["row"].numpy()
            self.file_rows = FileRows(next(iter(self.files.values())), split, "scenario.held_out", rows)
        else:  # equal configs draw equal instances
            drawn = config.model_dump_json(exclude={"role", "num_items"})
            self.file_rows = FileRows(drawn, None, "", np.arange(config.num_items))
        super().__init__(observation, state["label"])

    def describe(self, index: int) -> str:
        """Describe the instance of an item as people read it."""
        return self.scenario.describe({name: value[index] for name, value in self.instances.items()})
