"""A stored run: loads its checkpoints, and evaluates them without training. The run may train meanwhile."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from palestra.config import Config, check, checking, reading_own, trusting
from palestra.config.own_modules import using_nothing_outside
from palestra.evaluation.config import EvaluationConfig
from palestra.evaluation.evaluations import Evaluations
from palestra.evaluation.evaluator import Watch, nobody_watches
from palestra.games.world import EnvironmentFailed
from palestra.players.player import Player
from palestra.recording.recorders import plain
from palestra.runs.base import BaseRunConfig
from palestra.runs.changed_evaluations import ASKED_OF_GAMES, Changes, digest, errors_at, require_fitting
from palestra.runs.config import RunConfig
from palestra.runs.evaluating import PLAYED
from palestra.runs.kinds import read_stored_config, require_kind
from palestra.runs.parts import build_evaluations, build_parts, hold_fixed
from palestra.runs.shipped import find_run
from palestra.runs.tables import Library, Row, Rows, rows_of_run, run_name, table
from palestra.runs.user_nets import Models, Nets, by_role, calls_of, use_models
from palestra.runtime.scores import Estimate
from palestra.storage.checkpoints import Checkpoints
from palestra.storage.disk import Folder
from palestra.storage.facts import to_json
from palestra.storage.run_folder import RunFolder, write_traceback


@dataclass(frozen=True)
class PlayedGames:
    """The result of the games of one pairing. Intervals are 95% intervals.

    players: role -> player. num_games: without those that were over at their start. num_finished: ended by the rules;
    the others were cut off. scores: those that the game declares, as "return/ROLE", the mean return of a role; nan
    where one is not known. won: in games of two roles, the share of contests that each has won; a contest is a game,
    won by the higher return (equal returns count half), or what the game says. lengths: of the games in rounds: mean,
    std, min, max, median, iqm, iqm_low, iqm_high. return_statistics: the same of the returns, by role. record:
    everything as an evaluation's record has it (docs/evaluation.md).
    """

    players: Mapping[str, str]
    num_games: int
    num_finished: int
    scores: Mapping[str, Estimate]
    won: Mapping[str, float]
    lengths: Mapping[str, float]
    return_statistics: Mapping[str, Mapping[str, float]]
    record: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_record(cls, pair: Mapping[str, Any]) -> Self:
        """Read the result in one of the `pairs` of an evaluation's record, as `Evaluations.play` gives it."""
        intervals = pair["intervals"]
        return cls(
            players=pair["players"],
            num_games=pair["games"],
            num_finished=pair["finished"],
            scores={name: Estimate.of(value, *intervals.get(name, ())) for name, value in pair["scores"].items()},
            won=pair["won"],
            lengths=pair["statistics"]["episode_length"],
            return_statistics=pair["statistics"]["episode_return"],
            record=pair,
        )


class EvaluationFailed(RuntimeError):
    """A part, such as an environment, has failed in an evaluation; the message names the file with its traceback."""


@contextmanager
def failures_filed(folder: Folder, failures: tuple[type[Exception], ...] = (EnvironmentFailed,)) -> Iterator[None]:
    """A context in which a failed part raises EvaluationFailed, with its traceback in a file of the folder."""
    try:
        yield
    except failures as error:
        raise EvaluationFailed(f"{error}; {write_traceback(folder, error)}") from error


class Stored:
    """A stored run of any kind, which is evaluated without training. First `load` a checkpoint, then `evaluate`.

    Must be implemented: `evaluations`, `change_evaluations`, `restore`, `play`.

    counters: those of the loaded checkpoint. is_over: whether the run had ended there. results: the folder in which
    results are filed. with_rollouts: whether the dialogues of evaluations are filed, too, in a run that has some.
    failures: the exceptions of parts that end an evaluation as failed. notes: a line for each change that nobody has
    typed.
    """

    failures: tuple[type[Exception], ...] = (EnvironmentFailed,)

    def __init__(self, folder: RunFolder, config: Any) -> None:
        self.folder, self.config, self.results = folder, config, folder.evaluations
        self.counters: dict[str, int] = {}
        self.is_over = self.with_rollouts = False
        self.changes = Changes((), ())
        self.notes: Sequence[str] = ()
        self.warnings: Sequence[str] = ()

    @property
    def evaluations(self) -> Any:
        """The run's evaluations (palestra.runs.evaluating.AnyEvaluations)."""
        raise NotImplementedError

    def change_evaluations(self, changes: Changes) -> None:
        """Let other evaluations be played from now on. Raises ConfigError if they do not fit the run."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what is evaluated from a state of the run, as a checkpoint or `AnyEvaluations.snapshot` holds it."""
        raise NotImplementedError

    def judge(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        """Evaluate, as `AnyEvaluations.play` does."""
        raise NotImplementedError

    def load(self, which: str) -> None:
        """Load what is evaluated from a checkpoint.

        which: latest, best, a number, or @ and an opt step (in a run with stages, a stage), such as @2100. Raises
        CheckpointError for one that is missing or damaged. Of damaged latest ones the one before is loaded; `warnings`
        has a line for each, after `notes`.
        """
        checkpoints = Checkpoints(self.folder, keep_last=1, keep_every=None)
        loaded = checkpoints.load(which, check_rows=False)
        self.warnings = [*self.notes, *loaded.warnings]
        with loaded.fitting():
            self.restore(loaded.state)
            self.is_over = loaded.state["finished"]

    def file_into(self, folder: RunFolder) -> None:
        """File results in a new folder, because the run's own is part of palestra."""
        folder.root.below("checkpoints").remove_empty()
        self.results = folder.evaluations

    def evaluate(self, name: str, num: int | None, watch: Watch = nobody_watches) -> tuple[Path, dict[str, Any]]:
        """Evaluate by all pairings of one evaluation. Gives the file in evaluations/, and the record.

        num: of games per pairing; None: as at the end of a run. Raises EvaluationFailed if a part of the run fails.
        """
        num = num or self.evaluations.num(name, is_final=True)
        with failures_filed(self.results, self.failures):
            result = self.judge(name, num, True, watch)
        played = result.pop(PLAYED, None)
        record = {"kind": "evaluation", **self.counters, **result}
        if self._is_changed(name):
            record["changes"] = self.changes.lines()
        file = self.file_name(name)
        self.results.make().write(file, to_json(plain(record)).encode())
        if self.with_rollouts and played is not None:
            self.file_rollouts(file.removesuffix(".json"), played)
        return self.results.path / file, record

    def file_rollouts(self, name: str, played: str) -> None:
        """Write the dialogues of an evaluation beside its record; in a run without dialogues it is never called."""

    def file_name(self, name: str) -> str:
        """The name of the file with the record of an evaluation; a changed evaluation has another one."""
        suffix = f"-{digest(self._judged_by(name))}" if self._is_changed(name) else ""
        return record_name(name, self.counters, suffix)

    def _is_changed(self, name: str) -> bool:
        return self.evaluations.configs[name] not in self.config.evaluations

    def _judged_by(self, name: str) -> Sequence[Config]:
        return [self.evaluations.configs[name]]

    def records(self) -> Iterator[Row]:
        """The run's records as tidy rows: every number of training and of evaluations, with its name and steps.

        Damaged lines are left out, each with a warning.
        """
        return rows_of_run(self.folder, run_name(self.folder.path), warnings.warn)

    def table(self, library: Library = "pandas") -> Any:
        """The rows of `records` as a DataFrame of pandas or polars, with a column for each field of `Row`.

        Raises ConfigError if the extra `frames` is missing.
        """
        return table(Rows(self.config.axes, self.records()), library)


class StoredGames(Stored):
    """The players of a run as its checkpoints hold them."""

    def __init__(self, folder: RunFolder, config: RunConfig, models: Mapping[str, Nets] | None = None) -> None:
        super().__init__(folder, config)
        self.parts = build_parts(config, torch.device(config.execution.device), folder.players)
        use_models(self.parts, models or {})
        for player in self.parts.learners:
            player.set_training(False)
        self.game, self.players, self.device = self.parts.game, self.parts.players, self.parts.game.device

    @cached_property
    def evaluations(self) -> Evaluations:
        """The run's evaluations.

        They are built when they are first used, because that may make environments. Raises ConfigError if they do not
        fit the game and the players.
        """
        return build_evaluations(self.parts)

    def change_evaluations(self, changes: Changes) -> None:
        """Let other evaluations be played from now on. Raises ConfigError if they do not fit the players."""
        with reading_own(), errors_at(changes.asked_path):  # the user typed them
            self.evaluations = build_evaluations(self.parts, changes.evaluations(self.config))
        self.changes = changes

    def restore(self, state: Mapping[str, Any]) -> None:
        self.counters = state["counters"]
        self.game.load_state_dict(state["game"])
        for name, player_state in state["players"].items():
            self.players[name].load_weights(player_state)

    def judge(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        return self.evaluations.play(name, num, with_scripted, watch)

    def film(self, name: str, file: str) -> tuple[Path, list[float]]:
        """Film the first episodes of an evaluation into a file in evaluations/.

        Gives its path and the episodes' returns. Raises EvaluationFailed if an environment fails.
        """
        with TemporaryDirectory(prefix="palestra-film-") as place:
            film = Path(place) / file
            with failures_filed(self.results):
                returns = self.evaluations.film(name, film)
            self.results.make().write(file, film.read_bytes())
        return self.results.path / file, returns

    def play(
        self,
        pairing: Mapping[str, str],
        game: Mapping[str, Any] | None = None,
        num_games: int | None = None,
        seed: int | None = None,
        max_rounds: int | None = None,
    ) -> PlayedGames:
        """Play games between players of the loaded checkpoint and scripted ones; nothing is written.

        pairing: role -> player; the roles that are left out keep the run's players. game: the keys in which it differs
        from the run's, or a whole other one with its `name`; None: the run's. num_games, max_rounds: None: those of the
        run's first evaluation (`final_num_games`). seed: determines the starts; None: the run's. Raises ConfigError for
        players that do not fit, EvaluationFailed if an environment fails.
        """
        run = self.config
        first = next((each for each in run.evaluations if isinstance(each, EvaluationConfig)), None)
        if game is not None and "name" not in game:
            game = run.game.model_dump() | dict(game)
        data = {
            **ASKED_OF_GAMES,
            "name": "play",
            "num_games": num_games or (first and first.final_num_games),
            "final_num_games": num_games or (first and first.final_num_games),
            "max_rounds": max_rounds or (first and first.max_rounds),
            "seed": seed,
            "game": game,
            "pairings": [run.roles | dict(pairing)],
        }
        with checking(), errors_at(lambda path: path.removeprefix("evaluations.0.").replace("pairings.0", "pairing")):
            evaluation = check(data, EvaluationConfig)
            require_fitting([evaluation], run)
            evaluations = build_evaluations(self.parts, [evaluation])
        with failures_filed(self.results):
            [pair] = evaluations.play("play", evaluation.num_games, with_scripted=True)["pairs"]
        return PlayedGames.from_record(pair)


def record_name(name: str, counters: Mapping[str, Any], suffix: str = "") -> str:
    """The name of the file that holds the record of an evaluation: it has its opt step, and its stage if it has one."""
    stage = f"-stage-{counters['stages']}" if "stages" in counters else ""
    return f"{name}{stage}-opt-step-{counters['opt_steps']}{suffix}.json"


def config_of(run: str | Path, trust: bool = False) -> BaseRunConfig:
    """The config of a run, or of one that palestra ships, to look at: nothing outside of its folder is used by it.

    Raises as `read_stored_config`.
    """
    with trusting(trust), using_nothing_outside():
        config: BaseRunConfig = read_stored_config(RunFolder.open(find_run(run).folder).config)
        return config


def open_to_play(run: str | Path, trust: bool = False, models: Models | None = None) -> StoredGames:
    """Open a run whose players will only play, which needs no compiler and no gradients.

    run: its folder, or the name of one that palestra ships. trust, models: as for
    palestra.training.stored_training.StoredRun.open.
    """
    with trusting(trust):
        folder = RunFolder.open(find_run(run).folder)
        config = require_kind(read_stored_config(folder.config), RunConfig, folder.path)
        nets = by_role(config, models)
        folder.require_rebuildable(calls_of(nets))
        execution = config.execution.model_copy(update={"compile": False, "gradients": "autograd"})
        return StoredGames(folder, config.model_copy(update={"execution": execution}), nets)


def load_player(
    run: str | Path, player: str | None, checkpoint: str, trust: bool = False, models: Models | None = None
) -> Player:
    """A player as a run left it, held fixed.

    Its `game` has the running statistics of the run, with which observations are normalised before the player sees
    them.

    run: its folder, or the name of one that palestra ships, or of a player of it (`palestra:polyhedra-host`). player:
    its name; None: the only one that learned. checkpoint: latest, best, a number, or an opt step as @2100. trust,
    models: as for `StoredRun.open`. Raises ValueError if no such player learned, or several did and `player` is None;
    RunFolderError, CheckpointError, UntrustedError.
    """
    stored, player = open_to_play(run, trust, models), player or find_run(run).player
    learned = [player.name for player in stored.parts.learners]
    if player is None and len(learned) > 1:
        raise ValueError(
            f"expected a player that learned in {run} ({', '.join(learned)}), got none; name it by --player NAME "
            "(in Python: player=NAME)"
        )
    name = player or learned[0]
    if name not in learned:
        raise ValueError(f"expected a player that learned in {run} ({', '.join(learned)}), got {name!r}")
    stored.load(checkpoint)
    loaded = stored.players[name]
    hold_fixed(loaded)
    return loaded
