"""What `fit` learns, on five seeds: scikit-learn's digits, its tables beside its own network of the same size, and
players that begin with what models have learned beside players that begin with nothing.

    python -m benchmarks.models.learning [--rows L1,L2,...] [--seeds 5] [--out FOLDER]

README.md says what the rows are.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.neural_network import MLPClassifier, MLPRegressor

import palestra
from benchmarks.measuring import ROOT
from palestra.config import load_yaml
from palestra.run.kinds import read_config
from palestra.runtime.statistics import estimate_mean_of_few
from palestra.storage.records_file import read_records

Data = dict[str, Any]
HIDDEN, BATCH, RATE, NUM_EPOCHS = 32, 32, 1e-3, 100


def digits(seed: int) -> dict[str, float]:
    """The share of held-out images that docs/examples/digits.yml reads."""
    folder = ROOT / "docs" / "examples"
    sys.path.insert(0, str(folder))
    config = load_yaml(folder / "digits.yml")
    config["seed"] = seed
    config["output"]["display"] = "quiet"
    with TemporaryDirectory() as place:
        return {"palestra": last_score(config, Path(place) / "run", "accuracy")}


def table(seed: int, kind: str) -> dict[str, float]:
    """A score on held-out rows, of `rows` without code and of scikit-learn's network: accuracy, or absolute error.

    Rows, their split, standardisation, layers, Adam, batches and epochs are the same.
    """
    is_class = kind == "class"
    found = load_breast_cancer() if is_class else load_diabetes(scaled=False)
    names = [name.replace(" ", "_") for name in found.feature_names]
    label = found.target if is_class else (found.target - found.target.mean()) / found.target.std()
    with TemporaryDirectory() as place:
        file = Path(place) / "table.npz"
        np.savez(file, label=label, **dict(zip(names, found.data.T, strict=True)))
        config = rows_config(file, names, kind, seed)
        score = "accuracy" if is_class else "absolute_error"
        trainer = palestra.make_trainer(config, run=Path(place) / "run")
        trainer.fit()
        ours = last_result(Path(place) / "run", score)
        sets = [trainer.data[name] for name in ("train", "valid")]
    (x, y), (held_x, held_y) = [
        (each.entries["columns"].numpy(), each.entries["label"].numpy().astype(label.dtype)) for each in sets
    ]
    theirs = MLPClassifier if is_class else MLPRegressor
    network = theirs(
        hidden_layer_sizes=(HIDDEN,), alpha=0.0, batch_size=BATCH, learning_rate_init=RATE, max_iter=NUM_EPOCHS,
        random_state=seed, tol=0.0, n_iter_no_change=NUM_EPOCHS,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it might learn on
        network.fit(x, y)
    predicted = network.predict(held_x)
    value = (predicted == held_y).mean() if is_class else np.abs(predicted - held_y).mean()
    return {"palestra": ours, "scikit-learn": float(value)}


def rows_config(file: Path, names: list[str], kind: str, seed: int) -> Data:
    net = {"name": "mlp", "net_arch": [HIDDEN], "activation": "relu"}
    model = {"name": "classifier", "num_classes": 2, "label_smoothing": 0.0, "class_weights": None}
    if kind == "number":
        model = {"name": "regressor", "num_outputs": 1, "loss": "squared", "huber_delta": None}
    held_out = {"name": "fraction", "fraction": 0.25, "seed": seed}
    rows = {
        "name": "rows", "num_items": None, "file": str(file), "label": "label", "label_kind": kind, "sees": names,
        "categorical": [], "images": [], "held_out": held_out, "standardize": True,
    }  # fmt: skip
    config: Data = load_yaml(ROOT / "docs" / "examples" / "digits.yml")
    config |= {"seed": seed, "model": {**model, "net": net}, "best": None}
    config["data"] = {"train": {**rows, "part": "train"}, "valid": {**rows, "part": "held_out"}}
    config["learning"] |= {"batch_size": BATCH}
    config["learning"]["groups"][0]["learning_rate"] = {"name": "constant", "value": RATE}
    config["evaluations"][0] |= {"name": "valid", "data": "valid", "interval": None, "metrics": []}
    config["stop"] = {"after": NUM_EPOCHS, "unit": "epochs"}
    config["output"] |= {"display": "quiet"}
    return config


SOLO_STEPS, NUM_BITS = 2000, 16


def dialogue(seed: int, num_steps: int) -> dict[str, float]:
    """The accuracy of `nip` on `witness` with n = 16 after so many opt steps of both players together.

    pretrained: their bodies were trained alone before. new: they begin at random.
    """
    config: Data = read_config("nip-witness").model_dump()
    config["game"]["scenario"]["num_bits"] = NUM_BITS
    config |= {"seed": seed, "stop": {"after": num_steps, "unit": "opt_steps"}, "best": None}
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    both = {role: role for role in config["players"]}
    evaluation = config["evaluations"][0] | {"interval": None, "at_start": False, "pairings": [both]}
    config["evaluations"] = [evaluation]
    found = {}
    with TemporaryDirectory() as place:
        for name in ("pretrained", "new"):
            for role, player in config["players"].items():
                if name == "pretrained":
                    solo = Path(place) / role
                    palestra.make_trainer(solo_config(config, role), run=solo).fit()
                    player["warm_start"] = {"from_model": str(solo), "checkpoint": "latest", "take": "body"}
                else:
                    player["warm_start"] = None
            found[name] = last_score(config, Path(place) / name, "accuracy")
    return found


def solo_config(dialogue: Data, role: str) -> Data:
    """A run in which a classifier learns the labels from what a role observes before anything is said."""
    config: Data = load_yaml(ROOT / "docs" / "examples" / "digits.yml")
    net = dialogue["players"][role]["algorithm"]["body"]["policy"]
    model = {"name": "classifier", "net": net, "num_classes": 2, "label_smoothing": 0.0, "class_weights": None}
    game = {key: dialogue["game"][key] for key in ("protocol", "scenario")}
    train = {"name": "scenario", **game, "role": role, "held_out": False, "num_items": 20_000}
    config |= {"seed": dialogue["seed"], "model": model, "data": {"train": train}, "evaluations": [], "best": None}
    config["learning"]["groups"][0]["learning_rate"] = {"name": "constant", "value": RATE}
    config["stop"] = {"after": SOLO_STEPS, "unit": "opt_steps"}
    config["output"] |= {"display": "quiet"}
    return config


def last_score(config: Data, run: Path, score: str) -> float:
    palestra.make_trainer(config, run=run).fit()
    return last_result(run, score)


def last_result(run: Path, score: str) -> float:
    *_, last = (record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation")
    return float(last["pairs"][0]["scores"][score])


ROWS: dict[str, tuple[str, Callable[[int], dict[str, float]]]] = {
    "L1": ("docs/examples/digits.yml: accuracy on the 360 held-out images", digits),
    "L2": ("breast cancer: accuracy on a quarter of the rows", lambda seed: table(seed, "class")),
    "L3": ("diabetes: mean absolute error, in standard deviations, on a quarter", lambda seed: table(seed, "number")),
    "L4": ("nip on witness, n = 16: accuracy after 2,000 opt steps of both players", lambda seed: dialogue(seed, 2000)),
    "L5": ("the same after 8,000 opt steps", lambda seed: dialogue(seed, 8000)),
}


def interval(values: list[float]) -> str:
    """The mean with half of its 95% interval."""
    found = estimate_mean_of_few(values)
    return f"{found.value:.3f} +- {found.high - found.value:.3f}"


def report(results: Data) -> str:
    """Markdown: means over the seeds with 95% intervals, and the mean of the differences seed by seed."""
    lines = ["| row | what is measured | who | beside | difference |", "|---|---|---|---|---|"]
    for row, values in sorted(results.items()):
        (name, ours), *others = values.items()
        cells = [row, ROWS[row][0], f"{name}: {interval(ours)}"]
        for other, theirs in others:
            apart = interval([a - b for a, b in zip(ours, theirs, strict=True)])
            cells += [f"{other}: {interval(theirs)}", apart]
        lines.append(f"| {' | '.join(cells + [''] * (5 - len(cells)))} |")
    numbers = sorted({len(each) for values in results.values() for each in values.values()})
    seeds = " or ".join(map(str, numbers))
    return "\n".join([*lines, "", f"Means over {seeds} seeds, with 95% intervals (Student's t)."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), metavar="L1,L2")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "models")
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"--rows: {unknown[0]} is none of {', '.join(ROWS)}")
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "docs" / "examples"), os.environ.get("PYTHONPATH", "")])
    file = options.out / "learning.json"
    results: Data = json.loads(file.read_text()) if file.exists() else {}  # rows that are not measured now are kept
    for row in options.rows:
        results[row] = {}
        for seed in range(options.seeds):
            for name, value in ROWS[row][1](seed).items():
                results[row].setdefault(name, []).append(value)
            print(f"{row} seed {seed}: {results[row]}", file=sys.stderr, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "learning.md").write_text(report(results) + "\n")
    file.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results))


if __name__ == "__main__":
    main()
