"""Claims: balanced, drawn by keys, and with strings in evaluations that training never draws."""

from collections import Counter

import pytest

from palestra.config import ConfigError
from palestra.text.dialogue import Question
from tests.text.games import keys, text_config, text_game

SMALL = {"name": "claims", "letters": "abcdef", "length": 3}  # 120 strings


@pytest.fixture(scope="module")
def drawn() -> dict[bool, list[Question]]:
    game = text_game("nip", scenario=SMALL)
    return {held_out: game.questions(keys(6000), held_out) for held_out in (False, True)}


def test_a_label_says_whether_the_letter_is_in_the_string(drawn: dict[bool, list[Question]]) -> None:
    for questions in drawn.values():
        for number, question in enumerate(questions):
            assert question.number == number
            assert question.label == (question.fields["letter"] in question.fields["string"])
            assert len(set(question.fields["string"])) == 3


def test_training_never_draws_a_string_of_evaluations_and_both_draw_all_of_theirs(
    drawn: dict[bool, list[Question]],
) -> None:
    training, held_out = ({question.fields["string"] for question in drawn[each]} for each in (False, True))
    assert not training & held_out
    assert len(training | held_out) == 6 * 5 * 4
    assert 0.1 < len(held_out) / 120 < 0.3


def test_labels_are_balanced_and_nothing_but_both_fields_tells_of_them(drawn: dict[bool, list[Question]]) -> None:
    questions = drawn[False]
    assert abs(sum(question.label for question in questions) / 6000 - 0.5) < 0.02
    places = Counter(q.fields["string"].find(q.fields["letter"]) for q in questions if q.label)
    assert max(places.values()) < 1.15 * min(places.values())
    for letter in "abcdef":
        labels = [q.label for q in questions if q.fields["letter"] == letter]
        assert abs(sum(labels) / len(labels) - 0.5) < 0.06


def test_an_honest_reason_is_true_and_one_for_a_side_tells_nothing(drawn: dict[bool, list[Question]]) -> None:
    scenario = text_game("nip", scenario=SMALL).scenario
    said = {0: Counter[str](), 1: Counter[str]()}
    for question in drawn[False]:
        reason = scenario.argue(question, question.label)
        if question.label:
            assert question.fields["string"][int(reason.removeprefix("letter ")) - 1] == question.fields["letter"]
        else:
            assert reason == "nowhere"
        said[question.label][scenario.argue(question, 1)] += 1
        assert scenario.argue(question, 0) == "nowhere"
    for reason in ("letter 1", "letter 2", "letter 3"):
        shares = [said[label][reason] / sum(said[label].values()) for label in (0, 1)]
        assert shares == pytest.approx([1 / 3, 1 / 3], abs=0.05)


def test_a_question_follows_from_its_key_alone() -> None:
    game = text_game("nip")
    questions = game.questions(keys(20), held_out=True)
    assert game.questions(keys(20)[7:8], held_out=True, first=7) == questions[7:8]
    assert game.scenario.describe(questions[0]) == "{letter} is in {string}".format(**questions[0].fields)


@pytest.mark.parametrize(
    ("keys_", "line"),
    [
        ({"letters": "aab"}, "game.scenario.letters: expected different printed letters, got 'aab'"),
        ({"length": 6}, "game.scenario.length: expected fewer than there are letters (6), got 6"),
        (
            {"letters": "ab", "length": 1, "held_out": 0.01},
            "scenario.held_out: expected strings for training and for evaluations, got 0 of 2 held out",
        ),
        (
            {"sees": {"prover": [], "verifier": [], "judge": []}},
            "game.scenario.sees.judge: unknown key; the roles of the protocol are prover, verifier",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(keys_: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        text_config("nip", scenario=SMALL | keys_).build()
    assert str(caught.value) == line
