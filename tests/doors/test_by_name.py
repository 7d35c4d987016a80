"""By name, without a checkout: configs, training, what there is, and errors that name the command that mends them."""

import re
from pathlib import Path

import pytest

from palestra.config import load_yaml
from palestra.run.shipped import shipped_configs, shipped_tournaments
from tests.doors.conftest import ROOT, Shell

SHORT = ("stop.after=2048", "evaluations=[]", "best=null", "--quiet")
GAME = (ROOT / "docs" / "examples" / "pennies.py").read_text()


def test_the_wheel_holds_the_shipped_configs_and_says_that_it_is_typed(wheel: Path) -> None:
    configs = {path.stem: path.read_bytes() for path in (wheel / "palestra" / "configs").rglob("*.*")}
    shipped = shipped_configs() | shipped_tournaments()
    assert configs == {stem: path.read_bytes() for stem, path in shipped.items()}
    assert (wheel / "palestra" / "py.typed").exists()


def test_train_a_shipped_config(shell: Shell) -> None:
    shell("train", "ppo-cartpole", *SHORT)
    assert (shell.folder / "runs" / "ppo-cartpole-1" / "checkpoints" / "latest").exists()


def test_train_an_algorithm_on_a_game(shell: Shell) -> None:
    shell("train", "ppo", "CartPole-v1", *SHORT, "gamma=.98", "learning_rate=1e-3")
    config = load_yaml(shell.folder / "runs" / "ppo-CartPole-v1-1" / "config.yml")
    (player,) = config["players"].values()
    assert player["algorithm"]["gamma"] == 0.98
    assert player["algorithm"]["learning_rate"] == {"name": "constant", "value": 1e-3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["dqn nim", "sac mountain_car", "td3 pendulum", "ppo pennies:Pennies game.num_rounds=4"],
)
def test_what_config_prints_is_trained(words: str, shell: Shell) -> None:
    shell.write("pennies.py", GAME)
    shell.write("run.yml", shell("config", *words.split()))
    few = ("num_worlds=4", "stop={after: 8, unit: opt_steps}", "evaluations=[]", "best=null")
    shell("train", "run.yml", *few, "--run", "run", "--quiet")
    assert load_yaml(shell.folder / "run" / "config.yml")["game"] == load_yaml(shell.folder / "run.yml")["game"]


def test_config_prints_a_shipped_config_with_comments(shell: Shell) -> None:
    shell.write("printed.yml", shell("config", "ppo-cartpole"))
    assert load_yaml(shell.folder / "printed.yml") == load_yaml(ROOT / "configs" / "ppo-cartpole.yml")
    assert "#" in (shell.folder / "printed.yml").read_text()


@pytest.mark.slow
def test_a_file_of_that_name_comes_first(shell: Shell) -> None:
    shell.write("dqn-nim.yml", shell("config", "dqn-nim", "stop.after=600", "evaluations=[]", "best=null"))
    note = "dqn-nim.yml: this file is used, not the config dqn-nim that palestra ships\n"
    assert shell("train", "dqn-nim", "--run", "run").startswith(note)
    assert load_yaml(shell.folder / "run" / "config.yml")["stop"]["after"] == 600


@pytest.mark.slow
def test_version_help_and_list(shell: Shell) -> None:
    assert re.fullmatch(r"palestra \d+\.\d+\.\d+\n", shell("--version"))
    for command in re.findall(r"^│ (\w+) ", shell("-h"), re.M):
        assert f"palestra {command} " in shell(command, "-h")
    lines = shell("list").splitlines()
    assert any(re.match(r"  polyhedra +Hironaka's polyhedra game; roles: host, agent$", line) for line in lines)
    assert [line for line in lines if line.startswith("    ")] == [], "one whole line each"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("train", "ppo-cartpole", "game.id=Pendulum-v1"), "palestra config ppo Pendulum-v1 > x.yml"),
        (("train", "ppo-cartpole", "execution.device=gpu"), "are cuda"),
        (
            ("train", "ppo-cartpole", "algorithm.name=a2c"),
            "expected one of 'sac', 'on_policy', 'off_policy', 'dqn', 'ppo', 'td3', or a class of ",
        ),
        (("train", "ppo-cartpole", "gamma=0,98"), "write 0.98, with a decimal point"),
        (("train", "ppo-cartpol"), "did you mean 'ppo-cartpole'?"),
        (("ask", "palestra:polyhedra", "--board", "[0,3]"), "such as [[0,1,2],[2,1,0]], got [0, 3]"),
        (("branch", "RUNS/polyhedra"), "give one of its own: RUNS/polyhedra/checkpoints/latest or "),
    ],
)
def test_an_error_names_what_mends_it(words: tuple[str, ...], remedy: str, shell: Shell, runs: Path) -> None:
    error = shell(*(word.replace("RUNS", str(runs)) for word in words), code=2)
    assert remedy.replace("RUNS", str(runs)) in error
    assert error.splitlines()[-1].count(remedy.replace("RUNS", str(runs))) == 1, "in the last line"


@pytest.mark.slow
def test_a_missing_space_after_a_colon_names_the_guilty_line(shell: Shell) -> None:
    lines = shell("config", "ppo-cartpole").splitlines()
    (number,) = (i for i, line in enumerate(lines) if line.startswith("num_worlds: "))
    lines[number] = lines[number].replace("num_worlds: ", "num_worlds:")
    shell.write("run.yml", "\n".join(lines))
    error = shell("train", "run.yml", code=2)
    assert f"line {number + 1}" in error
    assert "num_worlds:" in error
