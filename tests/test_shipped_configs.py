"""Every config that comes with palestra is complete, and every break of it is told."""

from pathlib import Path

import pytest
from config_mutations import assert_every_mutation_is_told

from palestra.algorithms import RunConfig
from palestra.config import find_defaults, find_undescribed, load_config, load_yaml, render

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yml"))

every_file = pytest.mark.parametrize("file", CONFIGS, ids=lambda path: path.stem)


def test_there_are_configs() -> None:
    assert "dqn-polyhedra" in [path.stem for path in CONFIGS]


@every_file
def test_a_shipped_config_is_complete_and_consistent(file: Path) -> None:
    assert load_config(file, (), RunConfig).players


@every_file
def test_every_break_of_a_shipped_config_is_told_by_its_path(file: Path) -> None:
    assert_every_mutation_is_told(load_yaml(file), RunConfig)


@every_file
def test_a_shipped_config_printed_says_the_same(file: Path) -> None:
    assert load_yaml(render(load_config(file, (), RunConfig), RunConfig)) == load_yaml(file)


def test_no_key_of_a_run_has_a_default() -> None:
    assert find_defaults(RunConfig) == []


def test_every_key_of_a_run_is_described() -> None:
    assert find_undescribed(RunConfig) == []
