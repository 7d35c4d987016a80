"""off_policy: learns by a loss of your own, or one by name, from rows of a replay buffer.

The loss is a function of a plain batch that gives named terms (losses/off_policy_loss.py); it names the heads of the
networks, and the head by which the player acts. This file rolls out, fills the buffer, samples, steps, and moves the
target networks, as DQN and SAC do. To run: palestra train off_policy-cartpole
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.losses import loss as losses
from palestra.algorithms.losses import off_policy_loss
from palestra.algorithms.losses.awac import AWACConfig
from palestra.algorithms.losses.bc import BehaviourCloningConfig
from palestra.algorithms.losses.iql import IQLConfig
from palestra.algorithms.losses.off_policy_loss import ACTION, ActingHeads, OffPolicyLoss
from palestra.algorithms.losses.q_learning import QLearningConfig
from palestra.algorithms.losses.torchrl import TorchRLReplayLossConfig
from palestra.algorithms.parts import action_heads, actor_critic, exploration, passes, replay
from palestra.algorithms.parts.actor_critic import POLICY, HeadedNet
from palestra.algorithms.parts.exported import Deterministic, DeterministicRecurrent
from palestra.algorithms.parts.playing import PlaysByHeads, PlaysByValue
from palestra.algorithms.parts.return_distributions import QValues
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import (
    ByName,
    ConfigError,
    ConfigErrorItem,
    Discount,
    InBranch,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    below,
)
from palestra.games.game import Observation
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import Box, Discrete, RoleSpaces, Space
from palestra.nets.weights import evaluation_mode, evaluation_view, flatten_buffers, flatten_weights, move
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import fold, seeded_global_state
from palestra.rollouts.n_step import AnyTransitionsConfig
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

AnyOffPolicyLoss = Annotated[
    QLearningConfig | BehaviourCloningConfig | AWACConfig | IQLConfig | TorchRLReplayLossConfig | UserConfig,
    ByName(user_class=OffPolicyLoss),
    InBranch.SAME_PART,
]

# ---- what a run must say -----------------------------------------------------------------------------


class OffPolicyConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: off_policy}`.

    No defaults: `palestra config off_policy CartPole-v1` prints a complete file.
    """

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        loss = losses.usual_loss(said.get("loss", "q_learning"), AnyOffPolicyLoss)
        heads = [losses.Q] if loss is None else losses.head_names(loss)
        critics = [] if loss is None else losses.critics_of(loss, spaces.action)
        usual = DQNConfig.usual(said, spaces) | {
            "loss": "q_learning",
            "target": {"tau": 1.0, "interval": 500},
            "body": actor_critic.usual_body(heads, spaces, said, critics),
            "initialization": "stock",
            "box_actions": "state_dependent_gaussian",
            "exploration": None if POLICY in heads else "epsilon_greedy",
        }
        usual |= {} if loss is None else getattr(loss.config, "usual_algorithm", {})
        return usual if isinstance(spaces.action, Box) else usual | {"box_actions": None}

    name: Literal["off_policy"]
    """a loss by name, or one of your own, on rows of a replay buffer"""
    loss: AnyOffPolicyLoss
    """what is learned from a batch; it names its heads, and the one by which the player acts"""
    gamma: Discount
    """discount per decision of the player"""
    transitions: AnyTransitionsConfig
    """what of a roll-out becomes a row of the replay buffer"""
    rollout_length: PositiveInt | None
    """rounds played in every world per turn; null: none, the player learns from recorded play alone"""
    updates_per_turn: PositiveInt
    """opt steps per turn"""
    warmup_env_steps: NonNegativeInt
    """env steps of the player before its first opt step"""
    batch_size: PositiveInt
    """transitions per opt step"""
    target: Annotated[replay.TargetConfig | None, InBranch.SAME_PART]
    """how the target networks follow; null: there are none"""
    max_grad_norm: PositiveFloat | None
    """longer gradients are scaled down to this norm; null: never"""
    body: actor_critic.AnyBody
    """the networks of the loss's heads"""
    initialization: actor_critic.InitializationConfig
    """how the networks begin"""
    box_actions: action_heads.AnyBoxActionsConfig | None
    """how a policy draws actions that are vectors of numbers; null: actions are discrete"""
    exploration: exploration.ExplorationConfig | None
    """how actions are chosen by their values in roll-outs; null: the player draws them from the head `policy`"""
    evaluation: Literal["deterministic", "sampled"]
    """in evaluations play the best or most likely action, or one as in roll-outs"""
    optimizer: OptimizerConfig
    """how gradients become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    learning_rate_factors: dict[str, NonNegativeFloat]
    """by which the steps of some weights are multiplied, by their names, as q.layers.0.weight; * stands for anything,
    as in critic_*; {}: all steps are whole"""
    replay_buffer: replay.AnyReplayConfig
    """memory"""

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        if (loss := losses.loss_of(self.loss)) is not None:
            check_loss(loss, self)
        return self

    seat_errors = replay.replay_errors

    def build(self, player: Player) -> "OffPolicy":
        return OffPolicy(self, player)


# ---- what it is made of ------------------------------------------------------------------------------


def check_loss(loss: OffPolicyLoss, config: OffPolicyConfig) -> None:
    """Raise ConfigError, at paths below the algorithm's config, unless body and exploration fit the loss."""
    names, by, kind, faults = losses.head_names(loss), loss.acts_by, config.exploration, {}
    if by not in names:
        faults["loss.name"] = f"expected the head {by!r}, by which the player acts, got {', '.join(names)}"
    if by == POLICY and kind is not None:
        drawn = "the player draws its actions from the head 'policy'"
        faults["exploration"] = f"expected null ({drawn}), got {kind.name!r}"
    if by != POLICY and kind is None:
        valued = f"the player acts by the values of the head {by!r}"
        faults["exploration"] = f"expected epsilon_greedy or softmax ({valued}), got null"
    items = [ConfigErrorItem(key, message) for key, message in faults.items()]
    ConfigError.require_none(items or actor_critic.head_errors(config.body, names))


def check_actions(loss: OffPolicyLoss, config: OffPolicyConfig, player: Player) -> None:
    """Raise ConfigError, at paths below the algorithm's config, unless the loss fits the player's actions."""
    space, fault = player.action_space, None
    critics = losses.critics_of(loss, space)
    values = [head for head in loss.heads if head == losses.Q or isinstance(head, losses.ActionValues)]
    takes = any(isinstance(head, losses.TakenValue) for head in loss.heads)
    if critics and isinstance(config.body, actor_critic.SharedConfig):
        observed = f"the head {critics[0]!r} observes actions, the others do not"
        raise ConfigError.at("body.name", f"expected 'separate' ({observed}), got 'shared'")
    if critics and not isinstance(space, Box):
        fault = f"expected Box actions for the loss {config.loss.name!r}, whose critics observe them, got {space}"
    elif (values or loss.acts_by != POLICY) and not isinstance(space, Discrete):
        fault = f"expected Discrete actions for the loss {config.loss.name!r}, which values each of them, got {space}"
    elif takes and not isinstance(space, Discrete | Box):
        fault = f"expected Discrete or Box actions for the loss {config.loss.name!r}, which values them, got {space}"
    elif critics and ACTION in player.spaces:
        fault = "expected no entry 'action' in the observation (critics observe the action under that name)"
    if fault is not None:
        raise ConfigError.at("loss.name", fault)


def heads_of(loss: OffPolicyLoss, config: OffPolicyConfig, num_policy_outputs: int, player: Player) -> dict[str, int]:
    """Return how many outputs each head of the loss has.

    Raises ConfigError, at paths below the algorithm's config, where the player cannot act by the head that it should.
    """
    space, by = player.action_space, loss.acts_by
    others = {POLICY: num_policy_outputs} | ({losses.Q: space.num} if isinstance(space, Discrete) else {})
    sizes = losses.head_sizes(loss, config.loss, others)
    if by != POLICY and sizes[by] != space.num_flags:
        num = f"a value for each of {space.num_flags} actions"
        message = f"expected {num} of the head {by!r}, by which the player acts, got {sizes[by]}"
        raise ConfigError.at("loss.name", message)
    return sizes


class OffPolicy(replay.LearnsByReplay, PlaysByHeads, PlaysByValue):
    config: OffPolicyConfig

    def __init__(self, config: OffPolicyConfig, player: Player) -> None:
        super().__init__(config, player)
        place = f"players.{player.name}.algorithm"
        with below(place):
            self.loss: OffPolicyLoss = losses.loss_of(config.loss)
            check_actions(self.loss, config, player)
        head = action_heads.make_head(config.box_actions, player)
        with below(place):
            heads = heads_of(self.loss, config, head.num_outputs, player)
        action = {ACTION: Space(player.action_space.shape, torch.float32, padded=False)}
        critics = dict.fromkeys(losses.critics_of(self.loss, player.action_space), player.spaces | action)
        self.net = HeadedNet(config.body, config.initialization, heads, head, player, critics).to(player.device)
        with below(place):
            self.net.refuse_memories("")  # rows of a replay buffer do not follow each other
            if not self.loss.learns_batch_norm:
                passes.refuse_batch_norm(self.net)
            self.loss.begin(self.net, player)
            self.refuse_target()
        player.nets = {"heads": self.net} | ({} if self.loss.weights is None else {"loss": self.loss.weights})
        learned = nn.ModuleDict(player.nets)
        self.weights, self.buffers = flatten_weights(learned), flatten_buffers(self.net)
        self.target_net: HeadedNet | None = None
        if config.target is not None and self.loss.own_targets is None:
            player.nets["target"] = self.target_net = deepcopy(self.net).eval()
            self.target_weights = flatten_weights(self.target_net)
            self.target_buffers = flatten_buffers(self.target_net)
        named = dict(self.net.named_parameters())
        if self.loss.weights is not None:
            named |= self.loss.weights.named_parameters(prefix="loss")
        self.optimizer = passes.make_optimizer(config, self.weights, named, player)
        self.key = torch.tensor([player.own_key("loss")], device=player.device)
        player.optimizers, player.lr_schedule = {"heads": self.optimizer}, config.learning_rate
        player.er_schedule = None if config.exploration is None else config.exploration.schedule
        self.leaves = self.loss.leaves(dict(learned.named_parameters()))
        with below(place):
            if getattr(self.buffer, "data", self) is not None:  # else when recorded play comes, which may have extras
                self.try_loss()

    def begin_run(self) -> list[str]:
        return [*self.loss.notes, *super().begin_run()]

    def refuse_target(self) -> None:
        """Refuse a `target` that contradicts a loss which keeps target networks of its own, or keeps none."""
        own, target = self.loss.own_targets, self.config.target
        if own is not None and own != (target is not None):
            expected = "a mapping with name, tau and interval" if own else "null"
            got = "null" if target is None else f"{target.name!r}"
            keeps = "keeps target networks" if own else "keeps no target networks"
            message = f"expected {expected} (the loss {self.config.loss.name!r} {keeps}), got {got}"
            raise ConfigError.at("target", message)

    def try_loss(self) -> None:
        """Let the loss compute once, in evaluation mode, so that the statistics of batch norm stay."""
        rows = off_policy_loss.rows_of_zeros(self.player, self.loss.acts_by == POLICY)
        if (data := getattr(self.buffer, "data", None)) is not None:
            rows = Transitions.from_rows(data.rows(0, min(off_policy_loss.NUM_TRIED, len(data))))
        with evaluation_mode([self.net]):
            batch = self.batch(rows, opt_steps=0)
            off_policy_loss.try_loss(self.loss, self.config.loss, batch, self.leaves, self.is_prioritized)

    def take_data(self, recorded: Transitions, held_out: Tensor) -> None:
        super().take_data(recorded, held_out)
        self.try_loss()

    # ---- what it learns --------------------------------------------------------------------------------

    def batch(self, rows: Transitions, opt_steps: int) -> off_policy_loss.ReplayBatch:
        """Make the batch that the loss gets, of rows of the buffer."""
        key, gamma = fold(self.key, opt_steps), self.config.gamma
        return off_policy_loss.ReplayBatch(
            self.net, self.acting, self.target_acting, self.player, rows, gamma, opt_steps, key
        )

    def gradient(self, rows: Transitions) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Return the gradient of the loss of some rows by all weights, the metrics, and the rows' priorities.

        The gradient is one vector. Priorities are None unless the buffer is prioritized.
        """
        batch = self.batch(rows, self.player.opt_steps)
        terms = self.loss.terms(batch)
        loss, priorities = total_loss(terms), None
        if self.is_prioritized:
            with torch.no_grad():
                priorities = self.loss.priorities(batch)
        gradient = self.loss.gradient(loss, [*self.leaves.values()], self.weights)
        return gradient, {"loss": loss.detach(), **metrics_of(terms)}, priorities

    # ---- a turn ----------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> None:
        config = self.config
        self.roll_out(turn)
        for _ in turn.times("updates", 0 if self.is_warming_up() else turn.num_updates()):
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(config.batch_size)))

    def terms_of_data(self) -> dict[str, float]:
        """As of the base, with the terms of the loss on held-out rows."""
        found, rows = super().terms_of_data(), getattr(self.buffer, "held_out", None)
        if rows is None:
            return found
        before = deepcopy(self.loss.state_dict())
        with evaluation_mode([self.net]), torch.no_grad(), seeded_global_state(0):
            terms = self.loss.terms(self.batch(Transitions.from_rows(rows), self.player.opt_steps))
        self.loss.load_state_dict(before)
        return found | {f"held_out/{name}": float(term) for name, term in terms.items()}

    def opt_step(self, rows: Mapping[str, Tensor]) -> Metrics:
        config, opt_steps = self.config, self.player.opt_steps
        gradient, metrics, priorities = self.gradient(Transitions.from_rows(self.weighted(rows)))
        gradient, metrics = self.player.mean_over_replicas(gradient, metrics)
        self.optimizer.learning_rate.fill_(config.learning_rate(opt_steps))
        norms = self.optimizer.descend(gradient, config.max_grad_norm)
        self.update_priorities(priorities)
        if config.target is not None and (opt_steps + 1) % config.target.interval == 0:
            self.follow(config.target.tau)
        return {**metrics, **norms}

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Move weights and statistics (of batch norm) of the target networks a share of the way to those that learn."""
        if self.target_net is None:
            self.loss.follow(share)
            return
        own = self.weights[: len(self.target_weights)]  # behind are weights of the loss
        move([self.target_weights, *self.target_buffers], [own, *self.buffers], share)

    def warm_start(self, nets: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take the networks over; target networks begin as their copies, and weights of the loss begin anew."""
        own = {name: net.state_dict() for name, net in self.player.nets.items() if name != "heads"}
        super().warm_start(dict(nets) | own)
        if self.config.target is not None:
            self.follow(1.0)

    # ---- how it plays ----------------------------------------------------------------------------------

    def policy_that(self, draws: bool, is_collecting: bool) -> Policy:
        if self.config.exploration is None:
            return actor_critic.ActorCriticPolicy(self.actor, None, self.head, False, draws, self.draw_kernel)
        return self.policy_by_value(explores=draws)

    def values(self, observation: Observation) -> Tensor:
        """Return the values of all actions: (B, A)."""
        return self.acting(self.loss.acts_by, observation)[self.loss.acts_by]

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor] | None:
        if self.config.exploration is not None:
            return "value", self.values(observation)
        return super().choice_values(observation, legal, memory)

    def module(self) -> Deterministic | DeterministicRecurrent:
        if self.config.exploration is None or self.config.evaluation == "sampled":
            return super().module()
        by, split = self.loss.acts_by, self.net.split
        values_of = (lambda outputs: split(outputs)[by]) if self.net.is_shared else (lambda outputs: outputs)
        net = QValues(evaluation_view(self.net.net_of(by)), values_of)
        return Deterministic(net, exploration.best_legal, self.player.action_space.num_flags)

    # ---- what stands in for these methods where nobody has changed them (palestra.runtime.guard) ------------

    @kernel_property
    def acting(self) -> ActingHeads:
        return ActingHeads(self.net)

    @kernel_property
    def target_acting(self) -> ActingHeads | None:
        return None if self.target_net is None else ActingHeads(self.target_net)

    # ---- what a checkpoint holds beside weights, optimizer and games -------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"loss": self.loss.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loss.load_state_dict(state["loss"])
