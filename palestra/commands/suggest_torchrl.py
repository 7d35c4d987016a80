"""What `palestra config off_policy pendulum loss=torchrl.objectives:SACLoss` means: the shipped configs with that loss
of TorchRL, and with what goes with it."""

from collections.abc import Sequence
from typing import Any

from palestra.algorithms.losses.loss import Critic, head_names
from palestra.algorithms.losses.torchrl import TorchRLReplayLossConfig
from palestra.algorithms.parts.actor_critic import POLICY
from palestra.algorithms.parts.torchrl_classes import is_of_torchrl, usual_config
from palestra.config import below, check

Data = dict[str, Any]
OF_SAC = {"name": "state_dependent_gaussian", "log_std": {"min": -20.0, "max": 2.0}}


def with_loss(data: Data, overrides: Sequence[str]) -> Data:
    """A shipped config whose players learn by a loss alone, with the loss of TorchRL that an override names; any other
    config as it is. With the loss change the heads, and how the player acts. Raises ConfigError."""
    pairs = [override.partition("=") for override in overrides]
    named = [text.strip() for key, _, text in pairs if key.strip().split(".")[-1] == "loss"]
    loss = next((text for text in reversed(named) if is_of_torchrl(text)), None)
    if loss is None:
        return data
    players = {
        name: player | ({"algorithm": _changed(player["algorithm"], loss)} if "algorithm" in player else {})
        for name, player in data["players"].items()
    }
    return data | {"players": players}


def _changed(algorithm: Data, text: str) -> Data:
    if algorithm["name"] not in ("on_policy", "off_policy"):
        return algorithm
    with below("loss"):
        config = usual_config(text)
    if algorithm["name"] == "on_policy":
        return algorithm | {"loss": config}
    loss = check(config, TorchRLReplayLossConfig).build()
    net = next(value for key, value in algorithm["body"].items() if key != "name")
    acts_by_policy = loss.acts_by == POLICY
    return algorithm | {
        "loss": config,
        "body": {"name": "separate"} | dict.fromkeys(head_names(loss), net),
        "exploration": None if acts_by_policy else algorithm["exploration"],
        "box_actions": OF_SAC if any(isinstance(head, Critic) for head in loss.heads) else None,
    }
