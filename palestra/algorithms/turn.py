"""What an algorithm asks of the trainer while its player has its turn."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import cast

from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions


class Turn(ABC):
    """One turn of a learning player: what its algorithm asks of the trainer.

    A run may be saved and stopped at safe points, and a resumed run calls `learn` again from its top. So a turn is
    written as loops that remember how far they have come:

        for _ in turn.once("roll_out"):
            rows = turn.collect(16)
            self.buffer.add(rows.rows(), rows.valid)
        for _ in turn.times("updates", 8):
            turn.before_step()
            turn.after_step(self.opt_step())

    At the end of each item a loop notes that the item is done, and then there is a safe point. The player keeps this
    progress (`turn_progress`), and its checkpoints hold it. A `learn` without loops is never interrupted.
    """

    def __init__(self, player: Player) -> None:
        self.player = player
        self._open = list[str]()
        self._begun = set[str]()
        self._once = set[str]()

    @abstractmethod
    def collect(self, num_rounds: int) -> Transitions:
        """Play on in the player's worlds, where all learning players explore, and return its experience.

        Its rows lie round by round, in a round move by move, in a move world by world. Counts env steps.
        """

    @abstractmethod
    def before_step(self) -> None:
        """Announce an opt step, or a group of them."""

    @abstractmethod
    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        """Count an opt step, or a group of them, and take its metrics: of a group, their means."""

    def num_updates(self) -> int:
        """Return how many opt steps follow the roll-out of an algorithm with a replay buffer: `updates_per_turn`.

        A trainer may say another number.
        """
        assert self.player.algorithm is not None
        return cast(int, self.player.algorithm.config.updates_per_turn)

    @abstractmethod
    def safe_point(self) -> None:
        """Let the trainer evaluate, record, save or stop, where it is due.

        Loops call it by themselves. Other code calls it only where the algorithm's own state holds the turn's progress.
        """

    def once(self, what: str) -> Iterator[int]:
        """Make a loop of one item: `for _ in turn.once("roll_out")`."""
        self._once.add(what)
        return self.times(what, 1)

    def times(self, what: str, num: int) -> Iterator[int]:
        """Make a loop of `num` items, which yields their numbers, from 0 on.

        A resumed loop keeps the `num` with which it began. Loops may be nested. what: the loop's name, a different one
        for each loop. Where several replicas learn, they all make as many items as the one that has fewest.
        """
        if not isinstance(num, int) or num < 0:
            raise TypeError(f"expected an integer >= 0 as the number of {what}, got {num!r}")
        name = "/".join([*self._open, what])
        if name in self._begun:
            raise RuntimeError(f"expected a different name for every loop of a turn, got {name!r} twice")
        self._begun.add(name)
        if name not in self.player.turn_progress:
            least = num if what in self._once else min(self.player.in_each_replica(f"items of {name}", num))
            self.player.turn_progress[name] = {"done": 0, "of": least}
        progress = self.player.turn_progress[name]
        self._open.append(what)
        while progress["done"] < progress["of"]:
            num_begun = len(self._begun)
            yield progress["done"]
            if len(self._begun) > num_begun:  # the loops inside an item begin anew with the next item
                for inner in [each for each in self._begun if each.startswith(f"{name}/")]:
                    self._begun.remove(inner)
                    del self.player.turn_progress[inner]
            progress["done"] += 1
            self.safe_point()
        self._open.pop()

    def last(self, what: str) -> None:
        """Make the present item the last one of its loop; use it in place of `break`."""
        progress = self._progress(what)
        progress["of"] = progress["done"] + 1

    def is_last(self, what: str) -> bool:
        """Return whether the present item is the last one of its loop, by the number with which this began."""
        progress = self._progress(what)
        return progress["of"] == progress["done"] + 1

    def _progress(self, what: str) -> dict[str, int]:
        """Return how far an open loop has come."""
        if what not in self._open:
            raise RuntimeError(f"expected the name of an open loop ({', '.join(self._open)}), got {what!r}")
        return self.player.turn_progress["/".join(self._open[: self._open.index(what) + 1])]

    def run(self) -> None:
        """Give the player the turn, or the rest of one that was stopped."""
        assert self.player.algorithm is not None
        self._open, self._begun = [], set()
        self.player.algorithm.learn(self)
        if self._open:
            learn = f"{type(self.player.algorithm).__name__}.learn"
            name = self._open[-1]
            raise RuntimeError(f"{learn} left the loop {name!r} by break or return; expected turn.last({name!r})")
        self.player.turn_progress.clear()
