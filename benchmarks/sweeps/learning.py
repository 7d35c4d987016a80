"""Does a search that looks find more? TPE with successive halving beside random search at equal env steps.

    python -m benchmarks.sweeps.learning [--sweeps NAME ...] [--repeats N] [--folder FOLDER] [--table]

The sweeps are the files beside this one. A repeat is a seed of the sweep; both searches of a repeat have one budget
of env steps, and the best config of each is trained again on seeds that no search has seen. Every finished sweep is a
file in benchmarks/results/sweeps/, and is not done again; sweeps.md and sweeps.png there have them all.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.measuring import ROOT
from palestra.config import load_yaml
from palestra.run.kinds import read_config
from palestra.sweeps.config import ObjectiveConfig
from palestra.sweeps.folder import runs_in
from palestra.sweeps.outcomes import STATES, count_of, state_of
from palestra.sweeps.seed_runs import Watched
from palestra.sweeps.stored import StoredSweep

HERE = Path(__file__).parent
RESULTS = ROOT / "benchmarks" / "results" / "sweeps"
REPEATS = {"ppo-cartpole": 5, "dqn-lunarlander": 3, "dqn-polyhedra": 3}
ARMS = {"TPE, successive halving": [], "random": ["search={name: random}", "pruning=null"]}
COLOURS = {"TPE, successive halving": "tab:blue", "random": "tab:orange"}
FRESH = {"ppo-cartpole": "100..104", "dqn-lunarlander": "100..102", "dqn-polyhedra": "100..102"}
PALESTRA = [sys.executable, "-m", "palestra"]


@dataclass(frozen=True)
class Search:
    """One sweep of the table."""

    sweep: str
    arm: str
    repeat: int

    @property
    def name(self) -> str:
        return f"{self.sweep}-{'random' if self.arm == 'random' else 'tpe'}-{self.repeat}"

    @property
    def file(self) -> Path:
        return RESULTS / f"{self.name}.json"

    def run(self, folder: Path) -> None:
        """Search, train the best config again, and store what was found. A search that was cut off goes on."""
        path, fresh = folder / self.name, folder / f"{self.name}-fresh"
        changes = [f"seed={self.repeat}", *ARMS[self.arm]]
        _palestra("sweep", HERE / f"{self.sweep}.yml", *changes, "--run", path, "--quiet")
        _palestra("train", path / "best.yml", "--seeds", FRESH[self.sweep], "--at", 2, "--run", fresh, "--quiet")
        RESULTS.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self._found(path, fresh), indent=1) + "\n")

    def _found(self, path: Path, fresh: Path) -> dict[str, Any]:
        sweep = StoredSweep.open(path)
        states = [state_of(trial) for trial in sweep.trials]
        ended = sorted((trial for trial in sweep.trials if trial.datetime_complete), key=_end)
        spent, curve = 0.0, []
        sign = 1.0 if sweep.data["objective"]["goal"] == "max" else -1.0
        best: Any = None
        for trial in ended:
            spent += count_of(trial, "env_steps")
            if state_of(trial) == "succeeded" and (best is None or sign * (trial.value or 0.0) > sign * best.value):
                best = trial
            if best is not None:
                curve.append((spent, best.value))
        objective = ObjectiveConfig.model_validate(sweep.data["objective"])
        return {
            "sweep": self.sweep,
            "arm": self.arm,
            "repeat": self.repeat,
            "budget": round(sweep.data["budget"]["total"]["after"]),
            "env_steps": spent,
            "env_steps_played": int(sum(_watched(run, objective).counters["env_steps"] for run in runs_in(path))),
            "trials": {name: states.count(name) for name in STATES if name in states},
            "curve": curve,
            "best": best.value,
            "point": best.params,
            "fresh": [_watched(run, objective).final() for run in runs_in(fresh)],
        }


def _end(trial: Any) -> Any:
    return trial.datetime_complete


def _watched(run: Path, objective: ObjectiveConfig) -> Watched:
    config = load_yaml(run / "config.yml")
    found = Watched(run, read_config(config), objective, {})
    found.look()
    return found


def _palestra(*arguments: object) -> None:
    subprocess.run([*PALESTRA, *map(str, arguments)], check=True, cwd=ROOT)


def finished(sweep: str) -> list[dict[str, Any]]:
    """What has come of the searches that are done, by arm and repeat."""
    found = [Search(sweep, arm, repeat) for arm in ARMS for repeat in range(REPEATS[sweep])]
    return [json.loads(search.file.read_text()) for search in found if search.file.exists()]


# ---- the table and the picture -----------------------------------------------------------------------------


def table() -> str:
    """Markdown: a row per search of each sweep; every repeat is shown."""
    lines = [
        "| sweep | search | env steps (budget; played) | trials; pruned | best value found | its config, fresh seeds |",
        "|---|---|---|---|---|---|",
    ]
    for sweep in REPEATS:
        for arm in ARMS:
            results = [result for result in finished(sweep) if result["arm"] == arm]
            if not results:
                continue
            played = "; ".join([f"{results[0]['budget']:,}", _each(r["env_steps_played"] for r in results)])
            trials = _each(sum(r["trials"].values()) for r in results)
            pruned = _each(r["trials"].get("pruned", 0) for r in results)
            best, fresh = _each(r["best"] for r in results), _each(mean(r["fresh"]) for r in results)
            whole = f"{fresh}; mean {mean(mean(r['fresh']) for r in results):.4g}"
            lines.append(f"| {sweep} | {arm} | {played} | {trials}; {pruned} | {best} | {whole} |")
    return "\n".join(lines)


def _each(values: Any) -> str:
    return ", ".join(f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for value in values)


def plot(path: Path) -> None:
    """For each sweep the best value so far over the env steps spent, a line per repeat, and to its right the means of
    the best configs on fresh seeds, a dot per repeat."""
    shown = [sweep for sweep in REPEATS if finished(sweep)]
    figure = Figure(figsize=(4.4 * len(shown), 3.2), layout="constrained")
    grid = figure.subplots(1, 2 * len(shown), squeeze=False, width_ratios=[4, 1] * len(shown))
    for number, sweep in enumerate(shown):
        _draw(grid[0][2 * number], grid[0][2 * number + 1], sweep, finished(sweep))
    handles, labels = grid[0][0].get_legend_handles_labels()
    chosen = dict(zip(labels, handles, strict=True))
    figure.legend(chosen.values(), chosen.keys(), loc="outside lower center", ncols=len(chosen), frameon=False)
    figure.savefig(path, dpi=110)


def _draw(curves: Axes, dots: Axes, sweep: str, results: Sequence[dict[str, Any]]) -> None:
    for result in results:
        steps, values = zip(*result["curve"], strict=True)
        curves.step(steps, values, where="post", color=COLOURS[result["arm"]], alpha=0.8, label=result["arm"])
    arms = list(ARMS)
    for arm in arms:
        means = [mean(result["fresh"]) for result in results if result["arm"] == arm]
        offsets = np.linspace(-0.15, 0.15, len(means)) if len(means) > 1 else [0.0] * len(means)
        dots.scatter(arms.index(arm) + np.array(offsets), means, color=COLOURS[arm], s=18)
    curves.set_title(sweep, fontsize=10)
    curves.set_xlabel("env steps of all runs", fontsize=9)
    curves.set_ylabel("best value so far", fontsize=9)
    curves.xaxis.set_major_formatter(EngFormatter(sep=""))
    dots.set_title("fresh seeds", fontsize=9)
    dots.set_xticks([])
    dots.set_xlim(-0.6, len(arms) - 0.4)
    for place in (curves, dots):
        place.tick_params(labelsize=8)
        for side in ("top", "right"):
            place.spines[side].set_visible(False)


def write() -> None:
    """The table and the picture of all that is finished."""
    (RESULTS / "sweeps.md").write_text(table() + "\n")
    plot(RESULTS / "sweeps.png")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="+", choices=list(REPEATS), default=list(REPEATS))
    parser.add_argument("--repeats", type=int, help="so many of each, the first ones")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "sweeps", help="of the sweeps themselves")
    parser.add_argument("--table", action="store_true", help="only write the table and the picture of what is finished")
    options = parser.parse_args()
    for sweep in options.sweeps if not options.table else []:
        for repeat in range(options.repeats or REPEATS[sweep]):
            for arm in ARMS:
                search = Search(sweep, arm, repeat)
                if not search.file.exists():
                    print(search.name, file=sys.stderr)
                    search.run(options.folder.absolute())
    write()
    print(table())


if __name__ == "__main__":
    main()
