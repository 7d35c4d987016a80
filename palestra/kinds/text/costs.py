"""What a run of text players asks of servers at most: calls, jobs, tokens and money, told before anything is sent.

These are bounds: each dialogue goes on as long as its protocol lets it, each answer is as long as it may be, a player
is asked again as often as it may be, each decision is learned from, and each byte is a token. Of answers that share a
call, only those count as one call that do so in any case: the openings of a question's roll-outs, and the continuations
of a round. A call that fails and is made again comes on top, and so does what a scripted player of one's own says
beyond the arguments of the scenario.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import NamedTuple

import torch

from palestra.config import ConfigError
from palestra.games.dialogue.protocol import VERDICTS
from palestra.kinds.text.config import TextConfig
from palestra.kinds.text.players import find_text_player
from palestra.players import FromRunConfig
from palestra.randomness import base_key, fold_number, world_keys
from palestra.runtime.intervals import Interval
from palestra.text.algorithms.algorithm import JobConfig, Seat
from palestra.text.dialogue import SILENT, Fault, Move, Question, TextDialogue
from palestra.text.game import TextGame
from palestra.text.players import TextPlayerConfig
from palestra.text.servers.config import ServerConfig
from palestra.text.servers.ledger import NOTHING, Cost, most_read, worst_of_answers, worst_of_job, worst_of_prompt
from palestra.text.waves import MOST_TOGETHER

STAGES_OF_EPOCH = 3
MOST_EPOCHS = 1000  # whose questions are drawn, which takes milliseconds for each


class Bound(NamedTuple):
    """The most that something asks of servers."""

    calls: int
    jobs: int
    cost: Cost

    def plus(self, other: "Bound") -> "Bound":
        return Bound(self.calls + other.calls, self.jobs + other.jobs, self.cost.plus(other.cost))

    def times(self, num: int) -> "Bound":
        tokens, money = (num * (each or 0) for each in self.cost)
        return Bound(num * self.calls, num * self.jobs, Cost(tokens, money))

    def in_words(self, has_prices: bool) -> str:
        asked = f"{self.calls:,} calls and {self.jobs:,} job{'s' * (self.jobs != 1)}"
        money = f", which cost {math.ceil(100 * self.cost.in_money()) / 100:,.2f}" if has_prices else ""
        return f"{asked}, {self.cost.tokens or 0:,} tokens in all{money}"


NO_BOUND = Bound(0, 0, NOTHING)


@dataclass(frozen=True)
class Table:
    """The most of the dialogues, or trees of them, on one question.

    examples: tokens of all decisions of one of them, by player, as one pass of a job reads them.
    """

    asked: Bound
    examples: Mapping[str, int]


class TextCosts:
    """Bounds of what a run asks of servers.

    players: the configs of those that write by a model, by name; those of other runs as they are there.
    """

    def __init__(self, config: TextConfig, game: TextGame, players: Mapping[str, TextPlayerConfig]) -> None:
        self.config, self.game, self.players = config, game, players
        self.servers = {n: p.model for n, p in players.items() if isinstance(p.model, ServerConfig)}
        self._tables: dict[tuple[object, ...], Table] = {}

    @classmethod
    def of(cls, config: TextConfig) -> "TextCosts":
        """Return the bounds of a run that is still to begin. Raises what making its game and its players raises."""
        players = {
            name: find_text_player(name, each, None).config if isinstance(each, FromRunConfig) else each
            for name, each in config.players.items()
            if isinstance(each, TextPlayerConfig | FromRunConfig)
        }
        return cls(config, config.game.build(), players)

    def lines(self) -> list[str]:
        """Say what an epoch and the whole run ask of servers at most; [] if no player is behind one."""
        if not self.servers:
            return []
        has_prices = any(each.prices is not None for each in self.servers.values())
        num = self.num_epochs()
        whole = self.run()
        unit = self.config.stop.unit
        epoch = self.epoch(0 if num is None else num - 1).in_words(has_prices)
        if whole is not None:
            told = whole.in_words(has_prices)
        elif num is not None and num > MOST_EPOCHS:
            told = f"not computed, because the run has more than {MOST_EPOCHS:,} epochs"
        else:
            told = f"unknown, because an epoch may have any number of {unit}, by which `stop` or an evaluation counts"
        return [
            f"servers are asked, in an epoch without its evaluations, for at most: {epoch}",
            f"servers are asked, in the whole run with its evaluations, for at most: {told}",
            "a call that fails and a job that is made anew come on top",
        ]

    def require_affordable(self) -> None:
        """Raise ConfigError for a budget below what the run may need until its first epoch is over."""
        if (budget := self.config.budget) is None:
            return
        least = self.beginning().plus(self.epoch(0)).cost
        limit = budget.limit()
        why = "which the first epoch may need, with what comes before it"
        if limit.tokens is not None and (least.tokens or 0) > limit.tokens:
            raise ConfigError.at("budget.tokens", f"expected at least {least.tokens:,}, {why}, got {limit.tokens:,}")
        if limit.money is not None and (least.money or 0) > limit.money:
            money = math.ceil(10**4 * least.in_money()) / 10**4
            raise ConfigError.at("budget.money", f"expected at least {money:,.4f}, {why}, got {budget.money:g}")

    # ---- parts of a run ------------------------------------------------------------------------------------

    def num_epochs(self) -> int | None:
        """Return how many epochs the run has; None if `stop` counts something else."""
        per_epoch = {"epochs": 1, "stages": STAGES_OF_EPOCH}.get(self.config.stop.unit)
        return None if per_epoch is None else math.ceil(self.config.stop.after / per_epoch)

    def epoch(self, number: int) -> Bound:
        """Return the bound of an epoch, without evaluations."""
        config, num_continuations = self.config, self.config.num_continuations()
        num = config.num_questions * config.num_rollouts
        table = self._table("training", config.roles, config.num_rollouts, num_continuations)
        found = table.asked.times(config.num_questions)
        for name in self.servers.keys() & set(config.learners()):
            player = self.players[name]
            assert player.algorithm is not None
            if player.updates.learns(number):
                seat = Seat(name, self.game.protocol, self.game.grammar.words)
                is_all = player.algorithm.build(seat).all_epochs
                dialogues = player.algorithm.most_dialogues(num * (number + 1 if is_all else 1))
                found = found.plus(self._job(name, player.algorithm, dialogues * table.examples[name]))
        return found

    def beginning(self) -> Bound:
        """Return the bound of what comes before the first epoch: imitation, and evaluations at the start."""
        jobs = [
            self._job(name, config, config.num_questions * self._table("training", self.config.roles).examples[name])
            for name in self.servers
            if (config := self.players[name].imitate) is not None and name in self.config.roles.values()
        ]
        starts = [each.name for each in self.config.evaluations if each.at_start]
        times = 2 if any(each.imitate is not None for each in self.players.values()) else 1  # again after imitation
        return _sum([*jobs, *map(self.evaluation, times * starts)])

    def evaluation(self, name: str, is_final: bool = False) -> Bound:
        """Return the bound of one making of an evaluation."""
        config = next(each for each in self.config.evaluations if each.name == name)
        num = config.final_num_games if is_final else config.num_games
        return _sum(self._table(name, pairing).asked for pairing in config.pairings).times(num)

    def run(self) -> Bound | None:
        """Return the bound of the whole run; None if its epochs or evaluations are unknown, or too many to be drawn."""
        if (num := self.num_epochs()) is None or num > MOST_EPOCHS:
            return None
        found = _sum([self.beginning(), *map(self.epoch, range(num))])
        for each in self.config.evaluations:
            if (times := _times_due(each.interval, num)) is None:
                return None
            found = _sum([found, self.evaluation(each.name).times(times), self.evaluation(each.name, is_final=True)])
        return found

    def _job(self, name: str, config: JobConfig, num_tokens: int) -> Bound:
        prices = self.servers[name].exact_prices()
        num_answers = 2 if config.loss.name == "preference" else 1
        return Bound(0, 1, worst_of_job(num_tokens * num_answers, config.tuning.num_passes, prices))

    # ---- a question ----------------------------------------------------------------------------------------

    def _table(self, of: str, seats: Mapping[str, str], num_rollouts: int = 1, num_continuations: int = 1) -> Table:
        """Return the most of the dialogues, or trees, on one question. of: training, or the name of an evaluation."""
        place = (of, *seats.items(), num_rollouts, num_continuations)
        if place not in self._tables:
            questions = self._questions(of)
            longest = _longest(questions)
            said = {role: self._most_said(name, questions) for role, name in seats.items()}
            talked = [
                self._of_variant(TextDialogue(self.game.protocol, longest, variant), seats, said, num_continuations)
                for variant in range(self.game.protocol.num_variants)
            ]
            # each roll-out has a variant of its own, so the openings and the rest may be largest in different ones
            kinds = min(self.game.protocol.num_variants, num_rollouts)
            num_openings = kinds + (num_rollouts * num_continuations - kinds) // MOST_TOGETHER
            openings = _largest(opening for opening, _, _ in talked).times(num_openings)
            rest = _largest(rest for _, rest, _ in talked).times(num_rollouts)
            examples = {name: max(each[name] for _, _, each in talked) for name in self.servers}
            self._tables[place] = Table(openings.plus(rest), examples)
        return self._tables[place]

    def _of_variant(
        self, dialogue: TextDialogue, seats: Mapping[str, str], said: Mapping[str, int], num_continuations: int
    ) -> tuple[Bound, Bound, dict[str, int]]:
        """Return the most of one call for openings, of all else that one dialogue asks for, and its examples.

        An opening is a first answer in the first round, where all roll-outs read the same. The call is told without the
        answers, which belong to the rest.
        """
        opening = rest = NO_BOUND
        examples = dict.fromkeys(self.servers, 0)
        words = self.game.grammar.config
        told = (repr(each) for each in (words.accept, words.reject, *words.headers.values()))  # when asked again
        fault = Fault("header", "x" * (sum(len(each.encode()) for each in told) + 100))
        is_first, paths = True, 1
        while not dialogue.is_over:
            turns = dialogue.turns()
            forks = num_continuations if any(seats[role] in self.players for role in turns) else 1
            paths *= forks
            for role in turns:
                if (name := seats[role]) not in self.servers:
                    continue
                player = self.players[name]
                prices = self.servers[name].exact_prices()
                for number in range(player.num_retries + 1):
                    prompt = self.game.prompt(dialogue, role, [("x" * said[role], fault)] * number)
                    call = Bound(1, 0, worst_of_prompt(prompt, prices))
                    if is_first and number == 0:
                        opening = opening.plus(call)
                    else:  # the continuations of a round are asked for together, each answer is asked for again alone
                        together = forks if number == 0 else 1
                        rest = rest.plus(call.times(paths // together * math.ceil(together / MOST_TOGETHER)))
                    rest = rest.plus(Bound(0, 0, worst_of_answers(paths, player.sampling.max_tokens, prices)))
                contents = [*(message.content for message in prompt), "x" * max(said.values())]
                examples[name] += paths * most_read(contents)
            is_first = False
            dialogue = dialogue.after({role: self._longest_move(dialogue, role, said[role]) for role in turns})
        return opening, rest, examples

    @staticmethod
    def _longest_move(dialogue: TextDialogue, role: str, num_bytes: int) -> Move:
        """Return the longest answer at a turn, with which the dialogue goes on if it can."""
        turn, text = dialogue.turns()[role], "x" * num_bytes
        if dialogue.is_last_chance(role):
            return Move(text, VERDICTS[0], {})
        return Move(text, None, dict.fromkeys(turn.channels, text)) if turn.channels else SILENT

    def _most_said(self, name: str, questions: Sequence[Question]) -> int:
        """Return the most bytes of an answer of a player, or of what a scripted player says for a verdict."""
        if name in self.players:
            return self.players[name].sampling.most_bytes()
        argued = (self.game.scenario.argue(each, verdict) for each in questions for verdict in (0, 1))
        written = self.game.grammar.write(dict.fromkeys(self.game.protocol.channels, ""))
        longest = max(map(_num_bytes, argued), default=0) * len(self.game.protocol.channels)
        return max(longest + _num_bytes(written), *map(_num_bytes, self.game.grammar.words))

    def _questions(self, of: str) -> list[Question]:
        """Return the questions of the training or of an evaluation.

        Of a training they are those of the first MOST_EPOCHS epochs; of the first one if their number is unknown.
        """
        config = self.config
        if of == "training":
            key = base_key(config.seed, "text/training")
            keys = [fold_number(key, epoch) for epoch in range(min(self.num_epochs() or 1, MOST_EPOCHS))]
            drawn = (self._draw(key, config.num_questions, held_out=False) for key in keys)
            imitated = (
                self._draw(base_key(config.seed, f"text/imitation/{name}"), each.num_questions, held_out=False)
                for name in self.servers
                if (each := self.players[name].imitate) is not None
            )
            return [*chain.from_iterable(chain(drawn, imitated))]
        evaluation = next(each for each in config.evaluations if each.name == of)
        key = base_key(config.seed if evaluation.seed is None else evaluation.seed, f"evaluation/{of}")
        return self._draw(key, max(evaluation.num_games, evaluation.final_num_games), held_out=True)

    def _draw(self, key: int, num: int, held_out: bool) -> list[Question]:
        return self.game.questions(world_keys(key, num, torch.device("cpu")), held_out=held_out)


def _longest(questions: Sequence[Question]) -> Question:
    """Return a question of which each field is as long as the longest of these."""
    lengths: dict[str, int] = defaultdict(int)
    for each in questions:
        for name, text in each.fields.items():
            lengths[name] = max(lengths[name], _num_bytes(text))
    return Question(0, {name: "x" * length for name, length in lengths.items()}, 0)


def _times_due(interval: Interval | None, num_epochs: int) -> int | None:
    """Return how often something is due at most; None if its unit has no fixed place in an epoch."""
    if interval is None:
        return 0
    most = {"epochs": num_epochs, "stages": num_epochs * STAGES_OF_EPOCH + 1}.get(interval.unit)  # and imitation
    return None if most is None else int(most // interval.every)


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _largest(bounds: Iterable[Bound]) -> Bound:
    """Return the most of each number of several bounds."""
    all_calls, all_jobs, all_costs = zip(*bounds, strict=True)
    tokens, money = (max(each or 0 for each in column) for column in zip(*all_costs, strict=True))
    return Bound(max(all_calls), max(all_jobs), Cost(tokens, money))


def _sum(bounds: Iterable[Bound]) -> Bound:
    return reduce(Bound.plus, bounds, NO_BOUND)
