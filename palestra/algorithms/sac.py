"""SAC, soft actor-critic: an off-policy algorithm that maximizes returns and entropy.

Source: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"; with discrete actions Christodoulou 2019.

The smallest value of several critics counts, and one coefficient weighs entropy against reward, fixed or learned.
Critics and log-probabilities measure actions of a Box in half-widths from its centre, so that no hyperparameter depends
on the bounds. Acting, targets and the policy's loss allow legal actions alone.
Left out on purpose: the state-value network of the first paper, reward scaling (the entropy coefficient does it).
Letters: B rows of a batch; K actions over which a mean is taken (1 of a Box, all of a Discrete); n dimensions of a Box.
To run: palestra train configs/sac-pendulum.yml
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.parts import action_heads, replay, sampled_actions
from palestra.algorithms.parts.playing import PlaysByPolicy
from palestra.algorithms.parts.sampled_actions import BoxHead, DiscreteHead, SampledActions
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Discount,
    Fraction,
    InBranch,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    below,
)
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import Box, Discrete, RoleSpaces
from palestra.nets import NetConfig, make_net, usual_net
from palestra.nets.flat import FlatNet
from palestra.nets.weights import compiled
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import fold, random_normals
from palestra.rollouts.n_step import AnyTransitionsConfig
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

# ---- what a run must say -----------------------------------------------------------------------------


class NumberConfig(Config):
    name: Literal["number"]
    """a number of nats"""
    value: float
    """the number; entropies of a Box are those of actions in half-widths, and may be negative"""


class PerDimensionConfig(Config):
    usual: ClassVar = {"factor": -1.0}

    name: Literal["per_dimension"]
    """factor * number of dimensions of a Box"""
    factor: float
    """-1.0 is usual"""


class PerLogActionsConfig(Config):
    usual: ClassVar = {"factor": 0.98}  # Christodoulou 2019

    name: Literal["per_log_actions"]
    """factor * log(number of legal actions), of discrete ones"""
    factor: Fraction
    """share of the greatest possible entropy"""


class FixedConfig(Config):
    usual: ClassVar = {"value": 0.2}

    name: Literal["fixed"]
    """the same coefficient throughout"""
    value: NonNegativeFloat
    """weight of a nat of entropy against reward (the temperature alpha)"""


class AutomaticConfig(Config):
    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        target = "per_dimension" if isinstance(spaces.action, Box) else "per_log_actions"
        return {"initial": 1.0, "target_entropy": target, "learning_rate": 3e-4}

    name: Literal["automatic"]
    """learned, so that the policy's entropy comes to a target"""
    initial: Annotated[PositiveFloat, InBranch.FIXED]
    """the coefficient at the start"""
    target_entropy: Annotated[NumberConfig | PerDimensionConfig | PerLogActionsConfig, ByName()]
    """mean entropy that is aimed at"""
    optimizer: OptimizerConfig
    """how gradients of the coefficient's logarithm become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""


class SACConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: sac}`. No defaults."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        return {
            "num_critics": 2,
            "rollout_length": 1,
            "updates_per_turn": 1,
            "warmup_env_steps": 1000,
            "batch_size": 256,
            "entropy_coefficient": "automatic",
            "log_std": {} if isinstance(spaces.action, Box) else None,
            "critic_net": usual_net(spaces.with_action()),
            "policy_learning_rate": 3e-4,
            "critic_learning_rate": 3e-4,
        }

    usual_run: ClassVar = {"num_worlds": 1}

    name: Literal["sac"]
    """soft actor-critic: returns and entropy, off-policy"""
    gamma: Discount
    """discount per decision of the player"""
    num_critics: Annotated[PositiveInt, InBranch.FIXED]
    """critics, of which the smallest value counts"""
    transitions: AnyTransitionsConfig
    """what of a roll-out becomes a row of the replay buffer"""
    rollout_length: PositiveInt | None
    """rounds played in every world per turn; null: none, the player learns from recorded play alone"""
    updates_per_turn: PositiveInt
    """opt steps per turn, each one of critics, policy and entropy coefficient"""
    warmup_env_steps: NonNegativeInt
    """env steps of the player before its first opt step, with uniformly random actions"""
    batch_size: PositiveInt
    """transitions per opt step"""
    target: replay.TargetConfig
    """how the target critics follow"""
    entropy_coefficient: Annotated[FixedConfig | AutomaticConfig, ByName(), InBranch.SAME_PART]
    """weight of the policy's entropy (the temperature alpha): fixed or learned"""
    log_std: action_heads.LogStdConfig | None
    """bounds of the logarithms of standard deviations, of actions of a Box; null for discrete actions"""
    max_grad_norm: PositiveFloat | None
    """longer gradients of the critics, or of the policy, are scaled down to this norm; null: never"""
    policy_net: NetConfig
    """observation to means and log standard deviations, or to logits"""
    critic_net: NetConfig
    """each critic: observation and action to a value, or observation to a value per discrete action"""
    policy_optimizer: OptimizerConfig
    """how gradients of the policy become steps"""
    critic_optimizer: OptimizerConfig
    """how gradients of the critics become steps"""
    policy_learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    critic_learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    evaluation: Literal["deterministic", "sampled"]
    """how the player acts without exploration: its likeliest action, or one drawn from its policy"""
    replay_buffer: replay.AnyReplayConfig
    """memory"""

    seat_errors = replay.replay_errors

    def build(self, player: Player) -> "SAC":
        return SAC(self, player)


# ---- how it plays ------------------------------------------------------------------------------------


class SoftPolicy:
    """Plays the actions that a function chooses by the observation, the legal actions and keys.

    probabilities: gives those of all actions, (B, flags), by the first two; or None: it draws none, or does not tell.
    """

    observes: Observes = "observation"

    def __init__(self, choose: Callable[..., Tensor], probabilities: Callable[..., Any] = lambda *asked: None) -> None:
        self.choose, self.probabilities = choose, probabilities

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(self.choose(view, legal, keys), {}, memory)


def make_head(config: SACConfig, player: Player) -> BoxHead | DiscreteHead:
    """Make the head for the player's actions. Raises ConfigError with all values that do not fit them."""
    player.require_actions(config.name, Box, Discrete)
    space, coefficient = player.action_space, config.entropy_coefficient
    errors: dict[str, str] = {}
    kind_key = "entropy_coefficient.target_entropy.name"
    kind = coefficient.target_entropy.name if isinstance(coefficient, AutomaticConfig) else None
    if isinstance(space, Box):
        errors |= sampled_actions.box_errors(player)
        if config.log_std is None:
            errors["log_std"] = "expected a mapping with min and max (the actions are a Box), got null"
        if kind == "per_log_actions":
            errors[kind_key] = f"expected per_dimension or number (the actions are a Box), got {kind!r}"
    else:
        if config.log_std is not None:
            errors["log_std"] = "expected null (the actions are discrete), got a mapping"
        if kind == "per_dimension":
            errors[kind_key] = f"expected per_log_actions or number (the actions are discrete), got {kind!r}"
    with below(f"players.{player.name}.algorithm"):
        ConfigError.require_none(ConfigErrorItem(*error) for error in errors.items())
    if isinstance(space, Box):
        return BoxHead(space, cast(action_heads.LogStdConfig, config.log_std), player.device)
    return DiscreteHead(cast(Discrete, space))


# ---- how it learns ----------------------------------------------------------------------------------


class SAC(replay.LearnsByReplay, PlaysByPolicy):
    config: SACConfig
    common_state = ("log_entropy_coefficient",)

    def __init__(self, config: SACConfig, player: Player) -> None:
        super().__init__(config, player)
        self.head = head = make_head(config, player)
        policy = make_net(config.policy_net, player.spaces, head.num_outputs, player.key("policy"))
        critics = nn.ModuleList(
            make_net(config.critic_net, player.spaces | head.critic_spaces, head.num_values, player.key(f"critic/{i}"))
            for i in range(config.num_critics)
        )
        self.policy_net, self.critics = (FlatNet(net.to(player.device), player.by_hand) for net in (policy, critics))
        self.targets = FlatNet(deepcopy(critics).eval(), player.by_hand)
        self.acting, self.frozen_critics = self.policy_net.evaluation_view(), self.critics.evaluation_view()
        self.policy_optimizer = config.policy_optimizer.build(self.policy_net.weights)
        self.critic_optimizer = config.critic_optimizer.build(self.critics.weights)
        player.optimizers = {"policy": self.policy_optimizer, "critics": self.critic_optimizer}
        coefficient = config.entropy_coefficient
        initial = coefficient.initial if isinstance(coefficient, AutomaticConfig) else coefficient.value
        self.log_alpha = torch.tensor([initial], device=player.device).log().requires_grad_()
        if isinstance(coefficient, AutomaticConfig):
            self.alpha_optimizer = coefficient.optimizer.build(self.log_alpha)
            player.optimizers["entropy_coefficient"] = self.alpha_optimizer
        self.noise_key = torch.tensor([player.own_key("noise")], device=player.device)
        player.nets = {"policy": self.policy_net.net, "critics": self.critics.net, "targets": self.targets.net}
        player.lr_schedule = config.policy_learning_rate

    # ---- what it learns ------------------------------------------------------------------------------

    def target(self, next_q_values: Tensor, next_actions: SampledActions, batch: Transitions, alpha: Tensor) -> Tensor:
        """Return the value target of the critics, (B,): r + gamma * the soft value of s' (Haarnoja et al. 2018).

        See equations 2 and 3. It is r alone where the game terminated. next_q_values: (critics, B, K), of the target
        critics. alpha: ().
        """
        least = next_q_values.amin(dim=0)
        next_value = next_actions.mean(least - alpha * next_actions.log_probs)
        discount = batch.extras.get("discount", self.config.gamma)  # after n steps gamma^n
        return batch.reward + discount * torch.where(batch.terminated, 0.0, next_value)

    def critic_loss(self, q_values: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        """Return the terms of the critics' loss: half the mean squared TD error (eq. 5), summed over critics.

        Terms named loss_* add up to the loss, the others are recorded. q_values: (critics, B), of the actions taken.
        value_target: (B,). Rows drawn by priority carry their weights in the mean.
        """
        losses = (q_values - value_target).square()
        if "weight" in batch.extras:
            losses = losses * batch.extras["weight"]
        return {"loss_critics": 0.5 * losses.mean(dim=1).sum(), "q_mean": q_values.detach().mean()}

    def priorities(self, q_values: Tensor, value_target: Tensor, batch: Transitions) -> Tensor:
        """Return the rows' priorities for prioritized replay, (B,): the mean of the critics' absolute TD errors."""
        return (q_values - value_target).abs().mean(dim=0)

    def policy_loss(
        self, q_values: Tensor, actions: SampledActions, batch: Transitions, alpha: Tensor
    ) -> dict[str, Tensor]:
        """Return the terms of the policy's loss: minus the soft value (eqs. 3 and 9), by critics that are held fixed.

        q_values: (critics, B, K), of the policy's actions at the batch's observations. alpha: ().
        """
        least = q_values.amin(dim=0)
        value = actions.mean(least - alpha * actions.log_probs)
        return {"loss_policy": -value.mean(), "entropy": actions.entropy().detach().mean()}

    def coefficient_loss(self, log_alpha: Tensor, entropy: Tensor, batch: Transitions) -> dict[str, Tensor]:
        """Return the terms of the coefficient's loss, which raises it where the entropy is below its target (eq. 18).

        The equation is taken with log alpha in the place of alpha. log_alpha: (). entropy: (), the policy's mean in
        nats.
        """
        return {"loss_coefficient": log_alpha * (entropy - self.target_entropy(batch))}

    def target_entropy(self, batch: Transitions) -> Tensor | float:
        """Return the mean entropy at which a learned coefficient aims, in nats.

        It is that of the batch's rows where it depends on which actions are legal.
        """
        match cast(AutomaticConfig, self.config.entropy_coefficient).target_entropy:
            case NumberConfig(value=value):
                return value
            case PerDimensionConfig(factor=factor):
                return factor * cast(BoxHead, self.head).num_free
            case PerLogActionsConfig(factor=factor):
                return factor * batch.legal.sum(dim=1).clamp(min=1).log().mean()

    # ---- a turn --------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> None:
        config = self.config
        self.roll_out(turn)
        for _ in turn.times("updates", 0 if self.is_warming_up() else turn.num_updates()):
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(config.batch_size)))

    def learning_rate_of(self, optimizer: str) -> float:
        config, coefficient = self.config, self.config.entropy_coefficient
        schedules = {"policy": config.policy_learning_rate, "critics": config.critic_learning_rate}
        if isinstance(coefficient, AutomaticConfig):
            schedules["entropy_coefficient"] = coefficient.learning_rate
        return schedules[optimizer](self.player.opt_steps)

    def opt_step(self, rows: Mapping[str, Tensor]) -> Metrics:
        config, opt_steps = self.config, self.player.opt_steps
        self.critic_optimizer.learning_rate.fill_(config.critic_learning_rate(opt_steps))
        self.policy_optimizer.learning_rate.fill_(config.policy_learning_rate(opt_steps))
        if isinstance(config.entropy_coefficient, AutomaticConfig):
            self.alpha_optimizer.learning_rate.fill_(config.entropy_coefficient.learning_rate(opt_steps))
        num_rows, num_noise = len(rows["reward"]), self.head.num_noise
        noise = random_normals(fold(self.noise_key, opt_steps), 2 * num_rows * num_noise).view(2, num_rows, num_noise)
        rows = self.weighted(rows)
        is_followed = (opt_steps + 1) % config.target.interval == 0
        metrics, priorities = self.update_fast(rows, noise, is_followed)
        self.update_priorities(priorities)
        return metrics

    def update(self, rows: Mapping[str, Tensor], noise: Tensor, is_followed: bool) -> tuple[Metrics, Tensor | None]:
        """Step on the critics, then on the policy and the entropy coefficient; return metrics and the rows' priorities.

        These are tensor operations alone, one graph where it is compiled. noise: standard normal, (2, B, n), for the
        actions in targets and for those of the policy's loss. is_followed: whether the targets move.
        """
        config, batch = self.config, Transitions.from_rows(rows)
        alpha = self.log_alpha.detach().exp().squeeze(0)

        gradient, critic_metrics, priorities = self.critic_gradient(batch, noise[0], alpha)
        gradient, critic_metrics = self.player.mean_over_replicas(gradient, critic_metrics)
        norms = self.critic_optimizer.descend(gradient, config.max_grad_norm, "critic_grad_norm")

        gradient, entropy, policy_metrics = self.policy_gradient(batch, noise[1], alpha)
        gradient, policy_metrics = self.player.mean_over_replicas(gradient, policy_metrics)
        norms |= self.policy_optimizer.descend(gradient, config.max_grad_norm, "policy_grad_norm")

        coefficient_metrics: dict[str, Any] = {}
        if isinstance(config.entropy_coefficient, AutomaticConfig):
            gradient, coefficient_metrics = self.coefficient_gradient(entropy, batch)
            gradient, coefficient_metrics = self.player.mean_over_replicas(gradient, coefficient_metrics)
            self.alpha_optimizer.step(gradient)
        if is_followed:
            self.targets.follow(self.critics, config.target.tau)
        metrics = {
            "loss": critic_metrics["critic_loss"] + policy_metrics["policy_loss"],
            **critic_metrics,
            **policy_metrics,
            **coefficient_metrics,
            "entropy_coefficient": alpha,
            **norms,
        }
        return metrics, priorities

    def critic_gradient(
        self, batch: Transitions, noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Return the gradient of the critics' loss by all their weights, the metrics, and the rows' priorities.

        The gradient is one vector. Priorities are None unless the buffer is prioritized.
        """
        head = self.head
        with torch.no_grad():
            next_actions = head.sample_actions(self.acting(batch.next_observation), batch.next_legal, noise)
            next_q_values = self.targets(batch.next_observation | next_actions.critic_inputs)
            value_target = self.target(next_q_values, next_actions, batch, alpha)
        values = self.critics(batch.observation | head.critic_inputs(batch.action))
        q_values = head.values_of(batch.action, values)
        terms = self.critic_loss(q_values, value_target, batch)
        loss = total_loss(terms)
        priorities = self.priorities(q_values.detach(), value_target, batch) if self.is_prioritized else None
        return self.critics.gradient(loss), {"critic_loss": loss.detach(), **metrics_of(terms)}, priorities

    def policy_gradient(
        self, batch: Transitions, noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the gradient of the policy's loss by its own weights, the mean entropy, (), and metrics."""
        actions = self.head.sample_actions(self.policy_net(batch.observation), batch.legal, noise)
        q_values = self.frozen_critics(batch.observation | actions.critic_inputs)
        terms = self.policy_loss(q_values, actions, batch, alpha)
        loss, entropy = total_loss(terms), actions.entropy().detach().mean()
        return self.policy_net.gradient(loss), entropy, {"policy_loss": loss.detach(), **metrics_of(terms)}

    def coefficient_gradient(self, entropy: Tensor, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of the coefficient's loss by the coefficient's logarithm, (1,), and metrics."""
        terms = self.coefficient_loss(self.log_alpha.squeeze(0), entropy, batch)
        loss = total_loss(terms)
        (gradient,) = torch.autograd.grad(loss, self.log_alpha)
        return gradient, {"coefficient_loss": loss.detach(), **metrics_of(terms)}

    @kernel_property
    def update_fast(self) -> Callable[[Mapping[str, Tensor], Tensor, bool], tuple[Metrics, Tensor | None]]:
        return compiled(self.update, self.player.compiles_opt_steps)

    # ---- how it plays, and what it remembers -------------------------------------------------------------

    def net_of_policy(self) -> nn.Module:
        return self.policy_net.net

    def policy_that(self, draws: bool, is_collecting: bool) -> SoftPolicy:
        net, head = self.acting, self.head
        if is_collecting and self.player.env_steps < self.config.warmup_env_steps:
            return SoftPolicy(lambda view, legal, keys: head.uniform(legal, keys))
        if draws:
            return SoftPolicy(
                lambda view, legal, keys: head.sample(net(view), legal, keys),
                lambda view, legal: head.probabilities(net(view), legal),
            )
        return SoftPolicy(lambda view, legal, keys: head.mode(net(view), legal))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"log_entropy_coefficient": self.log_alpha.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if isinstance(self.config.entropy_coefficient, AutomaticConfig):  # a branch may have another fixed one
            self.log_alpha.detach().copy_(state["log_entropy_coefficient"])
