"""Connections of clients. A client owes headers, then a body, then to read its answer; none owes anything for long.

The protocol is uvicorn's, which by itself limits no time but that of idle connections.
"""

import asyncio
import ipaddress
import resource
from typing import Any

from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from palestra.config import failure
from palestra.runtime.limits import lack
from palestra.serving.errors import tell

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

    Of too many, the one ends that has waited longest for headers, else for a body or another request, else the new one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._began_s, self._num_early = self.loop.time(), 0
        self._headers_due: asyncio.TimerHandle | None = None
        self._answer_due: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self.network = _network(self.client)
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


def _network(client: tuple[str, int] | None) -> str:
    """Return what the addresses of one client have in common."""
    host = "" if client is None else client[0]
    return str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host
