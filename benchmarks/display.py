"""What the live display costs: its share of the time of training.

    python -m benchmarks.display [--seconds 6] [--turns 5]

Each config trains in this process, in turns with the live display on a pseudo-terminal of 80x24, and with none.
Counted: the processor's seconds of drawing frames (in the display's thread) and of telling the display how things stand
(in the training's), over the seconds of training; `asking` is what a safe point takes to see that nothing is to be told
yet. By the clock: by how much opt steps per second are fewer, the median over the turns, and the least and the most.
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
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.measuring import ROOT, take_turns
from palestra import Trainer
from palestra.recording.display import LiveDisplay
from palestra.recording.results import Progress
from palestra.view import View

ALONE = (
    *("evaluations=[]", "best=null", "callbacks=[]", "output.recorders=[]", "output.save=null"),
    "execution.num_threads=1",
)
CONFIGS = {
    "fast: dqn-cartpole, a net of 8 and 8, batches of 16": (
        "dqn-cartpole",
        ("players.agent.algorithm.net.net_arch=[8, 8]", "players.agent.algorithm.batch_size=16"),
    ),
    "slow: dqn-polyhedra": ("dqn-polyhedra", ()),
}


@dataclass
class Cost:
    """Seconds: drawing and telling of the processor, training by the clock. asking_s: of one call."""

    drawing_s: float = 0.0
    telling_s: float = 0.0
    asking_s: float = 0.0
    training_s: float = 0.0
    opt_steps: int = 0


class CountingView(View):
    """Counts what telling takes."""

    cpu_s = 0.0

    def progress(self) -> Progress:
        started = time.thread_time()
        found = super().progress()
        self.cpu_s += time.thread_time() - started
        return found


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
        trainer = Trainer(config, run=f"{folder}/run", overrides=changes, console=console)
        trainer.view = view = CountingView(trainer)
        trainer.fit()
        assert trainer.output is not None
        shown = trainer.output.display
        cost = Cost(0.0, view.cpu_s, timeit.timeit(view.show, number=10_000) / 10_000)
        if isinstance(shown, LiveDisplay):
            cost.drawing_s = shown.cpu_s
        cost.training_s, cost.opt_steps = trainer.clock.seconds, trainer.opt_steps
        return cost


def measure(name: str, overrides: tuple[str, ...], seconds: float, num_turns: int) -> str:
    costs: list[Cost] = []

    def rate(display: str) -> float:
        cost = train(name, overrides, display, seconds)
        if display == "auto":
            costs.append(cost)
        return cost.opt_steps / cost.training_s

    train(name, overrides, "quiet", 1.0)  # what is compiled once
    rates = take_turns({"none": lambda: rate("quiet"), "live": lambda: rate("auto")}, num_turns)
    slower = sorted(1 - live / none for live, none in zip(rates["live"], rates["none"], strict=True))
    training_s = sum(cost.training_s for cost in costs)
    drawing, telling = (
        sum(getattr(cost, f"{kind}_s") for cost in costs) / training_s for kind in ("drawing", "telling")
    )
    asking_s, step_s = median(cost.asking_s for cost in costs), 1 / median(rates["none"])
    return (
        f"| {step_s * 1e6:,.0f} µs | {drawing:.2%} | {telling:.2%} | {asking_s / step_s:.2%} "
        f"| {drawing + telling + asking_s / step_s:.2%} | {median(slower):.1%} ({slower[0]:.1%} to {slower[-1]:.1%}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of training, per config and turn")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    print("| config | opt step and its play | drawing | telling | asking | counted, in all | by the clock |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for title, (name, overrides) in CONFIGS.items():
        print(f"| {title} {measure(name, overrides, arguments.seconds, arguments.turns)}", flush=True)


if __name__ == "__main__":
    main()
