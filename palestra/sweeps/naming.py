"""Short names for the keys of a space and short texts for values, where there is little room."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from palestra.config import ConfigError, load_yaml
from palestra.config.rendering import inline_flow

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

VAGUE = {"name", "value", "initial", "final", "num_steps"}  # words of keys that say nothing alone


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return by dotted key the last word of it that says what it is, or as many as make it the only one."""
    listed = list(keys)
    told = {}
    for key in listed:
        words = key.split(".")
        while len(words) > 1 and words[-1] in VAGUE:
            words.pop()
        told[key] = ".".join(words)
    shared = [text for text, count in Counter(told.values()).items() if count > 1]
    told = {key: key if text in shared else text for key, text in told.items()}
    found = {}
    for key, text in told.items():
        words = text.split(".")
        says_little = [word in VAGUE or word.isdigit() for word in words]
        endings = [".".join(words[place:]) for place in reversed(range(len(words))) if not says_little[place]]
        others = [f".{other}" for other in told.values() if other != text]
        found[key] = next((e for e in endings if not any(other.endswith(f".{e}") for other in others)), text)
    return found


# ---- values ----------------------------------------------------------------------------------------------


def parameter_text(value: Any) -> str:
    """Return a value as YAML would write it, and texts as they are; floats rounded."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else inline_flow(value)


@lru_cache(maxsize=256, typed=True)
def choice_texts(*stored: Any) -> Mapping[Any, str]:
    """Return a short text for each value of a choice, as the study stores it.

    The text of a mapping is its name and what differs among the mappings of this name.
    """
    meant = [_meant(value) for value in stored]
    mappings = [value for value in meant if isinstance(value, dict) and "name" in value]
    texts = [_mapping_text(value, mappings) if value in mappings else parameter_text(value) for value in meant]
    if len(set(texts)) < len(texts):
        texts = list(map(parameter_text, meant))
    return dict(zip(stored, texts, strict=True))


def _meant(stored: Any) -> Any:
    """Return what a stored value stands for: a mapping if it is the text of one."""
    if isinstance(stored, str) and stored.startswith("{"):
        with suppress(ConfigError):
            return load_yaml(stored)
    return stored


def _mapping_text(value: Mapping[str, Any], mappings: Iterable[Mapping[str, Any]]) -> str:
    """Return a mapping in short, as "linear initial 0.001, num_steps 5000" or "constant 0.1"."""
    alike = [mapping for mapping in mappings if mapping["name"] == value["name"]]
    keys = [key for key in value if any(mapping.get(key) != value[key] for mapping in alike)]
    told = [parameter_text(value[key]) if len(keys) == 1 else f"{key} {parameter_text(value[key])}" for key in keys]
    return " ".join([str(value["name"]), ", ".join(told)]).strip()


def point_texts(trial: "FrozenTrial") -> dict[str, str]:
    """Return the values of a trial's point in short, by dotted key, without keys that have one value in all trials."""
    varied = {key: each for key, each in trial.distributions.items() if not each.single()}
    return {key: short_value(trial.params[key], distribution) for key, distribution in varied.items()}


def short_value(value: Any, distribution: "BaseDistribution") -> str:
    """Return a value of a point in short."""
    choices = getattr(distribution, "choices", ())
    return choice_texts(*choices)[value] if choices else parameter_text(value)
