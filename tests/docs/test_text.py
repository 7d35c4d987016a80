"""What docs/text.md shows is run: a scenario, a scripted player, an algorithm and a trainer of one's own."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from resuming import Killed, assert_same_bits, at_call, kill, send_signal

from palestra import make_trainer
from palestra.commands.replay import verify
from palestra.kinds.text.analysing import read_analysis
from palestra.kinds.text.trainer import TextTrainer
from palestra.randomness import base_key, world_keys
from palestra.text.models.local import LocalTuning
from palestra.text.rollouts import Rollouts
from palestra.text.scripts import make_text_script, own_text_script_model
from tests.text.games import first_config, text_config
from tests.text.rows import JOB, dialogue, row, seat
from tests.text.runs import GRADIENT, PLAYER, text_run

PAGE = (Path(__file__).parents[2] / "docs" / "text.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def written(name: str) -> str:
    """Write the file of that name as the page shows it; return its text."""
    [found] = [each for each in BLOCKS if f"class {name}" in each]
    Path(f"{name.lower().removesuffix('ofn')}.py").write_text(found)
    return found


def test_the_scenario_the_player_and_the_prompts_of_the_page_work(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sums.py").write_text("\n".join(BLOCKS))
    [template] = re.findall(r"```jinja\n(.*?)```", PAGE, re.S)
    Path("mine").mkdir()
    Path("mine/system.jinja").write_text(template)
    monkeypatch.syspath_prepend(str(in_tmp_path))
    prompts = {"name": "folder", "path": "mine"}
    game = first_config(protocol="adp", scenario="sums:Sums", prompts=prompts).build()
    for held_out in (False, True):
        keys = world_keys(base_key(0, "a"), 20, torch.device("cpu"))
        for question in game.questions(keys, held_out):
            left, right = question.fields["sum"].split(" = ")
            a, b = map(int, left.split(" + "))
            assert question.label == (a + b == int(right))
            assert a % 2 == held_out
    model = own_text_script_model({"scripted": "sums:Polite"})
    assert model is not None
    polite = make_text_script(model(scripted="sums:Polite", word="Really."), game, ["prover"])  # type: ignore[call-arg]
    dialogue = game.begin(question, 5)
    assert polite.answer(dialogue, "prover", 1).endswith(" Really.")
    assert game.prompt(dialogue, "prover")[0].content.startswith("You are prover.\nShow that the sum is right.")


def test_the_algorithm_and_the_trainer_of_the_page_train_and_resume(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"BestOfN": 40, "Contested": 100}
    assert all(len(written(name).splitlines()) < most for name, most in sizes.items())
    monkeypatch.syspath_prepend(str(in_tmp_path))
    players = {
        "prover": PLAYER | {"algorithm": GRADIENT, "num_retries": 0},
        "verifier": PLAYER | {"algorithm": {"name": "best:BestOfN", "least": -1.0, **JOB}},
    }
    trainer = {"name": "contested:Contested", "least_spread": 0.5}
    config = text_run("adp", players, trainer=trainer, num_questions=8, num_rollouts=4, answers_at_once=99)
    config["game"]["grammar"] |= {"accept": "y", "reject": "n"}
    config["players"]["verifier"]["sampling"]["max_tokens"] = 1
    config["players"]["verifier"]["imitate"]["num_questions"] = 200
    alone = make_trainer(config, run=Path("alone"))
    alone.fit()
    assert alone.opt_steps > alone.players["prover"].opt_steps
    kept = [Rollouts.from_parquet(file.read_bytes()) for file in sorted(Path("alone/rollouts").glob("[0-9]*.parquet"))]
    assert [0 < len(list(each.dialogues())) < 32 for each in kept] == [True, True]
    with at_call(type(alone), "create_jobs", 1, kill), pytest.raises(Killed):
        make_trainer(config, run=Path("run")).fit()
    with at_call(LocalTuning, "step", 2, send_signal):
        TextTrainer.load("run").fit()
    TextTrainer.load("run").fit()
    assert_same_bits(Path("run"), Path("alone"))
    assert verify(Path("run"), None).difference is None


def test_the_algorithm_of_the_page_chooses_the_best_and_shortest(in_tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(written("BestOfN"), names)
    short = [replace(each, answer_ids=(5,)) for each in dialogue(0, 1, 1, rollout=2)]
    rollouts = Rollouts([*dialogue(0, 0, 1), *dialogue(0, 1, 1, rollout=1), *short, *dialogue(1, 0, 1)])
    chosen = names["BestOfN"](SimpleNamespace(least=1.0), seat()).examples(rollouts, torch.tensor([0]))
    assert [(each.row.question, each.row.rollout) for each in chosen] == [(0, 2)]


def test_the_analysis_of_the_page_judges_what_was_said_before(in_tmp_path: Path) -> None:
    [text] = [each for each in BLOCKS if "class Repeats" in each]
    names: dict[str, Any] = {}
    exec(text, names)
    config = names["Repeats"].Config(name="repeats:Repeats", least=2)
    said = ["one two", "why", "two one two four", "one"]
    roles = ["prover", "verifier"] * 2
    rows = [row(node=n, role=roles[n], answer=each, verdict=None) for n, each in enumerate(said)]
    found = names["Repeats"](config, text_config("nip").protocol.build()).judge(rows)
    assert [(each.row.node, each.value) for each in found] == [(2, 0.75)]


def test_the_analysis_of_the_page_that_asks_a_model_takes_the_keys_of_the_shipped_ones(in_tmp_path: Path) -> None:
    [text] = [each for each in BLOCKS if "class Polite(AskingAnalysis)" in each]
    Path("polite.py").write_text(text)
    config = read_analysis("polite:Polite", ["model=new", "model.width=8", "model.num_layers=1", "max_tokens=3"])
    assert (config.model.width, config.sampling.max_tokens, config.answers_at_once) == (8, 3, 64)
    assert config.build(text_config("nip").protocol.build()).question(row(), []) == "Is verifier polite?"
