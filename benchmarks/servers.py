"""Models behind servers: what ours answers beside the engine in process, and what calls cost that are kept.

    python -m benchmarks.servers [--quick] [--json FILE]

README.md says what is counted, and how.
"""

import argparse
import asyncio
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measuring import ROOT, Row, alternate, rate_of, tell
from palestra.randomness import base_key
from palestra.storage.disk import Folder
from palestra.text.models.model import Message, Request, SamplingConfig
from palestra.text.models.sources import NewConfig
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerConfig
from palestra.text.servers.ledger import Cost, Journal
from palestra.text.servers.model import ServerModel

NUM_CLIENTS, MOST_TOKENS = 16, 64
NUM_OUT, DELAY_S = 64, 0.2
SIZES = {"num_layers": 4, "width": 256, "mlp_width": 1024, "context": 256, "init_std": 0.02}
SAMPLING = SamplingConfig(temperature=1.0, top_p=None, top_k=None, max_tokens=MOST_TOKENS)
REPLY: dict[str, Any] = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22},
}


def prompt_of(number: int) -> tuple[Message, ...]:
    return (Message("user", f"Is the letter {number} in the string {number * 7919}?"),)


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """A server in a process of its own, which prints its URL. Gives the URL."""
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = (re.search(r"http://\S+", line) for line in process.stdout)
        yield next(each[0] for each in found if each is not None)
    finally:
        process.kill()
        process.communicate()


# ---- our server ------------------------------------------------------------------------------------------


def rows_of_serving(folder: Path, min_seconds: float, num_repeats: int) -> list[Row]:
    """Tokens per second that 16 clients get, each with one request at a time, beside as many in one batch."""
    import openai

    config = NewConfig(name="new", **(NewConfig.usual | SIZES))
    model = config.build(base_key(0, "model"), torch.device("cpu"))
    model.export(folder / "model")
    numbers = count()

    def in_process() -> float:
        requests = [Request(prompt_of(n), base_key(n, "key")) for n in (next(numbers) for _ in range(NUM_CLIENTS))]
        return float(sum(len(each.ids) for each in model.sample(requests, SAMPLING)))

    with started(
        ["palestra", "serve", str(folder / "model"), "--port", "0", "--folder", str(folder / "served")]
    ) as url:
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

        def ask(until: float) -> float:
            drawn = 0.0
            while time.perf_counter() < until:
                messages: Any = [{"role": each.role, "content": each.content} for each in prompt_of(next(numbers))]
                reply = client.chat.completions.create(
                    model="model", messages=messages, max_completion_tokens=MOST_TOKENS, seed=1
                )
                drawn += reply.usage.completion_tokens
            return drawn

        def served() -> float:
            with ThreadPoolExecutor(NUM_CLIENTS) as pool:
                until = time.perf_counter() + max(min_seconds, 0.5)
                return sum(pool.map(ask, [until] * NUM_CLIENTS))

        in_process()
        served()
        works = {"engine in process": rate_of(in_process, min_seconds), "palestra serve": rate_of(served, 0.0)}
        values = alternate(works, num_repeats)
    return Row.of("serving", f"{NUM_CLIENTS} clients", "tokens/s", 1, values, "engine in process")


# ---- our client ------------------------------------------------------------------------------------------


def rows_of_calls(folder: Path, num_calls: int, num_repeats: int) -> list[Row]:
    """Answers per second of a server that takes 200 ms for each, at 64 calls at a time."""
    numbers, journals = count(), count()

    def rate(is_kept: bool) -> float:
        with ExitStack() as stack:
            if not is_kept:
                stack.enter_context(patch.object(Journal, "write", not_written))
            calls = Calls(lambda: False)
            keys = ServerConfig.usual | {"url": url, "model": "slow", "max_concurrent": NUM_OUT}
            model = ServerModel("player", ServerConfig(name="server", **keys), calls)
            stack.enter_context(
                calls.opened(Folder(folder).below(f"calls-{next(journals)}"), "0" * 32, Cost(None, None), 1.0)
            )
            stack.enter_context(calls.kept_in("0"))
            requests = [Request(prompt_of(next(numbers)), 1) for _ in range(num_calls)]
            model.sample(requests[:NUM_OUT], SAMPLING)  # connections are made
            started_s = time.perf_counter()
            model.sample(requests[NUM_OUT:], SAMPLING)
            return (num_calls - NUM_OUT) / (time.perf_counter() - started_s)

    with started(["benchmarks.servers", "--slow"]) as url:
        contenders: dict[str, Callable[[], float]] = {
            "not kept": lambda: rate(is_kept=False),
            "kept": lambda: rate(is_kept=True),
        }
        values = alternate(contenders, num_repeats)
    told, ideal = f"{NUM_OUT} at a time, {DELAY_S:g} s each", NUM_OUT / DELAY_S
    beside = {"ideal rate": [ideal] * num_repeats, "kept": values["kept"]}
    rows = Row.of("calls", told, "answers/s", 1, values, "not kept")
    return rows + Row.of("calls", told, "answers/s", 1, beside, "ideal rate")


async def not_written(journal: Journal, line: Any) -> None:
    """Stand for `Journal.write` where nothing is kept."""


def serve_slowly() -> None:
    """Answer every call after 200 ms, until the process is killed."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def complete(request: HttpRequest) -> JSONResponse:
        await request.body()
        await asyncio.sleep(DELAY_S)
        return JSONResponse(REPLY)

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write every measured value to this file, too")
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.slow:
        return serve_slowly()
    torch.set_num_threads(1)
    min_seconds, num_repeats = (0.0, 1) if arguments.quick else (5.0, 5)
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of_serving(Path(folder), min_seconds, num_repeats)
        rows += rows_of_calls(Path(folder), NUM_OUT * (2 if arguments.quick else 20), num_repeats)
    tell(rows, arguments.json)
    return None


if __name__ == "__main__":
    main()
