"""A try-out of something of the user's own: it collects faults, each once, and ends at one that hides all others."""

from collections.abc import Callable
from typing import Any, NoReturn

from palestra.config import ConfigErrorItem, failure


class CannotGoOn(Exception):
    """Raised after a fault that makes further checks impossible."""


class TryOut:
    """Tries an object. name: of its class, for messages. faults: in the order in which they were found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: dict[ConfigErrorItem, None] = {}

    def fault(self, method: str, message: str) -> None:
        self.faults.setdefault(ConfigErrorItem(f"{self.name}.{method}", message))

    def end(self, method: str, message: str) -> NoReturn:
        """Note a fault after which nothing can be checked."""
        self.fault(method, message)
        raise CannotGoOn

    def call(self, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the user's own. An exception ends the try-out."""
        try:
            return function(*arguments)
        except Exception as error:
            self.end(method, f"raises {failure(error)}")
