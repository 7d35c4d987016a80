"""What `palestra config on_policy CartPole-v1 loss=reinforce` and `palestra train on_policy-cartpole loss=reinforce`
mean, and `loss=torchrl.objectives:SACLoss` and `loss=mine:Loss`: the shipped configs with that loss, and with what goes
with it."""

from collections.abc import Sequence
from typing import Any

from palestra.algorithms.losses.loss import VALUE, Critic, head_names, loss_of
from palestra.algorithms.off_policy import AnyOffPolicyLoss
from palestra.algorithms.on_policy import AnyEstimatorConfig, AnyOnPolicyLoss
from palestra.algorithms.parts.actor_critic import POLICY
from palestra.config import Config, apply_overrides, below, check

Data = dict[str, Any]
OF_SAC = {"name": "state_dependent_gaussian", "log_std": {"min": -20.0, "max": 2.0}}


class _OnPolicy(Config):
    loss: AnyOnPolicyLoss
    """what is learned"""
    estimator: AnyEstimatorConfig
    """what it is learned from"""


class _OffPolicy(Config):
    loss: AnyOffPolicyLoss
    """what is learned"""


MODELS: dict[str, type[Config]] = {"on_policy": _OnPolicy, "off_policy": _OffPolicy}


def with_loss(data: Data, overrides: Sequence[str]) -> Data:
    """A shipped config whose players learn by a loss alone, with the loss that overrides name and what goes with it;
    any other config as it is. With the loss change the heads, the estimator, and how the player acts. Raises
    ConfigError."""
    of_loss = loss_overrides(overrides)
    if not of_loss:
        return data
    players = dict(data["players"])
    for key, player in players.items():
        if "algorithm" in player:
            with below(f"players.{key}.algorithm"):
                players[key] = player | {"algorithm": _changed(player["algorithm"], of_loss)}
    return data | {"players": players}


def loss_overrides(overrides: Sequence[str]) -> list[str]:
    """Those of a loss or of its keys, from the key `loss` on."""
    return [own for override in overrides if (own := _of_loss(override))]


def _of_loss(override: str) -> str | None:
    """An override of a loss or of its keys, from the key `loss` on; None for any other."""
    key, _, text = override.partition("=")
    parts = key.strip().split(".")
    return f"{'.'.join(parts[parts.index('loss') :])}={text}" if "loss" in parts else None


def _changed(algorithm: Data, overrides: Sequence[str]) -> Data:
    model = MODELS.get(algorithm["name"])
    if model is None:
        return algorithm
    own = {key: algorithm[key] for key in model.model_fields}
    changed = apply_overrides(own, overrides, model)
    if changed == own:
        return algorithm
    loss = loss_of(check(changed, model).loss)  # type: ignore[attr-defined]
    if loss is None:
        return algorithm | changed
    heads = head_names(loss)
    if algorithm["body"]["name"] == "separate":
        nets = {key: value for key, value in algorithm["body"].items() if key != "name"}
        first = next(iter(nets.values()))
        changed["body"] = {"name": "separate"} | {head: nets.get(head, first) for head in heads}
    if algorithm["name"] == "off_policy":
        changed["exploration"] = None if loss.acts_by == POLICY else algorithm["exploration"]
        changed["box_actions"] = OF_SAC if any(isinstance(head, Critic) for head in loss.heads) else None
        return algorithm | changed
    if loss.is_of_one_pass:
        changed["num_passes"] = 1
    accepted = loss.estimators or ((own["estimator"]["name"],) if VALUE in heads else ("reward_to_go",))
    if own["estimator"]["name"] not in accepted:
        before = own["estimator"]
        changed = apply_overrides(changed, [f"estimator={accepted[0]}"], model)
        found = changed["estimator"]
        if isinstance(found, dict):
            changed["estimator"] = {
                key: before.get(key, value) if key != "name" else value for key, value in found.items()
            }
    return algorithm | changed
