"""The players of a stored run: loads its checkpoints, and evaluates them without training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from palestra.config import Config, ConfigError, check, check_overridden, checking, reading_own, trusting
from palestra.evaluation.config import AnyEvaluationConfig, EvaluationConfig, UserEvaluationConfig, evaluation_errors
from palestra.evaluation.evaluations import Evaluations
from palestra.evaluation.evaluator import Watch
from palestra.games import AnyGameConfig
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.imported_players import find_players
from palestra.kinds.games.parts import build_evaluations, build_parts, hold_fixed
from palestra.kinds.games.seating import load_kept, past_of
from palestra.kinds.games.user_nets import by_role, use_models
from palestra.players import scripts_in
from palestra.players.player import Player
from palestra.run.base import ASKED
from palestra.run.changes import Changes, errors_at
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_stored_config, require_kind
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.run.shipped import find_run
from palestra.run.stored import Stored, failures_filed
from palestra.runtime.device import require_stock_torch
from palestra.runtime.scores import Estimate
from palestra.storage.run_folder import RunFolder
from palestra.training.opening import Models, Nets, calls_of

ASKED_OF_GAMES: dict[str, Any] = {**ASKED, "max_rounds": 1000, "game": None, "references": None}


class Changeable(Config):
    """The keys of a run's config that an evaluation of a stored run may change."""

    game: AnyGameConfig
    """the rules"""
    evaluations: list[AnyEvaluationConfig]
    """games that are played apart from training"""


def changed_evaluations(changes: Changes, config: RunConfig) -> list[EvaluationConfig | UserEvaluationConfig]:
    """The evaluations of a run with changes. Raises ConfigError with every fault at once."""
    own = [evaluation.model_dump() for evaluation in config.evaluations]
    asked = [{**ASKED_OF_GAMES, "pairings": [config.roles]}] if changes.pairings else []
    data = {"game": config.game.model_dump(), "evaluations": own or asked}
    changed = check_overridden(data, changes.overrides, Changeable)
    game = None if changed.game == config.game else changed.game
    evaluations: list[EvaluationConfig | UserEvaluationConfig] = []
    for evaluation in changed.evaluations:
        if isinstance(evaluation, UserEvaluationConfig):
            evaluations.append(evaluation)
            continue
        update: dict[str, object] = {"game": evaluation.game or game}
        if changes.pairings:
            update["pairings"] = [config.roles | dict(pairing) for pairing in changes.pairings]
        evaluations.append(evaluation.model_copy(update=update))
    require_fitting(evaluations, config)
    return evaluations


def require_fitting(evaluations: Sequence[EvaluationConfig | UserEvaluationConfig], config: RunConfig) -> None:
    """Raise ConfigError if the roles, players or games of evaluations do not fit a run."""
    roles, scripts = config.game.declared_roles(), scripts_in(config.players)
    ConfigError.require_none(evaluation_errors(evaluations, config.game, roles, scripts))


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


class StoredGames(Stored):
    """The players of a run as its checkpoints hold them.

    explores: whether players that learn are loaded with all by which they explore in training; set it before `load`.
    """

    explores = False

    def __init__(self, folder: RunFolder, config: RunConfig, models: Mapping[str, Nets] | None = None) -> None:
        super().__init__(folder, config)
        require_stock_torch(trains=False)
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
            self.evaluations = build_evaluations(self.parts, changed_evaluations(changes, self.config))
        self.changes = changes

    def find(self, checkpoints: Checkpoints, which: str) -> LoadedCheckpoint:
        return find_players(checkpoints, which)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.counters = state["counters"]
        self.game.load_state_dict(state["game"])
        load_kept(past_of(self.parts), state)
        for player in self.parts.learners:
            there = f"expected a checkpoint with {player.name!r}, got copies of {', '.join(state['players'])} alone"
            player.lacks = None if player.name in state["players"] else there
        for name, player_state in state["players"].items():
            if self.explores and "optimizers" in player_state:  # runs that palestra ships have weights alone
                self.players[name].load_state_dict(player_state | {"replay_buffer": None})
            else:
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
        run's first evaluation (`final_num_games`), or 1000 where it has none. seed: determines the starts; None: the
        run's. Raises ConfigError for players that do not fit, EvaluationFailed if an environment fails.
        """
        run = self.config
        first = next((each for each in run.evaluations if isinstance(each, EvaluationConfig)), None)
        usual = ASKED_OF_GAMES if first is None else first.model_dump()
        num = usual["final_num_games"] if num_games is None else num_games
        if game is not None and "name" not in game:
            game = run.game.model_dump() | dict(game)
        data = {
            **ASKED_OF_GAMES,
            "name": "play",
            "num_games": num,
            "final_num_games": num,
            "max_rounds": usual["max_rounds"] if max_rounds is None else max_rounds,
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
    loaded.policy(explore=False)  # raises if the checkpoint lacks it
    hold_fixed(loaded)
    return loaded
