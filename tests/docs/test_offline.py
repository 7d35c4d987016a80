"""docs/offline.md: its files become players, by its commands alone."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from palestra.cli import app
from palestra.kinds.games.recorded import OF_COLUMNS
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


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("columns.extras={}", "replay_buffer.columns: expected columns of log.csv whose names tell action, got x, y"),
        ("columns.action=5", "replay_buffer.columns.action: expected a list, each item a string"),
        ("columns.action=steering", "replay_buffer.columns.action: expected a list, each item a string"),
        ("columns.action=[wheel]", "replay_buffer.columns.action: expected columns of the file (x, y, speed"),
        ("columns=5", "replay_buffer.columns: expected a mapping with the keys observation, action"),
        ("columns={}", "replay_buffer.columns.observation: expected a mapping"),
        (
            "replay_buffer.column.action=[steering]",
            "replay_buffer.column.action=[steering]: expected replay_buffer.col",
        ),
        ("columns.truncated=cost", "replay_buffer.columns.truncated: expected 0 or 1 in every row, got -1.0 in row 0"),
        ("columns.terminated=name", "expected true or false, or 1 or 0, in 'name', got 'b' in row 1 ("),
    ],
)
def test_words_that_name_no_columns_are_told_in_a_line(word: str, told: str) -> None:
    lines = LOG.splitlines()
    Path("log.csv").write_text(
        "\n".join(f"{line},{end}" for line, end in zip(lines, ("name", "TRUE", "b", "0"), strict=True))
    )
    steering = [] if "action" in word or "extras" in word else ["columns.action=[steering]"]
    done = CliRunner().invoke(app, ["data", "show", "log.csv", *NAMED, *steering, word])
    assert done.exit_code == 2
    assert told in done.output, done.output


def test_columns_of_one_player_are_not_those_of_another() -> None:
    rows = {"observation": np.ones((6, 5), dtype=np.float32), "action": np.array([0, 1, 0, 1, 0, 1])}
    np.savez("matrix.npz", **rows, reward=np.ones(6), other=np.zeros(6), terminated=np.ones(6, dtype=bool))
    said = "players.column.algorithm.replay_buffer.columns.reward=other"
    done = CliRunner().invoke(app, ["config", "bc", "matrix", "replay_buffer.file=matrix.npz", said])
    assert done.exit_code == 0, done.output
    players = yaml.safe_load(done.output)["players"]
    found = {name: each["algorithm"]["replay_buffer"]["columns"]["reward"] for name, each in players.items()}
    assert found == {"row": "reward", "column": "other"}
    assert OF_COLUMNS.fullmatch("game.arguments.columns=3") is None
    inner = OF_COLUMNS.fullmatch("replay_buffer.columns.observation.columns=[a]")
    assert inner is not None
    assert inner.groups() == (None, "columns.observation.columns=[a]")


@pytest.mark.parametrize("game", ["spaces", "Pendulum-v1"])
def test_a_file_is_named_as_in_yaml_and_its_errors_name_the_key(game: str) -> None:
    exec(OWN, {})
    done = CliRunner().invoke(app, ["config", "bc", game, "replay_buffer.file=none.npz"])
    assert done.output.startswith("replay_buffer.file: expected a file at 'none.npz', got none")
    quoted = CliRunner().invoke(app, ["config", "bc", game, 'replay_buffer.file="log.npz"'])
    assert "file: log.npz\n" in quoted.output, quoted.output


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
