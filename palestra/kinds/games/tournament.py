"""Tournaments: games between stored, scripted and own players, of whom none learns."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from palestra.config import (
    ByKey,
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeInt,
    PositiveInt,
    check_overridden,
    load_yaml,
    render,
    user_class_hashes,
)
from palestra.config.own_modules import reading_file
from palestra.evaluation.config import EvaluationConfig, pairing_errors
from palestra.evaluation.evaluator import Watch, nobody_watches
from palestra.games import AnyGameConfig
from palestra.kinds.games.config import RunConfig, info_errors
from palestra.kinds.games.parts import build_evaluations, build_parts
from palestra.kinds.games.stored import ASKED_OF_GAMES
from palestra.players import SCRIPTED, FromRunConfig, own_script_model, scripts_in
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.players.seated_models import SeatedModelConfig
from palestra.run.base import player_name_errors
from palestra.run.kinds import is_tournament
from palestra.run.sections import ExecutionConfig, OutputConfig, PlayExecutionConfig, ProcessesConfig
from palestra.run.stored import failures_filed
from palestra.runtime.device import find_device
from palestra.runtime.threads import limited_threads
from palestra.storage.disk import RunFolderError, plain_path, writing
from palestra.storage.facts import RunFacts
from palestra.storage.lock import Lock
from palestra.storage.records_file import JsonlRecorder, iterate_records
from palestra.storage.run_folder import RunFolder

NAME = "tournament"  # of its only evaluation

# ---- what a tournament must say ---------------------------------------------------------------------------


class TournamentConfig(Config):
    seed: NonNegativeInt
    """determines the starts of the games, the same for every pairing"""
    game: AnyGameConfig
    """the rules"""
    players: dict[str, Annotated[ScriptedPlayerConfig | FromRunConfig | SeatedModelConfig, ByKey(own_script_model)]]
    """the players by name that come from a run, are models, or are scripted and have keys; {}: none"""
    pairings: Annotated[list[dict[str, str | list[str]]], Field(min_length=1)]
    """who plays whom: for every role a player of this file or a scripted one, or a list of them; of lists, everyone
    meets everyone"""
    num_games: PositiveInt
    """games per pairing, from the same starts every time"""
    max_rounds: PositiveInt
    """a game is cut off (truncated) after so many rounds"""
    num_worlds: PositiveInt
    """how many environments step together; boards are played all at once"""
    info: list[NonEmptyStr]
    """fields of the environments' info that are recorded; only of Gymnasium environments"""
    execution: PlayExecutionConfig
    """where and how the games are computed; equal bits are promised only while it is unchanged"""

    @model_validator(mode="after")
    def _check_pairings(self) -> Self:
        roles = self.game.declared_roles()
        errors = [*self._player_errors(), *self._environment_errors(), *self.execution.step_errors({"game": self.game})]
        scripts = scripts_in(self.players)
        for number, entry in enumerate(self.pairings):
            for pairing in _combinations(entry, roles):
                errors += pairing_errors(f"pairings.{number}", pairing, self.game, roles, scripts)
        ConfigError.require_none(errors)
        return self

    def _player_errors(self) -> Iterator[ConfigErrorItem]:
        seated = {name for pairing in self.every_pairing() for name in pairing.values()}
        yield from player_name_errors(self.players, SCRIPTED)
        for name in self.players:
            if name not in seated:
                message = "expected a player that sits in a pairing, got one that does not"
                yield ConfigErrorItem(f"players.{name}", message)

    def _environment_errors(self) -> Iterator[ConfigErrorItem]:
        for key in ("observation", "reward"):
            if getattr(getattr(self.game, key, None), "normalize", None) is not None:
                message = "expected null, because where nobody learns there are no running statistics, got a mapping"
                yield ConfigErrorItem(f"game.{key}.normalize", message)
        if not self.game.can_be_played:
            yield ConfigErrorItem("game", f"expected a game that can be played, got {self.game.name!r}")
        yield from info_errors("info", self.info, self.game)

    def every_pairing(self) -> list[dict[str, str]]:
        """The pairings with one player in each role, each once."""
        roles = self.game.declared_roles()
        found = [pairing for entry in self.pairings for pairing in _combinations(entry, roles)]
        return list({tuple(pairing.items()): pairing for pairing in found}.values())

    def as_run(self) -> RunConfig:
        """The config of a run with these players. It has the keys that playing needs, and none of training."""
        games = {"num_games": self.num_games, "final_num_games": self.num_games, "max_rounds": self.max_rounds}
        evaluation = EvaluationConfig(**{**ASKED_OF_GAMES, **games, "name": NAME, "pairings": self.every_pairing()})
        execution = ExecutionConfig(
            **dict(self.execution), **ProcessesConfig.usual, gradients="autograd", compile=False, actor_processes=0
        )
        keys: dict[str, Any] = {key: getattr(self, key) for key in ("seed", "game", "num_worlds", "players")}
        keys |= {"evaluations": [evaluation], "execution": execution, "roles": {}}
        return RunConfig.model_construct(**keys, output=OutputConfig.model_construct(info=self.info))


def _combinations(entry: Mapping[str, str | list[str]], roles: Sequence[str]) -> Iterator[dict[str, str]]:
    """The pairings of everyone with everyone, with the roles in the order of the game."""
    ordered = sorted(entry, key=lambda role: roles.index(role) if role in roles else len(roles))
    names = [[players] if isinstance(players := entry[role], str) else players for role in ordered]
    for chosen in product(*names):
        yield dict(zip(ordered, chosen, strict=True))


def read_tournament(
    path: Path, overrides: Sequence[str], pairings: Sequence[Mapping[str, str]] = ()
) -> TournamentConfig:
    """The config in a file, with overrides, and with other pairings if any are given.

    Raises ConfigError with every fault at once.
    """
    data = load_yaml(path)
    if not is_tournament(data) and "trainer" in data:
        message = "expected a tournament, in which nobody learns, got a config that trains; to train it: "
        raise ConfigError.at(str(path), f"{message}palestra train {path}")
    with reading_file(path):
        return check_overridden(data | ({"pairings": pairings} if pairings else {}), overrides, TournamentConfig)


# ---- how it is played -------------------------------------------------------------------------------------


class Tournament:
    """The players of a tournament and their games. First `begin`, then `evaluate`.

    counters: those of a run that has not learned. Raises ConfigError for players that do not fit the game.
    """

    folder: RunFolder
    lock: Lock

    def __init__(self, config: TournamentConfig) -> None:
        self.config = config
        self.parts = build_parts(config.as_run(), find_device(config.execution.device), None)
        self.game = self.parts.game
        self.evaluations = build_evaluations(self.parts)
        self.device = self.game.device
        self.counters = dict.fromkeys(RunConfig.counters, 0)

    def begin(self, run: Path | None, name: str) -> None:
        """Make the tournament's folder, with its config and run.json, and lock it until `evaluate` has ended.

        run: its path, which may only hold this tournament, not played to its end; None: runs/NAME-N. Raises
        RunFolderError.
        """
        self.folder = RunFolder.create(Path("runs"), name) if run is None else _folder_at(run, self.config)
        self.lock = self.folder.take_lock()
        try:
            _require_unplayed(self.folder, self.config)  # another process may have been faster
            self._write_begin()
        except BaseException:
            self.lock.free()
            raise

    def _write_begin(self) -> None:
        hashes = user_class_hashes(self.config.as_run())
        absent = dict.fromkeys(("trainer_in_python", "branched_from", "mirror", "checkpoint_folder"))
        facts = RunFacts.of_now(id=uuid.uuid4().hex, user_classes=hashes, set_in_python=[], **absent)
        with writing(self.folder.path):
            self.folder.root.below("checkpoints").remove_empty()
            self.folder.evaluations.make()
            self.folder.root.write(self.folder.config.name, render(self.config, TournamentConfig).encode())
            self.folder.write_facts(facts)

    def evaluate(self, name: str, num: int | None, watch: Watch = nobody_watches) -> tuple[Path, dict[str, Any]]:
        """Play all pairings. Gives the records file of the folder, and the record, its only line.

        name: NAME. num: of games per pairing; None: the config's. Raises EvaluationFailed if an environment fails.
        """
        started, num_threads = time.perf_counter(), self.config.execution.num_threads
        try:
            with failures_filed(self.folder.evaluations), limited_threads(num_threads):
                result = self.evaluations.play(name, num or self.config.num_games, True, watch)
            clock = {"seconds": time.perf_counter() - started}
            record = {"kind": "evaluation", **self.counters, **result, "clock": clock}
            records = JsonlRecorder(self.folder.records)
            records.cut(0)  # a process may have been killed while it wrote a line
            records.write(record)
            records.close()
            return self.folder.records, record
        finally:
            self.lock.free()


def _folder_at(run: Path, config: TournamentConfig) -> RunFolder:
    """A new folder, or the folder of this tournament if it was not played to its end. Raises RunFolderError."""
    try:
        return RunFolder.create_at(run)
    except RunFolderError:
        if not run.is_dir():
            raise
    folder = RunFolder(run)
    _require_unplayed(folder, config)
    return folder


def _require_unplayed(folder: RunFolder, config: TournamentConfig) -> None:
    """Raise RunFolderError unless a folder holds this tournament, not played to its end.

    A tournament that was played has a record, which may be damaged. A kill may have left a torn line instead.
    """
    other = RunFolderError(f"{folder.path} exists already, and does not hold this tournament")
    if folder.root.kind(folder.config.name) is None:
        try:
            folder.require_begun_only()
        except RunFolderError:
            raise other from None
    elif load_yaml(plain_path(folder.root, folder.config.name)) != load_yaml(render(config, TournamentConfig)):
        raise other

    def refuse(fault: str) -> None:
        raise RunFolderError(f"{fault}; move the file away, and the tournament is played again")

    for _ in iterate_records(folder.records, refuse):
        see = f"palestra report {quote(str(folder.path))}"
        raise RunFolderError(f"{folder.path} holds this tournament, played to its end; to see it: {see}")
