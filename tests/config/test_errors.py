"""What shows only when a part of a config is built is told at its place in the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palestra
from palestra.config import Config, ConfigError, ConfigErrorItem, PartError, below

NATURE = {"name": "nature_cnn", "channels": [4], "kernels": [8], "strides": [4], "hidden_widths": []}


class Leaf(Config):
    width: int


class Tree(Config):
    leaves: dict[str, list[Leaf]]


def test_faults_are_told_where_the_very_part_lies() -> None:
    tree = Tree(leaves={"a": [Leaf(width=1)], "b": [Leaf(width=1), Leaf(width=1)]})
    error = PartError(tree.leaves["b"][1], [ConfigErrorItem("width", "too small")]).within(tree, "garden")
    assert str(error) == "garden.leaves.b.1.width: too small"


def test_faults_of_inner_parts_lie_below_the_outer_ones() -> None:
    with pytest.raises(ConfigError, match=r"^outer.inner.x: wrong$"), below("outer"), below("inner"):
        raise ConfigError([ConfigErrorItem("x", "wrong")])


def test_a_network_that_cannot_see_the_game_is_told_by_its_path(
    make_config: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = make_config({"players.host.algorithm.net": NATURE})
    with pytest.raises(
        ConfigError,
        match=r"^players.host.algorithm.net.name: expected one image, uint8 of shape \(C, H, W\), for 'nature_cnn'",
    ):
        palestra.Trainer(config, run=tmp_path / "run").fit()


def test_faults_are_raised_together_and_each_once() -> None:
    ConfigError.require_none([])
    with pytest.raises(ConfigError, match=r"^x: wrong\ny: wrong$"):
        ConfigError.require_none(ConfigErrorItem(key, "wrong") for key in ("x", "y", "x"))
