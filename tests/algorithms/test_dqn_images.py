"""DQN on real images learns what plain torch learns: loss, clipped gradient, Adam and copies, opt step by opt step."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import palestra
from benchmarks.learning_settings import SETTINGS
from benchmarks.peers.ours import config_of
from palestra.algorithms.dqn import DQN
from palestra.players.player import Metrics

pytest.importorskip("ale_py")

NUM_OPT_STEPS, COPY_INTERVAL, MAX_GRAD_NORM = 7, 3, 0.01


class PlainDQN:
    """Mnih et al. 2015 by torch.autograd and torch.optim, on contiguous weights."""

    def __init__(self, dqn: DQN) -> None:
        self.q, self.target = deepcopy(dqn.online.net), deepcopy(dqn.target_net.net)
        for weights in (*self.q.parameters(), *self.target.parameters()):
            weights.data = weights.data.contiguous()
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-4, eps=1e-8)
        self.num_opt_steps = 0

    def opt_step(self, rows: dict[str, Tensor]) -> None:
        now, then = ({"observation": rows[f"{when}.observation"]} for when in ("observation", "next_observation"))
        with torch.no_grad():
            best = self.target(then).max(1).values
            target = rows["reward"] + 0.99 * (~rows["terminated"]).float() * best
        taken = self.q(now).gather(1, rows["action"][:, None])[:, 0]
        self.optimizer.zero_grad()
        F.smooth_l1_loss(taken, target).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.q.parameters(), MAX_GRAD_NORM)
        assert norm > MAX_GRAD_NORM, "nothing is clipped"
        self.optimizer.step()
        self.num_opt_steps += 1
        if self.num_opt_steps % COPY_INTERVAL == 0:
            self.target.load_state_dict(self.q.state_dict())


def pong() -> dict[str, Any]:
    """The learning table's own training, cut short."""
    setting = next(setting for setting in SETTINGS if setting.environment == "ALE/Pong-v5")
    config: dict[str, Any] = config_of({"setting": setting.to_json(), "seed": 0, "num_threads": 1})
    learner = config["players"]["agent"]["algorithm"]
    learner |= {"warmup_env_steps": 200, "target": {"name": "polyak", "tau": 1.0, "interval": COPY_INTERVAL}}
    learner |= {"max_grad_norm": MAX_GRAD_NORM}
    config["output"] |= {"display": "quiet", "recorders": []}
    return config | {"stop": {"after": NUM_OPT_STEPS, "unit": "opt_steps"}}


def test_opt_steps_on_images_are_those_of_plain_torch(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = palestra.Trainer(pong())
    dqn = trainer.player_of("agent").algorithm
    assert isinstance(dqn, DQN)
    plain, opt_step = PlainDQN(dqn), dqn.opt_step

    def both(rows: dict[str, Tensor]) -> Metrics:
        plain.opt_step(rows)
        metrics = opt_step(rows)
        for net, other in ((dqn.online.net, plain.q), (dqn.target_net.net, plain.target)):
            for weights, wanted in zip(net.parameters(), other.parameters(), strict=True):
                # a hundredth of what Adam moves a weight by: rounding is felt where a gradient is near its eps
                torch.testing.assert_close(weights, wanted, rtol=0.0, atol=1e-6)
        return metrics

    monkeypatch.setattr(dqn, "opt_step", both)
    trainer.fit()
    assert plain.num_opt_steps == NUM_OPT_STEPS
