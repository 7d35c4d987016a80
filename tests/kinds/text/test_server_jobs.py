"""Runs whose players are tuned by jobs at a server, within budgets and across kills.

Covers palestra.kinds.text.costs, palestra.kinds.text.tunings.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from resuming import records
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError
from palestra.kinds.text.costs import TextCosts
from palestra.kinds.text.evaluations import TextEvaluations
from palestra.kinds.text.trainer import TextTrainer
from palestra.run.kinds import read_config
from palestra.text.models.model import SamplingConfig
from palestra.text.rollouts import Rollouts
from palestra.text.servers import client
from palestra.text.servers.ledger import BudgetReached
from palestra.training.checks import TrainingFailed
from tests.forked import Forked
from tests.text.rows import row
from tests.text.runs import EXPERT, PLAYER, SUPERVISED, Data, text_run
from tests.text.servers.fake_jobs import JobServer, serving
from tests.text.servers.runs import at_server

LOSS = {"name": "supervised", "per": "token"}
TUNING = {"num_passes": 1, "batch_size": "auto", "learning_rate_multiplier": "auto", "poll_s": 0.02, "timeout_s": 30.0}
LEARNS = {"name": "supervised", "scripted": "honest", "loss": LOSS, "begin_from": "before", "tuning": TUNING}
PRICES = {"input": 1.0, "cached": 1.0, "output": 4.0, "trained": 2.0}
HONEST = {"scripted": "honest"}
TREE = {"prompt_ids": (), "answer_ids": (), "log_probs": (), "returns": None}
PAIR = (("bad", -1.0), ("good", 1.0))
EVERY = {"every": 1, "unit": "stages"}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.02)


@pytest.fixture
def fake() -> Iterator[JobServer]:
    with serving(JobServer()) as server:
        yield server


def config(fake: JobServer, verifier: Data = HONEST, player: Data | None = None, **changed: Any) -> Data:
    """Two epochs in which a player at a server is tuned."""
    model = {"model": at_server(fake.url, prices=PRICES), "algorithm": LEARNS, "imitate": None}
    prover = PLAYER | model | (player or {})
    keys = {"num_rollouts": 1, "best": None, **changed}
    run = text_run("nip", {"prover": prover, "verifier": verifier}, **keys)
    for each in run["evaluations"]:
        each["pairings"] = each["pairings"][:1]
    run["output"] |= {"save": EVERY, "record": EVERY}
    return run


def both_at_server(fake: JobServer, player: Data | None = None, **changed: Any) -> Data:
    """A run in which nobody ever decides, if the server does not say so."""
    data = config(fake, player=player, **changed)
    data["players"]["verifier"] = data["players"]["prover"]
    return data


def trained(place: Path, data: Data) -> TextTrainer:
    trainer = palestra.make_trainer(data, run=place)
    trainer.fit()
    assert isinstance(trainer, TextTrainer)
    return trainer


def spent(folder: Path) -> int:
    """The tokens of all calls and jobs of a run, as its journals have them; what is not over costs its worst case."""
    files = [*(folder / "calls").glob("*.jsonl"), folder / "jobs.jsonl"]
    held: dict[Any, int] = {}
    for line in (json.loads(each) for file in files if file.exists() for each in file.read_text().splitlines()):
        place = (line["call"], line["attempt"]) if "call" in line else line["key"]
        if "worst" in line or "spent" in line:
            held[place] = line["worst" if "worst" in line else "spent"]["tokens"]
    return sum(held.values())


def told(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return " ".join((done.output + (done.stderr if code else "")).split())


def test_a_server_tunes_while_players_here_are_tuned_and_the_next_answers_are_of_the_new_model(
    tmp_path: Path, fake: JobServer
) -> None:
    fake.steps, fake.looks = 3, 2
    here = PLAYER | {"algorithm": SUPERVISED, "imitate": None}
    trainer = trained(tmp_path / "run", config(fake, here))
    player = trainer.players["prover"]
    assert player.model.state_dict()["base"] == "base+0+1"
    assert player.opt_steps == 6
    assert trainer.opt_steps == 6 + trainer.players["verifier"].opt_steps
    models = [each["model"] for each in fake.chats]
    assert [name for name, before in zip(models, ["", *models], strict=False) if name != before] == [
        "base",
        "base+0",
        "base+0+1",
    ]
    assert [job["model"] for job in fake.jobs.values()] == ["base", "base+0"]
    told_losses = [each["players"]["prover"].get("loss") for each in records(tmp_path / "run") if "players" in each]
    assert told_losses.count(pytest.approx(1 / 3)) == 2
    page = told("report", tmp_path / "run", "--out", tmp_path / "page.html") and (tmp_path / "page.html").read_text()
    assert "Calls and jobs" in page
    assert "base+0+1" in page
    for path in (tmp_path / "run").rglob("*"):  # a run that goes on finds all it has paid for
        assert path.name != "failure.txt"


def test_a_run_imitates_at_a_server_and_hands_its_model_on(tmp_path: Path, fake: JobServer) -> None:
    imitates = {"scripted": "random", "num_questions": 3, "loss": LOSS, "begin_from": "base", "tuning": TUNING}
    first = config(fake, player={"imitate": imitates, "algorithm": LEARNS | {"begin_from": "base"}}, evaluations=[])
    trained(tmp_path / "run", first | {"stop": {"after": 1, "unit": "epochs"}})
    assert [job["model"] for job in fake.jobs.values()] == ["base", "base"]
    assert [key.split("-")[2] for key in fake.submitted()] == ["imitate", "0"]
    origin = {"from_run": str(tmp_path / "run"), "player": "prover", "checkpoint": "latest"}
    second = config(fake, player={"warm_start": origin}, evaluations=[])
    trainer = trained(tmp_path / "second", second | {"stop": {"after": 1, "unit": "epochs"}})
    assert list(fake.jobs.values())[-1]["model"] == "base+1"
    assert trainer.players["prover"].model.state_dict()["base"] == "base+1+2"
    elsewhere = at_server("http://127.0.0.1:9/v1", prices=PRICES)
    with pytest.raises(ConfigError, match=r"players\.prover\.warm_start: expected a player whose model has url"):
        palestra.make_trainer(config(fake, player={"warm_start": origin, "model": elsewhere}))


def test_a_signal_does_not_wait_for_a_job_which_the_run_finds_again(tmp_path: Path, fake: JobServer) -> None:
    fake.end = None
    trainer = palestra.make_trainer(config(fake, evaluations=[]), run=tmp_path / "run")
    fake.at["job"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    before = time.monotonic()
    trainer.fit()
    assert trainer.run.signals.received == signal.SIGTERM
    assert time.monotonic() - before < 20
    assert trainer.epochs == 0
    fake.end = "succeeded"
    resumed = palestra.Trainer.load(tmp_path / "run")
    resumed.fit()
    assert len(fake.jobs) == 2
    assert records(tmp_path / "run")[-1]["calls"]["expected"] > 0


def test_pairs_go_to_a_server_in_a_file_of_preferences(fake: JobServer) -> None:
    loss = {"name": "preference", "beta": 0.25}
    malt = {"name": "malt", "num_continuations": 2, "most_answers": 1000, **LEARNS, "loss": loss}
    del malt["scripted"]
    data = both_at_server(fake, {"algorithm": malt | {"name": "malt"}})
    trainer = palestra.make_trainer(data)
    player = trainer.players["prover"]
    rows = [row(player="prover", role="prover", answer=answer, reward=reward, **TREE) for answer, reward in PAIR]
    job = player.job(Rollouts(rows), 0, 1)
    assert (job.method, job.parameters, job.begin_from) == ("dpo", {"beta": 0.25}, "before")
    [line] = map(json.loads, job.content.splitlines())
    assert [line[key][0]["content"] for key in ("preferred_output", "non_preferred_output")] == ["good", "bad"]
    assert read_config(data).most_answers() > 5
    bound = TextCosts(read_config(data), *_game_and_players(data)).epoch(0)
    alone = TextCosts(read_config(both_at_server(fake)), *_game_and_players(both_at_server(fake))).epoch(0)
    assert bound.calls > alone.calls
    assert (bound.cost.tokens or 0) > (alone.cost.tokens or 0)


def test_what_is_longer_than_an_answer_may_be_is_cut_between_characters() -> None:
    sampling = SamplingConfig(temperature=1.0, top_p=None, top_k=None, max_tokens=2)
    assert sampling.cut("x" * 40) == "x" * 32
    assert sampling.cut("x" + "é" * 40) == "x" + "é" * 15
    assert sampling.cut("short") == "short"


def test_kills_at_every_step_of_a_job_lose_and_repeat_none(tmp_path: Path, fake: JobServer) -> None:
    fake.steps, fake.looks = 2, 1
    file, run = tmp_path / "config.yml", tmp_path / "run"
    file.write_text(json.dumps(config(fake, evaluations=[])))
    command = ["train", str(file), "--run", str(run)]
    for kind in ("upload", "submit", "job", None):
        process = Forked([sys.executable, "-m", "palestra", *command], env=os.environ)
        if kind is not None:
            with fake.lock:
                fake.at[kind] = lambda pid=process.pid: os.kill(pid, signal.SIGKILL)
        assert process.wait(60) == (0 if kind is None else -signal.SIGKILL), kind
        command = ["resume", str(run)]
    assert [key.split("-", 2)[2] for key in fake.submitted()] == ["0-prover-1", "1-prover-1"]
    assert len(fake.files) == 2
    assert len({json.dumps(each) for each in fake.chats}) == len(fake.chats), "a call was made twice"


def test_a_job_that_is_cancelled_ends_the_run_and_resume_makes_a_new_one(tmp_path: Path, fake: JobServer) -> None:
    fake.end = "cancelled"
    with pytest.raises(TrainingFailed, match="was cancelled: the server says no reason"):
        trained(tmp_path / "run", config(fake, evaluations=[], stop={"after": 1, "unit": "epochs"}))
    fake.end = "succeeded"
    told("resume", tmp_path / "run")
    assert len(fake.jobs) == 2
    assert len(fake.chats) == len({json.dumps(each) for each in fake.chats})


def test_a_run_ends_at_its_budget_and_goes_on_at_that_very_point(tmp_path: Path, fake: JobServer) -> None:
    fake.usage, fake.answer = None, "é" * 500  # so that the worst case counts, which is what they cost
    run, data = tmp_path / "run", both_at_server(fake, stop={"after": 3, "unit": "epochs"})
    costs = TextCosts(read_config(data), *_game_and_players(data))
    whole, least = costs.run(), costs.beginning().plus(costs.epoch(0)).cost.tokens
    assert whole is not None
    with pytest.raises(ConfigError, match=rf"budget.tokens: expected at least {least:,}, which the first epoch may"):
        trained(run, data | {"budget": {"tokens": least - 1, "money": None}})  # type: ignore[operator]
    assert not run.exists()
    trainer = trained(run, data | {"budget": {"tokens": least, "money": None}})
    reasons = set()
    tokens = least or 0
    for _ in range(40):
        if trainer.end_reason is None:
            break
        reasons.add(trainer.end_reason)
        assert spent(run) <= tokens
        assert json.loads((run / "run.json").read_text())["ended"] == trainer.end_reason
        tokens += 700
        told("extend", run, f"budget.tokens={tokens}")
        trainer = palestra.Trainer.load(run)  # type: ignore[assignment]
        trainer.fit()
    assert reasons == {"the budget is spent: the next call or job could pass it"}
    assert trainer.epochs == 3
    assert json.loads((run / "run.json").read_text())["ended"] is None
    assert len({json.dumps(each) for each in fake.chats}) == len(fake.chats), "a call was made twice"
    evaluations = [each["epochs"] for each in records(run) if each["kind"] == "evaluation"]
    assert evaluations[-1] == 3
    assert {0, 1, 2} <= set(evaluations)


def test_an_evaluation_that_the_budget_cuts_off_is_made_once_the_run_goes_on(
    tmp_path: Path, fake: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = TextEvaluations._play

    def cut(self: Any, *arguments: Any) -> Any:
        if self.training.epochs == 1:
            raise BudgetReached
        return play(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TextEvaluations, "_play", cut)
        trainer = trained(tmp_path / "run", config(fake, budget={"tokens": 10**6, "money": None}))
    assert (trainer.end_reason, trainer.epochs) == ("the budget is spent: the next call or job could pass it", 1)
    trainer = palestra.Trainer.load(tmp_path / "run")  # type: ignore[assignment]
    trainer.extend(["budget.tokens=2000000"])
    trainer.fit()
    assert [each["epochs"] for each in records(tmp_path / "run") if each["kind"] == "evaluation"] == [0, 1, 2]


def test_an_epoch_that_learns_from_all_before_it_costs_more(fake: JobServer) -> None:
    data = config(fake, player={"algorithm": EXPERT | {"loss": LOSS, "tuning": TUNING}})
    costs = TextCosts(read_config(data), *_game_and_players(data))
    assert (costs.epoch(1).cost.tokens or 0) > (costs.epoch(0).cost.tokens or 0)


def test_a_run_without_a_foreseeable_end_is_priced_by_the_epoch(
    fake: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palestra.kinds.text.costs.MOST_EPOCHS", 2)
    data = config(fake, stop={"after": 10**9, "unit": "epochs"})
    by_epoch, in_all, _ = TextCosts(read_config(data), *_game_and_players(data)).lines()
    assert "at most: 12 calls and 1 job," in by_epoch
    assert in_all.endswith("at most: not computed, because the run has more than 2 epochs")


def _game_and_players(data: Data) -> tuple[Any, Any]:
    read: Any = read_config(data)
    players = {name: each for name, each in read.players.items() if hasattr(each, "model")}
    return read.game.build(), players


def test_no_run_costs_more_than_check_says(tmp_path: Path, fake: JobServer) -> None:
    fake.usage = fake.trained = None  # so that the worst case counts
    fake.answer = "é" * 500  # longer than any answer may be
    imitates = {"scripted": "random", "num_questions": 3, "loss": LOSS, "begin_from": "base", "tuning": TUNING}
    data = both_at_server(fake, {"imitate": imitates, "num_retries": 0}, num_questions=2, num_rollouts=3)
    costs = TextCosts(read_config(data), *_game_and_players(data))
    bound = costs.run()
    assert bound is not None
    trained(tmp_path / "run", data | {"budget": {"tokens": bound.cost.tokens, "money": bound.cost.in_money() + 1e-6}})
    assert (bound.cost.tokens or 0) / 2 < spent(tmp_path / "run") <= (bound.cost.tokens or 0)
    assert fake.counts["chat"] <= bound.calls
    calls_of_epoch = (tmp_path / "run" / "calls" / "0.jsonl").read_text().count('"asked"')
    assert calls_of_epoch == costs.epoch(0).calls, "nobody ever decides"
    assert fake.counts["submit"] <= bound.jobs


@pytest.mark.parametrize(("stance", "expected"), [("accept", {2: 1, 33: 2, 65: 3}), ("drawn", {2: 2, 33: 2, 34: 3})])
def test_the_openings_of_all_roll_outs_of_a_question_are_few_calls(
    stance: str, expected: dict[int, int], fake: JobServer
) -> None:
    def calls(num_rollouts: int) -> int:
        data = both_at_server(fake, {"num_retries": 0}, num_questions=1, num_rollouts=num_rollouts)
        data["game"]["protocol"]["stance"] = stance
        return TextCosts(read_config(data), *_game_and_players(data)).epoch(0).calls

    others = calls(1) - 1  # those of a dialogue after its opening
    assert {num: calls(num) - num * others for num in expected} == expected, (
        "at most 32 answers to one prompt are a call"
    )


def test_check_prices_a_run_without_network_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    nowhere = JobServer()
    nowhere.url = "http://127.0.0.1:9/v1"
    data = config(nowhere)
    data["players"]["prover"]["model"]["key"] = "NO_SUCH_KEY"
    file = tmp_path / "config.yml"
    file.write_text(json.dumps(data))
    said = told("check", file)
    assert "servers are asked, in an epoch without its evaluations, for at most: 12 calls and 1 job," in said
    assert "servers are asked, in the whole run with its evaluations, for at most: 76 calls and 2 jobs," in said
    assert "tokens in all, which cost 0." in said


def test_a_branch_takes_finished_jobs_along(tmp_path: Path, fake: JobServer) -> None:
    data = config(fake, evaluations=[], stop={"after": 1, "unit": "epochs"})
    trained(tmp_path / "run", data | {"output": data["output"] | {"keep_every": 1}})
    checkpoint = tmp_path / "run" / "checkpoints" / "00000002"  # before its only job
    branch = palestra.Trainer.branch(checkpoint, ["budget={tokens: 100000, money: null}"], run=tmp_path / "branch")
    branch.fit()
    assert len(fake.jobs) == 1
    assert branch.players["prover"].model.state_dict()["base"] == "base+0"


WRONG: dict[str, tuple[Data, str]] = {
    "tuning of a local model": (
        {"algorithm": SUPERVISED},
        "players.prover.algorithm.tuning: expected num_passes, batch_size, learning_rate_multiplier, poll_s, timeout_s,"
        " because the model is behind a server, got other keys",
    ),
    "tuning of a server": (
        {"model": PLAYER["model"]},
        "players.prover.algorithm.tuning: expected num_passes, batch_size, num_microbatches, groups, max_grad_norm, "
        "precision, because the model is in this process, got other keys",
    ),
    "by answer": (
        {"algorithm": LEARNS | {"loss": {"name": "supervised", "per": "answer"}}},
        "players.prover.algorithm.loss.per: expected 'token', because servers know no other, got 'answer'",
    ),
    "batches of none": (
        {"algorithm": LEARNS | {"tuning": TUNING | {"batch_size": 0}}},
        "players.prover.algorithm.tuning.batch_size: expected",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_a_server_is_one_line(case: str, fake: JobServer) -> None:
    changed, line = WRONG[case]
    with pytest.raises(ConfigError) as failed:
        read_config(config(fake, player=changed))
    assert str(failed.value).startswith(line)
    assert len(str(failed.value).splitlines()) == 1
