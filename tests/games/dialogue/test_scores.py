"""What the end of many dialogues says, against scikit-learn's definitions by hand; null, never nan."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palestra.commands.starting import starting_config
from palestra.games.dialogue.scores import MEANINGS, mutual_information, verdict_scores
from palestra.runtime.statistics import Share

games = st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.sampled_from([0, 1])), max_size=40)


@given(games)
def test_scores_are_what_counting_gives(found: list[tuple[int, int]]) -> None:
    verdict, label = (
        torch.tensor(column, dtype=torch.int64) for column in (zip(*found, strict=True) if found else ([], []))
    )
    scores = verdict_scores(verdict, label, None)

    def share(flags: list[bool]) -> Share | None:
        return Share(sum(flags), len(flags)) if flags else None

    by_class = [share([v == y for v, y in found if y == each]) for each in (0, 1)]
    known = [each.hits / each.games for each in by_class if each is not None]
    expected = {
        "accuracy": share([v == y for v, y in found]),
        "accuracy/0": by_class[0],
        "accuracy/1": by_class[1],
        "accuracy/worst": min(known, default=None),
        "precision": share([y == 1 for v, y in found if v == 1]),
        "recall": share([v == 1 for v, y in found if y == 1]),
        "undecided": share([v == -1 for v, _ in found]),
    }
    assert tuple(scores) == tuple(MEANINGS) == tuple(expected)
    assert scores == expected


@given(st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([0, 1])), max_size=60))
def test_mutual_information_is_the_difference_of_entropies(found: list[tuple[int, int]]) -> None:
    tokens, labels = ([row[i] for row in found] for i in (0, 1))
    told = mutual_information(torch.tensor(tokens, dtype=torch.int64), torch.tensor(labels, dtype=torch.int64), 4)
    said = [(token, label) for token, label in found if token >= 0]
    if not said:
        assert told is None
        return

    def entropy(values: list[object]) -> float:
        shares = [values.count(each) / len(values) for each in set(values)]
        return -sum(share * math.log2(share) for share in shares)

    first, second, both = [t for t, _ in said], [y for _, y in said], list(said)
    assert told == pytest.approx(entropy([*first]) + entropy([*second]) - entropy([*both]), abs=1e-9)


def test_a_message_that_is_the_label_tells_one_bit() -> None:
    label = torch.tensor([0, 1] * 50)
    assert mutual_information(label * 3, label, 4) == pytest.approx(1.0)
    assert mutual_information(torch.zeros(100, dtype=torch.int64), label, 4) == 0.0


def test_accuracy_is_wanted_by_those_alone_who_are_paid_for_it() -> None:
    """A prover that argues for its side gains by a wrong verdict, too."""
    for shared, wanted in ((False, ("verifier",)), (True, ("prover", "verifier"))):
        game = starting_config("ppo", ["nip", "witness", f"game.protocol.rewards.shared={str(shared).lower()}"]).game
        declared = {score.name: score for score in game.declared_scores()}
        assert declared["accuracy"].high_for == wanted
        assert list(declared)[:3] == ["accuracy", "return/prover", "return/verifier"]
        assert all(score.shown == ("/" not in name.removeprefix("return/")) for name, score in declared.items())
        assert declared["information/main/0"].unit == "bits"
