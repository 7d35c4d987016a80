"""One side of benchmarks/same_bits: trains the runs of one commit, by that commit's own palestra, configs and tests.

same_bits starts this file in the commit's tree, which need not be the tree that this file lies in: it uses only what
every commit has. Reads the order from stdin, as JSON, and answers on stdout: what there is to train, or nothing.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exc
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

Data = dict[str, Any]

# What a player has learned: networks and target networks, moments of the optimizers, coefficients, text models.
LEARNED = ("nets", "optimizers", "algorithm", "model")
NEVER = {"every": 10**9, "unit": "opt_steps"}


# ---- what there is ---------------------------------------------------------------------------------------


def all_runs(tree: Path) -> list[Data]:
    """Every shipped config, and every combination that the quick proofs of resuming run over."""
    shipped = [{"name": path.stem} for path in sorted(tree.glob("configs/*.yml"))]
    proofs = combinations(tree)
    combined = [
        {"name": f"{algorithm}: {', '.join(levels.values())}", "algorithm": algorithm, "combination": levels}
        for algorithm in proofs.LEARNERS
        for levels in proofs.pairwise(proofs.combinations_of(algorithm))
    ]
    return shipped + combined


def combinations(tree: Path) -> Any:
    (path,) = tree.glob("tests/**/combinations.py")
    sys.path += [str(path.parent), str(tree / "tests")]
    return import_module("combinations")


# ---- short enough ----------------------------------------------------------------------------------------


def config_of(tree: Path, run: Data) -> Data:
    if "combination" not in run:
        data = yaml.safe_load((tree / "configs" / f"{run['name']}.yml").read_text())
        data["stop"] = {"after": num_opt_steps(data), "unit": "opt_steps"}
        return shortened(data)
    proofs = combinations(tree)
    choices = proofs.LEARNERS[run["algorithm"]].choices  # a later commit may have more of them
    levels = {factor: next(iter(choices[factor])) for factor in choices} | run["combination"]
    return shortened(proofs.config_of(run["algorithm"], levels))


def num_opt_steps(data: Data) -> int:
    """Enough for target networks to move, or for two roll-outs and a bit of a third."""
    learners = [player["algorithm"] for player in data["players"].values() if "algorithm" in player]
    by_roll_out = [2 * a["num_passes"] * a["num_minibatches"] for a in learners if "num_passes" in a]
    return sum(by_roll_out) + 3 if by_roll_out else 300


def shortened(data: Data) -> Data:
    """The same training, with a short warm-up, a small buffer, and nothing beside it."""
    data |= {"evaluations": [], "best": None, "evaluators": None}
    data["output"] |= {"display": "quiet", "recorders": [], "record": NEVER, "save": NEVER}
    for player in data["players"].values():
        algorithm = player.get("algorithm", {})
        if "warmup_env_steps" in algorithm:
            algorithm["warmup_env_steps"] = min(600, algorithm["warmup_env_steps"])
            algorithm["replay_buffer"]["capacity"] = min(4000, algorithm["replay_buffer"]["capacity"])
    return data


# ---- training --------------------------------------------------------------------------------------------


def train(tree: Path, run: Data) -> dict[str, torch.Tensor]:
    """What its players have learned, by the tensors' paths in the last checkpoint."""
    palestra = import_module("palestra")
    make_trainer = getattr(palestra, "make_trainer", palestra.Trainer)
    with TemporaryDirectory() as folder:
        make_trainer(config_of(tree, run), run=Path(folder) / "run").fit()
        checkpoints = Path(folder) / "run" / "checkpoints"
        last = checkpoints / (checkpoints / "latest").read_text().strip()
        tensors = load_file(last / "tensors.safetensors")
        opt_steps = json.loads((last / "manifest.json").read_text())["counters"]["opt_steps"]
    learned = {name: tensor for name, tensor in tensors.items() if is_learned(name)}
    if not opt_steps or not learned:
        raise RuntimeError(f"expected a training, got {opt_steps} opt steps and {len(learned)} tensors")
    return learned


def is_learned(name: str) -> bool:
    """Of tensors like /players/host/nets/q/layers.0.weight."""
    parts = name.strip("/").split("/")
    return parts[0] == "players" and parts[2] in LEARNED


def train_all(tree: Path, runs: list[Data]) -> Iterator[Data]:
    """Each into its file; gives a line of JSON for each that is done, with the traceback of those that failed."""
    for run in runs:
        file, unfinished = Path(run["file"]), Path(f"{run['file']}.unfinished")
        try:
            save_file(train(tree, run), unfinished)
            unfinished.rename(file)
            error = None
        except Exception:
            error = format_exc()
        yield {"name": run["name"], "error": error}


def main() -> None:
    tree = Path.cwd()
    imported = Path(str(import_module("palestra").__file__))
    if not imported.is_relative_to(tree):
        raise SystemExit(f"expected the palestra of {tree}, got {imported}")
    order = json.load(sys.stdin)
    answer = sys.stdout
    sys.stdout = sys.stderr  # whatever training prints
    for line in all_runs(tree) if order is None else train_all(tree, order):
        print(json.dumps(line), file=answer, flush=True)


if __name__ == "__main__":
    main()
