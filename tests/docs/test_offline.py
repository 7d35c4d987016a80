"""docs/offline.md: its files become players, by its commands alone."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.kinds.games.trainer import Trainer
from palestra.storage.records_file import read_records
from tests.docs.examples import blocks

QUICK = ["evaluations=[]", "best=null", "output.display=quiet", "batch_size=8", "updates_per_turn=2"]
OWN, HDF5 = (next(code for code in blocks("offline.md") if name in code) for name in ("log.npz", "h5py"))


def palestra(*words: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


@pytest.fixture(autouse=True)
def at_home(in_tmp_path: Path) -> Path:
    return in_tmp_path


def test_own_arrays_become_a_player_that_goes_on_in_the_game() -> None:
    exec(OWN, {})
    fractions = ["held_out={fraction: 0.4, seed: 0}"]
    palestra(
        "train", "iql", "Pendulum-v1", "replay_buffer.file=log.npz", *QUICK, *fractions, "stop.after=4", "--run", "a"
    )
    *_, last = read_records(Path("a/records.jsonl"))
    found = last["players"]["agent"]
    assert (last["env_steps"], last["opt_steps"]) == (0, 4)
    # three of five episodes, each without its last row, whose next one is lost
    assert found["data_passes"] == 4 * 8 / 57
    assert {"held_out/value_loss", "held_out/policy_loss"} <= found.keys()
    [words] = [code for code in blocks("offline.md", "sh") if code.startswith("palestra branch")]
    branch = [word.replace("runs/mine", "a").replace("40000", "9") for word in words.split()[1:]]
    palestra(*branch, "--run", "b")
    trainer: Trainer = Trainer.load("b")
    trainer.fit()
    assert trainer.opt_steps == 9
    assert trainer.env_steps > 0


def test_d4rl_s_files_are_known() -> None:
    rng = np.random.default_rng(0)
    with h5py.File("hopper_medium-v2.hdf5", "w") as file:
        for name, width in (("observations", (3,)), ("actions", (1,)), ("rewards", ())):
            file[name] = rng.normal(size=(50, *width)).clip(-1, 1).astype(np.float32)
        file["terminals"], file["timeouts"] = np.arange(50) % 7 == 6, np.arange(50) % 20 == 19
    exec(HDF5, {})
    palestra("train", "bc", "Pendulum-v1", "replay_buffer.file=hopper.npz", *QUICK, "stop.after=2", "--run", "a")
    [told] = [record for record in read_records(Path("a/records.jsonl")) if record["kind"] == "data_set"]
    # two episodes end by a timeout, one at the end of the file with its only row: their true next observations are lost
    assert (told["num_rows"], told["num_left_out"], told["num_episodes"]) == (47, 3, 9)


def test_the_columns_in_the_table_are_the_keys_of_the_config() -> None:
    from palestra.buffers.data_set import ColumnsConfig
    from tests.docs.examples import ROOT

    page = (ROOT / "docs" / "offline.md").read_text().partition("## Who learns")[0]
    rows = re.findall(r"^\| (`.*?`) \|", page.partition("## The file")[2], re.M)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(ColumnsConfig.model_fields)


LOG = """x,y,speed,steering,expert,cost,done
0.0,1,0,0.5,3.5,-1,FALSE
0.5,1,2,-0.5,4,-2,false
1.0,2,3,0.25,5.5,-3,TRUE
"""
NAMED = ["columns.observation={observation: [x, y, speed]}", "columns.reward=cost", "columns.terminated=done"]


def test_columns_of_other_names_are_named_also_without_a_game() -> None:
    Path("log.csv").write_text(LOG)
    for action, bounds in (("steering", (-1.0, 1.0)), ("expert", (3.5, 5.5))):
        run, words = f"by-{action}", ["replay_buffer.file=log.csv", *NAMED, f"replay_buffer.columns.action=[{action}]"]
        palestra("train", "bc", "spaces", *words, *QUICK, "stop.after=2", "--run", run)
        trainer: Trainer = Trainer.load(run)
        space = trainer.game.action_spaces["agent"]
        assert (space.low, space.high) == tuple((each,) for each in bounds)  # type: ignore[union-attr]
        assert trainer.game.spaces["agent"]["observation"].shape == (3,)
    shown = CliRunner().invoke(app, ["data", "show", "log.csv", *NAMED, "columns.action=[steering]"])
    assert "3 rows in 1 episodes, of which 1 terminated" in shown.output
    refused = CliRunner().invoke(app, ["data", "show", "log.csv", *NAMED])
    assert "replay_buffer.columns: expected columns of log.csv whose names tell action" in refused.output


def test_an_algorithm_without_a_replay_buffer_is_refused_in_a_line() -> None:
    exec(OWN, {})
    done = CliRunner().invoke(app, ["config", "ppo", "Pendulum-v1", "replay_buffer.file=log.npz"])
    assert done.exit_code == 2
    assert "replay_buffer.file: expected an algorithm with a replay buffer" in done.output
    assert done.output.count("\n") == 1


def test_play_that_is_shipped_is_found_by_its_name_alone() -> None:
    palestra("train", "iql-pendulum", *QUICK, "stop.after=2", "--run", "a")
    for name in ("palestra:lander", "palestra:../recorded/pendulum", "palestra:"):
        done = CliRunner().invoke(app, ["data", "show", name])
        assert f"expected recorded play that palestra ships (palestra:pendulum), got '{name}'" in done.output
