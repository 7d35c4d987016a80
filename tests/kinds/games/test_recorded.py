"""Rows of a file as transitions: the same in every type of file, episodes that end in each way, and what does not fit.

Letters: N rows.
"""

import csv
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from damage import BOMB, EXPLODED
from games.gym_worlds import cart_pole
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer

from palestra.buffers.data_set import DataSetReplayConfig
from palestra.config import ConfigError, check
from palestra.data.columns import read_columns
from palestra.games import make_game
from palestra.games.game import Game
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.normalization import UNCHANGED
from palestra.games.spaces import Box, Discrete, MultiDiscrete, Space
from palestra.games.spaces_game import find_spaces
from palestra.kinds.games.recorded import RecordedPlay, find_columns, read_play

pytestmark = pytest.mark.usefixtures("in_tmp_path")
CPU = torch.device("cpu")
Columns = dict[str, np.ndarray]
ID = "tests/cartpole-v0"
D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
OURS = ("observation.observation", "action", "reward", "terminated", "truncated", "next_observation.observation")


class Told(Game):
    """A game of which the tests say the spaces alone."""

    roles = ("agent",)
    device = CPU

    def __init__(self, action: Any, *shapes: int, always_legal: bool = True) -> None:
        entries = {"observation": Space(shapes, torch.float32, padded=False)}
        self.spaces, self.action_spaces, self.always_legal = {"agent": entries}, {"agent": action}, always_legal


def read(file: str, game: Game, columns: Mapping[str, Any] | None = None, **changes: Any) -> RecordedPlay:
    """Read a file whose columns are found by their names, unless some are told."""
    columns = {**(find_columns(file, game, "agent") if columns is None else columns), **changes}
    keys = {"name": "data_set", "capacity": 1, "layout": "whole", "scratch_folder": None, "held_out": None}
    config = check({**keys, "file": file, "columns": columns, "share_of_data": 1.0}, DataSetReplayConfig)
    return read_play(config, game, "agent")


def refusal(file: str, game: Game, columns: Mapping[str, Any] | None = None, **changes: Any) -> str:
    """What is told of a file that does not fit, in a line."""
    with pytest.raises(ConfigError) as raised:
        read(file, game, columns, **changes)
    [line] = str(raised.value).splitlines()
    return line


def all_of(play: RecordedPlay) -> dict[str, torch.Tensor]:
    more = {"episode": play.episode, "returns": play.returns, "lengths": play.lengths, "valid": play.rows.valid}
    return play.rows.rows() | more


def require_equal(found: RecordedPlay, wanted: RecordedPlay, but: Sequence[str] = ()) -> None:
    """All rows are equal to the bit, and what is told of them."""
    one, other = all_of(found), all_of(wanted)
    assert one.keys() == other.keys()
    for name in one.keys() - {*but}:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name
    assert found.num_left_out == wanted.num_left_out


# ---- the same rows in every type of file ---------------------------------------------------------------


def played() -> list[EpisodeBuffer]:
    """Episodes of CartPole that terminate, and one that is cut off."""
    episodes, env = [], gymnasium.make("CartPole-v1").unwrapped
    for seed, most in enumerate((100, 100, 5, 100)):
        draws = np.random.default_rng(seed)
        observations, actions, rewards, ends = [env.reset(seed=seed)[0]], [], [], []
        while not (ends and (ends[-1] or len(ends) == most)):
            actions.append(draws.integers(2))
            observation, reward, terminated, *_ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(float(reward))
            ends.append(terminated)
        cut = [not ends[-1] and step == len(ends) - 1 for step in range(len(ends))]
        episodes.append(EpisodeBuffer(None, seed, None, observations, actions, rewards, ends, cut))
    return episodes


def columns_of(episodes: Sequence[EpisodeBuffer]) -> Columns:
    seen = [np.array(each.observations, dtype=np.float32) for each in episodes]
    parts = [
        [each[:-1] for each in seen],
        *([np.array(getattr(each, name)) for each in episodes] for name in ("actions", "rewards")),
        *([np.array(getattr(each, name)) for each in episodes] for name in ("terminations", "truncations")),
        [each[1:] for each in seen],
    ]
    return {name: np.concatenate(part) for name, part in zip(OURS, parts, strict=True)}


def scalars_of(columns: Columns) -> dict[str, list[Any]]:
    """A column for each number."""
    found = {}
    for name, values in columns.items():
        for k, value in enumerate(values.reshape(len(values), -1).T):
            found[f"{name}.{k}" if values.ndim > 1 else name] = value.tolist()
    return found


SCALARS = {
    "observation": {"observation": [f"{OURS[0]}.{k}" for k in range(4)]},
    "next_observation": {"observation": [f"{OURS[5]}.{k}" for k in range(4)]},
    **{name: [name] if name == "action" else name for name in OURS[1:5]},
    **dict.fromkeys(("episode", "legal", "next_legal")),
    "extras": {},
}


def test_the_same_steps_are_the_same_rows_in_every_type_of_file(monkeypatch: pytest.MonkeyPatch) -> None:
    episodes, game = played(), GymnasiumGame(check(cart_pole(), GymnasiumConfig), CPU)
    columns = columns_of(episodes)
    scalars = scalars_of(columns)
    np.savez("data.npz", **columns)  # type: ignore[arg-type]
    wanted = read("data.npz", game)
    assert wanted.rows.observation["observation"].dtype == torch.float32
    assert wanted.rows.observation["observation"].equal(torch.from_numpy(columns[OURS[0]]))
    assert wanted.rows.next_observation["observation"].equal(torch.from_numpy(columns[OURS[5]]))
    assert wanted.rows.action.tolist() == columns["action"].tolist()
    assert wanted.lengths.tolist() == wanted.returns.tolist() == [len(each.actions) for each in episodes]  # type: ignore[arg-type]
    assert wanted.episode.tolist() == [k for k, length in enumerate(wanted.lengths) for _ in range(length)]
    assert (wanted.rows.terminated.sum(), wanted.rows.truncated.sum(), wanted.num_left_out) == (3, 1, 0)
    assert wanted.rows.always_legal
    assert wanted.rows.legal.shape == wanted.rows.next_legal.shape == (len(columns["action"]), 2)

    lists = {name: pa.array(values.tolist()) for name, values in columns.items()}
    fixed = {name: pa.FixedSizeListArray.from_arrays(columns[name].ravel(), 4) for name in (OURS[0], OURS[5])}
    pq.write_table(pa.table(lists), "lists.parquet", row_group_size=10)
    pq.write_table(pa.table({**lists, **fixed}), "fixed.parquet")
    pq.write_table(pa.table(scalars), "scalars.parquet")
    with open("data.csv", "w", newline="") as out:
        csv.writer(out).writerows([[*scalars], *zip(*scalars.values(), strict=True)])
    rows = (dict(zip(scalars, row, strict=True)) for row in zip(*scalars.values(), strict=True))
    Path("data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with h5py.File("d4rl.hdf5", "w") as file:
        for name, values in zip(D4RL, columns.values(), strict=True):
            file[name] = values
    with h5py.File("d4rl.hdf5") as file:
        np.savez("d4rl.npz", **{name: file[name][()] for name in D4RL})
    for path in ("lists.parquet", "fixed.parquet", "d4rl.npz"):
        require_equal(read(path, game), wanted)
    for path in ("scalars.parquet", "data.csv", "data.jsonl"):
        require_equal(read(path, game, SCALARS), wanted)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path("store").absolute()))
    spaces = {"observation_space": game.reader.gym_space, "action_space": gymnasium.spaces.Discrete(2)}
    for storage in ("hdf5", "arrow", "parquet"):
        minari.create_dataset_from_buffers(ID, episodes, data_format=storage, **spaces)  # type: ignore[arg-type]
        require_equal(read(f"minari:{ID}", game), wanted)
        minari.delete_dataset(ID)
    without = {**find_columns("data.npz", game, "agent"), "next_observation": None}
    require_equal(read("data.npz", game, without), without_cut_rows(wanted), but=("next_observation.observation",))


def without_cut_rows(play: RecordedPlay) -> RecordedPlay:
    """What is left where the last next observation of an episode that is cut off is not known."""
    last = int(play.rows.truncated.nonzero())
    rows = play.rows.at(torch.tensor([row for row in range(len(play.episode)) if row != last]))
    rows.truncated[last - 1] = True
    return RecordedPlay(rows, play.episode[play.rows.truncated.logical_not()], 1, {}, play.returns, play.lengths)


# ---- where episodes end --------------------------------------------------------------------------------

Row = dict[str, Any]


def plain_rows(rows: list[Row], has_episode: bool, has_next: bool, has_legal: bool) -> tuple[list[Row], list[int]]:
    """The usable rows, one after the other, and the lengths of their episodes in the file."""
    episodes: list[list[Row]] = []
    for number, row in enumerate(rows):
        before = rows[number - 1] if number else None
        if (
            before is None
            or before["terminated"]
            or before["truncated"]
            or (has_episode and before["episode"] != row["episode"])
        ):
            episodes.append([])
        episodes[-1].append(row)
    found, lengths = [], []
    for episode in episodes:
        used: list[Row] = []
        for place, row in enumerate(episode):
            is_last = place == len(episode) - 1
            if is_last and not row["terminated"] and not (has_next and not has_legal):
                if used:
                    used[-1]["truncated"] = True
                continue
            following = row["next"] if has_next else None if is_last else episode[place + 1]["observation"]
            legal = None if is_last or not has_legal else episode[place + 1]["legal"]
            cut = is_last and not row["terminated"]
            used.append({**row, "truncated": cut, "next": following, "next_legal": legal, "of": len(lengths)})
        if used:
            found += used
            lengths.append(len(episode))
    return found, lengths


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(*[st.sampled_from([False, False, True])] * 3, st.booleans()), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_episodes_end_where_plain_python_ends_them(
    drawn: list[tuple[bool, bool, bool, bool]], has_episode: bool, has_next: bool, has_legal: bool
) -> None:
    episode, rows = 7, []
    for number, (terminated, truncated, is_new, first_is_legal) in enumerate(drawn):
        episode += is_new
        row = {"terminated": terminated, "truncated": truncated, "episode": episode, "observation": float(number)}
        rows.append({**row, "next": number + 0.5, "legal": [first_is_legal, True], "action": 1, "reward": number - 3.0})
    np.savez("data.npz", **{name: np.array([row[name] for row in rows]) for name in rows[0]})
    columns = {
        "observation": {"observation": ["observation"]},
        "next_observation": {"observation": ["next"]} if has_next else None,
        **{"action": ["action"], "reward": "reward", "terminated": "terminated", "truncated": "truncated"},
        "episode": "episode" if has_episode else None,
        "legal": ["legal"] if has_legal else None,
        **{"next_legal": None, "extras": {"place": ["observation"]}},
    }
    wanted, lengths = plain_rows(rows, has_episode, has_next, has_legal)
    game = Told(Discrete(2), 1, always_legal=False)
    if not wanted:
        assert refusal("data.npz", game, columns).startswith("replay_buffer.file: expected an episode in 'data.npz'")
        return
    found = read("data.npz", game, columns)
    for name in ("terminated", "truncated", "reward"):
        assert getattr(found.rows, name).tolist() == [row[name] for row in wanted]
    assert found.rows.truncated.equal(torch.tensor([row["truncated"] and not row["terminated"] for row in wanted]))
    assert found.rows.observation["observation"].flatten().tolist() == [row["observation"] for row in wanted]
    assert found.rows.extras["place"].tolist() == [row["observation"] for row in wanted]
    for row, following, legal in zip(
        wanted, found.rows.next_observation["observation"].flatten(), found.rows.next_legal, strict=True
    ):
        assert row["terminated"] or following == row["next"]
        assert row["terminated"] or legal.tolist() == (row["next_legal"] or [True, True])
    assert found.rows.legal.tolist() == [row["legal"] if has_legal else [True, True] for row in wanted]
    assert found.rows.valid.all()
    assert not found.rows.always_legal
    assert (found.episode.tolist(), found.lengths.tolist()) == ([row["of"] for row in wanted], lengths)
    assert (found.num_left_out, len(found.returns)) == (len(rows) - len(wanted), len(lengths))


# ---- how actions and observations may be written -------------------------------------------------------


def small(num: int = 4, **changes: Any) -> Columns:
    columns = {"observation": np.zeros((num, 2), np.float32), "reward": np.ones(num), "action": np.zeros((num, 2))}
    columns |= {"terminated": np.arange(num) % 2 == 1}
    return columns | {name: np.array(value) for name, value in changes.items()}


def save(**changes: Any) -> str:
    np.savez("data.npz", **{k: v for k, v in small(**changes).items() if v.ndim})  # None takes a column away
    return "data.npz"


def gym_of(observation: gymnasium.Space, action: gymnasium.Space) -> GymnasiumGame:
    """A game whose environment has these spaces."""
    gymnasium.register("Told-v0", lambda: Spaces(observation, action))
    return GymnasiumGame(check(cart_pole(id="Told-v0", arguments={}), GymnasiumConfig), CPU)


class Spaces(gymnasium.Env):
    def __init__(self, observation: gymnasium.Space, action: gymnasium.Space) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, **options: Any) -> Any:
        return self.observation_space.sample(), {}


def test_observations_and_actions_are_as_an_environment_or_players_have_them() -> None:
    spaces = gymnasium.spaces
    picture, choice = spaces.Box(0, 255, (8, 9, 3), np.uint8), spaces.Discrete(3, start=5)
    seen = spaces.Dict(picture=picture, pair=spaces.Tuple([choice, spaces.Box(-1, 1, ())]))
    game = gym_of(seen, spaces.Box(-1, 1, (2, 2), np.float64))
    draws = np.random.default_rng(0)
    pictures, numbers = draws.integers(256, size=(4, 8, 9, 3), dtype=np.uint8), draws.normal(size=4)
    choices, actions = np.array([7, 5, 6, 7]), draws.uniform(-1, 1, (4, 2, 2))
    hot = np.eye(3, dtype=np.float32)[choices - 5]
    for of_picture, of_choice in ((pictures, choices), (pictures.transpose(0, 3, 1, 2), hot)):
        entries = {"observation.picture": of_picture, "observation.pair/0": of_choice, "observation.pair/1": numbers}
        found = read(save(observation=None, action=actions, **entries), game).rows
        assert found.observation["picture"].equal(torch.from_numpy(pictures).permute(0, 3, 1, 2))
        assert found.observation["pair/0"].equal(torch.from_numpy(hot))
        assert found.observation["pair/1"].equal(torch.from_numpy(numbers).float().view(4, 1))
        assert found.action.equal(torch.from_numpy(actions).float().view(4, 4))
        columns = find_columns("data.npz", None, "agent")
        assert columns["observation"].keys() == {"picture", "pair/0", "pair/1"}
        shown = find_spaces(read_columns("data.npz"), columns, "agent") | {"observation": UNCHANGED.model_dump()}
        apart = read("data.npz", make_game(shown), columns).rows
        assert apart.observation["picture"].equal(found.observation["picture"])
        assert apart.action.equal(found.action)
    game = gym_of(spaces.MultiDiscrete([2, 3], start=[1, 4]), spaces.MultiDiscrete([[2], [3]], start=[[1], [4]]))
    told = np.array([[1, 4], [2, 6], [2, 5], [1, 6]])
    found = read(save(observation=told, action=told), game).rows
    assert found.action.tolist() == [[0, 0], [1, 2], [1, 1], [0, 2]]
    assert found.observation["observation"][1].tolist() == [0, 1, 0, 0, 1]
    for entry, key in (("observation", "observation.observation"), ("action", "action")):
        line = refusal(save(**{"observation": told, "action": told, entry: told + 2}), game)
        assert line.startswith(f"replay_buffer.columns.{key}: expected "), line
    line = refusal(save(**{"observation": told + 0.5, "action": told}), game)
    assert line.startswith("replay_buffer.columns.observation.observation: expected whole numbers"), line
    choices = np.array([[[1, 0], [0, 1]]] * 4)
    assert read(save(action=choices), Told(MultiDiscrete((2,) * 4), 2)).rows.action[0].tolist() == [1, 0, 0, 1]


def test_the_mask_in_an_observation_says_which_actions_are_legal() -> None:
    masks, walk = np.array([[1, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=np.int8), np.zeros((4, 3), np.float32)
    seen = gymnasium.spaces.Dict(walk=gymnasium.spaces.Box(-1, 1, (3,)), mask=gymnasium.spaces.MultiBinary(3))
    gymnasium.register("Masked-v0", lambda: Spaces(seen, gymnasium.spaces.Discrete(3)))
    config = cart_pole(id="Masked-v0", arguments={}) | {"action_mask": "observation.mask"}
    game = GymnasiumGame(check(config, GymnasiumConfig), CPU)
    entries = {"observation.walk": walk, "observation.mask": masks}
    entries |= {f"next_{name}": np.roll(value, -1, axis=0) for name, value in entries.items()}
    found = read(save(observation=None, next_observation=None, action=np.array([0, 1, 2, 2]), **entries), game).rows
    assert found.legal is not None
    assert found.legal.equal(torch.from_numpy(masks > 0))
    assert found.next_legal.equal(torch.from_numpy(np.roll(masks, -1, axis=0) > 0))
    assert "row 1 of episode" in refusal(
        save(observation=None, next_observation=None, action=np.array([0, 2, 2, 2]), **entries), game
    )


BOX, CHOICES = Box((-1.0, -2.0), (1.0, 2.0)), MultiDiscrete((2, 3))
FLAGS = np.array([[1, 0, 1, 1, 0]] * 4)
BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "out of bounds": (
        BOX,
        {"action": [[0, 0], [0, 0], [0, 2.1], [0, 0]]},
        r"columns.action: .* -2.0\) and .*2.1\] in row 2 of episode 1",
    ),
    "half a choice": (
        CHOICES,
        {"action": [[0, 0], [0, 1.5], [0, 0], [0, 0]]},
        r"columns.action: expected whole numbers .* row 1 of episode 0",
    ),
    "too large a choice": (
        CHOICES,
        {"action": [[0, 0], [0, 3], [0, 0], [0, 0]]},
        "columns.action: expected legal actions, got .0, 3",
    ),
    "a negative choice": (
        CHOICES,
        {"action": [[0, 0], [-1, 0], [0, 0], [0, 0]]},
        "columns.action: expected legal actions, got .-1, 0",
    ),
    "an illegal action": (
        CHOICES,
        {"action": [[0, 0], [0, 0], [0, 2], [0, 0]], "legal": FLAGS},
        r"columns.action: expected legal .* row 2",
    ),
    "no legal action": (CHOICES, {"legal": FLAGS * [[1], [1], [0], [1]]}, r"columns.legal: .* row 2 of episode 1"),
    "flags of another number": (
        CHOICES,
        {"legal": FLAGS[:, :4]},
        r"columns.legal: expected values of shape \(5,\) .* got \(4,\)",
    ),
    "flags of a vector": (BOX, {"legal": FLAGS}, "columns.legal: expected null"),
    "another length of actions": (
        BOX,
        {"action": np.zeros((4, 3))},
        r"columns.action: expected values of shape \(2,\)",
    ),
    "another shape": (
        BOX,
        {"observation": np.zeros((4, 3))},
        r"columns.observation.observation: .* shape \(2,\) .* got \(3,\)",
    ),
    "infinite": (
        BOX,
        {"observation": [[0, 0], [0, 0], [0, 0], [0, np.inf]]},
        r"columns.observation.observation: expected finite .*inf\] in row 3 of episode 1",
    ),
    "too large for float32": (
        BOX,
        {"reward": [0, 0, 1e300, 0]},
        r"columns.reward: expected finite .* 1e\+300 in row 2 of episode 1",
    ),
    "a reward that is none": (
        BOX,
        {"reward": [0, np.nan, 0, 0]},
        r"columns.reward: expected finite .* nan in row 1 of episode 0",
    ),
    "a next observation that is none": (
        BOX,
        {"next_observation": [[np.nan, 0]] * 4},
        r"columns.next_observation.observation: expected finite .* row 0",
    ),
    "no flag": (
        BOX,
        {"terminated": [0, 2, 0, 1]},
        "columns.terminated: expected 0 or 1 in every row, got 2.0 in row 1",
    ),
    "a flag that lacks": (
        BOX,
        {"terminated": [0, np.nan, 0, 1]},
        "columns.terminated: expected 0 or 1 in every row, got nan in row 1",
    ),
    "an episode without a name": (
        BOX,
        {"episode": ["a", "", "b", "b"]},
        "columns.episode: expected a number or text in every row, got nan in row 1",
    ),
    "arrays of texts": (
        BOX,
        {"observation": [["a", "b"]] * 4},
        "columns.observation.observation: expected numbers in the column 'observation', got an array of texts",
    ),
    "texts": (
        BOX,
        {"reward": ["a", "1", "2", "3"]},
        "columns.reward: expected numbers in the column 'reward', got 'a' in row 0",
    ),
    "other rows": (
        BOX,
        {"action": np.zeros((3, 2))},
        "columns.action: expected 4 rows in 'action', as in others, got 3",
    ),
    "no rows": (BOX, {"num": 0}, "file: expected rows"),
    "no ends, and no next observation": (BOX, {"num": 1}, "file: expected an episode"),
    "no reward": (
        BOX,
        {"reward": None},
        "columns: expected columns of data.npz whose names tell reward, got observation, action.*"
        r"replay_buffer\.columns\.observation=\{observation: \[NAME\]\}$",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_told_in_a_line(case: str) -> None:
    space, changes, told = BAD[case]
    with pytest.raises(ConfigError, match=rf"^replay_buffer\.{told}") as raised:
        read(save(**changes), Told(space, 2, always_legal="legal" not in changes))
    assert len(str(raised.value).splitlines()) == 1


def test_unknown_columns_and_entries_are_told() -> None:
    game, columns = Told(BOX, 2), find_columns(save(), Told(BOX, 2), "agent")
    line = refusal("data.npz", game, columns, action=["action", "acton"])
    assert line.startswith("replay_buffer.columns.action.1: expected a column of data.npz (observation, reward, ")
    assert line.endswith("got 'acton'; did you mean 'action'?")
    line = refusal("data.npz", game, columns, action=[])
    assert line == "replay_buffer.columns.action: expected at least one column, got []"
    line = refusal("data.npz", game, columns, observation={"other": ["observation"]})
    assert line.startswith("replay_buffer.columns.observation: expected columns for the entries observation of")
    every = np.ones((4, 5))
    read(save(action=np.zeros((4, 2)), legal=every), Told(CHOICES, 2))
    every[2, 1] = 0
    line = refusal(save(action=np.zeros((4, 2)), legal=every), Told(CHOICES, 2))
    assert line.startswith("replay_buffer.columns.legal: expected only 1 (every action of the game is legal), got"), (
        line
    )


def test_columns_have_no_names_under_which_batches_have_something_else() -> None:
    game, columns = Told(BOX, 2), find_columns(save(), Told(BOX, 2), "agent")
    assert "extras.w" in read("data.npz", game, columns, extras={"w": ["reward"]}).rows.rows()
    for name in ("weight", "discount"):
        line = refusal("data.npz", game, columns, extras={name: ["reward"]})
        assert line.startswith(f"replay_buffer.columns.extras.{name}: expected a name not used"), line


def test_where_episodes_end_is_said_by_names_or_in_words() -> None:
    np.savez("log.npz", observation=np.zeros((4, 2)), action=np.zeros((4, 2)), reward=np.zeros(4), done=[0, 1, 0, 1])
    with pytest.raises(
        ConfigError, match=r"whose names tell terminated, truncated or episode \(columns\.episode=null:"
    ):
        find_columns("log.npz", Told(BOX, 2), "agent")
    unclear = "expected to be told whether 'done' of log.npz means that a game ended by its rules, or was cut off"
    with pytest.raises(ConfigError, match=unclear):  # and nobody has terminated without a word
        find_columns("log.npz", Told(BOX, 2), "agent", ["replay_buffer.columns.episode=null"])
    for words, num, num_over in (
        (["terminated=null", "episode=null"], 1, 0),
        (["terminated=done"], 2, 2),
        (["truncated=done"], 2, 0),
    ):
        columns = find_columns("log.npz", Told(BOX, 2), "agent", [f"replay_buffer.columns.{word}" for word in words])
        play = read("log.npz", Told(BOX, 2), columns)
        assert (len(play.lengths), int(play.rows.terminated.sum())) == (num, num_over)


def test_what_lacks_after_the_end_does_not_matter() -> None:
    following = np.array([[1, 2], [np.nan, np.nan], [3, 4], [5, np.nan]])
    found = read(save(next_observation=following), Told(BOX, 2))
    assert found.rows.next_observation["observation"][[0, 2]].tolist() == [[1, 2], [3, 4]]
    assert found.rows.next_observation["observation"].isfinite().all()


def test_the_next_legal_actions_are_those_of_their_columns_and_observations_are_empty_after_the_end() -> None:
    legal, following = np.ones((4, 5)), np.ones((4, 5)) * [[0, 1, 1, 0, 1]]
    file = save(action=np.zeros((4, 2)), observation=np.ones((4, 2)), legal=legal, next_legal=following)
    found = read(file, Told(CHOICES, 2, always_legal=False)).rows
    assert found.legal.all()
    assert found.next_legal.tolist() == (following == 1).tolist()
    assert found.next_observation["observation"].tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]
    assert found.terminated.tolist() == [False, True, False, True]


# ---- damaged and forged files --------------------------------------------------------------------------


def forged(path: Path, draws: np.random.Generator) -> None:
    """Change some bytes, cut the file off, or put other content into it."""
    content = bytearray(path.read_bytes())
    match draws.integers(5):
        case 0:
            content = content[: draws.integers(len(content))]
        case 1:
            at = draws.integers(len(content))
            content[at:at] = BOMB
        case 2:
            at = draws.integers(len(content))
            content[at : at + 8] = draws.choice([b"\xff" * 8, bytes(8), b"\x7f" * 8])
        case _:
            for at in draws.integers(len(content), size=draws.integers(1, 20)):
                content[at] = draws.integers(256)
    path.write_bytes(content)


def test_of_damaged_and_forged_files_nothing_runs_and_a_line_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    game, episodes = GymnasiumGame(check(cart_pole(), GymnasiumConfig), CPU), played()
    columns = columns_of(episodes)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path("store").absolute()))
    spaces = {"observation_space": game.reader.gym_space, "action_space": gymnasium.spaces.Discrete(2)}
    for storage in ("hdf5", "arrow", "parquet"):
        name = f"{storage}-v0"
        minari.create_dataset_from_buffers(name, episodes[:2], data_format=storage, **spaces)  # type: ignore[arg-type]
    np.savez("data.npz", **columns)  # type: ignore[arg-type]
    np.savez_compressed("packed.npz", **columns)  # type: ignore[arg-type]
    pq.write_table(pa.table({name: pa.array(values.tolist()) for name, values in columns.items()}), "data.parquet")
    with open("data.csv", "w", newline="") as out:
        rows = scalars_of(columns)
        csv.writer(out).writerows([[*rows], *zip(*rows.values(), strict=True)])
    files = [Path(f"store/{name}-v0/data") for name in ("hdf5", "arrow", "parquet")]
    cases = [(str(path), path) for path in map(Path, ("data.npz", "packed.npz", "data.parquet", "data.csv"))]
    cases += [(f"minari:{each.parent.name}", path) for each in files for path in sorted(each.rglob("*.*"))]
    found, num_refused = {path: find_columns(path, game, "agent") for path, _ in cases if path != "data.csv"}, 0
    found["data.csv"] = SCALARS
    draws = np.random.default_rng(0)
    for _ in range(-(-200 // len(cases))):
        for name, path in cases:
            before = path.read_bytes()
            forged(path, draws)
            try:
                read(name, game, found[name])
            except ConfigError:
                num_refused += 1
            path.write_bytes(before)
    assert num_refused > 100
    assert not EXPLODED.exists()


def test_files_of_another_kind_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Told(BOX, 2)
    os.mkfifo("fifo.npz")
    Path("folder.npz").mkdir()
    objects = np.array([{}, None], dtype=object)
    np.savez("objects.npz", observation=objects, action=[0, 1], reward=[0, 1], episode=[0, 0])
    with zipfile.ZipFile("bytes.npz", "w") as file:
        file.writestr("reward", BOMB)
    for path in ("fifo.npz", "folder.npz", "none.npz", "minari:none-v0", "minari:../none"):
        assert refusal(path, game, find_columns(save(), game, "agent")).startswith("replay_buffer.file: expected "), (
            path
        )
    line = refusal("objects.npz", game, find_columns("objects.npz", game, "agent"))
    assert "got one that only pickle reads" in line
    with pytest.raises(ConfigError, match="whose names tell observation, action"):
        find_columns("bytes.npz", game, "agent")
