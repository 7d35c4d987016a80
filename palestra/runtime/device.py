"""The device that a config names, and moves to it."""

from typing import Any

import torch

from palestra.config import ConfigError


def find_device(name: str) -> torch.device:
    """Return the device of that name (cpu, cuda, cuda:1, ...). Raises ConfigError if this machine has none."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigError.at("execution.device", f"expected a device of this machine, got {name!r}: {why}") from error


def moved(value: Any, device: torch.device) -> Any:
    """Move the tensors in dicts of dicts to a device, and leave everything else as it is."""
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
