"""Data sets in Minari's store on this machine (https://minari.farama.org), as columns, in each of its three storages.

They are read as the bytes that they are: no environment that a set names is made, nothing is imported or downloaded.
Columns: observation.ENTRY and next_observation.ENTRY, where an observation that is no Dict or Tuple has the one entry
"observation", and what is nested is "a/b"; action, or action.ENTRY if it is a Dict or Tuple; reward, terminated,
truncated; episode, its number. Letters: T steps of an episode.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from palestra.config.errors import ConfigError, MissingExtra, cut
from palestra.data.unfolding import UnfoldedError, read_parquet, require_room, stacked

PREFIX = "minari:"
ID = re.compile(r"(?:[-\w]+/)*[-\w]+")
NUMBERS = {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}
Array = np.ndarray[Any, Any]
Keys = tuple[str | int, ...]  # of a part of a space; numbers in a Tuple


class Leaf(NamedTuple):
    """What is stored of all steps: a column, the keys under which Minari has it, and its shape in one step."""

    column: str
    keys: Keys
    shape: tuple[int, ...]


def read_set(path: str, ratio: int) -> tuple[list[str], str, Callable[[str], Array], dict[str, Any] | None]:
    """Read minari:ID.

    Returns the names of its columns, the SHA-256 of all its files in the order of their names, what returns a column
    (N, ...), and what its actions are, as the game `spaces` has it, None if `spaces` has no such. ratio: the most bytes
    of memory for each of its bytes. Raises ConfigError, with the path "".
    """
    found: dict[str, list[Array]] = {}
    with _reading(path) as folder:
        about, files = _about(folder), _read_files(folder, ratio)
        action = _actions(json.loads(about["action_space"]))
        leaves = [Leaf(column, (name,), ()) for column, name in NUMBERS.items()]
        for part in ("observation", "action"):
            for keys, shape in _leaves(json.loads(about[f"{part}_space"])):
                entry = "/".join(map(str, keys)) or ("observation" if part == "observation" else "")
                leaves.append(Leaf(f"{part}.{entry}".rstrip("."), (f"{part}s", *keys), shape))
        of_storage = _hdf5_episodes if about["data_format"] == "hdf5" else _arrow_episodes
        for episode in of_storage(files, about, leaves, ratio):
            steps = len(episode[0])
            for leaf, values in zip(leaves, episode, strict=True):
                if len(values) != steps + (leaf.keys[0] == "observations") or values.dtype.kind not in "biuf":
                    got = f"{len(values)} values ({values.dtype}) of {leaf.column!r} in an episode of {steps} steps"
                    raise ValueError(f"{got}, number {len(found.get(leaf.column, ()))}")
                found.setdefault(leaf.column, []).append(values)
        if not found:
            raise ValueError("no episodes")
        arrays = {column: np.concatenate(each) for column, each in found.items()}
    lengths = np.array(list(map(len, found["reward"])))
    last = (lengths + 1).cumsum() - 1  # observations of episodes, which have one more than steps
    seen = [name for name in arrays if name.startswith("observation.")]

    def array(name: str) -> Array:
        if name == "episode":
            return np.repeat(np.arange(len(lengths)), lengths)
        if name.startswith("next_"):
            return np.delete(arrays[name.removeprefix("next_")], last - lengths, axis=0)
        return np.delete(arrays[name], last, axis=0) if name in seen else arrays[name]

    sha256 = hashlib.sha256()
    for _, content in sorted(files.items()):
        sha256.update(content)
    names = [*arrays, "episode", *(f"next_{name}" for name in seen)]
    return names, sha256.hexdigest(), array, action


def find_references(path: str) -> dict[str, float] | None:
    """Return the mean returns, `random` and `expert`, by which minari:ID scales scores; None if it does not say them.

    Raises ConfigError, with the path "".
    """
    with _reading(path) as folder:
        about = _about(folder)
        if about.get("ref_min_score") is None or about.get("ref_max_score") is None:
            return None
        return {"random": float(about["ref_min_score"]), "expert": float(about["ref_max_score"])}


# ---- files ---------------------------------------------------------------------------------------------


@contextmanager
def _reading(path: str) -> Iterator[Path]:
    """A context that tells what goes wrong in a line. Gives the folder of minari:ID."""
    if not ID.fullmatch(name := path.removeprefix(PREFIX)):
        raise ConfigError.at("", f"expected minari:ID, such as minari:mujoco/hopper/expert-v0, got {path!r}")
    store = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    if not (folder := store / name / "data").is_dir():
        message = f"expected a data set of Minari's in {folder}, got none; `minari download {name}` fetches it"
        raise ConfigError.at("", message)
    try:
        yield folder
    except MissingExtra:
        raise
    except UnfoldedError as error:
        raise ConfigError.at("", f"{path!r}: {error}") from error
    except Exception as error:  # whatever h5py, arrow and pillow raise for what is damaged
        told = f"expected a data set that Minari has written in {folder}, got"
        raise ConfigError.at("", f"{told} {type(error).__name__}: {cut(str(error), 200)}") from error


def _read_files(folder: Path, ratio: int) -> dict[str, bytes]:
    """Read all files of a set, by their names below its folder."""
    paths = [each for each in folder.rglob("*") if each.is_symlink() or not each.is_dir()]
    if odd := [each for each in paths if each.is_symlink() or not each.is_file()]:
        raise ValueError(f"{odd[0]} is no regular file")
    size = sum(each.stat().st_size for each in paths)
    require_room(size, size, ratio)
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in paths}


def _about(folder: Path) -> dict[str, Any]:
    """Read what a set says of itself."""
    if not (file := folder / "metadata.json").is_file():
        raise ValueError("no metadata.json")
    about: dict[str, Any] = json.loads(file.read_bytes())
    if about["data_format"] not in ("hdf5", "arrow", "parquet"):
        raise ValueError(f"the unknown storage {about['data_format']!r}")
    if "observation_space" not in about or "action_space" not in about:
        raise ValueError("no spaces in metadata.json, but an environment at most, which is not made")
    return about


def _leaves(space: Any, keys: Keys = ()) -> Iterator[tuple[Keys, tuple[int, ...]]]:
    """Yield the keys of each part of a space, as Minari writes it, with its shape."""
    match space:
        case {"type": "Dict", "subspaces": dict(below)}:
            for key, each in below.items():
                yield from _leaves(each, (*keys, key))
        case {"type": "Tuple", "subspaces": list(below)}:
            for index, each in enumerate(below):
                yield from _leaves(each, (*keys, index))
        case {"type": "Box", "shape": shape} | {"type": "MultiBinary", "n": list(shape)}:
            yield keys, tuple(shape)
        case {"type": "MultiDiscrete", "nvec": nums}:
            yield keys, np.shape(nums)
        case {"type": "MultiBinary", "n": num}:
            yield keys, (num,)
        case {"type": "Discrete"}:
            yield keys, ()
        case _:
            raise ValueError(f"a space that is neither a Box nor of choices: {cut(str(space))}")


def _actions(space: Any) -> dict[str, Any] | None:
    """Return a space as the game `spaces` has it; None for others than choices from 0 on and bounded numbers."""
    match space:
        case {"type": "Discrete", "n": num, "start": 0}:
            return {"discrete": num}
        case {"type": "MultiDiscrete", "nvec": nums} if np.ndim(nums) == 1 and not np.any(space.get("start", 0)):
            return {"multi_discrete": nums}
        case {"type": "MultiBinary", "n": int(num)}:
            return {"multi_discrete": [2] * num}
        case {"type": "Box"}:
            bounds = {key: np.broadcast_to(np.float64(space[key]), space["shape"]) for key in ("low", "high")}
            if all(np.isfinite(each).all() and each.size for each in bounds.values()):
                return {key: each.flatten().tolist() for key, each in bounds.items()}
    return None


# ---- episodes in the three storages --------------------------------------------------------------------

Files = Mapping[str, bytes]
Episodes = Iterator[list[Array]]  # of an episode an array for each leaf


def _hdf5_episodes(files: Files, about: Mapping[str, Any], leaves: Sequence[Leaf], ratio: int) -> Episodes:
    h5py, content, wanted = _library("h5py"), files["main_data.hdf5"], 0
    with h5py.File(io.BytesIO(content), "r") as file:
        for number in range(about["total_episodes"]):
            episode = []
            for leaf in leaves:
                stored = file
                for key in (f"episode_{number}", *leaf.keys):
                    name = f"_index_{key}" if isinstance(key, int) else key
                    if not isinstance(stored.get(name, getlink=True), h5py.HardLink):  # others lead to other files
                        raise ValueError(f"no {name!r} in {stored.name}")
                    stored = stored[name]
                if stored.external or stored.is_virtual:
                    raise ValueError(f"{stored.name} in other files")
                require_room(wanted := wanted + stored.size * stored.dtype.itemsize, len(content), ratio)
                values = np.empty(stored.size, dtype=object) if stored.dtype.kind == "O" else stored[()]
                for index in range(stored.size if stored.dtype.kind == "O" else 0):  # each as long as it likes
                    values[index] = stored[index]
                    require_room(wanted := wanted + np.asarray(values[index]).nbytes, len(content), ratio)
                episode.append(_as_stored(values, leaf.shape, len(leaf.shape) > 1 and values.ndim < 3))
            yield episode


def _arrow_episodes(files: Files, about: Mapping[str, Any], leaves: Sequence[Leaf], ratio: int) -> Episodes:
    arrow = _library("pyarrow")
    for number in range(about["total_episodes"]):
        content = files[f"{number}/part-0.{about['data_format']}"]
        if about["data_format"] == "arrow":
            stream, batches, size = import_module("pyarrow.ipc").open_file(content), [], 0
            for index in range(stream.num_record_batches):
                batches.append(stream.get_batch(index))
                require_room(size := size + batches[-1].nbytes, len(content), ratio)
            table = arrow.Table.from_batches(batches)
            table.validate(full=True)
        else:
            table = arrow.Table.from_batches([*read_parquet(content, ratio)[1]])
        episode = []
        for leaf in leaves:
            cells = table.column(leaf.keys[0]).combine_chunks()
            for key in leaf.keys[1:]:
                cells = cells.field(str(key))
            if leaf.keys[0] != "observations":
                cells = cells[:-1]  # the last one fills the table up
            is_coded = cells.type in (arrow.binary(), arrow.dictionary(arrow.int32(), arrow.binary()))
            episode.append(_as_stored(cells.to_pylist() if is_coded else stacked(cells), leaf.shape, is_coded))
        yield episode


def _as_stored(values: Any, shape: tuple[int, ...], is_coded: bool) -> Array:
    """Return values of all steps (T, *shape). is_coded: they are pictures in JPEG, as Minari stores bytes."""
    if not is_coded:
        return np.asarray(values).reshape(len(values), *shape)
    require_room(len(values) * prod(shape), sum(map(len, values)), 1000)
    found, images = np.empty((len(values), *shape), dtype=np.uint8), import_module("PIL.Image")
    for place, picture in zip(found, values, strict=True):
        with images.open(io.BytesIO(bytes(picture)), formats=["JPEG"]) as image:
            if (image.height, image.width) != shape[:2]:
                raise ValueError(f"{image.height} x {image.width} pixels of a picture of shape {shape}")
            place[...] = np.asarray(image)
    return found


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra.at("", f"expected {name}, got none: pip install 'palestra[minari]'") from error
