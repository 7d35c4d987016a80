"""Begins with weights that a model has learned elsewhere, and says what was taken over."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from palestra.algorithms.parts.actor_critic import POLICY, HeadedNet
from palestra.config import ConfigError
from palestra.games.config import GameConfig
from palestra.games.spaces import Space, entries_in_words
from palestra.models.model import Model
from palestra.models.sources import BodyStartConfig, FileStartConfig, ModelStartConfig
from palestra.nets.weights import body_of_another, output_weights
from palestra.players.player import Player
from palestra.runs.models import TrainedModel
from palestra.storage.disk import RunFolderError
from palestra.storage.loaded_checkpoint import NOT_OURS
from palestra.storage.stored_files import CheckpointError, read_weights_file, tensors_in

MOST_NAMED = 6  # weights or networks that a line names


@dataclass(frozen=True)
class WarmStart:
    """What a run has taken over when it began.

    who: begins with it. source: where it comes from. taken, left: names of weights, of a player those of networks.
    """

    who: str
    source: str
    taken: list[str]
    left: list[str]

    def line(self) -> str:
        """Say it in a line."""
        left = f"; not taken: {_listed(self.left)}" if self.left else ""
        return f"{self.who} begins with {self.source}; taken: {_listed(self.taken)}{left}"

    def record(self) -> dict[str, Any]:
        """Return the record of the run that says it."""
        return {"kind": "warm_start", **asdict(self)}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def start_model(model: Model, config: ModelStartConfig | FileStartConfig) -> WarmStart:
    """Load the weights of another run's model, or of a file, into a model.

    Raises ConfigError if there are none, or if what is taken of them has other names or shapes than here.
    """
    with errors_at("warm_start", "weights that fit the model"):
        weights, source = _weights_of(config)
        left = [name for name in output_weights(model) if name in model.state_dict()] if config.take == "body" else []
        model.load_state_dict(body_of_another(model, weights) if config.take == "body" else dict(weights))
        return WarmStart("model", source, [name for name in model.state_dict() if name not in left], left)


def _weights_of(config: ModelStartConfig | FileStartConfig) -> tuple[Mapping[str, Tensor], str]:
    """Return weights by name, and where they come from, in words."""
    if isinstance(config, ModelStartConfig):
        trained = TrainedModel.read(config.from_model, config.checkpoint)
        return trained.weights, f"{config.take} of {config.from_model} at opt step {trained.opt_steps}"
    try:
        return tensors_in(read_weights_file(config.file), config.file), f"{config.take} of {config.file}"
    except OSError as error:
        raise RunFolderError(f"expected a safetensors file, got {config.file} ({error.strerror})") from error


@contextmanager
def errors_at(path: str, expected: str) -> Iterator[None]:
    """A context that turns errors about a model of another run into a ConfigError at this path of the config.

    expected: what it should be, for weights that do not fit.
    """
    try:
        yield
    except (RunFolderError, CheckpointError, ConfigError) as error:
        raise ConfigError.at(path, str(error)) from error
    except NOT_OURS as error:  # torch raises RuntimeError if shapes differ
        raise ConfigError.at(path, f"expected {expected}, got others: {error}") from error


# ---- a player with the body of a model ---------------------------------------------------------------------


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
        algorithm: Any = player.algorithm
        algorithm.warm_start(nets)
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
    if trained.spaces is not None and entries_in_words(trained.spaces) != entries_in_words(spaces):
        there, here = entries_in_words(trained.spaces), entries_in_words(spaces)
        raise RunFolderError(f"expected a model that has learned from {here}, as the player observes, got {there}")


def _networks(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Give the networks of one that consists of several, each with the beginning of its weights' names; else itself."""
    has_several = isinstance(net, nn.ModuleList) or hasattr(net, "output_weights")
    parts = [(f"{name}.", part) for name, part in net.named_children()] if has_several else [("", net)]
    for place, part in parts:
        if part.state_dict().keys() - output_weights(part):
            yield place, part


def _places(net: nn.Module, body: Mapping[str, Tensor]) -> list[str]:
    """Return where in a network, itself or inside, there is a module of this body: how its weights' names begin."""
    found: list[str] = []
    for path, part in net.named_modules():
        prefix = f"{path}." if path else ""
        own, outputs = part.state_dict(), output_weights(part)
        shapes = {name: value.shape for name, value in own.items() if name not in outputs}
        is_inside = any(prefix.startswith(outer) for outer in found)
        if body and not is_inside and shapes == {name: value.shape for name, value in body.items()}:
            found.append(prefix)
    return found


def _path(net: str, prefix: str) -> str:
    return f"{net}.{prefix}".removesuffix(".")
