"""What a run gathers from one record to the next: the players' metrics, fields of the environments' info, notes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from palestra.games.gymnasium import GymnasiumWorld
from palestra.games.gymnasium.info import InfoFields
from palestra.players.player import Player
from palestra.recording.aggregates import Aggregates
from palestra.rollouts.solo import SoloWorlds
from palestra.runs.config import OutputConfig


class Gathered:
    """metrics, info: by learning player; info is empty where no field is asked for. notes: what was noted of the run.

    The worlds of the players give their fields from now on.
    """

    def __init__(self, config: OutputConfig, learners: Sequence[Player]) -> None:
        statistics = config.statistics
        self.metrics = {player.name: Aggregates(statistics) for player in learners}
        self.notes = Aggregates(statistics)
        self.info: dict[str, InfoFields] = {}
        for player in learners if config.info else ():
            assert isinstance(player.worlds, SoloWorlds)
            assert isinstance(player.worlds.world, GymnasiumWorld)
            fields = InfoFields(config.info, player.num_worlds, Aggregates(statistics))
            self.info[player.name] = player.worlds.world.info = fields

    def take(self, player: str) -> dict[str, Any]:
        """What a record says of a player."""
        told = self.info[player].gathered.take() if self.info else {}
        return self.metrics[player].take() | told

    def news(self) -> Iterator[str]:
        """Which fields of info have not come, or not as numbers; each once."""
        yield from dict.fromkeys(line for fields in self.info.values() for line in fields.news())

    def state_dict(self) -> dict[str, Any]:
        return {name: gathered.state_dict() for name, gathered in self._all().items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        for name, gathered in self._all().items():
            if name in state:  # a branch may ask for more
                gathered.load_state_dict(state[name], device)

    def _all(self) -> dict[str, Aggregates]:
        metrics = {f"metrics/{name}": gathered for name, gathered in self.metrics.items()}
        return metrics | {f"info/{name}": fields.gathered for name, fields in self.info.items()} | {"notes": self.notes}
