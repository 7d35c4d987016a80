from palestra import Trainer
from palestra.config import PositiveInt, UserConfig


class Alternating(Trainer):
    """One player takes several turns while the others stand still, then the next one."""

    class Config(UserConfig):
        num_turns: PositiveInt
        """turns that a player takes before the next one learns"""

    def _train(self):
        """One epoch: the turns of one player."""
        learner = self.learners[self.epochs % len(self.learners)]
        self.extra_state.setdefault("num_taken", 0)
        while self.extra_state["num_taken"] < self.config.trainer.num_turns:
            self.give_turn(learner)
            self.extra_state["num_taken"] += 1
        self.extra_state["num_taken"] = 0
