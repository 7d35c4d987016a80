"""Who has won, by returns."""

import torch

from palestra.games.game import wins_by_return


def test_the_higher_return_wins_and_equal_ones_count_half() -> None:
    returns = {"first": torch.tensor([1.0, 0.0, 2.0, 4.0]), "second": torch.tensor([0.0, 0.0, 3.0, 3.0])}
    found = {role: wins.tolist() for role, wins in wins_by_return(returns).items()}
    assert found == {"first": [1.0, 0.5, 0.0, 1.0], "second": [0.0, 0.5, 1.0, 0.0]}


def test_only_of_two_roles_one_wins() -> None:
    assert wins_by_return({"alone": torch.ones(3)}) == {}
    assert wins_by_return(dict.fromkeys("abc", torch.ones(3))) == {}
