"""Python knows the shipped configs by name, as the shell does.

Covers palestra.run.shipped.
"""

import shutil
from pathlib import Path

import pytest

import palestra
from palestra.commands.starting import find_config
from palestra.config import ConfigError
from palestra.run.shipped import shipped_configs

SHIPPED = shipped_configs()

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def test_a_config_and_a_trainer_are_made_by_the_name_of_a_shipped_config() -> None:
    config = palestra.load_config("dqn-nim", ("seed=7",))
    assert config == palestra.load_config(SHIPPED["dqn-nim"], ("seed=7",))
    quiet = ["output.display=quiet"]
    for make in (palestra.Trainer, palestra.DQNTrainer, palestra.make_trainer):
        trainer = make("dqn-nim", overrides=quiet)
        assert (trainer.run.name, trainer.config.game) == ("dqn-nim", config.game)


@pytest.mark.parametrize("file", ["dqn-nim", "dqn-nim.yml"])
def test_a_file_in_the_working_directory_comes_first_in_python_and_in_the_shell(file: str) -> None:
    Path(file).write_text(SHIPPED["dqn-nim"].read_text().replace("seed: 0", "seed: 5"))
    assert palestra.load_config("dqn-nim").seed == 5
    assert find_config("dqn-nim", []).source == Path(file)
    Path(file).unlink()
    Path(file).mkdir()
    assert palestra.load_config("dqn-nim").seed == 0


def test_a_name_that_stands_for_nothing_is_told_with_what_may_be_meant() -> None:
    shutil.copy(SHIPPED["dqn-nim"], "mine.yml")
    for name, told in {
        "dqn-polyhedr": r"^dqn-polyhedr: expected a file or one of the shipped .*did you mean 'dqn-polyhedra'\?$",
        "configs/dqn-nim.yml": r"there is no such file in .*; palestra ships a config under the name dqn-nim$",
        "mine": r"there is no such file in .*; did you mean mine\.yml\?$",
        "tournament-polyhedra": "expected a config in which a player learns, got that of a tournament",
    }.items():
        with pytest.raises(ConfigError, match=told):
            palestra.load_config(name)
