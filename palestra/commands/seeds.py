"""The option --seeds."""

import re

from palestra.config import ConfigError, ConfigErrorItem


def parse_seeds(text: str) -> list[int]:
    """The seeds that a text lists: 0..4, or 0,3,7. Raises ConfigError."""
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = int(match[1]), int(match[2])
        if first <= last:
            return list(range(first, last + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        return [int(seed) for seed in text.split(",")]
    raise ConfigError([ConfigErrorItem("--seeds", f"expected seeds as 0..4 or 0,3,7, got {text!r}")])
