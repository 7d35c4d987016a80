"""palestra: `python -m benchmarks.agents.ours WORK`. Runs what `palestra config ppo PROTOCOL witness` prints.

Display and records are as users have them. Nothing is evaluated or saved while it trains; TorchRL does neither.
"""

from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import palestra
from benchmarks.peers.ours import MANY, Watch
from benchmarks.peers.script import Done, Stopwatch, Work, answer, versions_of
from palestra.commands.starting import find_config
from palestra.run.kinds import read_config
from palestra.storage.records_file import read_records

Data = dict[str, Any]
WARMUP_EPOCHS = 4  # before the time of play is taken


def config_of(work: Work) -> Data:
    """The whole config: of one protocol, in which the players learn `in_turn` or `together`, as those of the shipped
    config `nip-witness` do."""
    config: Data = read_config(find_config("ppo", [work["protocol"], "witness"]).source).model_dump()
    tuned: Data = read_config(find_config("nip-witness", []).source).model_dump()
    learner = tuned["players"]["prover"]
    config |= {"num_worlds": tuned["num_worlds"], "players": {name: deepcopy(learner) for name in config["players"]}}
    config |= {"seed": work["seed"], "trainer": {"name": work["trainer"]}, "evaluations": [], "best": None}
    config["stop"] = {"after": MANY, "unit": "env_steps"}
    config["execution"]["num_threads"] = work["num_threads"]
    config["output"] |= {"save": None}
    return config


def hyperparameters(config: Data) -> Data:
    """What another library needs to do the same: the players of the config all learn alike."""
    first, *others = (player["algorithm"] for player in config["players"].values())
    assert all(other == first for other in others)
    net = first["body"]["policy"]
    assert (first["body"]["name"], net["name"], first["body"]["value"]) == ("separate", "mlp", net)
    game, names = config["game"], ("gamma", "gae_lambda", "rollout_length", "num_passes", "num_minibatches")
    return {
        **{name: first[name] for name in (*names, "value_coefficient", "max_grad_norm", "normalize_advantages")},
        "clip_range": first["objective"]["epsilon"]["value"],
        "entropy_coefficient": first["entropy_coefficient"]["value"],
        "learning_rate": first["learning_rate"]["initial"],
        "adam_eps": first["optimizer"]["eps"],
        "net_arch": net["net_arch"],
        "activation": net["activation"],
        "num_worlds": config["num_worlds"],
        "max_rounds": game["protocol"]["max_rounds"],
        "num_bits": game["scenario"]["num_bits"],
        "num_seen": game["scenario"]["num_seen"],
    }


def train(work: Work) -> Data:
    """Env steps per second, training included."""
    stopwatch = Stopwatch(work)
    trainer = palestra.make_trainer(config_of(work), callbacks=[Watch(stopwatch)])
    with suppress(Done):
        trainer.fit()
    return stopwatch.result()


def play(work: Work) -> Data:
    """Seconds of play of a number of epochs, as the run's time log has them, and the env steps that each learner has
    collected meanwhile."""
    num_epochs = work["num_epochs"]
    config = config_of(work) | {"stop": {"after": WARMUP_EPOCHS + num_epochs, "unit": "epochs"}}
    config["output"] |= {"record": {"every": WARMUP_EPOCHS, "unit": "epochs"}}
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        palestra.make_trainer(config, run=run).fit()
        first, *records = (record for record in read_records(run / "records.jsonl") if record["kind"] == "training")
    seconds = sum(record["clock"]["time"]["play"] for record in records)
    num_steps = {
        name: player["env_steps"] - first["players"][name]["env_steps"]
        for name, player in records[-1]["players"].items()
    }
    assert len(set(num_steps.values())) == 1
    return {"env_steps": next(iter(num_steps.values())), "seconds": seconds, "num_learners": len(num_steps)}


def measure(work: Work) -> Data:
    torch.set_num_threads(work["num_threads"])
    result = train(work) if work["kind"] == "train" else play(work)
    return result | {"versions": versions_of("palestra", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
