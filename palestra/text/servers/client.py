"""Talks to a server with OpenAI's interface, in a thread of its own; attempts are counted and repeated here alone.

What leaves this module, errors and answers alike, has the key of the server nowhere in it.
"""

import asyncio
import json
import math
import os
import random
import re
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import proxy_bypass

from palestra.config import ConfigError, cut
from palestra.storage.secrets import redacted
from palestra.text.models.extra import library
from palestra.text.servers.config import ServerConfig

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # between attempts, unless the server says when to come again
LONGEST_OBEYED_S = 86_400.0  # of Retry-After
CHECK_S = 10.0  # how long a server may take to say which models it has
MOST_REPLY_BYTES = 64 << 20  # of a reply, which is held in memory; long answers are a few MiB
MOST_WORDS = 300  # characters of a server's words in an error
LEAST_HIDDEN = 6  # characters of a key that is hidden; shorter ones, as "EMPTY", occur in ordinary words
FILES_OF_SSL = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
# The headers that a server gets beside the key; variables of the environment may name others.
SENT = re.compile("accept(-encoding)?|connection|content-(length|type)|host|transfer-encoding|user-agent")


class CallFailed(Exception):
    """A server gives no answer that can be used. The message is one line with its own words."""


class OneAtATime(Exception):
    """A server gives one answer where several were asked for at once. The message is one line."""


class ReplyRefused(Exception):
    """A reply that is not read to its end, because that would need too much memory. The message is one line."""


class Background:
    """A thread with an event loop, in which everything is sent and received; it starts with the first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, task: Coroutine[Any, Any, T]) -> Future[T]:
        """Let a coroutine run there."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="servers", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(task, self._loop)

    def cancel(self) -> None:
        """End what still runs there."""
        if self._loop is not None:
            with suppress(Exception):
                self.start(_cancel_all()).result(5.0)

    def close(self) -> None:
        """End what still runs, and the thread."""
        if (loop := self._loop) is not None:
            self.cancel()
            with suppress(Exception):
                self.start(loop.shutdown_default_executor()).result(5.0)
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Client:
    """The client of one model's server.

    openai: the official client, without retries of its own. num_attempts: how often a request is made in all. errors:
    the exceptions of an attempt that has failed. slots: for the calls that may be out at one time.
    """

    def __init__(self, config: ServerConfig, background: Background) -> None:
        """Make the client. Raises MissingExtra, ConfigError at the key `key`, if its variable is not set."""
        openai, httpx = library("openai"), library("httpx2")
        self.config, self.num_attempts, self.start = config, config.num_attempts, background.start
        self._key = None if config.key is None else os.environ.get(config.key, "").strip()
        if config.key is not None and not self._key:
            message = f"expected the environment variable {config.key} with the key of {config.url}, which is not set"
            raise ConfigError.at("key", message)
        if not (self._key or "").isascii() or any(each.isspace() for each in self._key or ""):
            message = f"expected a key of letters, digits and signs in the environment variable {config.key}"
            raise ConfigError.at("key", f"{message}, got other characters")
        self.slots = asyncio.Semaphore(config.max_concurrent)
        self._raw = httpx.Response  # as it came: what is in it is read here
        self.errors = (openai.APIError, httpx.HTTPError, TimeoutError, ReplyRefused)
        host = urlsplit(config.url).netloc.rpartition("@")[2]
        self._uses_proxies = not proxy_bypass(host)  # else one that cannot be used would be in the way
        self._certificates = self._read_certificates()
        arguments = {"api_key": "none", "base_url": config.url, "max_retries": 0, "timeout": config.timeout_s}
        try:
            web = self._web()
        except (ImportError, ValueError) as error:
            message = "expected a proxy in the environment (ALL_PROXY, HTTP_PROXY, HTTPS_PROXY) that can be used, or"
            raise ConfigError.at("url", f"{message} {host} in NO_PROXY, got: {self.shortened(error)}") from None
        self.openai = openai.AsyncOpenAI(http_client=web, **arguments)
        self._copies: list[Any] = []  # of it
        self._free: list[Any] = []  # those of them that no call has
        self._is_next = asyncio.Lock()
        self.is_one_at_a_time = False  # whether the server is known to give one answer to a request

    def _read_certificates(self) -> ssl.SSLContext:
        try:
            return library("httpx2").create_ssl_context()
        except OSError as error:
            if not self.config.url.startswith("https:"):
                return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which trusts nobody; none is needed
            found = [f"{name}={os.environ[name]}" for name in FILES_OF_SSL if name in os.environ]
            message = f"expected files that can be opened for certificates, got {', '.join(found) or 'others'}"
            raise ConfigError.at("url", f"{message}: {self.shortened(error)}") from None

    def _web(self) -> Any:
        """Make what holds connections. Certificates and proxies follow from the environment."""
        options: dict[str, Any] = {"timeout": self.config.timeout_s, "headers": {"accept-encoding": "identity"}}
        options |= {"trust_env": self._uses_proxies, "verify": self._certificates, "follow_redirects": False}
        return library("httpx2").AsyncClient(event_hooks={"request": [self._strip], "response": [_bound]}, **options)

    async def _strip(self, request: Any) -> None:
        """Let a request have no header but those that it needs, and the key that the config names."""
        kept = [each for each in request.headers.multi_items() if SENT.fullmatch(each[0])]
        request.headers = type(request.headers)(kept)
        if self._key:
            request.headers["authorization"] = f"Bearer {self._key}"

    def close(self) -> None:
        """Close its connections."""
        with suppress(Exception):
            self.start(self._close()).result(2.0)

    async def _close(self) -> None:
        await asyncio.gather(*(each.close() for each in (self.openai, *self._copies)), return_exceptions=True)

    # ---- requests ------------------------------------------------------------------------------------------

    async def complete(self, body: dict[str, Any]) -> Any:
        """Ask for a chat completion once, and return the JSON of the reply, or its text if it is none.

        Raises what the official client raises, TimeoutError once the time of an attempt is over.
        """
        # one request begins in a round of the event loop: else those of all calls that begin at one moment are made
        # side by side, step by step, and the first is sent when the last is ready
        async with self._is_next:
            await asyncio.sleep(0)
        own = self._free.pop() if self._free else self._copy()
        try:
            async with asyncio.timeout(self.config.timeout_s):
                reply = await own.post(f"{self.config.url}/chat/completions", body=body, cast_to=self._raw)
        finally:
            self._free.append(own)
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            return reply.content.decode(errors="replace")

    def _copy(self) -> Any:
        """Make the official client of one more call that is out.

        Each has one of its own, and so one connection: the pool of a client looks at all of its connections for every
        request, which costs more than the request itself where many are out.
        """
        self._copies.append(self.openai.with_options(http_client=self._web()))
        return self._copies[-1]

    async def require_model(self, model: str) -> None:
        """Raise ConfigError, at `url` or `model`, if the server cannot be reached or says that it has no such model.

        A server without this route may have the model all the same.
        """
        openai = library("openai")
        path = f"/models/{quote(model, safe='')}"
        try:
            async with asyncio.timeout(CHECK_S):
                await self.openai.get(path, cast_to=self._raw)
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                variable = "null" if self.config.key is None else f"the variable {self.config.key}"
                raise ConfigError.at("key", f"expected a key that {self.config.url} accepts, got {variable}: "
                                     f"{self.words(error)}") from None  # fmt: skip
            if error.status_code != 404:
                return
            there, url = await self._models("/models"), self.config.url
            if there is None and await self._models("/v1/models") is not None:
                raise ConfigError.at("url", f"expected where the interface begins, {url}/v1, got {url}") from None
            if there is not None and model not in there:
                known = ", ".join(self.shortened(each) for each in there[:20]) or "none"
                raise ConfigError.at("model", f"expected a model of {url} ({known}), got {model!r}") from None
        except (openai.APIConnectionError, TimeoutError, ReplyRefused) as error:
            message = f"expected a server that can be reached, got {self.config.url}: {self.words(error)}"
            raise ConfigError.at("url", message) from None

    async def _models(self, path: str) -> list[str] | None:
        """Return the names of the server's models; None if it does not list them at this path."""
        try:
            async with asyncio.timeout(CHECK_S):
                reply = await self.openai.get(path, cast_to=self._raw)
            found = [each["id"] for each in json.loads(reply.content)["data"]]
        except Exception:  # whatever it says instead
            return None
        return found if all(isinstance(each, str) for each in found) else None

    async def pause(self, error: BaseException, number: int, name: str = "") -> None:
        """Wait before the next attempt: as long as the server says, else longer each time.

        number: of the attempt that failed with `error`, from 0. name: of what is attempted, by which pauses differ.
        """
        longest = min(FIRST_PAUSE_S * 2 ** min(number, 30), LONGEST_PAUSE_S)
        told = retry_after_s(error)
        own = longest * random.Random(f"{name} {number}").uniform(0.5, 1.0)
        await asyncio.sleep(own if told is None else told)

    # ---- words ---------------------------------------------------------------------------------------------

    def hide(self, text: str) -> str:
        """Put *** in the place of the key, wherever a text has it."""
        if self._key is not None and len(self._key) >= LEAST_HIDDEN:
            for form in (self._key, quote(self._key, safe=""), json.dumps(self._key)[1:-1]):
                text = text.replace(form, "***")
        return text

    def shortened(self, text: Any) -> str:
        """Return a server's words in one line, without secrets and control characters."""
        line = " ".join(redacted(self.hide(str(text))[:10_000]).split())
        return "".join(each if each.isprintable() else "?" for each in line)[:MOST_WORDS]

    def words(self, error: BaseException) -> str:
        """Say in one line why a request failed: in the server's words where it has said some."""
        status = getattr(error, "status_code", None)
        if isinstance(error, TimeoutError) or type(error).__name__ == "APITimeoutError":
            return f"no answer within {self.config.timeout_s:g} s"
        if status is None:
            if isinstance(error, ReplyRefused):
                return self.shortened(error)
            cause = error.__cause__
            return self.shortened(f"{type(cause or error).__name__}: {cause or error}").rstrip(": ")
        body = getattr(error, "body", None)
        told = body.get("message") or body.get("detail") if isinstance(body, dict) else body
        if status < 400 and (place := _header(error, "location")):
            told = f"redirects are not followed, here to {place}"
        again = f" (to be asked again after {math.ceil(wait):,} s)" if (wait := retry_after_s(error)) else ""
        return self.shortened(f"HTTP {status}{again}: {told or getattr(error, 'message', '')}")


async def _bound(response: Any) -> None:
    """Let the reading of a reply end with ReplyRefused once it is too long.

    One that is compressed, which nobody asks for, is not read at all: a few bytes can stand for gigabytes.
    """
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise ReplyRefused(f"expected a reply that is not compressed, got {cut(encoding, 100)!r}")
    stream = response.stream

    class Bounded(library("httpx2").AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in stream:
                size += len(part)
                if size > MOST_REPLY_BYTES:
                    raise ReplyRefused(f"expected a reply of at most {MOST_REPLY_BYTES:,} bytes, got a longer one")
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Bounded()


def _header(error: BaseException, name: str) -> Any:
    """Return a header of the reply that is an error; None without one."""
    return getattr(getattr(error, "response", None), "headers", {}).get(name)


def retry_after_s(error: BaseException) -> float | None:
    """Return after how many seconds a server wants to be asked again, if it says so."""
    said = _header(error, "retry-after")
    ways: tuple[Callable[[Any], float], ...] = (float, lambda date: parsedate_to_datetime(date).timestamp() - time())
    for seconds_of in ways:
        with suppress(ValueError, TypeError, OverflowError):
            seconds = seconds_of(said)
            return min(max(seconds, 0.0), LONGEST_OBEYED_S) if math.isfinite(seconds) else None
    return None


def reached(error: BaseException) -> Literal["never", "perhaps", "refused"]:
    """Tell whether a request that failed may have been carried out all the same, or was refused for good."""
    if (status := getattr(error, "status_code", None)) is not None:
        if status == 429:
            return "never"
        return "perhaps" if status in (408, 409) or status >= 500 else "refused"
    is_unsent = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
    return "never" if is_unsent else "perhaps"


def is_final(error: BaseException) -> bool:
    """Tell whether a request that failed would fail again."""
    return reached(error) == "refused" or isinstance(error, ReplyRefused)


def texts_of(reply: Any, num: int) -> Sequence[tuple[str, Literal["stop", "length"]]]:
    """Return the answers in the JSON of a chat completion, each with why it ended.

    An answer that was refused or filtered is empty. Raises OneAtATime for a reply with fewer answers, or with some that
    have the same index; ValueError, in the server's words, for one without answers, or with too many.
    """
    if not isinstance(reply, dict) or not isinstance(choices := reply.get("choices"), list):
        told = reply if isinstance(reply, str) else json.dumps(reply)
        raise ValueError(f"expected a chat completion, got {told or 'nothing'}")
    indices = [each.get("index", place) if isinstance(each, dict) else place for place, each in enumerate(choices)]
    if num > 1 and (0 < len(choices) < num or (len(choices) == num and any(n not in indices for n in range(num)))):
        raise OneAtATime(f"expected {num} answers with the indices 0 to {num - 1}, got {len(choices)}, {indices}")
    if len(choices) != num:
        raise ValueError(f"expected {num} answers, got {len(choices)}")
    return [_text_of(choices[indices.index(place) if num > 1 else 0]) for place in range(num)]


def _text_of(choice: Any) -> tuple[str, Literal["stop", "length"]]:
    message = choice.get("message") if isinstance(choice, dict) else None
    content = message.get("content") if isinstance(message, dict) else 0
    ended = choice.get("finish_reason") if isinstance(choice, dict) else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if content is None or ended == "content_filter":
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"expected an answer, got none: {json.dumps(choice)}")
    text = content.encode(errors="replace").decode()  # JSON can name halves of characters, which no file can hold
    return text, "length" if str(ended).lower() in ("length", "max_tokens") else "stop"
