"""Calls: attempts, what is kept, what is counted, and what never leaves.

Covers palestra.text.servers.client and palestra.text.servers.model.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palestra.config import ConfigError
from palestra.storage.disk import Folder, OpenFile, RunFolderError
from palestra.text.models.model import Message, PromptRefused, Request, SamplingConfig
from palestra.text.servers.calls import Calls
from palestra.text.servers.client import CallFailed, retry_after_s
from palestra.text.servers.config import PricesConfig, ServerConfig
from palestra.text.servers.ledger import BudgetReached, Cost, Usage, worst_of_call
from palestra.text.servers.model import ServerModel
from tests.text.servers.fake import FakeServer, fake_server

SAMPLING = SamplingConfig(temperature=1.0, top_p=0.9, top_k=None, max_tokens=8)
PROMPT = (Message("user", "is it so?"),)
KEY = "sk-hunter2-hunter2"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as made:
        yield made


def config_of(server: FakeServer, **changed: Any) -> ServerConfig:
    usual = {**ServerConfig.usual, "url": server.url, "timeout_s": 5.0, "num_attempts": 3}
    return ServerConfig(name="server", **{**usual, **changed})


class Place:
    """Calls that are kept in a folder, which another one may open again, as after a kill."""

    def __init__(self, path: Path, limit: Cost | None = None, run: str = "me") -> None:
        self.calls, self.folder, self.run = Calls(lambda: False), Folder(path, "calls"), run
        self.limit = limit or Cost(None, None)

    def answers(self, config: ServerConfig, *keys: int) -> list[str]:
        model = ServerModel("verifier", config, self.calls)
        with self.calls.opened(self.folder, self.run, self.limit, 1.0), self.calls.kept_in("0"):
            requests = [Request(PROMPT, key) for key in keys]
            return [each.text for each in model.sample(requests, SAMPLING)]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.folder.read("0.jsonl").splitlines()]


def test_an_answer_is_kept_before_it_is_used_and_never_asked_for_again(server: FakeServer, tmp_path: Path) -> None:
    config = config_of(server, prices=PricesConfig(input=1.0, cached=0.5, output=2.0, trained=0.0))
    place = Place(tmp_path)
    first = place.answers(config, 1, 2, 3)
    assert [line["kind"] for line in place.lines()].count("answered") == 3
    body = json.loads(next(iter(server.asked)))
    said = {key: body[key] for key in ("model", "n", "temperature", "top_p", "max_completion_tokens")}
    assert said == {"model": "base", "n": 1, "temperature": 1.0, "top_p": 0.9, "max_completion_tokens": 8}
    assert body["messages"] == [{"role": "user", "content": "is it so?"}]
    again = Place(tmp_path)
    assert again.answers(config, 1, 2, 3) == first
    assert sum(server.asked.values()) == 3
    costs = again.calls.costs()
    assert (costs["answered"], costs["attempts"], costs["input"]) == (3, 3, 6)
    assert costs["money"] == pytest.approx((6 * 1.0 + costs["output"] * 2.0) / 1e6)
    # what was asked by another run costs nothing here; another model or sampling never meets an old answer
    other = Place(tmp_path, run="branch")
    assert other.answers(config, 1) == first[:1]
    assert other.calls.costs()["tokens"] == 0
    Place(tmp_path).answers(config_of(server, model="another"), 1)
    assert sum(server.asked.values()) == 4


def test_one_sync_keeps_an_answer_and_the_question_of_the_next_call(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: list[list[str]] = []  # the lines of the journal at each sync
    sync = OpenFile.sync

    def noted(file: OpenFile) -> None:
        sync(file)
        on_disk.append([line["kind"] for line in place.lines()])

    monkeypatch.setattr(OpenFile, "sync", noted)
    place = Place(tmp_path)
    place.answers(config_of(server, max_concurrent=1), 1, 2, 3)
    lines = ["asked", "answered"] * 3
    assert on_disk == [lines[:1], lines[:3], lines[:5], lines]


def test_what_a_kill_has_lost_counts_as_the_worst_case_and_is_asked_for_again(
    server: FakeServer, tmp_path: Path
) -> None:
    config, place = config_of(server), Place(tmp_path)
    place.answers(config, 1)
    whole = place.folder.read("0.jsonl")
    asked, _ = whole.splitlines(keepends=True)
    place.folder.write("0.jsonl", asked + b'{"kind": "answ')  # cut by a kill
    again = Place(tmp_path)
    again.answers(config, 1)
    lines = again.lines()
    assert [(line["kind"], line["attempt"]) for line in lines] == [("asked", 0), ("asked", 1), ("answered", 1)]
    worst = worst_of_call(PROMPT, 1, 8, config.exact_prices()).tokens or 0
    assert again.calls.costs()["tokens"] == worst + lines[-1]["spent"]["tokens"]


@pytest.mark.parametrize(
    ("plan", "kinds", "is_paid"),
    [
        (["429 0.05", "429 0.05"], ["failed", "failed", "answered"], [False, False, True]),
        (["500"], ["failed", "answered"], [True, True]),
        (["408"], ["failed", "answered"], [True, True]),
        (["cut"], ["failed", "answered"], [True, True]),
        (["hang 0.8"], ["failed", "answered"], [True, True]),
        (["no_usage"], ["answered"], [True]),
    ],
)
def test_attempts_are_made_again_and_each_of_them_is_counted(
    server: FakeServer, tmp_path: Path, plan: list[str], kinds: list[str], is_paid: list[bool], monkeypatch: Any
) -> None:
    monkeypatch.setattr("palestra.text.servers.client.FIRST_PAUSE_S", 0.02)
    server.plan.extend(plan)
    place = Place(tmp_path)
    place.answers(config_of(server, timeout_s=0.3 if "hang" in plan[0] else 5.0), 1)
    ends = [line for line in place.lines() if line["kind"] != "asked"]
    assert [line["kind"] for line in ends] == kinds
    assert [line["spent"]["tokens"] > 0 for line in ends] == is_paid
    costs = place.calls.costs()
    assert (costs["attempts"], costs["failed"], costs["answered"]) == (len(kinds), len(kinds) - 1, 1)
    if plan == ["no_usage"]:
        assert ends[0]["spent"] == worst_of_call(PROMPT, 1, 8, config_of(server).exact_prices()).line()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (["400"], "HTTP 400: status 400"),
        (["307 https://there/v1?key=a"], "HTTP 307: redirects are not followed, here to https://there/v1?***"),
        (["none"], "expected 1 answers, got 0"),
        (["detail"], "HTTP 404: Not Found, says FastAPI"),
        (["echo"], "HTTP 401: bad key Bearer ***"),
        (["echo_late 985"], "expected a chat completion, got Bearer ***"),
        (["503", "503", "503"], "HTTP 503: status 503; 3 attempts were made (num_attempts)"),
        (["503", "503", "429 9999"], "HTTP 429 (to be asked again after 9,999 s): status 429; 3 attempts were made"),
    ],
)
def test_what_cannot_be_used_ends_in_one_line_without_the_key(
    server: FakeServer, tmp_path: Path, plan: list[str], said: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("palestra.text.servers.client.FIRST_PAUSE_S", 0.02)
    monkeypatch.setenv("MY_SERVER", KEY)
    server.plan.extend(plan)
    place = Place(tmp_path)
    with pytest.raises(CallFailed) as raised:
        place.answers(config_of(server, key="MY_SERVER"), 1)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert KEY[:8] not in str(raised.value)
    assert raised.value.__cause__ is None
    assert KEY[:8].encode() not in place.folder.read("0.jsonl")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("long 5001", "expected a reply of at most 5,000 bytes, got a longer one"),
        ("zipped", "expected a reply that is not compressed, got 'gzip Bearer ***'"),
    ],
)
def test_a_reply_that_could_fill_the_memory_is_refused_counted_and_not_asked_for_again(
    server: FakeServer, tmp_path: Path, plan: str, said: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("palestra.text.servers.client.MOST_REPLY_BYTES", 5000)
    monkeypatch.setenv("MY_SERVER", KEY)
    config = config_of(server, key="MY_SERVER")
    server.plan.extend(["long 5000", plan])
    place = Place(tmp_path)
    assert len(place.answers(config, 1)) == 1
    with pytest.raises(CallFailed, match=re.escape(f"{server.url}: {said}") + "$"):
        place.answers(config, 2)
    assert [line["kind"] for line in place.lines()] == ["asked", "answered", "asked", "failed"]
    assert place.lines()[-1]["spent"] == worst_of_call(PROMPT, 1, 8, config.exact_prices()).line()


def test_a_key_that_a_model_repeats_is_hidden_and_no_other_variable_is_sent(
    server: FakeServer, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MY_SERVER", KEY)
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-somebody-else")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-secret: of-somebody-else")
    server.answer = lambda *_: f"it is {KEY}"
    place = Place(tmp_path)
    assert place.answers(config_of(server, key="MY_SERVER"), 1) == ["it is ***"]
    assert server.headers.pop("authorization") == f"Bearer {KEY}"
    assert "of-somebody-else" not in str(server.headers)
    assert KEY.encode() not in place.folder.read("0.jsonl")
    place.answers(config_of(server), 2)
    assert "authorization" not in server.headers


def test_calls_share_as_many_connections_as_are_out_at_once_and_all_are_closed(
    server: FakeServer, tmp_path: Path
) -> None:
    server.latency_s = 0.01
    place = Place(tmp_path)
    place.answers(config_of(server, max_concurrent=3), *range(12))
    assert server.num_made <= 3
    until = time.monotonic() + 10.0
    while server.num_open and time.monotonic() < until:
        time.sleep(0.01)
    assert not server.num_open


def test_calls_go_through_the_proxy_of_the_environment(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
    place = Place(tmp_path)
    place.answers(config_of(server, url="http://models.invalid/v1"), 1, 2)
    assert server.paths == {"http://models.invalid/v1/chat/completions": 2}


def test_a_missing_key_is_told_before_anything_is_sent(server: FakeServer, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("MY_SERVER", raising=False)
    with pytest.raises(ConfigError, match="expected the environment variable MY_SERVER"):
        Place(tmp_path).answers(config_of(server, key="MY_SERVER"), 1)
    assert not server.asked


def test_no_more_calls_are_out_than_the_config_allows_and_the_budget_stops_them(
    server: FakeServer, tmp_path: Path
) -> None:
    server.latency_s = 0.02
    worst = worst_of_call(PROMPT, 1, 8, config_of(server).exact_prices()).tokens or 0
    place = Place(tmp_path, Cost(2 * worst, None))
    with pytest.raises(BudgetReached):
        place.answers(config_of(server, max_concurrent=3), *range(100))
    assert server.most_at_once <= 2  # both reserve their worst case
    spent = place.calls.costs()["tokens"]
    each = Usage(2, 0, 4).cost(config_of(server).exact_prices()).tokens or 0
    assert 2 * worst - worst < spent + worst
    assert worst < spent <= 2 * worst
    assert spent % each < each
    free = Place(tmp_path / "free")
    free.folder.root.mkdir()
    free.answers(config_of(server, max_concurrent=3), *range(12))
    assert server.most_at_once == 3


def test_calls_are_made_again_after_those_that_the_budget_stopped_are_let_go(
    server: FakeServer, tmp_path: Path
) -> None:
    config = config_of(server, prices=None)
    worst = worst_of_call(PROMPT, 1, 8, config.exact_prices()).tokens or 0
    place = Place(tmp_path, Cost(worst + 50, None))
    server.plan.append("no_usage")
    model = ServerModel("verifier", config, place.calls)
    short = (Message("user", ""),)
    with place.calls.opened(place.folder, "me", place.limit, 1.0), place.calls.kept_in("0"):
        with pytest.raises(BudgetReached):
            model.sample([Request(PROMPT, key) for key in range(4)], SAMPLING)
        place.calls.ledger.limit = Cost(2 * worst, None)
        place.calls.let_go()
        assert len(model.sample([Request(short, 9)], SAMPLING)) == 1, "neither refused nor awaited for ever"
    assert sum(server.asked.values()) == 2


def test_calls_can_be_opened_again_by_the_same_process_although_some_had_waited_for_the_budget(
    server: FakeServer, tmp_path: Path
) -> None:
    config = config_of(server)
    worst = worst_of_call(PROMPT, 1, 8, config.exact_prices()).tokens or 0
    place = Place(tmp_path, Cost(worst + worst // 2, None))
    model = ServerModel("verifier", config, place.calls)
    server.gate.clear()
    with place.calls.opened(place.folder, "me", place.limit, 0.0), place.calls.kept_in("0"):
        for key in range(3):
            model.ask(PROMPT, key, [[key]], SAMPLING)
        while place.calls._settled is None:  # somebody waits
            time.sleep(0.01)
    server.gate.set()
    place.limit = Cost(2 * worst + 50, None)  # one worst case is lost, and the second call waits for the first one
    assert len(place.answers(config, 7, 8)) == 2


def test_nothing_new_is_sent_once_the_run_leaves_and_what_is_out_is_kept(server: FakeServer, tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = ServerModel("verifier", config_of(server, max_concurrent=2), place.calls)
    server.gate.clear()
    with place.calls.opened(place.folder, "me", place.limit, 5.0), place.calls.kept_in("0"):
        for key in range(6):
            model.ask(PROMPT, key, [[key]], SAMPLING)
        while server.num_waiting < 2:
            time.sleep(0.01)
        threading.Timer(0.1, server.gate.set).start()
        place.calls.drain(5.0)
    assert sum(server.asked.values()) == 2
    assert [line["kind"] for line in place.lines()].count("answered") == 2


@pytest.mark.parametrize("num_drains", [1, 2])
def test_what_hangs_is_awaited_once_and_counts_as_its_worst_case(
    num_drains: int, server: FakeServer, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    model = ServerModel("verifier", config_of(server), place.calls)
    server.gate.clear()
    with place.calls.opened(place.folder, "me", place.limit, 0.5), place.calls.kept_in("0"):
        model.ask(PROMPT, 1, [[1]], SAMPLING)
        while not server.num_waiting:
            time.sleep(0.01)
        began_s = time.monotonic()
        for _ in range(num_drains):
            place.calls.drain(0.5)
    assert 0.4 < time.monotonic() - began_s < 0.9
    assert [line["kind"] for line in place.lines()] == ["asked"]
    again = Place(tmp_path)
    with again.calls.opened(again.folder, "me", again.limit, 0.0):
        worst = worst_of_call(PROMPT, 1, 8, config_of(server).exact_prices())
        assert again.calls.costs()["tokens"] == worst.tokens


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "expected a call that was asked"),
        ("[" * 100_000, "recursion"),
        ('{"kind": "failed", "call": "0/a", "attempt": 0, "spent": {"tokens": -5, "money": 0}}', "not negative"),
        (
            '{"kind": "answered", "call": "0/a", "attempt": 0, "choices": [{"text": 1}], "spent": {"tokens": 0, '
            '"money": 0}}',
            "the text of an answer",
        ),
        (
            '{"kind": "answered", "call": "0/a", "attempt": 0, "choices": [], "usage": {"input": "9"}, "spent": '
            '{"tokens": 0, "money": 0}}',
            "numbers of input, cached, output",
        ),
    ],
)
def test_a_journal_of_a_stranger_that_differs_from_what_is_written_is_one_line(
    line: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "0.jsonl").write_text(f"{line}\n")
    place = Place(tmp_path)
    with (
        pytest.raises(RunFolderError, match=f"(?s)0.jsonl is damaged in line 1: .*{said}") as raised,
        place.calls.opened(place.folder, "me", place.limit, 0.0),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_two_processes_never_write_one_journal(server: FakeServer, tmp_path: Path) -> None:
    first, second = Place(tmp_path), Place(tmp_path)
    with first.calls.opened(first.folder, "me", first.limit, 0.0), first.calls.kept_in("0"):
        ServerModel("prover", config_of(server), first.calls).sample([Request(PROMPT, 1)], SAMPLING)
        with pytest.raises(RunFolderError, match="another process makes calls for the run"):
            second.answers(config_of(server), 2)
    assert sum(server.asked.values()) == 1


def test_a_prompt_that_no_server_can_read_is_refused_by_its_index_before_anything_is_sent(
    server: FakeServer, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    model = ServerModel("verifier", config_of(server), place.calls)
    requests = [Request(PROMPT, 1), Request((Message("user", "half of a pair: \ud83d"),), 2), Request(PROMPT, 3)]
    with place.calls.opened(place.folder, "me", place.limit, 1.0), place.calls.kept_in("0"):
        with pytest.raises(PromptRefused, match="no server can read the prompt") as refused:
            model.sample(requests, SAMPLING)
        assert refused.value.index == 1
        model.sample(requests[:1], SAMPLING)
    assert sum(server.asked.values()) == 1


def test_two_processes_never_spend_one_budget(server: FakeServer, tmp_path: Path) -> None:
    first, second = (Place(tmp_path, Cost(150, None)) for _ in range(2))  # of which a call may cost 113
    with first.calls.opened(first.folder, "me", first.limit, 0.0):
        with pytest.raises(RunFolderError, match="another process spends the budget of the run"):
            second.answers(config_of(server), 1)
        Place(tmp_path, run="analysis").answers(config_of(server), 2)
    second.answers(config_of(server), 1)
    assert sum(server.asked.values()) == 2


def test_retry_after_may_be_a_date_and_nonsense_is_passed_over() -> None:
    class Refused(Exception):
        def __init__(self, said: str) -> None:
            self.response = type("Response", (), {"headers": {"retry-after": said}})

    assert retry_after_s(Refused("7")) == 7.0
    assert retry_after_s(Refused("Wed, 21 Oct 2015 07:28:00 GMT")) == 0.0
    assert retry_after_s(Refused("soon")) is None
    assert retry_after_s(Refused("nan")) is None
    assert retry_after_s(ValueError()) is None


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("filtered", ("", "stop")),
        ("refused", ("", "stop")),
        ("null", ("", "length")),
        ("parts", ("in parts", "stop")),
        ("odd", ("as it is", "stop")),
        *((f"ended {json.dumps(said)}", ("as it is", "stop")) for said in ("eos_token", "STOP", None, "tool_calls")),
        ('ended "LENGTH"', ("as it is", "length")),
    ],
)
def test_answers_are_read_as_servers_give_them(
    server: FakeServer, tmp_path: Path, plan: str, expected: tuple[str, str]
) -> None:
    """One that was refused or filtered is empty: it is asked for again by the game, as everywhere."""
    server.plan.append(plan)
    place = Place(tmp_path)
    server.answer = lambda *_: "as it is"
    place.answers(config_of(server), 1)
    [choice] = place.lines()[-1]["choices"]
    assert (choice["text"], choice["stop"]) == expected


@pytest.mark.parametrize("plan", ["one", "zeros", "400", "422"])
def test_a_server_without_n_is_asked_one_by_one_which_is_found_out_once(
    server: FakeServer, tmp_path: Path, plan: str
) -> None:
    server.plan.append(plan)
    server.answer = lambda messages, seed, index: f"{seed}"
    place = Place(tmp_path)
    found = asked_for_several(place, config_of(server), 3)
    assert found == [["7", "8", "9"], ["7", "8", "9"]]
    assert [json.loads(body)["n"] for body in server.asked.elements()].count(3) == 1
    assert sum(server.asked.values()) == 1 + 2 * 3
    num_attempts = sum(line["kind"] == "asked" for line in place.lines())
    assert num_attempts == 7
    assert place.calls.costs()["tokens"] == sum(line["spent"]["tokens"] for line in place.lines() if "spent" in line)


def asked_for_several(place: Place, config: ServerConfig, num: int) -> list[list[str]]:
    """Ask twice for so many answers at once."""
    model, found = ServerModel("verifier", config, place.calls), []
    with place.calls.opened(place.folder, place.run, place.limit, 1.0), place.calls.kept_in("0"):
        for call in range(2):
            ticket = model.ask(PROMPT, 7, [[call, each] for each in range(num)], SAMPLING)
            while not (replies := place.calls.take([ticket], 0.5)):
                pass
            found.append([text for text, _ in replies[ticket].texts])
    return found


def test_a_proxy_that_cannot_be_used_is_one_line_unless_the_server_needs_none(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for proxy in ("socks5://user:hunter2@localhost:1", "odd://localhost:1"):
        monkeypatch.setenv("ALL_PROXY", proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(ConfigError) as raised:
            Place(tmp_path).answers(config_of(server), 1)
        assert raised.value.errors[0].path == "url"
        assert "proxy" in str(raised.value).lower()
        assert not {"\n", "hunter2"} & {*str(raised.value), *re.findall("hunter2", str(raised.value))}
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        assert Place(tmp_path).answers(config_of(server), 1)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSLKEYLOGFILE"])
def test_certificates_that_are_missing_are_one_line_and_none_for_a_server_without_them(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "no" / "such.pem"))
    assert Place(tmp_path).answers(config_of(server), 1)
    with pytest.raises(ConfigError, match=f"expected files that can be .*, got .*{variable}") as raised:
        Place(tmp_path).answers(config_of(server, url="https://localhost:1/v1"), 1)
    assert str(raised.value).count("\n") == 0
