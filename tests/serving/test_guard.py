"""Covers palestra.serving.errors."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from palestra.serving.errors import named, quoted
from palestra.serving.guard import MOST_BODY_BYTES, Guard, is_loopback
from palestra.storage.secrets import redacted


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    if body == b"boom":
        raise RuntimeError("of a secret: Authorization: Bearer sk-1234567890")
    await Response(body)(scope, receive, send)


def ask(guard: Guard, headers: dict[str, str] | None = None, host: str = "127.0.0.1:80", content: Any = b"x") -> Any:
    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app=guard, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}/v1") as client:
            return await client.post("/echo", headers=headers, content=content)

    return asyncio.run(request())


def test_with_a_key_nobody_is_answered_without_it() -> None:
    guard = Guard(echo, "right")
    assert ask(guard, {"Authorization": "Bearer right"}, host="example.org").status_code == 200
    for given in ("Bearer wrong", "Bearer right ", "right", "Bearer ", "Basic right"):
        found = ask(guard, {"Authorization": given})
        assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
        assert not {"right", "wrong"} & set(found.text.split())
        message = found.json()["error"]["message"]
        assert redacted(message) == message, "clients show it whole"
    assert ask(guard).status_code == 401


@pytest.mark.parametrize(
    ("headers", "host", "status"),
    [
        ({}, "127.0.0.1:8000", 200),
        ({}, "localhost", 200),
        ({}, "[::1]:8000", 200),
        ({}, "[::1]", 200),
        ({"Origin": "http://example.org"}, "127.0.0.1:8000", 403),
        ({"Origin": "null"}, "localhost", 403),
        ({}, "example.org", 403),
        ({}, "127.0.0.1.example.org:8000", 403),
    ],
)
def test_without_a_key_no_web_page_is_answered(headers: dict[str, str], host: str, status: int) -> None:
    assert ask(Guard(echo, None), headers, host).status_code == status


def test_a_body_is_bounded_also_one_that_does_not_say_its_size() -> None:
    async def pieces() -> Any:
        for _ in range(9):
            yield b"x" * (MOST_BODY_BYTES // 8)

    for content in (b"x" * (MOST_BODY_BYTES + 1), pieces()):
        found = ask(Guard(echo, None), content=content)
        assert (found.status_code, found.json()["error"]["type"]) == (413, "invalid_request_error")
    assert len(ask(Guard(echo, None), content=b"x" * MOST_BODY_BYTES).content) == MOST_BODY_BYTES


def test_an_error_that_nobody_expected_is_told_in_one_line_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(Guard(echo, None), content=b"boom").status_code == 500
    told = capsys.readouterr().err
    assert told.startswith("the server failed: RuntimeError")
    assert "sk-1234567890" not in told
    assert len(told.splitlines()) == 1


def test_hosts_of_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.1")))


def test_a_value_is_quoted_in_one_short_line() -> None:
    assert quoted("a\n\x1b[31mé") == r"'a\n\x1b[31m\xe9'"
    assert len(quoted("x" * 1000)) == 80
    assert (quoted({}), quoted([1]), quoted(None)) == ("an object", "a list", "None")
    assert (named("top_k"), named("a\n\x1b[31mé"), len(named("x" * 1000))) == ("top_k", r"a\n\x1b[31m\xe9", 100)
