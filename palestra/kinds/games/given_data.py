"""Hands recorded play to the players who learn from it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from palestra.algorithms.parts.action_heads import SAMPLED
from palestra.algorithms.parts.replay import LearnsByReplay
from palestra.buffers.data_set import DataSetReplay, HeldOutConfig
from palestra.buffers.replay import ReplayBuffer
from palestra.config import ConfigError, below
from palestra.data.columns import require_same_files
from palestra.games.game import Game
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.recorded import RecordedPlay, read_play
from palestra.players.player import Player
from palestra.run.kinds import read_stored_config
from palestra.runtime.limits import memory_needed
from palestra.runtime.statistics import describe
from palestra.storage.disk import Folder
from palestra.storage.manifest import Manifest
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError


@dataclass(frozen=True)
class GivenData:
    """The recorded play from which a player learns, as a run tells it once. returns, lengths: of its episodes."""

    player: str
    file: str
    sha256: str
    num_rows: int
    num_episodes: int
    num_left_out: int
    returns: dict[str, float]
    lengths: dict[str, float]

    @classmethod
    def of(cls, player: str, play: RecordedPlay) -> Self:
        """Describe the play, whose rows may then be freed."""
        [(file, sha256)] = play.files.items()
        numbers = len(play.rows.valid), len(play.returns), play.num_left_out
        return cls(player, file, sha256, *numbers, describe(play.returns), describe(play.lengths))

    def line(self) -> str:
        left = f", {self.num_left_out:,} left out" if self.num_left_out else ""
        of_episodes = f"{self.num_episodes:,} episodes with a mean return of {self.returns['mean']:.6g}"
        return f"players.{self.player} learns from {self.file}: {self.num_rows:,} rows{left}, {of_episodes}"

    def record(self) -> dict[str, Any]:
        return {"kind": "data_set", **asdict(self)}


def give_data(player: Player, game: Game, config: RunConfig) -> GivenData | None:
    """Read the recorded play from which a player learns, and give its rows to the player, as it observes them.

    Running statistics of the game become those of the rows that are not held out. None if it learns from none. Raises
    ConfigError for a file that does not fit.
    """
    buffer, path = player.replay_buffer, f"players.{player.name}.algorithm"
    if not isinstance(buffer, DataSetReplay):
        return None
    if not isinstance(player.algorithm, LearnsByReplay):
        message = "expected another one (data_set is for algorithms that derive from LearnsByReplay), got 'data_set'"
        raise ConfigError.at(f"{path}.replay_buffer.name", message)
    with below(path), memory_needed("replay_buffer.file"):
        recorded = read_play(buffer.config, game, player.roles[0])
        held_out = held_out_rows(buffer.config.held_out, recorded.episode)
    if game.transforms_by_role and len(player.roles) > 1:
        message = f"expected null, because {player.name}, which learns from recorded play, sits in several roles"
        raise ConfigError.at("game.observation.normalize", f"{message}, got a mapping")
    rows, role = recorded.rows, player.roles[0]
    game.settle(role, {name: value[~held_out] if held_out.any() else value for name, value in rows.observation.items()})
    clip = getattr(getattr(config.game, "reward", None), "clip", None)
    rows = replace(
        rows,
        observation=_transformed(game, role, rows.observation),
        next_observation=_transformed(game, role, rows.next_observation),
        reward=rows.reward if clip is None else rows.reward.clamp(-clip, clip),
        extras={name: value for name, value in rows.extras.items() if name != SAMPLED},  # of another policy
        always_legal=rows.always_legal and game.always_legal,
    )
    with below(path), memory_needed("replay_buffer.file"):
        player.algorithm.take_data(rows, held_out)
    return GivenData.of(player.name, recorded)


def held_out_rows(config: HeldOutConfig | None, episode: Tensor) -> Tensor:
    """Return which rows belong to held-out episodes: bool (N,). episode: int64 (N,), the number of each row's."""
    if config is None:
        return torch.zeros_like(episode, dtype=torch.bool)
    num = int(episode.max()) + 1
    num_held_out = round(config.fraction * num)
    if not 0 < num_held_out < num:
        expected = f"expected a fraction of {num} episode(s) that leaves some on both sides (null: none is held out)"
        raise ConfigError.at("replay_buffer.held_out.fraction", f"{expected}, got {config.fraction}")
    order = torch.randperm(num, generator=torch.Generator().manual_seed(config.seed))
    return torch.isin(episode, order[:num_held_out])


def _transformed(game: Game, role: str, observation: dict[str, Tensor]) -> dict[str, Tensor]:
    found = game.transformed(role, {name: value.to(game.device) for name, value in observation.items()})
    return {name: value.cpu() for name, value in found.items()}


def require_same_play(run: RunFolder, config: RunConfig, game: Game, now: Iterable[GivenData]) -> None:
    """Raise ConfigError unless players learn from the bytes and in the spaces of the run that goes on or branches."""
    stored, files = read_stored_config(run.config), run.facts().data_files
    if stored.game.name != config.game.name:
        _require_same_spaces(stored.game, config.game, game)
    for data in now:
        with below(f"players.{data.player}.algorithm.replay_buffer.file"):
            before = files.get(stored.data_set_of(data.player).file, data.sha256)
            require_same_files({data.file: before}, {data.file: data.sha256})


def require_room(checkpoint: Path, buffers: Mapping[str, ReplayBuffer]) -> None:
    """Raise ConfigError unless the buffers of a branch can hold the rows in a checkpoint, by the names of players."""
    with suppress(CheckpointError):  # told when it is loaded
        for name, rows in Manifest.read(Folder(checkpoint)).buffers.items():
            buffer = buffers.get(player := name.split("~")[0])  # each replica has its own
            if buffer is not None and (fault := rows.fault_of(buffer.capacity)) is not None:
                raise ConfigError.at(f"players.{player}.algorithm.replay_buffer.capacity", fault)


def _require_same_spaces(stored: Any, config: Any, game: Game) -> None:
    """Raise ConfigError if a game does not fit in the place of `spaces`, in which players have learned.

    stored: the config of `spaces`. config: that of the game.
    """
    spaces = stored.build(game.device, "torch")
    kinds = ("observations", spaces.spaces, game.spaces), ("actions", spaces.action_spaces, game.action_spaces)
    for what, was, now in kinds:
        if dict(was) != dict(now):
            raise ConfigError.at("game", f"expected the {what} of `spaces`, {was}, got {now}")
    for key in ("normalize", "clip"):
        before_it, here = (getattr(each.observation, key) for each in (stored, config))
        if before_it != here:
            raise ConfigError.at(f"game.observation.{key}", f"expected {before_it}, as with `spaces`, got {here}")
