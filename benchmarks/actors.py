"""What actors gain: turns with actors beside the same turns without, after the actors' start, which is told apart.

    python -m benchmarks.actors [--quick] [--only TEXT] [--repeats 5] [--json FILE]

A turn is a roll-out and the opt steps that follow it. README.md says what is counted.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.measuring import Row, alternate, tell
from benchmarks.replicas import QUIET
from palestra import Callback, make_trainer

STEP_S = 0.02
NEVER = ["stop.after=1000000000", "stop.unit=opt_steps"]


class Sleeping(gymnasium.Wrapper):
    """CartPole, each step of which takes 20 ms: always, or on average, exponentially distributed."""

    def __init__(self, is_even: bool) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.is_even = is_even

    def reset(self, **options: Any) -> Any:
        self.drawn = np.random.default_rng(options.get("seed"))
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S if self.is_even else self.drawn.exponential(STEP_S))
        return super().step(action)


gymnasium.register("Sleeping-v0", entry_point=f"{__name__}:Sleeping")


class Turns(Callback):
    """Notes when turns end, where one player learns."""

    def __init__(self, config: Any = None) -> None:
        self.ends_s: list[float] = []

    def after_epoch(self, trainer: Any) -> None:
        self.ends_s.append(time.perf_counter())


class Contender:
    """Trains for some turns when told. Gives turns per second, without the first ones, in which processes start.

    start_s: how long these took. shares: of the phases in the last measurement.
    """

    def __init__(self, config: str, overrides: Sequence[str], folder: Path, num_turns: int) -> None:
        self.turns, self.num_turns = Turns(), num_turns
        given = [*overrides, *QUIET, *NEVER]
        self.trainer = make_trainer(config, run=folder, overrides=given, callbacks=[self.turns])
        self.start_s = 0.0
        self.seconds: Mapping[str, float] = {}

    def measure(self) -> float:
        self.turns.ends_s, began, before = [], time.perf_counter(), self.trainer.run.time_log.total()
        self.trainer.fit(self.num_turns + 2, "epochs")
        times = self.trainer.run.time_log.total()
        self.seconds = {name: (times[name] - before.get(name, 0.0)) / (self.num_turns + 2) for name in times}
        self.start_s = self.turns.ends_s[1] - began
        return self.num_turns / (self.turns.ends_s[-1] - self.turns.ends_s[1])


LAG_OF_TWO = "2 actors in 2 processes, lag 1"
LAGGING = ["actors={num: 2, lag: 1}", "execution.actor_processes=2"]
ALONE, LAG, SHARED, ASYNC = "no actors", "1 actor in 1 process, lag 1", "2 actors in 2 processes, lag 0", "async"
ACTOR = ["actors={num: 1, lag: 1}", "execution.actor_processes=1"]
TWO = ["actors={num: 2, lag: 0}", "execution.actor_processes=2"]
EIGHT = ["actors={num: 8, lag: 1}", "execution.actor_processes=8"]
CHEETAH = ["rollout_length=16", "updates_per_turn=16", "warmup_env_steps=256", "batch_size=256"]
SLEEPING = ["num_worlds=8", "rollout_length=32", "num_minibatches=4", "game.id=benchmarks.actors:Sleeping-v0"]


def sleeping(is_even: bool, vectorization: str) -> list[str]:
    arguments = f"game.arguments={{is_even: {str(is_even).lower()}, max_episode_steps: 500}}"
    return [*SLEEPING, arguments, f"game.vectorization.name={vectorization}"]


WORKS: dict[str, tuple[str, dict[str, list[str]], int]] = {
    "PPO, LunarLander": ("ppo-lunarlander", {ALONE: [], LAG: ACTOR}, 6),
    "SAC, HalfCheetah": ("sac-halfcheetah", {ALONE: CHEETAH, LAG: [*CHEETAH, *ACTOR]}, 60),
    "PPO, LunarLander, 3 passes": ("ppo-lunarlander", {ALONE: ["num_passes=3"], SHARED: ["num_passes=3", *TWO]}, 6),
    "PPO, CartPole": ("ppo-cartpole", {ALONE: [], SHARED: TWO, LAG: ACTOR}, 60),
    "APPO, CartPole": (
        "appo-cartpole",
        {ALONE: ["actors=null", "execution.actor_processes=0"], LAG_OF_TWO: LAGGING},
        120,
    ),
    "PPO, 8 environments whose steps take 20 ms": (
        "ppo-cartpole",
        {ASYNC: sleeping(True, "async"), "8 actors, lag 1": [*sleeping(True, "sync"), *EIGHT]},
        8,
    ),
    "PPO, 8 environments whose steps take 20 ms on average": (
        "ppo-cartpole",
        {ASYNC: sleeping(False, "async"), "8 actors, lag 1": [*sleeping(False, "sync"), *EIGHT]},
        8,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT", help="the works in whose names it occurs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[Row] = []
    for name, (config, layouts, num_turns) in WORKS.items():
        if given.only not in name:
            continue
        with tempfile.TemporaryDirectory() as place:
            made = {
                title: Contender(config, overrides, Path(place) / str(number), 3 if given.quick else num_turns)
                for number, (title, overrides) in enumerate(layouts.items())
            }
            values = alternate({title: each.measure for title, each in made.items()}, given.repeats)
            first = next(iter(layouts))
            rows += Row.of(name, "turns", "turns/s", 1, values, first)
            for title, each in made.items():
                phases = ", ".join(f"{phase} {1000 * s:.1f} ms" for phase, s in each.seconds.items() if s > 1e-4)
                print(f"{name}: {title}: a turn has {phases}; the first two took {each.start_s:.1f} s", flush=True)
    tell(rows, given.json)


if __name__ == "__main__":
    main()
