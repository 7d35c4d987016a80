"""First files of models: what is wrong with the model, its data and the rest is told at once."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.commands.starting import starting_config
from palestra.config import ConfigError
from tests.fitted import MODULE

PAIR = ["fitted_parts:Pair", "fitted_parts:Points"]
NUM = "data.train.num: expected an integer >= 1, but the key is missing; give it, as data.train.num=VALUE"
SEED = "data.train.seed: expected an integer >= 0, but the key is missing; give it, as data.train.seed=VALUE"
HIDDEN = "model.hidden: expected an integer >= 1, but the key is missing; give it, as model.hidden=VALUE"
FILE = "data.train.file: expected a path, but the key is missing; give it, as data.train.file=data.csv"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (PAIR, [HIDDEN, NUM, SEED]),
        ([*PAIR, "data.train.seed=1", "learning.batch_size=0", "model.hidden=0"], [
            "model.hidden: expected an integer >= 1, got 0",
            NUM,
            "learning.batch_size: expected an integer >= 1 or null, got 0",
        ]),
        ([*PAIR, "data.train.num=3", "data.train.seed=1", "model.hiden=2"], [
            "model.hiden: no such key; did you mean 'model.hidden'?", HIDDEN,
        ]),
        # What follows from data that are not there is not asked for.
        (["regressor", "rows", "model.num_outputs=0"], ["model.num_outputs: expected an integer >= 1, got 0", FILE]),
        (["classifier", "fitted_parts:Points", "data.train.num=3"], [SEED]),
    ],
)  # fmt: skip
def test_faults_of_the_model_its_data_and_the_rest_are_told_at_once(
    words: list[str], told: list[str], in_tmp_path: Path
) -> None:
    Path("fitted_parts.py").write_text(MODULE)
    with pytest.raises(ConfigError) as raised:
        starting_config("fit", words)
    assert str(raised.value).splitlines() == told


def test_a_key_is_told_by_names_that_the_kind_of_run_has(in_tmp_path: Path) -> None:
    Path("fitted_parts.py").write_text(MODULE)
    words = [*PAIR, "data.train.num=3", "data.train.seed=1", "model.hidden=2"]
    with pytest.raises(ConfigError, match=r"learning.batch_size'\?$"):  # and no num_minibatches, as for PPO
        starting_config("fit", [*words, "data.train.batch_size=2"])
    with pytest.raises(
        ConfigError, match=r"^learning.groups: expected a list of length >= 1, .*, got one of length 0$"
    ):
        starting_config("fit", [*words, "learning.groups=[]"])


@pytest.mark.parametrize(
    ("words", "key"),
    [(["fit", "classifier", "rows"], "data.train."), (["ppo", "adp", "rows"], "game.scenario.")],
)
def test_if_no_column_can_be_shown_the_fault_of_each_is_told(words: list[str], key: str, in_tmp_path: Path) -> None:
    Path("points.csv").write_text("x,y\n1.5,0\nnan,1\n2.5,0\n3.5,1\n")
    overrides = [f"{key}file=points.csv", f"{key}label=y", f"{key}held_out.fraction=0.5"]
    with pytest.raises(ConfigError, match=rf"^{key}sees\..*0: expected finite numbers in the column 'x', .* in row 1"):
        starting_config(words[0], [*words[1:], *overrides])


def test_what_the_model_does_not_see_of_a_file_is_said(in_tmp_path: Path) -> None:
    """By a first file, which leaves out columns with holes, and by `check`, whatever the reason."""
    Path("points.csv").write_text("x,hole,day,y\n" + "".join(f"{n},{n or 'NA'},day {n},{n % 2}\n" for n in range(40)))
    words = ["fit", "classifier", "rows", "data.train.file=points.csv", "data.train.label=y"]
    line = "of data.train: the model does not see hole and day"
    done = CliRunner().invoke(app, ["config", *words])
    assert (done.exit_code, done.stderr) == (0, f"{line}\n")
    Path("run.yml").write_text(done.stdout)
    assert f"  {line}\n" in CliRunner().invoke(app, ["check", "run.yml"]).stdout
    seen = [f"data.{name}.sees=[x, hole, day]" for name in ("train", "valid")]
    seen += [f"data.{name}.categorical=[hole, day]" for name in ("train", "valid")]
    assert line not in CliRunner().invoke(app, ["check", "run.yml", *seen]).stdout
