"""TD3, twin delayed deep deterministic policy gradient (Fujimoto et al. 2018).

The smallest value of several critics counts, the policy moves less often than they do, and noise smooths the target
policy. Critics and noise measure actions in half-widths of the Box from its centre, so that no hyperparameter depends
on the bounds. With one critic, an interval of 1 and no smoothing it is DDPG (Lillicrap et al. 2016).
Left out on purpose: correlated exploration noise.
Letters: B rows of a batch; n dimensions of the Box.
To run: palestra train configs/td3-pendulum.yml
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.parts import replay
from palestra.algorithms.parts.distributions import HalfWidths
from palestra.algorithms.parts.exported import Deterministic
from palestra.algorithms.parts.sampled_actions import box_errors
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Discount,
    InBranch,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    below,
)
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import Box, RoleSpaces, Space
from palestra.nets import NetConfig, make_net, usual_net
from palestra.nets.flat import FlatNet
from palestra.nets.weights import compiled, evaluation_view
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import fold, random_floats, random_normals
from palestra.rollouts.n_step import AnyTransitionsConfig
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

# ---- what a run must say -----------------------------------------------------------------------------


class GaussianNoiseConfig(Config):
    usual: ClassVar = {"std": 0.1}

    name: Literal["gaussian"]
    """independent normal noise on every action, clipped to the bounds"""
    std: ScheduleConfig
    """standard deviation in half-widths of the Box, a function of the player's opt steps"""


class SmoothingConfig(Config):
    usual: ClassVar = {"std": 0.2, "max_noise": 0.5}

    std: NonNegativeFloat
    """standard deviation in half-widths of the Box"""
    max_noise: NonNegativeFloat
    """larger noise is clipped to this"""


class TD3Config(AlgorithmConfig):
    """Every key of `algorithm: {name: td3}`. No defaults."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        return {
            "num_critics": 2,
            "rollout_length": 1,
            "updates_per_turn": 1,
            "policy_interval": 2,
            "warmup_env_steps": 10_000,
            "batch_size": 256,
            "target": {"interval": 2},
            "critic_net": usual_net(spaces.with_action()),
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
        }

    usual_run: ClassVar = {"num_worlds": 1}

    name: Literal["td3"]
    """twin delayed deep deterministic policy gradient, off-policy, for actions of a Box"""
    gamma: Discount
    """discount per decision of the player"""
    num_critics: Annotated[PositiveInt, InBranch.FIXED]
    """critics, of which the smallest value counts"""
    transitions: AnyTransitionsConfig
    """what of a roll-out becomes a row of the replay buffer"""
    rollout_length: PositiveInt | None
    """rounds played in every world per turn; null: none, the player learns from recorded play alone"""
    updates_per_turn: PositiveInt
    """opt steps per turn, each one of the critics"""
    policy_interval: PositiveInt
    """opt steps between steps of the policy"""
    warmup_env_steps: NonNegativeInt
    """env steps of the player before its first opt step, with uniformly random actions"""
    batch_size: PositiveInt
    """transitions per opt step"""
    target: replay.TargetConfig
    """how the target networks follow"""
    smoothing: SmoothingConfig
    """normal noise on the actions in targets"""
    exploration: Annotated[GaussianNoiseConfig, ByName(usual="gaussian")]
    """noise on actions in roll-outs"""
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
    replay_buffer: replay.AnyReplayConfig
    """memory"""

    seat_errors = replay.replay_errors

    def build(self, player: Player) -> "TD3":
        return TD3(self, player)


# ---- how it plays ------------------------------------------------------------------------------------


class NoisyPolicy:
    """Plays the policy net's actions plus normal noise of standard deviation `std`; without a net, uniform ones."""

    observes: Observes = "observation"

    def __init__(
        self, net: Callable[[Mapping[str, Tensor]], Tensor] | None, half_widths: HalfWidths, std: float
    ) -> None:
        self.net, self.half_widths, self.std = net, half_widths, std

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        num = len(self.half_widths.center)
        if self.net is None:
            unit = 2.0 * random_floats(keys, num) - 1.0
        else:
            unit = torch.tanh(self.net(view))
            if self.std > 0.0:
                unit = (unit + self.std * random_normals(keys, num)).clamp(-1.0, 1.0)
        return Decision(self.half_widths.inverse(unit), {}, memory)


# ---- how it learns ----------------------------------------------------------------------------------


class TD3(replay.LearnsByReplay):
    config: TD3Config

    def __init__(self, config: TD3Config, player: Player) -> None:
        super().__init__(config, player)
        player.require_actions(config.name, Box)
        with below(f"players.{player.name}.algorithm"):
            ConfigError.require_none(ConfigErrorItem(*error) for error in box_errors(player).items())
        self.half_widths = HalfWidths(cast(Box, player.action_space), player.device)
        self.num_noise = num = len(self.half_widths.center)
        critic_spaces = player.spaces | {"action": Space((num,), torch.float32, padded=False)}
        policy = make_net(config.policy_net, player.spaces, num, player.key("policy")).to(player.device)
        critics = nn.ModuleList(
            make_net(config.critic_net, critic_spaces, 1, player.key(f"critic/{i}")) for i in range(config.num_critics)
        ).to(player.device)
        self.policy_net, self.critics = FlatNet(policy, player.by_hand), FlatNet(critics, player.by_hand)
        self.target_policy, self.target_critics = (
            FlatNet(deepcopy(net).eval(), player.by_hand) for net in (policy, critics)
        )
        self.acting, self.frozen_critic = self.policy_net.evaluation_view(), self.critics.first()
        self.policy_optimizer = config.policy_optimizer.build(self.policy_net.weights)
        self.critic_optimizer = config.critic_optimizer.build(self.critics.weights)
        self.noise_key = torch.tensor([player.own_key("noise")], device=player.device)
        player.nets = {"policy": self.policy_net.net, "critics": self.critics.net}
        player.nets |= {"target_policy": self.target_policy.net, "target_critics": self.target_critics.net}
        player.optimizers = {"policy": self.policy_optimizer, "critics": self.critic_optimizer}
        player.lr_schedule, player.er_schedule = config.policy_learning_rate, config.exploration.std

    # ---- what it learns ------------------------------------------------------------------------------

    def target_actions(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return the actions at s' that targets value, in half-widths: the target policy's, with clipped noise (B, n).

        See algorithm 1 of the paper. outputs: (B, n), of the target policy's net. noise: standard normal, (B, n).
        """
        smoothing = self.config.smoothing
        clipped = (smoothing.std * noise).clamp(-smoothing.max_noise, smoothing.max_noise)
        return self.half_widths.without_fixed((torch.tanh(outputs) + clipped).clamp(-1.0, 1.0))

    def target(self, next_q_values: Tensor, batch: Transitions) -> Tensor:
        """Return the value target of the critics, (B,): r + gamma * the smallest value at s'.

        It is r alone where the game terminated. next_q_values: (critics, B), of the target critics and
        `target_actions`.
        """
        next_value = next_q_values.amin(dim=0)
        discount = batch.extras.get("discount", self.config.gamma)  # after n steps gamma^n
        return batch.reward + discount * torch.where(batch.terminated, 0.0, next_value)

    def critic_loss(self, q_values: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        """Return the terms of the critics' loss: the mean squared TD error, summed over critics.

        Terms named loss_* add up to the loss, the others are recorded. q_values: (critics, B), of the actions taken.
        value_target: (B,). Rows drawn by priority carry their weights in the mean.
        """
        losses = (q_values - value_target).square()
        if "weight" in batch.extras:
            losses = losses * batch.extras["weight"]
        return {"loss_critics": losses.mean(dim=1).sum(), "q_mean": q_values.detach().mean()}

    def priorities(self, q_values: Tensor, value_target: Tensor, batch: Transitions) -> Tensor:
        """Return the rows' priorities for prioritized replay, (B,): the mean of the critics' absolute TD errors."""
        return (q_values - value_target).abs().mean(dim=0)

    def policy_loss(self, q_values: Tensor, actions: Tensor, batch: Transitions) -> dict[str, Tensor]:
        """Return the terms of the policy's loss: minus the value of its actions, by a critic that is held fixed.

        actions: (B, n), the policy's at the observations, in half-widths. q_values: (B,), of the first critic.
        """
        return {"loss_policy": -q_values.mean()}

    # ---- a turn --------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> None:
        config = self.config
        self.roll_out(turn)
        for _ in turn.times("updates", 0 if self.is_warming_up() else turn.num_updates()):
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(config.batch_size)))

    def learning_rate_of(self, optimizer: str) -> float:
        config = self.config
        schedules = {"policy": config.policy_learning_rate, "critics": config.critic_learning_rate}
        return schedules[optimizer](self.player.opt_steps)

    def opt_step(self, rows: Mapping[str, Tensor]) -> Metrics:
        config, opt_steps = self.config, self.player.opt_steps
        self.critic_optimizer.learning_rate.fill_(config.critic_learning_rate(opt_steps))
        self.policy_optimizer.learning_rate.fill_(config.policy_learning_rate(opt_steps))
        due = [(opt_steps + 1) % interval == 0 for interval in (config.policy_interval, config.target.interval)]
        num_rows = len(rows["reward"])
        noise = random_normals(fold(self.noise_key, opt_steps), num_rows * self.num_noise).view(num_rows, -1)
        rows = self.weighted(rows)
        metrics, priorities = self.update_fast(rows, noise, *due)
        self.update_priorities(priorities)
        return metrics

    def update(
        self, rows: Mapping[str, Tensor], noise: Tensor, is_policy_due: bool, is_followed: bool
    ) -> tuple[Metrics, Tensor | None]:
        """Step on the critics, and on the policy if that is due; return metrics and the rows' priorities.

        These are tensor operations alone, one graph where it is compiled. noise: standard normal, (B, n), for the
        actions in targets. is_followed: whether the targets move.
        """
        config, batch = self.config, Transitions.from_rows(rows)
        gradient, critic_metrics, priorities = self.critic_gradient(batch, noise)
        gradient, critic_metrics = self.player.mean_over_replicas(gradient, critic_metrics)
        norms = self.critic_optimizer.descend(gradient, config.max_grad_norm, "critic_grad_norm")
        metrics = {"loss": critic_metrics["critic_loss"], **critic_metrics, **norms}
        if is_policy_due:
            gradient, policy_metrics = self.policy_gradient(batch)
            gradient, policy_metrics = self.player.mean_over_replicas(gradient, policy_metrics)
            norms = self.policy_optimizer.descend(gradient, config.max_grad_norm, "policy_grad_norm")
            loss = critic_metrics["critic_loss"] + policy_metrics["policy_loss"]
            metrics |= {"loss": loss, **policy_metrics, **norms}
        if is_followed:
            self.target_policy.follow(self.policy_net, config.target.tau)
            self.target_critics.follow(self.critics, config.target.tau)
        return metrics, priorities

    def critic_gradient(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Return the gradient of the critics' loss by all their weights, the metrics, and the rows' priorities.

        The gradient is one vector. Priorities are None unless the buffer is prioritized.
        """
        with torch.no_grad():
            next_actions = self.target_actions(self.target_policy(batch.next_observation), noise)
            next_q_values = self.target_critics(batch.next_observation | {"action": next_actions}).squeeze(2)
            value_target = self.target(next_q_values, batch)
        q_values = self.critics(batch.observation | {"action": self.half_widths(batch.action)}).squeeze(2)
        terms = self.critic_loss(q_values, value_target, batch)
        loss = total_loss(terms)
        priorities = self.priorities(q_values.detach(), value_target, batch) if self.is_prioritized else None
        return self.critics.gradient(loss), {"critic_loss": loss.detach(), **metrics_of(terms)}, priorities

    def policy_gradient(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of the policy's loss by its own weights, as one vector, and metrics."""
        actions = self.half_widths.without_fixed(torch.tanh(self.policy_net(batch.observation)))
        q_values = self.frozen_critic(batch.observation | {"action": actions}).squeeze(1)
        terms = self.policy_loss(q_values, actions, batch)
        loss = total_loss(terms)
        return self.policy_net.gradient(loss), {"policy_loss": loss.detach(), **metrics_of(terms)}

    @kernel_property
    def update_fast(self) -> Callable[[Mapping[str, Tensor], Tensor, bool, bool], tuple[Metrics, Tensor | None]]:
        return compiled(self.update, self.player.compiles_opt_steps)

    # ---- how it plays, and what it remembers ---------------------------------------------------------

    def policy(self, explore: bool) -> NoisyPolicy:
        warming_up = explore and self.player.env_steps < self.config.warmup_env_steps
        std = self.config.exploration.std(self.player.opt_steps) if explore else 0.0
        return NoisyPolicy(None if warming_up else self.acting, self.half_widths, std)

    def module(self) -> Deterministic:
        half_widths, net = self.half_widths, evaluation_view(self.policy_net.net)
        return Deterministic(net, lambda outputs, legal: half_widths.inverse(torch.tanh(outputs)), 0)
