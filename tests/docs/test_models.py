"""What docs/models.md and docs/data.md show is run: a set and a loader of one's own, and a metric."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import TINY_FIT

from palestra import make_trainer
from palestra.testing import check_data

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, in_tmp_path: Path) -> ModuleType:
    """The module `shown` with all that a page defines in Python in the blocks that name one of the words."""
    page, *words = request.param
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    code = "\n".join(block for block in blocks if any(word in block for word in words))
    Path("shown.py").write_text(code)
    monkeypatch.syspath_prepend(str(in_tmp_path))
    monkeypatch.delitem(sys.modules, "shown", raising=False)
    import shown  # type: ignore[import-not-found]

    return shown


@pytest.mark.parametrize("shown", [("data.md", "class Points")], indirect=True)
def test_the_set_of_the_document_keeps_its_promises(shown: ModuleType) -> None:
    Path("points.txt").write_text("".join(f"{i / 9} {-i / 9} {i % 2}\n" for i in range(10)))
    check_data({"name": "shown:Points", "file": "points.txt", "num_items": None})


@pytest.mark.parametrize("shown", [("data.md", "def make_loader")], indirect=True)
def test_the_loader_of_the_document_is_learned_from(shown: ModuleType) -> None:
    config: dict[str, Any] = TINY_FIT | {"evaluations": [], "best": None, "stop": {"after": 3, "unit": "opt_steps"}}
    config["data"] = {"train": {"loader": "shown:make_loader", "num_batches": None, "size": 16}}
    own = dict.fromkeys(("order", "batch_size", "last_batch", "seeding"))
    config["learning"] = config["learning"] | own
    trainer = make_trainer(config, run="run")
    trainer.fit()
    assert (trainer.opt_steps, trainer.items) == (3, 48)


@pytest.mark.parametrize("shown", [("models.md", "class Exact")], indirect=True)
def test_the_metric_of_the_document_counts(shown: ModuleType) -> None:
    metric = shown.Exact(None)
    metric.reset()
    metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    assert metric.compute() == 1
