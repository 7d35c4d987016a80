"""The device that a config names, and moves to it."""

from typing import Any

import torch

from palestra.config import ConfigError, ConfigErrorItem


def find_device(name: str) -> torch.device:
    """Return the device of that name (cpu, cuda, cuda:1, ...). Raises ConfigError if this machine has none."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigError.at("execution.device", f"expected a device of this machine, got {name!r}: {why}") from error


def require_stock_torch(trains: bool) -> None:
    """Raise ConfigError where the program around, or a module of the user's own, has changed how torch computes.

    No config says so: it would fail, or training would come to other bits than a process that goes on with the run.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    changes = (
        (dtype != torch.float32, f"torch.set_default_dtype(torch.float32), got {dtype}"),
        (device.type != "cpu", f"torch.set_default_device(None), because execution.device is enough, got {device}"),
        (trains and any(map(torch.is_autocast_enabled, ("cpu", "cuda"))), "training outside of torch.autocast"),
        (trains and torch.is_inference_mode_enabled(), "training outside of torch.inference_mode"),
    )
    ConfigError.require_none(ConfigErrorItem("torch", f"expected {each}") for is_made, each in changes if is_made)


def moved(value: Any, device: torch.device) -> Any:
    """Move the tensors in dicts of dicts to a device, and leave everything else as it is."""
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
