"""PPO with a centralized critic: its value observes what the game shows critics alone, its policy never does."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palestra.algorithms.parts.advantages import Experience
from palestra.algorithms.ppo import PPO
from palestra.config import ConfigError
from palestra.games.game import Observation, State, TensorGame
from palestra.games.harvest import HarvestConfig, HarvestGame
from palestra.games.normalization import UNCHANGED
from palestra.games.spaces import Discrete, Space
from palestra.games.world import TensorWorld
from palestra.players.player import Player
from palestra.rollouts import fuse
from palestra.rollouts.transitions import Transitions, join_roles
from tests.algorithms.probing import make_probe
from tests.algorithms.test_ppo import CPU, LAYER_NORM, MLP, opt_step, plain_loss, plain_optimizer, ppo_config, separate
from tests.algorithms.test_ppo_recurrent import GRU, LSTM

NUM_WORLDS = 6
CONFIG = HarvestConfig(name="harvest", num_farmers=2, num_kinds=3, num_rounds=3, luck=5.0, observation=UNCHANGED)
BODIES = {
    "by hand": separate(MLP),
    "by torch": separate(LAYER_NORM),
    "recurrent critic": {"name": "separate", "policy": MLP, "value": LSTM},
    "both recurrent": {"name": "separate", "policy": GRU, "value": LSTM},
}
each_body = pytest.mark.parametrize("body", BODIES)


class WithBoard(HarvestGame):
    """Also shows critics a set."""

    def __init__(self) -> None:
        super().__init__(CONFIG, CPU)
        self.critic_spaces = {
            role: {**spaces, "board": Space((2, 3), torch.float32, padded=True)}
            for role, spaces in self.critic_spaces.items()
        }

    def observe_for_critics(self, state: State, role: str) -> Observation:
        shown = super().observe_for_critics(state, role)
        return {**shown, "board": shown["weather"][:, 0] * (1.0 + state["round"].float().view(-1, 1, 1))}


class Peek(TensorGame):
    """A probe of one role whose critic is shown its sign, twice: a lone agent with an asymmetric critic."""

    def __new__(cls) -> Any:
        probe: Any = make_probe("memory", continuous=False)
        probe.critic_spaces = {"agent": {"sign": Space((2,), torch.float32, padded=False)}}
        probe.observe_for_critics = lambda state, role: {"sign": state["sign"].float().unsqueeze(1).expand(-1, 2) * 1.0}
        probe.stepper = lambda state: None
        return probe


def make_ppo(game: Any, roles: tuple[str, ...], centralized: bool = True, **changes: Any) -> PPO:
    player = Player(
        "player", roles, game.spaces[roles[0]], game.action_spaces[roles[0]], CPU, seed=1, compile=False, by_hand=True
    )
    player.critic_spaces, player.num_worlds = game.critic_spaces, NUM_WORLDS
    stock = {"initialization": {"name": "stock"}, "rollout_length": 8, "num_minibatches": 1}
    player.algorithm = ppo_config(**(stock | {"centralized_critic": centralized} | changes)).build(player)
    return player.algorithm  # type: ignore[return-value]


class Play:
    """Worlds of a game, played on by players in its seats."""

    def __init__(self, game: Any, *ppos: PPO) -> None:
        self.game, self.ppos = fuse(game), ppos
        self.worlds: Any = self.game.new_worlds(NUM_WORLDS, 0, "play")

    def collect(self, num_rounds: int) -> dict[str, Transitions]:
        self.game.policies = {role: ppo.policy(explore=True) for ppo in self.ppos for role in ppo.player.roles}
        return self.game.collect(self.worlds, tuple(self.game.policies), num_rounds)

    def prepare(self, ppo: PPO) -> None:
        roll_out = self.collect(ppo.config.rollout_length)
        ppo.prepare(join_roles({role: roll_out[role] for role in ppo.player.roles}, ppo.player.moves, NUM_WORLDS))


# ---- what a roll-out brings ------------------------------------------------------------------------------


def test_rows_hold_what_critics_are_shown_of_the_roles_whose_player_asks_and_of_no_others() -> None:
    game = WithBoard()
    play = Play(game, make_ppo(game, ("farmer_0",)), make_ppo(game, ("farmer_1",), centralized=False))
    roll_out = play.collect(8)
    for name in ("observation", "next_observation"):
        assert list(getattr(roll_out["farmer_0"], name)) == ["seen", "weather", "board"]
        assert list(getattr(roll_out["farmer_1"], name)) == ["seen"]


def test_who_is_shown_what_critics_see_plays_the_same_where_nobody_collects_its_rows() -> None:
    game = WithBoard()
    both, alone = (Play(game, *(make_ppo(game, (role,)) for role in game.roles)) for _ in range(2))
    for play in (both, alone):
        play.collect(1)
    expected = both.collect(8)["farmer_0"]
    found = alone.game.collect(alone.worlds, ("farmer_0",), 8)["farmer_0"]
    assert torch.equal(found.valid, expected.valid)
    assert all(torch.equal(value, found.rows()[name]) for name, value in expected.rows().items())


def test_what_critics_are_shown_belongs_to_the_very_state_that_the_player_observed() -> None:
    game = WithBoard()
    rows = Play(game, make_ppo(game, ("farmer_1",)), make_ppo(game, ("farmer_0",))).collect(9)["farmer_1"]
    counted = 0
    for observation, where in ((rows.observation, rows.valid), (rows.next_observation, rows.valid & ~rows.terminated)):
        weather, left = observation["weather"][where], observation["seen"][where, -1]
        assert torch.equal(weather[:, 0, 1], observation["seen"][where, :-1])  # its own field
        assert torch.equal(weather.sum(dim=(1, 2, 3)), (left * 3).round() * 2)  # of the rounds that are left
        assert torch.equal(observation["board"][where].amax(dim=(1, 2)), 4.0 - (left * 3).round())
        counted += len(weather)
    assert counted > 50
    ended = rows.valid & rows.terminated
    assert ended.any()
    assert (rows.next_observation["weather"][ended] == 0).all()
    assert (rows.next_observation["board"][ended] == -1).all()  # a set without members


def test_a_lone_agents_critic_is_shown_the_state_before_and_after_each_step() -> None:
    game = Peek()
    rows = Play(game, make_ppo(game, ("agent",))).collect(9)["agent"]
    sign = rows.observation["sign"]
    assert torch.equal(rows.next_observation["sign"], sign)  # also at the end, where the game has begun anew
    begins = rows.observation["seen"][:, 1] == 0
    assert torch.equal(sign[begins, 0], rows.observation["seen"][begins, 0])
    assert begins.any()
    assert not begins.all()
    assert rows.terminated.any()


def test_a_world_with_a_stepper_shows_critics_what_the_other_methods_do() -> None:
    """The stepper gives no entries for critics; without them it is used again."""
    game = Peek()
    world = TensorWorld(game, torch.arange(4))
    game.stepper = lambda state: pytest.fail("it must not be asked")
    world.show_critics(True)
    assert list(world.observation) == ["seen", "sign"]
    game.stepper = lambda state: None
    world.show_critics(False)
    assert list(world.observation) == ["seen"]


# ---- who observes it -------------------------------------------------------------------------------------


@each_body
def test_the_policy_has_weights_for_its_own_observation_alone(body: str) -> None:
    game = WithBoard()
    ppo, plain = (make_ppo(game, ("farmer_0",), centralized, body=BODIES[body]) for centralized in (True, False))
    assert {name: w.shape for name, w in ppo.net.policy.state_dict().items()} == {
        name: w.shape for name, w in plain.net.policy.state_dict().items()
    }
    assert ppo.net.value is not None
    assert ppo.net.value.state_dict().keys() == plain.net.value.state_dict().keys()  # type: ignore[union-attr]
    assert sum(w.numel() for w in ppo.net.value.parameters()) > sum(w.numel() for w in plain.net.value.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [LAYER_NORM, LSTM])
def test_a_policys_network_gets_no_entries_of_critics_in_play_learning_and_evaluation(value: dict[str, Any]) -> None:
    game = WithBoard()
    ppo = make_ppo(game, ("farmer_0", "farmer_1"), body={"name": "separate", "policy": LAYER_NORM, "value": value})
    names: set[tuple[str, ...]] = set()
    for net in (ppo.net.policy, ppo.actor.net):
        net.register_forward_pre_hook(lambda _, inputs: names.add(tuple(inputs[0])))
    play = Play(game, ppo)
    play.prepare(ppo)
    ppo.make_pass()
    for policy in (ppo.policy(explore=False), ppo.predictor(deterministic=False)):
        assert policy.observes == "observation"
        view = game.observe(game.reset(torch.arange(4)), "farmer_0")
        policy.act(view, torch.ones(4, 3, dtype=torch.bool), torch.arange(4), {})
    ppo.module()(view, torch.ones(4, 3, dtype=torch.bool))
    assert names == {("seen",)}


@each_body
def test_what_critics_are_shown_changes_values_and_no_probability(body: str) -> None:
    game = WithBoard()
    ppo = make_ppo(game, ("farmer_0",), body=BODIES[body])
    Play(game, ppo, make_ppo(game, ("farmer_1",))).prepare(ppo)
    experience = ppo.passes.experience
    assert experience is not None
    other = experience._replace(
        observation={name: x if name == "seen" else x + 1.0 for name, x in experience.observation.items()}
    )
    with torch.no_grad():
        one, two = (ppo.net(x.observation, x.memory, x.episode_start) for x in (experience, other))
    assert torch.equal(one["policy"], two["policy"])
    assert not torch.allclose(one["value"], two["value"], atol=1e-3)


# ---- how it learns ---------------------------------------------------------------------------------------


@each_body
def test_opt_steps_are_those_of_plain_torch(body: str) -> None:
    game = WithBoard()
    ppo = make_ppo(game, ("farmer_0",), body=BODIES[body])
    assert (ppo.gradient_kernel is not None) == (body == "by hand")
    Play(game, ppo, make_ppo(game, ("farmer_1",))).prepare(ppo)
    experience = ppo.passes.experience
    assert experience is not None
    with torch.no_grad():
        ppo.weights += 0.1 * torch.randn(len(ppo.weights), generator=torch.Generator().manual_seed(1))
    net: Any = TwoNets(copy.deepcopy(ppo.net))
    optimizer = plain_optimizer(ppo.config.optimizer, net)
    index = torch.arange(experience.episode_start.shape[1])
    for step in range(3):
        loss = plain_loss(ppo, experience.minibatch(index), net, 0.2, 0.01)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = ppo.config.learning_rate(step)
        optimizer.step()
        found = opt_step(ppo, experience, index, step)
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
        assert found["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    for (name, value), expected in zip(ppo.net.state_dict().items(), net.net.state_dict().values(), strict=True):
        assert torch.allclose(value, expected, atol=3e-5), name


class TwoNets(nn.Module):
    """The two networks, each called by itself with what it may observe."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.head = net, net.head
        for parameter in net.parameters():
            parameter.data = parameter.data.clone()

    def forward(self, observation: Observation, memory: Any, episode_start: Tensor) -> dict[str, Tensor]:
        shown = {"policy": {"seen": observation["seen"]}, "value": observation}
        return {name: self._along(name, entries, memory, episode_start) for name, entries in shown.items()}

    def _along(self, name: str, observation: Observation, memory: Any, episode_start: Tensor) -> Tensor:
        net = getattr(self.net, name)
        if not hasattr(net, "unroll"):
            return net(observation)
        own = {key.partition(".")[2]: value for key, value in memory.items() if key.startswith(name)}
        outputs = []
        for t, begins in enumerate(episode_start):
            own = {key: value * ~begins.unsqueeze(1) for key, value in own.items()}
            rows = slice(t * len(begins), (t + 1) * len(begins))
            output, own = net({key: value[rows] for key, value in observation.items()}, own)
            outputs.append(output)
        return torch.cat(outputs)


@each_body
def test_values_are_those_of_all_that_the_critic_observes(body: str) -> None:
    """At the roll-out, as the losses find them again while no weight has moved."""
    game = WithBoard()
    ppo = make_ppo(game, ("farmer_0",), body=BODIES[body], learning_rate={"name": "constant", "value": 0.0})
    Play(game, ppo, make_ppo(game, ("farmer_1",))).prepare(ppo)
    experience: Experience | None = ppo.passes.experience
    assert experience is not None
    with torch.no_grad():
        _, value = ppo.net.distribution_and_value(experience)
    counts = experience.weight > 0
    assert torch.allclose(value[counts], experience.value[counts], atol=1e-5)
    assert abs(float(ppo.make_pass()["approx_kl"])) < 1e-6


# ---- what is refused -------------------------------------------------------------------------------------


def test_a_shared_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^body.name: expected 'separate' \(centralized_critic is true: .* got 'sha"):
        ppo_config(centralized_critic=True, body={"name": "shared", "net": MLP})


def test_a_game_that_shows_critics_nothing_is_refused() -> None:
    game: Any = make_probe("memory", continuous=False)
    path = r"^players.player.algorithm.centralized_critic: "
    with pytest.raises(ConfigError, match=path + r"expected false \(the game shows critics of 'agent' nothing\), got"):
        make_ppo(game, ("agent",))


def test_roles_whose_critics_are_shown_different_things_cannot_share_one() -> None:
    game = HarvestGame(CONFIG, CPU)
    game.critic_spaces["farmer_1"] = {"weather": Space((1,), torch.float32, padded=False)}
    message = r"expected false \(the game shows critics of 'farmer_1' something else than those of 'farmer_0', in which"
    with pytest.raises(ConfigError, match=message):
        make_ppo(game, ("farmer_0", "farmer_1"))
    make_ppo(game, ("farmer_0", "farmer_1"), centralized=False)
    assert game.action_spaces["farmer_0"] == Discrete(3)
