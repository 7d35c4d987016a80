"""What an algorithm of one's own gives is checked: a line says what nobody can learn from."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from palestra.text.algorithms.algorithm import AlgorithmFailed, Example, TextAlgorithm
from palestra.text.players import chosen_examples
from palestra.text.rollouts import Rollouts
from tests.text.rows import row, seat


class Mine(TextAlgorithm):
    def examples(self, rollouts: Rollouts, keys: torch.Tensor) -> Any:
        return self.config.gives(rollouts.rows)


PREFERENCE = {"loss": "preference"}
WORSE = row(node=1, answer="no")


def examples(gives: Any, loss: str = "supervised", **of_row: Any) -> list[Example]:
    algorithm = Mine(SimpleNamespace(gives=gives, loss=SimpleNamespace(name=loss)), seat())
    return chosen_examples(algorithm, Rollouts([row(**of_row)]), torch.tensor([0]))


def test_examples_may_come_one_after_the_other() -> None:
    assert examples(lambda rows: (Example(each, 2.0) for each in rows)) == [Example(row(), 2.0)]
    assert examples(lambda rows: [Example(rows[0], -2.0)], "policy_gradient") == [Example(row(), -2.0)]
    pair = Example(row(), 1.0, worse=WORSE)
    assert examples(lambda rows: [pair], "preference") == [pair]


def test_nobody_imitates_an_empty_answer_as_of_a_server_that_refuses() -> None:
    for answer in ("", " \n"):
        assert examples(lambda rows: [Example(rows[0], 1.0), Example(row(), 1.0)], answer=answer) == [
            Example(row(), 1.0)
        ]
        assert examples(lambda rows: [Example(rows[0], 1.0, worse=WORSE)], "preference", answer=answer) == []
        [kept] = examples(lambda rows: [Example(rows[0], 1.0, "yes")], answer=answer)
        assert kept.answer == "yes", "what should have been said instead is learned"
        [kept] = examples(lambda rows: [Example(row(), 1.0, worse=rows[0])], "preference", answer=answer)
        assert kept.worse is not None, "it may be the worse one"
        assert examples(lambda rows: [Example(rows[0], -1.0)], "policy_gradient", answer=answer) != []


@pytest.mark.parametrize(
    ("gives", "why", "changed"),
    [
        (lambda rows: 1 / 0, r"raises ZeroDivisionError: division by zero \(test_algorithm.py, line \d+\)", {}),
        (lambda rows: None, "raises TypeError: 'NoneType' object is not iterable", {}),
        (lambda rows: [(rows[0], 1.0)], "expected Examples of decisions, got ", {}),
        (lambda rows: [Example(rows[0], 1.0, 3)], "expected Examples of decisions, got ", {}),  # type: ignore[arg-type]
        (
            lambda rows: [Example(rows[0], 0.0)],
            "expected a positive weight, because the loss is supervised, got 0.0",
            {},
        ),
        (lambda rows: [Example(rows[0], "1")], "a positive weight, .*, got '1'", {}),  # type: ignore[arg-type]
        (
            lambda rows: [Example(rows[0], float("nan"))],
            "expected a finite weight, got nan",
            {"loss": "policy_gradient"},
        ),
        (lambda rows: [Example(rows[0], 1.0, "yes")], "expected sampled answers for a", {"loss": "policy_gradient"}),
        (lambda rows: [Example(rows[0], -1.0, worse=WORSE)], "positive weight, because the loss is pref", PREFERENCE),
        (lambda rows: [Example(rows[0], 1.0)], "a worse answer, because the loss is preference, got none", PREFERENCE),
        (lambda rows: [Example(rows[0], 1.0, worse=WORSE)], "no worse answer, .* is supervised, got 'no'", {}),
        (lambda rows: [Example(rows[0], 1.0, "yes", WORSE)], "sampled answers for a preference, got 'yes'", PREFERENCE),
        (
            lambda rows: [Example(rows[0], 1.0, worse=row(prompt=()))],
            r"a worse answer to the same prompt, got one to \(\)",
            PREFERENCE,
        ),
        (lambda rows: [Example(rows[0], 1.0)], "of the scripted 'anna'", {"stop": "scripted", "player": "anna"}),
    ],
)
def test_what_nobody_can_learn_from_is_a_line(gives: Any, why: str, changed: dict[str, Any]) -> None:
    with pytest.raises(AlgorithmFailed, match=why) as failed:
        examples(gives, **changed)
    assert str(failed.value).startswith("Mine.examples: ")
    assert str(failed.value).count("\n") == 0
