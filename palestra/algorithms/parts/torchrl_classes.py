"""Classes of TorchRL that a file names (extra: torchrl): imported where they are used, with all of their arguments."""

import inspect
import multiprocessing
from importlib import import_module
from typing import Any, ClassVar

from palestra.config import LibraryClass, MissingExtra

OBJECTIVES = "torchrl.objectives"
NETWORKS = ("actor_network", "critic_network", "value_network", "qvalue_network", "actor", "critic")
KNOWN_BY_THE_RUN = ("device", "functional", "action_spec", "action_space", "num_actions", "bounds")
# What `palestra config` writes where TorchRL has no value or one that does not fit here: its networks cannot be called
# by vmap, and rows hold no outputs of the policy before.
INSTEAD = {"gamma": 0.99, "lmbda": 0.95, "reduction": "mean", "deactivate_vmap": True}


class TorchRLConfig(LibraryClass):
    """The base of the configs that name a class of TorchRL, or one of the user's own that derives from it."""

    not_said: ClassVar[dict[str, str]] = dict.fromkeys((*NETWORKS, *KNOWN_BY_THE_RUN), "the run gives it")

    name: str
    """a class of TorchRL (extra: torchrl), as torchrl.objectives:ClipPPOLoss"""
    arguments: dict[str, Any]
    """what it is called with: all of its arguments but networks and what the run knows"""

    @classmethod
    def module(cls, name: str) -> Any:
        """Import a module. Raises MissingExtra, at the key `name`, where TorchRL is not installed."""
        return torchrl_module(name) if name == cls.library else import_module(name)

    @classmethod
    def is_said(cls, parameter: inspect.Parameter) -> bool:
        """Return whether a file says an argument: no names of keys, and no `gamma` that TorchRL's losses refuse."""
        is_refused = parameter.name.endswith("_key") or (parameter.name == "gamma" and parameter.default is None)
        return not is_refused and super().is_said(parameter)

    @classmethod
    def in_full(cls, name: str) -> dict[str, Any]:
        """Return what `palestra config` writes: TorchRL's own values, but others where those do not fit here."""
        full = super().in_full(name)
        arguments = full["arguments"]
        arguments |= {key: value for key, value in INSTEAD.items() if key in arguments}
        if "dtarg" in arguments:  # KLPENPPOLoss
            arguments["delay_actor"] = True
        return full


def torchrl_module(name: str) -> Any:
    """Import a module of TorchRL. Raises MissingExtra, at the key `name`, where TorchRL is not installed."""
    start_method = multiprocessing.get_start_method(allow_none=True)
    try:
        return import_module(name)
    except ImportError as error:
        message = f"{error}; it needs an extra: pip install 'palestra[torchrl]'"
        raise MissingExtra.at("name", message) from error
    finally:  # importing TorchRL sets it to "spawn", for every process that the program starts from then on
        multiprocessing.set_start_method(start_method, force=True)
