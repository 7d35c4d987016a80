"""Networks that fit the observations of a game, for the configs that `palestra config` prints."""

from typing import Any

import torch

from palestra.games.spaces import Space

NATURE_CNN = {
    "name": "nature_cnn",
    "channels": [32, 64, 64],
    "kernels": [8, 4, 3],
    "strides": [4, 2, 1],
    "hidden_widths": [512],
}
IMPALA_CNN = {"name": "impala_cnn", "channels": [16, 32, 32], "hidden_widths": [256]}
MLP = {"name": "mlp", "net_arch": [64, 64], "activation": "relu"}
DEEP_SETS = {"name": "deep_sets", "point_widths": [64, 64], "head_widths": [128]}
NEWTON_SETS = DEEP_SETS | {"name": "newton_sets"}  # of the polyhedra game alone
NETS = ("mlp", "nature_cnn", "impala_cnn", "multi_input", "newton_sets")  # of the shipped configs
LEAST_SIDE_OF_NATURE_CNN = 36
ACTION = {"action": Space((1,), torch.float32, padded=False)}  # of any length


def with_fitting_nets(data: Any, spaces: dict[str, Space], is_box: bool, sets_net: dict[str, Any] = DEEP_SETS) -> Any:
    """The same data, with other networks in place of those that do not fit these observations. is_box: whether critics
    receive an action too. sets_net: the network of observations with a set."""
    if isinstance(data, list):
        return [with_fitting_nets(item, spaces, is_box, sets_net) for item in data]
    if not isinstance(data, dict):
        return data
    if data.get("name") in NETS:
        is_flat = not any(space.is_image or space.padded for space in spaces.values())
        return data if data["name"] == "mlp" and is_flat else _fitting_net(spaces, sets_net)
    inputs = {key: spaces | ACTION if key.startswith("critic_") and is_box else spaces for key in data}
    return {key: with_fitting_nets(value, inputs[key], is_box, sets_net) for key, value in data.items()}


def _fitting_net(spaces: dict[str, Space], sets_net: dict[str, Any]) -> dict[str, Any]:
    if any(space.padded for space in spaces.values()):
        return sets_net
    nets = {name: _net_of(space) for name, space in spaces.items()}
    if len(nets) == 1:
        return next(iter(nets.values()))
    if not any(space.is_image for space in spaces.values()):
        return MLP  # of all numbers in one vector
    return {"name": "multi_input", "entries": nets, "entry_width": 64, "net_arch": [64], "activation": "relu"}


def _net_of(space: Space) -> dict[str, Any]:
    if not space.is_image:
        return MLP
    return NATURE_CNN if min(space.shape[1:]) >= LEAST_SIDE_OF_NATURE_CNN else IMPALA_CNN
