"""The metrics of players and the fields of their environments' `info` that go into the next record."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from palestra.games.info import InfoFields
from palestra.games.world import EnvironmentWorld
from palestra.players.player import Player
from palestra.recording.aggregates import Aggregates
from palestra.recording.history import History
from palestra.rollouts.solo import SoloWorlds
from palestra.runs.sections import OutputConfig


class PendingMetrics:
    """The metrics that have come since the last record.

    by_player: those of each learning player. info: the fields of the `info` of each player's environments; empty if the
    config names no field. Making this object lets the players' worlds collect these fields from now on.
    """

    def __init__(self, config: OutputConfig, learners: Sequence[Player]) -> None:
        statistics = config.statistics
        self.by_player = {player.name: Aggregates(statistics) for player in learners}
        self.info: dict[str, InfoFields] = {}
        for player in learners if config.info else ():
            assert isinstance(player.worlds, SoloWorlds)
            assert isinstance(player.worlds.world, EnvironmentWorld)
            self.info[player.name] = player.worlds.world.record_info(config.info, Aggregates(statistics))

    def take(self, player: str, join: Callable[[str, Aggregates], None]) -> dict[str, Any]:
        """Give the entries of a record that concern a player, by name. What comes later belongs to the next record.

        join: adds what other replicas have gathered.
        """
        if self.info:
            join("fields of info", self.info[player].aggregates)
        info = self.info[player].aggregates.take() if self.info else {}
        return self.by_player[player].take() | info

    def shown(self, player: Player, history: History) -> dict[str, float]:
        """The metrics of a player that the display shows.

        Those of its episodes are from the last record, all others have come since then. history: of the run's records.
        """
        before = history.last(player.name)
        names = [name for name in (*(f"return/{role}" for role in player.roles), "length") if name in before]
        return {name: before[name] for name in names} | self.by_player[player.name].shown() | player.rates()

    def missing_info(self) -> Iterator[str]:
        """A line for each field of info that no environment has given, or not as a number; each line once."""
        yield from dict.fromkeys(line for fields in self.info.values() for line in fields.news())

    def state_dict(self) -> dict[str, Any]:
        return {name: aggregates.state_dict() for name, aggregates in self._all().items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        for name, aggregates in self._all().items():
            if name in state:  # a branch may ask for more
                aggregates.load_state_dict(state[name], device)

    def _all(self) -> dict[str, Aggregates]:
        metrics = {f"metrics/{name}": aggregates for name, aggregates in self.by_player.items()}
        return metrics | {f"info/{name}": fields.aggregates for name, fields in self.info.items()}
