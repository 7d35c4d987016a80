"""Every config that comes with palestra is complete, and every break of it is told."""

from pathlib import Path

import pytest
from config_mutations import assert_every_mutation_is_told

from palestra.algorithms import RunConfig
from palestra.config import check, find_defaults, find_undescribed, load_config, load_yaml, render

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yml"))

pytestmark = pytest.mark.parametrize("file", CONFIGS, ids=lambda path: path.stem)


def test_a_shipped_config_is_complete_and_consistent(file: Path) -> None:
    assert load_config(file, (), RunConfig).players


def test_every_break_of_a_shipped_config_is_told_by_its_path(file: Path) -> None:
    assert_every_mutation_is_told(load_yaml(file), RunConfig)
