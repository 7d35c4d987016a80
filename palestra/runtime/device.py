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


def require_stock_torch() -> None:
    """Raise ConfigError where the program around, or a module of the user's own, has changed how torch computes.

    No config says so: training would fail, or come to other bits than a process that goes on with the run.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    is_cast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    ConfigError.require_none(
        ConfigErrorItem("torch", f"expected {expected}")
        for is_changed, expected in (
            (dtype != torch.float32, f"torch.set_default_dtype(torch.float32), got {dtype}"),
            (device.type != "cpu", f"torch.set_default_device(None), because execution.device is enough, got {device}"),
            (is_cast, "training outside of torch.autocast, got it inside"),
            (torch.is_inference_mode_enabled(), "training outside of torch.inference_mode, got it inside"),
        )
        if is_changed
    )


def moved(value: Any, device: torch.device) -> Any:
    """Move the tensors in dicts of dicts to a device, and leave everything else as it is."""
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
