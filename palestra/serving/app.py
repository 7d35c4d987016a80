"""The server's routes: what each request of OpenAI's client leads to."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from palestra.config import cut
from palestra.serving.chat import Asked, completion, read_chat, require_room
from palestra.serving.engine import Engine, Models
from palestra.serving.errors import ApiError, quoted, too_large, unknown_parameter
from palestra.serving.files import MOST_FILE_BYTES, Files
from palestra.serving.guard import tell_of_loop
from palestra.serving.jobs import Jobs
from palestra.serving.params import JobParams
from palestra.serving.runner import Runner
from palestra.text.models.model import PromptBeyondContext, PromptRefused

LOOK_S = 0.5  # between looks whether a client that waits is still there


class Served:
    """What the routes share, and the routes themselves, each a method."""

    def __init__(self, models: Models, engine: Engine, files: Files, jobs: Jobs, runner: Runner) -> None:
        self.models, self.engine, self.files, self.jobs, self.runner = models, engine, files, jobs, runner
        self._reader = ThreadPoolExecutor(1, "reader")
        self.name = models.source.facts.name

    def app(self) -> Starlette:
        jobs, job = "/v1/fine_tuning/jobs", "/v1/fine_tuning/jobs/{id}"
        routes = [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{id:path}", self.get_model, methods=["GET"]),
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/files", self.list_files, methods=["GET"]),
            Route("/v1/files", self.add_file, methods=["POST"]),
            Route("/v1/files/{id}", self.get_file, methods=["GET"]),
            Route("/v1/files/{id}", self.remove_file, methods=["DELETE"]),
            Route("/v1/files/{id}/content", self.get_content, methods=["GET"]),
            Route(jobs, self.list_jobs, methods=["GET"]),
            Route(jobs, self.add_job, methods=["POST"]),
            Route(job, self.get_job, methods=["GET"]),
            Route(f"{job}/cancel", self.cancel_job, methods=["POST"]),
            Route(f"{job}/events", self.list_events, methods=["GET"]),
        ]
        handlers: Any = {ApiError: refused, HTTPException: refused_by_starlette, Exception: failed}
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._running)
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(tell_of_loop)
        yield
        await run_in_threadpool(self.runner.stop)

    # ---- models ------------------------------------------------------------------------------------------

    def _model(self, name: str, created_at: int) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created_at, "owned_by": "palestra"}

    def _models(self) -> dict[str, dict[str, Any]]:
        made = {name: self._model(name, job.finished_at or 0) for name, job in self.jobs.made().items()}
        return {self.name: self._model(self.name, self.models.source.facts.created_at), **made}

    def _require_model(self, name: str, status: int) -> None:
        if name != self.name and name not in self.jobs.made():
            raise ApiError(f"model: there is no model {quoted(name)}", "model", status=status, code="model_not_found")

    async def list_models(self, request: Request) -> Response:
        return answer({"object": "list", "data": list(self._models().values())})

    async def get_model(self, request: Request) -> Response:
        name = request.path_params["id"]
        self._require_model(name, status=404)
        return answer(self._models()[name])

    # ---- answers -----------------------------------------------------------------------------------------

    async def complete(self, request: Request) -> Response:
        asked = read_chat(await body_of(request))
        self._require_model(asked.params.model, status=404)
        require_room(asked, self.models.first.network.context)
        answering = asyncio.ensure_future(self._answered(asked))
        try:
            while not (await asyncio.wait([answering], timeout=LOOK_S))[0]:
                if await request.is_disconnected():
                    raise ClientDisconnect
            return answering.result()
        finally:
            answering.cancel()  # if the client has left, nothing of it need be computed

    async def _answered(self, asked: Asked) -> Response:
        model = self.models.first
        try:
            prompt = await asyncio.wrap_future(self._reader.submit(model.read, asked.prompt))
        except PromptRefused as error:
            code = "context_length_exceeded" if isinstance(error, PromptBeyondContext) else "invalid_value"
            raise ApiError(f"messages: {error}", "messages", code=code) from None
        found = await asyncio.wrap_future(self.engine.ask(asked.params.model, prompt, asked.keys(), asked.sampling))

        def answered() -> Response:
            return answer(completion(asked, [model.answer(prompt, each) for each in found], model.encoder))

        return await run_in_threadpool(answered)

    # ---- files -------------------------------------------------------------------------------------------

    async def list_files(self, request: Request) -> Response:
        asked = request.query_params
        found = [file.shown() for file in self.files.listed() if asked.get("purpose", file.purpose) == file.purpose]
        if asked.get("order", "desc") not in ("asc", "desc"):
            raise ApiError(f"order: expected asc or desc, got {quoted(asked['order'])}", "order")
        if asked.get("order", "desc") == "desc":
            found.reverse()
        return answer(page(found, asked, ("order", "purpose"), usual_limit=10_000, most=10_000))

    async def add_file(self, request: Request) -> Response:
        async with request.form(max_files=1, max_fields=8, max_part_size=4096) as form:
            uploaded, purpose = form.get("file"), form.get("purpose")
            if others := [name for name in form if name not in ("file", "purpose")]:
                raise unknown_parameter(others[0])
            if not isinstance(uploaded, UploadFile):
                raise ApiError("file: expected a file, got none", "file", code="missing_required_parameter")
            if purpose != "fine-tune":
                raise ApiError(f"purpose: expected fine-tune, got {quoted(purpose)}", "purpose", code="invalid_value")
            name = (uploaded.filename or "").encode(errors="replace").decode()
            if not 0 < len(name) <= 255:
                raise ApiError("file: expected a name of 1 to 255 characters", "file", code="invalid_value")
            if (uploaded.size or 0) > MOST_FILE_BYTES:
                raise too_large(MOST_FILE_BYTES)
            content = await uploaded.read()
        return answer((await run_in_threadpool(self.files.add, name, "fine-tune", content)).shown())

    async def get_file(self, request: Request) -> Response:
        return answer(self.files.get(request.path_params["id"]).shown())

    async def get_content(self, request: Request) -> Response:
        facts = self.files.get(request.path_params["id"])
        await run_in_threadpool(self.files.check, facts)
        headers = {"X-Content-Type-Options": "nosniff", "Content-Length": str(facts.size)}
        return StreamingResponse(self.files.pieces(facts), media_type="application/octet-stream", headers=headers)

    async def remove_file(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        await run_in_threadpool(self.files.remove, file_id)
        return answer({"id": file_id, "object": "file", "deleted": True})

    # ---- jobs --------------------------------------------------------------------------------------------

    async def add_job(self, request: Request) -> Response:
        params = JobParams.read(await body_of(request))
        method = params.tuning()
        self._require_model(params.model, status=400)
        file = self.files.get(params.training_file, "training_file")
        of = self.jobs.made().get(params.model)
        said = params.model_dump(include={"model", "training_file", "suffix", "metadata"})

        def add() -> dict[str, Any]:
            begins_with = None if of is None else of.id
            return self.jobs.add(self.files.content(file), method=method, begins_with=begins_with, **said).shown()

        return answer(await run_in_threadpool(add))

    async def list_jobs(self, request: Request) -> Response:
        asked = request.query_params
        keys = {name: key[1] for name in asked if (key := re.fullmatch(r"metadata\[(.*)\]", name, re.DOTALL))}
        wanted = {key: asked[name] for name, key in keys.items()}
        if asked.get("metadata", "null") != "null":
            raise ApiError("metadata: expected metadata[key]=text, or metadata=null", "metadata", code="invalid_value")
        found = [
            job.shown()
            for job in reversed(self.jobs.listed())
            if (job.metadata is None or "metadata" not in asked) and wanted.items() <= (job.metadata or {}).items()
        ]
        return answer(page(found, asked, ("metadata", *keys)))

    async def get_job(self, request: Request) -> Response:
        return answer(self.jobs.get(request.path_params["id"]).shown())

    async def cancel_job(self, request: Request) -> Response:
        return answer((await run_in_threadpool(self.runner.cancel, request.path_params["id"])).shown())

    async def list_events(self, request: Request) -> Response:
        return answer(page(self.jobs.get(request.path_params["id"]).shown_events(), request.query_params))


# ---- bodies ------------------------------------------------------------------------------------------


def answer(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return data as JSON in ASCII, so that no text can be one that nothing encodes."""
    return Response(json.dumps(data), status, headers, media_type="application/json")


async def body_of(request: Request) -> dict[str, Any]:
    """Read the body of a request, a JSON object. Raises ApiError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(f"expected a body of the type application/json, got {quoted(kind)}", status=415)
    try:
        data = json.loads(await request.body(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ApiError("expected a JSON object, got brackets nested too deeply") from None
    except ValueError as error:
        raise ApiError(f"expected a JSON object, got other text ({cut(str(error), 100)})") from None
    if not isinstance(data, dict):
        raise ApiError(f"expected a JSON object, got {quoted(data)}")
    return data


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


async def refused(request: Request, error: ApiError) -> Response:
    return answer(error.body(), error.status, error.headers)


async def failed(request: Request, error: Exception) -> Response:
    """Give an error that nobody expected OpenAI's shape, before palestra.serving.guard tells the server's terminal."""
    return answer(ApiError("the server failed, and goes on", status=500).body(), 500)


async def refused_by_starlette(request: Request, error: HTTPException) -> Response:
    """Give an error of Starlette OpenAI's shape: no such route, another method, or a form that is none."""
    words = {404: "there is no such address on this server", 405: "this address knows no such method"}
    found = ApiError(words.get(error.status_code, str(error.detail)), status=error.status_code)
    return answer(found.body(), error.status_code, dict(error.headers or {}))


# ---- lists in pages -------------------------------------------------------------------------------------


def page(
    items: Sequence[Mapping[str, Any]],
    asked: Mapping[str, str],
    others: Sequence[str] = (),
    usual_limit: int = 20,
    most: int = 100,
) -> dict[str, Any]:
    """Return the part of a list for which a query asks by `after`, an id, and `limit`.

    others: the names of other parameters that the query may have. Raises ApiError, also for one that nobody reads.
    """
    if unknown := [name for name in asked if name not in ("after", "limit", *others)]:
        raise unknown_parameter(unknown[0], "list")
    start, after = 0, asked.get("after")
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(f"after: expected the id of an entry of this list, got {quoted(after)}", "after")
        start = ids.index(after) + 1
    text = asked.get("limit", str(usual_limit))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise ApiError(f"limit: expected an integer from 1 to {most}, got {quoted(text)}", "limit")
    found = list(items[start : start + int(text)])
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": start + len(found) < len(items),
    }
