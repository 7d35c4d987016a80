"""Lets a player begin with the body of a model that has learned from data."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from palestra.algorithms.parts.actor_critic import POLICY, HeadedNet
from palestra.games.config import GameConfig
from palestra.games.spaces import Space, entries_in_words
from palestra.models.sources import BodyStartConfig
from palestra.nets.weights import body_of_another, output_weights
from palestra.players.player import Player
from palestra.run.trained_models import TrainedModel
from palestra.run.warm_starts import WarmStart, errors_at
from palestra.storage.disk import RunFolderError


def start_player(player: Player, config: BodyStartConfig, game: GameConfig) -> WarmStart:
    """Take the body of a model into every network of a player that has the same body but for its outputs.

    The body is that of the model's attribute `net` if it has one, else of the model itself. game: that in which the
    player learns. Raises ConfigError if there is no such model, if no network fits, and where observations are
    normalised, which the model has not learned from.
    """
    with errors_at(f"players.{player.name}.warm_start", f"a network of {player.name!r} with the body of the model"):
        trained = TrainedModel.read(config.from_model, config.checkpoint)
        _require_same_entries(trained, player.spaces, game)
        model = trained.build(torch.device("cpu"))
        core = getattr(model, "net", model)
        body = {name: value for name, value in core.state_dict().items() if name not in output_weights(core)}
        nets, taken, left = {}, [], []
        for name, net in player.nets.items():
            nets[name] = net.state_dict()
            for place, part in _networks(net):
                prefixes = [f"{place}{path}" for path in _places(part, body)]
                nets[name] |= {prefix + key: value for prefix in prefixes for key, value in body.items()}
                taken += [_path(name, prefix) for prefix in prefixes]
                left += [] if prefixes else [_path(name, place)]
        if not taken:
            (_, first), *_ = (each for net in player.nets.values() for each in _networks(net))
            body_of_another(first, core.state_dict())  # raises, and names what differs
            raise ValueError(f"it has no body: {', '.join(core.state_dict())} make its outputs")
        if config.take == "policy":
            taken.append(_take_outputs(player, nets, core))
        cast(Any, player.algorithm).warm_start(nets)
        source = f"the {config.take} of {config.from_model} at opt step {trained.opt_steps}"
        return WarmStart(f"players.{player.name}", source, taken, left)


def _take_outputs(player: Player, nets: dict[str, dict[str, Tensor]], core: nn.Module) -> str:
    """Take the weights of a model's outputs into the policy's network, and say which; raises if they do not fit."""
    name, prefix, net, rows = _policy_of(player)
    outputs, there = output_weights(net), core.state_dict()
    here = {key: nets[name][prefix + key] for key in outputs if prefix + key in nets[name]}
    shapes = {key: tuple(value[rows].shape) for key, value in here.items()}
    if shapes != (got := {key: tuple(there[key].shape) for key in output_weights(core)}):
        raise ValueError(f"expected outputs as of the policy, {shapes}, got {got}")
    for key, value in here.items():
        value = value.clone()
        value[rows] = there[key]
        nets[name][prefix + key] = value
    return f"the outputs of {_path(name, prefix)}"


def _policy_of(player: Player) -> tuple[str, str, nn.Module, slice]:
    """Return the policy's network: its player's name for it, how its weights begin, itself, and the policy's outputs.

    Raises RunFolderError if there is none.
    """
    for name, net in player.nets.items():
        if isinstance(net, HeadedNet) and POLICY in net.heads:
            heads = list(net.heads)
            first = sum(net.heads[head] for head in heads[: heads.index(POLICY)]) if net.is_shared else 0
            rows = slice(first, first + net.heads[POLICY])
            return name, f"{heads[0] if net.is_shared else POLICY}.", net.net_of(POLICY), rows
        if name == POLICY:
            return name, "", net, slice(None)
    raise RunFolderError(f"expected 'body' for take, because {player.name!r} has no network of a policy, got 'policy'")


def _require_same_entries(trained: TrainedModel, spaces: Mapping[str, Space], game: GameConfig) -> None:
    """Raise RunFolderError if a player observes something else than a model has learned from."""
    if game.observations().normalize is not None:
        why = "because the model has learned from observations that are not normalised"
        raise RunFolderError(f"expected null for game.observation.normalize, {why}, got a mapping")
    there, here = (None if each is None else entries_in_words(each) for each in (trained.spaces, spaces))
    if there not in (None, here):
        raise RunFolderError(f"expected a model that has learned from {here}, as the player observes, got {there}")


def _networks(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give the networks of one that consists of several, each with the beginning of its weights' names; else itself."""
    has_several = isinstance(net, nn.ModuleList) or hasattr(net, "output_weights")
    parts = [(f"{name}.", part) for name, part in net.named_children()] if has_several else [("", net)]
    yield from (each for each in parts if each[1].state_dict().keys() - output_weights(each[1]))


def _places(net: nn.Module, body: Mapping[str, Tensor]) -> list[str]:
    """Return where in a network, itself or inside, there is a module of this body: how its weights' names begin."""
    found: list[str] = []
    wanted = {name: value.shape for name, value in body.items()}
    for path, part in net.named_modules():
        prefix, outputs = f"{path}." if path else "", output_weights(part)
        shapes = {name: value.shape for name, value in part.state_dict().items() if name not in outputs}
        is_inside = any(prefix.startswith(outer) for outer in found)
        if body and not is_inside and shapes == wanted:
            found.append(prefix)
    return found


def _path(net: str, prefix: str) -> str:
    return f"{net}.{prefix}".removesuffix(".")
