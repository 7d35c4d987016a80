"""on_policy: a loss of your own, or one by name, on roll-outs of the present policy.

The loss is a function of a plain batch that gives named terms (losses/loss.py); it names the heads of the networks and
the estimators from which it can learn (parts/estimators.py). This file rolls out, estimates, makes passes over the
roll-out, and steps, as PPO does. To run: palestra train on_policy-cartpole
"""

from dataclasses import replace
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
from palestra.algorithms.kernels import categorical
from palestra.algorithms.losses.loss import LossBatch, Now, OnPolicyLoss, head_names, head_sizes, loss_of, try_loss
from palestra.algorithms.losses.ppo import PPOLossConfig
from palestra.algorithms.losses.reinforce import ReinforceConfig
from palestra.algorithms.losses.torchrl import TorchRLLossConfig
from palestra.algorithms.parts.action_heads import SAMPLED, AnyBoxActionsConfig, DiscreteHead, make_head
from palestra.algorithms.parts.actor_critic import (
    POLICY,
    VALUE,
    ActorCriticPolicy,
    AnyBody,
    HeadedNet,
    OrthogonalConfig,
    StockConfig,
    check_critic,
    check_heads,
    spaces_of_critic,
)
from palestra.algorithms.parts.advantages import (
    Experience,
    Sequences,
    in_sequences,
    memory_in,
    rows_of_sequences,
    values,
)
from palestra.algorithms.parts.estimators import AnyEstimatorConfig, Estimator
from palestra.algorithms.parts.torchrl_classes import usual_config
from palestra.algorithms.parts.whole_games import WholeGames
from palestra.config import (
    ByName,
    ConfigError,
    ConfigErrorItem,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    below,
)
from palestra.config.variants import members_of, names_of
from palestra.games.game import Observation
from palestra.games.policy import Memory
from palestra.nets import is_recurrent_config
from palestra.nets.kernels.acting import acting_net
from palestra.nets.recurrent import Part
from palestra.nets.user_nets import RecurrentNet
from palestra.nets.weights import evaluation_view, flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig, learning_rate_factors
from palestra.players.player import Metrics, Player
from palestra.randomness import base_key, fold, random_permutation
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

# Letters: M rows of a roll-out or of a minibatch of it; T decisions of each of W sequences.

ROLE = "role"  # among the extras of a row: in which role it was decided, its place among the player's roles

AnyOnPolicyLoss = Annotated[
    PPOLossConfig | ReinforceConfig | TorchRLLossConfig | UserConfig,
    ByName(user_class=OnPolicyLoss, of_text=usual_config),
]

# ---- what a run must say -----------------------------------------------------------------------------


class OnPolicyConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: on_policy}`. No defaults: `palestra config on_policy CartPole-v1` prints a
    complete file."""

    name: Literal["on_policy"]
    """a loss by name, or one of your own, on roll-outs of the present policy"""
    loss: AnyOnPolicyLoss
    """what is learned from a batch; it names its heads and the estimators that it can learn from"""
    estimator: AnyEstimatorConfig
    """what finds advantages and value targets"""
    rollout_length: PositiveInt
    """rounds played in every world per turn"""
    num_passes: PositiveInt
    """passes over a roll-out"""
    num_minibatches: PositiveInt
    """opt steps per pass, each on its share of the roll-out: of its rows; of its worlds if a network is recurrent"""
    normalize_advantages: bool
    """scale the advantages of each minibatch to mean 0 and standard deviation 1"""
    max_grad_norm: PositiveFloat | None
    """longer gradients are scaled down to this norm; null: never"""
    body: AnyBody
    """the networks of the loss's heads"""
    centralized_critic: bool
    """true: the value also observes what the game shows critics alone (MAPPO, Yu et al. 2022); false: what the player
    observes (IPPO, de Witt et al. 2020)"""
    initialization: Annotated[StockConfig | OrthogonalConfig, ByName()]
    """how the networks begin"""
    box_actions: AnyBoxActionsConfig | None
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
        loss = loss_of(self.loss)
        if loss is not None:
            check_loss(loss, self)
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

    def build(self, player: Player) -> "OnPolicy":
        return OnPolicy(self, player)


# ---- what it is made of ------------------------------------------------------------------------------


def check_loss(loss: OnPolicyLoss, config: OnPolicyConfig) -> None:
    """Raise ConfigError, with paths below the algorithm's config, unless the player can act by the loss's heads, the
    body has them, estimators of the names that the loss gives exist, and the loss holds for every pass."""
    names, fault = head_names(loss), None
    known = names_of(members_of(AnyEstimatorConfig))
    unknown = [name for name in loss.estimators or () if name not in known and ":" not in name]
    if POLICY not in names:
        fault = f"expected the head 'policy', by which the player acts, got {', '.join(names)}"
    elif unknown:
        listed = ", ".join(known)
        fault = f"{config.loss.name!r} has the estimators {unknown[0]!r}; expected those among {listed}, or your own"
    if fault is not None:
        raise ConfigError.at("loss.name", fault)
    faults = []
    if loss.is_of_one_pass and config.num_passes > 1:
        own = getattr(config.loss, "module", config.loss.name)
        why = f"the loss {own!r} holds only for the policy that collected the roll-out, which the first pass changes"
        faults.append(ConfigErrorItem("num_passes", f"expected 1 ({why}), got {config.num_passes}"))
    try:
        check_heads(config.body, names)
    except ConfigError as error:
        faults = [*error.errors, *faults]
    if faults:
        raise ConfigError(faults)


def check_estimator(loss: OnPolicyLoss, estimator: Estimator, config: OnPolicyConfig, player: Player) -> None:
    """Raise ConfigError, with paths below the algorithm's config, unless the loss can learn from the estimator, and the
    estimator from the roll-outs of the player's game."""
    name, accepted = config.estimator.name, loss.estimators
    faults = []
    if accepted is not None and name not in accepted:
        faults.append(f"expected {' or '.join(accepted)} for the loss {config.loss.name!r}, got {name!r}")
    if estimator.bootstraps and VALUE not in head_names(loss):
        faults.append(
            f"expected an estimator that needs no values (the heads of {config.loss.name!r} have no 'value'), "
            f"got {name!r}"
        )
    if not estimator.skips_rows and not (player.game is not None and player.game.every_row_counts):
        faults.append(
            "expected an estimator that skips rows that do not count, which roll-outs of this game have (in games of "
            f"several roles, and where an environment begins anew by a step of its own), got {name!r}"
        )
    if faults:
        raise ConfigError([ConfigErrorItem("estimator.name", fault) for fault in faults])


class OnPolicy(Algorithm):
    config: OnPolicyConfig

    def __init__(self, config: OnPolicyConfig, player: Player) -> None:
        super().__init__(config, player)
        head = make_head(config.box_actions, player)
        with below(f"players.{player.name}.algorithm"):
            self.loss: OnPolicyLoss = loss_of(config.loss)
            self.estimator: Estimator = config.estimator.build()
            heads = head_sizes(self.loss, config.loss, {POLICY: head.num_outputs})
            check_estimator(self.loss, self.estimator, config, player)
        spaces = spaces_of_critic(config.centralized_critic, player)
        others = {VALUE: spaces}
        self.net = HeadedNet(config.body, config.initialization, heads, head, player, others).to(player.device)
        self.weights = flatten_weights(self.net)
        self.parameters = list(self.net.parameters())
        with below(f"players.{player.name}.algorithm"):
            self.refuse_nets()
            self.loss.begin(self.net, player)
            try_loss(self.loss, config.loss, self.net, spaces, player, self.estimator.estimates)
        self.is_recurrent = any(isinstance(self.net.net_of(each), RecurrentNet) for each in heads)
        self.optimizer = config.optimizer.build(self.weights)
        with below(f"players.{player.name}.algorithm.learning_rate_factors"):
            named = dict(self.net.named_parameters())
            self.optimizer.factors = learning_rate_factors(config.learning_rate_factors, named)
        self.key = torch.tensor([base_key(player.seed, f"player/{player.name}/minibatches")], device=player.device)
        self.whole_games = WholeGames()
        self.experience: Experience | None = None
        self.explained_variance = torch.zeros((), device=player.device)
        self.passes_made = 0
        player.nets, player.optimizers = {"heads": self.net}, {"heads": self.optimizer}
        player.lr_schedule = config.learning_rate

    def refuse_nets(self) -> None:
        """Batch norm computes otherwise in play than in learning: the two would disagree on every probability. What
        networks remember is only followed in play for those of the policy and the value."""
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.net.modules()):
            message = "expected a network without batch norm, as with layer norm ('l'), got one with batch norm"
            raise ConfigError.at("body", message)
        others = [] if self.net.is_shared else [head for head in self.net.heads if head not in (POLICY, VALUE)]
        for head in others:
            if isinstance(self.net.net_of(head), RecurrentNet):
                message = "expected a network without a memory for a head that does not play, got a recurrent one"
                raise ConfigError.at(f"body.{head}", message)

    # ---- what it learns --------------------------------------------------------------------------------

    def gradient(self, batch: Experience) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of the loss of a minibatch with respect to all weights, as one vector; and metrics. The loss is
        the mean over all rows; a player in several roles has it computed role by role, and advantages normalized so."""
        opt_steps, estimates, now = self.player.opt_steps, self.estimator.estimates, Now(self.net, batch)
        rows_of = batch.by_role(self.player.roles)
        terms_of = {}
        for role, rows in rows_of.items():
            normalized = rows.normalized(self.config.normalize_advantages)
            terms_of[role] = self.loss.terms(LossBatch(self.net, normalized, opt_steps, estimates, now))
        terms = join_terms(terms_of, {role: rows.weight for role, rows in rows_of.items()})
        loss = total_loss(terms)
        return flat_gradient(loss, self.parameters), {"loss": loss.detach(), **metrics_of(terms)}

    # ---- how it learns ---------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> None:
        config = self.config
        for _ in turn.once("roll_out"):
            self.experience = self.prepare(self.player.join(turn.collect(config.rollout_length)))
            self.loss.before_turn()
        for number in turn.times("passes", 0 if self.experience is None else config.num_passes):
            turn.before_step()
            metrics, num_opt_steps = self.make_pass()
            turn.after_step(metrics, num_opt_steps)
            is_last = self.loss.is_last_pass(metrics)
            if is_last:
                turn.last("passes")
            if is_last or number + 1 == config.num_passes:
                self.loss.after_turn(metrics)
                self.experience = None

    @torch.no_grad()
    def prepare(self, batch: Transitions) -> Experience | None:
        """Make a roll-out the experience that the passes learn from; None where the estimator waits for whole games,
        and none has ended."""
        sequences = rows_of_sequences(self.player, self.config.rollout_length, len(batch.valid))
        role = torch.zeros(len(batch.valid), dtype=torch.int64, device=batch.valid.device)
        for place, rows in enumerate(sequences):
            role[rows] = place
        batch = replace(batch, extras=batch.extras | {ROLE: role})
        if self.estimator.whole_games:
            if (whole := self.whole_games(batch, sequences)) is None:
                return None
            batch, numbers = whole
            sequences = [numbers]
        extras, value = batch.extras, self.values_of(batch)
        advantage, value_target = torch.empty_like(value), torch.empty_like(value)
        for rows in sequences:
            advantage[rows], value_target[rows] = self.estimator.estimate(self.as_sequences(batch, value, rows))
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
            role=extras[ROLE],
        )
        self.explained_variance = experience.explained_variance()
        return in_sequences(experience, batch, sequences) if self.is_recurrent else experience

    def values_of(self, batch: Transitions) -> Tensor:
        """The values at the observations of a roll-out, (M,); zeros where no head gives any."""
        if self.critic is None:
            return torch.zeros_like(batch.reward)
        if "value" in batch.extras:
            return batch.extras["value"]
        return values(self.critic, batch.observation, memory_in(batch.extras))

    def as_sequences(self, batch: Transitions, value: Tensor, rows: Tensor) -> Sequences:
        """The rows (T, W) of a roll-out as the estimator wants them."""
        if self.critic is not None:
            return Sequences.of(batch, value, self.critic, rows)
        columns = (batch.reward, value, torch.zeros_like(value), batch.terminated, batch.truncated, batch.valid)
        return Sequences(*(column[rows] for column in columns))

    def make_pass(self) -> tuple[dict[str, Tensor], int]:
        """One pass over the experience: an opt step per minibatch. Gives the means of their metrics, and their
        number."""
        assert self.experience is not None
        num_sequences = self.experience.episode_start.shape[1]
        order = random_permutation(fold(self.key, self.passes_made), num_sequences)
        parts = order.tensor_split(min(self.config.num_minibatches, num_sequences))
        learning_rate = self.config.learning_rate
        steps = [
            self.opt_step(self.experience.minibatch(index), learning_rate(self.player.opt_steps + number))
            for number, index in enumerate(parts)
        ]
        self.passes_made += 1
        known = {} if self.critic is None else {"explained_variance": self.explained_variance}
        return {**mean_metrics(steps), **known}, len(steps)

    def opt_step(self, batch: Experience, learning_rate: float) -> Metrics:
        gradient, metrics = self.gradient(batch)
        norms = self.optimizer.layer_norms(gradient)
        gradient, grad_norm = self.optimizer.clip(gradient, self.config.max_grad_norm)
        self.optimizer.learning_rate.fill_(learning_rate)
        self.optimizer.step(gradient)
        return {**metrics, "grad_norm": grad_norm, **norms}

    def forget_waiting(self) -> None:
        self.whole_games.waiting = None

    # ---- how it plays ----------------------------------------------------------------------------------

    def policy(self, explore: bool) -> ActorCriticPolicy:
        draws = explore or self.config.evaluation == "sampled"
        return self.policy_that(draws, is_collecting=explore)

    def predictor(self, deterministic: bool) -> ActorCriticPolicy:
        return self.policy_that(not deterministic, is_collecting=False)

    def policy_that(self, draws: bool, is_collecting: bool) -> ActorCriticPolicy:
        assert self.net.head is not None
        has_own_critic = self.critic is not None and not self.net.is_shared
        critic = self.critic if is_collecting and has_own_critic and self.critic.remembers else None  # type: ignore[union-attr]
        gives_value = self.net.is_shared and self.critic is not None
        entries = self.net.entries if is_collecting and self.config.centralized_critic else None
        return ActorCriticPolicy(self.actor, critic, self.net.head, gives_value, draws, self.draw_kernel, entries)

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
        assert head is not None
        net = evaluation_view(self.net.net_of(POLICY))

        def choose(outputs: Tensor, legal: Tensor) -> Tensor:
            return head.mode(outputs[:, : head.num_outputs], legal)

        if isinstance(net, RecurrentNet):
            return DeterministicRecurrent(net, choose, num_flags, f"{self.actor.name}.")
        return Deterministic(net, choose, num_flags)

    # ---- what stands in for these methods where nobody has changed them (palestra.runtime.guard) ------------

    @kernel_property
    def draw_kernel(self) -> categorical.CategoricalDraw | None:
        head = self.net.head
        if self.player.device.type != "cpu" or not isinstance(head, DiscreteHead):
            return None
        return categorical.CategoricalDraw(head.family) if self.may_run(categorical.KERNEL) else None

    @kernel_property
    def actor(self) -> Part:
        """The policy's network as it plays."""
        return Part(POLICY, acting_net(self.net.net_of(POLICY)))

    @kernel_property
    def critic(self) -> Part | None:
        """The network whose last output is the value, as it plays; None where there is no such head."""
        if VALUE not in self.net.heads:
            return None
        return self.actor if self.net.is_shared else Part(VALUE, acting_net(self.net.net_of(VALUE)))

    # ---- what a checkpoint holds beside weights, optimizer and games -------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "passes_made": self.passes_made,
            "explained_variance": self.explained_variance,
            "experience": None if self.experience is None else self.experience._asdict(),
            "whole_games": self.whole_games.state_dict(),
            "loss": self.loss.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device, experience = self.player.device, state["experience"]
        self.passes_made = state["passes_made"]
        self.explained_variance = state["explained_variance"].to(device)
        self.experience = None if experience is None else Experience(**experience).to(device)
        self.whole_games.load_state_dict(state["whole_games"], device)
        self.loss.load_state_dict(state["loss"])
