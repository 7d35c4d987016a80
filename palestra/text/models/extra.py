"""The libraries of the extra `text`, which are imported only when a model is made."""

from importlib import import_module
from typing import Any

from palestra.config.errors import ConfigErrorItem, MissingExtra


def library(name: str) -> Any:
    """Import transformers, tokenizers, peft or pyarrow, or a module of theirs. Raises MissingExtra."""
    try:
        module = import_module(name)
    except ImportError as error:
        message = f"expected {name.partition('.')[0]}, which is not installed: pip install 'palestra[text]'"
        raise MissingExtra([ConfigErrorItem("", message)]) from error
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
    return module
