"""DQN: Q-learning with a replay buffer and a target network (Mnih et al. 2015).

The config can make it double (van Hasselt et al. 2016), dueling (Wang et al. 2016), n-step and distributional, and give
it prioritized replay (Schaul et al. 2016).

For a loss of your own, override `target`, `loss` or `priorities` in a subclass. Acting and targets choose legal actions
alone. Left out on purpose: reward clipping, frame stacking. To run: palestra train configs/dqn-polyhedra.yml

Letters: B rows, A actions, K numbers that a network gives for every action: outputs are (B, A, K), or (B, A) where they
are Q-values, the expected returns (`value: {name: expected}`).
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.kernels import dqn as kernels
from palestra.algorithms.parts import exploration, replay, return_distributions
from palestra.algorithms.parts.exploration import best_legal
from palestra.algorithms.parts.exported import Deterministic
from palestra.algorithms.parts.playing import ByValue, PlaysByValue
from palestra.algorithms.parts.return_distributions import FRACTIONS, ExpectedConfig, ImplicitQuantileConfig, of_action
from palestra.algorithms.terms import metrics_of, total_loss
from palestra.algorithms.turn import Turn
from palestra.config import ConfigError, Discount, InBranch, NonNegativeInt, PositiveFloat, PositiveInt
from palestra.games.game import Observation, expand_mask
from palestra.games.policy import Memory
from palestra.games.spaces import Discrete, RoleSpaces
from palestra.nets import NetConfig, make_net
from palestra.nets.flat import FlatNet
from palestra.nets.weights import compiled, evaluation_view
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import fold, seeded_global_state
from palestra.rollouts.n_step import AnyTransitionsConfig
from palestra.rollouts.transitions import Transitions
from palestra.runtime.guard import kernel_property
from palestra.schedules import ScheduleConfig

# ---- what a run must say -----------------------------------------------------------------------------


class DQNConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: dqn}`. No defaults: `palestra config dqn polyhedra` prints a complete file."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: RoleSpaces) -> dict[str, Any]:
        return {
            "double": True,
            "dueling": False,
            "rollout_length": 4,
            "updates_per_turn": 16,
            "warmup_env_steps": 1000,
            "batch_size": 64,
            "target": {"tau": 1.0, "interval": 500},
            "max_grad_norm": 10.0,
            "learning_rate": 2.5e-4,
        }

    name: Literal["dqn"]
    """Q-learning with replay and a target network"""
    gamma: Discount
    """discount per decision of the player"""
    double: bool
    """choose the next action with the online network, value it with the target network"""
    dueling: Annotated[bool, InBranch.FIXED]
    """the network outputs a state's value and every action's advantage; their sum is the action's value"""
    value: return_distributions.ValueConfig
    """what the network estimates for each action"""
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
    target: replay.TargetConfig
    """how the target network follows"""
    max_grad_norm: PositiveFloat | None
    """longer gradients are scaled down to this norm; null: never"""
    net: NetConfig
    """the Q-network"""
    optimizer: OptimizerConfig
    """how gradients become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    exploration: exploration.ExplorationConfig
    """how actions are chosen in roll-outs"""
    replay_buffer: replay.AnyReplayConfig
    """memory"""

    seat_errors = replay.replay_errors

    def build(self, player: Player) -> "DQN":
        return DQN(self, player)


# ---- how it learns and plays ---------------------------------------------------------------------------


def make_q_net(config: DQNConfig, player: Player) -> nn.Module:
    """Build the network, with outputs for all actions, and for the state if it is dueling."""
    num_outputs, key = player.action_space.num_flags + config.dueling, player.key("net")
    if not isinstance(config.value, ImplicitQuantileConfig):
        return make_net(config.net, player.spaces, num_outputs * config.value.num_outputs, key)
    if FRACTIONS in player.spaces:
        message = f"expected no entry {FRACTIONS!r} in the observation (the network reads fractions under that name)"
        raise ConfigError.at(f"players.{player.name}.algorithm.value", message)
    body = make_net(config.net, player.spaces, config.value.embedding_dim, key)
    with seeded_global_state(player.key("embedding")):
        return return_distributions.ImplicitQuantileNet(config.value, body, num_outputs)


class DQN(replay.LearnsByReplay, PlaysByValue):
    config: DQNConfig

    def __init__(self, config: DQNConfig, player: Player) -> None:
        super().__init__(config, player)
        player.require_actions(config.name, Discrete)
        net = make_q_net(config, player).to(player.device)
        self.online = FlatNet(net, player.by_hand)
        self.target_net = FlatNet(deepcopy(net).eval(), player.by_hand)
        self.acting = self.online.evaluation_view()
        self.optimizer = config.optimizer.build(self.online.weights)
        self.fractions_key = torch.tensor([player.own_key("fractions")], device=player.device)
        player.nets = {"q": self.online.net, "target": self.target_net.net}
        player.optimizers = {"q": self.optimizer}
        player.lr_schedule, player.er_schedule = config.learning_rate, config.exploration.schedule

    # ---- what it learns ------------------------------------------------------------------------------------

    def target(self, next_outputs: Tensor, choosing_outputs: Tensor, batch: Transitions) -> Tensor:
        """Return the value target of every row: (B,), or (B, K) of a return distribution.

        It is r + discount * Q_target(s', a*), where a* is the best legal action at s', and r alone where the game
        terminated. next_outputs: of the target network at s', for all actions. choosing_outputs: the outputs at s' by
        which a* is chosen; of the online network if the config says double.
        """
        value, terminated = self.config.value, batch.terminated
        best = best_legal(value.q_values(choosing_outputs), batch.next_legal)
        best_outputs = of_action(next_outputs, best)
        best_outputs = best_outputs.masked_fill(expand_mask(terminated, best_outputs), 0.0)
        return value.target(best_outputs, batch.reward, self.discount(batch))

    def discount(self, batch: Transitions) -> Tensor:
        """Return the discount of the next value, (B,): gamma^n after n steps, and 0 where the game terminated."""
        return ~batch.terminated * batch.extras.get("discount", self.config.gamma)

    def loss(self, outputs: Tensor, value_target: Tensor, batch: Transitions) -> dict[str, Tensor]:
        """Return the terms of the loss by name: those named loss_* add up, the others are recorded.

        outputs: of the online network, for all actions. Rows drawn by priority carry their weights in the mean.
        """
        value, taken = self.config.value, of_action(outputs, batch.action)
        losses = value.losses(taken, value_target, batch.extras)
        if "weight" in batch.extras:
            losses = losses * batch.extras["weight"]
        taken = taken.detach()
        return {
            "loss_td": losses.mean(),
            "q_mean": value.q_values(taken).mean(),
            "td_error": value.td_error(taken, value_target).abs().mean(),
        }

    def priorities(self, outputs: Tensor, value_target: Tensor, batch: Transitions) -> Tensor:
        """Return the rows' priorities for prioritized replay, (B,): TD errors, or losses of return distributions."""
        return self.config.value.priorities(of_action(outputs, batch.action), value_target, batch.extras)

    def gradient(self, batch: Transitions) -> tuple[Tensor, Metrics, Tensor | None]:
        """Return the gradient of the loss by all weights of the online network, the metrics, and the rows' priorities.

        The gradient is one vector. Priorities are None unless the buffer is prioritized.
        """
        with torch.no_grad():
            next_outputs, choosing_outputs = self.next_outputs(batch)
            value_target = self.target(next_outputs, choosing_outputs, batch)
        outputs = self.outputs(
            self.online(return_distributions.with_fractions(batch.observation, batch.extras.get(FRACTIONS)))
        )
        terms = self.loss(outputs, value_target, batch)
        loss, priorities = total_loss(terms), None
        if self.is_prioritized:
            priorities = self.priorities(outputs.detach(), value_target, batch)
        return self.online.gradient(loss), {"loss": loss.detach(), **metrics_of(terms)}, priorities

    def next_outputs(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return the target network's outputs at the next observations, and those by which actions are chosen there.

        Actions are never chosen by the fractions drawn for an implicit target: where these are large by chance, the
        riskier action would be chosen.
        """
        next_observation, fractions = batch.next_observation, batch.extras.get(f"target_{FRACTIONS}")
        next_outputs = self.outputs(self.target_net(return_distributions.with_fractions(next_observation, fractions)))
        if self.config.double:
            return next_outputs, self.outputs(self.acting(next_observation))
        if fractions is not None:
            return next_outputs, self.outputs(self.target_net(next_observation))
        return next_outputs, next_outputs

    # ---- how it plays --------------------------------------------------------------------------------------

    def policy(self, explore: bool) -> ByValue:
        return self.policy_by_value(explore)

    def values(self, observation: Observation) -> Tensor:
        """Return the Q-values of all actions: (B, A)."""
        return self.q_values(self.act_fast(observation))

    def q_values(self, net_outputs: Tensor) -> Tensor:
        """Return the Q-values, (B, A), that a network's outputs stand for."""
        return self.config.value.q_values(self.outputs(net_outputs))

    def outputs(self, net_outputs: Tensor) -> Tensor:
        """Return a network's outputs in the order of actions: (B, A) or (B, A, K)."""
        is_expected, is_dueling = isinstance(self.config.value, ExpectedConfig), self.config.dueling
        if is_expected and not is_dueling:
            return net_outputs
        outputs = net_outputs.reshape(net_outputs.shape[0], self.player.action_space.num_flags + is_dueling, -1)
        outputs = return_distributions.dueling_outputs(outputs) if is_dueling else outputs
        return outputs.squeeze(2) if is_expected else outputs

    def choice_values(self, observation: Observation, legal: Tensor, memory: Memory) -> tuple[str, Tensor]:
        return "Q-value", self.values(observation)

    def module(self) -> Deterministic:
        net = return_distributions.QValues(evaluation_view(self.online.net), self.q_values)
        return Deterministic(net, best_legal, self.player.action_space.num_flags)

    # ---- a turn --------------------------------------------------------------------------------------------

    def learn(self, turn: Turn) -> None:
        config = self.config
        self.roll_out(turn)
        for _ in turn.times("updates", 0 if self.is_warming_up() else turn.num_updates()):
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(config.batch_size)))

    def opt_step(self, rows: Mapping[str, Tensor]) -> Metrics:
        config, opt_steps = self.config, self.player.opt_steps
        self.optimizer.learning_rate.fill_(config.learning_rate(opt_steps))
        rows = self.weighted(rows)
        if isinstance(config.value, ImplicitQuantileConfig):
            drawn = config.value.draw(fold(self.fractions_key, opt_steps), config.batch_size)
            rows |= {f"extras.{name}": value for name, value in drawn.items()}
        metrics, priorities = self.update_fast(rows)
        self.update_priorities(priorities)
        if config.target.interval > 1 and (opt_steps + 1) % config.target.interval == 0:
            self.target_net.follow(self.online, config.target.tau)
        return metrics

    def update(self, rows: Mapping[str, Tensor]) -> tuple[Metrics, Tensor | None]:
        """Step on the weights by tensor operations alone, and return metrics and the rows' priorities.

        It is one graph where it is compiled.
        """
        gradient, metrics, priorities = self.find_gradient(Transitions.from_rows(rows))
        gradient, metrics = self.player.mean_over_replicas(gradient, metrics)
        norms = self.optimizer.descend(gradient, self.config.max_grad_norm)
        if self.config.target.interval == 1:  # part of the graph, unlike the rare moves of larger intervals
            self.target_net.follow(self.online, share=self.config.target.tau)
        return {**metrics, **norms}, priorities

    # ---- what stands in for these methods where nobody has changed them (palestra.runtime.guard) ------------

    def find_gradient(self, batch: Transitions) -> tuple[Tensor, Metrics, Tensor | None]:
        """Call `gradient`, or the kernel that stands in for it."""
        kernel, config = self.gradient_kernel, self.config
        if kernel is None:
            return self.gradient(batch)
        return kernel(batch, config.double, config.gamma, cast(ExpectedConfig, config.value).huber_delta)

    @kernel_property
    def gradient_kernel(self) -> kernels.DQNGradient | None:
        online, target = self.online.learning_nets, self.target_net.learning_nets
        if online is None or target is None or not isinstance(self.config.value, ExpectedConfig) or self.config.dueling:
            return None
        return kernels.DQNGradient(online[0], target[0]) if self.may_run(kernels.KERNEL) else None

    @kernel_property
    def update_fast(self) -> Callable[[Mapping[str, Tensor]], tuple[Metrics, Tensor | None]]:
        return compiled(self.update, self.player.compiles_opt_steps and self.gradient_kernel is None)

    @kernel_property
    def act_fast(self) -> Callable[[Mapping[str, Tensor]], Tensor]:
        return compiled(self.acting, self.player.compile and self.acting.acting_nets is None)
