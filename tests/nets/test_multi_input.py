from typing import Any

import pytest
import torch

from palestra.config import ConfigError
from tests.nets.making import build, observe, space

SPACES = {
    "screen": space((3, 8, 8), torch.uint8),
    "speed": space((2,)),
    "points": space((5, 3), padded=True),
}
MLP = {"name": "mlp", "net_arch": [6], "activation": "tanh"}
ENTRIES: dict[str, Any] = {
    "points": {"name": "deep_sets", "point_widths": [7], "head_widths": []},
    "screen": {"name": "impala_cnn", "channels": [4], "hidden_widths": []},
    "speed": MLP,
}
DATA = {"name": "multi_input", "entries": ENTRIES, "entry_width": 8, "net_arch": [10, "l"], "activation": "relu"}


def test_every_entry_goes_through_its_own_network() -> None:
    net, seen = build(DATA, SPACES), observe(SPACES, 6)
    outputs = net(seen)
    assert outputs.shape == (6, 4)
    for name in SPACES:
        other = seen | {name: seen[name].flip(0)}
        assert not torch.allclose(net(other), outputs)


def test_the_order_in_which_the_config_names_entries_means_nothing() -> None:
    seen = observe(SPACES, 6)
    turned = DATA | {"entries": dict(reversed(ENTRIES.items()))}
    assert torch.equal(build(DATA, SPACES)(seen), build(turned, SPACES)(seen))


FAULTS = {
    "missing": (
        {"screen": ENTRIES["screen"]},
        [f"{name}: expected a network, but the key is missing" for name in ("points", "speed")],
    ),
    "unknown": (ENTRIES | {"sped": MLP}, ["sped: unknown key; the entries of this observation: screen, speed, points"]),
    "unfit": (
        ENTRIES | {"speed": ENTRIES["screen"]},
        [
            "speed.name: expected one image, uint8 of shape (C, H, W), for 'impala_cnn', got 'speed', torch.float32 of "
            "shape (2,)"
        ],
    ),
}


@pytest.mark.parametrize(("entries", "told"), FAULTS.values(), ids=FAULTS.keys())
def test_entries_that_do_not_fit_are_told_by_their_paths(entries: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(DATA | {"entries": entries}, SPACES)
    assert str(caught.value).splitlines() == [f"entries.{line}" for line in told]


def test_networks_do_not_nest_deeper() -> None:
    with pytest.raises(ConfigError, match=r"^net.entries.speed.name: expected one of .*, got 'multi_input'"):
        build(DATA | {"entries": ENTRIES | {"speed": DATA}}, SPACES)
