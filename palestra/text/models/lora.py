"""Low-rank adapters (Hu et al. 2022) by peft, several of which share a network."""

import warnings
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from palestra.config import Config, ConfigError, NonEmptyStr, PositiveFloat, PositiveInt
from palestra.randomness import seeded_global_state
from palestra.text.models.extra import library
from palestra.text.models.local import Weights
from palestra.text.models.network import Network


class LoRAConfig(Config):
    """A low-rank adapter: what it adds to a layer is the product of two thin matrices."""

    usual: ClassVar[Any] = {"rank": 16, "alpha": 32.0, "targets": "all_linear"}

    rank: PositiveInt
    """the inner size of the product"""
    alpha: PositiveFloat
    """the product counts alpha / rank times"""
    targets: Literal["all_linear"] | list[NonEmptyStr]
    """the layers that get one, by the ends of their names, such as q_proj; all_linear: all linear ones but the last"""


class SharedNetwork:
    """A network without gradients, and the adapters in it, of which one is active.

    base_sha256: of its folder.
    """

    def __init__(self, network: Network, base_sha256: str) -> None:
        self.network, self.base_sha256 = network.requires_grad_(False), base_sha256
        self.num_adapters, self.active = 0, ""


class Adapter:
    """The weights of one adapter in a network that other adapters share.

    key: an int64 of which its first matrices are drawn; its second ones are 0, so that it begins as the base. Raises
    ConfigError, at the key `adapter.targets`, if it does not fit the network.
    """

    def __init__(self, shared: SharedNetwork, config: LoRAConfig, key: int) -> None:
        self.shared, self.base_sha256 = shared, shared.base_sha256
        self.name = f"adapter_{shared.num_adapters}"
        shared.num_adapters += 1
        peft = library("peft")
        lora = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=0.0,
            target_modules="all-linear" if config.targets == "all_linear" else list(config.targets),
        )
        causal_lm = shared.network.causal_lm
        with seeded_global_state(key), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the network has other adapters
            try:
                peft.inject_adapter_in_model(lora, causal_lm, adapter_name=self.name)
            except ValueError as error:
                message = f"expected layers of the model, got {config.targets}: {error!s:.200}"
                raise ConfigError.at("adapter.targets", message) from error
        self.layers = {name: each for name, each in _layers(causal_lm).items() if self.name in each.lora_A}
        if others := [name for name, layer in self.layers.items() if not hasattr(layer.get_base_layer(), "weight")]:
            raise ConfigError.at("adapter.targets", f"expected linear layers alone, got {others[0]}, too; list others")
        self.parameters: dict[str, nn.Parameter] = {
            f"{name}.{part}": getattr(layer, part)[self.name].weight
            for name, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }
        for each in self.parameters.values():
            each.data = each.data.float()  # small steps would not move numbers of bfloat16
        self._initial = {name: each.detach().clone() for name, each in self.parameters.items()}
        shared.active = self.name
        self._require_gradients()

    def activate(self) -> None:
        if self.shared.active == self.name:
            return
        for layer in _layers(self.shared.network.causal_lm).values():
            layer.set_adapter([self.name] if self.name in layer.lora_A else [])
        self.shared.active = self.name
        self._require_gradients()

    def _require_gradients(self) -> None:
        self.shared.network.requires_grad_(False)
        for each in self.parameters.values():
            each.requires_grad_(True)

    def initial(self) -> Weights:
        return self._initial

    @torch.no_grad()
    def whole(self) -> Weights:
        """Return the weights of the network with the adapter merged into them."""
        self.activate()
        state = {
            name.replace(".base_layer.", "."): value
            for name, value in self.shared.network.causal_lm.state_dict().items()
            if ".lora_" not in name
        }
        for name, layer in self.layers.items():
            weight = f"{name}.weight"
            state[weight] = (state[weight] + layer.get_delta_weight(self.name)).to(state[weight].dtype)
        return state


def _layers(causal_lm: Any) -> dict[str, Any]:
    """Return the layers of a network that have adapters, by name."""
    kind = library("peft.tuners.lora").LoraLayer
    return {name: each for name, each in causal_lm.named_modules() if isinstance(each, kind)}
