"""Data sets of Minari in its three storages: spaces of all kinds, pictures, references, and what is refused.

Letters: T steps of an episode.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from palestra.config import ConfigError
from palestra.data.columns import read_columns
from palestra.data.minari import find_references

STORAGES = ("hdf5", "arrow", "parquet")
STORE = Path("store")
SPACE = spaces.Dict(
    picture=spaces.Box(0, 255, (40, 32, 3), np.uint8),
    pair=spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2, 2))]),
    bits=spaces.MultiBinary(3),
)


@pytest.fixture(autouse=True)
def _in_a_store(in_tmp_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(STORE.absolute()))


def stacked(space: gymnasium.Space, values: list[Any]) -> Any:
    """Values of a space as Minari's buffers have them: lists below its keys."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(each, [value[key] for value in values]) for key, each in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(each, [value[k] for value in values]) for k, each in enumerate(space))
    return values


def write(storage: str, observation: Any = SPACE, action: Any = None, **more: Any) -> list[EpisodeBuffer]:
    """Write the set tests-v0 of three episodes, of T = 1, 3 and 2."""
    action = action or spaces.MultiDiscrete([2, 3])
    observation.seed(0)
    action.seed(0)
    episodes = []
    for steps in (1, 3, 2):
        ends = [step == steps - 1 for step in range(steps)]
        seen = stacked(observation, [observation.sample() for _ in range(steps + 1)])
        done = stacked(action, [action.sample() for _ in range(steps)])
        episodes.append(EpisodeBuffer(None, None, None, seen, done, [float(steps)] * steps, ends, [False] * steps))
    given = {"observation_space": observation, "action_space": action, "data_format": storage, **more}
    minari.create_dataset_from_buffers("tests-v0", episodes, **given)
    return episodes


@pytest.mark.parametrize("is_jpeg", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_set_is_what_minari_reads_of_it(storage: str, is_jpeg: bool) -> None:
    write(storage, jpeg_encoding=is_jpeg)
    file, episodes = read_columns("minari:tests-v0"), [*minari.load_dataset("tests-v0").iterate_episodes()]
    for prefix, part in (("", slice(None, -1)), ("next_", slice(1, None))):
        for name, get in {
            "picture": lambda each: each["picture"],
            "pair/0": lambda each: each["pair"][0],
            "pair/1": lambda each: each["pair"][1],
            "bits": lambda each: each["bits"],
        }.items():
            found = file.column(f"{prefix}observation.{name}")
            assert np.array_equal(found, np.concatenate([get(each.observations)[part] for each in episodes])), name
    for name, wanted in {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}.items():
        assert np.array_equal(file.column(name), np.concatenate([getattr(each, wanted) for each in episodes]))
    assert np.array_equal(file.column("action"), np.concatenate([each.actions for each in episodes]))
    assert file.column("episode").tolist() == [0, 1, 1, 1, 2, 2]
    assert file.column("observation.picture").dtype == np.uint8
    paths = sorted(path for path in STORE.rglob("*") if path.is_file())
    assert file.sha256 == hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def test_columns_have_the_names_of_ours() -> None:
    write("hdf5", spaces.Box(0, 1, (2,)), spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]))
    names = read_columns("minari:tests-v0").names
    flat = ("reward", "terminated", "truncated", "observation.observation", "action.0", "action.1", "episode")
    assert names == (*flat, "next_observation.observation")


@pytest.mark.parametrize(
    ("space", "wanted"),
    [
        (spaces.Discrete(10), {"discrete": 10}),
        (spaces.Discrete(3, start=1), None),
        (spaces.MultiDiscrete([2, 5]), {"multi_discrete": [2, 5]}),
        (spaces.Box(-2.0, np.array([1.0, 3.0]), (2,)), {"low": [-2.0, -2.0], "high": [1.0, 3.0]}),
        (spaces.Box(0.0, np.inf, (2,)), None),
        (spaces.MultiBinary(3), {"multi_discrete": [2, 2, 2]}),
    ],
)
def test_a_set_says_what_its_actions_are(space: Any, wanted: Any) -> None:
    write("hdf5", spaces.Box(0, 1, (2,)), space)
    assert read_columns("minari:tests-v0").action == wanted


def test_references_are_those_of_the_set() -> None:
    write("hdf5")
    assert find_references("minari:tests-v0") is None
    change(ref_min_score=-3, ref_max_score=12.5)  # Minari writes them where it has an environment
    assert find_references("minari:tests-v0") == {"random": -3.0, "expert": 12.5}
    with pytest.raises(ConfigError, match=r"none; `minari download other-v0` fetches it"):
        find_references("minari:other-v0")


def refusal() -> str:
    with pytest.raises(ConfigError) as raised:
        read_columns("minari:tests-v0")
    [line] = str(raised.value).splitlines()
    return line


def change(**changes: Any) -> None:
    path = STORE / "tests-v0/data/metadata.json"
    told = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in told.items() if value is not None}))


class Made(gymnasium.Env):
    def __init__(self) -> None:
        Path("made").touch()


def test_no_environment_is_made() -> None:
    write("hdf5", spaces.Box(0, 1, (2,)))
    spec = gymnasium.envs.registration.EnvSpec("Made-v0", entry_point=f"{__name__}:Made")
    change(observation_space=None, env_spec=spec.to_json())
    assert "no spaces in metadata.json, but an environment at most, which is not made" in refusal()
    assert not Path("made").exists()


@pytest.mark.parametrize("storage", STORAGES)
def test_what_does_not_fit_is_told(storage: str) -> None:
    write(storage, spaces.Box(0, 1, (2,)))
    change(total_episodes=4)
    assert refusal().startswith("expected a data set that Minari has written in ")
    change(total_episodes=10**18)
    assert refusal().startswith("expected a data set that Minari has written in ")
    change(total_episodes=3, observation_space=json.dumps({"type": "Text"}))
    assert "a space that is neither a Box nor of choices" in refusal()
    change(observation_space=json.dumps({"type": "Box", "shape": [3]}))
    assert refusal().startswith("expected a data set that Minari has written in ")
    change(observation_space=json.dumps({"type": "Box", "shape": [1 << 30, 1 << 30]}))
    assert "GiB" in refusal() or "expected a data set" in refusal()
    change(data_format="pickle")
    assert "the unknown storage 'pickle'" in refusal()
    (STORE / "tests-v0/data/more").symlink_to("/etc/hostname")
    change(data_format=storage)
    assert "more is no regular file" in refusal()


@pytest.mark.parametrize("bounds", [{}, {"low": [0, 1, 2, 3], "high": 1}, {"low": "x", "high": 1}])
def test_odd_bounds_of_actions_are_told(bounds: dict[str, Any]) -> None:
    write("hdf5", spaces.Box(0, 1, (2,)))
    change(action_space=json.dumps({"type": "Box", "shape": [2], **bounds}))
    assert refusal().startswith("expected a data set that Minari has written in ")


def test_other_files_are_not_read() -> None:
    write("hdf5", spaces.Box(0, 1, (2,)))
    path = STORE / "tests-v0/data/main_data.hdf5"
    content = path.read_bytes()
    for link in (h5py.ExternalLink("/etc/hostname", "/x"), h5py.SoftLink("/episode_1/rewards")):
        with h5py.File(path, "a") as file:
            del file["episode_0/rewards"]
            file["episode_0/rewards"] = link
        assert "no 'rewards' in /episode_0" in refusal()
        path.write_bytes(content)
    for layout in ("external", "virtual"):
        with h5py.File(path, "a") as file:
            del file["episode_0/rewards"]
            if layout == "external":
                file.create_dataset("episode_0/rewards", (1,), "f8", external=[("/proc/version", 0, 8)])
            else:
                virtual = h5py.VirtualLayout((1,), "f8")
                virtual[0] = h5py.VirtualSource("other.hdf5", "x", (1,))[0]
                file.create_virtual_dataset("episode_0/rewards", virtual)
        assert "/episode_0/rewards in other files" in refusal()
        path.write_bytes(content)
    with h5py.File(path, "a") as file:
        del file["episode_0/rewards"]
        file.create_dataset("episode_0/rewards", (1 << 40,), "f8", chunks=(1024,))
    assert "expected at most 1.0 GiB of memory" in refusal()
