"""What docs/sweeps.md shows: the search of one's own, the sweep's own names, and the example's file."""

import re
from pathlib import Path

import pytest

from palestra.config import ConfigError, load_yaml
from palestra.config.variants import members_of, names_of
from palestra.sweeps.config import AnyPlaceConfig, read_sweep
from palestra.sweeps.pruning import AnyPruningConfig
from palestra.sweeps.search import AnySearchConfig
from palestra.sweeps.space import AnyDimensionConfig
from tests.sweeps.test_study import opened

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/sweeps.md").read_text()


def test_the_search_of_ones_own_chooses_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "gaussian_search.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    study = opened(tmp_path / "s", search={"name": "gaussian_search:Gaussian"}, pruning=None)
    points = []
    for number in range(3):
        points.append(study.point(study.claim()))
        study.complete(number, float(number))
    assert len({point["players.agent.algorithm.learning_rate.initial"] for point in points}) == 3


@pytest.mark.parametrize("union", [AnySearchConfig, AnyPruningConfig, AnyDimensionConfig, AnyPlaceConfig])
def test_every_part_by_name_is_there(union: object) -> None:
    for name in names_of(members_of(union)):
        assert f"`{name}`" in PAGE or f"name: {name}" in PAGE


def test_the_file_of_the_example_is_a_sweep() -> None:
    [file] = re.findall(r"palestra sweep (benchmarks/\S+)", PAGE)
    changes = ["seeds=[0,1,2]", "budget.trials=30", "budget.total=null"]
    assert all(change in PAGE for change in changes)
    assert read_sweep(load_yaml(ROOT / file), changes).budget.trials == 30
    with pytest.raises(ConfigError, match="expected a limit"):
        read_sweep(load_yaml(ROOT / file), ["budget.total=null"])
