"""Stored dialogues are judged, batch by batch, also of a run that trains; what is missing is made up for.

Covers palestra.kinds.text.analysing, palestra.kinds.text.report, palestra.text.analyses.reward,
palestra.text.analyses.stored.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import check, render
from palestra.kinds.text.config import TextConfig
from palestra.kinds.text.report import analyses_section
from palestra.report.figures import Figures
from palestra.report.groups import group_runs
from palestra.report.page import render_sections
from palestra.report.reading import RunData
from palestra.runtime.statistics import estimate_mean
from palestra.storage.disk import Folder
from palestra.storage.lock import Lock
from palestra.storage.run_folder import RunFolder
from palestra.text.analyses import stored
from palestra.text.analyses.stored import Mean
from palestra.text.models.model import Message
from palestra.text.rollouts import Rollouts
from tests.text.rows import row
from tests.text.runs import FIXED, MODEL, PLAYER, text_run
from tests.text.servers.fake import fake_server
from tests.text.servers.runs import at_server

QUOTES = "quotes_what_is_there"
EVIL = 'I read `k` and "<b>\x1b[31m"'
OWN = """
from palestra.config import UserConfig
from palestra.text.analyses.analysis import Analysis, Judgement


class Long(Analysis):
    class Config(UserConfig):
        usual = {"most": 3}
        most: int

    def judge(self, dialogue):
        RETURN
"""
GOOD = "return [Judgement(row, len(row.answer) > self.config.most) for row in dialogue]"


def told(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["analyse", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def run(in_tmp_path: Path) -> Path:
    """A run with two epochs and an evaluation, which nobody has trained."""
    folder = in_tmp_path / "run"
    (folder / "rollouts").mkdir(parents=True)
    config = text_run("nip", {"prover": FIXED, "verifier": PLAYER})
    (folder / "config.yml").write_text(render(check(config, TextConfig), TextConfig))
    for name, epoch in (("0", 0), ("1", 1), ("main-1", 1)):
        write(folder, name, epoch)
    return folder


def write(run: Path, name: str, epoch: int, num: int = 20, answer: str = EVIL) -> None:
    rows = []
    for question in range(num):
        where: dict[str, Any] = {"epoch": epoch, "question": question, "label": question % 2}
        prompt = (Message("user", "k in qwkr"),)
        rows.append(row(**where, role="prover", player="prover", prompt=prompt, answer=answer, verdict=None))
        rows.append(row(**where, node=1, parent=0, round=1, prompt=prompt, answer="Say `no`", verdict=None))
    (run / "rollouts" / f"{name}.parquet").write_bytes(Rollouts(rows).to_parquet())


def write_tree(run: Path, name: str, epoch: int, num: int) -> None:
    """Write a tree of one message and so many answers to it."""
    message = row(epoch=epoch, role="prover", player="prover", answer=EVIL, verdict=None)
    told_in = {"epoch": epoch, "parent": 0, "round": 1, "returns": {"prover": 1.0, "verifier": 1.0}}
    ends = [row(**told_in, node=node + 1, answer=f"Say `{node}`", verdict=None) for node in range(num)]
    (run / "rollouts" / f"{name}.parquet").write_bytes(Rollouts([message, *ends]).to_parquet())


def lines(run: Path, name: str = QUOTES) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "analyses" / f"{name}.jsonl").read_text().splitlines()]


def of(mean: str) -> list[str]:
    """A mean of equal values, with its interval, over 20 decisions on 2 questions."""
    return f"{mean} [{mean}, {mean}] (20 on 2)".split()


def test_the_interval_of_a_mean_is_clustered_by_questions() -> None:
    values = [(0.0, "a"), (1.0, "b"), (1.0, "b"), (0.0, "a"), (1.0, "c"), (0.0, "c")]
    numbers, clusters = torch.tensor([value for value, _ in values]), torch.tensor([0, 1, 1, 0, 2, 2])
    assert Mean.of(values) == (estimate_mean(numbers, clusters), 6, 3)
    assert math.isnan(Mean.of(values[1:3]).score.low)


def test_dialogues_are_listed_by_what_they_got_best_and_worst_first(run: Path) -> None:
    rows = [
        row(epoch=2, question=number, label=number % 2, about=f"item {number}", reward=reward, verdict=verdict)
        for number, (reward, verdict) in enumerate([(0.5, 0), (1.0, 1), (-1.0, None), (0.25, 0), (-0.5, 0)])
    ]
    (run / "rollouts" / "2.parquet").write_bytes(Rollouts(rows).to_parquet())

    def listed(*words: str) -> list[tuple[str, str]]:
        found = told(str(run), "reward", "--epochs", "2", *words).splitlines()
        return [(line.split()[0], line.split(" item ")[1].split()[0]) for line in found if " item " in line]

    assert listed("--show", "1") == [("1.000", "1"), ("-1.000", "2")]
    assert listed("--show", "9") == [("1.000", "1"), (".500", "0"), (".250", "3"), ("-.500", "4"), ("-1.000", "2")]
    assert listed("--show", "9", "--only", "words=reject", "--only", "label=0") == [(".500", "0"), ("-.500", "4")]
    assert listed("--show", "9", "--only", "words=no verdict") == [("-1.000", "2")]
    assert (
        listed("--show", "9", "--only", "role=prover") == listed("--show", "9", "--of", "main", "--epochs", "1") == []
    )
    told_it = told(str(run), "reward", "--show", "1", "--only", "verdict=1", code=2)
    assert "--only: expected KEY=VALUE with a key of about, answer" in told_it


def test_dialogues_are_judged_once_and_later_epochs_are_added(run: Path) -> None:
    assert "no analyses yet" in told(str(run))
    shown = told(str(run), QUOTES)
    assert "\x1b[31m" not in shown
    assert "0: 20 of 20 dialogues are to be judged" in shown
    assert f"{QUOTES}: means over 120 decisions" in shown
    assert [line.split() for line in shown.splitlines()[-3:]] == [
        ["training", "0", *of(".500"), *of(".000")],
        ["training", "1", *of(".500"), *of(".000")],
        ["main", "1", *of(".500"), *of(".000")],
    ]
    header, *dialogues = lines(run)
    assert header == {"config": {"name": QUOTES}, "base": None}
    assert [dialogues[0][key] for key in ("evaluation", "epoch", "question", "rollout", "node", "label")] == [
        *(None, 0, 0, 0, 1, 0)
    ]
    judged = {"node": 0, "round": 0, "role": "prover", "player": "prover", "answer": EVIL, "value": 0.5}
    assert dialogues[0]["judged"][0] == judged | {"words": "not there: <b>\x1b[31m"}
    write(run, "2", 2, num=2)
    shown = told(str(run), QUOTES)
    assert "2: 2 of 2 dialogues" in shown
    assert "0: " not in shown
    assert lines(run)[: 1 + len(dialogues)] == [header, *dialogues]
    assert told(str(run)).splitlines() == shown.splitlines()[1:]


def test_what_is_judged_can_be_chosen(run: Path) -> None:
    told(str(run), QUOTES, "--of", "training", "--epochs", "1..3")
    assert {(each["evaluation"], each["epoch"]) for each in lines(run)[1:]} == {(None, 1)}
    told(str(run), QUOTES, "--of", "main")
    assert {(each["evaluation"], each["epoch"]) for each in lines(run)[1:]} == {(None, 1), ("main", 1)}


def test_a_killed_command_goes_on_with_what_is_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(run, "1", 1, num=20)
    told(str(run), QUOTES)
    whole = lines(run)
    add = stored.Journal.add
    calls = iter(range(99))

    def killed(self: stored.Journal, dialogues: Any) -> None:
        if next(calls) == 3:
            self._file.append(b'{"file": "1", "sha')
            raise KeyboardInterrupt
        add(self, dialogues)

    with monkeypatch.context() as patched:
        patched.setattr(stored.Journal, "add", killed)
        assert CliRunner().invoke(app, ["analyse", str(run), QUOTES, "--anew"]).exit_code != 0
    assert (run / "analyses" / f"{QUOTES}.jsonl").read_bytes().endswith(b'"sha')
    assert "1: 4 of 20 dialogues are to be judged" in told(str(run), QUOTES)
    assert lines(run) == whole


def test_other_keys_and_another_model_do_not_mix_with_what_was_judged(run: Path) -> None:
    write(run, "main-1", 1, num=2)
    model = [f"model.{key}={value}" for key, value in MODEL.items()]
    tokens = ["sampling.max_tokens=2", "--of", "main"]
    told(str(run), "follows_up", *model, "model.context=4096", *tokens)
    before = lines(run, "follows_up")
    assert before[0]["config"]["model"]["width"] == MODEL["width"]
    assert {decision["value"] for each in before[1:] for decision in each["judged"]} == {None}
    expected = "NAME: expected what run/analyses/follows_up.jsonl was judged by, got another"
    assert f"{expected} model; --anew forgets" in told(
        "run", "follows_up", *model, "model.context=4096", "model.mlp_width=8", *tokens, code=2
    )
    assert f"{expected} sampling" in told("run", "follows_up", *model, "model.context=4096", "max_tokens=3", code=2)
    assert lines(run, "follows_up") == before
    told(str(run), "follows_up", *model, "model.context=4096", "max_tokens=1", "--of", "main", "--anew")
    assert lines(run, "follows_up")[0]["config"]["sampling"]["max_tokens"] == 1


def test_dialogues_that_were_written_anew_are_judged_again(run: Path) -> None:
    told(str(run), QUOTES)
    write(run, "0", 0, answer="`k`")
    assert "0: 20 of 20" in told(str(run), QUOTES)


def test_a_class_of_ones_own_judges_and_its_faults_are_one_line(run: Path) -> None:
    def own(body: str) -> str:
        name = f"own{abs(hash(body))}"
        Path(f"{name}.py").write_text(OWN.replace("RETURN", body))
        return f"{name}:Long"

    name = own(GOOD)
    told(str(run), name, "most=5", "--of", "main")
    assert lines(run, name.replace(":", "."))[0]["config"] == {"name": name, "most": 5}
    bodies = {
        "raise KeyError('x')": "judge raises KeyError: 'x' (own",
        "return [Judgement(dialogue[0], float('nan'))]": "judge: expected a number from -1e+100 to 1e+100",
        "return [Judgement(None, 1.0)]": "judge: expected a row of the dialogue, got None",
        "return [1]": "judge: expected a list of Judgement, got [1]",
    }
    for body, line in bodies.items():
        assert line in told(str(run), own(body), code=1)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["follow_up"], "NAME: expected one of 'follows_up', 'quotes_what_is_there', 'keeps_to_role', 'reward', or"),
        (["follows_up"], "model: expected a mapping with `name`, one of "),
        (["follows_up", "model.name=folder", "model.path=nope"], "model.path: expected a folder with a model, got "),
        (["follows_up", "model.path=nope"], "model.name: expected one of "),
        (["follows_up", "model=new", "lenght=3"], "lenght: no such key"),
        (["follows_up", "model=new", "device=gpu"], "device: expected a device of this machine, got 'gpu'"),
        (["nowhere:Own"], "NAME: importing 'nowhere' failed"),
        ([QUOTES, "--of", "mian"], "--of: expected training or main, got 'mian'"),
        ([QUOTES, "--epochs", "7"], "--epochs: expected some of the stored epochs (0 to 1), got none of them"),
        ([QUOTES, "--epochs", "a"], "--epochs: expected epochs as 0..4 or 0,3,7, got 'a'"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Path, words: list[str], line: str) -> None:
    found = told(str(run), *words, code=2)
    assert found.startswith(line)
    assert found.count("\n") == 1
    assert not (run / "analyses").exists()


def judge(messages: list[dict[str, str]], seed: int, index: int) -> str:
    return "Yes: it asks." if "Say" in messages[1]["content"].partition("The message of")[2] else "no"


def test_a_model_behind_a_server_is_asked_once_for_each_message(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server() as server:
        server.answer = judge
        model = [f"model.{key}={value}" for key, value in at_server(server.url).items() if value is not None]
        assert "model.model: expected a model of " in told(
            str(run), "keeps_to_role", *model, "model.model=other", code=2
        )
        assert not (run / "calls").exists()

        def killed(self: stored.Journal, dialogues: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(stored.Journal, "add", killed)
            assert CliRunner().invoke(app, ["analyse", str(run), "keeps_to_role", *model]).exit_code != 0
        assert server.asked.total() == 32
        shown = told(str(run), "keeps_to_role", *model)
        assert server.asked.total() == 80, "in the evaluation the same was said as in epoch 1"
        assert set(server.asked.values()) == {1}
        assert "80 calls, 80 attempts, " in shown
        assert shown.splitlines()[-1].split() == ["main", "1", *of(".000"), *of("1.000")]
        assert lines(run, "keeps_to_role")[1]["judged"][1]["words"] == "Yes: it asks."
        assert [file.name for file in (run / "calls").iterdir()] == ["analyse-keeps_to_role.jsonl"]
        server.plan.append("echo")
        server.models = None
        monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
        found = told(str(run), "follows_up", *model, "model.key=JUDGE_KEY", code=1)
        assert "bad key" in found
        assert "very-secret" not in found
    told(str(run), "keeps_to_role", *model, "model.timeout_s=1.0")  # there is nothing to ask
    assert "model.url: expected a server that can be reached, got " in told(str(run), "follows_up", *model, code=2)


def test_a_strangers_run_imports_nothing(run: Path) -> None:
    Path("theirs.py").write_text('open("imported", "w")')
    text = (run / "config.yml").read_text()
    before, after = text.index("  scenario:"), text.index("  prompts:")
    (run / "config.yml").write_text(f'{text[:before]}  scenario: {{name: "theirs:S"}}\n{text[after:]}')
    for words in (["analyse", str(run), QUOTES], ["play", str(run), "--as", "verifier"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert "module 'theirs'" in done.stderr
        assert "is not trusted, and was not imported" in done.stderr
    assert not Path("imported").exists()


def damage_rollouts(run: Path) -> None:
    (run / "rollouts" / "0.parquet").write_bytes(b"PAR1")


def damage_results(run: Path) -> None:
    told(str(run), QUOTES)
    file = run / "analyses" / f"{QUOTES}.jsonl"
    file.write_text(file.read_text().replace('"label": 0', '"label": 7', 1))


def remove_rollouts(run: Path) -> None:
    for file in (run / "rollouts").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (damage_rollouts, "rollouts/0.parquet is damaged: expected a Parquet file"),
        (damage_results, f"{QUOTES}.jsonl, line 2, is damaged: "),
        (remove_rollouts, "expected roll-outs, got none yet"),
    ],
)
def test_damage_is_one_line(run: Path, damage: Callable[[Path], None], line: str) -> None:
    damage(run)
    found = told(str(run), QUOTES, code=2)
    assert line in found
    assert found.count("\n") == 1


def test_a_run_that_trains_is_only_read_and_an_analysis_has_one_process(run: Path) -> None:
    for name in ("checkpoints", "evaluations"):
        (run / name).mkdir()
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with RunFolder.open(run).lock():
        told(str(run), QUOTES)
    after = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.parent.name != "analyses"}
    after.pop(run / "lock")
    assert after == before
    lock = Lock.take(Folder(run, "analyses"), f"{QUOTES}.jsonl.lock")
    assert lock is not None
    assert "another process is at work on this analysis" in told(str(run), QUOTES, code=2)
    lock.free()


def page(run: Path) -> str:
    [group] = group_runs([RunData.read(run)])
    return render_sections("run", [], analyses_section([group], Figures()))


def test_the_report_shows_means_over_epochs_and_examples_as_texts(run: Path) -> None:
    assert "Analyses" not in page(run)
    told(str(run), QUOTES)
    found = page(run)
    assert "120 decisions of 60 dialogues have a value." in found
    assert f"{QUOTES}, training" in found
    assert f"{QUOTES}, evaluation main" in found
    assert "prover: from .500 in epoch 0 to .500 in epoch 1" in found
    assert "<b>" not in found
    assert "not there: &lt;b&gt;?[31m" in found
    damage_results(run)
    assert "No analysis can be shown: " in page(run)
