"""Reads the option --seeds."""

import re

from palestra.config import ConfigError
from palestra.sweeps.config import MOST_SEEDS


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text lists: 0..4, or 0,3,7. Raises ConfigError."""
    if match := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", text):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise _error(f"expected the smaller seed first, {last}..{first}, got {text!r}")
        if last - first >= MOST_SEEDS:
            raise _error(f"expected at most {MOST_SEEDS:,} seeds, got {text!r}")
        return list(range(first, last + 1))
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", text):
        seeds = [int(seed) for seed in text.split(",")]
        if len(set(seeds)) < len(seeds):
            raise _error(f"expected each seed once, got {text!r}")
        return seeds
    raise _error(f"expected seeds as 0..4 or 0,3,7, got {text!r}")


def _error(message: str) -> ConfigError:
    return ConfigError.at("--seeds", message)
