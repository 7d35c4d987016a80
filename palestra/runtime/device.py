"""The device that a config names."""

import torch

from palestra.config import ConfigError


def find_device(name: str) -> torch.device:
    """Return the device of that name (cpu, cuda, cuda:1, ...). Raises ConfigError if this machine has none."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigError.at("execution.device", f"expected a device of this machine, got {name!r}: {why}") from error
