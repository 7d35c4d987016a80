"""PPO: proximal policy optimisation (Schulman et al. 2017) with generalized advantages (Schulman et al. 2016), in the
details of Huang et al. 2022.

Discrete, multi-discrete and box actions, legal-action masks, several roles. Truncated games are bootstrapped from what
their player would have decided on next. Recurrent networks learn from whole sequences, which begin with the memory that
the roll-out began with. To run: palestra train configs/ppo-cartpole.yml

Networks, their heads and how they play: parts/actor_critic.py. Advantages and the rows of a roll-out:
parts/advantages.py.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from palestra.algorithms.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Deterministic,
    DeterministicRecurrent,
    Seat,
    Turn,
    join_terms,
    mean_metrics,
    metrics_of,
    total_loss,
)
from palestra.algorithms.kernels import advantages, categorical
from palestra.algorithms.kernels import ppo as kernels
from palestra.algorithms.parts.action_heads import SAMPLED, BoxActionsConfig, DiscreteHead, make_head
from palestra.algorithms.parts.actor_critic import (
    POLICY,
    VALUE,
    ActorCritic,
    ActorCriticPolicy,
    AnyBody,
    OrthogonalConfig,
    StockConfig,
    check_critic,
    check_heads,
    spaces_of_critic,
)
from palestra.algorithms.parts.advantages import (
    Experience,
    Sequences,
    generalized_advantages,
    in_sequences,
    memory_in,
    rows_of_sequences,
    values,
)
from palestra.algorithms.parts.distributions import Distribution
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Discount,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    below,
)
from palestra.games.game import Observation
from palestra.games.policy import Memory
from palestra.nets import is_recurrent_config
from palestra.nets.kernels.acting import acting_net
from palestra.nets.kernels.learning import learning_net
from palestra.nets.recurrent import Part
from palestra.nets.user_nets import RecurrentNet
from palestra.nets.weights import compiled, evaluation_view, flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig, learning_rate_factors
from palestra.players.player import Metrics, Player
from palestra.randomness import base_key, fold, random_permutation
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

# Letters: M rows of a roll-out or of a minibatch of it; T decisions of each of W sequences.

# ---- what a run must say -----------------------------------------------------------------------------


class ClipConfig(Config):
    name: Literal["clip"]
    """probability ratios are clipped to 1 +- epsilon (Schulman et al. 2017, eq. 7)"""
    epsilon: ScheduleConfig
    """the clip range, a function of the player's opt steps"""


class KLPenaltyConfig(Config):
    name: Literal["kl_penalty"]
    """the loss contains the KL divergence from the policy that collected the roll-out (Schulman et al. 2017, eq. 8)"""
    coefficient: PositiveFloat
    """weight of the divergence at the start"""
    target: PositiveFloat | None
    """the coefficient is halved where a turn's divergence falls below target / 1.5, and doubled where it exceeds
    1.5 * target; null: it stays"""


ObjectiveConfig = Annotated[ClipConfig | KLPenaltyConfig, ByName()]


class PPOConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: ppo}`. No defaults: `palestra config ppo CartPole-v1` prints a complete file."""

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
    body: AnyBody
    """the networks of the heads policy and value"""
    centralized_critic: bool
    """true: the value also observes what the game shows critics alone (MAPPO, Yu et al. 2022); false: what the player
    observes (IPPO, de Witt et al. 2020)"""
    initialization: Annotated[StockConfig | OrthogonalConfig, ByName()]
    """how the networks begin"""
    box_actions: Annotated[BoxActionsConfig, ByName()] | None
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

    @model_validator(mode="after")
    def _check_body(self) -> Self:
        check_heads(self.body, (POLICY, VALUE))
        check_critic(self.body, self.centralized_critic)
        return self

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        is_recurrent = any(map(is_recurrent_config, self.body.nets.values()))
        per_world = seat.num_roles if is_recurrent else self.rollout_length * seat.num_moves
        num_sequences = seat.num_worlds * per_world
        if self.num_minibatches <= num_sequences:
            return []
        what = "sequences, one per world and role" if is_recurrent else "rows"
        message = f"expected at most {num_sequences} (a roll-out has so many {what}), got {self.num_minibatches}"
        return [ConfigErrorItem("num_minibatches", message)]

    def build(self, player: Player) -> "PPO":
        return PPO(self, player)


# ---- the algorithm -------------------------------------------------------------------------------------


class PPO(Algorithm):
    config: PPOConfig

    def __init__(self, config: PPOConfig, player: Player) -> None:
        super().__init__(config, player)
        head = make_head(config.box_actions, player)
        spaces = spaces_of_critic(config.centralized_critic, player)
        self.net = ActorCritic(config.body, config.initialization, head, player, spaces).to(player.device)
        self.weights = flatten_weights(self.net)
        self.parameters = list(self.net.parameters())  # asking a module each time costs as much as a small layer
        self.refuse_batch_norm()
        self.is_recurrent = self.actor.remembers or self.critic.remembers
        self.optimizer = config.optimizer.build(self.weights)
        with below(f"players.{player.name}.algorithm.learning_rate_factors"):
            named = dict(self.net.named_parameters())
            self.optimizer.factors = learning_rate_factors(config.learning_rate_factors, named)
        self.key = torch.tensor([base_key(player.seed, f"player/{player.name}/minibatches")], device=player.device)
        self.experience: Experience | None = None
        self.explained_variance = torch.zeros((), device=player.device)
        self.passes_made = 0
        self.kl_coefficient = config.objective.coefficient if isinstance(config.objective, KLPenaltyConfig) else 0.0
        player.nets, player.optimizers = {"actor_critic": self.net}, {"actor_critic": self.optimizer}
        player.lr_schedule = config.learning_rate

    def refuse_batch_norm(self) -> None:
        """Batch norm computes otherwise in play than in learning: the two would disagree on every probability."""
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.net.modules()):
            message = "expected a network without batch norm, as with layer norm ('l'), got one with batch norm"
            raise ConfigError.at(f"players.{self.player.name}.algorithm.body", message)

    # ---- what it learns --------------------------------------------------------------------------------

    def compute_advantages(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """The advantages of decisions that follow each other, and their value targets: float32 (T, W) each."""
        advantage = generalized_advantages(sequences, self.config.gamma, self.config.gae_lambda)
        return advantage, advantage + sequences.value

    def loss(
        self,
        distribution: Distribution,
        value: Tensor,
        batch: Experience,
        clip_range: Tensor,
        kl_coefficient: Tensor,
        entropy_coefficient: Tensor,
    ) -> dict[str, Tensor]:
        """The terms of a minibatch's loss. Those named loss_* add up; the others are recorded.

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

    # ---- how it learns ---------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> None:
        config = self.config
        for _ in turn.once("roll_out"):
            self.prepare(self.player.join(turn.collect(config.rollout_length)))
        for number in turn.times("passes", config.num_passes):
            turn.before_step()
            metrics = self.make_pass()
            turn.after_step(metrics, config.num_minibatches)
            is_far = config.target_kl is not None and bool(metrics["approx_kl"] > config.target_kl)
            if is_far:
                turn.last("passes")
            if is_far or number + 1 == config.num_passes:
                self.adapt_kl_coefficient(metrics)
                self.experience = None

    @torch.no_grad()
    def prepare(self, batch: Transitions) -> None:
        """Make a roll-out the experience that the passes learn from: its values, advantages and value targets."""
        extras, sequences = batch.extras, rows_of_sequences(self.player, self.config.rollout_length, len(batch.valid))
        value = extras["value"] if "value" in extras else values(self.critic, batch.observation, memory_in(extras))
        advantage, value_target = torch.empty_like(value), torch.empty_like(value)
        role = torch.zeros(len(value), dtype=torch.int64, device=value.device)
        for place, rows in enumerate(sequences):
            advantage[rows], value_target[rows] = self.find_advantages(Sequences.of(batch, value, self.critic, rows))
            role[rows] = place
        experience = Experience(
            observation=batch.observation,
            memory={},
            episode_start=torch.zeros(1, len(value), dtype=torch.bool, device=value.device),
            legal=batch.legal,
            action=extras.get(SAMPLED, batch.action),
            log_prob=extras["log_prob"],
            value=value,
            advantage=advantage,
            value_target=value_target,
            weight=batch.valid.to(torch.float32),
            role=role,
        )
        self.explained_variance = experience.explained_variance()
        self.experience = in_sequences(experience, batch, sequences) if self.is_recurrent else experience

    def make_pass(self) -> dict[str, Tensor]:
        """One pass over the experience: an opt step per minibatch. Gives the means of their metrics."""
        assert self.experience is not None
        config, opt_steps = self.config, self.player.opt_steps
        num_sequences = self.experience.episode_start.shape[1]
        order = random_permutation(fold(self.key, self.passes_made), num_sequences)
        kernel = self.gradient_kernel if type(self.experience) is Experience else None
        arrays = None if kernel is None else kernel.read(self.experience)
        steps = [
            self.opt_step(self.experience, index, opt_steps + number, arrays)
            for number, index in enumerate(order.tensor_split(config.num_minibatches))
        ]
        metrics = mean_metrics(steps)
        self.passes_made += 1
        return {**metrics, "explained_variance": self.explained_variance}

    def opt_step(self, experience: Experience, index: Tensor, opt_steps: int, arrays: kernels.Arrays | None) -> Metrics:
        """Learn from a minibatch, the sequences `index`. arrays: the experience for the kernel."""
        config = self.config
        clip_range = config.objective.epsilon(opt_steps) if isinstance(config.objective, ClipConfig) else math.inf
        numbers = clip_range, self.kl_coefficient, config.entropy_coefficient(opt_steps)
        gradient, metrics = self.find_gradient(experience, index, numbers, arrays)
        norms = self.optimizer.layer_norms(gradient)
        gradient, grad_norm = self.optimizer.clip(gradient, config.max_grad_norm)
        self.optimizer.learning_rate.fill_(config.learning_rate(opt_steps))
        self.optimizer.step(gradient)
        return {**metrics, "grad_norm": grad_norm, **norms}

    def gradient(
        self, batch: Experience, clip_range: Tensor, kl_coefficient: Tensor, entropy_coefficient: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of the loss of a minibatch with respect to all weights, as one vector; and metrics. The loss is
        the mean over all rows; a player in several roles has it computed role by role, and advantages normalized so."""
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

    def adapt_kl_coefficient(self, last_pass: dict[str, Tensor]) -> None:
        """Schulman et al. 2017, section 4, by the divergence in a turn's last pass."""
        objective = self.config.objective
        if isinstance(objective, KLPenaltyConfig) and objective.target is not None:
            kl = last_pass["approx_kl"]
            if kl < objective.target / 1.5:
                self.kl_coefficient /= 2.0
            elif kl > objective.target * 1.5:
                self.kl_coefficient *= 2.0

    # ---- how it plays ----------------------------------------------------------------------------------

    def policy(self, explore: bool) -> ActorCriticPolicy:
        draws = explore or self.config.evaluation == "sampled"
        return self.policy_that(draws, is_collecting=explore)

    def predictor(self, deterministic: bool) -> ActorCriticPolicy:
        return self.policy_that(not deterministic, is_collecting=False)

    def policy_that(self, draws: bool, is_collecting: bool) -> ActorCriticPolicy:
        critic = self.critic if is_collecting and self.net.value is not None and self.critic.remembers else None
        is_shared, head = self.net.value is None, self.net.head
        entries = self.net.entries if is_collecting and self.config.centralized_critic else None
        return ActorCriticPolicy(self.actor, critic, head, is_shared, draws, self.draw_kernel, entries)

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor] | None:
        head = self.net.head
        if not isinstance(head, DiscreteHead):
            return None
        before = memory or self.actor.initial_memory(len(legal), legal.device)
        outputs, _ = self.actor.step(observation, before)
        return "probability", head.probabilities(outputs[:, : head.num_outputs], legal)

    def module(self) -> Deterministic | DeterministicRecurrent:
        if self.config.evaluation == "sampled":
            raise NotImplementedError(self.player.sampling_export_error())
        head, num_flags = self.net.head, self.player.action_space.num_flags
        net = evaluation_view(self.net.policy)

        def choose(outputs: Tensor, legal: Tensor) -> Tensor:
            return head.mode(outputs[:, : head.num_outputs], legal)

        if isinstance(net, RecurrentNet):
            return DeterministicRecurrent(net, choose, num_flags, f"{self.actor.name}.")
        return Deterministic(net, choose, num_flags)

    # ---- what stands in for these methods where nobody has changed them (palestra.runtime.guard) ------------

    def find_advantages(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """`compute_advantages`, by a kernel where there is one."""
        if self.advantages_kernel is None:
            return self.compute_advantages(sequences)
        return self.advantages_kernel(sequences, self.config.gamma, self.config.gae_lambda)

    @kernel_property
    def advantages_kernel(self) -> Callable[[Sequences, float, float], tuple[Tensor, Tensor]] | None:
        is_asked_for = self.player.by_hand and self.player.device.type == "cpu"
        return advantages.compute_advantages if is_asked_for and self.may_run(advantages.KERNEL) else None

    @kernel_property
    def draw_kernel(self) -> categorical.CategoricalDraw | None:
        head = self.net.head
        if self.player.device.type != "cpu" or not isinstance(head, DiscreteHead):
            return None
        return categorical.CategoricalDraw(head.family) if self.may_run(categorical.KERNEL) else None

    def find_gradient(
        self, experience: Experience, index: Tensor, numbers: tuple[float, float, float], arrays: kernels.Arrays | None
    ) -> tuple[Tensor, Metrics]:
        """`gradient` of a minibatch, by a kernel where there is one. numbers: as `gradient` takes them."""
        kernel, config = self.gradient_kernel, self.config
        if kernel is None or arrays is None:
            tensors = torch.tensor(numbers, device=self.weights.device).unbind()
            return self.gradient_fast(experience.minibatch(index), *tensors)
        return kernel(
            arrays, index.numpy(), *numbers, config.value_clip, config.value_coefficient, config.normalize_advantages
        )

    @kernel_property
    def gradient_kernel(self) -> kernels.PPOGradient | None:
        nets = [self.net.policy] if self.net.value is None else [self.net.policy, self.net.value]
        learning = [net for net in map(learning_net, nets) if net is not None]
        weights = [weight for part in (*nets, self.net.head) for weight in part.parameters()]
        is_whole = list(map(id, weights)) == list(map(id, self.parameters))  # in the order of the kernel's gradient
        if not self.player.by_hand or len(learning) < len(nets) or not is_whole or not self.may_run(kernels.KERNEL):
            return None
        log_std, family = getattr(self.net.head, "log_std", None), self.net.head.family
        if getattr(family, "free", None) is not None:
            return None  # the kernel counts every number of a Box
        return kernels.PPOGradient(learning, family, log_std, self.player.roles)

    @kernel_property
    def gradient_fast(self) -> Callable[..., tuple[Tensor, Metrics]]:
        """`gradient`, compiled if the config says so and no network is recurrent: unrolled steps are others at every
        roll-out, and would be compiled over and over."""
        return compiled(self.gradient, self.player.compile and not self.is_recurrent)

    @kernel_property
    def actor(self) -> Part:
        """The policy's network as it plays."""
        return Part("policy", acting_net(self.net.policy))

    @kernel_property
    def critic(self) -> Part:
        """The network whose last output is the value, as it plays."""
        return self.actor if self.net.value is None else Part("value", acting_net(self.net.value))

    # ---- what a checkpoint holds beside weights, optimizer and games -------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "passes_made": self.passes_made,
            "kl_coefficient": self.kl_coefficient,
            "explained_variance": self.explained_variance,
            "experience": None if self.experience is None else self.experience._asdict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes_made, self.kl_coefficient = state["passes_made"], state["kl_coefficient"]
        device, experience = self.player.device, state["experience"]
        self.explained_variance = state["explained_variance"].to(device)
        self.experience = None if experience is None else Experience(**experience).to(device)
