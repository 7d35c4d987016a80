"""Evaluates the checkpoints of a run, without training; the run may train meanwhile."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from palestra.config import trusting
from palestra.evaluation.evaluations import Evaluations
from palestra.games.world import EnvironmentFailed
from palestra.players.player import Player
from palestra.recording.recorders import plain
from palestra.runs.config import RunConfig, read_stored_config
from palestra.runs.parts import build_evaluations, build_parts, hold_fixed
from palestra.storage.checkpoints import Checkpoints
from palestra.storage.disk import RunFolderError, write_traceback
from palestra.storage.facts import to_json
from palestra.storage.run_folder import RunFolder


class EvaluationFailed(RuntimeError):
    """An environment has failed in an evaluation; the message says where its traceback is written."""


class StoredRun:
    """The players of a run as its checkpoints hold them. `load` one, then `evaluate`.

    counters: of what was loaded. is_over: whether the run had ended there.
    """

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.parts = build_parts(config, torch.device(config.execution.device), folder.players)
        self.game, self.players = self.parts.game, self.parts.players
        self.counters: dict[str, int] = {}
        self.is_over = False

    @classmethod
    def open(cls, run: str | Path, starts: Mapping[str, int] | None = None, trust: bool = False) -> Self:
        """starts: the seeds of evaluations by name, in place of their own. trust: whether what the run names is trusted
        from now on. Raises RunFolderError where there is no run, or its config differs from what was written;
        UntrustedError for what it names that is not trusted."""
        with trusting(trust):
            folder, config = _open(run)
            if starts:
                seeded = [e.model_copy(update={"seed": starts.get(e.name, e.seed)}) for e in config.evaluations]
                config = config.model_copy(update={"evaluations": seeded})
            return cls(folder, config)

    @cached_property
    def evaluations(self) -> Evaluations:
        """Built at the first use: their own games may be environments, which not everybody needs. Raises ConfigError
        where game and players do not fit them."""
        return build_evaluations(self.parts)

    def load(self, which: str) -> None:
        """Give the players what they had in a checkpoint: latest, best or a number."""
        checkpoints = Checkpoints(self.folder, keep_last=1, keep_every=None)
        loaded = checkpoints.load(which, check_rows=False)
        with loaded.fitting():
            self.take(loaded.state)
            self.is_over = loaded.state["finished"]

    def take(self, state: Mapping[str, Any]) -> None:
        """Give the players and the game what stands in a state of the run."""
        self.counters = state["counters"]
        self.game.load_state_dict(state["game"])
        for name, player_state in state["players"].items():
            self.players[name].load_weights(player_state)

    def evaluate(
        self, name: str, num_games: int | None, watch: Callable[[int], None] = lambda num_over: None
    ) -> tuple[Path, dict[str, Any]]:
        """Play all pairings of one evaluation; gives the file in evaluations/, and the record.

        num_games: per pairing; None: the config's final number. watch: is told how many games are over. Raises
        EvaluationFailed.
        """
        final = self.evaluations.configs[name].final_num_games
        with self._failures_filed():
            result = self.evaluations.play(name, num_games or final, with_scripted=True, watch=watch)
        record = {"kind": "evaluation", **self.counters, **result}
        file = record_name(name, self.counters["opt_steps"])
        self.folder.evaluations.make().write(file, to_json(plain(record)).encode())
        return self.folder.evaluations.path / file, record

    def film(self, name: str, file: str) -> tuple[Path, list[float]]:
        """Film the first episodes of an evaluation into a file of evaluations/; gives its path, and their returns.

        Raises EvaluationFailed.
        """
        with TemporaryDirectory(prefix="palestra-film-") as place:
            film = Path(place) / file
            with self._failures_filed():
                returns = self.evaluations.film(name, film)
            self.folder.evaluations.make().write(file, film.read_bytes())
        return self.folder.evaluations.path / file, returns

    @contextmanager
    def _failures_filed(self) -> Iterator[None]:
        try:
            yield
        except EnvironmentFailed as error:
            traceback = write_traceback(self.folder.evaluations, error)
            raise EvaluationFailed(f"{error}; {traceback}") from error


def record_name(name: str, opt_steps: int) -> str:
    """The file that an evaluation of that step is filed in."""
    return f"{name}-opt-step-{opt_steps}.json"


def _open(run: str | Path) -> tuple[RunFolder, RunConfig]:
    """The folder of a run in which players play, and its config."""
    folder = RunFolder.open(Path(run))
    folder.require_rebuildable()
    config = read_stored_config(folder.config)
    if not isinstance(config, RunConfig):
        raise RunFolderError(f"expected a run in which players play, got {folder.path}")
    return folder, config


def load_player(run: str | Path, player: str | None, checkpoint: str, trust: bool = False) -> Player:
    """A player as a run left it, held fixed, with its `game` as the run left that: what the game has learned (running
    statistics, by which the player sees) is part of how it plays.

    player: its name; None: the only one that learned. checkpoint: latest, best or a number. trust: as `StoredRun.open`
    takes it.
    """
    with trusting(trust):
        folder, config = _open(run)
        # who plays alone waits for no compiler and learns by no gradient
        execution = config.execution.model_copy(update={"compile": False, "gradients": "autograd"})
        stored = StoredRun(folder, config.model_copy(update={"execution": execution}))
    learned = [player.name for player in stored.parts.learners]
    if player is None and len(learned) > 1:
        raise ValueError(f"{run} has several players that learned: say which of {', '.join(learned)}")
    name = player or learned[0]
    if name not in learned:
        raise ValueError(f"{run} has no player {name!r} that learned; it has {', '.join(learned)}")
    stored.load(checkpoint)
    loaded = stored.players[name]
    hold_fixed(loaded)
    loaded.game = stored.game
    return loaded
