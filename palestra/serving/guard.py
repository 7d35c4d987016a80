"""What stands before the routes: who may ask, how large and slow a body may be, and what becomes of errors."""

import asyncio
import hmac
import ipaddress
import json
from time import monotonic

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palestra.config import failure
from palestra.runtime.limits import lack
from palestra.serving.connections import seconds_for
from palestra.serving.errors import ApiError, tell
from palestra.serving.files import MOST_FILE_BYTES

MOST_BODY_BYTES = 8 << 20
FORM_BYTES = 1 << 20  # of an upload beside the file
MOST_HELD_BYTES = 256 << 20  # of the bodies of all requests that are not answered
SMALL_BYTES = 64 << 10  # a body of so many has room also beside as many others as there may be


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host's name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An application before another one. key: what a client must know; None: nothing, but it must be no web page.

    A web page that somebody reads on this machine reaches the loopback host, too: it says from where it comes, or names
    another host. num_held: bytes of the bodies of all requests that are not answered.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self.app, self.key, self.num_held = app, key, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False
        headers = {name.lower(): value for name, value in scope["headers"]}
        body = Body(self, receive, headers, scope["path"])

        async def noting_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            self._require_allowed(headers)
            body.require_size(body.said)
            await self.app(scope, body.receive, noting_send)
        except ClientDisconnect:
            pass
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):  # by which the server ends
            raise
        except BaseException as error:  # what libraries in Rust raise is no Exception
            if not isinstance(error, ApiError):
                tell(f"the server failed: {lack(error) or failure(error)}")
                error = ApiError("the server failed, and goes on", status=500)
            if not has_begun:
                await _refuse(noting_send, error)
        finally:
            self.num_held -= body.size

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


class Body:
    """The body of a request: it is received within limits of size and time.

    said: the bytes that it is said to have; None: nothing is said. size: those that have come.
    """

    def __init__(self, guard: Guard, receive: Receive, headers: dict[bytes, bytes], path: str) -> None:
        self.guard, self._receive, self.size = guard, receive, 0
        self.most = MOST_FILE_BYTES + FORM_BYTES if path == "/v1/files" else MOST_BODY_BYTES
        self.said = int(headers.get(b"content-length", b"0")[:20])  # h11 lets none but digits through
        self.is_whole = self.said == 0 and b"transfer-encoding" not in headers
        self._began_s = monotonic()

    def require_size(self, size: int) -> None:
        if size > self.most:
            raise ApiError(f"expected a body of at most {self.most} bytes, got a larger one", status=413)

    async def receive(self) -> Message:
        """Raises ApiError for a body that is too large or too slow, or one too many."""
        if self.is_whole:
            return await self._receive()  # which may wait until the client leaves
        within_s = seconds_for(self.size)
        try:
            async with asyncio.timeout_at(self._began_s + within_s):
                message = await self._receive()
        except TimeoutError:
            message = f"expected more of a body than {self.size} bytes in {within_s:.3g} s, got no more"
            raise ApiError(message, status=408) from None
        num = len(message.get("body", b""))
        self.size, self.guard.num_held = self.size + num, self.guard.num_held + num
        self.is_whole = not message.get("more_body", False)
        self.require_size(self.size)
        if self.size > SMALL_BYTES and self.guard.num_held > MOST_HELD_BYTES:
            error = f"expected bodies of at most {MOST_HELD_BYTES >> 20} MiB at a time, got more; try again soon"
            raise ApiError(error, status=429, code="rate_limit_exceeded", retry_after_s=1)
        return message


async def _refuse(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body()).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    headers["Connection"] = "close"  # its body is not read
    as_bytes = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": as_bytes})
    await send({"type": "http.response.body", "body": body})
