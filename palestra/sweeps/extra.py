"""The check for Optuna, which is an extra."""

import importlib.util

from palestra.config import MissingExtra


def require_optuna() -> None:
    """Raise MissingExtra if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        message = "the extra 'optuna' is missing; install it by: pip install 'palestra[optuna]'"
        raise MissingExtra.at("sweep", message)
