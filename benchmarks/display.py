"""What the live display costs: its share of the time of training.

    python -m benchmarks.display [--seconds 6] [--repeats 5]

Each config trains in this process, alternately with the live display on a pseudo-terminal of 80x24 and with none.
Counted: the processor's seconds of drawing frames (in the display's thread) and of updating the display
(in the training's), over the seconds of training; `checking` is what a safe point takes to see that no update is due
yet. With and without: how much more an opt step takes of the processor, all threads, and by the clock; the median over
the repeats, and the least and the most.
"""

import argparse
import os
import pty
import subprocess
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.measuring import ROOT, alternate
from palestra import Trainer
from palestra.callbacks import Callback
from palestra.recording.display import LiveDisplay
from palestra.recording.results import Progress
from palestra.run.run import ProgressReporter

ALONE = (
    *("evaluations=[]", "best=null", "callbacks=[]", "output.recorders=[]", "output.save=null"),
    "execution.num_threads=1",
)
CONFIGS = {
    "dqn-nim, a net of 8, batches of 16": (
        "dqn-nim",
        (
            *("num_worlds=16", "players.player.algorithm.net.net_arch=[8]", "players.player.algorithm.batch_size=16"),
            *("players.player.algorithm.updates_per_turn=64", "players.player.algorithm.warmup_env_steps=64"),
        ),
    ),
    "dqn-cartpole": ("dqn-cartpole", ("players.agent.algorithm.warmup_env_steps=64",)),
}


@dataclass
class Cost:
    """Seconds of drawing, updating and all (cpu) of the processor, of training by the clock. checking_s: of one
    call."""

    drawing_s: float
    updating_s: float
    checking_s: float
    cpu_s: float
    training_s: float
    opt_steps: int


class CountingReporter(ProgressReporter):
    """Counts what updating the display takes."""

    cpu_s = 0.0

    def now(self) -> Progress:
        started = time.thread_time()
        found = super().now()
        self.cpu_s += time.thread_time() - started
        return found


class Meter(Callback):
    """The processor's seconds of the whole process, while it trains."""

    def before_train(self, trainer: object) -> None:
        self._started = time.process_time()

    def after_train(self, trainer: object) -> None:
        self.cpu_s = time.process_time() - self._started


@contextmanager
def terminal() -> Iterator[Console]:
    """A pseudo-terminal that another process reads."""
    master, slave = pty.openpty()
    with subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        os.close(master)
        with os.fdopen(slave, "w", encoding="utf-8") as file:
            yield Console(file=file, force_terminal=True, width=80, height=24, _environ={"TERM": "xterm-256color"})
        reader.terminate()


def train(name: str, overrides: tuple[str, ...], display: str, seconds: float) -> Cost:
    """So many seconds of training."""
    stop = f"stop={{after: {seconds / 60}, unit: minutes}}"
    with TemporaryDirectory() as folder, terminal() as console:
        config, changes = ROOT / "configs" / f"{name}.yml", [*ALONE, *overrides, stop, f"output.display={display}"]
        meter = Meter(None)
        trainer = Trainer(config, run=f"{folder}/run", overrides=changes, callbacks=[meter], console=console)
        trainer.progress = reporter = CountingReporter(trainer.run, trainer.standing)
        trainer.fit()
        shown, updating_s = trainer.run.display, reporter.cpu_s
        drawing_s = shown.cpu_s if isinstance(shown, LiveDisplay) else 0.0
        checking_s = timeit.timeit(reporter.show, number=10_000) / 10_000
        return Cost(drawing_s, updating_s, checking_s, meter.cpu_s, trainer.run.clock.seconds, trainer.opt_steps)


def measure(name: str, overrides: tuple[str, ...], seconds: float, num_repeats: int) -> str:
    """The rest of a row of the table."""
    costs: dict[str, list[Cost]] = {"quiet": [], "auto": []}

    def rate(display: str) -> float:
        costs[display].append(train(name, overrides, display, seconds))
        return costs[display][-1].opt_steps / costs[display][-1].training_s

    train(name, overrides, "quiet", 1.0)  # what is compiled once
    alternate({display: partial(rate, display) for display in costs}, num_repeats)
    live, none = costs["auto"], costs["quiet"]
    step_s = median(cost.training_s / cost.opt_steps for cost in none)
    training_s = sum(cost.training_s for cost in live)
    drawing, updating = (
        sum(getattr(cost, f"{kind}_s") for cost in live) / training_s for kind in ("drawing", "updating")
    )
    checking = median(cost.checking_s for cost in live) / step_s
    counted = f"{drawing:.2%} | {updating:.2%} | {checking:.2%} | {drawing + updating + checking:.2%}"
    return f"| {step_s * 1e6:,.0f} µs | {counted} | {_more(live, none, 'cpu_s')} | {_more(live, none, 'training_s')} |"


def _more(live: list[Cost], none: list[Cost], kind: str) -> str:
    """How much more an opt step takes: the median over the repeats, and the least and the most."""
    steps = [[getattr(cost, kind) / cost.opt_steps for cost in costs] for costs in (live, none)]
    more = sorted(one / other - 1 for one, other in zip(*steps, strict=True))
    return f"{median(more):+.1%} ({more[0]:+.1%} to {more[-1]:+.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of training, per config and repeat")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(
        "| config | opt step and its play | drawing | updating | checking | in all | of the processor | by the clock |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for title, (name, overrides) in CONFIGS.items():
        print(f"| {title} {measure(name, overrides, arguments.seconds, arguments.repeats)}", flush=True)


if __name__ == "__main__":
    main()
