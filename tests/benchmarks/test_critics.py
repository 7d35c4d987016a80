"""Whether the benchmark of critics compares what it says: two runs that differ in the critic alone; their shares."""

import pytest
import torch

from benchmarks.agents import critics
from palestra.games import make_game
from palestra.run.branching import tree_differences


def test_both_runs_are_the_same_but_for_the_critic() -> None:
    one, other = (critics.run_config(is_centralized, 3, 4).model_dump() for is_centralized in (True, False))
    keys = [change.key for change in tree_differences(one, other)]
    assert keys == [f"players.farmer_{role}.algorithm.centralized_critic" for role in range(2)]
    assert (one["seed"], one["stop"]["after"], one["execution"]["num_threads"]) == (3, 4, 1)


def test_a_share_is_that_of_the_best_mean_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of players that have hardly learned: that of the rounds in which all are right."""
    monkeypatch.setattr(critics, "NUM_WORLDS", 8)
    learned = critics.learn(True, 0, 2)
    assert len(learned.shares) == 2
    assert all(0.0 <= share <= 1.0 for share in learned.shares)
    assert learned.explained_variance < 1.0


def test_luck_adds_nothing_to_the_mean_return_of_right_rounds() -> None:
    game = make_game(critics.run_config(True, 0, 4).game)
    state = game.reset(torch.arange(20_000))  # type: ignore[attr-defined]
    actions = {role: state["weather"][:, 0, place] for place, role in enumerate(game.roles)}
    _, rewards, _, _ = game.transition(state, actions, torch.arange(20_000))  # type: ignore[attr-defined]
    assert float(rewards[:, 0].mean()) == pytest.approx(1.0, abs=0.5)
    assert float(rewards[:, 0].std()) > 10.0


def test_the_table_has_means_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([critics.Learned((0.5, 1.0), 0.9), critics.Learned((0.7, 1.0), 0.9)] * 2)
    monkeypatch.setattr(critics, "learn", lambda *arguments: next(numbers))
    head, _, row, other = critics.table(2, 120)
    assert "after 30,720 env steps | after 61,440 |" in head
    assert row.split(" | ")[1:] == ["0.60 (-0.67 to 1.87)", "1.00 (1.00 to 1.00)", "0.90 (0.90 to 0.90) |"]
    assert other.startswith("| the player's own observation (IPPO) | 0.60")
