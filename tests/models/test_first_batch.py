"""Lazy weights get their sizes, and batch norm gets enough items, or a line says before the run what is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from palestra import make_trainer
from palestra.config import ConfigError
from palestra.kinds.data.models import load_model
from palestra.kinds.data.trainer import FitTrainer
from tests.fitted import MODULE, PAIR, fit_config

OWN = """
import torch
from torch import nn
from fitted_parts import Pair

class Lazy(Pair):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.LazyLinear(2))

class Odd(Pair):
    def __init__(self, config):
        super().__init__(config)
        self.twist = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.thin = nn.Parameter(torch.eye(2).to_sparse())

class Words(Pair):
    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(9, 4, sparse=True)

    def forward(self, batch):
        return super().forward({"observation": batch["observation"] + self.words(batch["label"])})
"""


@pytest.fixture(autouse=True)
def here(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(in_tmp_path))
    Path("fitted_parts.py").write_text(MODULE)
    Path("first_parts.py").write_text(OWN)


def own(name: str, **learning: Any) -> dict[str, Any]:
    config = fit_config(PAIR | {"name": f"first_parts:{name}" if name != "Pair" else PAIR["name"]})
    config["learning"] |= learning
    return config


def test_lazy_weights_are_those_of_the_seed_also_when_the_run_goes_on() -> None:
    whole, part = (make_trainer(own("Lazy"), run=name) for name in ("whole", "part"))
    assert tuple(whole.model.layers[0].weight.shape) == (6, 4)
    whole.fit()
    part.fit(max_steps=3)
    resumed = FitTrainer.load("part")
    resumed.fit()
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(load_model("whole", "latest", "latest").model.layers[2].weight, whole.model.layers[2].weight)


def test_weights_that_no_optimizer_moves_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(own("Odd"), run="run")
    assert [str(each).partition("got ")[2] for each in caught.value.errors] == [
        "'twist', which is complex",
        "'thin', which is torch.sparse_coo",
    ]


def test_an_embedding_with_sparse_gradients_learns() -> None:
    trainer = make_trainer(own("Words"), run="run")
    before = trainer.model.words.weight.detach().clone()
    trainer.fit()
    assert (trainer.model.words.weight != before).any(dim=1).tolist() == [True] * 2 + [False] * 7


@pytest.mark.parametrize(
    ("learning", "told"),
    [
        (
            {"batch_size": 13},
            "learning.last_batch: expected 'drop', because batch norm .* got 'keep', which leaves one",
        ),
        ({"batch_size": 1}, "learning.batch_size: expected at least 2 items, because batch norm .layers.1. .* got 1"),
        (
            {"batch_size": 4, "num_microbatches": 4},
            "learning.num_microbatches: expected pieces of at least 2 of 4 items",
        ),
        ({"batch_size": 13, "last_batch": "drop"}, None),
        ({"batch_size": 10}, None),
    ],
)
def test_batch_norm_with_one_item_is_refused_before_the_run(learning: dict[str, Any], told: str | None) -> None:
    trainer = make_trainer(own("Pair", **learning), run="run")
    if told is None:
        return trainer.require_ready()
    with pytest.raises(ConfigError, match=f"^{told}"):
        trainer.require_ready()
    assert not Path("run").exists()
