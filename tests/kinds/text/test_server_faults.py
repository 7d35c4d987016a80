"""Runs that ask our own server through a proxy, which does what networks and servers do at their worst.

All share one process of `palestra serve`, whose own files and jobs are counted. With `--exact` the roll-outs of all are
those of a run without faults.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.kinds.text.trainer import TextTrainer
from palestra.text.rollouts import Rollouts
from palestra.text.servers import client
from palestra.training.checks import TrainingFailed
from tests.serving.proxy import Fault, Proxy, Rule
from tests.serving.servers import Server
from tests.text.runs import made_folder
from tests.text.servers.runs import Data, tuned_run

CHAT, FILES, JOBS = ("POST", "/v1/chat/completions"), "/v1/files", "/v1/fine_tuning/jobs"
UPLOAD, SUBMIT, LIST_FILES, LIST_JOBS = ("POST", FILES), ("POST", JOBS), ("GET", FILES), ("GET", JOBS)
JOB, EVENTS, CONTENT = ("GET", JOBS + "/[^/]+"), ("GET", JOBS + "/[^/]+/events"), ("GET", FILES + "/[^/]+/content")
SMALL: Data = {"evaluations": [], "best": None, "num_questions": 3, "stop": {"after": 1, "unit": "epochs"}}
KEYS: Data = {"num_attempts": 12, "timeout_s": 5.0, "max_concurrent": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("server")
    started = Server(made_folder(place), place / "folder", "--exact")
    yield started
    started.kill()


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.02)
    with Proxy(server.url, []) as between:
        yield between


def config(proxy: Proxy, **tuning: Any) -> Data:
    return tuned_run(proxy.url, KEYS, {"poll_s": 0.05, **tuning}, **SMALL)


def fit(run: Path, data: Data) -> None:
    """Train a new run, or go on with one."""
    trainer = TextTrainer.load(run) if (run / "run.json").exists() else make_trainer(data, run=run)
    trainer.fit()
    assert trainer.finished


def fails(run: Path, data: Data) -> str:
    """Return the line with which a run ends."""
    with pytest.raises(TrainingFailed) as raised:
        fit(run, data)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def rollouts(run: Path) -> list[tuple[Any, ...]]:
    rows = Rollouts.from_parquet((run / "rollouts" / "0.parquet").read_bytes()).rows
    return [(row.question, row.rollout, row.node, row.answer, row.reward) for row in rows]


def bought(server: Server, run: Path) -> tuple[list[bytes], list[tuple[str, str]]]:
    """The files that the server has of a run, and its jobs in order, each by its player's attempt with its status."""
    own = f"palestra-{json.loads((run / 'run.json').read_text())['id']}-"
    files = [each.id for each in server.client.files.list() if each.filename.startswith(own)]
    jobs = [each for each in server.client.fine_tuning.jobs.list() if (each.metadata or {})["key"].startswith(own)]
    told = [((each.metadata or {})["key"].removeprefix(own), each.status) for each in reversed(jobs)]
    return [server.client.files.content(each).read() for each in files], told


def asked(proxy: Proxy) -> set[str]:
    """The calls that were made. Fails if one is among them that had a whole answer before."""
    answered, bodies = set[str](), set[str]()
    for entry in proxy.requests:
        if (CHAT[0], CHAT[1]) == (entry.get("method"), entry.get("path")):
            assert entry["body"] not in answered, "a call was made again that was answered"
            bodies.add(entry["body"])
        elif "replied" in entry and (request := proxy.requests[entry["replied"]])["fault"] is None:
            answered.add(request["body"])
    assert bodies <= answered
    return bodies


def met(proxy: Proxy) -> list[Fault]:
    return [entry["fault"] for entry in proxy.requests if entry.get("fault")]


@pytest.fixture(scope="module")
def unharmed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], list[tuple[Any, ...]], bytes]:
    """The calls of a run without faults, its roll-outs, and the file of its job."""
    run = tmp_path_factory.mktemp("unharmed") / "run"
    with Proxy(server.url, []) as proxy:
        fit(run, config(proxy))
        [file], jobs = bought(server, run)
        assert jobs == [("0-verifier-1", "succeeded")]
        assert len(asked(proxy)) > 10
        return asked(proxy), rollouts(run), file


def rules(place: tuple[str, str], *faults: Fault) -> list[Rule]:
    """Let requests of a kind meet these faults, one after the other."""
    return [Rule(*place, fault, (0,)) for fault in faults]


def test_faults_that_pass_change_no_answer_and_buy_nothing_twice(
    server: Server, proxy: Proxy, unharmed: Any, tmp_path: Path
) -> None:
    proxy.rules = [
        *rules(CHAT, "429", "500", "time-out", "cut", "lost", "late 500"),
        *rules(UPLOAD, "429", "500", "lost"),
        *rules(SUBMIT, "429", "500", "lost"),
        *rules(JOB, "malformed", "cut", "500", "lost"),
        *rules(CONTENT, "500"),
        *rules(EVENTS, "no route"),
        *rules(LIST_FILES, "cut"),
        *rules(LIST_JOBS, "malformed"),
        Rule(*LIST_FILES, "reversed"),
        Rule(*LIST_JOBS, "reversed"),
    ]
    num_rules = len(proxy.rules)
    fit(tmp_path / "run", config(proxy))
    assert all(rule.met for rule in proxy.rules)
    assert len(met(proxy)) >= num_rules
    files, jobs = bought(server, tmp_path / "run")
    assert jobs == [("0-verifier-1", "succeeded")]
    assert (asked(proxy), rollouts(tmp_path / "run"), *files) == unharmed


def test_faults_that_end_a_run_are_one_line_and_what_was_bought_before_is_not_bought_again(
    server: Server, proxy: Proxy, unharmed: Any, tmp_path: Path
) -> None:
    run, data = tmp_path / "run", config(proxy)
    proxy.rules = [Rule(*CHAT, "malformed", (3,))]
    assert f'{proxy.url}: expected a chat completion, got {{"id": "x", "choices": [{{;' in fails(run, data)
    proxy.rules = [Rule(*CHAT, "no route", (3,))]
    assert f"{proxy.url}: HTTP 404: not here;" in fails(run, data)
    proxy.rules = [*rules(UPLOAD, "lost"), Rule(*LIST_FILES, "no route")]
    by_hand = "0-verifier-1, or not; go on with `palestra resume RUN --job ID`"
    assert by_hand in fails(run, data)
    assert (len(bought(server, run)[0]), bought(server, run)[1]) == (1, [])
    proxy.rules = [*rules(SUBMIT, "lost"), Rule(*LIST_JOBS, "no route", tuple(range(1, 99)))]
    assert by_hand in fails(run, data)
    assert by_hand in fails(run, data), "and nothing is submitted"
    [job] = [each.id for each in server.client.fine_tuning.jobs.list(limit=1).data]
    assert bought(server, run)[1][0][0] == "0-verifier-1"
    proxy.rules = [Rule(*JOB, "failed")]
    done = CliRunner().invoke(app, ["resume", str(run), "--job", job])
    assert done.exit_code == 1
    assert f"the job {job} of 'verifier' at {proxy.url} has failed: the disk is full" in " ".join(done.stderr.split())
    proxy.rules = []
    fit(run, data)
    files, jobs = bought(server, run)
    assert jobs == [("0-verifier-1", "succeeded"), ("0-verifier-2", "succeeded")]
    assert (asked(proxy), rollouts(run), *files) == (*unharmed, unharmed[-1])


def test_a_job_that_is_stuck_is_cancelled_after_its_time(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    proxy.rules = [Rule(*JOB, "stuck")]
    long = config(proxy, num_passes=10_000, timeout_s=0.4)
    assert "was cancelled: it was not over after 0.4 s (timeout_s)" in fails(tmp_path / "run", long)
    assert bought(server, tmp_path / "run")[1] == [("0-verifier-1", "cancelled")]


PLACES = {
    "chat": CHAT,
    "upload": UPLOAD,
    "submission": SUBMIT,
    "list of files": LIST_FILES,
    "list of jobs": LIST_JOBS,
    "look at a job": JOB,
    "events": EVENTS,
}
PASSING: tuple[Fault, ...] = ("429", "500", "late 500", "time-out", "malformed", "cut", "lost", "no route")


@pytest.mark.slow
@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("place", PLACES)
def test_every_fault_at_every_place_loses_nothing_and_repeats_nothing(
    place: str, fault: Fault, server: Server, proxy: Proxy, unharmed: Any, tmp_path: Path
) -> None:
    """Also where the run ends, and is resumed."""
    proxy.rules = rules(PLACES[place], fault)
    if place.startswith("list"):  # these are asked for when something may have got lost
        proxy.rules += rules(UPLOAD if place == "list of files" else SUBMIT, "lost")
    try:
        fit(tmp_path / "run", config(proxy))
    except TrainingFailed:
        fit(tmp_path / "run", config(proxy))
    assert all(rule.met for rule in proxy.rules)
    files, jobs = bought(server, tmp_path / "run")
    assert [status for _, status in jobs] == ["succeeded"]
    is_refused = (place, fault) == ("submission", "no route")  # so that there is a new attempt, with a file of its own
    assert len(files) == 1 + is_refused
    assert (asked(proxy), rollouts(tmp_path / "run"), files[-1]) == unharmed
