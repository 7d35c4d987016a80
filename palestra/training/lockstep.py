"""A training as one of the replicas of a run, which go through the same stages in lockstep."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from palestra.config import ConfigError, failure
from palestra.players.player import Player
from palestra.recording.aggregates import Aggregates
from palestra.run.evaluating import EvaluationHooks
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.runtime.signals import Interrupted
from palestra.runtime.threads import join_all
from palestra.scaling.exchange import Exchange, ReplicaFailed
from palestra.scaling.link import Notice
from palestra.scaling.means import LockstepError
from palestra.scaling.replica import Replica
from palestra.scaling.states import differing, digests, own_part, shared, unshared, with_part
from palestra.storage.manifest import StoredRows
from palestra.training.checks import TrainingFailed, branch_hint, telling_failures
from palestra.training.processes import RowsElsewhere

REPLICAS = "replicas"
"""the entry of a checkpoint's state that holds, for each replica but the first, what is its own"""


class Dismissed(Exception):
    """The leader goes on without the other replicas, and ends."""


class Lockstep:
    """What a training does together with the other replicas of its run. Replica 0 leads; a lone one asks nobody.

    replica: its place. head: the lockstep of the first replica in this process. followers: those of the others, once
    they are made; of the head alone. loaded: the checkpoint that the head has read. handed_over: by role, copies of
    what `set_model` has handed over, for the followers; of the head alone.
    """

    def __init__(self, training: Any, replica: Replica) -> None:
        self.training, self.replica = training, replica
        self.head, self.followers = self, list[Lockstep]()
        self.loaded: LoadedCheckpoint | None = None
        self.handed_over: dict[str, Any] = {}
        self._evaluated: list[Mapping[str, Any]] = []
        self._num_means = 0
        replica.notice = self._notice

    def _notice(self) -> Notice:
        run = self.training.run
        wants_to_end = run.signals.received is not None or self.training.end_reason is not None
        return Notice(wants_to_end, run.clock.seconds / 60)

    # ---- one fit -------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self, call: Callable[[Any], object]) -> Iterator[None]:
        """The context of one `fit`: failures are told, and the other replicas of this process fit along with its head.

        call: calls for each of these what was called here.
        """
        training, replica = self.training, self.replica
        if not replica.heads:
            torch.set_num_threads(training.config.execution.num_threads)  # each thread has a setting of its own
        with telling_failures(training.run, training.failures) if replica.heads else nullcontext():
            if replica.is_alone or not replica.heads:
                yield
                return
            self._make_followers()
            exchange = Exchange(replica.num_here)
            threads = [threading.Thread(target=each._follow, args=(call,), daemon=True) for each in self.followers]
            self.replica.exchange = exchange
            for each in self.followers:
                each.replica.exchange, each.replica.link = exchange, replica.link
                own = each.training  # `extend` may have changed the leader's since the last `fit`
                own.run.config = training.run.config
                own.finished, own.end_reason, own.is_cut = training.finished, training.end_reason, training.is_cut
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
                join_all(threads)
            if isinstance(exchange.failure, LockstepError):
                raise TrainingFailed(str(exchange.failure), branch_hint(training.run.folder))
            if exchange.failure is not None and not isinstance(exchange.failure, Dismissed):
                raise exchange.failure

    def _make_followers(self) -> None:
        """Make the other replicas of this process, unless they exist, each with copies of what was handed over."""
        training, run, replica = self.training, self.training.run, self.replica
        if self.followers or replica.num_here == 1:
            return
        callbacks = training.callbacks[len(training.config.callbacks) :]
        quiet = Console(quiet=True)
        for place in range(1, replica.num_here):
            own, at = deepcopy(callbacks), Replica(replica.index + place, replica.num, replica.ranks)
            made = type(training)(training.config, run.place, (), own, quiet, run.origin, at)
            made.lockstep.head = self
            for role, given in self.handed_over.items():
                made.set_model(role, deepcopy(given))
            self.followers.append(made.lockstep)

    def dismiss(self) -> None:
        """Let the other replicas go, before a watcher, whom the leader alone has, ends the training here."""
        if self.replica.exchange is not None:
            self.replica.exchange.fail(Dismissed())

    def copy_of(self, role: str, given: Any) -> Any:
        """Return a copy of what `set_model` hands over if this replica leads others here. Raises ConfigError."""
        if self.replica.num_here == 1 or not self.replica.heads:
            return None
        try:
            return deepcopy(given)
        except Exception as error:
            what = f"because set_model({role!r}, ...) hands over what cannot be copied ({failure(error)})"
            raise ConfigError.at("num_replicas", f"expected 1, {what}, got {self.replica.num}") from error

    def _follow(self, call: Callable[[Any], object]) -> None:
        """Do what the leader does, in a thread of one's own."""
        exchange, place = self.replica.exchange, self.replica.place
        assert exchange is not None
        try:
            exchange.begin(place)
            call(self.training)
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
        return any(each.wants_to_end for each in self.replica.news)

    def agree_on_end(self) -> None:
        """Let the first reason to end the run that a replica has be that of all."""
        reasons = self.replica.each("what is due", self.training.end_reason)
        if found := [reason for reason in reasons if reason is not None]:
            self.training.end_reason = found[0]

    def agree_to_leave(self, save_is_due: bool, pauses: bool, received: int | None) -> tuple[bool, bool]:
        """Return whether the leader has to save, and whether all leave.

        pauses: whether this replica has made the steps of one `fit`. received: the signal that has asked it to leave,
        which all processes then leave by.
        """
        save_is_due = self.replica.of_leader("whether to save", save_is_due)
        of_all = self.replica.each("who leaves", (pauses, received))
        numbers = [number for _, number in of_all if number is not None]
        if numbers:
            self._leave_by(numbers[0])
        return save_is_due, bool(numbers) or any(pauses for pauses, _ in of_all)

    def _leave_by(self, received: int) -> None:
        """Let the signal that has reached one process be that of this one."""
        if self.replica.heads:
            self.training.run.signals.received = received

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
            raise TrainingFailed(without_mean(player, type(self.training)))
        self._average_buffers(player.nets.values())

    def join_statistics(self, game: Any, added: Callable[[], list[Any]]) -> None:
        """Give all replicas the same running statistics of observations and rewards, which they have in common.

        added: gives what each actor of this replica has added.
        """
        if statistics := game.statistics():
            of_all = [*chain.from_iterable(self.replica.each("running statistics", added()))]
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

    def keeping_others(self) -> AbstractContextManager[None]:
        """A context in which the other processes wait for the leader, however long it takes."""
        link = self.replica.link
        return nullcontext() if link is None or not self.replica.leads else link.busy()

    def waits(self) -> dict[str, Any]:
        """Return for a record how many seconds each process has waited for others since the last one."""
        link = self.replica.link
        if link is None:
            return {}
        of_all = self.replica.each("how long each has waited", link.waited_s if self.replica.heads else None)
        if self.replica.heads:
            link.waited_s = 0.0
        return {"waited_s": {str(rank): seconds for rank, seconds in enumerate(of_all[:: self.replica.num_here])}}

    # ---- evaluations ---------------------------------------------------------------------------------------

    def hooks(self, hooks: EvaluationHooks) -> EvaluationHooks:
        """Return the hooks of evaluations: of several replicas, each hears of the results afterwards."""
        return hooks if self.replica.is_alone else hooks._replace(after_evaluation=self._evaluated.append)

    @contextmanager
    def evaluating(self) -> Iterator[list[dict[str, Any]]]:
        """A context in which the leader evaluates, and at whose end all replicas hear of the results.

        It gives the list of their records, which the leader fills. Raises Interrupted in all of them if a signal comes.
        The evaluations of a test are one piece, which has its own.
        """
        found: list[dict[str, Any]] = []
        if self.replica.is_alone:
            yield found
            return
        if self.training.evaluating.is_final:
            with self.keeping_others():
                yield found
            return
        self._evaluated = []
        try:
            with self.keeping_others():
                yield found
        except Interrupted:
            self.replica.of_leader("the results of evaluations", self.training.run.signals.received)
            raise
        records = self.replica.of_leader("the results of evaluations", (self._evaluated, found))
        if isinstance(records, int):
            self._leave_by(records)
            raise Interrupted
        evaluated, found[:] = records
        for record in evaluated:
            self.training.after_evaluation(record)

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save(self, is_best: bool, is_due: bool) -> Path | None:
        """Write a checkpoint of all replicas, and return its folder; None if the disk refuses."""
        training, checkpoints, replica = self.training, self.training.checkpoints, self.replica
        buffers = self.buffers()
        folder: Path | None = None
        stored: dict[str, StoredRows] | None = None
        leaves_rows = checkpoints.leaves_out_rows(buffers, training.finished)
        leaves_rows = replica.of_leader("whether rows are left out", leaves_rows)
        state = self.joined(training.without_rows(training.state_dict()) if leaves_rows else training.state_dict())
        link = None if leaves_rows or not buffers else replica.link
        rows = None if link is None else RowsElsewhere(link)
        if state is not None:
            with self.keeping_others():
                arguments = state, training.counts(), None if leaves_rows else buffers, is_best, is_due
                folder = checkpoints.save(*arguments, *([] if rows is None else [rows.ask]))
                if rows is not None and not rows.was_asked:
                    rows.ask(None)
        elif rows is not None and replica.heads:
            stored = rows.answer(training, buffers)
        place = replica.of_leader("the folder of a checkpoint", None if folder is None else str(folder))
        folder = None if place is None else Path(place)
        if rows is not None and replica.heads and not replica.leads:
            checkpoints.stored.note_stored(None if folder is None else stored)
        return folder

    def write_ahead(self) -> None:
        """Write rows of replay buffers that the next checkpoint will need."""
        if self.replica.heads:
            self.training.checkpoints.write_ahead(self.buffers())

    def joined(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a checkpoint holds of the states of all replicas; None in those that do not lead.

        Raises TrainingFailed if they differ where they must not.
        """
        if self.replica.is_alone:
            return state
        common = common_states(self.training.learners, state)
        own = unshared(state, common)
        of_all = self.replica.each("states", (digests(shared(state, common)), own), to_first=True)
        if not self.replica.leads:
            return None
        for index, (told, _) in enumerate(of_all):
            if parts := [*differing(told, of_all[0][0])]:
                more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
                message = f"replica {index} has come to another state than replica 0: {parts[0]}{more}; expected equal"
                raise TrainingFailed(f"{message} ones, so callbacks and trainers must decide alike in all replicas")
        return state | {REPLICAS: [own_part(each, own) for _, each in of_all[1:]]}

    def has_no_checkpoint(self) -> bool:
        """Return whether the run has none yet."""
        has_none = self.replica.leads and not self.training.checkpoints.stored.numbers()
        return self.replica.of_leader("whether there is no checkpoint", has_none)

    def begin(self, loaded: LoadedCheckpoint | None) -> tuple[Any, bool]:
        """Return this replica's state of the checkpoint that the leader has read, and whether the run branches off it.

        loaded: the leader's. The state is None if there is no checkpoint. The heads of other processes read it again,
        with their rows.
        """
        is_branch = loaded is not None and not self.training.checkpoints.stored.is_ours(loaded)
        if self.replica.is_alone:
            return None if loaded is None else loaded.state, is_branch
        self.loaded = loaded
        place = None if loaded is None else str(loaded.folder.resolve())
        place, is_branch = self.replica.of_leader("the checkpoint to begin with", (place, is_branch))
        if place is None:
            return None, is_branch
        checkpoints = self.training.checkpoints
        if self.replica.heads and not self.replica.leads:
            self.loaded = checkpoints.stored.load(Path(place), check_rows=False)
            checkpoints.restore_rows(self.loaded, self.buffers())
        assert self.head.loaded is not None
        whole = self.head.loaded.state
        of_leader = {key: value for key, value in whole.items() if key != REPLICAS}
        if self.replica.leads:
            return of_leader, is_branch
        return deepcopy(with_part(whole[REPLICAS][self.replica.index - 1], of_leader)), is_branch

    def buffers(self) -> dict[str, Any]:
        """Return the replay buffers of all replicas in this process, by their names in checkpoints."""
        found: dict[str, Any] = {}
        for each in (self, *self.followers):
            suffix = "" if each.replica.leads else f"~{each.replica.index}"
            found |= {f"{name}{suffix}": buffer for name, buffer in each.training.buffers().items()}
        return found


def common_states(learners: Sequence[Any], state: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return, for each player that learns, what the state of its algorithm has in common in all replicas.

    state: of the training. Raises TrainingFailed if an algorithm names an entry that its state lacks.
    """
    algorithms = {each.name: each.algorithm for each in learners if isinstance(each, Player)}
    found = dict[str, Sequence[str]]()
    for name, algorithm in algorithms.items():
        found[name] = () if algorithm is None else algorithm.common_state
        own = state["players"][name]["algorithm"]
        if missing := [entry for entry in found[name] if entry not in own]:
            kind = type(algorithm)
            message = f"players.{name}: {kind.__module__}.{kind.__qualname__} has {missing[0]!r} in common_state"
            raise TrainingFailed(
                f"{message}; expected an entry of its state_dict ({', '.join(own) or 'which is empty'})"
            )
    return found


def without_mean(player: Any, trainer: type) -> str:
    """Say that a player has made an opt step without the other replicas."""
    maker, owner = type(player.algorithm), "self.player"
    if maker.__module__.startswith("palestra."):  # it has the line, so the trainer makes opt steps itself
        maker, owner = trainer, "player"
    line = f"gradient, metrics = {owner}.mean_over_replicas(gradient, metrics)"
    return (
        f"players.{player.name}: {maker.__module__}.{maker.__qualname__} has made an opt step without the "
        f"other replicas; expected `{line}` between gradient and step"
    )
