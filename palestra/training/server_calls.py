"""The calls of a run of text players to models behind servers: when they may be made, and what is told of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from palestra.storage.disk import RunFolderError
from palestra.text.players import TextPlayer
from palestra.text.servers.calls import Calls
from palestra.text.servers.ledger import Cost
from palestra.text.servers.model import ServerModel, check_servers


class ServerCalls:
    """The calls of a training. A run without models behind servers makes none, and has nothing of them.

    calls: makes them.
    """

    def __init__(self, training: Any) -> None:
        self.training = training
        self.calls = Calls(lambda: training.run.signals.received is not None)

    def models(self) -> dict[str, ServerModel]:
        """Return the models behind servers, by player."""
        seats = self.training.seats.items()
        models = {name: seat.model for name, seat in seats if isinstance(seat, TextPlayer)}
        return {name: model for name, model in models.items() if isinstance(model, ServerModel)}

    def require_ready(self) -> None:
        """Raise ConfigError for a key that is not set; in a new run also for a server that does not have its model."""
        run = self.training.run
        check_servers(self.models(), with_network=not run.resumed)

    def require_none(self) -> None:
        """Raise RunFolderError if there is a model behind a server."""
        for name in self.models():
            expected = (
                f"{self.training.run.folder.path}: expected models in this process, whose answers can be repeated"
            )
            raise RunFolderError(f"{expected}, got player {name!r} behind a server")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context in which the models can be asked. Raises ConfigError for a key that is not set."""
        if self.calls.is_open or not (models := self.models()):
            yield
            return
        check_servers(models, with_network=False)
        folder, budget = self.training.run.folder, self.training.config.budget
        limit = Cost(None, None) if budget is None else budget.limit()
        with self.calls.opened(folder.root.below("calls"), folder.facts().id, limit, self._most_drain_s()):
            yield

    def before_safe_point(self) -> None:
        """Keep what servers still answer if a signal asks the run to leave, and tell of attempts that have failed."""
        if self.training.is_asked_to_leave():
            self.calls.drain(self._most_drain_s())
        if (line := self.calls.warning()) is not None:
            self.training._warn(line)

    def before_save(self) -> None:
        """Let the next checkpoint name the journals."""
        if journals := self.calls.stored():
            self.training.checkpoints.stored.once["calls"] = journals

    def costs(self) -> dict[str, Any]:
        """Return what a record and the display say of calls, under `calls`."""
        return {"calls": self.calls.costs()} if self.models() else {}

    def _most_drain_s(self) -> float:
        return float(self.training.config.output.stop_within_s) / 2
