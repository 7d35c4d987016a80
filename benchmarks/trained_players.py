"""Trains the players that come with palestra, and writes them below palestra/trained/ (`palestra:polyhedra`):

    python -m benchmarks.trained_players

The players are those that the shipped config leaves, which takes two minutes. What is written is a run of which only
the players are left: no optimizers, no replay rows, no records.
"""

import shutil
import tempfile
from pathlib import Path

import palestra
from palestra.run.checkpoints import Checkpoints
from palestra.run.shipped import FOLDER, shipped_configs
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder

CONFIGS = {"polyhedra": "dqn-polyhedra"}
COMMAND = "python -m benchmarks.trained_players"


def write_players(run: Path, folder: Path) -> None:
    """Write the players that a run left as a run of its own, in place of what is in `folder`."""
    trained = RunFolder.open(run)
    state = Checkpoints(trained, keep_last=1, keep_every=None).load("latest", check_rows=False).state
    kept = {
        "counters": state["counters"],
        "finished": True,
        "game": state["game"],
        "players": {
            name: {key: player[key] for key in ("opt_steps", "env_steps", "nets")}
            for name, player in state["players"].items()
        },
    }
    shutil.rmtree(folder, ignore_errors=True)
    light = RunFolder.create_at(folder)
    light.root.write(light.config.name, trained.root.read(trained.config.name))
    light.write_facts(trained.facts().model_copy(update={"command": COMMAND, "machine": {}}))
    Checkpoints(light, keep_last=1, keep_every=None).save(1, kept, state["counters"], {}, Measure([b""]).then())


def main() -> None:
    configs = shipped_configs()
    with tempfile.TemporaryDirectory() as place:
        for name, config in CONFIGS.items():
            run = Path(place) / name
            palestra.Trainer(configs[config], run=run, overrides=["output.recorders=[]"]).fit()
            write_players(run, FOLDER / name)


if __name__ == "__main__":
    main()
