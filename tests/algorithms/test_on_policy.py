"""on_policy: PPO's loss there makes ppo's opt steps; REINFORCE's gradient is that of the exact return; whole games; bad
losses.

Covers palestra.algorithms.losses, palestra.algorithms.losses.loss, palestra.algorithms.losses.ppo,
palestra.algorithms.losses.reinforce, palestra.algorithms.parts.estimators.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from combinations import ON_POLICY, PLAIN, PPO, RECURRENT
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

import palestra
from palestra.algorithms.losses.loss import Head, LossBatch, OnPolicyLoss
from palestra.algorithms.losses.ppo import PPOLoss
from palestra.algorithms.losses.reinforce import Reinforce, ReinforceConfig
from palestra.algorithms.on_policy import OnPolicy, OnPolicyConfig, WholeGames
from palestra.algorithms.parts.advantages import Experience, Sequences
from palestra.algorithms.parts.estimators import Estimator, GAEConfig, RewardToGoConfig, TDLambdaConfig
from palestra.algorithms.terms import total_loss
from palestra.commands.starting import starting_config
from palestra.config import ConfigError, UserConfig, check
from palestra.games import make_game
from palestra.games.game import State, TensorGame
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions
from palestra.run.branching import tree_differences
from palestra.storage.records_file import read_records
from palestra.testing.algorithms import PENDULUM

Data = dict[str, Any]
MLP: Data = {"name": "mlp", "net_arch": [4], "activation": "tanh"}
CONSTANT: Data = {"name": "constant", "value": 0.01}
REINFORCE: Data = ON_POLICY | {
    "num_passes": 1,
    "loss": {"name": "reinforce", "critic": None, "entropy_coefficient": {"name": "constant", "value": 0.0}},
    "estimator": {"name": "reward_to_go", "gamma": 1.0, "at_truncation": "end"},
    "body": {"name": "separate", "policy": MLP},
    "normalize_advantages": False,
}
CARTPOLE: Data = {
    "name": "cartpole",
    "max_rounds": 5,
    "initial_low": -0.2,
    "initial_high": 0.2,
    "sutton_barto_reward": False,
    "observation": PLAIN,
}


def run_config(algorithm: Data, game: Data = CARTPOLE) -> Data:
    """A tiny run of one player in all roles."""
    roles = make_game(game).roles
    learner = {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    config = copy.deepcopy(TINY) | {"game": game, "roles": dict.fromkeys(roles, "one"), "players": {"one": learner}}
    config["evaluations"][0] |= {"pairings": [config["roles"]]}
    config["best"] |= {"pairing": 0, "measure": f"return/{roles[0]}"}
    return config


# ---- PPO ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["clip", "kl_penalty"])
@pytest.mark.parametrize("body", ["shared", "separate", "recurrent"])
def test_the_loss_of_ppo_as_a_plug_in_makes_the_opt_steps_of_ppo(objective: str, body: str, tmp_path: Path) -> None:
    changes = {
        "shared": {},
        "separate": {"body": {"name": "separate", "policy": MLP, "value": MLP}},
        "recurrent": {"body": {"name": "separate", "policy": RECURRENT, "value": MLP}},
    }[body]
    penalty = {"objective": {"name": "kl_penalty", "coefficient": 1.0, "target": 0.001}}
    objectives = penalty if objective == "kl_penalty" else {}
    trainers = []
    for algorithm in (PPO | objectives, ON_POLICY | {"loss": ON_POLICY["loss"] | objectives}):
        config = run_config(algorithm | changes)
        config["execution"]["gradients"] = "autograd"
        trainer = palestra.Trainer(config, run=tmp_path / algorithm["name"])
        trainers.append(trainer)
        trainer.fit()
    ppo, plug_in = (trainer.players["one"] for trainer in trainers)
    assert ppo.opt_steps == plug_in.opt_steps > 0
    assert torch.equal(ppo.algorithm.weights, plug_in.algorithm.weights)  # type: ignore[union-attr]
    if objective == "kl_penalty":
        assert ppo.algorithm.kl_coefficient == plug_in.algorithm.loss.kl_coefficient != 1.0  # type: ignore[union-attr]
    records = [
        [record["players"]["one"] for record in read_records(tmp_path / name / "records.jsonl") if "players" in record]
        for name in ("ppo", "on_policy")
    ]
    assert records[0] == records[1]


def test_what_stands_in_ppo_is_what_the_plug_in_learns() -> None:
    assert PPOLoss.loss is palestra.algorithms.ppo.PPO.loss
    assert PPOLoss.adapt_kl_coefficient is palestra.algorithms.ppo.PPO.adapt_kl_coefficient


def test_it_learns_what_was_drawn_not_what_was_clipped_and_clips_values_as_ppo(in_tmp_path: Path) -> None:
    wide = {"box_actions": {"name": "clipped_gaussian", "initial_log_std": 1.5}}  # most of what it draws is clipped
    body = {"body": {"name": "separate", "policy": MLP, "value": MLP}}
    weights = []
    for clip in (None, 0.001):
        for algorithm in (PPO | {"value_clip": clip}, ON_POLICY | {"loss": ON_POLICY["loss"] | {"value_clip": clip}}):
            config = run_config(algorithm | wide | body, PENDULUM)
            config |= {"evaluations": [], "best": None, "stop": {"after": 8, "unit": "opt_steps"}}
            config["execution"]["gradients"] = "autograd"
            trainer = palestra.Trainer(config)
            trainer.fit()
            weights.append(trainer.players["one"].algorithm.weights)  # type: ignore[union-attr]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[0], weights[2])


def test_a_player_in_two_roles_learns_and_records_role_by_role_as_with_ppo(tmp_path: Path) -> None:
    trainers = []
    for algorithm in (PPO, ON_POLICY):
        config = run_config(algorithm, NIM)
        config["execution"]["gradients"] = "autograd"
        trainer = palestra.Trainer(config, run=tmp_path / algorithm["name"])
        trainers.append(trainer)
        trainer.fit()
    ppo, plug_in = (trainer.players["one"].algorithm for trainer in trainers)
    assert torch.equal(ppo.weights, plug_in.weights)  # type: ignore[union-attr]
    *_, last = (record for record in read_records(tmp_path / "on_policy" / "records.jsonl") if "players" in record)
    assert {"policy_loss/first", "policy_loss/second", "value_loss/first"} <= last["players"]["one"].keys()


# ---- REINFORCE ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coefficient", [0.25, 2.0])
def test_the_critic_s_error_counts_by_its_coefficient(coefficient: float) -> None:
    keys = REINFORCE["loss"] | {"critic": {"coefficient": coefficient}}
    ones = dict.fromkeys(("advantage", "log_prob", "entropy"), torch.ones(4))
    batch: Any = SimpleNamespace(
        **ones, value=torch.arange(4.0), value_target=torch.ones(4), opt_steps=0, mean=torch.mean
    )
    terms = Reinforce(check(keys, ReinforceConfig)).terms(batch)
    assert (float(terms["value_loss"]), float(terms["loss_value"])) == (1.5, 1.5 * coefficient)


REWARDS: Data = {"right": 1.0, "wrong": -1.0, "out_of_time": -0.5, "go_on": -0.1, "prover": 0.7, "shared": False}
NIP: Data = {
    "name": "dialogue",
    "protocol": {
        "name": "nip",
        "stance": "accept",
        "first": "verifier",
        "min_rounds": 1,
        "max_rounds": 3,
        "rewards": REWARDS,
    },
    "scenario": {"name": "witness", "num_bits": 2, "num_seen": 0},
    "observation": PLAIN,
}


class Enumeration:
    """Every game of a tiny dialogue, as rows: of all starts and all legal actions of all roles.

    rows: by role, a column per game. Rows in which a role did not decide do not count. rewards: by role (T, games).
    """

    def __init__(self, game: TensorGame, starts: State, probability: Tensor) -> None:
        self.game, self.roles = game, game.roles
        self.start_probability = probability
        self.steps: list[dict[str, dict[str, Any]]] = []  # by round and role: observation, legal, action, decides
        self.rewards: list[Tensor] = []
        origin, state = torch.arange(len(probability)), starts
        while bool(game.deciding(state).any()):
            parents, actions = self.children(state)
            origin, state = origin[parents], {name: value[parents] for name, value in state.items()}
            self.steps = [{role: self.at(row, parents) for role, row in step.items()} for step in self.steps]
            self.rewards = [reward[parents] for reward in self.rewards]
            deciding = game.deciding(state)
            self.steps.append(
                {
                    role: {
                        "observation": game.observe(state, role),
                        "legal": game.legal(state, role),
                        "action": actions[role],
                        "decides": deciding[:, index],
                    }
                    for index, role in enumerate(self.roles)
                }
            )
            state, reward, _, _ = game.step(state, actions, torch.zeros_like(parents))
            self.rewards.append(reward.double())
        self.origin = origin

    @staticmethod
    def at(row: dict[str, Any], index: Tensor) -> dict[str, Any]:
        def pick(value: Any) -> Any:
            return {key: each[index] for key, each in value.items()} if isinstance(value, dict) else value[index]

        return {name: pick(value) for name, value in row.items()}

    def children(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Of every world all joint actions that are legal there; where a role does not decide, one that is."""
        deciding, parents = self.game.deciding(state), []
        actions: dict[str, list[list[int]]] = {role: [] for role in self.roles}
        for world in range(len(deciding)):
            options = []
            for index, role in enumerate(self.roles):
                flags = self.game.legal(state, role)[world].split(list(self.nums(role)))
                legal = list(product(*(each.nonzero().flatten().tolist() for each in flags)))
                options.append(legal if deciding[world, index] else legal[:1])
            for joint in product(*options):
                parents.append(world)
                for role, action in zip(self.roles, joint, strict=True):
                    actions[role].append(list(action))
        shaped = {
            role: torch.tensor(rows).view(len(parents), *self.game.action_spaces[role].shape)
            for role, rows in actions.items()
        }
        return torch.tensor(parents), shaped

    def nums(self, role: str) -> tuple[int, ...]:
        space: Any = self.game.action_spaces[role]
        return getattr(space, "nums", None) or (space.num,)

    def log_probs(self, role: str, algorithm: OnPolicy) -> Tensor:
        """Of the decisions of a role, (T, games), 0 where it does not decide."""
        columns = []
        for step in self.steps:
            row = step[role]
            rows = experience_of(row, torch.zeros(len(self.origin)), torch.zeros(len(self.origin)))
            log_prob = LossBatch(algorithm.net, rows, 0, True).log_prob
            columns.append(torch.where(row["decides"], log_prob, 0.0))
        return torch.stack(columns)

    def probability(self, algorithms: Mapping[str, OnPolicy]) -> Tensor:
        """Of every game, (games,)."""
        with torch.no_grad():
            log_probs = sum(self.log_probs(role, algorithms[role]).sum(dim=0) for role in self.roles)
        return self.start_probability[self.origin] * torch.as_tensor(log_probs).exp()

    def expected_return(self, role: str, algorithms: Mapping[str, OnPolicy]) -> float:
        index = self.roles.index(role)
        returns = torch.stack(self.rewards)[:, :, index].sum(dim=0)
        return float(self.probability(algorithms) @ returns)


def experience_of(row: dict[str, Any], advantage: Tensor, weight: Tensor) -> Experience:
    zeros = torch.zeros(len(weight), dtype=weight.dtype)
    observation = {name: value.double() for name, value in row["observation"].items()}
    return Experience(
        observation=observation,
        memory={},
        episode_start=torch.zeros(1, len(weight), dtype=torch.bool),
        legal=row["legal"],
        action=row["action"],
        log_prob=zeros,
        value=zeros,
        advantage=advantage,
        value_target=zeros,
        weight=weight,
        role=torch.zeros(len(weight), dtype=torch.int64),
    )


def dialogue_starts(game: Any) -> tuple[State, Tensor]:
    """All instances of `witness` with two bits: the label is balanced, and the three with label 1 are equally
    likely."""
    state = game.reset(torch.arange(4))
    bits = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    state |= {"instance.bits": bits, "label": bits.amax(dim=1)}
    return state, torch.tensor([0.5, 1 / 6, 1 / 6, 1 / 6], dtype=torch.float64)


@pytest.mark.parametrize("role", ["verifier", "prover"])
def test_reinforce_has_the_gradient_of_the_exact_return_of_a_dialogue(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    game: Any = make_game(NIP)
    algorithms = {}
    for seat in game.roles:
        player = Player(
            seat, (seat,), game.spaces[seat], game.action_spaces[seat], game.device, 3, False, False, game=game
        )
        algorithms[seat] = OnPolicy(check(REINFORCE, OnPolicyConfig), player)
        algorithms[seat].net.double()
        for weight in algorithms[seat].net.parameters():
            weight.data *= 4.0  # else a verifier that hardly looks at the messages leaves the prover nothing to win
    monkeypatch.setattr("palestra.nets.mlp.flatten_observation", flatten_doubles)
    games = Enumeration(game, *dialogue_starts(game))
    assert len(games.origin) == 112  # of each of 4 starts 4 that end at once, and 24
    algorithm, index = algorithms[role], game.roles.index(role)

    probability = games.probability(algorithms)
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-12)
    decides = torch.stack([step[role]["decides"] for step in games.steps])
    gradient = torch.zeros(sum(weight.numel() for weight in algorithm.net.parameters()), dtype=torch.float64)
    reward = rewards_by_decision(torch.stack(games.rewards)[:, :, index], decides)
    nothing = torch.zeros_like(reward)
    ended = torch.zeros_like(decides)
    ended[last_of(decides), torch.arange(decides.shape[1])] = True
    sequences = Sequences(reward, nothing, nothing, ended & decides, torch.zeros_like(decides), decides)
    advantage, _ = algorithm.estimator.estimate(sequences)
    for step, row in enumerate(games.steps):
        rows = experience_of(row[role], advantage[step], probability * decides[step])
        loss = total_loss(algorithm.loss.terms(LossBatch(algorithm.net, rows, 0, True)))
        gradient -= torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(algorithm.net.parameters()))])
    assert gradient.abs().max() > 1e-3

    expected = []
    for weight in algorithm.net.parameters():
        flat_weight = weight.data.view(-1)
        for place in range(len(flat_weight)):
            was, sides = float(flat_weight[place]), []
            for shift in (1e-5, -1e-5):
                flat_weight[place] = was + shift
                sides.append(games.expected_return(role, algorithms))
            flat_weight[place] = was
            expected.append((sides[0] - sides[1]) / 2e-5)
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=0.0, atol=1e-6)


def flatten_doubles(observation: Mapping[str, Tensor], spaces: Mapping[str, Any]) -> Tensor:
    """As `flatten_observation`, in float64."""
    return torch.cat([observation[name].double().flatten(1) for name in spaces], dim=1)


def rewards_by_decision(rewards: Tensor, decides: Tensor) -> Tensor:
    """The rewards of all rounds (T, games), each added to the role's last decision before it; those before the first
    are no consequence of any."""
    summed, last = torch.zeros_like(rewards), torch.full(rewards.shape[1:], -1)
    for step in range(len(rewards)):
        last = torch.where(decides[step], step, last)
        known = last >= 0
        summed[last[known], known.nonzero().flatten()] += rewards[step][known]
    return summed


def last_of(decides: Tensor) -> Tensor:
    """The number of the last decision of every game; 0 where there is none."""
    numbers = torch.arange(len(decides)).unsqueeze(1)
    return torch.where(decides, numbers, 0).amax(dim=0)


# ---- estimators --------------------------------------------------------------------------------------------


def random_sequences(seed: int, T: int = 7, W: int = 5) -> Sequences:
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value = (torch.randn(T, W, generator=generator) for _ in range(3))
    kind = torch.randint(0, 6, (T, W), generator=generator)
    return Sequences(reward, value, next_value, kind == 0, kind == 1, kind != 2)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), bootstrap=st.booleans())
def test_reward_to_go_is_the_discounted_sum_of_what_follows_in_the_game(
    seed: int, gamma: float, bootstrap: bool
) -> None:
    sequences = random_sequences(seed)
    at = "bootstrap" if bootstrap else "end"
    config = RewardToGoConfig(name="reward_to_go", gamma=gamma, at_truncation=at)
    advantage, target = config.build().estimate(sequences)
    T, W = target.shape
    for w in range(W):
        rows = [t for t in range(T) if sequences.valid[t, w]]
        for place, t in enumerate(rows):
            expected, factor = 0.0, 1.0
            for later in rows[place:]:
                expected += factor * float(sequences.reward[later, w])
                factor *= gamma
                if sequences.terminated[later, w]:
                    break
                if sequences.truncated[later, w] or later == rows[-1]:
                    expected += factor * float(sequences.next_value[later, w]) * bootstrap
                    break
            assert float(target[t, w]) == pytest.approx(expected, abs=1e-4)
            assert float(advantage[t, w]) == pytest.approx(expected - float(sequences.value[t, w]), abs=1e-4)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), factor=st.floats(0, 1))
def test_lambda_returns_are_mixtures_of_n_step_returns(seed: int, gamma: float, factor: float) -> None:
    """Sutton & Barto 2018, eq. 12.3, of one episode that goes on after its last row."""
    T = 5
    reward, value = (torch.randn(T, 1, generator=torch.Generator().manual_seed(seed + k)) for k in range(2))
    last = torch.randn(1, 1, generator=torch.Generator().manual_seed(seed + 2))
    none, every = torch.zeros(T, 1, dtype=torch.bool), torch.ones(T, 1, dtype=torch.bool)
    sequences = Sequences(reward, value, torch.cat([value[1:], last]), none, none, every)
    _, target = TDLambdaConfig(name="td_lambda", gamma=gamma, td_lambda=factor).build().estimate(sequences)
    values = [*value[1:, 0].tolist(), float(last)]
    for t in range(T):
        returns = [
            sum(gamma**k * float(reward[t + k, 0]) for k in range(n)) + gamma**n * values[t + n - 1]
            for n in range(1, T - t + 1)
        ]
        mixed = sum((1 - factor) * factor**n * each for n, each in enumerate(returns[:-1]))
        assert float(target[t, 0]) == pytest.approx(mixed + factor ** (T - t - 1) * returns[-1], abs=1e-4)
    advantage, same = GAEConfig(name="gae", gamma=gamma, gae_lambda=factor).build().estimate(sequences)
    torch.testing.assert_close(same, target)
    torch.testing.assert_close(advantage, target - value)


# ---- whole games -------------------------------------------------------------------------------------------


def stream(seed: int, T: int, W: int) -> Transitions:
    """Rows of W worlds, whose number tells world and time; some do not count, some end a game."""
    generator = torch.Generator().manual_seed(seed)
    number = torch.arange(T).unsqueeze(1) * W + torch.arange(W)
    kind = torch.randint(0, 6, (T, W), generator=generator).flatten()
    rows = number.flatten()
    legal = torch.ones(T * W, 2, dtype=torch.bool)
    return Transitions(
        observation={"number": rows.float().unsqueeze(1)},
        action=rows,
        reward=rows.float(),
        next_observation={"number": rows.float().unsqueeze(1)},
        next_legal=legal,
        terminated=kind == 0,
        truncated=kind == 1,
        valid=kind != 2,
        extras={},
        legal=legal,
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 4), W=st.integers(1, 3))
def test_every_row_of_a_game_that_ends_comes_once_and_with_its_game(seed: int, length: int, W: int) -> None:
    turns = 4
    whole, keeper = stream(seed, turns * length, W), WholeGames()
    seen: list[int] = []
    for turn in range(turns):
        part = whole.at(torch.arange(turn * length * W, (turn + 1) * length * W))
        if turn == 2:  # as after a resume
            state = keeper.state_dict()
            keeper = WholeGames()
            keeper.load_state_dict(state, torch.device("cpu"))
        found = keeper(part, [torch.arange(length * W).view(length, W)])
        if found is None:
            continue
        rows, numbers = found
        for column in numbers.unbind(1):
            own = column[rows.valid[column]]
            seen += rows.action[own].tolist()
            assert rows.action[own].tolist() == sorted(rows.action[own].tolist())
            if len(own):
                assert bool((rows.terminated | rows.truncated)[own[-1]])
    expected = []
    for w in range(W):
        own = [row for row in range(w, turns * length * W, W) if whole.valid[row]]
        ends = [place for place, row in enumerate(own) if whole.terminated[row] or whole.truncated[row]]
        expected += own[: ends[-1] + 1] if ends else []
    assert sorted(seen) == sorted(expected)


def test_what_fills_up_a_shorter_sequence_belongs_to_no_game() -> None:
    """A role with one move in a round, beside one with three."""
    every = torch.ones(4, dtype=torch.bool)
    batch = replace(stream(0, 4, 1), valid=every, terminated=every, truncated=~every)
    found = WholeGames()(batch, [torch.tensor([[0], [1], [2]]), torch.tensor([[3]])])
    assert found is not None
    rows, numbers = found
    assert [rows.action[own][rows.valid[own]].tolist() for own in numbers.unbind(1)] == [[0, 1, 2], [3]]


def test_who_was_frozen_forgets_the_rows_of_games_before(tmp_path: Path) -> None:
    trainer = palestra.Trainer(run_config(REINFORCE), run=tmp_path / "run")
    algorithm: Any = trainer.players["one"].algorithm
    trainer.fit()
    assert algorithm.whole_games.waiting is not None
    algorithm.forget_waiting()
    assert algorithm.whole_games.waiting is None


# ---- losses of one's own -----------------------------------------------------------------------------------


class Own(OnPolicyLoss):
    """Base of those below: a sound loss."""

    class Config(UserConfig):
        pass

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        error = (batch.value - batch.value_target).square()
        return {"loss_both": batch.mean(error - batch.advantage * batch.log_prob), "spread": batch.mean(error)}


class NoLoss(Own):
    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return {"policy": batch.mean(batch.log_prob)}


class UnnamedHead(Own):
    heads = ("policy",)
    estimators = ("none",)

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return {"loss_value": batch.mean(batch.value)}


class UnusedHead(Own):
    heads = ("policy", "value", "label")


class UnknownHead(Own):
    heads = ("policy", "colour")


class NoPolicy(Own):
    heads = ("value",)


class Rows(Own):
    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return {"loss_rows": batch.log_prob}


class Fails(Own):
    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        raise KeyError("colour")


class NoTensor(Own):
    def terms(self, batch: LossBatch) -> dict[str, Any]:
        return {"loss_entropy": 1.0}


class NamesGradNorm(Own):
    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return {**super().terms(batch), "grad_norm": batch.mean(batch.entropy)}


class WantsRewards(Own):
    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return {"loss_reward": batch.mean(batch.reward)}


class HeadsOfPairs(Own):
    heads: Any = ("policy", "value", ("skill", 3))


class HeadsTwice(Own):
    heads = ("policy", "value", Head("value", 2))


class MisspelledEstimator(Own):
    estimators = ("gea",)


class KeepsAndForgets(Own):
    def state_dict(self) -> dict[str, Any]:
        return {"steps": 1}


class NotForGAE(Own):
    estimators = ("td_lambda",)


class Skills(Own):
    """A head of another kind."""

    heads = ("policy", "value", Head("skill", 3))

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return super().terms(batch) | {"loss_skill": batch.mean(batch.outputs["skill"].square().sum(dim=1))}


class NoSkip(Estimator):
    """An estimator that reads rows that do not count."""

    skips_rows = False

    class Config(UserConfig):
        pass

    def estimate(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        return sequences.reward, sequences.reward


HERE = __name__
NIM: Data = {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN}
BAD: dict[str, tuple[Data, Data, str]] = {
    "no loss_*": ({"loss": {"name": f"{HERE}:NoLoss"}}, CARTPOLE, "loss.name: .* expected at least one named loss_"),
    "a head it did not name": (
        {"loss": {"name": f"{HERE}:UnnamedHead"}, "estimator": {"name": "none"}, "body": REINFORCE["body"]},
        CARTPOLE,
        r"loss.name: .* uses the head 'value', which its `heads` \(policy\) do not name",
    ),
    "a head it does not learn": (
        {
            "loss": {"name": f"{HERE}:UnusedHead"},
            "body": {"name": "separate", **dict.fromkeys(("policy", "value", "label"), MLP)},
        },
        CARTPOLE,
        "loss.name: .* names heads of which it learns nothing: no loss_.* depends on the weights label",
    ),
    "an unknown head": (
        {"loss": {"name": f"{HERE}:UnknownHead"}},
        CARTPOLE,
        "loss.name: expected heads .* got 'colour'",
    ),
    "no policy": ({"loss": {"name": f"{HERE}:NoPolicy"}}, CARTPOLE, "loss.name: expected the head 'policy', by which"),
    "a loss of rows": (
        {"loss": {"name": f"{HERE}:Rows"}},
        CARTPOLE,
        r"loss.name: .* of shape \(3,\); expected a number",
    ),
    "a loss that fails": ({"loss": {"name": f"{HERE}:Fails"}}, CARTPOLE, "loss.name: .* fails: KeyError: 'colour'"),
    "a term that is no tensor": (
        {"loss": {"name": f"{HERE}:NoTensor"}},
        CARTPOLE,
        "loss.name: .* gives 'loss_entropy' as float; expected a tensor",
    ),
    "a term named as something else is": (
        {"loss": {"name": f"{HERE}:NamesGradNorm"}},
        CARTPOLE,
        "loss.name: .* names a term 'grad_norm'; expected another name",
    ),
    "what a batch does not have": (
        {"loss": {"name": f"{HERE}:WantsRewards"}},
        CARTPOLE,
        "loss.name: .* a batch has no 'reward'; it has observation, .*; rewards reach an estimator",
    ),
    "heads that are no heads": (
        {"loss": {"name": f"{HERE}:HeadsOfPairs"}},
        CARTPOLE,
        r"loss.name: .* has the heads .*\('skill', 3\)\); expected different names, or Head\(name, num_outputs\)",
    ),
    "two heads of a name": (
        {"loss": {"name": f"{HERE}:HeadsTwice"}},
        CARTPOLE,
        "loss.name: .* has the heads .*; expected different names",
    ),
    "an estimator that does not exist": (
        {"loss": {"name": f"{HERE}:MisspelledEstimator"}},
        CARTPOLE,
        "loss.name: .* has the estimators 'gea'; expected those among gae, td_lambda, ",
    ),
    "a state that is not loaded": (
        {"loss": {"name": f"{HERE}:KeepsAndForgets"}},
        CARTPOLE,
        "loss.name: .* has state_dict alone of state_dict and load_state_dict; expected both or none",
    ),
    "the wrong estimator": (
        {"loss": {"name": f"{HERE}:NotForGAE"}},
        CARTPOLE,
        "estimator.name: expected td_lambda for the loss .* got 'gae'",
    ),
    "advantages of none": (
        {"loss": {"name": f"{HERE}:Own"}, "estimator": {"name": "none"}},
        CARTPOLE,
        "loss.name: .* asks for value targets, which the estimator 'none' does not give",
    ),
    "an estimator that reads all rows": (
        {"loss": {"name": f"{HERE}:Own"}, "estimator": {"name": f"{HERE}:NoSkip"}},
        NIM,
        "estimator.name: expected an estimator that skips rows that do not count",
    ),
    "values without a head": (
        REINFORCE | {"estimator": {"name": "reward_to_go", "gamma": 1.0, "at_truncation": "bootstrap"}},
        CARTPOLE,
        "estimator.name: expected an estimator that needs no values .* got 'reward_to_go'",
    ),
    "a body without a head": (
        {"body": {"name": "separate", "policy": MLP}},
        CARTPOLE,
        "body.value: expected a network for the head 'value', but the key is missing",
    ),
    "a body with another head": (
        {"body": {"name": "separate", "policy": MLP, "value": MLP, "label": MLP}},
        CARTPOLE,
        "body.label: unknown key; the heads of this algorithm are policy, value",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_loss_is_one_line_before_anything_is_played(name: str, tmp_path: Path) -> None:
    changes, game, message = BAD[name]
    with pytest.raises(ConfigError, match=f"players.one.algorithm.{message}") as caught:
        palestra.Trainer(run_config(ON_POLICY | changes, game), run=tmp_path / "run")
    assert len(caught.value.errors) == 1
    assert not (tmp_path / "run").exists()


def test_an_estimator_that_reads_all_rows_may_learn_where_all_count(tmp_path: Path) -> None:
    algorithm = ON_POLICY | {"loss": {"name": f"{HERE}:Own"}, "estimator": {"name": f"{HERE}:NoSkip"}}
    trainer = palestra.Trainer(run_config(algorithm), run=tmp_path / "run")
    trainer.fit()
    assert trainer.opt_steps == 24


class LooksFirst(Own):
    """Asks for everything first where it needs no gradients."""

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                batch.distribution.log_prob(batch.action) + batch.log_prob + batch.entropy + batch.value
                for_nothing = LossBatch(batch.net, batch.rows, 0, True)
                for_nothing.value.exp()
            assert for_nothing.value.requires_grad
        return super().terms(batch)


def test_a_loss_that_draws_without_gradients_before_it_learns_has_the_gradient_of_one_that_does_not(
    tmp_path: Path,
) -> None:
    weights = []
    for name in ("Own", "LooksFirst"):
        algorithm = ON_POLICY | {"loss": {"name": f"{HERE}:{name}"}}
        trainer = palestra.Trainer(run_config(algorithm), run=tmp_path / name)
        trainer.fit()
        weights.append(trainer.players["one"].nets["heads"].state_dict())
    assert not list(tree_differences(*weights))


@pytest.mark.parametrize("body", ["shared", "separate"])
def test_a_loss_with_a_head_of_its_own_learns_it(body: str, tmp_path: Path) -> None:
    nets = (
        {"name": "shared", "net": MLP}
        if body == "shared"
        else {"name": "separate"} | dict.fromkeys(("policy", "value", "skill"), MLP)
    )
    trainer = palestra.Trainer(
        run_config(ON_POLICY | {"loss": {"name": f"{HERE}:Skills"}, "body": nets}), run=tmp_path / "run"
    )
    net: Any = trainer.players["one"].nets["heads"]
    assert list(net.heads) == ["policy", "skill", "value"]
    before = copy.deepcopy(net.net_of("skill").state_dict())
    trainer.fit()
    assert list(tree_differences(before, net.net_of("skill").state_dict()))
    records = [record for record in read_records(tmp_path / "run" / "records.jsonl") if "players" in record]
    assert "spread" in records[-1]["players"]["one"]


class Labelled(Own):
    """Learns the label of a dialogue, which the batch shows beside what critics observe."""

    heads = ("policy", "label", "value")

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        label, logits = batch.observation["critic/label"][:, 0].long(), batch.outputs["label"]
        return super().terms(batch) | {
            "loss_label": batch.mean(cross_entropy(logits, label, reduction="none")),
            "label_accuracy": batch.mean((logits.argmax(dim=1) == label).float()),
        }


def test_the_head_label_learns_what_critics_alone_are_shown(tmp_path: Path) -> None:
    words = ["solo_verifier", "witness", "game.scenario.num_bits=3", "game.scenario.num_seen=3"]
    where = "players.verifier.algorithm"
    changes = ["stop={after: 32, unit: epochs}", "evaluations=[]", "best=null", "output.recorders=[]"]
    changes += [f"{where}.centralized_critic=true", f"{where}.num_passes=4", f"loss={HERE}:Labelled", "num_worlds=16"]
    config = starting_config("on_policy", [*words, *changes])
    assert list(config.players["verifier"].algorithm.body.nets) == ["policy", "label", "value"]  # type: ignore[union-attr]
    palestra.make_trainer(config, run=tmp_path / "run", overrides=["output.display=quiet"]).fit()
    *_, last = (r for r in read_records(tmp_path / "run/records.jsonl") if r["kind"] == "training")
    assert last["players"]["verifier"]["label_accuracy"] > 0.99


def test_loss_trainer_trains_players_that_learn_by_a_loss_alone(tmp_path: Path) -> None:
    palestra.LossTrainer(run_config(ON_POLICY), run=tmp_path / "run").fit()
    with pytest.raises(ConfigError, match=r"players.one.algorithm.name: expected 'on_policy'.* got 'ppo'"):
        palestra.LossTrainer(run_config(PPO))


def test_reinforce_with_and_without_a_critic_reaches_the_best_arm(tmp_path: Path) -> None:
    """The prisoner's dilemma once, both in one player's hands: to defect is best whatever the other does."""
    game = {
        "name": "matrix",
        "payoffs": [[[3.0, 3.0], [0.0, 5.0]], [[5.0, 0.0], [1.0, 1.0]]],
        "num_rounds": 1,
        "observation": PLAIN,
    }
    for critic in (None, {"coefficient": 0.5}):
        loss = REINFORCE["loss"] | {"critic": critic}
        body = REINFORCE["body"] if critic is None else {"name": "separate", "policy": MLP, "value": MLP}
        algorithm = REINFORCE | {"loss": loss, "body": body, "learning_rate": {"name": "constant", "value": 0.05}}
        config = run_config(algorithm, game) | {"num_worlds": 64, "stop": {"after": 60, "unit": "opt_steps"}}
        trainer = palestra.Trainer(config, run=tmp_path / f"run-{critic is None}")
        trainer.fit()
        observation = {"seen": torch.zeros(1, 5)}
        what, probabilities = trainer.players["one"].algorithm.choice_values(observation, torch.ones(1, 2).bool(), {})  # type: ignore[misc, union-attr]
        assert what == "probability"
        assert float(probabilities[0, 1]) > 0.9
