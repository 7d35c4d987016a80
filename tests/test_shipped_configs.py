"""Every config that comes with palestra is complete, and every break of it is told."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_mutations import Place, assert_every_mutation_is_told
from conftest import TINY_FIT

from palestra.config import load_config, load_yaml
from palestra.kinds.data.config import FitConfig
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import kind_of_run, kinds
from tests.commented_configs import commented
from tests.complete_models import find_defaults, find_undescribed

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yml"))

every_file = pytest.mark.parametrize("file", CONFIGS, ids=lambda path: path.stem)


def test_there_are_configs() -> None:
    assert "dqn-polyhedra" in [path.stem for path in CONFIGS]


@every_file
def test_a_shipped_config_is_complete_and_consistent(file: Path) -> None:
    assert load_config(file, (), kind_of_run).players


def test_every_break_of_a_shipped_config_is_told_by_its_path() -> None:
    tried = defaultdict[Any, set[Place]](set)
    for config in map(load_yaml, CONFIGS):
        kind = kind_of_run(config)
        assert_every_mutation_is_told(config, kind, tried[kind])


def test_every_break_of_a_config_of_a_model_is_told_by_its_path() -> None:
    assert_every_mutation_is_told(TINY_FIT, FitConfig)


@every_file
def test_a_shipped_config_is_as_it_is_printed_with_the_present_comments(file: Path) -> None:
    assert commented(file) == file.read_text(), "python -m tests.commented_configs writes them anew"


@every_file
def test_any_yaml_reader_reads_a_shipped_config_and_its_print_alike(file: Path) -> None:
    """Another reader takes 1e-8, without a point, for text."""
    assert typed(yaml.safe_load(file.read_text())) == typed(load_yaml(file))
    assert typed(yaml.safe_load(commented(file))) == typed(load_yaml(commented(file)))


def typed(value: Any) -> Any:
    """A tree with the type of every leaf: 1 is not 1.0."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), value)


@pytest.mark.parametrize("kind", [kind.config for kind in kinds()], ids=lambda kind: kind.__name__)
def test_every_key_of_a_run_is_described_and_none_has_a_default(kind: type[BaseRunConfig]) -> None:
    assert find_defaults(kind) == []
    assert find_undescribed(kind) == []
