"""PPO with recurrent networks: what a roll-out saw and remembered is what is learned from, to the known optimum.

Covers palestra.games.policy.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

import palestra
from palestra.algorithms.algorithm import Seat
from palestra.algorithms.parts.advantages import (
    Experience,
    Sequences,
    generalized_advantages,
    memory_in,
    rows_of_sequences,
)
from palestra.algorithms.ppo import PPO
from palestra.evaluation.episodes import play_episodes
from palestra.evaluation.evaluator import play_games
from palestra.games.game import Game
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.policy import Memory
from palestra.kinds.games.export import export_player
from palestra.nets.recurrent import NamedNet
from palestra.players.player import Player
from palestra.rollouts import fuse
from palestra.rollouts.transitions import Transitions, join_roles
from tests.algorithms.probing import make_probe
from tests.algorithms.test_ppo import CLIPPED, CPU, MLP, ppo_config, probe_config, separate, shared
from tests.games.gym_worlds import MODES, gym_data, gym_game

LSTM = {
    "name": "recurrent",
    "encoder": {"name": "mlp", "net_arch": [], "activation": "tanh"},
    "encoder_width": 8,
    "cell": "lstm",
    "hidden_size": 6,
    "net_arch": [],
    "activation": "tanh",
}
GRU = LSTM | {"cell": "gru"}
BODIES = {
    "shared": shared(LSTM),
    "separate": {"name": "separate", "policy": GRU, "value": LSTM},
    "only the policy": {"name": "separate", "policy": LSTM, "value": MLP},
    "only the value": {"name": "separate", "policy": MLP, "value": GRU},
}
GAMES: dict[str, Game] = {
    "probe": make_probe("identity", continuous=False),
    "probe, cut off, box": make_probe("endless", continuous=True),
    "two seats": NimGame(NimConfig(name="nim", num_heaps=2, max_stones=3, observation=UNCHANGED), CPU),
}
NUM_WORLDS = 5


def game_of(name: str) -> Game:
    return gym_game("sync", name) if name in MODES else GAMES[name]


def make_ppo(game: Game, **changes: Any) -> PPO:
    """A player in all seats of a game, with weights large enough for its memory to matter."""
    first = game.roles[0]
    player = Player(
        "player", game.roles, game.spaces[first], game.action_spaces[first], CPU, seed=1, compile=False, by_hand=True
    )
    player.num_worlds = NUM_WORLDS
    box = {"box_actions": CLIPPED} if game.action_spaces[first].num_flags == 0 else {}
    stock = {"initialization": {"name": "stock"}, "rollout_length": 7}
    player.algorithm = ppo_config(**(stock | box | changes)).build(player)
    return player.algorithm  # type: ignore[return-value]


class Play:
    """Worlds of a game, played on by a player in all seats."""

    def __init__(self, ppo: PPO, game: Game, num_worlds: int = NUM_WORLDS) -> None:
        self.ppo, self.game = ppo, fuse(game)
        self.worlds: Any = self.game.new_worlds(num_worlds, 0, "play")

    def collect(self) -> Transitions:
        self.game.policies = dict.fromkeys(self.game.game.roles, self.ppo.policy(explore=True))
        by_role = self.game.collect(self.worlds, self.ppo.player.roles, self.ppo.config.rollout_length)
        return join_roles(by_role, self.ppo.player.moves, len(self.worlds.keys))


class Reference:
    """One sequence of decisions, one at a time, by the networks themselves."""

    def __init__(self, ppo: PPO) -> None:
        self.ppo, self.memory = ppo, dict[str, Tensor]()
        self.begin()

    def begin(self) -> None:
        parts = [self.part("policy")] + ([] if self.ppo.net.is_shared else [self.part("value")])
        self.memory = {name: x for part in parts for name, x in part.initial_memory(1, CPU).items()}

    def part(self, name: str) -> NamedNet:
        return NamedNet(name, getattr(self.ppo.net, name))

    def look(self, seen: dict[str, Tensor]) -> tuple[Tensor, Tensor, Memory]:
        """What the policy puts out, the value, and what is remembered after that."""
        outputs, after = self.part("policy").step(seen, self.memory)
        if self.ppo.net.is_shared:
            return outputs[:, :-1], outputs[:, -1], after
        value, of_value = self.part("value").step(seen, self.memory)
        return outputs, value[:, 0], after | of_value

    def row(self, batch: Transitions, row: int) -> tuple[float, float, float]:
        """The log-probability, the value and the value ahead of one decision, after which it stands."""
        one = slice(row, row + 1)
        stored = memory_in(batch.extras)
        assert all(torch.allclose(value, stored[name][one], atol=1e-6) for name, value in self.memory.items())
        outputs, value, after = self.look({name: x[one] for name, x in batch.observation.items()})
        action = batch.extras.get("sampled_action", batch.action)[one]
        log_prob = self.ppo.net.head.distribution(outputs, batch.legal[one]).log_prob(action)
        self.memory = after
        _, ahead, _ = self.look({name: x[one] for name, x in batch.next_observation.items()})
        if batch.terminated[row] or batch.truncated[row]:
            self.begin()
        return float(log_prob), float(value), float(ahead)


def sequences_of(ppo: PPO, batch: Transitions) -> list[Tensor]:
    return rows_of_sequences(ppo.player, ppo.config.rollout_length, len(batch.valid))


def seen_again(ppo: PPO) -> tuple[Tensor, Tensor]:
    """Log-probabilities and values of the experience, as an opt step finds them."""
    experience = ppo.passes.experience
    assert experience is not None
    distribution, value = ppo.net.distribution_and_value(experience)
    return distribution.log_prob(experience.action), value


@torch.no_grad()
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", [*GAMES, *MODES])
def test_learning_sees_what_the_roll_out_saw_and_remembered(name: str, body: str) -> None:
    """In every game, autoreset mode and body: the numbers of play, those of learning, and those of single steps from a
    memory of zeros at every episode's first observation; at a cut, the value ahead is that before the reset."""
    game = game_of(name)
    ppo = make_ppo(game, body=BODIES[body])
    play, num_ends = Play(ppo, game), 0
    references = [[Reference(ppo) for _ in range(NUM_WORLDS)] for _ in game.roles]
    for _ in range(4):
        batch = play.collect()
        ppo.prepare(batch)
        experience = ppo.passes.experience
        assert experience is not None
        counts = experience.weight > 0
        assert counts.sum() == batch.valid.sum()
        log_prob, value = seen_again(ppo)
        assert torch.allclose(log_prob[counts], experience.log_prob[counts], atol=1e-6)
        assert torch.allclose(value[counts], experience.value[counts], atol=1e-6)
        columns = [x.view(experience.episode_start.shape).T for x in (counts, log_prob, value, experience.advantage)]
        sequences = zip(*columns, strict=True)
        for role, own in enumerate(sequences_of(ppo, batch)):
            for world, rows in enumerate(own.T.tolist()):
                rows = [row for row in rows if batch.valid[row]]
                expected = torch.tensor([references[role][world].row(batch, row) for row in rows]).view(-1, 3)
                on, *found = next(sequences)
                reward, terminated, truncated = (x[rows] for x in (batch.reward, batch.terminated, batch.truncated))
                sequence = Sequences(
                    reward, expected[:, 1], expected[:, 2], terminated, truncated, torch.ones(len(rows)) > 0
                )
                advantage = generalized_advantages(Sequences(*(x.unsqueeze(1) for x in sequence)), 0.9, 0.8).flatten()
                for one, other in zip(found, (expected[:, 0], expected[:, 1], advantage), strict=True):
                    assert torch.allclose(one[on], other, atol=2e-6)
                num_ends += int((terminated | truncated).sum())
    assert num_ends > 10


@torch.no_grad()
@pytest.mark.parametrize("name", [*GAMES, *MODES])
def test_an_episode_begins_with_a_memory_of_exact_zeros(name: str) -> None:
    game = game_of(name)
    ppo = make_ppo(game, body=BODIES["separate"])
    play, begins = Play(ppo, game), torch.ones(len(game.roles), NUM_WORLDS, dtype=torch.bool)
    num_begun = 0
    for _ in range(5):
        batch = play.collect()
        memory = memory_in(batch.extras)
        assert set(memory) == {"policy.hidden", "value.hidden", "value.cell"}
        for role, own in enumerate(sequences_of(ppo, batch)):
            for rows in own:
                valid, ended = batch.valid[rows], (batch.terminated | batch.truncated)[rows]
                for value in memory.values():
                    is_zero = (value[rows] == 0.0).all(dim=1)
                    assert torch.equal(is_zero[valid], begins[role][valid])
                num_begun += int((begins[role] & valid).sum())
                begins[role] = torch.where(valid, ended, begins[role])
    assert num_begun > 10


@pytest.mark.parametrize("body", BODIES)
def test_choices_have_the_probabilities_by_which_they_are_drawn_with_a_memory(body: str) -> None:
    num, game = 20000, GAMES["two seats"]
    ppo = make_ppo(game, body=BODIES[body])
    heaps = torch.tensor([[1, 3]]).expand(num, -1)
    state = {"heaps": heaps, "mover": torch.zeros(num, dtype=torch.int64)}
    view, legal = game.observe(state, "first"), game.legal(state, "first")  # type: ignore[attr-defined]
    policy, memory, shares = ppo.predictor(deterministic=False), Memory(), []
    for step in range(2):
        name, probabilities = ppo.choice_values(view, legal, memory) or ("", torch.empty(0))
        decision = policy.act(view, legal, torch.arange(num) + step * num, memory)
        shares.append(torch.bincount(decision.action, minlength=6) / num)
        assert name == "probability"
        assert torch.allclose(probabilities.mean(dim=0), shares[-1], atol=0.02)
        assert (probabilities[~legal] == 0).all()
        memory = decision.memory
    assert bool(memory) == (body != "only the value")


# ---- opt steps ---------------------------------------------------------------------------------------------


def plain_loss(ppo: PPO, batch: Experience) -> Tensor:
    """The clipped loss of some sequences, in one step after another."""
    memory, rows = (
        batch.memory,
        list(zip(batch.episode_start, *(x.split(batch.episode_start.shape[1]) for x in batch[3:]), strict=True)),
    )
    seen = {name: x.split(batch.episode_start.shape[1]) for name, x in batch.observation.items()}
    log_probs, entropies, values = [], [], []
    for t, (starts, legal, action, *_) in enumerate(rows):
        memory = {name: torch.where(starts.unsqueeze(1), 0.0, value) for name, value in memory.items()}
        outputs, memory = NamedNet("policy", ppo.net.policy).step({name: x[t] for name, x in seen.items()}, memory)
        values.append(outputs[:, -1])
        options = torch.distributions.Categorical(logits=outputs[:, :-1].masked_fill(~legal, -1e9))
        log_probs.append(options.log_prob(action))
        entropies.append(options.entropy())
    on = batch.weight > 0
    log_prob, entropy, value = (torch.cat(parts)[on] for parts in (log_probs, entropies, values))
    advantage = batch.advantage[on]
    advantage = (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)
    ratio = (log_prob - batch.log_prob[on]).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -surrogate.mean() + 0.5 * (value - batch.value_target[on]).square().mean() - 0.01 * entropy.mean()


@pytest.mark.parametrize("name", ["probe", "two seats", "next_step"])
def test_gradients_flow_through_whole_sequences(name: str) -> None:
    game = game_of(name)
    ppo = make_ppo(game, body=BODIES["shared"], max_grad_norm=None)
    play = Play(ppo, game)
    play.collect()
    ppo.prepare(play.collect())
    assert ppo.passes.experience is not None
    with torch.no_grad():
        ppo.weights += 0.1 * torch.randn(len(ppo.weights), generator=torch.Generator().manual_seed(1))
    index = torch.tensor([3, 0, 4])
    expected = torch.autograd.grad(plain_loss(ppo, ppo.passes.experience.minibatch(index)), ppo.parameters)
    gradient, _ = ppo.gradient(ppo.passes.experience.minibatch(index), *torch.tensor([0.2, 0.0, 0.01]))
    assert torch.allclose(gradient, torch.cat([part.flatten() for part in expected]), rtol=1e-3, atol=1e-5)


def test_a_pass_sees_every_sequence_once(monkeypatch: pytest.MonkeyPatch) -> None:
    game = GAMES["two seats"]
    ppo, seen = make_ppo(game, body=BODIES["shared"], num_minibatches=4), list[Tensor]()
    ppo.prepare(Play(ppo, game).collect())
    monkeypatch.setattr(ppo, "opt_step", lambda experience, index, *others: seen.append(index) or {"approx_kl": 0.0})
    ppo.make_pass()
    assert [len(index) for index in seen] == [3, 3, 2, 2]
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(2 * NUM_WORLDS))


def test_roles_with_moves_of_different_numbers_have_sequences_of_one_length() -> None:
    """Those of `one`, a move a round, end with rows that do not count; those of `two`, two moves a round, are full."""
    ppo = make_ppo(GAMES["probe"], body=BODIES["shared"], rollout_length=3)
    ppo.player.roles, ppo.player.moves = ("one", "two"), ("two", "one", "two")
    num = 3 * 3 * NUM_WORLDS
    seen = {"seen": torch.randn(num, 2, generator=torch.Generator().manual_seed(0))}
    decision = ppo.policy(explore=True).act(seen, torch.ones(num, 2, dtype=torch.bool), torch.arange(num), {})
    never, reward = torch.zeros(num, dtype=torch.bool), torch.arange(num, dtype=torch.float32)
    legal = ~never.unsqueeze(1)
    ppo.prepare(Transitions(seen, decision.action, reward, seen, legal, never, never, ~never, decision.extras, legal))
    assert ppo.passes.experience is not None
    assert ppo.passes.experience.episode_start.shape == (6, 2 * NUM_WORLDS)
    weight = ppo.passes.experience.weight.view(6, 2, NUM_WORLDS)
    assert weight.mean(dim=2).tolist() == [[1.0, 1.0]] * 3 + [[0.0, 1.0]] * 3
    places = ppo.passes.experience.observation["seen"].view(6, 2, NUM_WORLDS, 2)
    rows = seen["seen"].view(3, 3, NUM_WORLDS, 2)
    assert torch.equal(places[:3, 0], rows[:, 1])
    assert torch.equal(places[:, 1], rows[:, [0, 2]].flatten(0, 1))


# ---- what is refused ---------------------------------------------------------------------------------------


def test_more_minibatches_than_worlds_are_refused() -> None:
    config = ppo_config(body=BODIES["shared"], num_minibatches=6)
    [error] = config.seat_errors(Seat(num_worlds=5, num_moves=1, num_roles=1))
    assert (
        str(error)
        == "num_minibatches: expected at most 5 (a roll-out has so many sequences, one per world and role), got 6"
    )
    assert not config.seat_errors(Seat(num_worlds=3, num_moves=1, num_roles=2))


# Exports are slow. The memory of "only the policy" is that of "shared", whose values read it, too.
@torch.no_grad()
@pytest.mark.parametrize(
    "body", [pytest.param(body, marks=[pytest.mark.slow] * (body == "only the policy")) for body in BODIES]
)
def test_an_exported_player_takes_its_memory_and_gives_it_back(body: str, tmp_path: Path) -> None:
    """Over an episode both files decide and remember as `predict` does, step by step."""
    player = make_ppo(GAMES["probe"], body=BODIES[body]).player
    player.game = GAMES["probe"]
    assert export_player(player, tmp_path / "out", onnx=True) == {"policy.pt2": 512, "policy.onnx": 512}
    program = torch.export.load(tmp_path / "out" / "policy.pt2").module()
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "policy.onnx"))
    said = json.loads((tmp_path / "out" / "policy.json").read_text())
    remembers = body != "only the value"
    assert said["onnx_outputs"] == [output.name for output in session.get_outputs()]
    assert said["onnx_outputs"][2:] == [f"memory_{name}_after" for name in said["memory"]]
    assert [name for name in said["onnx_inputs"] if "memory" in name] == [f"memory_{name}" for name in said["memory"]]
    assert list(said["memory"]) == ([] if not remembers else ["hidden"] if body == "separate" else ["cell", "hidden"])
    shapes = {name: (7, *entry["shape"][1:]) for name, entry in said["memory"].items()}
    memory, state = {name: torch.zeros(shape) for name, shape in shapes.items()}, None
    of_onnx = {f"memory_{name}": torch.zeros(shape).numpy() for name, shape in shapes.items()}
    [(name_of, space)] = player.spaces.items()
    legal = torch.ones(7, player.action_space.num_flags, dtype=torch.bool)
    for step in range(20):
        observation = torch.randn(7, *space.shape, generator=torch.Generator().manual_seed(step))
        expected, state = player.predict({name_of: observation}, state, legal=legal)
        action, values, *after = program({name_of: observation}, legal, *([memory] if remembers else []))
        inputs = {name_of: observation.numpy(), "legal": legal.numpy()} | of_onnx
        names = [entry.name for entry in session.get_inputs()]
        outputs = session.run(None, {name: inputs[name] for name in names})
        assert action.tolist() == outputs[0].tolist() == torch.as_tensor(expected).tolist()
        if remembers:
            afresh = {name: torch.zeros_like(value) for name, value in memory.items()}
            is_same = torch.allclose(program({name_of: observation}, legal, afresh)[1], values)
            assert is_same == (step == 0)
            [memory] = after
            given = [entry.name for entry in session.get_outputs()][2:]
            of_onnx = dict(zip([name.removesuffix("_after") for name in given], outputs[2:], strict=True))
            assert state is not None
            for name, value in memory.items():
                assert torch.allclose(value, state[f"policy.{name}"], atol=1e-6)
                assert np.allclose(of_onnx[f"memory_{name}"], value, atol=1e-5)
            assert all(bool(value.any()) for value in memory.values())


# ---- what it learns ----------------------------------------------------------------------------------------

MEMORY = copy.deepcopy(LSTM) | {"encoder_width": 16, "hidden_size": 16}


def learned_return(body: dict[str, Any], run: Path) -> tuple[float, Any]:
    """The mean return of 200 games of the `memory` probe after training, and the player."""
    changes = {"body": body, "num_minibatches": 2, "learning_rate": {**LEARNING_RATE, "num_steps": 480}}
    config = probe_config("memory", False, **changes) | {"stop": {"after": 480, "unit": "opt_steps"}}
    trainer = palestra.PPOTrainer(config, run=run)
    trainer.fit()
    player = trainer.players["agent"]
    games = play_games(trainer.game, {"agent": player.policy(explore=False)}, 200, 3, seed=1)
    return float(games.returns["agent"].mean()), player.algorithm


LEARNING_RATE = {"name": "linear", "initial": 1e-2, "final": 0.0}


@pytest.mark.parametrize("body", [shared(MEMORY), separate(MEMORY | {"cell": "gru"})], ids=["lstm", "gru"])
def test_what_was_seen_at_the_start_is_acted_on_at_the_end(body: dict[str, Any], tmp_path: Path) -> None:
    mean, ppo = learned_return(body, tmp_path / "run")
    assert mean == 1.0
    batch = Play(ppo, make_probe("memory", continuous=False), num_worlds=64)
    rows = batch.collect()
    for age, expected in enumerate((0.81, 0.9, 1.0)):
        assert torch.allclose(
            rows.extras["value"][rows.observation["seen"][:, 1] == age], torch.tensor(expected), atol=0.05
        )


def test_who_has_no_memory_cannot_know_it(tmp_path: Path) -> None:
    """Every right move at the end is as likely as the wrong one: a return of 1 in half of the games."""
    mean, _ = learned_return(separate(MLP | {"net_arch": [32]}), tmp_path / "run")
    assert abs(mean) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "least", "most"),
    [
        (LSTM | {"cell": "gru", "encoder_width": 32, "hidden_size": 32}, 150.0, 500.1),
        (MLP | {"net_arch": [64, 64]}, 0.0, 100.0),
    ],
    ids=["gru", "mlp"],
)
def test_a_pole_whose_speed_is_hidden_is_balanced_by_memory(
    net: dict[str, Any], least: float, most: float, tmp_path: Path
) -> None:
    changes = {
        "gamma": 0.99,
        "rollout_length": 64,
        "body": separate(net),
        "learning_rate": {"name": "linear", "initial": 3e-3, "final": 0.0, "num_steps": 2000},
    }
    config = probe_config("memory", False, **changes) | {
        "game": gym_data(id="tests.gym_probes:HiddenCartPole-v0"),
        "num_worlds": 16,
        "num_replicas": 1,
        "stop": {"after": 2000, "unit": "opt_steps"},
    }
    trainer = palestra.PPOTrainer(config, run=tmp_path / "run")
    trainer.fit()
    policy = trainer.players["agent"].policy(explore=False)
    games = play_episodes(trainer.game, policy, 30, 10, 500, seed=1)  # type: ignore[arg-type]
    assert least < float(games.returns["agent"].mean()) < most
