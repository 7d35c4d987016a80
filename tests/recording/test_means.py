"""Means of metrics between two records."""

import torch

from palestra.recording.means import Means


def test_means_are_shown_until_there_are_new_ones() -> None:
    means = Means()
    assert means.shown() == {}
    means.add({"loss": 1.0, "q": torch.tensor(3.0)})
    means.add({"loss": 2.0})
    assert means.shown() == {"loss": 1.5, "q": 3.0}
    assert means.take() == {"loss": 1.5, "q": 3.0}
    assert means.values() == {}
    assert means.shown() == {"loss": 1.5, "q": 3.0}
    means.add({"loss": 4.0})
    assert means.shown() == {"loss": 4.0}
    assert means.take() == {"loss": 4.0}
