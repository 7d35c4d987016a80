"""What stands before the routes: who may ask, how large a body may be, and what becomes of unexpected errors."""

import hmac
import ipaddress
import json
import sys
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palestra.config import failure
from palestra.runtime.limits import lack
from palestra.serving.errors import ApiError
from palestra.serving.files import MOST_FILE_BYTES
from palestra.storage.secrets import redacted

MOST_BODY_BYTES = 8 << 20
FORM_BYTES = 1 << 20  # of an upload beside the file


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host's name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An application before another one. key: what a client must know; None: nothing, but it must be no web page.

    A web page that somebody reads on this machine reaches the loopback host, too: it says from where it comes, or names
    another host.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self.app, self.key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def noting_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            self._require_allowed(headers)
            await self.app(scope, _bounded(receive, headers, scope["path"]), noting_send)
        except ClientDisconnect:
            pass
        except Exception as error:
            if not isinstance(error, ApiError):
                print(redacted(f"the server failed: {lack(error) or failure(error)}"), file=sys.stderr)
                error = ApiError("the server failed, and goes on", status=500)
            if not has_begun:
                await _refuse(send, error)

    def _require_allowed(self, headers: dict[bytes, bytes]) -> None:
        if self.key is not None:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
                message = "expected the key of this server as a bearer token, got another one or none"
                raise ApiError(message, status=401, code="invalid_api_key")
            return
        host = headers.get(b"host", b"").decode("latin-1").rpartition(":")
        name = (host[0] if host[1] and not host[2].endswith("]") else "".join(host)).strip("[]")
        if b"origin" in headers or not is_loopback(name):
            raise ApiError("expected a request of a program on this machine, got one of a web page", status=403)


def _bounded(receive: Receive, headers: dict[bytes, bytes], path: str) -> Receive:
    """Return what receives a body, and raises ApiError if it is too large."""
    most = MOST_FILE_BYTES + FORM_BYTES if path == "/v1/files" else MOST_BODY_BYTES
    size = 0
    error = ApiError(f"expected a body of at most {most} bytes, got a larger one", status=413)
    said = headers.get(b"content-length", b"0")
    if said.isdigit() and int(said[:20]) > most:
        raise error

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise error
        return message

    return bounded


async def _refuse(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body()).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))  # the rest of its body is not read
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
