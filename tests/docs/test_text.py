"""What docs/text.md shows is run: a scenario and a scripted player of one's own, with prompts in a folder."""

import re
from pathlib import Path

import pytest
import torch

from palestra.randomness import base_key, world_keys
from palestra.text.scripts import make_text_script, own_text_script_model
from tests.text.games import first_config

PAGE = (Path(__file__).parents[2] / "docs" / "text.md").read_text()


def test_the_scenario_the_player_and_the_prompts_of_the_page_work(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sums.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)))
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
