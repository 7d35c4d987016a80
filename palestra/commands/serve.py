"""Serves a model or a player of a run to any client of OpenAI's, until a signal ends it."""

import logging
import os
import shutil
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.commands.failures import one_line_errors
from palestra.commands.shell import Trust, mistake, say
from palestra.runtime.limits import lack
from palestra.runtime.signals import exiting_on_signals
from palestra.storage.disk import Folder, writing
from palestra.storage.lock import Lock, take_or_refuse

if TYPE_CHECKING:
    from palestra.serving.guard import Guard

LEAVE_WITHIN_S = 5  # after a signal, for what is being answered
# Clients leave a connection that is idle for some seconds. A server that does so first, or at the same moment, cuts off
# a request that is on its way.
IDLE_S = 75


def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL|RUN", help="the folder of a model, or of a run of text")],
    player: Annotated[str | None, typer.Option(help="which player of the run [the only one]")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="of the run: latest, best, a number, or @ and an opt step [latest]")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="of a model's weights: float32 or bfloat16 [float32]")] = None,
    host: Annotated[
        str, typer.Option(help="the address; any but a loopback one needs PALESTRA_SERVE_KEY")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: a free one, which is printed", min=0, max=65535)] = 8000,
    folder: Annotated[
        Path | None, typer.Option(help="for uploaded files, jobs and tuned models [serving/NAME]")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="compute each request alone: a seed gives the same answer in any company")
    ] = False,
    trust: Trust = False,
) -> None:
    """Serve a model to clients of OpenAI's API: chat completions, files and fine-tuning jobs.

    A server that is started again on its folder has its files, jobs and models, and goes on with the job it was at.
    """
    with one_line_errors():
        from palestra.config import trusting
        from palestra.text.models.extra import library

        for name in ("starlette", "uvicorn", "python_multipart"):
            library(name)
        from palestra.serving.app import Served
        from palestra.serving.computing import device_here
        from palestra.serving.engine import Engine, Models
        from palestra.serving.files import Files
        from palestra.serving.guard import Guard, is_loopback
        from palestra.serving.jobs import Jobs
        from palestra.serving.runner import KEY, Runner
        from palestra.serving.source import facts_of, find_source, keep_source

        with trusting(trust):
            key = os.environ.get(KEY, "").strip() or None
            if key is None and not is_loopback(host):
                message = f"expected a host of this machine alone, such as 127.0.0.1, because {KEY} is not set"
                raise mistake("--host", f"{message}, got {host!r}")
            place = Folder(folder or Path("serving") / model.resolve().name)
            facts = facts_of(model.resolve(), player, checkpoint, dtype)
            is_new = not place.path.exists()
            with _listening(host, port) as listening, ExitStack() as held:
                if not is_new:
                    held.enter_context(_locked(place))
                source = find_source(facts, place)
                first = source.build(device_here())
                with exiting_on_signals(sys.exit), ExitStack() as failed:
                    if is_new:  # only now, so that whatever ends a process that loads leaves nothing
                        held.enter_context(_locked(place))
                        failed.callback(lambda: shutil.rmtree(place.path, ignore_errors=True))
                    keep_source(source, place)
                    jobs, files = Jobs(place.below("jobs")), Files(place.below("files"))
                    failed.pop_all()
                models = Models(source, device_here(), jobs, first)
                threading.excepthook = _end
                served = Served(models, Engine(models, exact), files, jobs, Runner(place, jobs, source.facts.name))
                here, free_port = listening.getsockname()[:2]
                say(f"the model {source.facts.name}; files, jobs and tuned models in {place.path}")
                say(f"serving http://{f'[{here}]' if ':' in here else here}:{free_port}/v1")
                sys.stdout.flush()  # whoever has started the server reads the port
                _answer(Guard(served.app(), key), listening)


def _answer(app: "Guard", listening: socket.socket) -> None:
    """Answer requests until a signal comes."""
    import uvicorn

    from palestra.serving.guard import MOST_NEW, PIECE, Connection, open_more_files

    open_more_files()
    logging.disable()  # libraries tell of each request that is none; what matters is told once
    settings = uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=MOST_NEW,
        h11_max_incomplete_event_size=PIECE,
        timeout_graceful_shutdown=LEAVE_WITHIN_S,
        timeout_keep_alive=IDLE_S,
    )
    uvicorn.Server(settings).run(sockets=[listening])


def _end(args: threading.ExceptHookArgs) -> None:
    """End the server, which would answer nobody without the thread that has failed."""
    from palestra.config import failure
    from palestra.serving.errors import tell

    assert args.exc_value is not None
    tell(f"the server ends, because its thread failed: {lack(args.exc_value) or failure(args.exc_value)}")
    os._exit(1)


def _locked(folder: Folder) -> Lock:
    """Make the folder, and take its lock. Raises RunFolderError if another process has it."""
    with writing(folder.path):
        folder.make_all()
    return take_or_refuse(folder, "lock")


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that waits for connections. Raises ConfigError if the address cannot be had."""
    try:
        kind, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(found[:2], family=kind, backlog=1024)
    except OSError as error:
        raise mistake("--port", f"expected an address that is free, got {host}:{port}: {error}") from error
