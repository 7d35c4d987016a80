"""Constraints between keys: what they mean, and what they refuse."""

from contextlib import suppress
from pathlib import Path

import pytest

from palestra.config import ConfigError
from palestra.sweeps.space import Constraint

DATA = {"num_worlds": 8, "a": {"batch_size": 32, "gamma": 0.9, "optimizer": {"name": "adam"}}, "b": {"gamma": 0.5}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("batch_size <= 4 * num_worlds", True),
        ("batch_size < 4 * num_worlds", False),
        ("a.gamma > b.gamma and not num_worlds == 7", True),
        ("optimizer.name == 'sgd' or batch_size % 16 == 0", True),
        ("optimizer.name in ['sgd', 'rmsprop']", False),
        ("0.4 < b.gamma < 0.6", True),
        ("num_worlds ** 2 // 3 - -1 >= 22", True),
        ("a.gamma != null", True),
    ],
)
def test_an_expression_means_what_python_would_say(text: str, holds: bool) -> None:
    assert Constraint(text).holds(DATA) is holds


@pytest.mark.parametrize(
    "text",
    ["__import__('os').getcwd()", "len(a) > 1", "batch_size <=", "a[0] > 1", "(lambda: 1)() == 1", "a := 2", "a is b"],
)
def test_anything_but_a_comparison_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Constraint(text)


@pytest.mark.parametrize("operator", ["-", "not ", "1 + ", "("])
def test_one_that_is_nested_deeply_is_refused(operator: str) -> None:
    for depth in (100, 200, 500, 900, 20_000):
        with pytest.raises(ConfigError):
            Constraint(f"num_worlds == {depth * operator}").holds(DATA)
        with suppress(ConfigError):  # for Python's parser may take more or less
            Constraint(f"num_worlds < {depth * operator}1").holds(DATA)


def test_what_cannot_be_computed_is_said() -> None:
    with pytest.raises(ConfigError, match="cannot be computed"):
        Constraint("optimizer.name + 1 > 2").holds(DATA)
    with pytest.raises(ConfigError, match="expected a number, got 'adam'"):
        Constraint("optimizer.name * 2 == 'adamadam'").holds(DATA)
    with pytest.raises(ConfigError, match="expected a number, got a mapping"):
        Constraint("optimizer < 2").holds(DATA)
    with pytest.raises(ConfigError, match="expected a power of at most 64, got 65"):
        Constraint("num_worlds ** 65 > 2").holds(DATA)
    with pytest.raises(ConfigError, match="cannot be computed"):
        Constraint("batch_size ** batch_size ** batch_size > 2").holds(DATA)
    with pytest.raises(ConfigError, match="expected a number below 2 to the power of 1024, got a larger one"):
        Constraint(f"{'(' * 9}num_worlds{' ** 64)' * 9} > 2").holds(DATA)
    with pytest.raises(ConfigError, match="cannot be computed"):
        Constraint("batch_size / (num_worlds - 8) > 2").holds(DATA)


def test_it_counts_where_all_of_its_keys_are() -> None:
    ppo, dqn = {"num_passes": 4, "name": "ppo"}, {"batch_size": 32, "name": "dqn"}
    for text in ("num_passes <= 2", "name == 'dqn' or num_passes <= 2"):
        constraint = Constraint(text)
        constraint.require_keys({"ppo": ppo, "dqn": dqn})
        assert not constraint.holds(ppo)
        assert constraint.holds(dqn)
    with pytest.raises(ConfigError, match="num_pases: no such key; did you mean 'num_passes'"):
        Constraint("num_pases < 2").require_keys({"ppo": ppo, "dqn": dqn})
    with pytest.raises(ConfigError, match=r"several end so: a\.gamma, b\.gamma in data$"):
        Constraint("gamma > 0").require_keys({"ppo": ppo, "data": DATA})


def test_a_function_that_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_raising.py").write_text("def boom(config):\n    return config['nokey'] > 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^mine_raising:boom raised KeyError: 'nokey'$"):
        Constraint("mine_raising:boom").holds(DATA)
