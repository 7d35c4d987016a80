"""Reads the options that list numbers: --seeds, --epochs."""

import re

from palestra.config import ConfigError
from palestra.sweeps.config import MOST_SEEDS


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text lists: 0..4, or 0,3,7. Raises ConfigError."""
    return parse_numbers(text, "--seeds", "seed")


def parse_numbers(text: str, option: str, what: str) -> list[int]:
    """Return the numbers that the text of an option lists: 0..4, or 0,3,7. what: is numbered. Raises ConfigError."""
    if match := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", text):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise ConfigError.at(option, f"expected the smaller {what} first, {last}..{first}, got {text!r}")
        if last - first >= MOST_SEEDS:
            raise ConfigError.at(option, f"expected at most {MOST_SEEDS:,} {what}s, got {text!r}")
        return list(range(first, last + 1))
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", text):
        numbers = [int(number) for number in text.split(",")]
        if len(set(numbers)) < len(numbers):
            raise ConfigError.at(option, f"expected each {what} once, got {text!r}")
        return numbers
    raise ConfigError.at(option, f"expected {what}s as 0..4 or 0,3,7, got {text!r}")
