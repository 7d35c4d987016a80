"""`scenario` as a data set: its items are the first observations of a role in a dialogue."""

from typing import Any

import pytest
import torch

from palestra.config import Config, ConfigError, check
from palestra.data.sets import make_sets
from palestra.games import make_game
from palestra.kinds.data.config import AnySetConfig
from palestra.randomness import base_key, world_keys

REWARDS = {"right": 1.0, "wrong": -1.0, "out_of_time": -1.0, "go_on": 0.0, "prover": 1.0, "shared": False}
NIP = {"name": "nip", "stance": "accept", "min_rounds": 1, "max_rounds": 4, "first": "verifier", "rewards": REWARDS}
WITNESS = {"name": "witness", "num_bits": 6, "num_seen": 2}


class Sets(Config):
    data: dict[str, AnySetConfig]
    """sets"""


def made(seed: int = 3, **changes: Any) -> Any:
    keys = {"name": "scenario", "protocol": NIP, "scenario": WITNESS, "role": "verifier", "held_out": False}
    return make_sets(check({"data": {"train": keys | {"num_items": 50} | changes}}, Sets).data, seed)["train"]


@pytest.mark.parametrize("role", ["prover", "verifier"])
@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_items_are_the_first_observations_of_the_dialogue(role: str, kernel: Any) -> None:
    game: Any = make_game(
        {"name": "dialogue", "protocol": NIP, "scenario": WITNESS, "observation": {"normalize": None, "clip": None}}
    )
    for held_out in (False, True):
        data = made(role=role, held_out=held_out)
        stream = f"data/{'held out' if held_out else 'training'}"
        each = game.held_out() if held_out else game
        state = each.reset(world_keys(base_key(3, stream), 50, game.device))
        shown = each.observe(state, role)
        assert data.entries.keys() == {*game.spaces[role], "label"} == {"bits", "messages", "round", "label"}
        assert all(torch.equal(data.entries[name], value) for name, value in shown.items())
        assert torch.equal(data.entries["label"], state["label"])
        assert data.describe(4) == game.scenario.describe({"bits": state["instance.bits"][4]})


def test_items_follow_the_seed_and_fewer_are_the_first_ones() -> None:
    first, other, fewer = made(), made(seed=4), made(num_items=20)
    assert not torch.equal(first.entries["bits"], other.entries["bits"])
    assert not torch.equal(first.entries["bits"], made(held_out=True).entries["bits"])
    assert torch.equal(fewer.entries["bits"], first.entries["bits"][:20])


def test_an_unknown_role_is_told() -> None:
    with pytest.raises(ConfigError, match=r"^data.train.role: expected one of 'prover', 'verifier', got 'judge'$"):
        made(role="judge")
