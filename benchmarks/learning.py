"""palestra beside stable-baselines3: equal environments, hyperparameters, env steps and seeds; one table of the scores.

    python -m benchmarks.learning [--envs NAME ...] [--algorithms NAME ...] [--seeds 0..2] [--libraries palestra,sb3]
                                  [--table]

Every finished training is a file in benchmarks/results/learning/ and is not done again; one whose settings have changed
since is. learning.md there has the table of all that is finished, learning.png the curves. README.md says what is
measured, and how.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.learning_plot import Curves, plot
from benchmarks.learning_settings import ALGORITHMS, SETTINGS, Setting
from benchmarks.measuring import ROOT
from benchmarks.peers.processes import OWN_PYTHON, PEERS_PYTHON, Failed, Script
from palestra.runtime.statistics import Estimate, estimate_interquartile_mean, estimate_probability_of_improvement

RESULTS = ROOT / "benchmarks" / "results" / "learning"
LIBRARIES = {"palestra": Script("learn_ours", OWN_PYTHON), "sb3": Script("learn_sb3", PEERS_PYTHON)}
TITLES = {"palestra": "palestra", "sb3": "stable-baselines3"}
NUM_THREADS = 1
NUM_RESAMPLES = 20_000
DEFAULT_SEEDS = [0, 1, 2]


@dataclass(frozen=True)
class Training:
    """One training of the table: a row, a seed, a library."""

    setting: Setting
    seed: int
    library: str

    @property
    def name(self) -> str:
        environment = self.setting.environment.removeprefix("ALE/").lower()
        return f"{environment}-{self.setting.algorithm}-{self.seed}-{self.library}"

    def finished(self, folder: Path) -> dict[str, Any] | None:
        """What has come of it, if it was done with today's settings."""
        path = folder / f"{self.name}.json"
        if not path.exists():
            return None
        result: dict[str, Any] = json.loads(path.read_text())
        return result if result["setting"] == self.setting.to_json() else None

    def run(self, folder: Path) -> None:
        """Train and evaluate in a process of its own; the result lies in the folder whole or not at all."""
        work = {"setting": self.setting.to_json(), "seed": self.seed}
        answer = LIBRARIES[self.library].run(work, NUM_THREADS, timeout_s=None)
        if answer["env_steps"] < self.setting.env_steps:
            raise Failed(f"stopped after {answer['env_steps']} of {self.setting.env_steps} env steps")
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{self.name}.json"
        unfinished.write_text(json.dumps({**work, "library": self.library, **answer}) + "\n")
        os.replace(unfinished, folder / f"{self.name}.json")


def finished(setting: Setting, library: str, folder: Path) -> dict[int, dict[str, Any]]:
    """What has come of the trainings that are done with today's settings, by seed."""
    name = Training(setting, 0, library).name.replace("-0-", "-*-")
    seeds = sorted(int(path.stem.split("-")[-2]) for path in folder.glob(f"{name}.json"))
    results = {seed: Training(setting, seed, library).finished(folder) for seed in seeds}
    return {seed: result for seed, result in results.items() if result is not None}


def score(result: dict[str, Any]) -> float:
    """Mean return of a training's final evaluation."""
    return float(sum(result["returns"]) / len(result["returns"]))


# ---- the table -----------------------------------------------------------------------------------------


def table(settings: list[Setting], seeds: list[int], folder: Path) -> str:
    """Markdown: a row per environment and algorithm with all that is finished, a row for all of them, and which of the
    seeds are missing."""
    lines = [
        "| environment | algorithm | env steps | seeds | palestra | stable-baselines3 | P(palestra better) | CPU min |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missing: list[str] = []
    pairs: list[tuple[Tensor, Tensor]] = []
    for setting in settings:
        results = {library: finished(setting, library, folder) for library in LIBRARIES}
        found = {library: torch.tensor([score(r) for r in by_seed.values()]) for library, by_seed in results.items()}
        cells = [
            _cell(estimate_interquartile_mean([each], NUM_RESAMPLES, seed=0)) if len(each) else "-"
            for each in found.values()
        ]
        for library, by_seed in results.items():
            if absent := [str(seed) for seed in seeds if seed not in by_seed]:
                where = f"{setting.environment} {setting.algorithm}"
                missing.append(f"{where}: {TITLES[library]}, seeds {', '.join(absent)}")
        ours, theirs = found["palestra"], found["sb3"]
        improvement = "-"
        if len(ours) and len(theirs):
            pairs.append((ours, theirs))
            improvement = _cell(estimate_probability_of_improvement([(ours, theirs)], NUM_RESAMPLES, seed=0))
        counts = f"{len(ours)} / {len(theirs)}"
        minutes = " / ".join(_cpu_minutes(by_seed) for by_seed in results.values())
        row = [setting.environment, setting.algorithm, f"{setting.env_steps:,}", counts, *cells, improvement, minutes]
        lines.append(f"| {' | '.join(row)} |")
    if pairs:
        whole = _cell(estimate_probability_of_improvement(pairs, NUM_RESAMPLES, seed=0))
        lines.append(f"| rows with both: {len(pairs)} | | | | | | {whole} | |")
    if missing:
        lines += ["", "Missing:", "", *(f"- {line}" for line in missing)]
    return "\n".join(lines)


def _cpu_minutes(by_seed: dict[int, dict[str, Any]]) -> str:
    """The median over the trainings."""
    return f"{median(result['cpu_seconds'] for result in by_seed.values()) / 60:.2g}" if by_seed else "-"


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def write(folder: Path) -> None:
    """The table and the curves of all that is finished."""
    (folder / "learning.md").write_text(table(list(SETTINGS), DEFAULT_SEEDS, folder) + "\n")
    panels = []
    for setting in SETTINGS:
        curves = {
            TITLES[library]: [result["curve"] for result in finished(setting, library, folder).values()]
            for library in LIBRARIES
        }
        panels.append(Curves(f"{setting.environment}, {setting.algorithm.upper()}", curves))
    plot(panels, folder / "learning.png")


# ---- the command ---------------------------------------------------------------------------------------


def read_seeds(text: str) -> list[int]:
    """'0..2' or '3'."""
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    environments = list(dict.fromkeys(setting.environment for setting in SETTINGS))
    parser.add_argument("--envs", nargs="+", choices=environments, default=environments, metavar="NAME")
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS), metavar="NAME")
    parser.add_argument("--seeds", type=read_seeds, default=DEFAULT_SEEDS, metavar="FIRST..LAST")
    parser.add_argument("--libraries", type=lambda text: text.split(","), default=list(LIBRARIES), metavar="NAME,NAME")
    parser.add_argument("--table", action="store_true", help="train nothing, print the table of what is there")
    options = parser.parse_args()
    unknown = [library for library in options.libraries if library not in LIBRARIES]
    if unknown:
        parser.error(f"--libraries: {unknown[0]} is none of {', '.join(LIBRARIES)}")
    settings = [s for s in SETTINGS if s.environment in options.envs and s.algorithm in options.algorithms]
    trainings = [
        Training(s, seed, library) for s in settings for seed in options.seeds for library in options.libraries
    ]
    failed = False
    for training in [] if options.table else trainings:
        if training.finished(RESULTS) is not None:
            continue
        print(f"{training.name} ...", file=sys.stderr, flush=True)
        try:
            training.run(RESULTS)
        except Failed as error:
            failed = True
            print(f"{training.name}: {error}", file=sys.stderr, flush=True)
    write(RESULTS)
    print(table(settings, options.seeds, RESULTS))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
