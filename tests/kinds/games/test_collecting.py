"""`palestra data`: what is collected are the roll-outs of a training, as the game gives them, and what a file holds.

Covers palestra.commands.data.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY, MakeConfig
from typer.testing import CliRunner

import palestra
from palestra.buffers.data_set import DataSetReplayConfig
from palestra.cli import app
from palestra.commands.starting import starting_config
from palestra.config import check
from palestra.kinds.games.recorded import find_columns, read_play
from palestra.kinds.games.trainer import Trainer
from palestra.rollouts.transitions import Transitions
from palestra.schedules import read_schedule
from tests.games.gym_worlds import MODES, cart_pole, gym_data

Data = dict[str, Any]
Columns = dict[str, np.ndarray]
NORMALIZE: Data = {"normalize": {"eps": 1e-8}, "clip": 0.5}
SCALE: Data = {"normalize": {"gamma": 0.9, "eps": 1e-8}, "clip": 0.1}
NIM: Data = {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": {"normalize": None, "clip": None}}
ONE_SEAT: Data = {"roles": {"agent": "agent"}, "players.host": ..., "num_worlds": 3, "evaluations": [], "best": None}
TWO_SEATS: Data = {"num_worlds": 5, "evaluations": [], "best": None}
PLAYS: Data = {  # and never learns
    "warmup_env_steps": 10**6,
    "exploration.epsilon": {"name": "constant", "value": 0.3},
    "replay_buffer.capacity": 5000,
}


def palestra_data(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output if code == 0 else result.stderr.rstrip("\n")


def collected(run: Path | str, *options: object) -> Columns:
    palestra_data("collect", run, "rows.npz", *options)
    return dict(np.load("rows.npz", allow_pickle=False))


def train(config: Data, folder: Path) -> tuple[Trainer, dict[str, list[torch.Tensor]]]:
    """A training, and which rows of its roll-outs counted, by role."""
    trainer, valid = palestra.Trainer(config, run=folder), dict[str, list[torch.Tensor]]()
    after_roll_out = trainer.after_roll_out

    def watch(player: Any, by_role: dict[str, Transitions]) -> None:
        for role, rows in by_role.items():
            valid.setdefault(role, []).append(rows.valid)
        after_roll_out(player, by_role)

    trainer.after_roll_out = watch  # type: ignore[method-assign]
    trainer.fit()
    return trainer, valid


def played(make_config: MakeConfig, changes: Data, seats: Data, num_epochs: int) -> Data:
    names = [name for name in TINY["players"] if seats.get(f"players.{name}", None) is not ...]
    plays = {f"players.{name}.algorithm.{key}": value for name in names for key, value in PLAYS.items()}
    stop = {"stop": {"after": num_epochs, "unit": "epochs"}}
    return make_config(seats | plays | stop | changes)


def expected_rows(
    buffer: Any, valid: torch.Tensor, num_worlds: int, num_rows: int
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The rows of a uniform buffer that are collected, found one by one, and the numbers of their episodes.

    valid: bool (M,), which rows of the roll-outs the buffer has taken.
    """
    worlds = (torch.arange(len(valid)) % num_worlds)[valid].tolist()
    rows = buffer.rows(0, buffer.num_added)
    ended = (rows["terminated"] | rows["truncated"]).tolist()
    share, kept = -(-num_rows // num_worlds), list[int]()
    for world in range(num_worlds):
        for count, row in enumerate([row for row, each in enumerate(worlds) if each == world], start=1):
            kept.append(row)
            if count >= share and ended[row]:
                break
        else:
            raise AssertionError("the training was too short")
    ends = [place for place, row in enumerate(kept) if ended[row]]
    kept = kept[: next(place for place in ends if place >= num_rows - 1) + 1]
    episodes = np.cumsum([0, *[ended[row] for row in kept[:-1]]]).tolist()
    return {name: value[kept] for name, value in rows.items()}, episodes


def assert_same(found: Columns, expected: dict[str, torch.Tensor], episodes: list[int], start: int = 0) -> None:
    columns = {name: value.numpy() for name, value in expected.items() if name != "next_legal" or "legal" in expected}
    columns["action"] = columns["action"] + start
    columns["episode"] = np.array(episodes)
    assert found.keys() == columns.keys()
    for name, value in columns.items():
        assert found[name].dtype == value.dtype, name
        assert np.array_equal(found[name], value), name


def assert_read_back(game: Any, role: str, expected: dict[str, torch.Tensor], episodes: list[int]) -> None:
    """Whoever learns from the file gets the rows of the buffer."""
    columns = find_columns("rows.npz", game, role)
    keys: Data = {"name": "data_set", "file": "rows.npz", "columns": columns, "held_out": None, "share_of_data": 1.0}
    keys |= {"capacity": 1, "layout": "whole", "scratch_folder": None}
    play = read_play(check(keys, DataSetReplayConfig), game, role)
    rows = play.rows.rows()
    assert play.num_left_out == 0
    assert play.episode.tolist() == episodes
    assert rows.keys() == expected.keys()
    assert all(torch.equal(rows[name], value) for name, value in expected.items())


# ---- the rows ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize("mode", MODES)
def test_the_rows_are_those_of_the_same_roll_outs_in_a_uniform_buffer(mode: str, make_config: MakeConfig) -> None:
    game = gym_data(vectorization={"name": "sync", "autoreset": mode})
    trainer, valid = train(played(make_config, {"game": game}, ONE_SEAT, 40), Path("run"))
    found = collected("run", "--rows", 50, "--explore")
    rows, episodes = expected_rows(trainer.agent_replay_buffer, torch.cat(valid["agent"]), 3, 50)
    assert_same(found, rows, episodes, start=5)  # as the environment counts its actions
    assert_read_back(trainer.game, "agent", rows, episodes)
    assert 50 <= len(found["reward"]) < 50 + 5
    assert found["truncated"].any()
    assert found["terminated"].any()


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize("role", ["host", "agent"])
def test_the_rows_of_a_role_among_two_are_those_of_a_uniform_buffer(role: str, make_config: MakeConfig) -> None:
    changes = {"game.max_rounds": 3}  # so that some are cut off
    trainer, valid = train(played(make_config, changes, TWO_SEATS, 60), Path("run"))
    found = collected("run", "--rows", 60, "--explore", "--role", role)
    buffer = trainer.players[role].replay_buffer
    rows, episodes = expected_rows(buffer, torch.cat(valid[role]), 5, 60)
    assert_same(found, rows, episodes)
    assert_read_back(trainer.game, role, rows, episodes)
    assert found["legal"].shape == found["next_legal"].shape
    assert found["truncated"].any()


@pytest.mark.usefixtures("in_tmp_path")
def test_roles_that_take_turns_have_their_own_rows(make_config: MakeConfig) -> None:
    seats = {"roles": {"first": "host", "second": "agent"}, "game": NIM}
    trainer, valid = train(played(make_config, seats, TWO_SEATS, 60), Path("run"))
    for role, name in seats["roles"].items():
        found = collected("run", "--rows", 40, "--explore", "--role", role)
        assert_same(found, *expected_rows(trainer.players[name].replay_buffer, torch.cat(valid[role]), 5, 40))


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize("mode", MODES)
def test_normalised_and_clipped_games_are_recorded_as_they_are(mode: str, make_config: MakeConfig) -> None:
    """The rules of a Walk hold in the rows, and the player has decided by what it gets there."""
    game = gym_data(vectorization={"name": "sync", "autoreset": mode}, observation=NORMALIZE, reward=SCALE)
    learns = {"game": game, "players.agent.algorithm.warmup_env_steps": 8}
    train(played(make_config, learns, ONE_SEAT, 40), Path("run"))
    found = collected("run", "--rows", 200)
    before, after = found["observation.observation"], found["next_observation.observation"]
    assert np.array_equal(before[:, 0], after[:, 0])
    assert np.array_equal(before[:, 1] + 1, after[:, 1])
    assert np.array_equal(before[:, 2] + found["action"], after[:, 2])
    assert np.array_equal(found["reward"], after[:, 1])
    assert before[:, 0].max() > 1000
    kind = before[:, 0].astype(int) % 3
    assert set(kind[found["terminated"]]) == {0, 2}
    assert set(kind[found["truncated"]]) == {1}
    actions, _ = palestra.load_player("run").predict(before.astype(np.float64))
    assert np.array_equal(actions, found["action"])
    assert len(set(actions)) > 1


@pytest.mark.usefixtures("in_tmp_path")
def test_a_normalised_tensor_game_is_recorded_as_it_is(make_config: MakeConfig) -> None:
    game = {**NIM, "observation": NORMALIZE}
    seats = {"roles": {"first": "host", "second": "agent"}, "game": game}
    train(played(make_config, seats, TWO_SEATS, 20), Path("run"))
    found = collected("run", "--rows", 100, "--role", "first")
    heaps = found["observation.heaps"]
    assert set(heaps.flatten()) == {0.0, 1.0}
    assert np.array_equal(heaps.sum(axis=2), np.ones(heaps.shape[:2]))
    actions, _ = palestra.load_player("run", "host").predict(heaps, legal=found["legal"], role="first")
    assert np.array_equal(actions, found["action"])


@pytest.mark.usefixtures("in_tmp_path")
def test_whoever_plays_may_be_another(make_config: MakeConfig) -> None:
    """Rows of a scripted player, which keeps no probabilities, in a run that comes with palestra."""
    zeillinger = collected("palestra:polyhedra", "--rows", 64, "--role", "host", "--pairing", "host=zeillinger")
    trained = collected("palestra:polyhedra", "--rows", 64, "--role", "host")
    assert zeillinger["observation.points"].dtype == np.float32
    assert zeillinger.keys() == trained.keys()
    assert not np.array_equal(zeillinger["action"][:64], trained["action"][:64])
    assert (np.diff(trained["episode"]) == (trained["terminated"] | trained["truncated"])[:-1]).all()


@pytest.mark.usefixtures("in_tmp_path")
def test_exploration_is_that_of_the_checkpoint(make_config: MakeConfig) -> None:
    """A callback may have changed its schedule: here it explores no more."""
    trainer = palestra.Trainer(played(make_config, {"game": gym_data()}, ONE_SEAT, 1), run="run")
    no_more = read_schedule({"name": "constant", "value": 0.0})
    trainer.players["agent"].change_schedule("exploration.epsilon", no_more)
    trainer.fit()
    explored, greedy = collected("run", "--rows", 60, "--explore"), collected("run", "--rows", 60)
    assert np.array_equal(explored["action"], greedy["action"])


@pytest.mark.usefixtures("in_tmp_path")
def test_what_the_policy_keeps_comes_along() -> None:
    words = ["cartpole", "num_worlds=2", "stop.after=1", "stop.unit=epochs", "evaluations=[]", "best=null"]
    palestra.Trainer(starting_config("ppo", [*words, "output.display=quiet", "callbacks=[]"]), run="run").fit()
    found = collected("run", "--rows", 30, "--explore")
    assert (found["extras.log_prob"] < 0).all()
    assert "legal" not in found
    assert "next_legal" not in found


# ---- the file ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = copy.deepcopy(TINY) | {"evaluations": [], "best": None, "stop": {"after": 8, "unit": "opt_steps"}}
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    palestra.Trainer(config, run=folder).fit()
    return folder


@pytest.mark.usefixtures("in_tmp_path")
def test_equal_arguments_give_equal_bytes(run: Path) -> None:
    options = ["--rows", 20, "--role", "host", "--explore"]
    files = {}
    for name, more in {"one": [], "two": [], "seed": ["--seed", 1], "start": ["--checkpoint", 0]}.items():
        told = palestra_data("collect", run, f"{name}.npz", *options, *more)
        assert told.endswith(f"{name}.npz\n")
        files[name] = Path(f"{name}.npz").read_bytes()
    assert files["one"] == files["two"]
    assert len({*files.values()}) == 3
    assert [path.name for path in Path().iterdir() if path.suffix != ".npz"] == [], "nothing unfinished"


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["x.csv", "--role", "host"],
            "FILE: expected a file that ends in .npz, in a folder that exists, got x.csv",
        ),
        (["no/x.npz"], "FILE: expected a file that ends in .npz, in a folder that exists, got no/x.npz"),
        (["x.npz"], "--role: expected the role whose rows are kept (host, agent), got none"),
        (["x.npz", "--role", "guest"], "--role: expected a role of the game (host, agent), got 'guest'"),
        (
            ["x.npz", "--role", "host", "--pairing", "guest=random"],
            "--pairing: expected a role of the game (host, agent), got 'guest'",
        ),
        (["x.npz", "--role", "host", "--pairing", "host=greedy"], "host: expected the role agent for the player"),
        (["x.npz", "--role", "host", "--pairing", "host=nobody"], "host: expected a player of the run (host, agent)"),
    ],
)
def test_bad_input_is_told_in_one_line(words: list[str], error: str, run: Path) -> None:
    told = palestra_data("collect", run, *words, code=2)
    assert told.startswith(error)
    assert "\n" not in told
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("in_tmp_path")
def test_a_role_that_never_decides_is_told(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.kinds.games.collecting.PATIENCE", 1)
    monkeypatch.setattr("palestra.games.config.MOST_ROUNDS", 20)
    seats = {"roles": {"first": "host", "second": "agent"}, "game": NIM | {"num_heaps": 1}}
    train(played(make_config, seats, TWO_SEATS, 1), Path("run"))
    words = ["run", "x.npz", "--rows", 5, "--role", "second", "--pairing", "first=choose_last"]
    told = palestra_data("collect", *words, code=2)
    assert told.startswith("--rows: expected episodes that end, and in which 'second' decides, got others in ")


@pytest.mark.usefixtures("in_tmp_path")
def test_show_says_what_a_file_holds() -> None:
    columns = {"observations": np.zeros((5, 2)), "actions": np.zeros((5, 1)), "rewards": [1.0, 2.0, 0.5, -1.0, 4.0]}
    ends = {"terminals": np.array([0, 1, 0, 0, 1]), "timeouts": np.array([0, 0, 0, 1, 0])}
    np.savez("theirs.npz", **columns, **ends)
    lines = palestra_data("show", "theirs.npz").splitlines()
    assert lines[:5] == [
        "4 rows in 3 episodes, of which 2 terminated",
        "lengths: mean 1.66667, from 1 to 2",
        "returns: mean 2.16667, from -0.5 to 4",
        "left out, because the file lacks what follows: 1 rows",
        "columns: observations, actions, rewards, terminals, timeouts",
    ]
    assert lines[5].startswith("SHA-256: ")
    np.savez("other.npz", number=np.zeros(5))
    assert "expected columns of other.npz" in palestra_data("show", "other.npz", code=2)
    assert palestra_data("show", "none.npz", code=2).startswith("expected a file at 'none.npz', got none")


@pytest.mark.usefixtures("in_tmp_path")
def test_show_counts_what_was_collected(make_config: MakeConfig) -> None:
    train(played(make_config, {"game": cart_pole()}, ONE_SEAT, 1), Path("run"))
    found = collected("run", "--rows", 60)
    lengths = np.bincount(found["episode"])
    lines = palestra_data("show", "rows.npz").splitlines()
    num = f"{len(found['reward'])} rows in {len(lengths)} episodes, of which {len(lengths)} terminated"
    spread = f"mean {lengths.mean():.6g}, from {lengths.min()} to {lengths.max()}"
    assert lines[:4] == [num, f"lengths: {spread}", f"returns: {spread}", lines[3]]
    assert lines[3].endswith(": 0 rows")
