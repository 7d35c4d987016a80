"""What stands before the routes: who may connect and ask, how large and slow a body may be, what becomes of errors.

A client owes headers, then a body, then to read its answer; none owes anything for long. The protocol is uvicorn's,
which by itself limits no time but that of idle connections.
"""

import asyncio
import hmac
import ipaddress
import json
import resource
from time import monotonic
from typing import Any

from h11 import LocalProtocolError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from palestra.config import failure
from palestra.runtime.limits import lack
from palestra.serving.errors import ApiError, tell, too_large
from palestra.serving.files import MOST_FILE_BYTES

MOST_CONNECTIONS = 1024
MOST_NEAR = 256  # of one address, or of one network of IPv6, all of which a stranger may have
MOST_NEW = 128  # are accepted before the first of them is looked at
FILES_OF_ONE = 4  # that may be open for each connection
OWED_S, PACE = 10.0, 64 << 10  # a client has some seconds for what it owes, and another one for so many bytes
PIECE = 16 << 10  # bytes that are read at once; headers are at most twice as long
MOST_EARLY_BYTES = 256 << 10  # of a client's next requests, while one is answered


def seconds_for(num_bytes: int) -> float:
    """Return how long a client may take for so many bytes."""
    return OWED_S + num_bytes / PACE


def open_more_files() -> None:
    """Let this process open as many files as all connections need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_OF_ONE * MOST_CONNECTIONS
    if 0 <= soft < wanted:  # a negative one is none
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))


def tell_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell what happens outside of requests in a line, where asyncio would tell it by tracebacks without end."""
    error = context.get("exception")
    tell(context["message"] if error is None else f"{context['message']}: {lack(error) or failure(error)}")


class Connection(H11Protocol):
    """A connection that ends when its client is late, or when a new one needs its place.

    network: what the addresses of one client have in common.

    Of too many, the one ends that has waited longest for headers, else for a body or another request, else the new one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._began_s, self._num_early = self.loop.time(), 0
        self._headers_due: asyncio.TimerHandle | None = None
        self._answer_due: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        host = "" if self.client is None else self.client[0]
        self.network = str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host
        transport.set_write_buffer_limits(high=0)  # so that whatever is not read pauses the writing
        self._await_headers()
        near = [each for each in self.connections if each.network == self.network]
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, files // FILES_OF_ONE)
        for group, num in ((near, MOST_NEAR), (self.connections, most)):
            if len(group) > num:
                last = max((each for each in group if each is not self), key=Connection._idleness)
                (last if last._idleness()[0] else self)._end()

    def _idleness(self) -> tuple[int, float]:
        is_idle = not self._is_asked() or self.cycle.more_body
        return (2 if self._headers_due is not None else int(is_idle), -self._began_s)

    def _is_asked(self) -> bool:
        """Tell whether the headers of a request have come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_headers(self) -> None:
        if self._headers_due is None:
            self._headers_due = self.loop.call_later(OWED_S, self._end)

    def _end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            if not self._is_asked():
                self._num_early = 0
                self._await_headers()
            elif not self.cycle.more_body:
                self._num_early += len(piece)
            try:
                super().data_received(piece)
            except LocalProtocolError:  # of a body that is none, and was answered before it came
                self._end()
            if self._is_asked() and self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None
            if self._num_early > MOST_EARLY_BYTES:
                self._end()
            if self.transport.is_closing():
                return

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_asked() and self.cycle.more_body:  # what comes of it now is dropped
            self._await_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_due = self.loop.call_later(seconds_for(self.transport.get_write_buffer_size()), self._end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_due is not None:
            self._answer_due.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for due in (self._headers_due, self._answer_due):
            if due is not None:
                due.cancel()


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
            if not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self.key}".encode()):
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
            raise too_large(self.most)

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
