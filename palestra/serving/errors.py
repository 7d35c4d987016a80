"""What a server answers to a request that it refuses, and what it tells its own terminal."""

import sys
from functools import lru_cache
from typing import Any

from palestra.config.errors import cut
from palestra.storage.secrets import redacted


class ApiError(Exception):
    """A refusal, in OpenAI's shape: a message of one line, the parameter that it is about, and a status of HTTP.

    retry_after_s: after how many seconds the client may try again; None: the request itself is wrong.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def unknown_parameter(name: str, who: str = "server") -> ApiError:
    """Make the error of a parameter that nobody reads, whatever a request calls it."""
    path = named(name)
    return ApiError(f"{path}: this {who} knows no such parameter", path, code="unsupported_parameter")


def too_large(most: int) -> ApiError:
    return ApiError(f"expected a body of at most {most} bytes, got a larger one", status=413)


@lru_cache(maxsize=1000)
def tell(line: str) -> None:
    """Print a line on stderr: once, because who asks again and again must not fill the disk with it."""
    print(redacted(line), file=sys.stderr, flush=True)


def named(name: str) -> str:
    """Return the name of a parameter as messages have it: in one short line, whatever a request calls it."""
    return ascii(name)[1:-1][:100]


def quoted(value: object) -> str:
    """Return a value of a request as messages quote it, cut to one short line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return cut(ascii(value))
