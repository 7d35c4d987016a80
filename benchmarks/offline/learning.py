"""What is learned from rows: palestra beside d3rlpy on Hopper, and palestra alone on three other games.

All that was trained, recorded and judged lies in a folder, and is not done again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning import read_seeds
from benchmarks.measuring import ROOT, tell_table
from benchmarks.offline.settings import COLUMNS, DATA_ALONE, ENVIRONMENT, SETTINGS, words_of
from benchmarks.offline.speed import D3RLPY, TITLES
from palestra.config import load_yaml
from palestra.kinds.games.recorded import find_columns
from palestra.report.comparison import estimate_improvement
from palestra.report.reading import RunData
from palestra.runtime.statistics import estimate_mean_of_few

QUIET = (
    "best=null",
    "evaluations=[]",
    "output.recorders=[]",
    "output.replay_in_checkpoints=none",
    "execution.compile=false",
)
SEED = 1_000_000  # of all evaluations
EVERY = 2_500  # env steps between evaluations of those who play
RETURN = "return/agent"
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def palestra(*words: object) -> None:
    command = [sys.executable, "-m", "palestra", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | THREADS, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"palestra {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def evaluation(num_games: int, every: int = EVERY, unit: str = "env_steps") -> str:
    """The only evaluation of a run, as an override."""
    return "evaluations=" + json.dumps(
        [
            {
                **{"name": "main", "interval": {"every": every, "unit": unit}, "at_start": True},
                **{"num_games": num_games, "final_num_games": num_games, "max_rounds": 1000, "seed": SEED},
                **{"game": None, "references": None, "pairings": [{"agent": "agent"}]},
            }
        ]
    )


@dataclass(frozen=True)
class Curve:
    """Env steps and mean returns of a run's evaluations."""

    env_steps: list[int]
    returns: list[float]

    @classmethod
    def of(cls, run: Path) -> "Curve":
        found = [each.evaluation for each in RunData.read(run).evaluated]
        returns = [each.pairs[0].every_score[RETURN].value for each in found]
        return cls([each.counters["env_steps"] for each in found], returns)

    def reaches(self, value: float) -> float:
        """The env steps at the first evaluation with at least this return; infinite if there is none."""
        return next((steps for steps, each in zip(*vars(self).values(), strict=True) if each >= value), float("inf"))


class Lab:
    """Makes what is missing in a folder.

    env_steps, opt_steps, play_steps, sac_steps, num_rows: how much is trained and recorded.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.folder: Path = given.folder.absolute()
        self.env_steps, self.opt_steps, self.play_steps = given.env_steps, given.opt_steps, given.play_steps
        self.sac_steps, self.num_rows = given.sac_steps, given.rows
        self.folder.mkdir(parents=True, exist_ok=True)

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """The path of a file or folder, which `make` makes under another name unless it is there."""
        path = self.folder / name
        if not path.exists():
            unfinished = path.with_name(f"unfinished-{name}")
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            make(unfinished)
            unfinished.rename(path)
            print(name, file=sys.stderr, flush=True)
        return path

    def trained(self, name: str, *words: object) -> Path:
        return self.made(name, lambda run: palestra("train", *words, "--run", run, "--quiet"))

    def recorded(self, name: str, *parts: Sequence[object]) -> Path:
        """A file of rows of several plays, each as the words of `palestra data collect` say it."""

        def make(path: Path) -> None:
            files = [path.with_name(f"{number}-{path.name}") for number in range(len(parts))]
            for file, (run, *words) in zip(files, parts, strict=True):
                palestra("data", "collect", run, file, "--rows", self.num_rows // len(parts), *words)
            join(files, path)
            for file in files:
                file.unlink()

        return self.made(f"{name}.npz", make)

    def judged(
        self, name: str, game: Any, players: Mapping[str, Any], pairing: Mapping[str, str | list[str]], num_games: int
    ) -> list[Any]:
        """The results of a tournament's pairings, with the same starts for all tournaments of a game."""

        def make(folder: Path) -> None:
            execution = {"device": "cpu", "num_threads": 1, "kernel": "numba", "step_within_s": None}
            data = {"seed": SEED, "game": game, "players": players, "pairings": [pairing], "num_games": num_games}
            data |= {"max_rounds": 1000, "num_worlds": 20, "info": [], "execution": execution}
            file = folder.with_name(f"{folder.name}.yml")
            file.write_text(json.dumps(data))
            palestra("evaluate", file, "--run", folder)
            file.unlink()

        [result] = RunData.read(self.made(name, make)).evaluated
        return list(result.evaluation.pairs)

    def played(self, name: str, run: Path, player: Any = None) -> float:
        """The mean return of the player that a run left, in its game, or of another one there."""
        game = load_yaml(run / "config.yml")["game"]
        own = {"from_run": str(run), "player": "agent", "checkpoint": "latest"}
        [pair] = self.judged(f"{name}-games", game, {"judged": player or own}, {"agent": "judged"}, 100)
        return float(pair.every_score[RETURN].value)

    # ---- the data -----------------------------------------------------------------------------------------------

    def hopper(self) -> Path:
        """Rows of the last three of four checkpoints of SAC, as it explores."""
        every = f"output.save.every={self.env_steps // 4}"
        stop = (f"stop.after={self.env_steps}", every, "output.keep_last=3")
        run = self.trained("hopper-sac", "sac-hopper", *QUIET, *stop)
        names = [each.name for each in sorted(RunData.read(run).checkpoints, key=lambda each: each.name)][-3:]
        return self.recorded("hopper", *[(run, "--checkpoint", each, "--explore", "--seed", 1) for each in names])

    def pendulum(self) -> Path:
        """A third each of what TD3 has learned, of the same with noise of half a half-width, and of random play."""
        words = ("exploration.std.value=0.5", "warmup_env_steps=1000", f"stop.after={min(self.env_steps, 20_000)}")
        run = self.trained("pendulum-td3", "td3-pendulum", *QUIET, *words)
        return self.recorded(
            "pendulum", (run, "--seed", 1), (run, "--explore", "--seed", 2), (run, "--pairing", "agent=random")
        )

    def lunarlander(self) -> Path:
        """Rows of DQN, as it explores."""
        run = self.trained("lunarlander-dqn", "dqn-lunarlander", *QUIET, f"stop.after={self.env_steps}")
        return self.recorded("lunarlander", (run, "--explore", "--seed", 1))

    def polyhedra(self) -> Path:
        pairing = ("--pairing", "host=zeillinger,agent=random", "--role", "host", "--seed", 1)
        return self.recorded("polyhedra", ("palestra:polyhedra", *pairing))

    # ---- what is learned --------------------------------------------------------------------------------------

    def beside(self, algorithm: str, seed: int, rows: Path) -> dict[str, float]:
        """Mean returns of both libraries on Hopper's rows."""
        name = f"hopper-{algorithm}-{seed}"
        stop = (f"stop.after={self.opt_steps}", "stop.unit=opt_steps", f"seed={seed}", *QUIET)
        run = self.trained(name, *words_of(algorithm, str(rows)), *stop)
        work = {"algorithm": algorithm, "rows": str(rows), "seed": seed, "opt_steps": self.opt_steps}

        def learn(policy: Path) -> None:
            D3RLPY.run(work | {"policy": str(policy)}, 1, timeout_s=None)

        policy = self.made(f"{name}-d3rlpy.npz", learn)
        imported = {"scripted": "benchmarks.offline.players:Imported", "layers": str(policy)}
        return {"palestra": self.played(name, run), "d3rlpy": self.played(f"{name}-d3rlpy", run, imported)}

    def alone(
        self, environment: str, algorithm: str, changes: Sequence[str], seed: int, rows: Path
    ) -> dict[str, float]:
        """The mean return of palestra on rows of another game, with networks of 256 x 256.

        changes: of the usual values, as overrides.
        """
        columns = f"replay_buffer.columns={json.dumps(find_columns(str(rows), None, 'agent'))}"
        nets = SETTINGS[algorithm].nets
        layers = [f"players.agent.algorithm.{net}.net_arch=[256, 256]" for net in nets]
        words = [algorithm, environment, f"replay_buffer.file={rows}", columns, *DATA_ALONE, *layers, *QUIET, *changes]
        stop = (f"stop.after={self.opt_steps}", "stop.unit=opt_steps", f"seed={seed}")
        name = "-".join([rows.stem, algorithm, *changes, str(seed)])
        return {"palestra": self.played(name, self.trained(name, *words, *stop))}

    def imitated(self, net: Mapping[str, Any], opt_steps: int, seed: int, rows: Path) -> dict[str, float]:
        """The rho of a host that imitates Zeillinger's, and Zeillinger's own, against a random agent."""
        name, at = f"polyhedra-{net['name'].rpartition(':')[2]}-{seed}", "players.host.algorithm"
        buffer = {
            "name": "data_set",
            "capacity": 1,
            "layout": "whole",
            "scratch_folder": None,
            "file": str(rows),
            "columns": find_columns(str(rows), None, "host"),
            "held_out": None,
            "share_of_data": 1.0,
        }
        alone = (f"{at}.rollout_length=null", f"{at}.warmup_env_steps=0", f"{at}.updates_per_turn=500")
        learns = (
            f"{at}.body.policy={json.dumps(net)}",
            f"{at}.learning_rate={{name: linear, initial: 0.001, final: 0.0, num_steps: {opt_steps}}}",
        )
        stop = (f"stop.after={opt_steps}", "stop.unit=opt_steps", f"seed={seed}", *QUIET)
        words = (f"{at}.replay_buffer={json.dumps(buffer)}", *alone, *learns, "players.agent={scripted: random}", *stop)
        run = self.trained(name, "bc", "polyhedra", *words)
        own = {"from_run": str(run), "player": "host", "checkpoint": "latest"}
        pairing: dict[str, str | list[str]] = {"host": ["judged", "zeillinger"], "agent": "random"}
        game = load_yaml(run / "config.yml")["game"]
        ours, zeillinger = [
            each.every_score["rho"] for each in self.judged(f"{name}-games", game, {"judged": own}, pairing, 3000)
        ]
        return {"palestra": ours.value, "zeillinger": zeillinger.value, "low": zeillinger.low, "high": zeillinger.high}

    def goes_on(self, seed: int) -> dict[str, float]:
        """IQL on Hopper, which then plays: the return before, and the lowest and the last one since; and the lowest one
        where it makes as many opt steps more without play, with as many evaluations."""
        trained = self.folder / f"hopper-iql-{seed}"

        def returns(name: str, *words: str) -> list[float]:
            command = ("branch", trained / "checkpoints" / "latest", *words)
            return Curve.of(self.made(name, lambda run: palestra(*command, "--run", run, "--quiet"))).returns

        plays = [f"players.agent.algorithm.{each}" for each in ("rollout_length=1", "updates_per_turn=1")]
        buffer = ("replay_buffer.share_of_data=0.5", "replay_buffer.capacity=100000")
        stop = (evaluation(20), f"stop.after={self.play_steps}", "stop.unit=env_steps")
        before, *since = returns(f"hopper-plays-{seed}", *plays, *buffer, *stop)
        num_worlds = load_yaml(trained / "config.yml")["num_worlds"]  # env steps for each opt step
        later = f"stop.after={self.opt_steps + self.play_steps // num_worlds}"
        _, *still = returns(f"hopper-rests-{seed}", evaluation(20, EVERY // num_worlds, "opt_steps"), later)
        lowest = {"lowest": min(since), "last": since[-1], "lowest without play": min(still)}
        return {"before": before, **lowest, "lowest / before": min(since) / before}

    def with_data(self, seed: int, rows: Path) -> dict[str, float]:
        """Env steps until SAC returns what the behaviour does, with half of its batches from the rows, or none."""
        buffer = (
            "replay_buffer={name: data_set, capacity: 1000000, layout: whole, scratch_folder: null, held_out: null, "
        )
        buffer += f"share_of_data: 0.5, file: {rows}, {COLUMNS.removeprefix('replay_buffer.').replace('=', ': ')}}}"
        words = ("sac-hopper", "warmup_env_steps=1000", evaluation(10), *(each for each in QUIET if "eval" not in each))
        stop = (f"stop.after={self.sac_steps}", f"seed={seed}")
        mean = float(returns_of(rows).mean())
        arms = {"from data": (f"players.agent.algorithm.{buffer}",), "from nothing": ()}
        return {
            arm: Curve.of(
                self.trained(f"hopper-sac-{arm.replace(' ', '-')}-{seed}", *words, *own, *stop)
            ).reaches(mean)
            for arm, own in arms.items()
        }  # fmt: skip


def join(files: Sequence[Path], path: Path) -> None:
    """One file of the rows of several, with the columns that all have, and episodes numbered on."""
    parts: list[dict[str, Any]] = []
    for file in files:
        with np.load(file, allow_pickle=False) as stored:
            parts.append({name: stored[name] for name in stored.files})
        if len(parts) > 1:
            parts[-1]["episode"] = parts[-1]["episode"] + parts[-2]["episode"][-1] + 1
    names = [name for name in parts[0] if all(name in part for part in parts)]
    with path.open("wb") as target:
        np.savez(target, **{name: np.concatenate([part[name] for part in parts]) for name in names})  # type: ignore[arg-type]


def returns_of(rows: Path) -> np.ndarray:
    """The returns of a file's episodes."""
    with np.load(rows, allow_pickle=False) as stored:
        return np.bincount(stored["episode"], stored["reward"])


# ---- the table -------------------------------------------------------------------------------------------------

Points = dict[int, dict[str, float]]  # by seed, what came of each contender


def rows_of(work: str, score: str, points: Points, behaviour: float | None) -> Iterator[dict[str, Any]]:
    values = {name: [point[name] for point in points.values()] for name in next(iter(points.values()))}
    better = None
    if "d3rlpy" in values:
        better = estimate_improvement([(torch.tensor(values["palestra"]), torch.tensor(values["d3rlpy"]))])
    for name, found in values.items():
        yield {"work": work, "score": score, "who": name, "values": found, "behaviour": behaviour, "better": better}


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| work | score | behaviour | who | every seed | mean [95%] | P(palestra better) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mean, better = estimate_mean_of_few(row["values"]), row["better"]
        cells = [row["work"], row["score"], "" if row["behaviour"] is None else f"{row['behaviour']:.4g}", row["who"]]
        known = np.isfinite(row["values"]).all()
        cells += [
            ", ".join(f"{each:.4g}" for each in row["values"]),
            f"{mean.value:.4g} [{mean.low:.4g}, {mean.high:.4g}]" if known else "",
        ]
        told = "" if better is None or row["who"] != "palestra" else f"{better.value:.3g}"
        is_known = told and np.isfinite(better.low)  # of few seeds no interval is told
        cells.append(f"{told} [{better.low:.3g}, {better.high:.3g}]" if is_known else told)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def works(lab: Lab) -> dict[str, tuple[str, Path, Callable[[int], dict[str, float]], bool]]:
    """By name: what is scored, the rows, what is done with a seed, and whether the behaviour has a return to show."""
    hopper, pendulum, lander = f"Hopper, {lab.opt_steps:,} opt steps", "Pendulum", "LunarLander"
    files = {name: lab.folder / f"{name}.npz" for name in ("hopper", "pendulum", "lunarlander", "polyhedra")}
    found: dict[str, tuple[str, Path, Callable[[int], dict[str, float]], bool]] = {}

    def add(name: str, score: str, rows: str, do: Callable[..., Any], *words: Any, shown: bool = True) -> None:
        found[name] = (score, files[rows], lambda seed: do(*words, seed, files[rows]), shown)

    for algorithm, title in TITLES.items():
        add(f"{hopper}: {title}", "return", "hopper", lab.beside, algorithm)
    for game, rows, environment in ((pendulum, "pendulum", "Pendulum-v1"), (lander, "lunarlander", "LunarLander-v3")):
        for algorithm in ("bc", "iql"):
            add(f"{game}: {TITLES[algorithm]}", "return", rows, lab.alone, environment, algorithm, ())
    words = ("LunarLander-v3", "iql", ("loss.temperature=3.0",))
    add(f"{lander}: IQL, temperature 3", "return", "lunarlander", lab.alone, *words)
    pooled = {"name": "newton_sets", "point_widths": [128, 128], "head_widths": [256]}
    pairs = {"name": "benchmarks.offline.nets:Pairs", "width": 64}
    for told, net, most in (("newton_sets", pooled, 20_000), ("pairs", pairs, 3_000)):
        num = min(lab.opt_steps, most)
        name = f"polyhedra: BC of Zeillinger, {told}, {num:,} opt steps"
        add(name, "rho", "polyhedra", lab.imitated, net, num, shown=False)
    goes_on = f"{ENVIRONMENT}: IQL plays {lab.play_steps:,} env steps"
    add(goes_on, "return", "hopper", lambda seed, rows: lab.goes_on(seed))
    add(f"{ENVIRONMENT}: SAC", "env steps to the behaviour's mean", "hopper", lab.with_data)
    return found


def main(doc: str | None) -> None:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="the works in whose names it occurs")
    parser.add_argument("--seeds", type=read_seeds, default=list(range(3)), metavar="FIRST..LAST")
    parser.add_argument("--env-steps", type=int, default=100_000, help="of those whose play is recorded")
    parser.add_argument("--opt-steps", type=int, default=20_000, help="of learning from rows")
    parser.add_argument("--play-steps", type=int, default=20_000, help="env steps of play after that")
    parser.add_argument("--sac-steps", type=int, default=30_000, help="env steps of SAC with rows, and without")
    parser.add_argument("--rows", type=int, default=100_000, help="of each file")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "offline", help="one for these numbers")
    parser.add_argument("--json", type=Path, help="write every score to this file, too")
    given = parser.parse_args()
    lab, rows = Lab(given), list[dict[str, Any]]()
    asked = {name: work for name, work in works(lab).items() if given.only in name}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        needed = sorted({file.stem for _, file, _, _ in asked.values()}, key=("hopper", "pendulum").count, reverse=True)
        list(pool.map(lambda name: getattr(lab, name)(), needed))
        points = {(name, seed): pool.submit(work[2], seed) for name, work in asked.items() for seed in given.seeds}
        for name, (score, file, _, is_shown) in asked.items():
            found = {seed: points[name, seed].result() for seed in given.seeds}
            rows += rows_of(name, score, found, float(returns_of(file).mean()) if is_shown else None)
            print(markdown(rows[-len(next(iter(found.values()))) :]), file=sys.stderr, flush=True)
    tell_table(markdown(rows), rows, given.json)
