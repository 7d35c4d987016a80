"""Actors: each plays in a share of the worlds in which players learn, here or in a process of its own.

They play by snapshots of the players, which are as old as `actors.lag` says, so that they can play while the learner
learns. The learner waits for each roll-out and drops none: what a run computes depends on no clock, and on no process.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palestra.algorithms.parts.passes import LearnsInPasses
from palestra.games.info import InfoFields
from palestra.games.world import EnvironmentFailed, EnvironmentWorld
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.parts import Parts, build_parts
from palestra.kinds.games.seating import Seating, play_stream, seed_play
from palestra.recording.aggregates import Aggregates
from palestra.rollouts import fuse
from palestra.rollouts.played import NUM_RECENT, PlayedGame, RunningGames
from palestra.rollouts.solo import SoloWorlds
from palestra.rollouts.transitions import Transitions, by_tensor
from palestra.run.kinds import read_stored_config
from palestra.scaling.replica import Replica
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import copied, from_bytes, to_bytes
from palestra.training.worker import Serve
from palestra.training.workers import Job, LogFile, ProcessFailed, ProcessLost, Terms, Worker, close_all

LOOK_S = 0.2  # between two looks at the display while training waits


class ActorsLost(Exception):
    """A process of actors has failed, or was lost too often. The message says why."""


def snapshot_of(parts: Parts, seating: Seating) -> dict[str, Any]:
    """Return what actors play by: of all players that learn, the game, and past selves that sit, as they are now."""
    players = {player.name: player.acting_state() for player in parts.learners}
    return copied({"players": players, "game": parts.game.state_dict()}) | seating.snapshot()


def notes_of_lag(config: RunConfig, algorithm: Any) -> Iterator[str]:
    """Yield a line if an algorithm learns from what an older policy has played as if it had been the present one."""
    if config.actors is None or config.actors.lag == 0 or not isinstance(algorithm, LearnsInPasses):
        return
    if not getattr(getattr(algorithm, "estimator", None), "corrects", False):
        own = algorithm.config
        steps = f"{config.actors.lag * own.num_passes * own.num_minibatches:,} opt steps older than the one that learns"
        yield (
            f"the policy that plays is up to {steps} (actors.lag = {config.actors.lag}), which {own.name!r} does not "
            "correct; on_policy with estimator.name=v_trace does"
        )


class PlayRequest(NamedTuple):
    """A roll-out of some actors. It is sent to processes as a dict.

    replica: for which. snapshot: by which to play. roles: whose experience is wanted. stream: of the random numbers of
    the worlds. firsts: the number of each actor's first world. num_worlds: of one actor. states: of each actor's worlds
    before the roll-out, None if they are new; None if the actors have them.
    """

    replica: int
    snapshot: Mapping[str, Any]
    roles: tuple[str, ...]
    num_rounds: int
    stream: str
    firsts: Sequence[int]
    num_worlds: int
    states: Sequence[Any] | None


class Actors:
    """The actors of one place, which have the game and the players in common: those of a training, or of a process."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.fused_game = parts, fuse(parts.game)
        self.seating = Seating(parts)
        self.worlds: dict[tuple[str, int], Any] = {}
        self.info: dict[tuple[str, int], InfoFields] = {}
        for each in parts.game.statistics():
            each.begin_sharing()

    def play(self, request: PlayRequest) -> list[dict[str, Any]]:
        """Let each actor play in its worlds, and return what they answer.

        The experience by role; the worlds' state, whose `totals` are of this roll-out alone; what was added to running
        statistics and to fields of `info`; and the seconds that it took.
        """
        for name, state in request.snapshot["players"].items():
            # an algorithm may write into it
            self.parts.players[name].load_acting_state(state | {"acting": copied(state["acting"])})
        self.seating.load_snapshot(request.snapshot)
        states = [None] * len(request.firsts) if request.states is None else request.states
        return [self._play(request, *each) for each in zip(request.firsts, states, strict=True)]

    def _play(self, request: PlayRequest, first: int, state: Mapping[str, Any] | None) -> dict[str, Any]:
        started, parts = time.perf_counter(), self.parts
        place = request.stream, first
        if state is not None:  # before the statistics, which count what new worlds observe
            if place not in self.worlds:
                self._begin(place, request.num_worlds)
            self.worlds[place].load_state_dict(copied(state))
            self.worlds[place].forget_results()
        parts.game.load_state_dict(request.snapshot["game"])
        if request.states is not None and state is None:
            self._begin(place, request.num_worlds)
        worlds = self.worlds[place]
        learner = next((each.name for each in parts.learners if play_stream(each.name) == request.stream), "")
        self.seating.seat(self.fused_game, learner, worlds, first)
        seed_play(parts.config.seed, learner or request.roles[0], first, worlds)
        by_role = self.fused_game.collect(worlds, request.roles, request.num_rounds)
        answer = {
            "rows": {role: dict(vars(rows)) for role, rows in by_role.items()},
            "worlds": copied(worlds.state_dict()),
            "statistics": self.fused_game.added(),
            "info": self._take_info(place),
            "seconds": time.perf_counter() - started,
        }
        worlds.forget_results()
        return answer

    def _begin(self, place: tuple[str, int], num_worlds: int) -> None:
        """Make new worlds."""
        (stream, first), config = place, self.parts.config
        worlds = self.worlds[place] = self.fused_game.new_worlds(num_worlds, config.seed, stream, first)
        if config.output.info:
            assert isinstance(worlds, SoloWorlds)
            assert isinstance(worlds.world, EnvironmentWorld)
            self.info[place] = InfoFields(config.output.info, num_worlds, self._no_info())
            worlds.world.read_info(self.info[place])

    def _no_info(self) -> Aggregates:
        return Aggregates(self.parts.config.output.statistics)

    def _take_info(self, place: tuple[str, int]) -> dict[str, Any] | None:
        if (fields := self.info.get(place)) is None:
            return None
        sums, fields.sums = fields.sums, self._no_info()
        assert isinstance(sums, Aggregates)
        return {"sums": sums.state_dict(), "told": fields.told()}

    def close(self) -> None:
        self.parts.game.close()


def serve_actors(run: Path) -> tuple[int, Serve]:
    """The actors of a process (palestra.training.worker). Returns the number of threads, and what answers."""
    folder = RunFolder.open(run)
    config: Any = read_stored_config(folder.config)
    actors: list[Actors] = []

    def play(asked: Any, answers: Any) -> bytes:
        request = PlayRequest(**asked)
        if not actors:
            replica = Replica(request.replica, config.num_replicas)
            actors.append(Actors(build_parts(config, torch.device(config.execution.device), folder.players, replica)))
        return to_bytes(actors[0].play(request))

    return config.execution.num_threads, play


# ---- where actors play ---------------------------------------------------------------------------------


class Place(ABC):
    """A place where some actors play.

    actors: their numbers. knows: the streams of the worlds whose states it was given, here or for its processes, which
    it keeps up to date by itself from then on. num_restarts: of its process.
    """

    def __init__(self, actors: range) -> None:
        self.actors = actors
        self.knows: set[str] = set()
        self.num_restarts = 0

    @abstractmethod
    def ask(self, request: PlayRequest) -> Any:
        """Ask for a roll-out, and return by what to take it."""

    @abstractmethod
    def take(self, asked: Any) -> list[dict[str, Any]]:
        """Return what each actor answers. Raises EnvironmentFailed, and ActorsLost where a process is lost for good."""

    @abstractmethod
    def close(self) -> None:
        """Let the actors end."""


class Here(Place):
    """Actors in this process, which play when their roll-out is taken."""

    def __init__(self, actors: range, make_parts: Callable[[], Parts]) -> None:
        super().__init__(actors)
        self.make_parts = make_parts
        self.played_by: Actors | None = None

    def ask(self, request: PlayRequest) -> PlayRequest:
        return request

    def take(self, asked: PlayRequest) -> list[dict[str, Any]]:
        if self.played_by is None:
            self.played_by = Actors(self.make_parts())
        return self.played_by.play(asked)

    def close(self) -> None:
        if self.played_by is not None:
            self.played_by.close()


class PlayJob(Job):
    """A roll-out of the actors in a process.

    latest: by stream, the states of their worlds before it if they were asked with some, else the last answer. Nothing
    is encoded or decoded in the thread that sends: it has to wait for Python's lock, and the process would wait, too.
    """

    def __init__(self, what: str, request: PlayRequest, latest: dict[str, Sequence[Any] | bytes]) -> None:
        self.what, self.asked, self.latest = what, request, latest
        self.encoded = to_bytes(request._asdict())
        self.answer: Future[bytes] = Future()

    def request(self, known: set[str]) -> bytes:
        """As in Job. The worlds' states go only to a process that lacks them."""
        asked, is_known = self.asked, self.asked.stream in known
        known.add(asked.stream)
        if asked.states is not None:
            self.latest[asked.stream] = asked.states
        elif not is_known:
            before = self.latest[asked.stream]
            states = [each["worlds"] for each in from_bytes(before)] if isinstance(before, bytes) else before
            return to_bytes(asked._replace(states=states)._asdict())
        return self.encoded

    def done(self, message: Mapping[str, Any], content: bytes) -> None:
        self.latest[self.asked.stream] = content
        self.answer.set_result(content)

    def failed(self, error: Exception, log: Path) -> None:
        of_environment = error.failed if isinstance(error, ProcessFailed) else None
        lost = ActorsLost(f"{self.what}: {error} (see {log})")
        self.answer.set_exception(lost if of_environment is None else EnvironmentFailed(*of_environment))

    def is_repeated(self, error: Exception) -> bool:
        return isinstance(error, ProcessLost) and not isinstance(error, ProcessFailed)


class There(Place):
    """Actors in a process of their own.

    folder: of the run. number: of the process, by which its log is named. waiting: a context for waiting, which gives
    what is to be called now and then.
    """

    def __init__(
        self,
        actors: range,
        folder: RunFolder,
        number: int,
        terms: Terms,
        tell: Callable[[str], None],
        waiting: Callable[[], AbstractContextManager[Callable[[], None]]],
    ) -> None:
        super().__init__(actors)
        self.waiting = waiting
        log = LogFile(folder.root.below("actors").make(), f"{number}.log")
        self.what = f"actors {actors[0]} to {actors[-1]}" if len(actors) > 1 else f"actor {actors[0]}"
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.worker = Worker(folder.path, log, terms, self.jobs, tell)
        self.latest: dict[str, Sequence[Any] | bytes] = {}

    def ask(self, request: PlayRequest) -> "Future[bytes]":
        job = PlayJob(self.what, request, self.latest)
        self.jobs.put(job)
        return job.answer

    def take(self, asked: "Future[bytes]") -> list[dict[str, Any]]:
        with self.waiting() as look:
            while not wait([asked], timeout=LOOK_S).done:
                look()
        found: list[dict[str, Any]] = from_bytes(asked.result())
        self.num_restarts = self.worker.num_restarts
        return found

    def close(self) -> None:
        close_all([self.worker])


# ---- the worlds that actors step -------------------------------------------------------------------------


@dataclass
class RollOut:
    """A roll-out that comes next. snapshot: by which it is played. asked: of each place, once it was asked."""

    snapshot: Mapping[str, Any]
    asked: list[Any] = field(default_factory=list)


class ActedWorlds:
    """The worlds of a player, or those that players share, as the last roll-out that was taken has left them.

    shares: of each actor; they are never stepped here. begun: whether an actor has stepped them. pending: the roll-outs
    that come next. asked: roles and rounds of these.
    """

    def __init__(self, stream: str, firsts: Sequence[int], num_worlds: int, shares: Sequence[RunningGames]) -> None:
        self.stream, self.firsts, self.num_worlds, self.shares = stream, firsts, num_worlds, shares
        self.begun = False
        self.pending: list[RollOut] = []
        self.asked: tuple[tuple[str, ...], int] | None = None

    def states(self) -> list[Any]:
        return [share.state_dict() if self.begun else None for share in self.shares]

    def state_dict(self) -> dict[str, Any]:
        counts: dict[int, dict[str, Any]] = {}  # several are played by the first snapshot
        for each in self.pending:
            counts.setdefault(id(each.snapshot), {"snapshot": each.snapshot, "num": 0})["num"] += 1
        asked = None if self.asked is None else {"roles": [*self.asked[0]], "num_rounds": self.asked[1]}
        return {"shares": self.states(), "pending": [*counts.values()], "asked": asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.begun = state["shares"][0] is not None
        for share, of_share in zip(self.shares, state["shares"], strict=True):
            if of_share is not None:
                share.load_state_dict(of_share)
        asked = state["asked"]
        self.asked = None if asked is None else (tuple(asked["roles"]), asked["num_rounds"])
        self.pending = [RollOut(entry["snapshot"]) for entry in state["pending"] for _ in range(entry["num"])]


class ActedGame(PlayedGame):
    """Plays a game by actors, in the place of the FusedGame or SoloGame of a training.

    replica: that of the training. make_places: makes the places of the actors, once they are needed. snapshot: makes
    what is played by from now on. num_ahead: how many roll-outs may be asked for beyond the next one. played_by: the
    snapshot by which the last roll-out was played; `policies` play none. info: what actors have read of fields of
    `info` in it. seconds: of play, by actor, since the last record.
    """

    def __init__(
        self,
        parts: Parts,
        replica: int,
        make_places: Callable[[], Sequence[Place]],
        snapshot: Callable[[], Mapping[str, Any]],
        num_ahead: Callable[[], int],
    ) -> None:
        super().__init__(parts.game, {})
        self.game, self.alone = parts.game, fuse(parts.game)
        assert parts.config.actors is not None
        self.num_actors, self.replica = parts.config.actors.num, replica
        self.snapshot, self.num_ahead, self.make_places = snapshot, num_ahead, make_places
        self.places: Sequence[Place] = ()
        self.worlds: list[ActedWorlds] = []
        self.played_by: Mapping[str, Any] = {}
        self.info: list[Mapping[str, Any]] = []
        self.seconds = [0.0] * self.num_actors
        self._added: list[Any] = []

    def new_worlds(self, num_worlds: int, seed: int, stream: str, first: int = 0) -> ActedWorlds:
        """Make new worlds, as PlayedGame does, in shares of equal size."""
        num = num_worlds // self.num_actors
        firsts = range(first, first + num_worlds, num)
        before = copied(self.game.state_dict())
        shares = [self.alone.new_worlds(num, seed, stream, each) for each in firsts]
        self.game.load_state_dict(before)  # statistics count what these worlds observe where they are stepped
        self.worlds.append(ActedWorlds(stream, firsts, num, shares))
        return self.worlds[-1]

    def collect(self, worlds: ActedWorlds, roles: tuple[str, ...], num_rounds: int) -> dict[str, Transitions]:
        """Return the next roll-out, and ask for later ones. Raises RuntimeError for one of another length."""
        if worlds.asked is not None and (
            worlds.asked[1] != num_rounds or (worlds.pending and worlds.asked[0] != roles)
        ):
            before = f"{worlds.asked[1]} rounds of {', '.join(worlds.asked[0])}"
            got = f"{num_rounds} of {', '.join(roles)}"
            raise RuntimeError(f"expected roll-outs of one length with `actors`, {before} as before, got {got}")
        worlds.asked, self.played_by = (roles, num_rounds), {}
        self.places = self.places or self.make_places()
        wanted = 1 + self.num_ahead()
        if len(worlds.pending) < wanted:
            snapshot = self.snapshot()
            worlds.pending += [RollOut(snapshot) for _ in range(wanted - len(worlds.pending))]
        for each in worlds.pending:
            each.asked = each.asked or [self._ask(place, each, worlds) for place in self.places]
        taken = worlds.pending.pop(0)
        self.played_by = taken.snapshot
        answers = chain.from_iterable(place.take(asked) for place, asked in zip(self.places, taken.asked, strict=True))
        return self._put_together(worlds, roles, [*answers])

    def _ask(self, place: Place, roll_out: RollOut, worlds: ActedWorlds) -> Any:
        assert worlds.asked is not None
        states = None
        if worlds.stream not in place.knows:
            states = [worlds.states()[number] for number in place.actors]
            place.knows.add(worlds.stream)
        firsts = [worlds.firsts[number] for number in place.actors]
        asked = self.replica, roll_out.snapshot, *worlds.asked, worlds.stream, firsts, worlds.num_worlds, states
        return place.ask(PlayRequest(*asked))

    def _put_together(
        self, worlds: ActedWorlds, roles: tuple[str, ...], answers: Sequence[Mapping[str, Any]]
    ) -> dict[str, Transitions]:
        """Take over what actors answer, and join their rows, which lie world by world in each move of a round."""
        for share, answer in zip(worlds.shares, answers, strict=True):
            totals = share.totals
            share.load_state_dict(answer["worlds"])
            share.totals = totals + share.totals
        worlds.begun = True
        self.seconds = [sum(each) for each in zip(self.seconds, (each["seconds"] for each in answers), strict=True)]
        self._added = [*chain.from_iterable(answer["statistics"] for answer in answers)]
        self.info = [answer["info"] for answer in answers if answer["info"] is not None]

        def joined(*parts: Tensor) -> Tensor:
            moved = [part.to(self.device).unflatten(0, (-1, worlds.num_worlds)) for part in parts]
            return torch.stack(moved, dim=1).flatten(0, 2)

        return {role: Transitions(**by_tensor(joined, *(answer["rows"][role] for answer in answers))) for role in roles}

    def added(self) -> list[Any]:
        return self._added

    def take_totals(self, worlds: Any) -> dict[str, float]:
        of_all = [self.alone.take_totals(share) for share in worlds.shares]
        return {name: sum(each[name] for each in of_all) for name in self.total_names}

    def recent_returns(self, worlds: Any) -> Tensor:
        """As in PlayedGame; of games that are as recent, each actor's has its turn."""
        newest_first = [self.alone.recent_returns(share).flip(0) for share in worlds.shares]
        found = [games[n] for n in range(NUM_RECENT) for games in newest_first if n < len(games)][:NUM_RECENT]
        return torch.stack(found).flip(0) if found else newest_first[0]

    def is_exact(self, worlds: Any) -> bool:
        return all(self.alone.is_exact(share) for share in worlds.shares)

    def forget_waiting(self, worlds: Any, roles: Collection[str]) -> None:
        """As in PlayedGame. Roll-outs that were asked for before begin anew, too."""
        for share in worlds.shares:
            self.alone.forget_waiting(share, roles)
        if worlds.pending or not isinstance(worlds.shares[0], SoloWorlds):
            worlds.pending.clear()
            for place in self.places:
                place.knows.discard(worlds.stream)

    def take_clock(self) -> Iterator[dict[str, float]]:
        """Give the seconds of play of each actor since the last call, and the restarts of its process."""
        for place in self.places:
            for number in place.actors:
                yield {"play_seconds": self.seconds[number], "restarts": place.num_restarts}
                self.seconds[number] = 0.0

    def close(self) -> None:
        """Let all actors end; roll-outs that they have not played are asked for again."""
        for place in self.places:
            place.close()
        self.places = ()
        for roll_out in chain.from_iterable(worlds.pending for worlds in self.worlds):
            roll_out.asked = []
