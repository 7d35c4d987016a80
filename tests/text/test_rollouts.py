import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.text.chat import Message
from palestra.text.rollouts import Rollouts, verdicts_of
from tests.text.rows import dialogue, row

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), TEXTS, st.sampled_from([None, 0, 1]), st.floats(-9, 9)), max_size=6))
def test_rollouts_come_back_from_a_file_as_they_were(drawn: list[tuple[int, str, int | None, float]]) -> None:
    rows = [
        row(question=question, node=node, answer=text, prompt=(Message("user", text),), verdict=verdict, reward=reward)
        for node, (question, text, verdict, reward) in enumerate(drawn)
    ]
    content = Rollouts(rows).to_parquet()
    assert Rollouts.from_parquet(content).rows == sorted(rows, key=lambda each: (each.question, each.node))
    assert Rollouts(reversed(rows)).to_parquet() == content


def test_log_probabilities_are_kept_to_the_bit_as_floats_of_32_bits() -> None:
    kept = Rollouts.from_parquet(Rollouts([row(log_probs=(-0.125, -(2.0**-20)))]).to_parquet())
    assert kept.rows[0].log_probs == (-0.125, -(2.0**-20))


def test_another_file_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a Parquet file, got another content"):
        Rollouts.from_parquet(b"PAR1 and more")


def test_dialogues_are_told_apart() -> None:
    rows = dialogue(0, 1, 1) + dialogue(0, 0, 1, rollout=1) + dialogue(1, 1, 0) + dialogue(0, 1, 0, epoch=1)
    found = list(Rollouts(reversed(rows)).dialogues())
    assert [verdicts_of(each)["verifier"] for each in found] == [1, 0, 1, 1]
    assert [[each.node for each in rows] for rows in found] == [[0, 1]] * 4
