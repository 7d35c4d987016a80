"""Runs with a player behind a server: nothing is bought twice, budgets and signals hold, and no key leaves."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from resuming import records
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.config.own_modules import Source, checking, read_trusted
from palestra.kinds.text.config import BUDGET_IS_SPENT
from palestra.kinds.text.costs import TextCosts
from palestra.kinds.text.trainer import TextTrainer
from palestra.run.kinds import read_config
from palestra.serving.source import facts_of, find_source
from palestra.storage.disk import Folder, RunFolderError
from palestra.text.models.sources import NewConfig
from palestra.text.rollouts import Rollouts
from palestra.training.checks import TrainingFailed
from tests.forked import Forked
from tests.text.runs import FIXED, PLAYER, SUPERVISED, text_run
from tests.text.servers.fake import FakeServer, fake_server
from tests.text.servers.runs import Data, all_at_server, at_server, server_run

KEY = "sk-hunter2-hunter2"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as made:
        yield made


def fit(run: Path, config: Data) -> TextTrainer:
    """Train a new run, or go on with one."""
    trainer = TextTrainer.load(run) if (run / "run.json").exists() else make_trainer(config, run=run)
    trainer.fit()
    assert isinstance(trainer, TextTrainer)
    return trainer


def rollouts(run: Path, name: str = "0") -> list[tuple[int, int, int, str, str]]:
    rows = Rollouts.from_parquet((run / "rollouts" / f"{name}.parquet").read_bytes()).rows
    return [(row.question, row.rollout, row.node, row.role, row.answer) for row in rows]


def lines(run: Path, stage: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "calls" / f"{stage}.jsonl").read_text().splitlines()]


def told(words: Sequence[str], code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output + (done.stderr if code else "")


def without_evaluations(config: Data) -> Data:
    return config | {"evaluations": []}


# ---- what is kept ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeServer, Path, Data]]:
    """A finished run, and the server that it knows."""
    with fake_server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_SERVER", KEY)
        server.answer = lambda messages, seed, index: f"{KEY} {seed} {index}"
        run = tmp_path_factory.mktemp("server") / "run"
        prices = {"input": 1.0, "cached": 0.5, "output": 2.0, "trained": 0.0}
        config = server_run(server.url, {"key": "MY_SERVER", "prices": prices}, num_rollouts=2)
        config["output"] |= {"keep_last": 9, "save": {"every": 1, "unit": "stages"}}
        fit(run, config)
        yield server, run, config


def test_a_run_says_what_its_calls_were_and_has_the_key_in_no_file(finished: tuple[FakeServer, Path, Data]) -> None:
    server, run, _ = finished
    assert server.headers["authorization"] == f"Bearer {KEY}"
    for path in run.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
    assert any("*** " in answer for *_, role, answer in rollouts(run) if role == "prover")
    said = [record["calls"] for record in records(run) if record["kind"] == "training"][-1]
    assert said["answered"] == said["attempts"] == sum(server.answered.values())
    assert said["money"] == pytest.approx((said["input"] + 2 * said["output"]) / 1e6)
    assert set(map(len, [server.asked.values()])) == {len(server.asked)}
    assert max(server.asked.values()) == 1, "no request is made twice"
    [dialogues] = [record["dialogues"] for record in records(run) if "dialogues" in record]
    known = [name for name in dialogues if name.startswith("tokens/")]
    assert known == ["tokens/verifier"], "nobody knows how many tokens an answer of a server has"
    assert "calls/money" in told(["table", str(run)])
    told(["report", str(run)])
    assert KEY not in (page := (run / "report.html").read_text())
    assert "answered" in page


def test_a_finished_run_is_resumed_without_the_key_and_one_that_is_extended_is_not(
    finished: tuple[FakeServer, Path, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _, _ = finished
    run = Path(shutil.copytree(finished[1], tmp_path / "run"))
    asked, got, then = +server.asked, +server.paths, records(run)
    monkeypatch.delenv("MY_SERVER", raising=False)
    told(["resume", str(run)])
    assert (server.asked, server.paths, records(run)) == (asked, got, then)
    assert "players.prover.model.key: expected the environment" in told(["extend", str(run), "stop.after=2"], 2)
    assert "players.prover.model.key: expected the environment" in told(["resume", str(run)], 2)


def test_evaluate_keeps_its_calls_and_buys_them_once(finished: tuple[FakeServer, Path, Data]) -> None:
    server, run, _ = finished
    before = sum(server.asked.values())
    words = ["evaluate", str(run), "--games", "2"]
    told(words)
    assert (bought := sum(server.asked.values()) - before) > 0
    assert len([line for line in lines(run, "evaluate") if line["kind"] == "answered"]) == bought
    told(words)
    assert sum(server.asked.values()) == before + bought


def test_an_analysis_keeps_its_calls_too(finished: tuple[FakeServer, Path, Data], monkeypatch: Any) -> None:
    server, run, _ = finished
    monkeypatch.setattr(server, "answer", lambda *_: "yes, it is there")
    before = sum(server.asked.values())
    words = [
        "analyse",
        str(run),
        "follows_up",
        "model.name=server",
        f"model.url={server.url}",
        "--of",
        "main",
    ]
    told([*words, "model.model=base"])
    bought = sum(server.asked.values()) - before
    assert 0 < bought == sum(line["kind"] == "answered" for line in lines(run, "analyse-follows_up"))
    told([*words, "model.model=base", "--anew"])
    assert sum(server.asked.values()) == before + bought
    assert "(base), got 'other'" in " ".join(told([*words, "model.model=other", "--anew"], 2).split())


def test_a_branch_takes_answers_along_and_has_spent_nothing(
    finished: tuple[FakeServer, Path, Data], tmp_path: Path
) -> None:
    server, run, _ = finished
    before = sum(server.asked.values())
    branch = TextTrainer.branch(run / "checkpoints" / "0", [], run=tmp_path / "branch")
    branch.fit()
    assert sum(server.asked.values()) == before
    assert rollouts(tmp_path / "branch") == rollouts(run)
    assert branch.servers.calls.costs()["tokens"] == 0
    assert {path.name for path in (tmp_path / "branch" / "calls").iterdir()} >= {"0.jsonl", "main-0.jsonl"}


def test_a_player_of_another_run_is_asked_where_it_stands(
    finished: tuple[FakeServer, Path, Data], tmp_path: Path
) -> None:
    server, run, config = finished
    seat = {"from_run": str(run), "player": "prover", "checkpoint": "latest"}
    other = without_evaluations(config | {"players": config["players"] | {"prover": seat}, "seed": 5})
    before = sum(server.asked.values())
    fit(tmp_path / "other", other)
    asked = sum(server.asked.values())
    assert asked > before
    assert kept_answers(tmp_path / "other") == asked - before
    with pytest.raises(RunFolderError, match="expected models in this process"):
        TextTrainer.load(tmp_path / "other").require_repeatable()


def test_commands_that_need_a_model_here_say_so(finished: tuple[FakeServer, Path, Data]) -> None:
    server, run, _ = finished
    before = sum(server.asked.values())
    assert "got player 'prover' behind a server" in told(["verify", str(run)], 2)
    said = told(["export", str(run), "--player", "prover"], 2)
    assert (
        f"expected a player with a model in this process, got 'prover', whose model stands behind {server.url}" in said
    )
    assert sum(server.asked.values()) == before
    assert not (run / "export").exists()


# ---- kills and signals -----------------------------------------------------------------------------------


def test_kill_9_repeats_at_most_the_calls_in_flight(server: FakeServer, tmp_path: Path) -> None:
    """The roll-outs are those of an unkilled run, by the server's count nothing that was answered is asked again."""
    config = all_at_server(server.url, num_questions=4)
    config["evaluations"][0] |= {"num_games": 2, "final_num_games": 2}
    unkilled = fit(tmp_path / "unkilled", config)
    whole = +server.asked
    server.asked.clear()
    server.answered.clear()
    run, file = tmp_path / "run", tmp_path / "run.yml"
    file.write_text(json.dumps(config))
    for stop_at in (2, 9, 20):  # answers
        new = ["train", str(file), "--run", str(run)] if not (run / "run.json").exists() else ["resume", str(run)]
        server.latency_s = 0.02
        with Forked([sys.executable, "-m", "palestra", *new]) as process:
            while sum(server.answered.values()) < stop_at and process.poll() is None:
                time.sleep(0.002)
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        while server.num_waiting:
            time.sleep(0.01)
    before, kept = +server.asked, kept_answers(run)
    server.latency_s = 0.0
    resumed = fit(run, config)
    assert resumed.tokens == unkilled.tokens == tokens_written(run, "0") > 0
    assert server.asked.keys() == whole.keys()
    assert sum(server.asked.values()) - sum(before.values()) == sum(whole.values()) - kept
    assert sum((server.asked - whole).values()) <= 3 * 4, "max_concurrent calls were in flight"
    for name in ("0", "main-0", "main-1"):
        assert rollouts(run, name) == rollouts(tmp_path / "unkilled", name)


def tokens_written(run: Path, stage: str) -> int:
    return sum(line["usage"]["output"] for line in lines(run, stage) if line["kind"] == "answered")


def kept_answers(run: Path) -> int:
    found: Counter[str] = Counter()
    for path in (run / "calls").glob("*.jsonl"):
        content = path.read_bytes()
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            said = json.loads(line)
            if said["kind"] == "answered":
                found[said["call"]] += 1
    assert not found or max(found.values()) == 1
    return len(found)


def test_a_mirror_takes_answers_along(server: FakeServer, tmp_path: Path) -> None:
    mirror = {"url": f"file://{tmp_path}/mirrored", "options": {}, "attempts": 1, "first_wait_s": 0.0}
    config = without_evaluations(server_run(server.url))
    config["output"] |= {"mirror": {**mirror, "end_wait_s": 20.0}, "save": {"every": 1, "unit": "stages"}}
    trainer = fit(tmp_path / "run", config)
    asked, whole = +server.asked, rollouts(tmp_path / "run")
    url = f"file://{tmp_path}/mirrored/run"
    fetched = TextTrainer.load(url, into=tmp_path / "fetched")
    fetched.fit()
    assert (tmp_path / "fetched" / "calls" / "0.jsonl").read_bytes() == (tmp_path / "run/calls/0.jsonl").read_bytes()
    assert (server.asked, rollouts(tmp_path / "fetched")) == (asked, whole)
    assert fetched.servers.calls.costs() == trainer.servers.calls.costs()


@pytest.mark.parametrize("where", ["sample", "evaluation"])
def test_a_signal_sends_nothing_new_and_keeps_what_is_out(where: str, server: FakeServer, tmp_path: Path) -> None:
    config = server_run(server.url, num_rollouts=2)
    config = config if where == "evaluation" else without_evaluations(config)
    trainer = make_trainer(config, run=tmp_path / "run")
    server.gate.clear()

    def leave() -> None:
        while not server.num_waiting:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        server.gate.set()

    thread = threading.Thread(target=leave)
    thread.start()
    trainer.fit()
    thread.join()
    asked = sum(server.asked.values())
    assert trainer.run.signals.received == signal.SIGTERM
    assert 0 < asked <= 4
    assert kept_answers(tmp_path / "run") == asked
    fit(tmp_path / "run", config)
    assert max(server.asked.values()) == 1


def test_safe_points_are_reached_while_calls_are_out(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[float] = []
    safe_point = TextTrainer.safe_point

    def noted(self: TextTrainer) -> None:
        moments.append(time.monotonic())
        safe_point(self)

    monkeypatch.setattr(TextTrainer, "safe_point", noted)
    server.gate.clear()
    threading.Timer(2.5, server.gate.set).start()
    fit(tmp_path / "run", without_evaluations(server_run(server.url, num_questions=1, num_rollouts=1)))
    pauses = [later - before for before, later in pairwise(moments)]
    assert max(pauses) < 1.0


# ---- budgets ---------------------------------------------------------------------------------------------


def test_a_budget_ends_the_run_and_extend_goes_on_there(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextCosts, "require_affordable", lambda _: None)  # it is far below an epoch's worst case
    prices = {"input": 1.0, "cached": 1.0, "output": 1.0, "trained": 1.0}
    config = server_run(server.url, {"prices": prices}, budget={"tokens": 200, "money": 1.0})
    config["evaluations"][0] |= {"interval": None, "at_start": False}
    run = tmp_path / "run"
    trainer = fit(run, config)
    assert (trainer.end_reason, trainer.epochs) == (BUDGET_IS_SPENT, 0)
    assert 50 < trainer.servers.calls.costs()["tokens"] <= 200
    assert json.loads((run / "run.json").read_text())["ended"] == BUDGET_IS_SPENT
    assert [record["kind"] for record in records(run)] == ["training"], "the final evaluation cannot be paid"
    asked = +server.asked
    assert trainer.run.finished_line(BUDGET_IS_SPENT).endswith("budget.money=2")
    told(["resume", str(run)])
    assert server.asked == asked
    said = told(["extend", str(run), "stop.after=9"], 2)
    assert BUDGET_IS_SPENT in said
    told(["extend", str(run), "budget.tokens=100000"])
    assert json.loads((run / "run.json").read_text())["ended"] is None
    trainer = fit(run, config)
    assert (trainer.end_reason, trainer.epochs, trainer.finished) == (None, 1, True)
    assert max(server.asked.values()) == 1
    fit(tmp_path / "other", config | {"budget": None})
    assert rollouts(run) == rollouts(tmp_path / "other")


def test_a_final_evaluation_that_a_spent_budget_can_pay_is_made(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextCosts, "require_affordable", lambda _: None)
    prover = FIXED | {"model": at_server(server.url), "num_retries": 0}
    prover["sampling"] = FIXED["sampling"] | {"max_tokens": 100}
    verifier = PLAYER | {"algorithm": SUPERVISED, "imitate": None}
    keys = {"num_questions": 3, "num_rollouts": 8, "best": None, "stop": {"after": 1, "unit": "epochs"}}
    config = text_run("adp", {"prover": prover, "verifier": verifier}, budget={"tokens": 1400, "money": None}, **keys)
    pairings = [{"prover": "prover", "verifier": "random"}]
    config["evaluations"][0] |= {"interval": None, "at_start": False, "final_num_games": 1, "pairings": pairings}
    server.plan.append("no_usage")  # of a call for the first answers on a question, which costs its worst case
    trainer = fit(tmp_path / "run", config)
    assert (trainer.end_reason, trainer.epochs) == (BUDGET_IS_SPENT, 0)
    assert [json.loads(body)["n"] for body in server.asked] == [8, 1]
    assert "evaluation" in [record["kind"] for record in records(tmp_path / "run")]


# ---- bad input, and strangers ------------------------------------------------------------------------------


def test_a_call_that_fails_before_the_first_checkpoint_loses_no_answer(server: FakeServer, tmp_path: Path) -> None:
    server.plan.extend(["answer", "400"])
    config = server_run(server.url)
    with pytest.raises(TrainingFailed, match="HTTP 400: status 400") as raised:
        fit(tmp_path / "run", config)
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    kept = f"the answers of servers are kept; to resume: palestra resume {tmp_path / 'run'}"
    assert kept in str(raised.value)
    fit(tmp_path / "run", config)
    assert sorted(server.asked.values())[-2:] == [1, 2], "the one that was refused is asked for again"


@pytest.mark.parametrize(
    ("change", "path", "said"),
    [
        (lambda m: m.update(key="MY_SERVER"), "players.prover.model.key", "the environment variable MY_SERVER"),
        (lambda m: m.update(model="other"), "players.prover.model.model", "(base), got 'other'"),
        (lambda m: m.update(url="http://127.0.0.1:9/v1"), "players.prover.model.url", "a server that can be reached"),
        (lambda m: m.update(url=m["url"].removesuffix("/v1")), "players.prover.model.url", "interface begins, http"),
    ],
)
def test_what_is_wrong_with_a_server_is_told_before_there_is_a_folder(
    change: Callable[[Data], None],
    path: str,
    said: str,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MY_SERVER", raising=False)
    config = server_run(server.url)
    change(config["players"]["prover"]["model"])
    with pytest.raises(ConfigError) as raised:
        fit(tmp_path / "run", config)
    [error] = raised.value.errors
    assert (error.path, said in error.message) == (path, True), error
    assert not (tmp_path / "run").exists()
    assert not server.asked


def test_a_server_that_does_not_list_its_models_is_accepted(server: FakeServer, tmp_path: Path) -> None:
    server.models = None
    make_trainer(server_run(server.url), run=tmp_path / "run").require_ready()


def test_a_missing_extra_is_told_before_there_is_a_folder_and_check_needs_none(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = server_run("http://127.0.0.1:9/v1", {"key": "NOT_SET"})
    (tmp_path / "run.yml").write_text(json.dumps(config))
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "complete and consistent" in told(["check", str(tmp_path / "run.yml")])
    with pytest.raises(ConfigError, match=r"players.prover.*: expected openai, .* pip install 'palestra\[server\]'"):
        fit(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_configs_that_do_not_fit_a_server_are_refused_key_by_key(server: FakeServer) -> None:
    config = server_run(server.url, budget={"tokens": None, "money": 1.0})
    config["evaluators"] = {"num_processes": 1, "results": {"after": 6, "unit": "opt_steps"}}
    config["evaluators"] |= {"timeout_s": 120.0, "max_restarts": 1}
    with pytest.raises(ConfigError) as raised:
        make_trainer(config)
    assert {error.path for error in raised.value.errors} == {"evaluators", "players.prover.model.prices"}


def test_a_server_that_a_checked_config_names_is_trusted_by_training_so_that_resume_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    with checking():  # as `train ALGORITHM GAME OVERRIDES` makes its config
        config = read_config(without_evaluations(server_run("http://127.0.0.1:9/v1")))
    assert not read_trusted()
    make_trainer(config)
    assert read_trusted() == {Source("to send it prompts", "http://127.0.0.1:9/v1", "")}


def test_a_strangers_run_sends_no_key_and_no_prompt_before_it_is_trusted(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    run = tmp_path / "run"
    fit(run, without_evaluations(server_run(server.url)))
    config = yaml.safe_load((run / "config.yml").read_text())
    config["players"]["prover"]["model"]["key"] = "AWS_SECRET_ACCESS_KEY"
    (run / "config.yml").write_text(yaml.safe_dump(config))
    asked, got = +server.asked, +server.paths
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    line = f"{server.url} is not trusted, and was not used to send it prompts and the key in AWS_SECRET_ACCESS_KEY"
    for words in (
        ["resume", str(run)],
        ["evaluate", str(run), "--pairing", "prover=prover,verifier=random"],
        ["branch", str(run / "checkpoints" / "latest"), "seed=1", "--run", str(tmp_path / "branch")],
        ["extend", str(run), "stop.after=2"],
        ["verify", str(run)],
    ):
        said = told(words, 2)
        assert line in " ".join(said.split()), said
        assert KEY not in said
    told(["report", str(run)])
    told(["analyse", str(run), "quotes_what_is_there"])
    told(["export", str(run), "--player", "verifier"])
    served = find_source(facts_of(run, "verifier", None), Folder(tmp_path).below("served"))
    assert isinstance(served.config, NewConfig)
    assert not read_trusted()
    with pytest.raises(Exception, match="is not trusted"):
        TextTrainer.load(run)
    assert (server.asked, server.paths) == (asked, got)


def test_verify_is_refused_in_python_too(finished: tuple[FakeServer, Path, Data]) -> None:
    with pytest.raises(RunFolderError, match="expected models in this process"):
        TextTrainer.load(finished[1]).require_repeatable()
