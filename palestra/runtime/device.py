"""The device that a config names."""

import torch

from palestra.config import ConfigError, ConfigErrorItem


def find_device(name: str) -> torch.device:
    """Raises ConfigError for a device that this machine lacks."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigError([ConfigErrorItem("execution.device", f"{name!r} cannot be used here: {why}")]) from error
