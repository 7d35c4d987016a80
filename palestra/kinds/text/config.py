"""The config of a run in which players talk in words, and are tuned on what they have said."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from palestra.config import (
    ByName,
    Config,
    ConfigErrorItem,
    InBranch,
    NonNegativeInt,
    PositiveInt,
    UserConfig,
    below,
    has_unread,
    under,
)
from palestra.evaluation.config import TimedEvaluationConfig
from palestra.evaluation.measures import GameMeasures
from palestra.games.dialogue.protocol import Protocol
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.run.base import ASKED, EvaluatedRunConfig, TrainingClass, player_name_errors, seat_faults
from palestra.run.sections import MachineConfig, ProcessesConfig, RunOutputConfig
from palestra.text.algorithms.malt import MaltConfig
from palestra.text.game import TextDialogueConfig
from palestra.text.players import AnyTextPlayer, TextPlayerConfig
from palestra.text.rollouts import text_scores
from palestra.text.scripts import SCRIPTS
from palestra.text.servers.config import BudgetConfig, ServerConfig, price_errors

BUDGET_IS_SPENT = "the budget is spent: the next call or job could pass it"
NO_WORLDS = "trainer text plays dialogues in words, which need no worlds, no kernels and no replay buffers"

MANY = 10**18  # more than anybody can have


class TextTrainerConfig(Config):
    name: Literal["text"]
    """in each epoch the players talk, and those that learn are then tuned on what they have said"""


AnyTextTrainerConfig = Annotated[TextTrainerConfig | UserConfig, ByName(user_class=TrainingClass)]
AnyTextGameConfig = Annotated[TextDialogueConfig, ByName()]


class TextExecutionConfig(MachineConfig):
    absent = dict.fromkeys(("kernel", "step_within_s", "gradients", "compile"), NO_WORLDS) | dict.fromkeys(
        ProcessesConfig.bitless, "players that talk in words learn in one process"
    )
    usual: ClassVar[Any] = {"device": "cpu", "num_threads": 1}


class TextOutputConfig(RunOutputConfig):
    absent = dict.fromkeys(("layer_norms", "info", "replay_in_checkpoints"), NO_WORLDS)
    usual: ClassVar[Any] = {"transcripts": "answers"}

    transcripts: Literal["answers", "prompts"] | None
    """what people can read in transcripts/EPOCH.yml of each dialogue: its answers; or the prompts, too; null: there is
    no such file"""


class TextEvaluationConfig(TimedEvaluationConfig):
    """Dialogues that are held apart from training, on questions that it never draws."""

    own_scores: ClassVar[None] = None
    game: ClassVar[None] = None
    usual: ClassVar[Any] = {
        "name": "main",
        "interval": {"every": 1, "unit": "epochs"},
        "at_start": True,
        "num_games": 100,
        "final_num_games": 200,
        "seed": None,
    }

    num_games: PositiveInt
    """dialogues per pairing, each on a held-out question that is drawn for it, the same every time"""
    final_num_games: PositiveInt
    """dialogues per pairing at the end of a run"""
    seed: NonNegativeInt | None
    """determines the questions and the tokens that are drawn; null: the run's seed"""
    pairings: list[dict[str, str]]
    """who talks with whom: for every role a player of this file or a scripted one"""


class TextConfig(EvaluatedRunConfig):
    """A run in which players talk in words."""

    counters = ("env_steps", "opt_steps", "tokens", "stages", "epochs", "episodes")
    late = ("episodes",)
    axes = ("opt_steps", "tokens", "epochs")
    in_words = "a run in which players talk in words"
    is_open = False
    options = ("--pairing", "--games", "--player", "--rollouts")
    changeable = ("evaluations",)
    extendable = ("stop", "budget")
    absent: ClassVar[Any] = {
        "num_worlds": NO_WORLDS,
        "num_replicas": "players that talk learn in one training, not in replicas",
    }
    usual: ClassVar[Any] = {
        "trainer": "text",
        "num_questions": 64,
        "num_rollouts": 4,
        "answers_at_once": 256,
        "stop": {"after": 20, "unit": "epochs"},
        "output": {"record": {"every": 1, "unit": "stages"}, "save": {"every": 1, "unit": "stages"}},
    }

    trainer: Annotated[AnyTextTrainerConfig, InBranch.SAME_PART]  # type: ignore[assignment]
    """who trains: by name, or a class of your own"""
    game: Annotated[AnyTextGameConfig, InBranch.FIXED]
    """the rules"""
    num_questions: PositiveInt
    """questions of an epoch"""
    num_rollouts: PositiveInt
    """dialogues on each question of an epoch"""
    answers_at_once: PositiveInt
    """the most answers of a model that are computed together"""
    roles: Annotated[dict[str, str], InBranch.FIXED]
    """who sits in which role"""
    players: Annotated[dict[str, AnyTextPlayer], InBranch.FIXED]
    """the players by name: each has a model, is scripted, or comes from another run"""
    evaluations: list[TextEvaluationConfig]
    """dialogues that are played apart from training; []: none"""
    budget: BudgetConfig | None
    """what the run may spend on models behind servers; it then ends, and `palestra extend` may give it more; null: any
    sum"""
    execution: TextExecutionConfig
    """where and how the run is computed; equal bits are promised only while it is unchanged"""
    output: TextOutputConfig
    """what is shown and stored; it changes no bit of the results"""

    def are_scores_known(self) -> bool:
        return not has_unread(self.game)

    def errors(self) -> Iterator[ConfigErrorItem]:
        yield from super().errors()
        if has_unread(self.game):
            return
        roles = self.game.declared_roles()
        yield from seat_faults("roles", self.roles, roles, self.players, SCRIPTS)
        for place, each in enumerate(self.evaluations):
            if each.name in [other.name for other in self.evaluations[:place]]:
                message = f"expected a different name for each evaluation, got {each.name!r} twice"
                yield ConfigErrorItem(f"evaluations.{place}.name", message)
            for number, pairing in enumerate(each.pairings):
                at, known = f"evaluations.{place}.pairings.{number}", [*self.players, *SCRIPTS]
                yield from seat_faults(at, pairing, roles, known, ())
        if not self.learners():
            yield ConfigErrorItem("players", "expected at least one player with an algorithm, got none")
        yield from player_name_errors(self.players, SCRIPTS)
        yield from self._server_errors()
        for name in self.learners():
            advantage = getattr(self.players[name].algorithm, "advantage", "batch")  # type: ignore[union-attr]
            if self.num_rollouts == 1 and advantage != "batch":
                message = f"expected 'batch', because num_rollouts is 1, got {advantage!r}"
                yield ConfigErrorItem(f"players.{name}.algorithm.advantage", message)
        yield from self._tree_errors()
        in_pairings = {name for each in self.evaluations for pairing in each.pairings for name in pairing.values()}
        for name in self.players:
            if name not in self.roles.values() and (name in self.learners() or name not in in_pairings):
                message = "expected a player that sits in a role, or one that does not learn and plays in a pairing"
                yield ConfigErrorItem(f"players.{name}", f"{message}, got one that does neither")
            elif name not in self.roles.values() and getattr(self.players[name], "imitate", None) is not None:
                message = "expected null, because the player sits in no role of training, got a mapping"
                yield ConfigErrorItem(f"players.{name}.imitate", message)

    def _tree_errors(self) -> Iterator[ConfigErrorItem]:
        """Say what is wrong with the trees from which players learn, if some do."""
        if (num := self.num_continuations()) == 1:
            return
        learner = next(name for name in self.learners() if isinstance(self._algorithm(name), MaltConfig))
        for name in self.learners():
            algorithm = self._algorithm(name)
            path = f"players.{name}.algorithm"
            if not isinstance(algorithm, MaltConfig):
                why = f"because players.{learner} learns from trees of dialogues"
                yield ConfigErrorItem(f"{path}.name", f"expected 'malt', {why}, got {algorithm.name!r}")
            elif algorithm.num_continuations != num:
                why = f"as of players.{learner}, because all talk in the same trees"
                message = f"expected {num}, {why}, got {algorithm.num_continuations}"
                yield ConfigErrorItem(f"{path}.num_continuations", message)
            elif (most := self.most_answers()) > algorithm.most_answers:
                message = f"expected at least {most:,}, because a tree may have so many answers"
                yield ConfigErrorItem(f"{path}.most_answers", f"{message}, got {algorithm.most_answers:,}")

    def _algorithm(self, name: str) -> Any:
        return self.players[name].algorithm  # type: ignore[union-attr]

    def num_continuations(self) -> int:
        """Return in how many ways each round of a dialogue of training goes on; above 1, dialogues are trees."""
        found = (self._algorithm(name) for name in self.learners())
        return next((each.num_continuations for each in found if isinstance(each, MaltConfig)), 1)

    def most_answers(self) -> int:
        """Return how many answers a dialogue of training, or a tree of them, has at most, counted up to MANY.

        A tree forks in each round in which a role with a model has a turn.
        """
        protocol = self.game.protocol.build()
        num = self.num_continuations()
        found = 0
        models = {
            role for role, name in self.roles.items() if not isinstance(self.players.get(name), ScriptedPlayerConfig)
        }
        for variant in range(protocol.num_variants):
            answers, continuations = 0, 1
            for round in range(protocol.max_rounds):
                turns = [role for role in protocol.roles if _may_answer(protocol, role, round, variant)]
                continuations *= 1 if models.isdisjoint(turns) else num
                answers += continuations * len(turns)
                if answers > MANY:
                    return answers
            found = max(found, answers)
        return found

    def _server_errors(self) -> Iterator[ConfigErrorItem]:
        for name, each in self.players.items():
            if isinstance(each, TextPlayerConfig) and isinstance(each.model, ServerConfig):
                for error in price_errors(each.model.prices, self.budget):
                    yield ConfigErrorItem(f"players.{name}.model.{error.path}", error.message)
                if self.evaluators is not None:
                    why = f"because player {name!r} is behind a server, which this process alone asks"
                    yield ConfigErrorItem("evaluators", f"expected null, {why}, got a mapping")

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        return str(under(data, "game", "scenario", "name") or "")

    def pairing_overrides(self, pairings: Sequence[Mapping[str, str]]) -> list[str]:
        seats = [{**self.roles, **pairing} for pairing in pairings]
        if not self.evaluations:
            return [f"evaluations={json.dumps([{**ASKED, 'pairings': seats}])}"]
        return [f"evaluations.{number}.pairings={json.dumps(seats)}" for number in range(len(self.evaluations))]

    def goes_on_after(self, ended: str, before: Self) -> bool:
        return ended == BUDGET_IS_SPENT and self.budget != before.budget

    def next_end(self, ended: str | None) -> str | None:
        if ended != BUDGET_IS_SPENT or self.budget is None:
            return super().next_end(ended)
        key = "tokens" if self.budget.money is None else "money"
        return f"budget.{key}={2 * getattr(self.budget, key):g}"

    def copied(self) -> list[str]:
        return list(self.players)

    def learners(self) -> list[str]:
        return [
            name
            for name, each in self.players.items()
            if isinstance(each, TextPlayerConfig) and each.algorithm is not None
        ]

    def pairing(self) -> dict[str, str]:
        return self.roles

    def measured_roles(self) -> Sequence[str]:
        return self.game.declared_roles()

    def measures_of_games(self) -> dict[str, GameMeasures]:
        scores = text_scores(self.game.protocol.build())
        return {each.name: GameMeasures(scores, ()) for each in self.evaluations}

    def prompts(self) -> list[str]:
        with below("game"):
            return self.game.build().prompts_in_words()

    def plan(self) -> list[str]:
        """Who speaks when, and how much an epoch is at most."""
        dialogues, num = self.num_questions * self.num_rollouts, self.num_continuations()
        trees = f" trees of dialogues that go on in {num} ways each round" if num > 1 else " dialogues"
        jobs = len(self.learners())
        return [
            *self.game.describe_turns(),
            f"an epoch has {dialogues:,}{trees} ({self.num_questions:,} questions, {self.num_rollouts} each), "
            f"at most {dialogues * self.most_answers():,} answers, and at most {jobs} job{'s' * (jobs != 1)}",
        ]


def _may_answer(protocol: Protocol, role: str, round: int, variant: int) -> bool:
    """Tell whether a role may have a turn in a round."""
    speaks = any(protocol.speaks(role, channel, round, variant) for channel in protocol.channels)
    return speaks or (role in protocol.verifiers and protocol.may_decide(role, round, variant))
