"""What an algorithm asks of the trainer while its player has its turn."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions


class Turn(ABC):
    """What an algorithm asks of the trainer while its player has its turn.

    A run may be saved and stopped at safe points, and a resumed run calls `learn` again from its top. So a turn is
    written as loops, which know by themselves what is done:

        for _ in turn.once("roll_out"):
            rows = turn.collect(16)
            self.buffer.add(rows.rows(), rows.valid)
        for _ in turn.times("updates", 8):
            turn.before_step()
            turn.after_step(self.opt_step())

    Where an item of a loop has come to its end, the loop notes that it is done, and then there is a safe point. What is
    done lies with the player (`turn_progress`), and in its checkpoints. A `learn` without loops is one piece.
    """

    def __init__(self, player: Player) -> None:
        self.player = player
        self._open: list[str] = []
        self._begun: set[str] = set()

    @abstractmethod
    def collect(self, num_rounds: int) -> Transitions:
        """Play the player's worlds on, in which all learning players explore, and return its experience.

        Its rows go round by round, in a round move by move, in a move world by world. Counts env steps.
        """

    @abstractmethod
    def before_step(self) -> None:
        """Call before every opt step, or group of them."""

    @abstractmethod
    def after_step(self, metrics: Metrics, num_opt_steps: int = 1) -> None:
        """Call after every opt step, or group of them whose means the metrics are: it counts them."""

    @abstractmethod
    def safe_point(self) -> None:
        """Evaluation, records, saves and the end.

        For algorithms that remember in their own state how far a turn has come; loops call it by themselves.
        """

    def once(self, what: str) -> Iterator[int]:
        """A loop of one item: `for _ in turn.once("roll_out")`."""
        return self.times(what, 1)

    def times(self, what: str, num: int) -> Iterator[int]:
        """A loop of `num` items, which gives their numbers, from 0 on; a resumed one goes on with the number that it
        began with. Loops may stand inside each other. Each has a name of its own: `what`.
        """
        name = "/".join([*self._open, what])
        if name in self._begun:
            raise RuntimeError(f"expected a name of its own for every loop of a turn, got {name!r} twice")
        self._begun.add(name)
        progress = self.player.turn_progress.setdefault(name, {"done": 0, "of": num})
        self._open.append(what)
        while progress["done"] < progress["of"]:
            num_begun = len(self._begun)
            yield progress["done"]
            if len(self._begun) > num_begun:
                self._forget_inside(name)
            progress["done"] += 1
            self.safe_point()
        self._open.pop()

    def last(self, what: str) -> None:
        """Let the item that is being done be the last one of its loop; in place of `break`."""
        if what not in self._open:
            raise RuntimeError(f"expected the name of an open loop ({', '.join(self._open)}), got {what!r}")
        progress = self.player.turn_progress["/".join(self._open[: self._open.index(what) + 1])]
        progress["of"] = progress["done"] + 1

    def run(self) -> None:
        """Let the player have the turn, or what is left of one that was stopped."""
        self._open, self._begun = [], set()
        assert self.player.algorithm is not None
        self.player.algorithm.learn(self)
        if self._open:
            learn = f"{type(self.player.algorithm).__name__}.learn"
            name = self._open[-1]
            raise RuntimeError(f"{learn} left the loop {name!r} by break or return; expected turn.last({name!r})")
        self.player.turn_progress.clear()

    def _forget_inside(self, name: str) -> None:
        """The loops inside an item begin anew with the next item."""
        for inner in [each for each in self._begun if each.startswith(f"{name}/")]:
            self._begun.remove(inner)
            del self.player.turn_progress[inner]
