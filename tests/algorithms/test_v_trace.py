"""V-trace: targets are GAE's where the present policy has played, else the paper's; their fixed point is known."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from resuming import fit, records
from torch import Tensor

from palestra.algorithms.on_policy import OnPolicy
from palestra.algorithms.parts.advantages import Sequences
from palestra.algorithms.parts.estimators import GAE, GAEConfig, VTrace, VTraceConfig
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.run.kinds import read_config

Data = dict[str, Any]
GAMMA = 0.9
SMALL = ["num_worlds=4", "rollout_length=8", "num_minibatches=2", "num_passes=2", "evaluations=[]", "best=null"]
QUIET = ["output.display=quiet", "output.recorders=[]", "stop={after: 16, unit: opt_steps}"]


def estimator(rho_bar: float, c_bar: float, trace_lambda: float = 1.0) -> VTrace:
    keys: Data = {"gamma": GAMMA, "trace_lambda": trace_lambda, "rho_bar": rho_bar, "c_bar": c_bar}
    return VTrace(VTraceConfig(name="v_trace", **keys))


def drawn(seed: int, num_steps: int = 6) -> tuple[Sequences, Tensor]:
    """Sequences of which games end, are cut off, and have rows that do not count; and log-ratios."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(4, num_steps, 3, generator=generator)
    terminated, truncated, valid = torch.rand(3, num_steps, 3, generator=generator) < torch.tensor(
        [0.2, 0.2, 0.8]
    ).view(3, 1, 1)
    return Sequences(*numbers[:3], terminated, truncated & ~terminated, valid), numbers[3]


@given(seed=st.integers(0, 10_000), trace_lambda=st.sampled_from([0.0, 0.7, 1.0]))
def test_where_the_present_policy_has_played_targets_are_those_of_gae(seed: int, trace_lambda: float) -> None:
    sequences, _ = drawn(seed)
    gae = GAE(GAEConfig(name="gae", gamma=GAMMA, gae_lambda=trace_lambda))
    advantage, target = estimator(1.0, 2.0, trace_lambda).estimate(sequences, torch.zeros_like(sequences.value))
    expected_advantage, expected = gae.estimate(sequences)
    counts = sequences.valid
    assert torch.allclose(target[counts], expected[counts], atol=1e-5)
    if trace_lambda == 1.0:
        assert torch.allclose(advantage[counts], expected_advantage[counts], atol=1e-5)


def plain(sequences: Sequences, log_ratio: Tensor, world: int, rho_bar: float, c_bar: float, lam: float) -> Data:
    """The paper's formulas for one sequence: eq. 1 as a sum of products, and the advantage of section 4.2; by row."""
    rows = [t for t in range(len(sequences.value)) if sequences.valid[t, world]]
    value = {t: float(sequences.value[t, world]) for t in rows}
    ratio = {t: float(log_ratio[t, world].exp()) for t in rows}
    after, ends = {}, {}
    for place, t in enumerate(rows):
        following = rows[place + 1] if place + 1 < len(rows) else None
        is_cut = bool(sequences.truncated[t, world]) or following is None
        ends[t] = bool(sequences.terminated[t, world]) or is_cut
        if sequences.terminated[t, world]:
            after[t] = 0.0
        else:
            after[t] = float(sequences.next_value[t, world]) if is_cut else value[following]
    found: Data = {}
    for place, s in enumerate(rows):
        target, weight = value[s], 1.0
        for t in rows[place:]:
            reward = float(sequences.reward[t, world])
            target += weight * min(rho_bar, ratio[t]) * (reward + GAMMA * after[t] - value[t])
            weight *= GAMMA * lam * min(c_bar, ratio[t])
            if ends[t]:
                break
        found[s] = target
    advantages = {}
    for place, s in enumerate(rows):
        following_target = after[s] if ends[s] else found[rows[place + 1]]
        reward = float(sequences.reward[s, world])
        advantages[s] = min(rho_bar, ratio[s]) * (reward + GAMMA * following_target - value[s])
    return {"targets": found, "advantages": advantages}


@given(
    seed=st.integers(0, 10_000),
    bars=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (0.7, 3.0), (1e6, 1e6)]),
    lam=st.sampled_from([0.3, 1.0]),
)
def test_its_numbers_are_those_of_the_paper(seed: int, bars: tuple[float, float], lam: float) -> None:
    sequences, log_ratio = drawn(seed)
    advantage, target = estimator(*bars, lam).estimate(sequences, log_ratio)
    for world in range(3):
        expected = plain(sequences, log_ratio, world, *bars, lam)
        for t, number in expected["targets"].items():
            assert float(target[t, world]) == pytest.approx(number, abs=1e-3, rel=1e-4)
            assert float(advantage[t, world]) == pytest.approx(expected["advantages"][t], abs=1e-3, rel=1e-4)
    assert (advantage[~sequences.valid] == 0.0).all()


@pytest.mark.parametrize("rho_bar", [0.5, 1.0, 1e6])
def test_its_fixed_point_is_the_value_of_the_policy_that_rho_bar_names(rho_bar: float) -> None:
    """Two states; action a leads to state a. All sequences of three decisions, each as likely as behaviour makes it."""
    reward = torch.tensor([[1.0, 0.0], [-1.0, 2.0]])
    behaviour, policy = torch.tensor([[0.8, 0.2], [0.5, 0.5]]), torch.tensor([[0.3, 0.7], [0.9, 0.1]])
    clipped = torch.minimum(rho_bar * behaviour, policy)
    clipped /= clipped.sum(dim=1, keepdim=True)
    analytic = torch.linalg.solve(torch.eye(2) - GAMMA * clipped, (clipped * reward).sum(dim=1))

    paths = [(start, *actions) for start in range(2) for actions in product(range(2), repeat=3)]
    states = torch.tensor([path[:3] for path in paths]).T  # the state of a decision is the action before
    actions = torch.tensor([path[1:] for path in paths]).T
    chance = behaviour[states, actions].prod(dim=0)
    nothing = torch.zeros_like(states, dtype=torch.bool)
    log_ratio = (policy[states, actions] / behaviour[states, actions]).log()
    value = torch.zeros(2)
    for _ in range(600):
        sequences = Sequences(
            reward[states, actions], value[states], value[actions], nothing, nothing, torch.ones_like(nothing)
        )
        _, target = estimator(rho_bar, 1.0).estimate(sequences, log_ratio)
        value = torch.stack([(target[0] * chance)[states[0] == state].sum() for state in range(2)])
    assert torch.allclose(value, analytic, atol=1e-2)


def config(*overrides: str) -> Any:
    return read_config("on_policy-cartpole", ("estimator=v_trace", *SMALL, *QUIET, *overrides))


REINFORCE = "loss={name: reinforce, critic: {coefficient: 0.5}, entropy_coefficient: 0.0}"
SHARED = "body={name: shared, net: {name: mlp, net_arch: [8], activation: tanh}}"  # keeps its values with the rows


@pytest.mark.parametrize("overrides", [["loss=ppo"], ["loss=ppo", SHARED], [REINFORCE, "num_passes=1"]])
def test_it_learns_from_the_probabilities_and_values_of_the_turns_first_step(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    prepare = OnPolicy.prepare

    def see(self: OnPolicy, batch: Any) -> None:
        prepare(self, batch)
        assert self.passes.experience is not None
        distribution, value = self.net.distribution_and_value(self.passes.experience)
        now = distribution.log_prob(self.passes.experience.action)
        assert torch.allclose(self.passes.experience.log_prob, now, atol=1e-5)
        assert torch.allclose(self.passes.experience.value, value, atol=1e-5)
        seen.append(float((now - batch.extras["log_prob"]).detach().abs().max()))

    monkeypatch.setattr(OnPolicy, "prepare", see)
    fit(tmp_path / "run", config("actors={num: 2, lag: 1}", *overrides))
    assert seen[0] < 1e-5 < 1e-4 < seen[2]
    assert records(tmp_path / "run")[-1]["players"]["agent"]["weights_age"] > 0


def test_a_network_with_a_memory_is_refused() -> None:
    encoder = "encoder: {name: mlp, net_arch: [8], activation: tanh}, encoder_width: 8"
    recurrent = f"{{name: recurrent, {encoder}, cell: gru, hidden_size: 8, net_arch: [], activation: tanh}}"
    with pytest.raises(ConfigError, match=r"body.*: expected a network without a memory for the estimator 'v_trace'"):
        Trainer(config(f"body.policy={recurrent}"))


@pytest.mark.parametrize(
    ("name", "lines"),
    [("appo-cartpole", 0), ("on_policy-cartpole", 1), ("ppo-cartpole", 1), ("dqn-cartpole", 0)],
)
def test_what_is_not_corrected_is_said_at_the_start(name: str, lines: int, tmp_path: Path, capsys: Any) -> None:
    few = ["num_worlds=4", "output.display=plain", "output.recorders=[]", "evaluations=[]", "best=null"]
    few += ["stop={after: 1, unit: epochs}", "actors={num: 1, lag: 1}", "execution.actor_processes=0"]
    few += [] if name == "dqn-cartpole" else ["rollout_length=8", "num_minibatches=4", "num_passes=3"]
    Trainer(read_config(name, few), run=tmp_path / "run").fit()
    told = "the policy that plays is up to 12 opt steps older than the one that learns (actors.lag = 1)"
    assert capsys.readouterr().out.replace("\n", " ").count(told) == lines
