"""Recorded play as a replay buffer: rows of a file that never change, and a ring of rows that the player adds itself.

The training hands over the rows, which no checkpoint holds; those of the ring are stored as any buffer's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from palestra.buffers.packed import is_image, num_rows
from palestra.buffers.replay import PIECE, ReplayBuffer, ReplayConfig, UniformReplayConfig, kinds_of
from palestra.config import Config, ConfigError, Fraction, InBranch, NonEmptyStr, NonNegativeInt, PositiveInt, check
from palestra.randomness import U_GAMMA, mix
from palestra.runtime.compiling import njit

Columns = list[NonEmptyStr]
ByEntry = Annotated[dict[str, Columns], Field(min_length=1)]


class ColumnsConfig(Config):
    """Which columns of a file say what. Several columns are joined to one vector."""

    usual: ClassVar[Any] = {
        "terminated": None,
        "truncated": None,
        "episode": None,
        "next_observation": None,
        "legal": None,
        "next_legal": None,
        "extras": {},
    }

    observation: ByEntry
    """columns of each entry of the observation at the decision"""
    action: Columns
    """columns of the action, as the game takes it"""
    reward: NonEmptyStr
    """column of the reward until the next decision"""
    terminated: NonEmptyStr | None
    """column that says whether the game ended by its rules; null: none did"""
    truncated: NonEmptyStr | None
    """column that says whether the game was cut off; null: an episode that has not terminated was, at its last row"""
    episode: NonEmptyStr | None
    """column whose changes begin an episode; null: only the ends of episodes tell"""
    next_observation: ByEntry | None
    """columns of each entry of the true next observation; null: that of the next row in the episode"""
    legal: Columns | None
    """columns of the legal actions at the decision; null: all are"""
    next_legal: Columns | None
    """columns of the legal actions at the next decision; null: those of the next row in the episode, if `legal` has
    columns, else all"""
    extras: dict[str, Columns]
    """columns of what else is told of the decision, such as its log_prob, by name; {}: nothing"""


class HeldOutConfig(Config):
    usual: ClassVar[Any] = {"fraction": 0.1, "seed": 0}

    fraction: Fraction
    """share of the episodes, from which nothing is learned; the loss on them is recorded"""
    seed: NonNegativeInt
    """determines which"""


class DataSetReplayConfig(ReplayConfig):
    usual: ClassVar[Any] = {"held_out": None, "share_of_data": 1.0, "scratch_folder": None}

    name: Literal["data_set"]
    """recorded play in a file, of which every transition is drawn with equal probability, and the player's own rows"""
    capacity: Annotated[PositiveInt, InBranch.FREE]
    """the player's own transitions that are held; new ones replace the oldest"""
    file: Annotated[NonEmptyStr, InBranch.FREE]
    """recorded play: a .npz, .parquet, .csv or .jsonl file with a row for each decision, in the order of time;
    minari:ID, a data set of Minari's on this machine; or palestra:pendulum, which palestra ships"""
    columns: ColumnsConfig
    """which columns of the file say what"""
    held_out: HeldOutConfig | None
    """episodes from which nothing is learned; null: none"""
    share_of_data: Annotated[Fraction, InBranch.FREE]
    """share of each batch that is drawn from the file; as long as the player has no rows of its own, all is"""

    def build(self, device: torch.device, seed: int, stream: str) -> "DataSetReplay":
        return DataSetReplay(self, device, seed, stream)


class DataSetReplay(ReplayBuffer):
    """Rows of a file, and a ring of the player's own rows; a batch has `share_of_data` of the former, at its beginning.

    Own rows are held with the entries of the file's rows alone, so that both make one batch. The draws of a batch come
    from one sequence of random numbers: with the file alone they are those of a uniform buffer that holds its rows,
    with own rows alone those of one that holds these.

    data: the file's rows; None until the training hands them over. held_out: some of the rows that are held out, None
    if there are none. num_drawn: how many rows of the file were drawn so far.
    """

    config: DataSetReplayConfig

    def __init__(self, config: DataSetReplayConfig, device: torch.device, seed: int, stream: str) -> None:
        super().__init__(config, device, seed, stream)
        self._of_stream = seed, stream
        self.data: ReplayBuffer | None = None
        self.held_out: dict[str, Tensor] | None = None
        self.num_drawn = 0
        self._has_played = False  # else asking for own rows would wait for a GPU
        self._arrays: dict[int, tuple[np.ndarray, ...]] = {}  # by the size of a batch: what _draw_rows is told

    def take(self, rows: Mapping[str, Tensor], held_out: Mapping[str, Tensor] | None) -> None:
        """Take the rows of the file, on the CPU, which all are drawn from now on, and those that are held out."""
        if not (num := num_rows(rows)):
            raise ConfigError.at("transitions.name", "expected some that keep a row of recorded play, got none")
        keys = self.config.model_dump(include={"layout", "scratch_folder"}) | {"name": "uniform", "capacity": num}
        self.data = ReplayBuffer(check(keys, UniformReplayConfig), self.device, *self._of_stream)
        if not any(map(is_image, rows.values())):
            self.data.load_rows(0, rows)
            self.data.load_state_dict({"num_added": num, "num_samples": 0})
        for first in range(self.data.num_added, num, PIECE):
            piece = {name: value[first : first + PIECE] for name, value in rows.items()}
            self.data.add(piece, torch.ones(num_rows(piece), dtype=torch.bool))
        if held_out is not None:
            self.held_out = {name: value.to(self.device) for name, value in held_out.items()}

    @property
    def is_empty(self) -> bool:
        return self.data is None

    @property
    def passes(self) -> float:
        """How often each row of the file was drawn, on average."""
        return 0.0 if self.data is None else self.num_drawn / len(self.data)

    def add(self, rows: Mapping[str, Tensor], valid: Tensor) -> None:
        """Append own rows, as any buffer does. Raises ConfigError as `require_fit`."""
        assert self.data is not None
        if "legal" in self.data._kinds and "legal" not in rows:
            rows = {**rows, "legal": torch.ones_like(rows["next_legal"])}
        if not self._storage or self.data._kinds.keys() - rows:
            self.require_fit(rows)
        super().add({name: rows[name] for name in self.data._kinds}, valid)
        self._has_played = True

    def require_fit(self, own: Mapping[str, Tensor]) -> None:
        """Raise ConfigError, with paths from `replay_buffer` on, unless own rows have what the file's rows have."""
        assert self.data is not None
        for name, kind in self.data._kinds.items():
            if (wanted := kinds_of(own).get(name, "no such key")) != kind:
                told = f"expected {wanted}, as in the player's own play (with rollout_length: null it does not play)"
                raise ConfigError.at(f"replay_buffer.columns.{name}", f"{told}, got {kind}")

    def _allocate(self, rows: Mapping[str, Tensor]) -> None:
        """As in the base, with the rows' words in the order of the file's, because a batch has both."""
        assert self.data is not None
        super()._allocate({name: rows[name] for name in self.data._storage})

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        if self.data is None:
            raise ValueError("expected the rows of the file before sampling, got none")
        data, num = self.data, batch_size
        if self._has_played and not super().is_empty:
            num = round(self.config.share_of_data * batch_size)
        self.num_drawn += num
        if num == 0:
            return super().sample(batch_size)
        if num == batch_size:
            data.time_log, data.num_samples = self.time_log, self.num_samples
            self.num_samples += 1
            return data.sample(batch_size)
        with self.time_log.during("memory"):
            batch = self._preallocated(self._drawn, batch_size)
            shares = (data, slice(num)), (self, slice(num, None))
            if self._on_cpu:
                if batch_size not in self._arrays:
                    tensors = (data._words, self._words, self._added, batch.places, batch.words)
                    self._arrays[batch_size] = tuple(each.numpy() for each in tensors)
                _draw_rows(self.key, self.num_samples, num, self._arrays[batch_size])
            else:
                self.draw(batch.places)
                data.num_samples = self.num_samples
                data.draw(theirs := torch.empty_like(batch.places))
                batch.places[:num] = theirs[:num]
                for memory, part in shares:
                    torch.index_select(memory._words, 0, batch.places[part], out=batch.words[part])
            self.num_samples += 1
            rows = batch.rows
            if self._planes is not None:
                images = self._planes.empty_images(batch_size)
                for memory, part in shares:
                    assert memory._planes is not None
                    slots = {name: value[part] for name, value in batch.rows.items()}
                    memory._planes.with_images(slots, {name: value[part] for name, value in images.items()})
                rows = rows | images
            return rows if self.home == self.device else {name: value.to(self.device) for name, value in rows.items()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"num_drawn": self.num_drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._has_played = state["num_added"] > 0
        self.num_drawn = state["num_drawn"]


@njit()
def _draw_rows(key: int, num_samples: int, num: int, arrays: tuple[np.ndarray, ...]) -> None:
    """Draw as a uniform buffer does, the first `num` rows among those of the file, the others among one's own.

    arrays: the storage of both, with a spare row at the end; how many own rows were added; the places and the words of
    the batch, which are filled.
    """
    data, own, own_added, places, words = arrays
    state = mix(np.uint64(key) + np.uint64(num_samples + 1) * U_GAMMA)
    num_data, num_own = len(data) - 1, min(int(own_added[()]), len(own) - 1)
    for i in range(len(places)):
        state += U_GAMMA
        high = np.uint64(num_data if i < num else num_own)
        places[i] = np.int64((mix(state) >> np.uint64(33)) * high >> np.uint64(31))
    for i in range(len(places)):
        row, place = np.uint64(i), np.uint64(places[i])  # unsigned: an index that may be negative takes twice as long
        memory = data if i < num else own
        for word in range(np.uint64(words.shape[1])):
            words[row, word] = memory[place, word]
