"""On a GPU of CUDA: models and talkers learn in every precision, and go on to the same bits. Skipped where none is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fitted import EVALUATION, PAIR, fit_config, fitted
from resuming import Killed, assert_same_bits, at_call, kill, records

from palestra import make_trainer
from palestra.kinds.data.trainer import FitTrainer
from palestra.kinds.text.trainer import TextTrainer
from palestra.models.learning import LossScale
from palestra.training.training import Training
from tests.kinds.text.test_trainer import CONFIG, PLAYER

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")
DEVICE = "cuda"

BASE = fit_config()


def fit_changes(precision: str, num_workers: int) -> dict[str, Any]:
    """Six epochs of four batches, with everything that has a state."""
    loading = BASE["execution"]["loading"] | {"num_workers": num_workers}
    learning = {"precision": precision, "num_microbatches": 2, "max_grad_norm": 0.5, "seeding": "per_item"}
    return {
        "learning": BASE["learning"] | learning,
        "evaluations": [EVALUATION | {"interval": {"every": 1, "unit": "epochs"}, "weights": "averaged"}],
        "stop": {"after": 6, "unit": "epochs"},
        "execution": BASE["execution"] | {"device": DEVICE, "loading": loading},
        "output": BASE["output"] | {"record": {"every": 3, "unit": "opt_steps"}, "keep_last": 2},
    }


def killed_again_and_again(begin: Callable[[], Any], go_on: Callable[[], Any], every: int) -> int:
    """Begin a run and go on with it, each time a little further; return how often it was killed."""
    num_kills = 0
    while True:
        try:
            with at_call(Training, "safe_point", every * (num_kills + 1), kill):
                go_on() if num_kills else begin()
            return num_kills
        except Killed:
            num_kills += 1


@pytest.mark.parametrize(
    ("precision", "num_workers"), [("float32", 0), ("float32", 2), ("bfloat16", 0), ("float16", 0)]
)
def test_a_model_has_the_same_bits_again_and_when_it_is_killed(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, num_workers: int
) -> None:
    monkeypatch.setattr(LossScale, "growth_interval", 2)  # so that gradients of float16 soon overflow
    changes = fit_changes(precision, num_workers)
    alone = fitted("alone", PAIR, **changes)
    assert next(alone.model.parameters()).device.type == DEVICE
    fitted("again", PAIR, **changes)
    assert_same_bits(Path("again"), Path("alone"))
    num_kills = killed_again_and_again(
        lambda: fitted("killed", PAIR, **changes), lambda: FitTrainer.load("killed").fit(), every=5
    )
    assert num_kills > 1
    assert_same_bits(Path("killed"), Path("alone"))
    if precision == "float16":
        found = [each["players"]["model"] for each in records(Path("alone")) if each["kind"] == "training"]
        found = [each for each in found if "loss_scale" in each]  # the last record may be of no opt step
        shares = [each["skipped_steps"] for each in found]
        assert min(shares) == 0.0 < max(shares)
        assert len({each["loss_scale"] for each in found}) > 2


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_talkers_have_the_same_bits_again_and_when_they_are_killed(in_tmp_path: Path, precision: str) -> None:
    def with_precision(part: dict[str, Any]) -> dict[str, Any]:
        return part | {"tuning": part["tuning"] | {"precision": precision}}

    player = {key: with_precision(PLAYER[key]) for key in ("imitate", "algorithm")}
    own = {"algorithm": with_precision(CONFIG["players"]["prover"]["algorithm"])}
    players = {"prover": CONFIG["players"]["prover"] | player | own, "verifier": PLAYER | player}
    config = CONFIG | {"players": players, "execution": {"device": DEVICE, "num_threads": 1}}
    for run in ("alone", "again"):
        trainer = make_trainer(config, run)
        trainer.fit()
        assert trainer.players["verifier"].model.network.device.type == DEVICE
    assert_same_bits(Path("again"), Path("alone"))
    num_kills = killed_again_and_again(
        lambda: make_trainer(config, "killed").fit(), lambda: TextTrainer.load("killed").fit(), every=7
    )
    assert num_kills > 1
    assert_same_bits(Path("killed"), Path("alone"))
