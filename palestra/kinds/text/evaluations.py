"""Judges text players by dialogues that are held apart from training."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from palestra.config import below
from palestra.data.columns import require_same_files
from palestra.evaluation.evaluator import Games, Watch
from palestra.kinds.text.rollout_files import packed
from palestra.randomness import base_key, fold_number, world_keys
from palestra.run.evaluating import PLAYED
from palestra.runtime.intervals import set_counts
from palestra.runtime.statistics import clusters_of
from palestra.text.dialogue import Question
from palestra.text.game import TextGame
from palestra.text.players import TextPlayer
from palestra.text.rollouts import Rollouts, found_scores, text_scores
from palestra.text.scripts import named_script
from palestra.text.waves import Waves, Writer


class TextEvaluations:
    """Plays the evaluations of a training of text players."""

    counted = "games"

    def __init__(self, training: Any) -> None:
        self.training = training
        self.game: TextGame = training.game
        self.configs = {each.name: each for each in training.config.evaluations}
        self.scripts = {
            name: named_script(name, self.game, [role])
            for each in self.configs.values()
            for pairing in each.pairings
            for role, name in pairing.items()
            if name not in training.seats
        }

    def num(self, name: str, is_final: bool) -> int:
        config = self.configs[name]
        return int(config.final_num_games if is_final else config.num_games)

    def pairings(self, name: str, with_scripted: bool) -> list[dict[str, str]]:
        learners, pairings = self.training.config.learners(), self.configs[name].pairings
        return [each for each in pairings if with_scripted or any(player in learners for player in each.values())]

    def most_rounds(self, name: str) -> int | None:
        return self.game.protocol.max_rounds

    def snapshot(self) -> dict[str, Any]:
        players = {name: each.state_dict() for name, each in self.training.players.items()}
        return {"players": players, "files": dict(self.game.files)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave, with the counters, or the state of a checkpoint."""
        with below("game"):
            require_same_files(state["files"], self.game.files)
        set_counts(self.training, epochs=state["counters"]["epochs"])
        for name, each in self.training.players.items():
            each.load_state_dict(state["players"][name])

    def play(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        """Play the dialogues of an evaluation, and return its record, with them.

        In its file the roll-out of a dialogue is the number of its pairing. Calls are kept by evaluation and epoch;
        those of a stored run, which does not train, in a journal of their own.
        """
        servers, calls = self.training.servers, self.training.servers.calls
        stage = f"{name}-{self.training.epochs}" if calls.is_open else "evaluate"
        with servers.opened(), calls.kept_in(stage):
            found = self._play(name, num, with_scripted, watch)
        calls.forget(stage)
        return found

    def _play(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        protocol, learners = self.game.protocol, self.training.config.learners()
        pairs, num_over, rows = [], 0, []
        for pairing in self.pairings(name, with_scripted):
            games, rollouts = self._games(name, pairing, num, lambda over, before=num_over: watch(before + over, 0))
            place = self.configs[name].pairings.index(pairing)
            rows += [replace(row, epoch=self.training.epochs, rollout=place) for row in rollouts.rows]
            learned = [role for role in protocol.roles if pairing[role] in learners]
            players = {role: pairing[role] for role in protocol.roles}
            pairs.append({"players": players, "learned": learned, **games.summary()})
            num_over += num
        declared = [asdict(score) for score in text_scores(protocol)]
        said = {"evaluation": name, "roles": list(protocol.roles), "declared_scores": declared}
        return said | {"counted": self.counted, "pairs": pairs, "ratings": None, PLAYED: packed(Rollouts(rows))}

    def _key(self, name: str) -> int:
        seed = self.configs[name].seed
        return base_key(self.training.config.seed if seed is None else seed, f"evaluation/{name}")

    def questions(self, name: str, num: int) -> list[Question]:
        """Draw the questions of an evaluation."""
        return self.game.questions(world_keys(self._key(name), num, torch.device("cpu")), held_out=True)

    def _games(self, name: str, pairing: Mapping[str, str], num: int, over: Any) -> tuple[Games, Rollouts]:
        training, questions = self.training, self.questions(name, num)
        writers = {role: self._writer(pairing[role]) for role in self.game.roles}
        key = fold_number(self._key(name), 2**40)
        waves = Waves(self.game, writers, questions, 1, key, 0, training.config.answers_at_once)
        rollouts = training.rollouts_of("sample_evaluation", name, waves, over)
        protocol, dialogues = self.game.protocol, [table.dialogue for table in waves.tables]
        numbers: dict[tuple[tuple[str, str], ...], int] = {}  # of the different questions
        same = [numbers.setdefault((*each.fields.items(),), len(numbers)) for each in questions]
        games = Games(
            finished=torch.ones(num, dtype=torch.bool),
            lengths=torch.tensor([each.round for each in dialogues]),
            returns={role: torch.tensor([each.returns[role] for each in dialogues]) for role in protocol.roles},
            started_over=0,
            tallies={},
            actions={},
            info={},
            declared=text_scores(protocol),
            scores=found_scores(rollouts, protocol, same),
            wins={},
            clusters=clusters_of(same),
            about="questions",
        )
        return games, rollouts

    def _writer(self, name: str) -> Writer:
        seat = self.training.seats.get(name)
        if isinstance(seat, TextPlayer):
            return seat.writer()
        return Writer(name, self.scripts[name] if seat is None else seat)
