"""`palestra serve`, asked by OpenAI's own client.

All in one file, because all share one process of a server.

Covers palestra.commands.serve, palestra.serving.app, palestra.serving.chat, palestra.serving.computing,
palestra.serving.files, palestra.serving.jobs, palestra.serving.params, palestra.serving.runner,
palestra.serving.work.
"""

import http.client
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from palestra.cli import main
from palestra.randomness import base_key, fold_number
from palestra.serving import computing, runner
from palestra.serving.chat import ChatParams, completion, read_chat
from palestra.serving.errors import ApiError
from palestra.serving.jobs import STATE, Jobs, Method
from palestra.serving.params import JobParams, expected
from palestra.storage.disk import Folder
from palestra.text.models.local import LocalModel
from palestra.text.models.model import Answer, Message, Request, SamplingConfig
from palestra.text.models.sources import FolderConfig
from palestra.text.servers.job_files import Decision, Pair, preference_file, supervised_file
from tests.serving.servers import Server
from tests.text.runs import made_folder

PROMPT = (Message("user", "hi"),)
MESSAGES = [{"role": "user", "content": "hi"}]
CONTENT = supervised_file([Decision((Message("user", f"{number}?"),), "yes") for number in range(20)])
METHOD = Method(name="supervised", n_epochs=2, batch_size=8, learning_rate_multiplier=10.0, beta=None, seed=3)
OVER = ("succeeded", "failed", "cancelled")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that computes each request alone."""
    started = Server(base, tmp_path_factory.mktemp("server") / "folder", "--exact")
    yield started
    started.kill()


def local(base: Path) -> LocalModel:
    config = FolderConfig(name="folder", path=str(base), adapter=None, dtype="float32")
    return config.build(0, torch.device("cpu"))


def sampling(**changed: Any) -> SamplingConfig:
    return SamplingConfig(**{"temperature": 1.0, "top_p": None, "top_k": None, "max_tokens": 6, **changed})


def texts(completion: Any) -> list[str]:
    return [choice.message.content for choice in completion.choices]


def hyperparameters(method: Method = METHOD) -> dict[str, Any]:
    names = {"n_epochs", "batch_size", "learning_rate_multiplier"} | ({"beta"} if method.name == "dpo" else set())
    return {"type": method.name, method.name: {"hyperparameters": method.model_dump(include=names)}}


def begin_job(server: Server, content: bytes = CONTENT, **said: Any) -> Any:
    usual: dict[str, Any] = {"model": "base", "seed": METHOD.seed, "method": hyperparameters()}
    return server.client.fine_tuning.jobs.create(training_file=server.upload(content), **{**usual, **said})


def await_job(server: Server, job_id: str, is_done: Callable[[Any], bool] = lambda job: job.status in OVER) -> Any:
    end_s = time.monotonic() + 60
    while not is_done(job := server.client.fine_tuning.jobs.retrieve(job_id)):
        assert time.monotonic() < end_s, job
        time.sleep(0.02)
    return job


def weights(server: Server, job_id: str) -> dict[str, Tensor]:
    return load_file(Path(server.command[-2]) / "jobs" / job_id / "model.safetensors")


def tuned(model: LocalModel, method: Method = METHOD, content: bytes = CONTENT) -> dict[str, Tensor]:
    tuning = method.begin(model, content)
    while not tuning.is_done:
        tuning.step()
    found: dict[str, Tensor] = model.state_dict()["weights"]
    return found


def are_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- answers -----------------------------------------------------------------------------------------


def test_an_answer_is_that_of_the_model_in_process(server: Server, base: Path) -> None:
    """Its tokens, their probabilities, why it ended, and how many there are."""
    requests = [Request(PROMPT, fold_number(base_key(7, "serve"), number)) for number in range(3)]
    expected = local(base).sample(requests, sampling(temperature=0.5, top_p=0.9))
    found = server.ask(n=3, seed=7, temperature=0.5, top_p=0.9, logprobs=True)
    assert texts(found) == [answer.text for answer in expected]
    assert [choice.finish_reason for choice in found.choices] == [answer.stop for answer in expected]
    for choice, answer in zip(found.choices, expected, strict=True):
        own = len(answer.ids) - (answer.stop == "stop")
        assert [token.logprob for token in choice.logprobs.content] == list(answer.log_probs[:own])
    usage = found.usage
    assert usage.prompt_tokens == len(expected[0].prompt_ids)
    assert usage.completion_tokens == sum(len(answer.ids) for answer in expected)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_seed_gives_the_same_answer_in_any_company(server: Server) -> None:
    def ask(number: int) -> list[str]:
        return texts(server.ask("hi" if number % 2 else "hello " * number, seed=5 if number % 2 else number, n=2))

    alone = ask(1)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert found[1::2] == [alone] * 4


def test_without_a_seed_answers_differ_and_temperature_0_takes_the_likeliest_tokens(server: Server, base: Path) -> None:
    assert texts(server.ask(max_tokens=20)) != texts(server.ask(max_tokens=20))
    (likeliest,) = local(base).sample([Request(PROMPT, 0)], sampling(top_k=1))
    assert texts(server.ask(temperature=0, n=2)) == [likeliest.text] * 2


def test_a_connection_outlives_the_seconds_for_which_clients_keep_an_idle_one(server: Server) -> None:
    connection = http.client.HTTPConnection(httpx.URL(server.url).netloc.decode())
    for idle_s in (0.0, 5.5):  # OpenAI's client keeps it for 5 s
        time.sleep(idle_s)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["object"] == "list"


def test_an_answer_is_cut_at_the_first_stop(server: Server) -> None:
    whole = server.ask(seed=11, max_completion_tokens=40, max_tokens=None).choices[0].message.content
    stops = [whole[20:22], whole[8:10], "never there"]
    cut = whole[: min(whole.find(stop) for stop in stops[:2])]
    found = server.ask(seed=11, max_tokens=40, stop=stops, logprobs=True)
    assert (texts(found), found.choices[0].finish_reason) == ([cut], "stop")
    assert found.usage.completion_tokens == 40
    assert len(cut) <= len(found.choices[0].logprobs.content) < 40


def test_the_probabilities_of_a_long_answer_that_was_cut_are_few_steps() -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return "".join(map(chr, ids))

    text = "a" * 3000 + "stop" + "b" * 1000
    asked = read_chat({"model": "base", "messages": MESSAGES, "stop": "stop", "logprobs": True})
    ids = tuple(map(ord, text))
    answer = Answer(text, (), ids, (0.0,) * len(ids), "length")
    found = completion(asked, [answer], SimpleNamespace(decode=decode))  # type: ignore[arg-type]
    assert len(found["choices"][0]["logprobs"]["content"]) == 3000
    assert sum(decoded) < 20 * len(text)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"extra_body": {"top_k": 5}}, "top_k"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": 1e-30}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 129}, "n"),
        ({"n": "1"}, "n"),
        ({"seed": 0.5}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"extra_body": {"stop": {}}}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens"),
        ({"max_completion_tokens": 5}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"extra_body": {"messages": [{"role": "tool", "content": "x"}]}}, "messages"),
        ({"extra_body": {"messages": None}}, "messages"),
        ({"extra_body": {"messages": [{"role": "user", "content": "x", "weight": 1}]}}, "messages"),
        ({"extra_body": {"model": None}}, "model"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_its_name(
    server: Server, parameters: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.ask(**parameters)
    assert refused.value.param == name
    assert name in refused.value.message


def test_what_changes_nothing_is_taken(server: Server) -> None:
    assert server.ask(stream=False, frequency_penalty=0, response_format={"type": "text"}, user=None).choices


def test_a_prompt_beyond_the_context_is_refused(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 191 tokens, got") as refused:
        server.ask("x" * 300)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="at most 191 tokens, got one of 1,000,001 characters") as refused:
        server.ask("x" * 10**6)
    assert refused.value.code == "context_length_exceeded"
    half = b'{"model": "base", "messages": [{"role": "user", "content": "\\ud800"}]}'  # of a pair of UTF-16
    headers = {"Content-Type": "application/json"}
    found = httpx.post(f"{server.url}/chat/completions", content=half, headers=headers)
    assert found.status_code == 400
    assert found.json()["error"]["message"].startswith("messages: the model cannot read the prompt")


def test_models_are_listed(server: Server) -> None:
    assert server.client.models.retrieve("base").id == "base"
    assert "base" in [model.id for model in server.client.models.list()]
    for name in ("ft:base::none", "../base", "a/b"):
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            server.client.models.retrieve(name)
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            server.ask(model=name)


def test_what_is_no_json_is_refused_in_openais_shape(server: Server) -> None:
    bodies = (b"", b"\xff", b"[" * 10**6, b"[1]", b'{"n": NaN}', b"9" * 9999, b'{"a":' * 5000)
    with httpx.Client(base_url=server.url, headers={"Content-Type": "application/json"}) as client:
        for body in bodies:
            found = client.post("/chat/completions", content=body)
            assert (found.status_code, found.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (
            client.post("/chat/completions", headers={"Content-Type": "text/plain"}, content=b"{}").status_code == 415
        )
        assert client.get("/chat/completions").json()["error"]["message"] == "this address knows no such method"
        assert client.get("/none").status_code == 404
        too_large = client.post("/chat/completions", content=(b" " * 2**20 for _ in range(9)))
        assert (too_large.status_code, "at most 8388608" in too_large.text) == (413, True)
        assert client.post("/files", headers={"Content-Type": "multipart/form-data; boundary=x"}, content=b"?").is_error


# ---- files -------------------------------------------------------------------------------------------


def test_a_file_comes_back_whatever_its_name(server: Server) -> None:
    folder = Path(server.command[-2])
    for name in ("../../escaped.jsonl", "/etc/passwd", "é\u202e.jsonl", "a" * 255):
        found = server.client.files.create(file=(name, b"\0\r\n{}"), purpose="fine-tune")
        assert (found.filename, found.bytes) == (name, 5)
        assert server.client.files.content(found.id).read() == b"\0\r\n{}"
        assert {path.name for path in folder.rglob("*") if found.id not in path.name} <= set(OURS)
        assert server.client.files.delete(found.id).deleted
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            server.client.files.content(found.id)
    assert not list(folder.parent.glob("escaped*"))


OURS = ("files", "jobs", "lock", "server.json")


def test_files_are_listed_in_pages(server: Server) -> None:
    ids = [server.upload(str(number).encode()) for number in range(5)]
    files = server.client.files
    assert [file.id for file in files.list(limit=2)] == ids[::-1], "all pages, the latest first"
    assert [file.id for file in files.list(limit=3, order="asc").data] == ids[:3]
    assert [file.id for file in files.list(after=ids[3], order="asc").data] == ids[4:]
    assert files.list(purpose="vision").data == []
    for wrong in ({"after": "none"}, {"limit": 0}, {"order": "up"}, {"extra_query": {"limit": "²"}}):
        with pytest.raises(openai.BadRequestError, match=r"(after|limit|order): expected"):
            files.list(**wrong)  # type: ignore[arg-type]
    for each in ids:
        files.delete(each)


def test_an_upload_that_cannot_be_is_refused(server: Server) -> None:
    for file, purpose, error in (
        (("x", b""), "vision", "purpose: expected fine-tune, got 'vision'"),
        (("x" * 256, b""), "fine-tune", "file: expected a name of 1 to 255 characters"),
    ):
        with pytest.raises(openai.BadRequestError, match=error):
            server.client.files.create(file=file, purpose=purpose)  # type: ignore[arg-type]
    said = httpx.post(f"{server.url}/files", data={"purpose": "fine-tune"}).json()["error"]
    assert said["message"] == "file: expected a file, got none"
    connection = http.client.HTTPConnection(server.url.split("/")[2])
    connection.request("POST", "/v1/files", headers={"Content-Length": str(10**12)})
    assert connection.getresponse().status == 413, "before a byte of it was read"
    connection.close()


# ---- jobs --------------------------------------------------------------------------------------------


def test_a_file_gives_equal_weights_in_process_and_through_the_server(server: Server, base: Path) -> None:
    """Also from a model that another job has made. What was made answers."""
    job = await_job(server, begin_job(server, suffix="mine", metadata={"key": "a"}).id)
    assert (job.status, job.error) == ("succeeded", None)
    assert job.fine_tuned_model.startswith("ft:base:mine:")
    model = local(base)
    assert are_equal(weights(server, job.id), tuned(model))
    (expected,) = model.sample([Request(PROMPT, 0)], sampling(top_k=1))
    assert texts(server.ask(model=job.fine_tuned_model, temperature=0)) == [expected.text]
    later = await_job(server, begin_job(server, model=job.fine_tuned_model, metadata={"key": "b"}).id)
    model._optimizer = None
    assert are_equal(weights(server, later.id), tuned(model)), "from the model before, with a new optimizer"
    assert later.fine_tuned_model.startswith("ft:base::")
    examples = METHOD.begin(model, CONTENT).job.examples
    assert job.trained_tokens == 2 * sum(len(each.prompt_ids) + len(each.ids) for each in examples)
    events = list(server.client.fine_tuning.jobs.list_events(job.id, limit=3))
    assert events[0].message.endswith(job.fine_tuned_model)
    steps = [event.data for event in events[::-1] if event.type == "metrics"]
    assert [(data["step"], data["total_steps"]) for data in steps] == [(number, 6) for number in range(1, 7)]  # type: ignore[index]
    assert {model.id for model in server.client.models.list()} >= {job.fine_tuned_model, later.fine_tuned_model}


def test_a_file_of_pairs_gives_equal_weights_too(server: Server, base: Path) -> None:
    pairs = preference_file(Pair((Message("user", f"{number}?"),), "yes", "no") for number in range(20))
    dpo = METHOD.model_copy(update={"name": "dpo", "beta": 0.5})
    job = await_job(server, begin_job(server, pairs, method=hyperparameters(dpo)).id)
    assert (job.status, job.error, job.method.dpo.hyperparameters.beta) == ("succeeded", None, 0.5)
    assert are_equal(weights(server, job.id), tuned(local(base), dpo, pairs))
    wrong = await_job(server, begin_job(server, CONTENT, method=hyperparameters(dpo)).id)
    assert wrong.error.message == "the training file: line 1: expected the key input, got none"


def test_jobs_are_listed_in_pages_and_by_metadata(server: Server) -> None:
    jobs = server.client.fine_tuning.jobs
    made = [begin_job(server, b"?", metadata=data).id for data in ({"a": "1"}, {"a": "1", "b": "é"}, {"a": "2"}, None)]
    assert [job.id for job in jobs.list(limit=3)][:4] == made[::-1]
    assert [job.id for job in jobs.list(metadata={"a": "1"}, limit=1)] == made[1::-1]
    assert [job.id for job in jobs.list(metadata={"a": "1", "b": "é"})] == made[1:2]
    without = jobs.list(extra_query={"metadata": "null"}).data
    assert (without[0].id, {job.metadata for job in without}) == (made[3], {None})
    for name in ("order", "metadata[a", "metadata]"):
        with pytest.raises(openai.BadRequestError, match="this list knows no such parameter"):
            jobs.list(extra_query={name: "asc"})
    for job_id in made:
        assert await_job(server, job_id).error.message.startswith("the training file: line 1: expected a JSON object")


def test_jobs_are_cancelled(server: Server) -> None:
    jobs = server.client.fine_tuning.jobs
    long = hyperparameters(METHOD.model_copy(update={"n_epochs": 10_000}))
    first, second = (begin_job(server, method=long) for _ in range(2))
    await_job(server, first.id, lambda job: job.status == "running")
    assert await_job(server, second.id, lambda job: job.status != "validating_files").status == "queued"
    assert jobs.cancel(second.id).status == jobs.cancel(first.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="got one that has the status cancelled"):
        jobs.cancel(first.id)
    assert await_job(server, begin_job(server).id).status == "succeeded", "the server goes on with the next one"
    assert jobs.retrieve(first.id).fine_tuned_model is None


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"model": "gpt-4o"}, "model"),
        ({"suffix": "a/../b"}, "suffix"),
        ({"seed": -1}, "seed"),
        ({"validation_file": "file-x"}, "validation_file"),
        ({"metadata": {"x" * 65: ""}}, "metadata"),
        ({"extra_body": {"metadata": {"x": 3}}}, "metadata"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": 0}}, "method.type"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method.dpo"),
        ({"hyperparameters": {"n_epochs": 0}, "method": None}, "hyperparameters.n_epochs"),
        (
            {"method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": "all"}}}},
            "method.supervised.hyperparameters.batch_size",
        ),
        (
            {"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": 0.1}}}},
            "method.supervised.hyperparameters.beta",
        ),
        (
            {"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": "auto"}}}},
            "method.supervised.hyperparameters.beta",
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_the_name_of_its_parameter(
    server: Server, said: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        begin_job(server, **said)
    assert refused.value.param == name


def test_lists_that_are_too_long_are_refused_before_their_entries_are_read() -> None:
    """Each of a million would have an error of its own, which takes a GiB."""
    read = []
    with pytest.raises(ValueError, match="expected few, got"):
        expected("few", most=4).func([1] * 5, read.append)  # type: ignore[call-arg]
    assert read == []
    for params, said in (
        (ChatParams, {"model": "m", "messages": [], "stop": [1] * 5}),
        (JobParams, {"model": "m", "training_file": "f", "metadata": dict.fromkeys("abcdefghijklmnopq", 1)}),
    ):
        with pytest.raises(ApiError) as refused:
            params.read(said)
        assert refused.value.param == [*said][-1]


def test_a_job_without_its_file_is_refused(server: Server) -> None:
    for file in ("file-none", "../lock", ""):
        with pytest.raises(openai.NotFoundError, match="training_file: there is no file"):
            server.client.fine_tuning.jobs.create(model="base", training_file=file)


def test_auto_stands_for_numbers(server: Server) -> None:
    made = server.client.fine_tuning.jobs.create(
        model="base",
        training_file=server.upload(b"?"),
        hyperparameters={"n_epochs": "auto", "batch_size": "auto", "learning_rate_multiplier": "auto"},
    )
    parameters = made.hyperparameters
    assert (parameters.n_epochs, parameters.batch_size, parameters.learning_rate_multiplier) == (1, 64, 1.0)
    assert await_job(server, made.id).status == "failed"


def test_a_prompt_beyond_the_context_fails_a_job(server: Server) -> None:
    long = supervised_file([Decision(PROMPT, "yes"), Decision((Message("user", "x" * 300),), "no")])
    job = await_job(server, begin_job(server, long).id)
    assert (job.status, job.error.message[:27]) == ("failed", "the training file: line 2: ")


# ---- kills -------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_job_goes_on_from_a_save_to_the_same_bits(server: Server, base: Path, tmp_path: Path) -> None:
    """Its process may end between any two opt steps."""
    began = json.loads((Path(server.command[-2]) / "server.json").read_text())
    (tmp_path / "server.json").write_text(json.dumps(began))
    jobs = Jobs(Folder(tmp_path).below("jobs"))
    said: dict[str, Any] = {"model": "base", "begins_with": None, "suffix": None, "metadata": None, "method": METHOD}
    job = jobs.add(CONTENT, training_file="file-x", **said)
    told: list[int] = []

    def tell(message: dict[str, Any]) -> None:
        told.append(message.get("step", 0))
        if told in ([1, 2], [1, 2, 2, 3]):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            computing.compute(Folder(tmp_path), job.id, tell, save_s=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalModel, "is_finite", lambda model: False)
        with pytest.raises(computing.JobFailed, match="finite numbers"):
            computing.compute(Folder(tmp_path), job.id, lambda message: None, save_s=1e9)
    computing.compute(Folder(tmp_path), job.id, tell, save_s=0.0)
    assert told == [1, 2, 2, 3, 3, 4, 5, 6, 0]
    own = tmp_path / "jobs" / job.id
    assert (own / STATE).exists()
    assert are_equal(load_file(own / "model.safetensors"), tuned(local(base)))
    jobs.succeed(job.id, "base", 1)
    jobs.tidy(job.id)
    assert sorted(path.name for path in own.iterdir()) == ["job.json", "model.safetensors"]


def await_step(server: Server, job_id: str, num_warnings: int) -> None:
    """Wait for an opt step of a job after so many deaths of its process."""
    end_s = time.monotonic() + 60
    while True:
        last, *before = server.client.fine_tuning.jobs.list_events(job_id, limit=100)
        if last.type == "metrics" and [each.level for each in before].count("warn") == num_warnings:
            return
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_job_whose_processes_are_all_killed_has_failed_and_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "COMMAND", [sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 9)"])
    jobs = Jobs(Folder(tmp_path).below("jobs"))
    said: dict[str, Any] = {"model": "base", "begins_with": None, "suffix": None, "metadata": None, "method": METHOD}
    job = jobs.add(CONTENT, training_file="file-x", **said)
    computing_it = runner.Runner(Folder(tmp_path), jobs, "base")
    with jobs.changed:
        assert jobs.changed.wait_for(lambda: jobs.get(job.id).status in OVER, 60)
    computing_it.stop()
    assert re.fullmatch("its process ended with SIGKILL.*; 4 were started", jobs.get(job.id).error or "")
    assert [each.level for each in jobs.get(job.id).events].count("warn") == 3


WAITING = """
import json, os, sys
open(os.path.join(sys.argv[2], str(os.getpid())), "w").close()
if sys.stdin.readline():
    print(json.dumps({"failed": f"{os.getpid()} says so"}))
"""


def test_a_process_waits_for_the_next_job_and_none_is_left_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "COMMAND", [sys.executable, "-S", "-c", WAITING])
    folder = Folder(tmp_path)
    jobs = Jobs(folder.below("jobs"))
    computing_it = runner.Runner(folder, jobs, "base")
    said: dict[str, Any] = {"model": "base", "begins_with": None, "suffix": None, "metadata": None, "method": METHOD}
    end_s = time.monotonic() + 60

    def processes() -> set[int]:
        return {int(name) for name in folder.names() if name.isdigit()}

    def of_a_job() -> int:
        job = jobs.add(CONTENT, training_file="file-x", **said)
        with jobs.changed:
            assert jobs.changed.wait_for(lambda: jobs.get(job.id).status in OVER, 60)
        return int((jobs.get(job.id).error or "").split()[0])

    def spare() -> int:
        """The process that no job has had."""
        while not (found := processes() - used):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        return found.pop()

    used: set[int] = set()
    assert not processes()
    used.add(of_a_job())
    waits = spare()
    assert of_a_job() == waits
    used.add(waits)
    os.kill(spare(), signal.SIGKILL)
    used.add(spare())
    assert of_a_job() not in used
    computing_it.stop()
    for each in processes():
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def test_a_file_that_cannot_be_read_for_want_of_memory_fails_its_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(Folder(tmp_path).below("jobs"))
    said: dict[str, Any] = {"model": "base", "begins_with": None, "suffix": None, "metadata": None, "method": METHOD}
    first, second = (jobs.add(CONTENT, training_file="file-x", **said) for _ in range(2))
    reads = iter([MemoryError("no room"), ValueError("odd")])

    def read(content: bytes) -> Any:
        raise next(reads)

    monkeypatch.setattr(runner, "read_supervised", read)
    reading = runner.Runner(Folder(tmp_path), jobs, "base")
    with jobs.changed:
        assert jobs.changed.wait_for(lambda: all(jobs.get(job.id).status in OVER for job in (first, second)), 60)
    reading.stop()
    errors = [jobs.get(job.id).error or "" for job in (first, second)]
    assert [error.partition(" (")[0] for error in errors] == ["MemoryError: no room", "ValueError: odd"]
    left = jobs.folder.below(first.id)
    left.write(STATE, b"of a job that was killed before it was tidied")
    Jobs(jobs.folder)
    assert left.kind(STATE) is None


def test_a_server_that_was_killed_has_its_files_and_models_and_its_job_comes_to_the_same_bits(
    server: Server, base: Path
) -> None:
    """Before that, the process of the job alone is killed."""
    slow = METHOD.model_copy(update={"n_epochs": 60})
    made = await_job(server, begin_job(server).id).fine_tuned_model
    file = server.upload(b"kept")
    running, waiting = begin_job(server, method=hyperparameters(slow)), begin_job(server, metadata={"waits": "1"})
    jobs = server.client.fine_tuning.jobs
    await_step(server, running.id, 0)
    os.kill(int((Path(server.command[-2]) / "jobs" / running.id / "lock").read_text().split()[0]), signal.SIGKILL)
    await_step(server, running.id, 1)
    before = [job.id for job in jobs.list(limit=100)]
    server.kill()
    server.start()
    assert server.client.files.content(file).read() == b"kept"
    assert made in [model.id for model in server.client.models.list()]
    assert server.ask(model=made).choices
    assert [job.id for job in server.client.fine_tuning.jobs.list(limit=100)] == before
    assert await_job(server, running.id).status == await_job(server, waiting.id).status == "succeeded"
    assert are_equal(weights(server, running.id), tuned(local(base), slow))
    assert are_equal(weights(server, waiting.id), tuned(local(base)))


def test_a_folder_serves_one_model_and_one_server_at_a_time(
    server: Server, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = server.command[-2]
    other, damaged = tmp_path / "other", tmp_path / "damaged"
    for copy in (other, damaged):
        shutil.copytree(base, copy)
    (other / "generation_config.json").write_text('{"eos_token_id": 256, "top_k": 3}')
    os.truncate(damaged / "model.safetensors", 100)
    for arguments, error in (
        ([str(base), "--folder", folder], f"{folder} is in use by process {server.process.pid}"),
        ([str(tmp_path)], "expected the folder of a model (config.json) or of a run (config.yml)"),
        ([str(base), "--player", "prover"], "--player: expected no such option"),
        ([str(base), "--host", "0.0.0.0"], "--host: expected a host of this machine alone"),
        ([str(base), "--host", "10.0.0.1"], "PALESTRA_SERVE_KEY is not set, got '10.0.0.1'"),
        ([str(base), "--port", server.url.split(":")[2][:-3]], "--port: expected an address that is free"),
        ([str(damaged)], "model.path: expected a causal language model that transformers loads"),
    ):
        where = [] if "--folder" in arguments else ["--folder", str(tmp_path / "new")]
        with pytest.raises(SystemExit) as left:
            main(["serve", *arguments, *where])
        told = capsys.readouterr().err
        assert left.value.code == 2
        assert error in told
        assert len(told.splitlines()) == 1
        assert not (tmp_path / "new").exists()
    assert server.stop() == (143, "")
    with pytest.raises(SystemExit):
        main(["serve", str(other), "--folder", folder])
    assert "belongs to a server of" in capsys.readouterr().err
