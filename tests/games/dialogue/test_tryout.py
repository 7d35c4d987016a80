"""Protocols and scenarios of one's own are tried: each broken promise is a line that names class, method and entry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import ConfigError, UserConfig
from palestra.games.dialogue.protocol import RewardsConfig
from palestra.games.dialogue.protocols import Adp
from palestra.games.dialogue.scenario import Scenario
from palestra.games.dialogue.tryout import ScenarioTryOut, make_protocol, make_scenario
from palestra.games.spaces import Space
from palestra.randomness import fold, global_states, random_floats, random_integers

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


class OwnAdp(Adp):
    class Config(UserConfig):
        stance: str
        """as in adp"""
        rewards: RewardsConfig
        """what verifiers and provers get"""


class Coins(Scenario):
    """Is a coin heads? Sound."""

    class Config(UserConfig):
        pass

    num_tokens = 3

    def spaces(self, role: str) -> dict[str, Space]:
        return {"coin": Space((2,), torch.float32, padded=False)}

    def draw(self, keys: torch.Tensor, held_out: bool) -> Any:
        label = random_integers(fold(keys, 0), 1, 2).squeeze(1)
        return {"coin": torch.nn.functional.one_hot(label, 2)}, label

    def view(self, instances: Any, role: str, messages: torch.Tensor) -> Any:
        return {"coin": instances["coin"].float()}


def protocol(**changes: Any) -> Any:
    """The config of a protocol with other methods or attributes."""
    made = type("Odd", (OwnAdp,), changes)

    class Config(OwnAdp.Config):  # type: ignore[name-defined, misc]
        def build(self) -> Any:
            return made(self)

    return Config(name="mine:Odd", stance="accept", rewards=RewardsConfig(**RewardsConfig.usual))


def scenario(**changes: Any) -> Any:
    made = type("Odd", (Coins,), changes)

    class Config(Coins.Config):  # type: ignore[name-defined, misc]
        def build(self, *arguments: Any) -> Any:
            return made(self, *arguments)

    return Config(name="mine:Odd")


def told(make: Callable[[], Any]) -> list[str]:
    before = global_states()
    with pytest.raises(ConfigError) as caught:
        make()
    assert global_states() == before
    assert all("\n" not in str(item) for item in caught.value.errors)
    return [str(item) for item in caught.value.errors]


def raising(*arguments: Any) -> Any:
    raise ArithmeticError("no such\nplace")


def then(method: str, change: Callable[..., Any]) -> dict[str, Any]:
    """A method whose result is changed: change(result, *arguments)."""
    original = getattr(Coins, method)
    return {method: lambda made, *arguments: change(original(made, *arguments), *arguments)}


def random_answers() -> Any:
    answers = iter(range(10**6))
    return lambda *_: float(next(answers))


# ---- protocols -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"speaks": raising}, "Odd.speaks: raises ArithmeticError: no such place (test_tryout.py, line "),
        (
            {"speaks": lambda *_: None},
            "Odd.speaks: expected True or False for 'prover' in 'main' in round 0, got None",
        ),
        (
            {"speaks": lambda self, role, *_: int(role == "prover"), "num_variants": 2},
            "Odd.speaks: expected True or False for 'prover' in 'main' in round 0 of variant 0, got 1",
        ),
        ({"is_active": lambda *_: "yes"}, "Odd.is_active: expected True or False for 'verifier' in round 0, got 'yes'"),
        (
            {"reward": lambda *_: None},
            "Odd.reward: expected a finite number for 'prover' with the verdicts {'verifier': 0} and the label 0, got "
            "None",
        ),
        (
            {"paid_for": lambda *_: ["verifier"]},
            "Odd.paid_for: expected a tuple of roles for 'verifier', got ['verifier']",
        ),
        ({"reward": lambda *_: float("nan")}, "Odd.reward: expected a finite number for 'prover' with the verdicts"),
        ({"reward": random_answers()}, "Odd.reward: expected the same answer at every call for 'prover' with the "),
        ({"roles": ["prover", "verifier"]}, "Odd.roles: expected a tuple of different names, got ['prover', 'verif"),
        ({"channels": {"main": "all"}}, "Odd.channels: expected a mapping from names of channels to tuples of roles, "),
        ({"num_variants": 0}, "Odd.num_variants: expected an integer >= 1, got 0"),
        (
            {"__init__": lambda self, config: None},
            "Odd.min_rounds: expected an integer >= 1 (super().__init__ sets it), got None",
        ),
        ({"__init__": raising}, "'mine:Odd' cannot be made: ArithmeticError: no such place (test_tryout.py, line "),
    ],
)
def test_a_broken_protocol_is_told(changes: dict[str, Any], line: str) -> None:
    lines = told(lambda: make_protocol(protocol(**changes)))
    assert lines[0].startswith(line), lines
    assert len({each.partition(":")[0] for each in lines}) == len(lines), "one line for each method"


def test_a_verifier_that_is_no_role_is_told_before_its_rewards_are_asked_for() -> None:
    [line] = told(lambda: make_protocol(protocol(verifiers=("verifier", "judge"))))
    assert line == "verifiers: expected one of the roles prover, verifier, got 'judge'"


def test_a_sound_protocol_passes() -> None:
    assert make_protocol(protocol()).roles == ("prover", "verifier")


# ---- scenarios -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"num_tokens": 0}, "Odd.num_tokens: expected an integer >= 1, got 0"),
        ({"__init__": raising}, "'mine:Odd' cannot be made: ArithmeticError: no such place (test_tryout.py, line "),
        ({"spaces": lambda *_: None}, "Odd.spaces: expected for 'prover' a dict of Space by name, got None"),
        (
            then("spaces", lambda found, role: {"round": found["coin"]}),
            "Odd.spaces: expected other entries than messages, round, side, which the game adds, got 'round'",
        ),
        ({"draw": raising}, "Odd.draw: raises ArithmeticError: no such place (test_tryout.py, line "),
        (
            then("draw", lambda found, keys, held_out: found[0]),
            "Odd.draw: expected a tuple of instances, a dict of tensors by name, and labels, got a dict",
        ),
        (
            then("draw", lambda found, keys, held_out: (found[0], found[1] + 1)),
            "Odd.draw: expected the labels to be 0 or 1, got 2",
        ),
        (
            then("draw", lambda found, keys, held_out: (found[0], found[1] - int(held_out))),
            "Odd.draw: expected the labels to be 0 or 1, got -1",
        ),
        (
            then("draw", lambda found, keys, held_out: (found[0], found[1].float())),
            "Odd.draw: expected the labels to be int64 (5,) on cpu, got float32 (5,) on cpu",
        ),
        (
            then("draw", lambda found, keys, held_out: ({"coin": found[0]["coin"][:1]}, found[1])),
            "Odd.draw: expected entry 'coin' to be a tensor of 5 worlds, (5, ...), on cpu, got int64 (1, 2) on cpu",
        ),
        (
            then("draw", lambda found, keys, held_out: (found[0], torch.randint(0, 2, (len(keys),)))),
            "Odd.draw: expected chance from its keys alone, got numbers from a global random generator",
        ),
        (
            then("draw", lambda found, keys, held_out: (found[0], torch.ones(1, dtype=torch.int64).expand(len(keys)))),
            "Odd.draw: expected the labels to have memory for each world, got one memory, as expand makes it",
        ),
        (
            then("view", lambda found, *_: {}),
            "Odd.view: expected for 'prover' the entries of its spaces: 'coin', got those of none",
        ),
        (
            then("view", lambda found, *_: {"coin": found["coin"].double()}),
            "Odd.view: expected entry 'coin' of 'prover' to be float32 (5, 2) on cpu, got float64 (5, 2) on cpu",
        ),
        (
            then("view", lambda found, *_: {"coin": found["coin"][:, :1]}),
            "Odd.view: expected entry 'coin' of 'prover' to be float32 (5, 2) on cpu, got float32 (5, 1) on cpu",
        ),
        (
            then("view", lambda found, *_: {"coin": found["coin"] / 0}),
            "Odd.view: expected entry 'coin' of 'prover' to be finite numbers, got nan or inf",
        ),
        (
            then("view", lambda found, instances, role, messages: {"coin": found["coin"] + messages.float().sum()}),
            "Odd.view: expected a world to come out alone as it does among others, got something else for one of 5",
        ),
        ({"describe": lambda *_: None}, "Odd.describe: expected a text, got None"),
    ],
)
def test_a_broken_scenario_is_told(changes: dict[str, Any], line: str) -> None:
    lines = told(lambda: make_scenario(scenario(**changes), make_protocol(protocol()), CPU))
    assert lines[0].startswith(line), lines
    assert len(lines) <= 2, lines


def test_what_is_a_view_of_the_instances_is_told() -> None:
    changes: dict[str, Any] = {
        "draw": lambda made, keys, held_out: (
            {"coin": random_floats(keys, 2)},
            random_integers(fold(keys, 0), 1, 2).squeeze(1),
        ),
        "view": lambda made, instances, role, messages: {"coin": instances["coin"]},
    }
    lines = told(lambda: make_scenario(scenario(**changes), make_protocol(protocol()), CPU))
    assert lines == [
        "Odd.view: expected entry 'coin' of 'prover' to be a new tensor, got a view of the arguments",
        "Odd.view: expected entry 'coin' of 'verifier' to be a new tensor, got a view of the arguments",
    ]


def test_a_sound_scenario_passes() -> None:
    made = make_scenario(scenario(), make_protocol(protocol()), CPU)
    tryout = ScenarioTryOut(made, make_protocol(protocol()))
    tryout.play()
    assert tryout.faults == {}
    assert tryout.num_calls > 0


# ---- before a training ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        (
            "speaks",
            'return role == "prover" and',
            'return round and role == "prover" and',
            "game.protocol: Telegram.speaks: expected True or False for 'prover' in 'wire' in round 0, got 0",
        ),
        (
            "labels",
            "unsqueeze(1)}, is_red",
            "unsqueeze(1)}, is_red + 1",
            "game.scenario: Cups.draw: expected the labels to be 0 or 1, got 2",
        ),
        (
            "dtype",
            '{"cups": cups * (said.sum(dim=1) > 0)}',
            '{"cups": (cups * (said.sum(dim=1) > 0)).long()}',
            "game.scenario: Cups.view: expected entry 'cups' of 'verifier' to be float32 (5, 6) on cpu, got int64 "
            "(5, 6) on cpu",
        ),
        (
            "state",
            "super().__init__(config, protocol, device)",
            "super().__init__(config, protocol, device)\n        self.nums = num_cups",
            "game.scenario: 'broken_state:Cups' cannot be made: NameError: name 'num_cups' is not defined "
            "(broken_state.py, line 47)",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_before_a_training_it_is_one_line(command: str, name: str, old: str, new: str, line: str) -> None:
    text = (EXAMPLES / "telegram.py").read_text()
    assert text.count(old) == 1, text.count(old)
    Path(f"broken_{name}.py").write_text(text.replace(old, new))
    config = (EXAMPLES / "telegram.yml").read_text().replace("telegram:", f"broken_{name}:")
    Path("run.yml").write_text(config)
    result = CliRunner().invoke(app, [command, "run.yml"])
    assert (result.exit_code, result.stderr) == (2, f"{line}\n")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("in_tmp_path")
def test_a_label_that_is_too_rare_for_the_try_out_ends_a_training_in_one_line() -> None:
    old, rare = (
        "unsqueeze(1)}, is_red",
        "unsqueeze(1)}, torch.where(random_integers(keys, 1, 4000)[:, 0] == 7, 2, is_red)",
    )
    text = (EXAMPLES / "telegram.py").read_text()
    assert text.count(old) == 1
    Path("rare.py").write_text(text.replace(old, rare))
    Path("run.yml").write_text((EXAMPLES / "telegram.yml").read_text().replace("telegram:", "rare:"))
    result = CliRunner().invoke(app, ["train", "run.yml", "--run", "run", "output.recorders=[]"])
    line, *_ = result.stderr.splitlines()
    assert (result.exit_code, "Traceback" in result.stderr) == (1, False)
    assert "game.scenario: Cups.draw: expected the labels to be 0 or 1, got 2" in line
