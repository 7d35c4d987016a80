"""What leaves palestra: exported policies, tables, figures, TensorBoard, Weights & Biases and MLflow."""

import csv
import re
import shutil
from pathlib import Path

import pytest

from tests.doors.conftest import CARTPOLE, Shell

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["cart/seed-0", "polyhedra"])
def test_export_prints_how_to_load_what_it_wrote(name: str, shell: Shell, runs: Path) -> None:
    shutil.copytree(runs / name, shell.folder / "run")
    player = ("--player", "host") if name == "polyhedra" else ()
    printed = shell("export", "run", *player, "--onnx")
    of_torch = re.findall(r"^ *(import torch\n.*\n.*)$", printed, re.M)
    of_onnx = re.findall(r"^ *(import numpy as np, onnxruntime\n(?:.*\n)*?.*policy\.run\(.*)$", printed, re.M)
    assert len(of_torch) == len(of_onnx) == 1
    for lines in (*of_torch, *of_onnx):
        assert lines.count("\n") == 2
        program = "import sys\nsys.modules['palestra'] = None\n" + re.sub(r"^ +", "", lines, flags=re.M)
        shell("python", program + "\nassert action.shape == (1,), action")


def test_export_a_recurrent_policy_with_its_memory(shell: Shell) -> None:
    encoder = "encoder: {name: mlp, net_arch: [8], activation: tanh}, encoder_width: 8"
    net = f"{{name: recurrent, {encoder}, cell: lstm, hidden_size: 6, net_arch: [], activation: tanh}}"
    shell("train", *CARTPOLE, f"body.policy={net}", "--run", "run", "--quiet")
    printed = shell("export", "run", "--onnx")
    assert "memory_hidden" in printed
    assert "torch.zeros(1, 6)" in printed


def test_tables_and_figures(shell: Shell, runs: Path) -> None:
    carts = [runs / "cart" / f"seed-{seed}" for seed in (0, 1)]
    rows = list(csv.DictReader(shell("table", *carts).splitlines()))
    assert rows[0].keys() == {"run", "seed", "env_steps", "opt_steps", "name", "value"}
    assert {row["seed"] for row in rows} == {"0", "1"}
    shell("table", *carts, "--parquet", "records.parquet")
    shell("plot", *carts, "--x", "env_steps", "--out", "curves.pdf")
    shell("plot", *carts, "--kind", "learning-table", "--out", "table.svg")
    shell("plot", runs / "polyhedra", "--kind", "cross-table", "--out", "cross.svg")
    assert (shell.folder / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert "CartPole-v1" in (shell.folder / "table.svg").read_text()
    assert "zeillinger" in (shell.folder / "cross.svg").read_text().lower()
    printed = shell.python(
        "import pandas, polars",
        f"run = palestra.StoredRun.open({str(carts[0])!r})",
        "table = run.table()",
        "assert isinstance(table, pandas.DataFrame) and isinstance(run.table('polars'), polars.DataFrame)",
        "read = pandas.read_parquet('records.parquet')",
        "print(len(table), (read.seed == 0).sum())",
    )
    of_frame, of_parquet = printed.split()
    assert of_frame == of_parquet == str(sum(row["seed"] == "0" for row in rows))


def test_tensorboard_shows_twenty_scalars_first(runs: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(runs / "cart" / "seed-0" / "tensorboard"))
    events.Reload()
    first = [tag for tag in events.Tags()["scalars"] if not tag.startswith("detail/")]
    assert 0 < len(first) <= 20
    assert any("return" in tag for tag in first)


def test_services_get_checkpoints_where_the_config_says_so(shell: Shell) -> None:
    uri = f"sqlite:///{shell.folder}/mlflow.db"
    mlflow = f"{{name: mlflow, tracking_uri: '{uri}', experiment: cart, run_name: null, tags: {{}}, checkpoints: true}}"
    wandb = "{name: wandb, mode: offline, project: cart, entity: null, group: null, run_name: null, tags: [],"
    recorders = f"output.recorders=[{mlflow}, {wandb} notes: null, checkpoints: true}}]"
    shell("train", *CARTPOLE, recorders, "--run", "run", "--quiet")
    assert list((shell.folder / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    shell.python(
        "import mlflow",
        f"client = mlflow.MlflowClient({uri!r})",
        "run_id = open('run/mlflow/run-id').read().strip()",
        "folder = client.download_artifacts(run_id, 'run')",
        "player = palestra.load_player(folder, checkpoint='best')",
        "player.predict([0.1, 0, 0, 0])",
    )
