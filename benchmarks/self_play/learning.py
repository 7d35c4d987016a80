"""What players learn by self-play: without past selves, with them, and in a league.

    python -m benchmarks.self_play.learning [--only TEXT] [--seeds 0..2] [--times 1] [--folder runs/self_play]

Each run that is finished in the folder is read, not trained again; one that is not goes on. README.md says more.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.learning import read_seeds
from benchmarks.measuring import ROOT, tell_table
from palestra.config import load_yaml
from palestra.report.reading import RunData
from palestra.runtime.statistics import estimate_mean_of_few

Data = dict[str, Any]
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ENV_STEPS = 3_276_800.0  # of a run of Connect Four, of all players together: those of ppo-connect_four
PAST_INTERVALS = {"ppo": 320, "dqn": 1000}  # in Connect Four, in opt steps: twenty copies and more
OPT_STEPS = 1000.0  # of a run of rock, paper, scissors
BIASED = [[0, -1, 2], [1, 0, -1], [-2, 1, 0]]  # of rock, paper, scissors: rock wins twice as much


def shipped(name: str) -> Data:
    return load_yaml(ROOT / "configs" / f"{name}.yml")


def past_of(player: str, interval: int, **changes: Any) -> Data:
    past = {"past_of": player, "interval": interval, "num_kept": 20, "num_seated": 4, "explores": True}
    return past | {"choice": {"name": "prioritized", "power": 2.0, "prior_games": 10.0}} | changes


def meeting(share: float, one: str, other: str, roles: tuple[str, str]) -> Data:
    return {"share": share, "pairing": dict(zip(roles, (one, other), strict=True))}


# ---- the runs --------------------------------------------------------------------------------------------


def tic_tac_toe() -> Data:
    return shipped("dqn-tic_tac_toe")


def rock_paper_scissors() -> Data:
    """Both seats are the player's, which meets all of its past selves."""
    config, roles = shipped("ppo-connect_four"), ("row", "column")
    payoffs = [[[float(value), -float(value)] for value in row] for row in BIASED]
    plain = {"normalize": None, "clip": None}
    config |= {"game": {"name": "matrix", "payoffs": payoffs, "num_rounds": 1, "observation": plain}}
    player = config["players"]["player"]
    player["meets"] = [meeting(0.5, "player", "past", roles), meeting(0.5, "past", "player", roles)]
    player["algorithm"] |= {"gamma": 1.0, "rollout_length": 1, "num_passes": 1, "num_minibatches": 1}
    player["algorithm"] |= {"learning_rate": {"name": "constant", "value": 0.003}, "evaluation": "sampled"}
    past = past_of("player", 10, num_kept=400, num_seated=16, choice={"name": "uniform"})
    config |= {"players": {"player": player, "past": past}, "roles": dict.fromkeys(roles, "player"), "best": None}
    evaluation = {"interval": {"every": 20.0, "unit": "opt_steps"}, "at_start": True, "num_games": 1}
    evaluation |= {"final_num_games": 1, "seed": None}
    config["evaluations"] = [
        {"name": name, **evaluation}
        | {"played_by": {"name": "exploitability", "roles": dict.fromkeys(roles, sitter), "max_positions": 100}}
        for name, sitter in (("newest", "player"), ("mixture", "past"))
    ]
    return config | {"stop": {"after": OPT_STEPS, "unit": "opt_steps"}}


def connect_four(algorithm: str) -> Data:
    return shipped(f"{algorithm}-connect_four") | {"stop": {"after": ENV_STEPS, "unit": "env_steps"}}


def connect_four_with_past_selves(algorithm: str) -> Data:
    config, roles = connect_four(algorithm), ("first", "second")
    config["players"]["past"] = past_of("player", PAST_INTERVALS[algorithm])
    config["players"]["player"]["meets"] = [
        meeting(0.5, "player", "player", roles),
        *(meeting(0.25, *pair, roles) for pair in (("player", "past"), ("past", "player"))),
    ]
    return config


def connect_four_league(algorithm: str) -> Data:
    """The shipped league; with DQN, each of its three learners has a third of the env steps, and of the schedules."""
    config = shipped("ppo-connect_four-league") | {"stop": {"after": ENV_STEPS, "unit": "env_steps"}}
    if algorithm == "dqn":
        learning = shipped("dqn-connect_four")["players"]["player"]["algorithm"]
        learning["warmup_env_steps"] //= 3
        for schedule in (learning["learning_rate"], learning["exploration"]["epsilon"]):
            schedule["num_steps"] //= 3
        for player in config["players"].values():
            player |= {"interval": PAST_INTERVALS["dqn"]} if "past_of" in player else {"algorithm": learning}
        for interval in (*(each["interval"] for each in config["evaluations"]), config["output"]["save"]):
            interval["every"] = 5000.0
    return config


def polyhedra() -> Data:
    return shipped("dqn-polyhedra")


def polyhedra_with_past_selves() -> Data:
    config, roles = polyhedra(), ("host", "agent")
    for place, own in enumerate(roles):
        other = roles[1 - place]
        seats = [(own, other), (own, f"past_{other}")]
        pairings = [pair if place == 0 else pair[::-1] for pair in seats]
        config["players"][own]["meets"] = [meeting(0.5, *pair, roles) for pair in pairings]
        config["players"][f"past_{own}"] = past_of(own, 500, explores=False)
    return config


# ---- what came of them -----------------------------------------------------------------------------------


def final(run: RunData, evaluation: str, score: str, **seats: str) -> float:
    """A score at the end of a run, of the pairing with these players."""
    [*_, last] = run.results(evaluation)
    [pair] = [each for each in last.evaluation.pairs if dict(each.players) == (seats or dict(each.players))]
    return float(pair.every_score[score].value)


def exploited(run: RunData) -> Data:
    found = [
        (each.record["pairs"][0]["scores"]["exploitability"], each.record["opt_steps"])
        for each in run.results("exploitability")
    ]
    least, at = min(found)
    return {
        "exploitability of the best checkpoint": least,
        "its opt step": at,
        "exploitability at the end": found[-1][0],
    }


def mixed(run: RunData) -> Data:
    newest = [each.record["pairs"][0]["scores"]["exploitability"] for each in run.results("newest")]
    half = newest[len(newest) // 2 :]
    mean, mixture = sum(half) / len(half), final(run, "mixture", "exploitability")
    return {"newest, mean of the second half": mean, "mixture": mixture, "mixture / newest": mixture / mean}


def won(run: RunData) -> Data:
    main = "main" if "main" in run.players else "player"
    found = {}
    for rival in ("random", "connect_four_tactical"):
        for role, seats in (("first", (main, rival)), ("second", (rival, main))):
            mean = final(run, "main", f"return/{role}", first=seats[0], second=seats[1])
            found[f"{role} against {rival}"] = (mean + 1.0) / 2.0  # a draw is half a win
    return found


def rho(run: RunData) -> Data:
    pairings = {"host against random": ("host", "random"), "random against agent": ("random", "agent")}
    return {what: final(run, "main", "rho", host=one, agent=other) for what, (one, other) in pairings.items()}


WORKS: dict[str, tuple[Callable[[], Data], Callable[[RunData], Data]]] = {
    "tic-tac-toe": (tic_tac_toe, exploited),
    "rock, paper, scissors": (rock_paper_scissors, mixed),
    **{
        f"Connect Four, {algorithm.upper()}{what}": (partial(make, algorithm), won)
        for algorithm in ("ppo", "dqn")
        for what, make in (
            (", alone", connect_four),
            (", past selves", connect_four_with_past_selves),
            (", league", connect_four_league),
        )
    },
    "polyhedra": (polyhedra, rho),
    "polyhedra, past selves": (polyhedra_with_past_selves, rho),
}


def lengthened(config: Data, times: int) -> Data:
    """Train so many times as long, with schedules and intervals that are as much longer."""
    longer = ("num_steps", "interval", "after", "every")
    return {
        key: lengthened(value, times)
        if isinstance(value, dict)
        else [lengthened(each, times) if isinstance(each, dict) else each for each in value]
        if isinstance(value, list)
        else value * times
        if key in longer
        else value
        for key, value in config.items()
    }


def trained(folder: Path, name: str, seed: int, times: int) -> RunData:
    run = folder / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"
    if run.exists():
        words = ["resume", run]
    else:
        config = lengthened(WORKS[name][0](), times) | {"seed": seed}
        config["output"] |= {"recorders": [], "display": "quiet"}
        file = run.with_suffix(".yml")
        file.write_text(json.dumps(config))
        words = ["train", file, "--run", run]
    command = [sys.executable, "-m", "palestra", *map(str, words)]
    subprocess.run(command, cwd=ROOT, env=os.environ | THREADS, check=True, stdout=subprocess.DEVNULL)
    return RunData.read(run)


def rows_of(name: str, points: dict[int, Data]) -> Iterator[Data]:
    for score in next(iter(points.values())):
        yield {"work": name, "score": score, "values": [point[score] for point in points.values()]}


def markdown(rows: list[Data]) -> str:
    lines = ["| work | score | every seed | mean [95%] |", "|---|---|---|---|"]
    for row in rows:
        mean = estimate_mean_of_few(row["values"])
        every = ", ".join(f"{each:.4g}" for each in row["values"])
        interval = f" [{mean.low:.4g}, {mean.high:.4g}]" if math.isfinite(mean.low) else ""  # of one seed there is none
        lines.append(f"| {row['work']} | {row['score']} | {every} | {mean.value:.4g}{interval} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="the works in whose names it occurs")
    parser.add_argument("--seeds", type=read_seeds, default=list(range(3)), metavar="FIRST..LAST")
    parser.add_argument("--times", type=int, default=1, help="train so many times as long, in a folder of its own")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "self_play")
    parser.add_argument("--json", type=Path, help="write every score to this file, too")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows: list[Data] = []
    for name in (name for name in WORKS if given.only in name):
        folder, times = given.folder.absolute(), given.times
        points = {seed: WORKS[name][1](trained(folder, name, seed, times)) for seed in given.seeds}
        rows += rows_of(name, points)
        print(markdown(rows[-len(next(iter(points.values()))) :]), file=sys.stderr, flush=True)
    tell_table(markdown(rows), rows, given.json)


if __name__ == "__main__":
    main()
