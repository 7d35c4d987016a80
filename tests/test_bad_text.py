"""A user's mistake in a run of players that talk in words: one line, exit code 2, and no folder is made."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import render
from palestra.kinds.text.config import TextConfig
from palestra.kinds.text.starting import starting_text
from palestra.text.models.sources import NewConfig

SMALL = ["num_layers=1", "model.width=16", "num_heads=2", "evaluations=[]", "best=null", "output.display=quiet"]
FEW = ["num_questions=2", "imitate.num_questions=4", "stop.after=1", "output.recorders=[]"]
VERIFIER = "players.verifier"
ROWS = (
    "game.scenario={{name: rows, file: {}, label: answer, sees: {{verifier: [text]}}, held_out: {}, balanced: false}}"
)
HELD_OUT = "{name: fraction, fraction: 0.3, seed: 0}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file that trains, and with folders and files in which something is wrong."""
    here = tmp_path_factory.mktemp("bad")
    game = {"protocol": {"name": "solo_verifier"}, "scenario": {"name": "claims"}}
    config = starting_text("policy_gradient", game, [*SMALL, *FEW])
    (here / "run.yml").write_text(render(config, TextConfig))
    new = NewConfig(name="new", num_layers=1, width=16, num_heads=2, mlp_width=16, context=64, init_std=0.1)
    model = new.build(0, torch.device("cpu"))
    for name in ("no_template", "pickled", "remote"):
        model.export(here / name)
    (here / "no_template" / "chat_template.jinja").unlink()
    (here / "pickled" / "model.safetensors").rename(here / "pickled" / "pytorch_model.bin")
    remote = here / "remote" / "config.json"
    remote.write_text(json.dumps({**json.loads(remote.read_text()), "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}))
    for name, file, text in (("unknown", "system", "{{ letr }}"), ("none", "opening", "?")):
        (here / name).mkdir()
        (here / name / f"{file}.jinja").write_text(text)
    for name, row in (("no_text", ",1"), ("no_label", "c,")):
        (here / f"{name}.csv").write_text(f"text,answer\na,1\nb,0\n{row}\nd,1\n")
    return here


@pytest.fixture
def in_files(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(files)
    yield files
    assert not (files / "run").exists()


def refusal(*overrides: str) -> str:
    """Train, and return the only line that it says."""
    done = CliRunner().invoke(app, ["train", "run.yml", "--run", "run", *overrides])
    assert done.exit_code == 2, (done.output, done.exception)
    [line] = [each for each in done.stderr.splitlines() if not each.startswith("importing")]
    return line


def of_folder(name: str) -> list[str]:
    model = f"{VERIFIER}.model={{name: folder, path: {name}, adapter: null, dtype: float32}}"
    return [model, f"{VERIFIER}.imitate=null"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (of_folder("no_template"), f"{VERIFIER}.model.path: expected a chat template of the tokenizer in 'no_"),
        (of_folder("pickled"), f"{VERIFIER}.model.path: expected model.safetensors or .* got pytorch_model.bin, which"),
        (of_folder("remote"), f"{VERIFIER}.model.path: expected a model without code of its own, got auto_map in "),
        (of_folder("nowhere"), f"{VERIFIER}.model.path: expected a folder with a model, got '/.*nowhere', which "),
        (["game.prompts={name: folder, path: unknown}"], r"game.prompts.path: unknown/system.jinja, line 1: unknown f"),
        (["game.prompts={name: folder, path: none}"], "game.prompts.path: expected verifier.system.jinja or "),
        ([ROWS.format("no_text.csv", HELD_OUT)], r"game.scenario.sees.verifier.0: expected a text .* none in row 2 "),
        ([ROWS.format("no_label.csv", HELD_OUT)], r"game.scenario.label: expected .* in row 2 "),
        (["game.grammar.reject=accept"], "game.grammar.reject: expected another text than that of accept, got 'acc"),
        ([f"{VERIFIER}.sampling.top_p=0.9"], f"{VERIFIER}.sampling.top_p: expected null with a policy g.* got 0.9"),
        ([f"{VERIFIER}.sampling.top_k=3"], f"{VERIFIER}.sampling.top_k: expected null with a policy g.* got 3"),
        ([f"{VERIFIER}.num_retries=1"], f"{VERIFIER}.num_retries: expected 0 with a policy gradient, .* got 1"),
        (["num_rollouts=1"], f"{VERIFIER}.algorithm.advantage: expected 'batch', because num_rollouts is 1, got 'q"),
        ([f"{VERIFIER}.algorithm.loss=supervised"], f"{VERIFIER}.algorithm.loss.name: expected 'policy_gradient', by "),
        ([f"{VERIFIER}.imitate.loss=policy_gradient"], f"{VERIFIER}.imitate.loss.name: expected 'supervised', by "),
        ([f"{VERIFIER}.imitate.scripted=honset"], f"{VERIFIER}.imitate.scripted: expected one of 'random', 'honest', "),
        ([f"{VERIFIER}.imitate.tuning.groups.0.weights=x"], f"{VERIFIER}.imitate.tuning.groups.0.weights: expected"),
        ([f"{VERIFIER}.algorithm.tuning.groups.0.weights=x"], f"{VERIFIER}.algorithm.tuning.groups.0.weights: exp"),
        (["num_replicas=2"], "num_replicas: no such key: players that talk learn in one training, not in replicas"),
        ([f"{VERIFIER}.model.num_heads=5"], f"{VERIFIER}.model.num_heads: expected a divisor of 16 / 2, which is half"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_told_before_there_is_a_folder(
    overrides: list[str], told: str, in_files: Path
) -> None:
    line = refusal(*overrides)
    assert re.match(told, line), line


@pytest.mark.parametrize(("library", "key"), [("transformers", f"{VERIFIER}.model"), ("pyarrow.parquet", "trainer")])
def test_a_missing_extra_is_told_with_the_command_that_brings_it(
    library: str, key: str, in_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    name = library.partition(".")[0]
    assert refusal() == f"{key}: expected {name}, which is not installed: pip install 'palestra[text]'"


def test_a_prompt_that_is_too_long_is_told_before_the_run(in_files: Path, tmp_path: Path) -> None:
    done: Any = CliRunner().invoke(app, ["train", "run.yml", "--run", str(tmp_path / "run"), "context=9"])
    assert done.exit_code == 2
    told = (
        "players.verifier.model: expected a prompt of at least 1 and at most 8 tokens, got 12, in what verifier reads"
    )
    assert told in done.stderr
    assert not (tmp_path / "run").exists()
