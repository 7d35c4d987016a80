"""TD3, twin delayed deep deterministic policy gradient (Fujimoto et al. 2018): the least of several critics is
believed, the policy moves less often than they do, and target actions are blurred.

Actions are measured in half-widths of the Box from its centre, by the critics and by all noise: what the bounds are
changes no hyperparameter. With one critic, an interval of 1 and no blur it is DDPG (Lillicrap et al. 2016).
Left out on purpose: correlated exploration noise.
To run: palestra train configs/td3-pendulum.yml
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from math import isfinite
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Deterministic, Seat, Turn, capacity_errors
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Discount,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from palestra.games.policy import Decision, Memory, Sees
from palestra.games.spaces import Box, Space
from palestra.nets import NetConfig, make_net
from palestra.nets.flat import FlatNet
from palestra.nets.weights import compiled, evaluation_twin
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import base_key, fold, random_floats, random_normals
from palestra.rollouts.transitions import Transitions
from palestra.schedules import ScheduleConfig

# ---- what a run must say -----------------------------------------------------------------------------


class PolyakConfig(Config):
    name: Literal["polyak"]
    """the target networks move a little at every interval"""
    tau: Fraction
    """share of the way to the networks that learn; 1.0: a copy"""
    interval: PositiveInt
    """opt steps between moves; the paper's is policy_interval"""


class GaussianNoiseConfig(Config):
    name: Literal["gaussian"]
    """independent normal noise on every action, clipped to the bounds"""
    std: ScheduleConfig
    """standard deviation in half-widths of the Box, a function of the player's opt steps"""


class SmoothingConfig(Config):
    std: NonNegativeFloat
    """standard deviation in half-widths of the Box"""
    max_noise: NonNegativeFloat
    """larger noise is clipped to this"""


class TD3Config(AlgorithmConfig):
    """Every key of `algorithm: {name: td3}`. No defaults."""

    name: Literal["td3"]
    """twin delayed deep deterministic policy gradient, off-policy, for actions of a Box"""
    gamma: Discount
    """discount per decision of the player"""
    num_critics: PositiveInt
    """critics, of which the least is believed"""
    rollout_length: PositiveInt
    """rounds played in every world per turn"""
    updates_per_turn: PositiveInt
    """opt steps per turn, each one of the critics"""
    policy_interval: PositiveInt
    """opt steps between steps of the policy"""
    warmup_env_steps: NonNegativeInt
    """env steps of the player before its first opt step, with uniformly random actions"""
    batch_size: PositiveInt
    """transitions per opt step"""
    target: Annotated[PolyakConfig, ByName()]
    """how the target networks follow"""
    smoothing: SmoothingConfig
    """normal noise on the actions in targets"""
    exploration: Annotated[GaussianNoiseConfig, ByName()]
    """noise on actions while anyone gathers experience"""
    max_grad_norm: PositiveFloat | None
    """longer gradients of the critics, or of the policy, are scaled down to this norm; null: never"""
    policy_net: NetConfig
    """observation to an action, before a tanh"""
    critic_net: NetConfig
    """each critic: observation and action to a value"""
    policy_optimizer: OptimizerConfig
    """how gradients of the policy become steps"""
    critic_optimizer: OptimizerConfig
    """how gradients of the critics become steps"""
    policy_learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    critic_learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    replay_buffer: UniformReplayConfig
    """memory"""

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        num_transitions = seat.num_worlds * self.rollout_length * seat.num_turns
        return capacity_errors(self.replay_buffer.capacity, num_transitions)

    def build(self, player: Player) -> "TD3":
        return TD3(self, player)


# ---- what it learns ----------------------------------------------------------------------------------


def smoothed(action: Tensor, noise: Tensor, config: SmoothingConfig) -> Tensor:
    """An action in half-widths, blurred by standard normal noise (algorithm 1, clip(epsilon)): (B, n)."""
    return (action + (config.std * noise).clamp(-config.max_noise, config.max_noise)).clamp(-1.0, 1.0)


def td_target(next_value: Tensor, batch: Transitions, config: TD3Config) -> Tensor:
    """r + gamma * Q(s', a'); r alone where the game terminated: float32 (B,)."""
    return batch.reward + config.gamma * torch.where(batch.terminated, 0.0, next_value)


def critic_loss(taken: Tensor, target: Tensor) -> Tensor:
    """Mean squared TD error, summed over critics. taken: (critics, B), values of the actions taken."""
    return (taken - target).square().mean(dim=1).sum()


# ---- how it plays ------------------------------------------------------------------------------------


class NoisyPolicy:
    """The action of the policy net and normal noise of standard deviation `std`; uniformly random where there is no
    net. low, high: bounds of the Box, float32 (n,)."""

    sees: Sees = "observation"

    def __init__(
        self, net: Callable[[Mapping[str, Tensor]], Tensor] | None, low: Tensor, high: Tensor, std: float
    ) -> None:
        self.net, self.std = net, std
        self.center, self.half_width = (high + low) / 2, (high - low) / 2

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        num = len(self.center)
        if self.net is None:
            unit = 2.0 * random_floats(keys, num) - 1.0
        else:
            unit = torch.tanh(self.net(view))
            if self.std > 0.0:
                unit = (unit + self.std * random_normals(keys, num)).clamp(-1.0, 1.0)
        return Decision(self.center + self.half_width * unit, {}, memory)


# ---- how it learns -----------------------------------------------------------------------------------


def bounds(config: TD3Config, player: Player) -> tuple[Tensor, Tensor]:
    """The bounds of the player's Box: float32 (n,) each. ConfigError where TD3 cannot play it."""
    player.require_actions(config.name, Box)
    space = player.action_space
    assert isinstance(space, Box)
    place, faults = f"players.{player.name}.algorithm", []
    if not all(map(isfinite, (*space.low, *space.high))):
        message = f"'td3' needs a Box with finite bounds; those of {player.roles[0]!r} are {space}"
        faults.append(ConfigErrorItem(f"{place}.name", message))
    if "action" in player.spaces:
        message = "the observation has an entry 'action', as which the critics see the action"
        faults.append(ConfigErrorItem(f"{place}.critic_net", message))
    if faults:
        raise ConfigError(faults)
    return torch.tensor(space.low, device=player.device), torch.tensor(space.high, device=player.device)


class TD3(Algorithm):
    config: TD3Config

    def __init__(self, config: TD3Config, player: Player) -> None:
        super().__init__(config, player)
        self.low, self.high = bounds(config, player)
        self.center, self.half_width = (self.high + self.low) / 2, (self.high - self.low) / 2
        self.num_actions = num = len(self.low)
        seen_spaces = player.spaces | {"action": Space((num,), torch.float32, padded=False)}
        policy = make_net(config.policy_net, player.spaces, num, self.key("policy")).to(player.device)
        critics = nn.ModuleList(
            make_net(config.critic_net, seen_spaces, 1, self.key(f"critic/{i}")) for i in range(config.num_critics)
        ).to(player.device)
        self.policy_net, self.critics = FlatNet(policy), FlatNet(critics)
        self.target_policy, self.target_critics = FlatNet(deepcopy(policy).eval()), FlatNet(deepcopy(critics).eval())
        self.acting, self.judging = self.policy_net.evaluation_twin(), self.critics.first()
        self.update_fast = compiled(self.update, player.compile)
        self.policy_optimizer = config.policy_optimizer.build(self.policy_net.weights)
        self.critic_optimizer = config.critic_optimizer.build(self.critics.weights)
        self.buffer = ReplayBuffer(config.replay_buffer, player.device, player.seed, f"player/{player.name}/replay")
        self.noise_key = torch.tensor([self.key("noise")], device=player.device)
        self.rolled_out = False
        self.updates_left = 0
        player.nets = {"policy": self.policy_net.net, "critics": self.critics.net}
        player.nets |= {"target_policy": self.target_policy.net, "target_critics": self.target_critics.net}
        player.optimizers = {"policy": self.policy_optimizer, "critics": self.critic_optimizer}
        player.lr_schedule, player.er_schedule = config.policy_learning_rate, config.exploration.std
        player.replay_buffer = self.buffer

    def key(self, part: str) -> int:
        return base_key(self.player.seed, f"player/{self.player.name}/{part}")

    def policy(self, explore: bool) -> NoisyPolicy:
        warming_up = explore and self.player.env_steps < self.config.warmup_env_steps
        std = self.config.exploration.std(self.player.opt_steps) if explore else 0.0
        return NoisyPolicy(None if warming_up else self.acting, self.low, self.high, std)

    def module(self) -> Deterministic:
        center, half_width = (self.high + self.low) / 2, (self.high - self.low) / 2
        return Deterministic(
            evaluation_twin(self.policy_net.net), lambda outputs, legal: center + half_width * torch.tanh(outputs), 0
        )

    def learn(self, turn: Turn) -> None:
        config, player = self.config, self.player
        if not self.rolled_out:  # counters, not locals, remember where we are: a resumed run goes on right here
            transitions = turn.collect(config.rollout_length)
            self.buffer.add(transitions.rows(), transitions.valid)
            warming_up = player.env_steps < config.warmup_env_steps or self.buffer.is_empty
            self.updates_left = 0 if warming_up else config.updates_per_turn
            self.rolled_out = True
            turn.safe_point()
        while self.updates_left:
            turn.before_step()
            metrics = self.opt_step(self.buffer.sample(config.batch_size))
            self.updates_left -= 1
            turn.after_step(metrics)
        self.rolled_out = False

    def opt_step(self, rows: Mapping[str, Tensor]) -> Metrics:
        config, opt_steps = self.config, self.player.opt_steps
        self.critic_optimizer.learning_rate.fill_(config.critic_learning_rate(opt_steps))
        self.policy_optimizer.learning_rate.fill_(config.policy_learning_rate(opt_steps))
        due = [(opt_steps + 1) % interval == 0 for interval in (config.policy_interval, config.target.interval)]
        num_rows = len(rows["reward"])
        noise = random_normals(fold(self.noise_key, opt_steps), num_rows * self.num_actions).view(num_rows, -1)
        return self.update_fast(rows, noise, *due)

    def update(self, rows: Mapping[str, Tensor], noise: Tensor, is_policy_due: bool, is_followed: bool) -> Metrics:
        """A step of the critics, and where it is due of the policy against the new critics: tensor operations alone,
        one graph where it is compiled.

        noise: standard normal, (B, n), for the actions in targets. is_followed: whether the targets move.
        """
        config, batch = self.config, Transitions.from_rows(rows)
        gradient, critic_metrics = self.critic_gradient(batch, noise)
        gradient, norm = self.critic_optimizer.clip(gradient, config.max_grad_norm)
        self.critic_optimizer.step(gradient)
        metrics = {"loss": critic_metrics["critic_loss"], **critic_metrics, "critic_grad_norm": norm}
        if is_policy_due:
            gradient, policy_loss = self.policy_gradient(batch)
            gradient, norm = self.policy_optimizer.clip(gradient, config.max_grad_norm)
            self.policy_optimizer.step(gradient)
            loss = critic_metrics["critic_loss"] + policy_loss
            metrics |= {"loss": loss, "policy_loss": policy_loss, "policy_grad_norm": norm}
        if is_followed:
            self.target_policy.follow(self.policy_net, config.target.tau)
            self.target_critics.follow(self.critics, config.target.tau)
        return metrics

    def critic_gradient(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of the critics' loss with respect to all their weights, as one vector."""
        with torch.no_grad():
            action = smoothed(torch.tanh(self.target_policy(batch.next_observation)), noise, self.config.smoothing)
            next_q = self.target_critics(batch.next_observation | {"action": action})
            target = td_target(next_q.squeeze(2).amin(dim=0), batch, self.config)
        seen = batch.observation | {"action": (batch.action - self.center) / self.half_width}
        taken = self.critics(seen).squeeze(2)
        loss = self.critic_loss(taken, target)
        metrics = {"critic_loss": loss.detach(), "q_mean": taken.detach().mean()}
        return self.critics.gradient(loss), metrics

    def critic_loss(self, taken: Tensor, target: Tensor) -> Tensor:
        """A class of your own may have another."""
        return critic_loss(taken, target)

    def policy_gradient(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The gradient of minus the first critic's value with respect to the policy's weights, as one vector; and the
        loss."""
        action = torch.tanh(self.policy_net(batch.observation))
        loss = -self.judging(batch.observation | {"action": action}).mean()
        return self.policy_net.gradient(loss), loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {"rolled_out": self.rolled_out, "updates_left": self.updates_left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rolled_out, self.updates_left = state["rolled_out"], state["updates_left"]
