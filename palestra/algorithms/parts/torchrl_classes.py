"""Classes of TorchRL that a file names (extra: torchrl): imported where they are used, with all of their arguments."""

import inspect
import multiprocessing
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from palestra.config import IMPORT_PATH, Config, ConfigError, ConfigErrorItem, MissingExtra, admits, load_class
from palestra.config.errors import listed, nearest, shown

LIBRARY = "torchrl"
LOSS_MODULE = f"{LIBRARY}.objectives:LossModule"
VALUE_ESTIMATOR = f"{LIBRARY}.objectives.value:ValueEstimatorBase"
NETWORKS = ("actor_network", "critic_network", "value_network", "qvalue_network", "actor", "critic")
KNOWN_BY_THE_RUN = ("device", "functional", "action_spec", "action_space", "num_actions", "bounds")
OF_CALLS = (  # how a value estimator calls networks and reads its input: ours finds all values there
    *("shifted", "shifted_budget", "skip_existing", "deactivate_vmap", "value_chunk_size", "value_chunk_dim"),
    *("num_chunks", "num_chunk", "time_dim", "differentiable", "auto_reset_env"),
)


def _check_name(name: str) -> str:
    if not IMPORT_PATH.fullmatch(name):
        raise ValueError(f"expected 'package.module:Class', got {name!r}")
    if not is_of_torchrl(name):
        admits(name)
    return name


def is_of_torchrl(name: str) -> bool:
    return name.partition(":")[0].partition(".")[0] == LIBRARY


class TorchRLConfig(Config):
    """Base of the configs that name a class of TorchRL, or one of the user's own that derives from it."""

    module: Annotated[str, AfterValidator(_check_name)]
    """the class, as package.module:Class"""
    arguments: dict[str, Any]
    """what it is called with: all of its arguments but networks and what the run knows"""

    def user_names(self) -> list[str]:
        return [] if is_of_torchrl(self.module) else [self.module]


def torchrl_module(name: str) -> ModuleType:
    """A module of TorchRL. Raises MissingExtra, at the key `module`, where TorchRL is not installed."""
    start_method = multiprocessing.get_start_method(allow_none=True)
    try:
        return import_module(name)
    except ImportError as error:
        message = f"{error}; it needs an extra: pip install 'palestra[torchrl]'"
        raise MissingExtra.at("module", message) from error
    finally:  # importing TorchRL sets it to "spawn", for every process that the program starts from then on
        multiprocessing.set_start_method(start_method, force=True)


def torchrl_class(name: str, base: str) -> Any:
    """The class that a name means. base: the class of TorchRL that it must derive from, as package.module:Class. Raises
    ConfigError, at the key `module`."""
    module_name, _, base_name = base.partition(":")
    kind = getattr(torchrl_module(module_name), base_name)
    if not is_of_torchrl(name):
        try:
            return load_class(name, kind)
        except ValueError as error:
            raise ConfigError.at("module", str(error)) from error
    place, _, class_name = name.partition(":")
    try:
        module = import_module(place)
    except ImportError as error:
        raise ConfigError.at("module", f"{error}; as in {base}") from error
    found = getattr(module, class_name, None)
    if isinstance(found, type) and issubclass(found, kind):
        return found
    known = [each for each, thing in vars(module).items() if isinstance(thing, type) and issubclass(thing, kind)]
    near = nearest(class_name, known)
    hint = f"; did you mean {near!r}?" if near else ""
    message = f"expected a class of {place} that derives from {base_name}, got {class_name!r}{hint}"
    raise ConfigError.at("module", message)


# ---- arguments -----------------------------------------------------------------------------------------

# What `palestra config` writes where TorchRL has no value or one that does not fit here: its networks cannot be called
# by vmap, and rows hold no outputs of the policy before.
INSTEAD = {"gamma": 0.99, "lmbda": 0.95, "reduction": "mean", "deactivate_vmap": True}


def usual_config(text: str) -> Any:
    """What the name of a loss module or a value estimator of TorchRL stands for in an override: the config with all of
    its arguments, which have TorchRL's own values. Any other text stands for itself. Raises ConfigError."""
    if not (is_of_torchrl(text) and IMPORT_PATH.fullmatch(text)):
        return text
    is_estimator = text.startswith(f"{LIBRARY}.objectives.value")
    cls = torchrl_class(text, VALUE_ESTIMATOR if is_estimator else LOSS_MODULE)
    arguments = usual_arguments(cls, OF_CALLS if is_estimator else ())
    arguments |= {name: value for name, value in INSTEAD.items() if name in arguments}
    if "dtarg" in arguments:  # KLPENPPOLoss
        arguments["delay_actor"] = True
    return {"name": "torchrl", "module": text, "arguments": arguments}


def usual_arguments(cls: type, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arguments that a file must say, with the values that TorchRL has for them; those without one are null.

    Left out are networks, what the run knows, and names of keys; and an argument `gamma` without a value, which
    TorchRL's losses only have in order to refuse it.
    """
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        init: Any = vars(base).get("__init__")
        parameters = {} if init is None else inspect.signature(init).parameters
        for name, parameter in parameters.items():
            default = None if parameter.default is parameter.empty else parameter.default
            is_refused = name.endswith("_key") or (name == "gamma" and parameter.default is None)
            is_keyword = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if is_keyword and name != "self" and not is_refused and name not in (*NETWORKS, *KNOWN_BY_THE_RUN):
                found.setdefault(name, list(default) if isinstance(default, tuple) else default)
        if init is not None and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            break
    return {name: value for name, value in found.items() if name not in left_out}


def checked_arguments(cls: type, arguments: dict[str, Any], left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arguments as the class is called with them: lists become tuples. Raises ConfigError, with paths below the
    key `arguments`, unless they are all that it has."""
    usual, faults = usual_arguments(cls, left_out), []
    for name in usual.keys() - arguments.keys():
        message = f"expected a value (that of TorchRL is {shown(usual[name])}), but the key is missing"
        faults.append(ConfigErrorItem(f"arguments.{name}", message))
    for name in arguments.keys() - usual.keys():
        near = nearest(name, usual)
        hint = f"did you mean {near!r}?" if near else f"it has {listed(usual)}"
        message = f"unknown argument of {cls.__name__}; {hint}"
        if name in (*NETWORKS, *KNOWN_BY_THE_RUN, *left_out):
            message = f"expected no such key ({cls.__name__} gets it from the run)"
        faults.append(ConfigErrorItem(f"arguments.{name}", message))
    if faults:
        raise ConfigError(sorted(faults, key=str))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
