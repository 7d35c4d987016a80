"""PPO: proximal policy optimisation (Schulman et al. 2017) with generalized advantages (Schulman et al. 2016).

Details follow Huang et al. 2022. It supports discrete, multi-discrete and box actions, legal-action masks, and several
roles. Truncated games are bootstrapped from the observation at which their player would have decided next. Recurrent
networks learn from whole sequences, which begin with the memory that the roll-out began with. To run: palestra train
configs/ppo-cartpole.yml

Networks, their heads and how they play: parts/actor_critic.py, parts/playing.py. Advantages and the rows of a roll-out:
parts/advantages.py, parts/passes.py.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import torch
from pydantic import model_validator
from torch import Tensor

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.kernels import ppo as kernels
from palestra.algorithms.parts import action_heads, actor_critic, passes
from palestra.algorithms.parts.actor_critic import POLICY, VALUE
from palestra.algorithms.parts.advantages import Experience, Sequences, generalized_advantages
from palestra.algorithms.parts.distributions import Distribution
from palestra.algorithms.terms import join_terms, mean_metrics, metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    Discount,
    Fraction,
    InBranch,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)
from palestra.games.spaces import Box, RoleSpaces
from palestra.nets.weights import compiled, flat_gradient
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

# Letters: M rows of a roll-out or of a minibatch of it; T decisions of each of W sequences.

Number = Any  # a float, or a tensor without axes

# ---- what a run must say -----------------------------------------------------------------------------


class ClipConfig(Config):
    usual: ClassVar = {"epsilon": 0.2}

    name: Literal["clip"]
    """probability ratios are clipped to 1 +- epsilon (Schulman et al. 2017, eq. 7)"""
    epsilon: ScheduleConfig
    """the clip range, a function of the player's opt steps"""


class KLPenaltyConfig(Config):
    usual: ClassVar = {"coefficient": 1.0, "target": 0.01}

    name: Literal["kl_penalty"]
    """the loss contains the KL divergence from the policy that collected the roll-out (Schulman et al. 2017, eq. 8)"""
    coefficient: PositiveFloat
    """weight of the divergence at the start"""
    target: PositiveFloat | None
    """the coefficient is halved where a turn's divergence falls below target / 1.5, and doubled where it exceeds
    1.5 * target; null: it stays"""


ObjectiveConfig = Annotated[ClipConfig | KLPenaltyConfig, ByName(usual="clip"), InBranch.SAME_PART]


class PPOConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: ppo}`. No defaults: `palestra config ppo CartPole-v1` prints a complete file."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        return {
            "gae_lambda": 0.95,
            "rollout_length": 64,
            "num_passes": 4,
            "num_minibatches": 8,
            "value_coefficient": 0.5,
            "entropy_coefficient": 0.0 if isinstance(spaces.action, Box) else 0.01,
            "max_grad_norm": 0.5,
            "normalize_advantages": True,
            "body": actor_critic.usual_body([POLICY, VALUE], spaces, said),
            "centralized_critic": False,
            "initialization": "orthogonal",
            "box_actions": "clipped_gaussian" if isinstance(spaces.action, Box) else None,
            "optimizer": {"name": "adam", "eps": 1e-5},
            "learning_rate": 3e-4,
        }

    usual_run: ClassVar = {"num_worlds": 32}

    name: Literal["ppo"]
    """proximal policy optimisation: several passes over each roll-out, with small steps of the policy"""
    gamma: Discount
    """discount per decision of the player"""
    gae_lambda: Fraction
    """0: advantages from the value one decision ahead; 1: from all that follows"""
    rollout_length: PositiveInt
    """rounds played in every world per turn"""
    num_passes: PositiveInt
    """passes over a roll-out"""
    num_minibatches: PositiveInt
    """opt steps per pass, each on its share of the roll-out: of its rows; of its worlds if a network is recurrent"""
    objective: ObjectiveConfig
    """what keeps the policy near the one that collected the roll-out"""
    value_clip: PositiveFloat | None
    """values are clipped to this distance from those at the roll-out; null: they are not clipped"""
    value_coefficient: NonNegativeFloat
    """weight of the value's mean squared error in the loss"""
    entropy_coefficient: ScheduleConfig
    """weight of the policy's entropy in the loss, a function of the player's opt steps"""
    max_grad_norm: PositiveFloat | None
    """longer gradients are scaled down to this norm; null: never"""
    target_kl: PositiveFloat | None
    """a pass with a larger KL divergence is the last one over its roll-out; null: all passes are made"""
    normalize_advantages: bool
    """scale the advantages of each minibatch to mean 0 and standard deviation 1"""
    body: actor_critic.AnyBody
    """the networks of the heads policy and value"""
    centralized_critic: Annotated[bool, InBranch.FIXED]
    """true: the value also observes what the game shows critics alone (MAPPO, Yu et al. 2022); false: what the player
    observes (IPPO, de Witt et al. 2020)"""
    initialization: actor_critic.InitializationConfig
    """how the networks begin"""
    box_actions: Annotated[action_heads.BoxActionsConfig, ByName()] | None
    """how actions that are vectors of numbers are drawn; null: actions are discrete"""
    evaluation: Literal["deterministic", "sampled"]
    """in evaluations play the most likely action, or draw one"""
    optimizer: OptimizerConfig
    """how gradients become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    learning_rate_factors: dict[str, NonNegativeFloat]
    """by which the steps of some weights are multiplied, by their names, as value.layers.0.weight; * stands for
    anything, as in value.*; {}: all steps are whole"""

    seat_errors = passes.minibatch_errors

    @model_validator(mode="after")
    def _check_body(self) -> Self:
        ConfigError.require_none(actor_critic.head_errors(self.body, (POLICY, VALUE)))
        actor_critic.check_critic(self.body, self.centralized_critic)
        return self

    def build(self, player: Player) -> "PPO":
        return PPO(self, player)


# ---- what it learns ----------------------------------------------------------------------------------


class ProximalLoss:
    """PPO's loss of a minibatch, which the algorithm `ppo` and the loss `ppo` of `on_policy` (losses/ppo.py) share.

    The configs of both have the same keys for it. kl_coefficient: the present weight of the KL divergence; 0 under any
    other objective. kl_scale: by what that of the config was multiplied.
    """

    config: Any
    kl_scale = 1.0

    @property
    def kl_coefficient(self) -> float:
        return self.kl_scale * getattr(self.config.objective, "coefficient", 0.0)

    def loss(
        self,
        distribution: Distribution,
        value: Tensor,
        batch: Experience,
        clip_range: Number,
        kl_coefficient: Number,
        entropy_coefficient: Number,
    ) -> dict[str, Tensor]:
        """Return the terms of a minibatch's loss: those named loss_* add up, the others are recorded.

        distribution, value (M,): of the networks that learn, at the batch's observations. batch: its weights sum to 1;
        advantages are normalized if the config says so. clip_range: inf under a KL penalty. kl_coefficient: 0 under any
        other objective.
        """
        log_ratio = distribution.log_prob(batch.action) - batch.log_prob
        ratio = log_ratio.exp()
        kl = ratio - 1.0 - log_ratio  # of one row: never negative, its mean is unbiased (Schulman, "Approximating KL")
        if isinstance(self.config.objective, ClipConfig):
            clipped_ratio = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
            surrogate = torch.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage)
        else:
            clipped_ratio = ratio
            surrogate = ratio * batch.advantage - kl_coefficient * kl
        policy_loss = -batch.mean(surrogate)

        error = (value - batch.value_target).square()
        if self.config.value_clip is not None:
            change = (value - batch.value).clamp(-self.config.value_clip, self.config.value_clip)
            error = torch.maximum(error, (batch.value + change - batch.value_target).square())
        value_loss = batch.mean(error)

        entropy = batch.mean(distribution.entropy())
        return {
            "loss_policy": policy_loss,
            "loss_value": self.config.value_coefficient * value_loss,
            "loss_entropy": -entropy_coefficient * entropy,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": batch.mean(kl),
            "clip_fraction": batch.mean((ratio != clipped_ratio).float()),
            "value_mean": batch.mean(value),
        }

    def coefficients(self, opt_steps: int) -> tuple[float, float, float]:
        """Return the present clip range, and the weights of KL divergence and entropy, as `loss` takes them."""
        objective = self.config.objective
        clip_range = objective.epsilon(opt_steps) if isinstance(objective, ClipConfig) else math.inf
        return clip_range, self.kl_coefficient, self.config.entropy_coefficient(opt_steps)

    def is_last_pass(self, metrics: Mapping[str, Tensor]) -> bool:
        """Return whether the last pass, by its metrics, has moved the policy too far for another one."""
        return self.config.target_kl is not None and bool(metrics["approx_kl"] > self.config.target_kl)

    def restore_penalty(self, scale: float) -> None:
        """Scale the KL coefficient as it was, if it is adapted; else it is that of the config."""
        if getattr(self.config.objective, "target", None) is not None:
            self.kl_scale = scale

    def adapt_kl_coefficient(self, metrics: Mapping[str, Tensor]) -> None:
        """Adapt the KL coefficient by the divergence of a turn's last pass (Schulman et al. 2017, section 4)."""
        objective = self.config.objective
        if isinstance(objective, KLPenaltyConfig) and objective.target is not None:
            kl = metrics["approx_kl"]
            if kl < objective.target / 1.5:
                self.kl_scale /= 2.0
            elif kl > objective.target * 1.5:
                self.kl_scale *= 2.0


# ---- how it learns -----------------------------------------------------------------------------------


class PPO(ProximalLoss, passes.LearnsInPasses):
    config: PPOConfig
    common_state = ("kl_scale",)

    def __init__(self, config: PPOConfig, player: Player) -> None:
        head = action_heads.make_head(config.box_actions, player)
        super().__init__(config, player, {POLICY: head.num_outputs, VALUE: 1}, head, "actor_critic")

    def learn(self, turn: Turn) -> None:
        config = self.config
        for _ in turn.once("roll_out"):
            self.prepare(turn.collect(config.rollout_length))
        for _ in turn.times("passes", config.num_passes):
            turn.before_step()
            metrics = self.make_pass()
            turn.after_step(metrics, config.num_minibatches)
            if self.is_last_pass(metrics):
                turn.last("passes")
            if turn.is_last("passes"):
                self.adapt_kl_coefficient(metrics)
                self.passes.experience = None

    def prepare(self, batch: Transitions) -> None:
        """Compute a roll-out's values, advantages and value targets: the experience that the passes learn from."""
        batch, sequences = self.passes.sequences(batch, self.config.rollout_length)
        self.passes.begin(batch, sequences, self.critic, self.find_advantages)

    def compute_advantages(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the advantages of decisions that follow each other, and their value targets: float32 (T, W) each."""
        advantage = generalized_advantages(sequences, self.config.gamma, self.config.gae_lambda)
        return advantage, advantage + sequences.value

    def make_pass(self) -> dict[str, Tensor]:
        """Make an opt step on each minibatch of the experience, and return the means of their metrics."""
        experience, kernel = cast(Experience, self.passes.experience), self.gradient_kernel
        arrays = kernel.read(experience) if kernel is not None and type(experience) is Experience else None
        minibatches = self.passes.minibatches(self.config.num_minibatches)
        steps = [
            self.opt_step(experience, index, opt_steps, arrays)
            for opt_steps, index in enumerate(minibatches, start=self.player.opt_steps)
        ]
        return {**mean_metrics(steps), "explained_variance": self.passes.explained_by_all()}

    def opt_step(self, experience: Experience, index: Tensor, opt_steps: int, arrays: kernels.Arrays | None) -> Metrics:
        """Make an opt step on a minibatch, the sequences `index`. arrays: the experience, as the kernel reads it."""
        gradient, metrics = self.find_gradient(experience, index, self.coefficients(opt_steps), arrays)
        gradient, metrics = self.player.mean_over_replicas(gradient, metrics, weight=experience.weight_of(index))
        self.optimizer.learning_rate.fill_(self.config.learning_rate(opt_steps))
        return {**metrics, **self.optimizer.descend(gradient, self.config.max_grad_norm)}

    def gradient(
        self, batch: Experience, clip_range: Tensor, kl_coefficient: Tensor, entropy_coefficient: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of a minibatch's loss by all weights, as one vector, and metrics.

        The loss is the mean over all rows. If a player sits in several roles, the loss is computed and advantages are
        normalized for each role alone.
        """
        distribution, value = self.net.distribution_and_value(batch)
        rows_of = batch.by_role(self.player.roles)
        terms_of = {
            role: self.loss(
                distribution,
                value,
                rows.normalized(self.config.normalize_advantages),
                clip_range=clip_range,
                kl_coefficient=kl_coefficient,
                entropy_coefficient=entropy_coefficient,
            )
            for role, rows in rows_of.items()
        }
        terms = join_terms(terms_of, {role: rows.weight for role, rows in rows_of.items()})
        loss = total_loss(terms)
        return flat_gradient(loss, self.parameters), {"loss": loss.detach(), **metrics_of(terms)}

    # ---- what stands in for these methods where nobody has changed them (palestra.runtime.guard) ------------

    def find_advantages(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Call `compute_advantages`, or the kernel that stands in for it."""
        if self.advantages_kernel is None:
            return self.compute_advantages(sequences)
        return self.advantages_kernel(sequences, self.config.gamma, self.config.gae_lambda)

    @kernel_property
    def advantages_kernel(self) -> Callable[[Sequences, float, float], tuple[Tensor, Tensor]] | None:
        may_run = self.player.by_hand and self.player.device.type == "cpu" and self.may_run(kernels.ADVANTAGES)
        return kernels.compute_advantages if may_run else None

    def find_gradient(
        self, experience: Experience, index: Tensor, numbers: tuple[float, float, float], arrays: kernels.Arrays | None
    ) -> tuple[Tensor, Metrics]:
        """Call `gradient` for a minibatch, or the kernel that stands in for it. numbers: as `gradient` takes them."""
        kernel, config = self.gradient_kernel, self.config
        if kernel is None or arrays is None:
            tensors = torch.tensor(numbers, device=self.player.device).unbind()
            return self.gradient_fast(experience.minibatch(index), *tensors)
        return kernel(
            arrays, index.numpy(), *numbers, config.value_clip, config.value_coefficient, config.normalize_advantages
        )

    @kernel_property
    def gradient_kernel(self) -> kernels.PPOGradient | None:
        kernel = kernels.gradient_of(self.net, self.player)
        return kernel if kernel is not None and self.may_run(kernels.GRADIENT) else None

    @kernel_property
    def gradient_fast(self) -> Callable[..., tuple[Tensor, Metrics]]:
        """`gradient`, compiled if the config says so and no network is recurrent.

        Recurrent networks unroll differently at every roll-out, and would be compiled over and over.
        """
        return compiled(self.gradient, self.player.compile and not self.passes.is_recurrent)

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes.state_dict(), "kl_scale": self.kl_scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["passes"])
        self.restore_penalty(state["kl_scale"])
