"""What `palestra config off_policy pendulum loss=torchrl.objectives:SACLoss` means, and `loss=mine:Loss`: the shipped
configs with that loss, and with what goes with it."""

from collections.abc import Sequence
from typing import Any

from palestra.algorithms.losses.loss import Critic, OnPolicyLoss, head_names
from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss
from palestra.algorithms.losses.torchrl import TorchRLReplayLossConfig
from palestra.algorithms.parts.actor_critic import POLICY
from palestra.algorithms.parts.torchrl_classes import is_of_torchrl, usual_config
from palestra.config import IMPORT_PATH, admitted_class, apply_overrides, below, check
from palestra.config.variants import usual_keys

Data = dict[str, Any]
OF_SAC = {"name": "state_dependent_gaussian", "log_std": {"min": -20.0, "max": 2.0}}
BASES = {"on_policy": OnPolicyLoss, "off_policy": OffPolicyLoss}


def with_loss(data: Data, overrides: Sequence[str]) -> Data:
    """A shipped config whose players learn by a loss alone, with the loss of TorchRL or of a user's own that an
    override names; any other config as it is. With the loss change the heads, and how the player acts. Raises
    ConfigError."""
    pairs = [override.partition("=") for override in overrides]
    texts = [text for key, _, text in pairs if key.strip().split(".")[-1] == "loss"]
    if not texts:
        return data
    loss = apply_overrides({"loss": {}}, [f"loss={texts[-1]}"])["loss"]
    name = loss.get("name") if isinstance(loss, dict) else loss
    if not (isinstance(name, str) and IMPORT_PATH.fullmatch(name)):
        return data
    players = {
        key: player | ({"algorithm": _changed(player["algorithm"], name, loss)} if "algorithm" in player else {})
        for key, player in data["players"].items()
    }
    return data | {"players": players}


def _changed(algorithm: Data, name: str, given: str | Data) -> Data:
    """given: the loss as the override has it, its name alone or a mapping."""
    if algorithm["name"] not in BASES:
        return algorithm
    if is_of_torchrl(name):
        with below("loss"):
            config = usual_config(name)
        if algorithm["name"] == "on_policy":
            return algorithm | {"loss": config}
        loss: Any = check(config, TorchRLReplayLossConfig).build()
    else:
        base = BASES[algorithm["name"]]
        config = given if isinstance(given, dict) else {"name": name, **usual_keys(name, base)}
        loss = admitted_class(name, base)
        if not isinstance(getattr(loss, "heads", None), tuple):  # its config says them, or it has none
            return algorithm | {"loss": config}
    nets = {key: value for key, value in algorithm["body"].items() if key != "name"}
    first = next(iter(nets.values()))
    changed: Data = {"loss": config}
    if algorithm["body"]["name"] == "separate":
        changed["body"] = {"name": "separate"} | {head: nets.get(head, first) for head in head_names(loss)}
    if algorithm["name"] == "off_policy":
        changed["exploration"] = None if loss.acts_by == POLICY else algorithm["exploration"]
        changed["box_actions"] = OF_SAC if any(isinstance(head, Critic) for head in loss.heads) else None
    return algorithm | changed
