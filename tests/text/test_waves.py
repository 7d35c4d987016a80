"""Dialogues in waves, with a model that answers by rule, and may be told to fail."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.randomness import base_key
from palestra.text.models.model import Answer, Job, Prompt, PromptRefused, Request, SamplingConfig, TextModel, Tuning
from palestra.text.rollouts import Rollouts, dialogue_statistics, returns_of
from palestra.text.scripts import Honest
from palestra.text.waves import PromptTooLong, Waves, Writer
from tests.text.games import keys, text_game

SAMPLING = SamplingConfig(temperature=1.0, top_p=None, top_k=None, max_tokens=8)
PROTOCOLS = ("nip", "debate", "mnip", "merlin_arthur", "adp", "solo_verifier")


class RuleModel(TextModel):
    """Answers by the key alone: a decision, a message, or nothing. It remembers how many it was asked for at once."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.sizes, self.keys = words, list[int](), list[int]()

    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
        self.sizes.append(len(requests))
        self.keys += [request.key for request in requests]
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Answer:
        text = self.words[request.key % len(self.words)]
        return Answer(text, (len(request.prompt),), (request.key % 97,), (-0.5,), "stop")

    def written(self, prompt: Prompt, text: str) -> Answer:
        raise NotImplementedError

    def answer_ids(self, text: str, num_read: int) -> tuple[int, ...]:
        raise NotImplementedError

    def check_tuning(self, config: Any) -> None: ...

    def tuning(self, job: Job, config: Any, key: int) -> Tuning:
        raise NotImplementedError

    def keep_reference(self) -> None: ...

    def begin_with(self, base: str, weights: Mapping[str, torch.Tensor]) -> None: ...

    def export(self, folder: Path) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def waves(protocol: str = "nip", batch_size: int = 5, num_retries: int = 1, scripted: Sequence[str] = ()) -> Waves:
    game = text_game(protocol)
    headers = "\n".join(f"{header}\nabc" for header in game.config.grammar.headers.values())
    model = RuleModel(["abc", *game.grammar.words, "", "abc", headers or "abc"])
    script = Honest(Honest.Config(scripted="honest"), game)
    writers = {
        role: Writer("script", script) if role in scripted else Writer("model", model, SAMPLING, num_retries)
        for role in game.roles
    }
    questions = game.questions(keys(4), held_out=False)
    return Waves(game, writers, questions, 3, base_key(1, "text"), 2, batch_size)


def played(waves: Waves) -> Rollouts:
    while waves.play_batch():
        pass
    return waves.rollouts()


def test_roll_outs_of_a_question_read_the_prompt_of_their_own_variant() -> None:
    found = waves("nip, side drawn", num_retries=0)
    fresh = {(each.question.number, each.rollout): each.dialogue for each in waves("nip, side drawn").tables}
    rows = [each for each in played(found).rows if each.node == 0]
    assert {each.variant for each in rows} == {0, 1}
    for each in rows:
        begun = fresh[each.question, each.rollout]
        assert (begun.variant, found.game.prompt(begun, each.role)) == (each.variant, each.prompt)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_say_what_was_done_and_what_it_was_worth(protocol: str) -> None:
    found = waves(protocol)
    rollouts = played(found)
    assert found.num_over == len(list(rollouts.dialogues())) == 12
    for table, dialogue in zip(found.tables, rollouts.dialogues(), strict=True):
        assert [row.node for row in dialogue] == list(range(len(dialogue)))
        for row in dialogue:
            assert row.reward == table.dialogue.returns[row.role]
            before = [each for each in dialogue if each.round < row.round]
            assert row.parent == (before[-1].node if before else None)
            assert 1 <= row.attempts <= 2
        decided = {row.role: row.verdict for row in dialogue if row.verdict is not None}
        assert {role: v for role, v in table.dialogue.verdicts.items() if v is not None} == decided
    assert any(row.attempts == 2 for row in rollouts.rows)


@pytest.mark.parametrize("protocol", ["nip", "debate"])
def test_how_answers_are_batched_changes_nothing_but_speed(protocol: str) -> None:
    expected = played(waves(protocol, batch_size=1)).rows
    found = waves(protocol, batch_size=100)
    assert played(found).rows == expected
    model = found.writers["verifier"].by
    assert isinstance(model, RuleModel)
    assert max(model.sizes) >= 12
    assert len(model.sizes) < len(expected) / 3


@pytest.mark.parametrize("scripted", [(), ("prover",)])
def test_dialogues_go_on_from_any_batch(scripted: Sequence[str]) -> None:
    whole = waves(scripted=scripted)
    expected, again = played(whole).rows, waves(scripted=scripted)
    num_batches = 0
    while again.play_batch():
        num_batches += 1
        state, again = again.state_dict(), waves(scripted=scripted)
        again.load_state_dict(state)
        assert torch.equal(again.state_dict()["rows"], state["rows"])
        assert again.state_dict()["failed"] == state["failed"]
    assert again.rollouts().rows == expected
    assert num_batches > 5


def test_the_answers_of_a_teacher_are_noted_and_change_nothing() -> None:
    plain, taught = waves("nip"), waves("nip")
    teacher = Honest(Honest.Config(scripted="honest"), taught.game)
    taught.writers = {role: writer._replace(teacher=teacher) for role, writer in taught.writers.items()}
    alone, noted = played(plain).rows, played(taught).rows
    assert [replace(row, taught=None) for row in noted] == alone
    protocol, words = taught.game.protocol, taught.game.grammar.words
    for row in noted:
        may_decide = row.role in protocol.verifiers and protocol.may_decide(row.role, row.round, row.variant)
        assert (row.taught == words[row.label]) == may_decide, "the teacher decides as soon as it may"


def test_scripted_players_alone_need_no_batch() -> None:
    found = waves(scripted=("prover", "verifier"))
    assert not found.play_batch()
    rows = found.rollouts().rows
    assert all(row.verdict == row.label for row in rows if row.verdict is not None)
    assert {row.stop for row in rows} == {"scripted"}


def test_answers_that_mean_nothing_are_asked_for_again_and_then_the_role_is_silent() -> None:
    game = text_game("nip")
    writers = {role: Writer("model", RuleModel([""]), SAMPLING, 2) for role in game.roles}
    found = Waves(game, writers, game.questions(keys(1), held_out=False), 1, 7, 0, 10)
    rows = played(found).rows
    assert {row.attempts for row in rows} == {3}
    assert len(rows) == game.protocol.max_rounds
    assert len(rows[0].prompt) > len(found.game.prompt(game.begin(found.tables[0].question, 0), rows[0].role))


def test_a_prompt_that_a_model_cannot_read_names_its_question_and_role() -> None:
    class Short(RuleModel):
        def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
            raise PromptRefused("expected at most 3 tokens, got 9", 1)

    game = text_game("nip")
    writers = {role: Writer("model", Short([""]), SAMPLING) for role in game.roles}
    found = Waves(game, writers, game.questions(keys(2), held_out=False), 1, 7, 0, 10)
    with pytest.raises(PromptTooLong, match=r"question 1, '\w+' \(player 'model'\): expected at most 3 tokens, got 9"):
        found.play_batch()


@pytest.mark.parametrize("num_retries", [0, 1])
def test_every_sampled_token_counts_also_those_of_answers_that_were_asked_for_again(num_retries: int) -> None:
    found = waves(num_retries=num_retries)
    model = found.writers["verifier"].by
    assert isinstance(model, RuleModel)
    sampled, sample = [0], model.sample

    def counting(requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
        answers = sample(requests, sampling)
        sampled[0] += sum(len(answer.ids) for answer in answers)
        return answers

    model.sample = counting  # type: ignore[method-assign]
    rows = played(found).rows
    assert found.counts()["tokens"] == sampled[0]
    assert (sampled[0] > sum(len(row.answer_ids) for row in rows)) == (num_retries > 0)


def test_the_return_of_a_role_counts_dialogues_in_which_it_was_silent() -> None:
    found = waves("debate in sequence, verifier first", num_retries=0)
    rollouts, dialogues = played(found), [table.dialogue for table in found.tables]
    protocol = found.game.protocol
    spoke = [{row.role for row in rows} for rows in rollouts.dialogues()]
    assert any(len(roles) < len(protocol.roles) for roles in spoke)
    statistics = dialogue_statistics(rollouts, protocol)
    for role in protocol.roles:
        returns = [dialogue.returns[role] for dialogue in dialogues]
        assert returns_of(rollouts, role) == returns
        assert statistics[f"return/{role}"] == pytest.approx(sum(returns) / len(returns))
