"""Covers palestra.text.servers.job_lines, too."""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palestra.config import ConfigError
from palestra.storage.disk import Folder, RunFolderError
from palestra.text.models.model import Message
from palestra.text.servers import client
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerConfig, ServerTuningConfig
from palestra.text.servers.job_files import Decision, Pair, preference_file, supervised_file
from palestra.text.servers.job_lines import JobLines, adopt_by_hand, read_jobs
from palestra.text.servers.jobs import FileJob, JobFailed, JobOrder, ServerJob, TunedModel, most_tokens
from palestra.text.servers.ledger import NOTHING, BudgetReached, Cost
from tests.text.servers.fake_jobs import JobServer, serving

PROMPT = (Message("user", "Is k in qwkr?"),)
CONTENT = supervised_file([Decision(PROMPT, "yes")])
TOKENS = len("Is k in qwkr?") + len("yes") + 2 * 32 + 64
PRICES = {"input": 0.0, "cached": 0.0, "output": 0.0, "trained": 2.0}
TUNING = {"num_passes": 1, "batch_size": "auto", "learning_rate_multiplier": "auto", "poll_s": 0.01, "timeout_s": 20.0}
SERVER = {"name": "server", "model": "base", "key": None, "max_concurrent": 4, "timeout_s": 5.0, "num_attempts": 3}
RUN = "f00d"
KEY = f"palestra-{RUN}-0-prover-1"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.02)


@pytest.fixture
def fake() -> Iterator[JobServer]:
    """A server on which others have files and jobs already, more than a page of them."""
    server = JobServer()
    for number in range(3):
        server.add_file(f"{number}.jsonl", b"x")
        server.add_job({"model": "base", "metadata": {"key": f"other-{number}"}})
    with serving(server):
        yield server


def order(url: str, content: bytes = CONTENT, player: str = "prover", **tuning: Any) -> JobOrder:
    server = ServerConfig(**SERVER, url=url, prices=PRICES)  # type: ignore[arg-type]
    config = ServerTuningConfig(**{**TUNING, **tuning})
    return JobOrder(0, player, server, "base", FileJob(content, "supervised", {}, "before"), config, 3)


def made(folder: Path, *orders: JobOrder, run: str = RUN, tokens: int | None = None) -> list[TunedModel | Exception]:
    """Make jobs as a run of this id does that begins or goes on in a folder; returns what came of each."""
    calls, root = Calls(lambda: False), Folder(folder)
    found: list[TunedModel | Exception] = []
    with calls.opened(root.below("calls"), run, Cost(tokens, None), 0.0):
        lines = JobLines(root, run)
        calls.ledger.replay(lines.for_ledger(), run)
        calls.ledger.lose_all()
        jobs = [ServerJob(calls, lines, each) for each in orders]
        for job in jobs:
            job.begin()
        for job in jobs:
            try:
                tuned = job.outcome(30.0)
                assert tuned is not None
                found.append(tuned)
            except (JobFailed, BudgetReached) as error:
                found.append(error)
    if not any(isinstance(each, BudgetReached) for each in found):
        spent = [each.end["spent"]["tokens"] for each in read_jobs(root).values() if each.end and each.run == run]
        lost = [each.worst.tokens for each in read_jobs(root).values() if each.is_open and each.run == run]
        held = sum(each.tokens or 0 for each in calls.ledger.reserved.values())
        assert (calls.ledger.spent.tokens or 0) + held == sum(spent) + sum(map(int, lost))  # type: ignore[arg-type]
    return found


def ours(fake: JobServer) -> list[str]:
    """The keys of the jobs that were submitted here."""
    return [key for key in fake.submitted() if key.startswith("palestra")]


def test_a_job_is_written_down_before_each_step_and_says_all_that_is_asked(tmp_path: Path, fake: JobServer) -> None:
    fake.steps = 4
    [tuned] = made(tmp_path, order(fake.url, num_passes=2, batch_size=3))
    assert tuned == TunedModel("base+3", 4, 0.25)
    lines = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["intent", "uploaded", "submitted", "finished"]
    assert {line["key"] for line in lines} == {KEY}
    assert lines[0]["worst"] == {"tokens": 2 * TOKENS, "money": 4 * TOKENS * 10**6}
    assert lines[-1]["spent"] == {"tokens": 100, "money": 200 * 10**6}
    assert fake.files["file-3"]["filename"] == f"{KEY}.jsonl"
    assert fake.files["file-3"]["content"] == CONTENT
    job = fake.jobs["ftjob-3"]
    assert job["metadata"] == {"key": KEY, "sha256": lines[0]["sha256"]}
    hyperparameters = {"n_epochs": 2, "batch_size": 3, "learning_rate_multiplier": "auto"}
    assert job["method"] == {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    assert (job["model"], job["training_file"], job["seed"]) == ("base", "file-3", 3)


LOST = {
    "upload that did not come": {"before": "upload"},
    "submission that did not come": {"before": "submit"},
    "upload, gives no files back": {"lost": "upload", "gives_files": False},
}


@pytest.mark.parametrize("case", LOST)
def test_a_lost_reply_repeats_nothing_that_the_server_has(case: str, tmp_path: Path, fake: JobServer) -> None:
    for name, value in LOST[case].items():
        if name in ("lost", "before"):
            getattr(fake, name)[value] = 1
        else:
            setattr(fake, name, value)
    [tuned] = made(tmp_path, order(fake.url))
    assert tuned == TunedModel("base+3", 1, None)
    assert ours(fake) == [KEY]
    assert len(fake.files) == 4


@pytest.mark.parametrize("after", ["intent", "upload", "uploaded", "submit", "submitted", "wait", "finished"])
def test_a_job_that_a_kill_has_cut_off_is_found_again(after: str, tmp_path: Path, fake: JobServer) -> None:
    made(tmp_path, order(fake.url))
    lines = (tmp_path / "jobs.jsonl").read_text().splitlines(keepends=True)
    kept = {"intent": 1, "upload": 1, "uploaded": 2, "submit": 2, "submitted": 3, "wait": 3, "finished": 4}[after]
    torn = "" if after == "finished" else '{"kind": "upl'
    (tmp_path / "jobs.jsonl").write_text("".join(lines[:kept]) + torn)
    if after in ("intent", "upload", "uploaded"):
        fake.jobs.popitem()
    if after == "intent":
        fake.files.popitem()
    fake.counts.clear()
    assert made(tmp_path, order(fake.url)) == [TunedModel("base+3", 1, None)]
    assert ours(fake) == [KEY]
    assert len(fake.files) == 4
    if after == "finished":
        assert not fake.counts
    assert [e.state for e in read_jobs(Folder(tmp_path)).values()] == ["finished"]


def test_of_several_jobs_and_files_the_first_that_fits_in_key_and_sha256_is_adopted(
    tmp_path: Path, fake: JobServer
) -> None:
    made(tmp_path, order(fake.url))
    line = (tmp_path / "jobs.jsonl").read_text().splitlines(keepends=True)[0]
    (tmp_path / "jobs.jsonl").write_text(line)
    told = fake.jobs.pop("ftjob-3")
    fake.add_job({"model": "base", "metadata": {"key": KEY, "sha256": "0" * 64}})
    for _ in range(2):
        fake.add_job({"model": "base", "metadata": told["metadata"]})
    assert made(tmp_path, order(fake.url)) == [TunedModel("base+4", 1, None)]
    assert len(ours(fake)) == 3


def test_a_server_that_cannot_list_stops_the_run_until_somebody_says_which_job_it_is(
    tmp_path: Path, fake: JobServer
) -> None:
    fake.can_list, fake.lost["submit"] = False, 1
    for _ in range(2):
        [error] = made(tmp_path, order(fake.url))
        assert isinstance(error, JobFailed)
        assert KEY in str(error)
        assert "palestra resume RUN --job ID" in str(error)
    assert ours(fake) == [KEY]
    root = Folder(tmp_path)
    with pytest.raises(ConfigError, match=f"--job: expected KEY=ID with the key of a job that is not over .{KEY}."):
        adopt_by_hand(root, RUN, ["palestra-0=ftjob-3"])
    adopt_by_hand(root, RUN, ["ftjob-0"])
    [error] = made(tmp_path, order(fake.url))
    assert f"expected ftjob-0 to be the job {KEY}, got the job 'other-0'" in str(error)
    adopt_by_hand(root, RUN, [f"{KEY}=ftjob-3"])
    assert made(tmp_path, order(fake.url)) == [TunedModel("base+3", 1, None)]
    with pytest.raises(ConfigError, match=r"of a job that is not over \(none\)"):
        adopt_by_hand(root, RUN, ["ftjob-3"])


def test_a_job_that_never_came_is_given_up_by_hand_and_submitted_anew(tmp_path: Path, fake: JobServer) -> None:
    fake.can_list, fake.before["submit"] = False, 1
    assert isinstance(made(tmp_path, order(fake.url))[0], JobFailed)
    adopt_by_hand(Folder(tmp_path), RUN, ["none"])
    assert made(tmp_path, order(fake.url)) == [TunedModel("base+3", 1, None)]
    assert ours(fake) == [f"palestra-{RUN}-0-prover-2"]


def test_a_job_that_the_server_has_forgotten_is_given_up_by_hand_and_counts_as_its_worst_case(
    tmp_path: Path, fake: JobServer
) -> None:
    fake.at["submit"] = lambda: fake.jobs.pop("ftjob-3")
    for _ in range(2):
        [error] = made(tmp_path, order(fake.url))
        assert "HTTP 404: no job ftjob-3; go on with `palestra resume RUN --job ID`, or with --job none" in str(error)
    adopt_by_hand(Folder(tmp_path), RUN, ["none"])
    [entry] = read_jobs(Folder(tmp_path)).values()
    assert entry.end is not None
    assert entry.end["spent"] == entry.worst.line()
    assert made(tmp_path, order(fake.url)) == [TunedModel("base+3", 1, None)]
    assert ours(fake) == [f"palestra-{RUN}-0-prover-2"]


def test_a_job_that_fails_or_is_cancelled_says_why_and_is_made_anew(tmp_path: Path, fake: JobServer) -> None:
    fake.end, fake.looks = "failed", 3
    [error] = made(tmp_path, order(fake.url))
    assert str(error) == f"the job ftjob-3 of 'prover' at {fake.url} has failed: the examples are dull"
    fake.end = None
    [error] = made(tmp_path, order(fake.url, timeout_s=0.05))
    assert "was cancelled: it was not over after 0.05 s (timeout_s)" in str(error)
    assert fake.jobs["ftjob-4"]["status"] == "cancelled"
    fake.end, fake.statuses = "succeeded", {"submit": [400]}
    [error] = made(tmp_path, order(fake.url, timeout_s=0.05))
    assert "has failed: HTTP 400: no submit today" in str(error)
    fake.looks = 0
    assert made(tmp_path, order(fake.url, timeout_s=0.05))[0] == TunedModel("base+5", 1, None)
    assert [key[-1] for key in ours(fake)] == ["1", "2", "4"]
    ends = [each.end["spent"]["tokens"] for each in read_jobs(Folder(tmp_path)).values() if each.end is not None]
    assert ends == [TOKENS, TOKENS, 0, 100]


def test_a_branch_takes_a_finished_job_along_and_pays_nothing_for_it(tmp_path: Path, fake: JobServer) -> None:
    made(tmp_path, order(fake.url))
    assert made(tmp_path, order(fake.url), run="beef") == [TunedModel("base+3", 1, None)]
    assert ours(fake) == [KEY]
    made(tmp_path, order(fake.url, num_passes=2), run="beef")
    assert ours(fake) == [KEY, "palestra-beef-0-prover-1"]


def test_no_job_begins_that_could_pass_the_budget_and_one_that_may_fit_waits(tmp_path: Path, fake: JobServer) -> None:
    both = [order(fake.url), order(fake.url, player="verifier")]
    found = made(tmp_path, *both, tokens=TOKENS + 100)  # the second one fits once the first has cost 100
    assert [type(each) for each in found] == [TunedModel, TunedModel]
    [error] = made(tmp_path, order(fake.url, player="third"), tokens=199 + TOKENS)
    assert isinstance(error, BudgetReached)
    assert len(ours(fake)) == 2
    made(tmp_path, order(fake.url, player="third"), tokens=200 + TOKENS)
    assert len(ours(fake)) == 3


def test_the_most_tokens_of_a_file_are_its_bytes_and_what_templates_add() -> None:
    assert most_tokens(CONTENT) == TOKENS
    pair = preference_file([Pair((Message("user", "é"),), "yes", "no")])
    assert most_tokens(pair) == 2 * (2 + 64 + 64) + len("yes") + len("no")


def test_what_a_server_says_is_no_path_and_no_escape(tmp_path: Path, fake: JobServer) -> None:
    fake.prefix = "../\x1b[2J"
    [error] = made(tmp_path, order(fake.url))
    assert isinstance(error, JobFailed)
    assert "\x1b" not in str(error)
    assert [json.loads(line)["kind"] for line in (tmp_path / "jobs.jsonl").read_text().splitlines()] == ["intent"]


@pytest.mark.parametrize("what", ["key", "id", "look", "words"])
def test_a_key_that_a_server_repeats_stands_in_no_error_traceback_or_file(
    what: str, tmp_path: Path, fake: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-hunter2-hunter2-hunter2"
    monkeypatch.setenv("MY_SERVER", secret)
    monkeypatch.setitem(SERVER, "key", "MY_SERVER")
    begin, reply = fake.add_job, fake.reply

    def odd_reply(method: str, path: str, query: dict[str, str], body: bytes) -> tuple[str, int, Any]:
        if what == "id" and (method, path) == ("POST", "/v1/files"):
            return "upload", 200, {"id": f"{'x' * 50} {secret}"}
        if what in ("look", "words") and method == "GET" and path.startswith("/v1/fine_tuning/jobs/"):
            blanks = " " * 9980 if what == "words" else ""
            return "job", 400, {"error": {"message": f"{blanks}{secret} is not allowed"}}
        return reply(method, path, query, body)

    fake.reply = odd_reply  # type: ignore[method-assign]
    if what == "key":
        fake.add_job = lambda asked: begin(asked | {"metadata": {"key": secret}})  # type: ignore[method-assign]
    [error] = made(tmp_path, order(fake.url))
    assert isinstance(error, JobFailed)
    assert "***" in str(error)
    told = "".join(traceback.format_exception(error)) + (tmp_path / "jobs.jsonl").read_text()
    assert secret[:8] not in told


@pytest.mark.parametrize("loss", [10**400, float("inf"), "low", None], ids=["huge", "inf", "text", "none"])
def test_odd_numbers_of_a_server_are_passed_over(loss: Any, tmp_path: Path, fake: JobServer) -> None:
    fake.trained = 10**400
    steps = enumerate([True, 10**400, 3])
    events = [{"id": f"ev-{number}", "data": {"step": step, "train_loss": loss}} for number, step in steps]
    fake._events = lambda *_, **__: (200, {"data": events, "has_more": False})  # type: ignore[method-assign]
    assert made(tmp_path, order(fake.url)) == [TunedModel("base+3", 3, None)]
    [entry] = read_jobs(Folder(tmp_path)).values()
    assert entry.end is not None
    assert entry.end["spent"]["tokens"] == TOKENS, "its worst case"


@pytest.mark.parametrize("name", ["", "a\x1b[2J", "\ud800", 5])
def test_a_model_without_a_plain_name_is_none(name: Any, tmp_path: Path, fake: JobServer) -> None:
    look = fake._job
    fake._job = lambda *at, **said: (200, look(*at, **said)[1] | {"fine_tuned_model": name})  # type: ignore[method-assign]
    [error] = made(tmp_path, order(fake.url))
    assert "has failed: the server names no model" in str(error)


def test_names_that_no_file_could_have_are_told_apart_by_a_hash(tmp_path: Path, fake: JobServer) -> None:
    made(tmp_path, order(fake.url, player="é/../é"), order(fake.url, player="é/../è"))
    names = [file["filename"] for file in fake.files.values()][3:]
    assert len(set(names)) == 2
    assert all(name.isascii() and "/" not in name for name in names)


WORST = {"tokens": -1, "money": 0}
INTENT = {
    "kind": "intent",
    "key": "x",
    "run": "r",
    "epoch": 0,
    "player": "p",
    "attempt": 1,
    "request": "",
    "sha256": "",
}
DAMAGED = [
    '{"kind": "uploaded", "key": "x", "file": "f"}',  # of no intent
    "[]",
    '{"kind": "intent"}',
    "nothing",
    json.dumps(INTENT | {"worst": WORST}),
    json.dumps(INTENT | {"worst": {"tokens": 10**300, "money": 0}}),
    json.dumps(INTENT | {"worst": NOTHING.line(), "job": "../models"}),  # another line says it
    json.dumps({"kind": "submitted", "key": "x", "job": "../a b", "at": 0.0}),
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_told(line: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text(f"{line}\n")
    with pytest.raises(RunFolderError, match=r"jobs\.jsonl is damaged, in line 1"):
        read_jobs(Folder(tmp_path))
