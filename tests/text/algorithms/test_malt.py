"""Trees of dialogues, and what a player learns from them, beside a plain walk through all dialogues of a tree."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.config import check
from palestra.text.algorithms.algorithm import Seat
from palestra.text.algorithms.malt import Malt, MaltConfig
from palestra.text.dialogue import SILENT, Move, TextDialogue
from palestra.text.game import TextGame
from palestra.text.players import chosen_examples
from palestra.text.rollouts import DecisionRow, Rollouts, transcripts
from palestra.text.scripts import Honest
from palestra.text.waves import Waves, Writer
from tests.text.games import keys, text_game
from tests.text.rows import JOB, dialogue, row, seat
from tests.text.test_waves import SAMPLING, RuleModel

MIDDLES = {"verifier": 0.0}  # of rewards 1 and -1; provers get 1 or 0
OWN = {"name": "malt", "num_continuations": 2, "most_answers": 99, **JOB, "loss": {"name": "preference", "beta": 0.1}}
game_of = cache(text_game)


def malt(of: Seat) -> Malt:
    return check(OWN, MaltConfig).build(of)


def grown(protocol: str, num: int, seed: int, num_retries: int, scripted: str) -> tuple[Waves, RuleModel]:
    """Two trees on a question, whose players decide and speak by chance; one of them may be scripted."""
    game = game_of(protocol)
    headers = "\n".join(f"{header}\nabc" for header in game.config.grammar.headers.values())
    model = RuleModel(["abc", *game.grammar.words, "", "xyz", headers or "abc"])
    script = Writer("script", Honest(Honest.Config(scripted="honest"), game))
    writers = {role: script if role == scripted else Writer(role, model, SAMPLING, num_retries) for role in game.roles}
    return Waves(game, writers, game.questions(keys(1), held_out=False), 2, seed, 0, 7, num), model


def played(waves: Waves) -> list[DecisionRow]:
    while waves.play_batch():
        pass
    return waves.rollouts().rows


class Walk:
    """All dialogues of a tree: `values` by node, `ends` with the decisions of each dialogue and what the roles got."""

    def __init__(self, game: TextGame, rows: list[DecisionRow], begun: TextDialogue) -> None:
        self.game, self.rows = game, rows
        self.values: dict[int, float] = {}
        self.ends: list[tuple[list[DecisionRow], dict[str, float]]] = []
        self.num_ways: list[tuple[int, bool]] = []  # in how many ways a round goes on, and whether a model answers
        self.go(begun, None, [])

    def go(self, before: TextDialogue, parent: int | None, said: list[DecisionRow]) -> list[dict[str, float]]:
        while not before.is_over and not before.turns():
            before = before.after({})
        if before.is_over:
            self.ends.append((said, before.returns))
            return [before.returns]
        turns, here = before.turns(), [each for each in self.rows if each.parent == parent]
        by_role = [[each for each in here if each.role == role] for role in turns]
        assert len({len(each) for each in by_role}) == 1
        self.num_ways.append((len(by_role[0]), any(each.stop != "scripted" for each in here)))
        found = []
        for decisions in zip(*by_role, strict=True):
            moves = {each.role: self.game.read(turns[each.role], each.answer) for each in decisions}
            did = {role: move if isinstance(move, Move) else SILENT for role, move in moves.items()}
            ends = self.go(before.after(did), decisions[-1].node, [*said, *decisions])
            self.values |= {each.node: fmean(end[each.role] for end in ends) for each in decisions}
            found += ends
        return found


@settings(max_examples=40)
@given(
    st.sampled_from(["nip", "nip, side drawn", "debate", "debate in sequence", "mnip", "adp", "merlin_arthur"]),
    st.integers(2, 3),
    st.integers(0, 2**40),
    st.integers(0, 1),
    st.sampled_from(["", "prover", "prover0", "verifier"]),
)
def test_values_and_pairs_are_those_of_a_walk_through_all_dialogues(
    protocol: str, num: int, seed: int, num_retries: int, scripted: str
) -> None:
    waves, model = grown(protocol, num, seed, num_retries, scripted)
    begun = [replace(table.dialogue, rounds=(), rewards=(), verdicts={}) for table in waves.tables]
    rows = played(waves)
    assert len(set(model.keys)) == len(model.keys), "each answer is drawn by a key of its own"
    dialogues = list(Rollouts(rows).dialogues())
    told = yaml.load(transcripts(Rollouts(rows), with_prompts=False), yaml.CSafeLoader)
    num_rounds = 0
    for rollout, first in enumerate(begun):
        own = [each for each in rows if each.rollout == rollout]
        assert len({each.node for each in own}) == len(own), "a row for each decision"
        walk = Walk(waves.game, own, first)
        assert {each.node: each.reward for each in own} == walk.values
        num_rounds += sum(ways for ways, _ in walk.num_ways)
        assert all(ways == (num if by_model else 1) for ways, by_model in walk.num_ways)
        paths = [each for each in dialogues if each[0].rollout == rollout]
        found = [([each.node for each in path], {each.role: each.reward for each in path}) for path in paths]
        expected = [([each.node for each in path], returns) for path, returns in walk.ends]
        assert len(found) == len(expected)
        if len(found) > 1:
            written = list(told_paths(told[rollout]["tree"]))
            assert len(written) == len(expected)
            assert all(each in written for each in expected)
        for nodes, rewards in found:
            assert (nodes, rewards) in [(n, {role: r[role] for role in rewards}) for n, r in expected]
    counts = {"env_steps": num_rounds, "episodes": len(dialogues), "tokens": len(model.keys)}
    assert waves.counts() == counts
    for role in waves.game.roles:
        assert_pairs(waves, rows, role)


def told_paths(branches: list[dict[str, Any]], before: Sequence[int] = ()) -> Iterator[tuple[list[int], Any]]:
    """Yield the nodes of each dialogue that a transcript has of a tree, and what the roles got in it."""
    for each in branches:
        nodes = [*before, *(answer["node"] for answer in each["answers"])]
        if "rewards" in each:
            yield nodes, each["rewards"]
        yield from told_paths(each.get("then", []), nodes)


def assert_pairs(waves: Waves, rows: list[DecisionRow], role: str) -> None:
    """Of each place where two answers to one prompt lie on both sides of the middle there is one such pair."""
    own = [each for each in rows if each.role == role]
    middle, expected = MIDDLES.get(role, 0.5), {}
    for one in own:
        for other in own:
            if (one.rollout, one.parent) == (other.rollout, other.parent) and one.prompt == other.prompt:
                differ = (one.answer, one.answer_ids) != (other.answer, other.answer_ids)
                if one.reward >= middle > other.reward and differ:
                    expected.setdefault((one.rollout, one.parent), []).append((one.node, other.node))
    algorithm = malt(Seat(role, waves.game.protocol, waves.game.grammar.words))
    examples = algorithm.examples(Rollouts(rows), keys(1))
    found = {}
    for each in examples:
        assert each.worse is not None
        found[each.row.rollout, each.row.parent] = each.row.node, each.worse.node
    assert len(found) == len(examples)
    assert found.keys() == expected.keys()
    assert all(pair in expected[place] for place, pair in found.items())


def continuations(*answers: tuple[str, float], **changed: Any) -> list[DecisionRow]:
    return [row(node=n, answer=text, answer_ids=(n,), reward=r, **changed) for n, (text, r) in enumerate(answers)]


def test_both_answers_of_a_pair_are_drawn_among_all_that_fit() -> None:
    rows = Rollouts(continuations(("a", 0.0), ("b", -0.5), ("c", 1.0), ("d", -1.0)))
    drawn = {
        (each.row.answer, each.worse.answer)
        for key in keys(60).split(1)
        for each in chosen_examples(malt(seat()), rows, key)
        if each.worse is not None
    }
    assert drawn == {("a", "b"), ("a", "d"), ("c", "b"), ("c", "d")}


@pytest.mark.parametrize(
    "rows",
    [
        continuations(("a", 0.0), ("b", 1.0)),
        continuations(("a", -0.1), ("b", -1.0)),
        [row(node=0, reward=1.0), row(node=1, reward=-1.0)],  # the same answer, which others have followed differently
        [row(node=0, reward=1.0), row(node=1, reward=-1.0, answer="no", prompt=())],  # asked for again
        continuations(("a", 1.0), ("b", -1.0), player="prover"),
        [*continuations(("a", 1.0)), *continuations(("b", -1.0), rollout=1)],
        [*continuations(("a", 1.0)), row(node=7, parent=0, answer="no", reward=-1.0)],
        dialogue(0, 1, 1),
    ],
)
def test_a_place_without_a_better_and_a_worse_answer_gives_no_pair(rows: list[DecisionRow]) -> None:
    assert malt(seat()).examples(Rollouts(rows), keys(1)) == []


def test_of_provers_that_share_the_verifiers_rewards_the_middle_is_theirs() -> None:
    assert malt(seat()).middle("prover") == 0.5
    shared = text_game("nip", rewards={"shared": True, "right": 5.0, "out_of_time": -2.0})
    assert malt(Seat("prover", shared.protocol, ("no", "yes"))).middle("prover") == 1.5
    assert malt(Seat("prover", shared.protocol, ("no", "yes"))).middle("verifier") == 1.5


@pytest.mark.parametrize(("protocol", "scripted"), [("nip", ""), ("mnip", "prover0")])
def test_trees_go_on_from_any_batch(protocol: str, scripted: str) -> None:
    """The same answers are asked for, in the same batches."""
    whole, asked = grown(protocol, 2, 5, 1, scripted)
    expected, (again, model) = played(whole), grown(protocol, 2, 5, 1, scripted)
    while again.play_batch():
        state, counts = again.state_dict(), again.counts()
        again, resumed = grown(protocol, 2, 5, 1, scripted)
        resumed.keys, resumed.sizes = model.keys, model.sizes
        again.load_state_dict(state)
        model = resumed
        assert again.counts() == counts
    assert again.rollouts().rows == expected
    assert (model.keys, model.sizes) == (asked.keys, asked.sizes)
    assert again.counts()["episodes"] == len(list(Rollouts(expected).dialogues()))
    assert Rollouts.from_parquet(Rollouts(expected).to_parquet()).rows == expected
