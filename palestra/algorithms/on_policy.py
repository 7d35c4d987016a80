"""on_policy: learns by a loss of your own, or one by name, from roll-outs of the present policy.

The loss is a function of a plain batch that gives named terms (losses/loss.py); it names the heads of the networks and
the estimators from which it can learn (parts/estimators.py). This file rolls out, estimates, makes passes over the
roll-out, and steps, as PPO does. To run: palestra train on_policy-cartpole
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.losses import loss as losses
from palestra.algorithms.losses.ppo import PPOLossConfig
from palestra.algorithms.losses.reinforce import ReinforceConfig
from palestra.algorithms.losses.torchrl import TorchRLLossConfig
from palestra.algorithms.parts import action_heads, actor_critic, passes
from palestra.algorithms.parts.actor_critic import POLICY, VALUE
from palestra.algorithms.parts.advantages import Experience, side_by_side
from palestra.algorithms.parts.estimators import AnyEstimatorConfig, Estimator
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.terms import join_terms, mean_metrics, metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import (
    ByName,
    ConfigError,
    ConfigErrorItem,
    InBranch,
    LibraryClass,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    below,
)
from palestra.config.variants import members_of, names_of
from palestra.games.spaces import RoleSpaces
from palestra.nets.weights import flat_gradient
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions
from palestra.runtime.device import moved
from palestra.schedules import ScheduleConfig

# Letters: M rows of a roll-out or of a minibatch of it; T decisions of each of W sequences.

TORCHRL = "torchrl"  # among the estimators of a loss: all of TorchRL's

AnyOnPolicyLoss = Annotated[
    PPOLossConfig | ReinforceConfig | TorchRLLossConfig | UserConfig,
    ByName(user_class=losses.OnPolicyLoss),
    InBranch.SAME_PART,
]

# ---- what a run must say -----------------------------------------------------------------------------


class OnPolicyConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: on_policy}`.

    No defaults: `palestra config on_policy CartPole-v1` prints a complete file.
    """

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        loss = losses.usual_loss(said.get("loss", "ppo"), AnyOnPolicyLoss)
        heads = [POLICY, VALUE] if loss is None else losses.head_names(loss)
        accepted = (None if loss is None else loss.estimators) or (["gae"] if VALUE in heads else ["reward_to_go"])
        return PPOConfig.usual(said, spaces) | {
            "loss": "ppo",
            "estimator": accepted[0],
            "num_passes": 1 if loss is not None and loss.is_of_one_pass else 4,
            "body": actor_critic.usual_body(heads, spaces, said),
        }

    usual_run: ClassVar = {"num_worlds": 32}

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
    body: actor_critic.AnyBody
    """the networks of the loss's heads"""
    centralized_critic: Annotated[bool, InBranch.FIXED]
    """true: the value also observes what the game shows critics alone (MAPPO, Yu et al. 2022); false: what the player
    observes (IPPO, de Witt et al. 2020)"""
    initialization: actor_critic.InitializationConfig
    """how the networks begin"""
    box_actions: action_heads.AnyBoxActionsConfig | None
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
        if (loss := losses.loss_of(self.loss)) is not None:
            check_loss(loss, self)
        actor_critic.check_critic(self.body, self.centralized_critic)
        return self

    def build(self, player: Player) -> "OnPolicy":
        return OnPolicy(self, player)


# ---- what it is made of ------------------------------------------------------------------------------


def check_loss(loss: losses.OnPolicyLoss, config: OnPolicyConfig) -> None:
    """Raise ConfigError, at paths below the algorithm's config, unless the config fits the loss.

    The player must be able to act by the loss's heads, the body must have them, the estimators that the loss names must
    exist, and the loss must hold for every pass.
    """
    names = losses.head_names(loss)
    if POLICY not in names:
        raise ConfigError.at(
            "loss.name", f"expected the head 'policy', by which the player acts, got {', '.join(names)}"
        )
    known = [*names_of(members_of(AnyEstimatorConfig)), TORCHRL]
    if unknown := [name for name in loss.estimators or () if name not in known and ":" not in name]:
        expected = f"expected those among {', '.join(known)}, or your own"
        raise ConfigError.at("loss.name", f"{config.loss.name!r} has the estimators {unknown[0]!r}; {expected}")
    faults = actor_critic.head_errors(config.body, names)
    if loss.is_of_one_pass and config.num_passes > 1:
        holds = "holds only for the policy that collected the roll-out, which the first pass changes"
        message = f"expected 1 (the loss {config.loss.name!r} {holds}), got {config.num_passes}"
        faults.append(ConfigErrorItem("num_passes", message))
    ConfigError.require_none(faults)


def check_estimator(loss: losses.OnPolicyLoss, estimator: Estimator, config: OnPolicyConfig, player: Player) -> None:
    """Raise ConfigError, at paths below the algorithm's config, unless the estimator fits the loss and the game."""
    name, accepted = config.estimator.name, loss.estimators
    kind = TORCHRL if isinstance(config.estimator, LibraryClass) else name
    faults = []
    if accepted is not None and kind not in accepted:
        faults.append(f"expected {' or '.join(accepted)} for the loss {config.loss.name!r}, got {name!r}")
    if estimator.bootstraps and VALUE not in losses.head_names(loss):
        faults.append(
            f"expected an estimator that needs no values (the heads of {config.loss.name!r} have no 'value'), "
            f"got {name!r}"
        )
    if not estimator.skips_rows and not (player.game is not None and player.game.every_row_counts):
        faults.append(
            "expected an estimator that skips rows that do not count, which roll-outs of this game have (in games of "
            f"several roles, and where an environment begins anew by a step of its own), got {name!r}"
        )
    ConfigError.require_none(ConfigErrorItem("estimator.name", fault) for fault in faults)


class OnPolicy(passes.LearnsInPasses):
    config: OnPolicyConfig

    def __init__(self, config: OnPolicyConfig, player: Player) -> None:
        place = f"players.{player.name}.algorithm"
        head = action_heads.make_head(config.box_actions, player)
        with below(place):
            self.loss: losses.OnPolicyLoss = losses.loss_of(config.loss)
            self.estimator: Estimator = config.estimator.build()
            heads = losses.head_sizes(self.loss, config.loss, {POLICY: head.num_outputs})
            check_estimator(self.loss, self.estimator, config, player)
        super().__init__(config, player, heads, head, "heads")
        self.whole_games = WholeGames()
        with below(place):
            if self.estimator.corrects:
                self.net.refuse_memories(f" for the estimator {config.estimator.name!r}")
            if not self.net.is_shared:  # play keeps no memory for heads that do not play
                self.net.refuse_memories(" for a head that does not play", POLICY, VALUE)
            self.loss.begin(self.net, player)
            rows = losses.rows_of_zeros(self.net, self.critic_spaces, player)
            batch = losses.LossBatch(self.net, rows, 0, self.estimator.estimates)
            losses.try_loss(self.loss, config.loss, lambda: self.loss.terms(batch), dict(self.net.named_parameters()))

    # ---- what it learns --------------------------------------------------------------------------------

    def gradient(self, batch: Experience) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of a minibatch's loss by all weights, as one vector, and metrics.

        The loss is the mean over all rows. If a player sits in several roles, the loss is computed and advantages are
        normalized for each role alone.
        """
        opt_steps, estimates, now = self.player.opt_steps, self.estimator.estimates, losses.Now(self.net, batch)
        rows_of = batch.by_role(self.player.roles)
        terms_of = {}
        for role, rows in rows_of.items():
            normalized = rows.normalized(self.config.normalize_advantages)
            terms_of[role] = self.loss.terms(losses.LossBatch(self.net, normalized, opt_steps, estimates, now))
        terms = join_terms(terms_of, {role: rows.weight for role, rows in rows_of.items()})
        loss = total_loss(terms)
        return flat_gradient(loss, self.parameters), {"loss": loss.detach(), **metrics_of(terms)}

    # ---- how it learns ---------------------------------------------------------------------------------

    def begin_run(self) -> list[str]:
        return [*self.loss.notes, *super().begin_run()]

    def learn(self, turn: Turn) -> None:
        config = self.config
        for _ in turn.once("roll_out"):
            self.prepare(turn.collect(config.rollout_length))
            self.loss.before_turn()
        has_rows = self.player.in_each_replica("whether there are rows", self.passes.experience is not None)
        for _ in turn.times("passes", config.num_passes if any(has_rows) else 0):
            turn.before_step()
            metrics, num_opt_steps = self.make_pass()
            turn.after_step(metrics, num_opt_steps)
            if self.loss.is_last_pass(metrics):
                turn.last("passes")
            if turn.is_last("passes"):
                self.loss.after_turn(metrics)
                self.passes.experience = None

    def prepare(self, batch: Transitions) -> None:
        """Make a roll-out the experience that the passes learn from.

        There is none if the estimator waits for whole games and no game has ended.
        """
        batch, sequences = self.passes.sequences(batch, self.config.rollout_length)
        if self.estimator.whole_games:
            if (whole := self.whole_games(batch, sequences)) is None:
                return
            batch, sequences = whole[0], [whole[1]]
        estimate: Callable[..., tuple[Tensor, Tensor]] = self.estimator.estimate
        if not self.estimator.corrects:
            self.passes.begin(batch, sequences, self.critic, estimate)
            return
        batch, log_ratio = self.at_present(batch)
        ratios = (log_ratio[rows] for rows in sequences)  # in whose order `begin` asks
        self.passes.begin(batch, sequences, self.critic, lambda each: estimate(each, next(ratios)))

    @torch.no_grad()
    def at_present(self, batch: Transitions) -> tuple[Transitions, Tensor]:
        """Return rows with the log-probabilities and values of the present networks, in place of those that played.

        The second result is the logarithm of the ratio of their probabilities to those of the policy that played.
        """
        outputs, _ = self.actor.step({name: batch.observation[name] for name in self.net.entries}, {})
        distribution = self.head.distribution(outputs[:, : self.head.num_outputs], batch.legal)
        log_prob = distribution.log_prob(batch.extras.get(action_heads.SAMPLED, batch.action))
        extras = batch.extras | {"log_prob": log_prob}
        if "value" in extras:  # kept by a shared network
            extras["value"] = outputs[:, -1]
        return replace(batch, extras=extras), log_prob - batch.extras["log_prob"]

    def make_pass(self) -> tuple[dict[str, Tensor], int]:
        """Make an opt step on each minibatch of the experience; return the means of their metrics, and their number.

        A replica that has fewer minibatches than another takes part in its steps without rows.
        """
        experience, opt_steps = self.passes.experience, self.player.opt_steps
        minibatches = () if experience is None else self.passes.minibatches(self.config.num_minibatches)
        most = max(self.player.in_each_replica("minibatches of a pass", len(minibatches)))
        steps = []
        for number, index in enumerate([*minibatches, *[None] * (most - len(minibatches))]):
            batch = None if experience is None or index is None else experience.minibatch(index)
            steps.append(self.opt_step(batch, self.config.learning_rate(opt_steps + number)))
        known = {} if self.critic is None else {"explained_variance": self.passes.explained_by_all()}
        return {**mean_metrics(steps), **known}, len(steps)

    def opt_step(self, batch: Experience | None, learning_rate: float) -> Metrics:
        gradient, metrics = (torch.zeros_like(self.weights), {}) if batch is None else self.gradient(batch)
        num_rows = 0.0 if batch is None else batch.weight
        gradient, metrics = self.player.mean_over_replicas(gradient, metrics, weight=num_rows)
        self.optimizer.learning_rate.fill_(learning_rate)
        return {**metrics, **self.optimizer.descend(gradient, self.config.max_grad_norm)}

    def forget_waiting(self) -> None:
        self.whole_games.waiting = None

    def state_dict(self) -> dict[str, Any]:
        waiting, loss = self.whole_games.state_dict(), self.loss.state_dict()
        return {"passes": self.passes.state_dict(), "whole_games": waiting, "loss": loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["passes"])
        self.whole_games.load_state_dict(state["whole_games"], self.player.device)
        self.loss.load_state_dict(state["loss"])


# ---- games that no roll-out ends -----------------------------------------------------------------------


class WholeGames:
    """Keeps the rows of running games from one roll-out to the next.

    waiting: rows (T, W), one sequence in a column, in the order of time; those that wait come first.
    """

    def __init__(self) -> None:
        self.waiting: Transitions | None = None

    def __call__(self, batch: Transitions, sequences: list[Tensor]) -> tuple[Transitions, Tensor] | None:
        """Return the rows of all games that have ended, as sequences, and their numbers (T, W); None if no game has.

        batch: a roll-out. sequences: the numbers of its rows that follow each other, (T, W) each. Waits for a GPU.
        """
        places, exists = side_by_side(sequences)
        rows = batch.at(places.flatten())
        rows = replace(rows, valid=rows.valid & exists.flatten())  # fills up the shorter sequences
        num_columns = sum(own.shape[1] for own in sequences)
        if self.waiting is not None:
            rows = Transitions.concatenate([self.waiting, rows])
        valid, ended = rows.valid.view(-1, num_columns), (rows.terminated | rows.truncated).view(-1, num_columns)
        is_whole = (ended & valid).flip(0).cumsum(0).flip(0) > 0
        self.waiting, _ = _only(rows, valid & ~is_whole)
        whole, numbers = _only(rows, valid & is_whole)
        return None if whole is None else (whole, numbers)

    def state_dict(self) -> dict[str, Any]:
        waiting = self.waiting
        return {"waiting": None if waiting is None else waiting.rows() | {"valid": waiting.valid}}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.waiting = None
        if state["waiting"] is not None:
            rows = moved(state["waiting"], device)
            self.waiting = replace(Transitions.from_rows(rows), valid=rows.pop("valid"))


def _only(rows: Transitions, where: Tensor) -> tuple[Transitions | None, Tensor]:
    """Move the rows where bool (T, W) is true to the front of their columns; return them and their numbers (T, W).

    The rows are None if there are none.
    """
    length = int(where.sum(dim=0).max())
    order = (~where).to(torch.uint8).argsort(dim=0, stable=True)[:length]
    numbers = torch.arange(order.numel(), device=where.device).view_as(order)
    if length == 0:
        return None, numbers
    places = torch.arange(where.numel(), device=where.device).view_as(where).gather(0, order)
    return replace(rows.at(places.flatten()), valid=where.gather(0, order).flatten()), numbers
