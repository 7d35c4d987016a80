"""What a training of text players does for those behind servers: when they may be asked, and what a budget ends."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from palestra.runs.text import BUDGET_IS_SPENT, TextConfig
from palestra.runs.text_costs import TextCosts
from palestra.runtime.intervals import Counters
from palestra.storage.checkpoints import CheckpointError, Checkpoints
from palestra.text.servers.ledger import BudgetReached
from palestra.training.checks import check_ready
from palestra.training.server_calls import ServerCalls
from palestra.training.training import Training


class TextServers(Training):
    """The part of a TextTrainer that concerns servers and the budget.

    servers: the calls and jobs. costs: bounds of what they cost.
    """

    servers: ServerCalls
    costs: TextCosts

    @property
    def config(self) -> TextConfig:
        return self.run.config

    @classmethod
    def bounds(cls, config: TextConfig) -> list[str]:
        return TextCosts.of(config).lines()

    @classmethod
    def check(cls, config: TextConfig) -> None:
        """As in Training, without asking a server or for its key."""
        training = cls(config)
        check_ready(training)
        training.costs.require_affordable()

    def require_ready(self) -> None:
        super().require_ready()
        if not self.run.resumed:
            self.costs.require_affordable()
        if not self._has_nothing_left():
            self.servers.require_ready()

    def require_repeatable(self) -> None:
        self.servers.require_none()

    @contextmanager
    def train_context(self) -> Iterator[None]:
        """As in Training. A run that is over asks no server, and so needs no key."""
        with super().train_context(), self.servers.opened(self.is_between or not self._has_nothing_left()):
            yield

    def _has_nothing_left(self) -> bool:
        """Whether the run is over; before it is restored, its last checkpoint says so."""
        if self.run.resumed and not any(self.counts().values()) and self.servers.models():
            with suppress(CheckpointError):  # restoring it will say what is wrong
                latest = Checkpoints(self.run.folder, keep_last=1, keep_every=None).load("latest", check_rows=False)
                with latest.fitting():
                    return self.is_over(latest.state)
        return self.finished

    def safe_point(self) -> None:
        self.servers.before_safe_point()
        super().safe_point()

    def save(self, is_due: bool = True) -> None:
        self.servers.before_save()
        super().save(is_due)

    def evaluate(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """As in Training. Where the budget leaves no room, the run ends, and what cannot be paid is left out."""
        try:
            return super().evaluate(names)
        except BudgetReached:
            self._leave_out(names)
            return []

    def _evaluate_what_is_due(self, done: bool, before: Counters, now: Counters) -> bool:
        done = super()._evaluate_what_is_due(done, before, now)
        return super()._evaluate_what_is_due(True, before, now) if self.is_cut and not done else done

    def _leave_out(self, names: Sequence[str]) -> None:
        self._warn(f"evaluation {', '.join(names)} is left out: {BUDGET_IS_SPENT}")
        self.is_cut = True
        self._end_by_budget()

    def _end_by_budget(self) -> None:
        """End the run, even one that is at its `stop`: with a larger budget it goes on right here."""
        self.servers.calls.let_go()  # evaluations that can still be paid are made
        if self.end_reason is None:
            self.end_reason = BUDGET_IS_SPENT
            self.log(BUDGET_IS_SPENT)

    def _test(self) -> None:
        for name in self.evaluating.at_end():
            left = self.servers.calls.ledger
            if self.end_reason == BUDGET_IS_SPENT and not left.could_begin(self.costs.evaluation(name, True).cost):
                self._leave_out([name])
            else:
                self.evaluate([name])

    def _warn(self, line: str) -> None:
        """Show a warning, and put it into the next record."""
        self.run.display.warn(line)
        self.note("warning", line)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"budget": self._budget()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._has_more(state):
            state = state | {"end_reason": None, "finished": False}
        super().load_state_dict(state)

    def is_over(self, state: Mapping[str, Any]) -> bool:
        return super().is_over(state) and not self._has_more(state)

    def _has_more(self, state: Mapping[str, Any]) -> bool:
        """Whether the budget ended the run there, and is another one now."""
        return state["end_reason"] == BUDGET_IS_SPENT and state["budget"] != self._budget()

    def _budget(self) -> dict[str, Any] | None:
        return None if self.config.budget is None else self.config.budget.model_dump()
