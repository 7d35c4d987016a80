"""A scenario of one's own is tried before anybody plays: each broken promise is a line."""

import random
from typing import Any

import pytest
from torch import Tensor

from palestra.config import ConfigError, UserConfig
from palestra.randomness import fold, random_integers
from palestra.text.dialogue import Question
from palestra.text.scenarios.scenario import Drawn, TextScenario, make_text_scenario
from tests.text.games import keys, text_config

PROTOCOL = text_config("adp").protocol.build()


class Parity(TextScenario):
    """Is a number even? Sound."""

    class Config(UserConfig):
        pass

    fields = ("number",)

    def __init__(self, config: Any, protocol: Any) -> None:
        super().__init__(config, protocol)
        self.sees = dict.fromkeys(protocol.roles, self.fields)

    def draw(self, keys: Tensor, held_out: bool) -> list[Drawn]:
        numbers = random_integers(fold(keys, int(held_out)), 1, 100)[:, 0].tolist()
        return [Drawn({"number": str(number)}, int(number % 2 == 0)) for number in numbers]


def made(**changes: Any) -> TextScenario:
    built = type("Odd", (Parity,), changes)

    class Config(Parity.Config):
        def build(self, *arguments: Any) -> Any:
            return built(self, *arguments)

    return make_text_scenario(Config(name="mine:Odd"), PROTOCOL)


def test_a_sound_scenario_passes() -> None:
    scenario = made()
    [drawn] = scenario.draw(keys(1), held_out=False)
    question = Question(0, *drawn)
    assert scenario.argue(question, 1) == "The right answer is to accept."
    assert scenario.describe(question) == f"number: {question.fields['number']}"


def then(change: Any) -> Any:
    return {"draw": lambda self, keys, held_out: change(Parity.draw(self, keys, held_out))}


def raising(*arguments: Any) -> Any:
    raise ArithmeticError("no such\nplace")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"__init__": raising}, "'mine:Odd' cannot be made: ArithmeticError: no such place (test_scenario.py, line "),
        ({"fields": "number"}, "Odd.fields: expected a tuple of names, got 'number'"),
        (
            {"__init__": lambda self, config, protocol: None, "sees": {"prover": ()}},
            "Odd.sees: expected a dict with the roles prover, verifier, got {'prover': ()}",
        ),
        (
            {"__init__": lambda self, config, protocol: None, "sees": {"prover": ("no",), "verifier": ()}},
            "Odd.sees: expected fields (number) for 'prover', got 'no'",
        ),
        ({"draw": raising}, "Odd.draw: raises ArithmeticError: no such place (test_scenario.py, line "),
        (then(lambda drawn: drawn[1:]), "Odd.draw: expected a list of a question per key (100), got 99"),
        (
            then(lambda drawn: [each[0] for each in drawn]),
            "Odd.draw: expected questions as (texts by name, label), got",
        ),
        (
            then(lambda drawn: [({}, label) for _, label in drawn]),
            "Odd.draw: expected a text for each of number, got {",
        ),
        (
            then(lambda drawn: [(texts, 2) for texts, _ in drawn]),
            "Odd.draw: expected the labels to be 0 or 1, got 2",
        ),
        (
            then(lambda drawn: random.sample(drawn, len(drawn))),
            "Odd.draw: expected chance from its keys alone, got numbers from a global random generator",
        ),
        (
            then(lambda drawn: [Drawn({"number": str(place)}, 0) for place, _ in enumerate(drawn)]),
            "Odd.draw: expected a question to come out alone as it does among others, got another one",
        ),
        ({"argue": lambda *_: None}, "Odd.argue: expected a text, got None"),
        ({"describe": raising}, "Odd.describe: raises ArithmeticError: no such place (test_scenario.py, line "),
    ],
)
def test_a_broken_scenario_is_told(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**changes)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(line), lines
