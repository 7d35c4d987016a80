"""The libraries of the extras `text` and `server`, which are imported only where a model or a server is made."""

from importlib import import_module
from typing import Any

from palestra.config.errors import ConfigErrorItem, MissingExtra

OF_SERVER = ("openai", "starlette", "uvicorn", "python_multipart")


def library(name: str) -> Any:
    """Import a library of one of the extras, or a module of it. Raises MissingExtra."""
    try:
        module = import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        extra = "server" if top in OF_SERVER else "text"
        message = f"expected {top}, which is not installed: pip install 'palestra[{extra}]'"
        raise MissingExtra([ConfigErrorItem("", message)]) from error
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
    return module
