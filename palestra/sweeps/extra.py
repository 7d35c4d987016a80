"""Optuna is an extra."""

import importlib.util

from palestra.config import MissingExtra


def require_optuna() -> None:
    """Raises MissingExtra."""
    if importlib.util.find_spec("optuna") is None:
        message = "the extra 'optuna' is missing; install it by: pip install 'palestra[optuna]'"
        raise MissingExtra.at("sweep", message)
