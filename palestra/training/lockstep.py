"""A training as one of the replicas of a run, which go through the same stages in lockstep."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from palestra.config import ConfigError, failure
from palestra.recording.aggregates import Aggregates
from palestra.runs.evaluating import EvaluationHooks
from palestra.runtime.signals import Interrupted
from palestra.scaling.exchange import Exchange, ReplicaFailed
from palestra.scaling.means import LockstepError
from palestra.scaling.replica import Replica, Status
from palestra.scaling.states import differing, own_part, with_part
from palestra.training.checks import TrainingFailed, branch_hint, telling_failures

REPLICAS = "replicas"
"""the entry of a checkpoint's state that holds, for each replica but the first, what is its own"""
SHARED_OF_MODELS = ("batch", "num_batches", "loader", "epoch_is_over", "model", "in_evaluation", "learner")
SHARED = ("counters", "epoch_counts", "in_epoch", "finished", "turn", *SHARED_OF_MODELS)
SHARED_OF_PLAYERS = ("nets", "optimizers", "opt_steps", "env_steps", "schedules", "frozen", "turn_progress")


class Lockstep:
    """What a training does together with the other replicas of its run. Replica 0 leads; a lone one asks nobody.

    replica: its place. followers: the lockstep of the other replicas in this process, once they are made; of the
    leader alone.
    """

    def __init__(self, training: Any, replica: Replica) -> None:
        self.training, self.replica = training, replica
        self.followers: list[Lockstep] = []
        self._handed_over: dict[str, Any] = {}
        self._evaluated: list[Mapping[str, Any]] = []
        self._num_means = 0
        replica.status = self._status

    def _status(self) -> Status:
        run = self.training.run
        return Status(run.signals.received, self.training.end_reason, run.clock.seconds / 60)

    # ---- one fit -------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self, *arguments: Any) -> Iterator[None]:
        """The context of one `fit`: failures are told, and the replicas that this one leads fit along with it.

        arguments: those of `fit`.
        """
        training, replica = self.training, self.replica
        if not replica.leads:
            torch.set_num_threads(training.config.execution.num_threads)  # each thread has a setting of its own
        with telling_failures(training.run, training.failures) if replica.leads else nullcontext():
            if replica.is_alone or not replica.leads:
                yield
                return
            self._make_followers()
            exchange = Exchange(replica.num)
            threads = [threading.Thread(target=each._follow, args=(arguments,), daemon=True) for each in self.followers]
            self.replica.exchange = exchange
            for each in self.followers:
                each.replica.exchange = exchange
                each._take_over(training)
            for thread in threads:
                thread.start()
            try:
                yield
                exchange.leave(0)
            except ReplicaFailed:
                pass
            except BaseException as error:
                exchange.fail(error)
                raise
            finally:
                for thread in threads:
                    thread.join()
            if isinstance(exchange.failure, LockstepError):
                raise TrainingFailed(str(exchange.failure), branch_hint(training.run.folder))
            if exchange.failure is not None:
                raise exchange.failure

    def _make_followers(self) -> None:
        """Make the other replicas of this process, unless they exist, each with copies of what was handed over."""
        training, run, num = self.training, self.training.run, self.replica.num
        if self.followers:
            return
        callbacks = training.callbacks[len(training.config.callbacks) :]
        quiet = Console(quiet=True)
        for index in range(1, num):
            own = deepcopy(callbacks)
            made = type(training)(training.config, run.place, (), own, quiet, run.origin, Replica(index, num))
            for role, given in self._handed_over.items():
                made.set_model(role, deepcopy(given))
            self.followers.append(made.lockstep)

    def keep_copy(self, role: str, given: Any) -> None:
        """Keep a copy of what `set_model` hands over, for the replicas that this one leads. Raises ConfigError."""
        if self.replica.is_alone or not self.replica.leads:
            return
        try:
            self._handed_over[role] = deepcopy(given)
        except Exception as error:
            what = f"because set_model({role!r}, ...) hands over what cannot be copied ({failure(error)})"
            raise ConfigError.at("num_replicas", f"expected 1, {what}, got {self.replica.num}") from error

    def _take_over(self, leader: Any) -> None:
        """Take over what `extend` may have changed since the last `fit`."""
        training = self.training
        training.run.config = leader.run.config
        training.finished, training.end_reason, training.is_cut = leader.finished, leader.end_reason, leader.is_cut

    def _follow(self, arguments: Sequence[Any]) -> None:
        """Fit along with the leader, in a thread of one's own."""
        exchange, place = self.replica.exchange, self.replica.index
        assert exchange is not None
        try:
            exchange.begin(place)
            num_steps, unit, max_steps = arguments
            self.training.fit(num_steps, unit, max_steps=max_steps)
            exchange.leave(place)
        except ReplicaFailed:
            return
        except BaseException as error:
            exchange.fail(error)

    # ---- what is agreed ------------------------------------------------------------------------------------

    def minutes(self) -> float:
        """Return the minutes of training, by the leader's clock as all have heard of it."""
        news = self.replica.news
        return float(self.training.run.clock.seconds / 60) if self.replica.is_alone or not news else news[0].minutes

    def is_asked_to_end(self) -> bool:
        """Return whether a signal or a reason to end has reached all replicas."""
        if self.replica.is_alone:
            return self.training.run.signals.received is not None or self.training.end_reason is not None
        return any(each.signal is not None or each.end_reason is not None for each in self.replica.news)

    def agree_on_end(self) -> None:
        """Let the first reason to end the run that a replica has be that of all."""
        self.replica.each("what is due", None)
        reasons = [each.end_reason for each in self.replica.news if each.end_reason is not None]
        if reasons:
            self.training.end_reason = reasons[0]

    def agree_to_leave(self, save_is_due: bool, leaving: bool) -> tuple[bool, bool]:
        """Return whether the leader has to save, and whether any replica was asked to leave."""
        return self.replica.of_leader("whether to save", save_is_due), any(self.replica.each("who leaves", leaving))

    def due_once(self) -> Mapping[str, float]:
        """Return the counts at which results of the leader's evaluations count."""
        return self.replica.of_leader("when results count", self.training.evaluating.due_once())

    # ---- opt steps and roll-outs ---------------------------------------------------------------------------

    def before_step(self) -> None:
        """Note how many means there were."""
        self._num_means = self.replica.num_means

    def after_step(self, player: Any) -> None:
        """Average the statistics of batch norm. Raises TrainingFailed if the step was made without the others."""
        if self.replica.is_alone:
            return
        if self.replica.num_means == self._num_means:
            raise TrainingFailed(without_mean(player, self.training))
        self._average_buffers(player.nets.values())

    def share_statistics(self, game: Any) -> None:
        """Let replicas have the running statistics of observations and rewards in common."""
        for each in () if self.replica.is_alone else game.statistics():
            each.begin_sharing()

    def join_statistics(self, game: Any) -> None:
        """Give all replicas the same running statistics of observations and rewards."""
        statistics = [] if self.replica.is_alone else game.statistics()
        if statistics:
            of_all = self.replica.each("running statistics", [each.added.own_state() for each in statistics])
            for number, each in enumerate(statistics):
                each.join_all([states[number] for states in of_all])

    def _average_buffers(self, nets: Iterable[nn.Module]) -> None:
        """Give the buffers of networks that are numbers their mean over replicas."""
        buffers = [buffer for net in nets for buffer in net.buffers() if buffer.is_floating_point()]
        if buffers:
            mean, _ = self.replica.mean(torch.cat([buffer.detach().flatten() for buffer in buffers]), {})
            for buffer, value in zip(buffers, mean.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(value.view_as(buffer))

    def join(self, what: str, own: Aggregates) -> None:
        """Add to what the leader has gathered for a record what the others have, who then forget it."""
        if self.replica.is_alone:
            return
        states = self.replica.each(what, own.state_dict())
        if not self.replica.leads:
            own.take()
            return
        for state in states[1:]:
            other = Aggregates(own.statistics)
            other.load_state_dict(state, self.training.device)
            own.join(other)

    # ---- evaluations ---------------------------------------------------------------------------------------

    def hooks(self, hooks: EvaluationHooks) -> EvaluationHooks:
        """Return the hooks of evaluations: of several replicas, each hears of the results afterwards."""
        return hooks if self.replica.is_alone else hooks._replace(after_evaluation=self._evaluated.append)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which the leader evaluates, and at whose end all replicas hear of the results.

        Raises Interrupted in all of them if a signal comes. The evaluations of a test are one piece, which has its own.
        """
        if self.replica.is_alone or self.training.evaluating.is_final:
            yield
            return
        self._evaluated = []
        try:
            yield
        except Interrupted:
            self.replica.of_leader("the results of evaluations", None)
            raise
        records = self.replica.of_leader("the results of evaluations", self._evaluated)
        if records is None:
            raise Interrupted
        for record in records:
            self.training.after_evaluation(record)

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save(self, is_best: bool, is_due: bool) -> Path | None:
        """Write a checkpoint of all replicas, and return its folder; None if the disk refuses."""
        training, checkpoints, folder = self.training, self.training.checkpoints, None
        leaves_rows = checkpoints.leaves_out_rows(buffers := self.buffers(), training.finished)
        leaves_rows = self.replica.of_leader("whether rows are left out", leaves_rows)
        own = training.without_rows(training.state_dict()) if leaves_rows else training.state_dict()
        if (state := self.joined(own)) is not None:
            folder = checkpoints.save(state, training.counts(), None if leaves_rows else buffers, is_best, is_due)
        return self.replica.of_leader("the folder of a checkpoint", folder)

    def write_ahead(self) -> None:
        """Write rows of replay buffers that the next checkpoint will need."""
        if self.replica.leads:
            self.training.checkpoints.write_ahead(self.buffers())

    def joined(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a checkpoint holds of the states of all replicas; None in those that do not lead.

        Raises TrainingFailed if they differ where they must not.
        """
        if self.replica.is_alone:
            return state
        states = self.replica.each("states", state)
        for index, each in enumerate(states[1:], start=1):
            if parts := [*differing(shared(each), shared(state))] if self.replica.leads else []:
                more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
                message = f"replica {index} has come to another state than replica 0: {parts[0]}{more}; expected equal"
                raise TrainingFailed(f"{message} ones, so callbacks and trainers must decide alike in all replicas")
        if not self.replica.leads:
            return None
        return state | {REPLICAS: [own_part(each, state) for each in states[1:]]}

    def begin(self, state: Mapping[str, Any] | None, is_branch: bool = False) -> tuple[Any, bool]:
        """Return this replica's state of the checkpoint that the leader has read, and whether the run branches off it.

        The arguments are the leader's. The state is None if there is no checkpoint.
        """
        if self.replica.is_alone:
            return state, is_branch
        whole, is_branch = self.replica.of_leader("the state to begin with", (state, is_branch))
        if whole is None:
            return None, is_branch
        of_leader = {key: value for key, value in whole.items() if key != REPLICAS}
        if self.replica.leads:
            return of_leader, is_branch
        return deepcopy(with_part(whole[REPLICAS][self.replica.index - 1], of_leader)), is_branch

    def buffers(self) -> dict[str, Any]:
        """Return the replay buffers of all replicas in this process, by their names in checkpoints."""
        found = dict(self.training.buffers())
        for each in self.followers:
            found |= {f"{name}~{each.replica.index}": buffer for name, buffer in each.training.buffers().items()}
        return found


def shared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a state that all replicas have in common."""
    players = {
        name: {part: player[part] for part in SHARED_OF_PLAYERS if part in player}
        for name, player in state.get("players", {}).items()
    }
    return {part: state[part] for part in SHARED if part in state} | {"players": players}


def without_mean(player: Any, training: Any) -> str:
    """Say that a player has made an opt step without the other replicas."""
    maker, owner = type(player.algorithm), "self.player"
    if maker.__module__.startswith("palestra."):  # it has the line, so the trainer makes opt steps itself
        maker, owner = type(training), "player"
    line = f"gradient, metrics = {owner}.mean_over_replicas(gradient, metrics)"
    return (
        f"players.{player.name}: {maker.__module__}.{maker.__qualname__} has made an opt step without the "
        f"other replicas; expected `{line}` between gradient and step"
    )
