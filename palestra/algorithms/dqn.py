"""DQN: Q-learning with a replay buffer and a target network (Mnih et al. 2015), double where the config says so (van
Hasselt et al. 2016), its replay prioritized where the config says so (Schaul et al. 2016).

Legal-action masks hold in acting and in targets. Left out on purpose: reward clipping, frame stacking.
To run: palestra train configs/dqn-polyhedra.yml
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.config import ByName, Config, Discount, Fraction, NonNegativeInt, PositiveFloat, PositiveInt
from palestra.exploration import ExplorationConfig, best_legal
from palestra.games.fused import Decision, Memory, Sees, Transitions
from palestra.games.spaces import Discrete
from palestra.nets import NetConfig, make_net
from palestra.nets.flat import FlatNet
from palestra.nets.weights import compiled
from palestra.optimizers import OptimizerConfig, clip
from palestra.player import Algorithm, AlgorithmConfig, Deterministic, Metrics, Player, Turn
from palestra.randomness import base_key
from palestra.schedules import ScheduleConfig

# ---- what a run must say -----------------------------------------------------------------------------


class PolyakConfig(Config):
    name: Literal["polyak"]
    """the target network moves a little after every opt step"""
    tau: Fraction
    """share of the way to the online network per opt step"""


class CopyConfig(Config):
    name: Literal["copy"]
    """the target network is a copy of the online network, renewed now and then"""
    interval: PositiveInt
    """opt steps between copies"""


class DQNConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: dqn}`. No defaults: `palestra config dqn polyhedra` prints a complete file."""

    name: Literal["dqn"]
    """Q-learning with replay and a target network"""
    gamma: Discount
    """discount per decision of the player"""
    double: bool
    """choose the next action with the online network, value it with the target network"""
    rollout_length: PositiveInt
    """rounds played in every world per turn"""
    updates_per_turn: PositiveInt
    """opt steps per turn"""
    warmup_env_steps: NonNegativeInt
    """env steps of the player before its first opt step"""
    batch_size: PositiveInt
    """transitions per opt step"""
    target: Annotated[PolyakConfig | CopyConfig, ByName()]
    """how the target network follows"""
    huber_delta: PositiveFloat
    """TD error at which the loss turns from a parabola into a line"""
    max_grad_norm: PositiveFloat | None
    """longer gradients are scaled down to this norm; null: never"""
    net: NetConfig
    """the Q-network"""
    optimizer: OptimizerConfig
    """how gradients become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""
    exploration: ExplorationConfig
    """how actions are chosen while anyone gathers experience"""
    replay_buffer: Annotated[UniformReplayConfig | PrioritizedReplayConfig, ByName()]
    """memory"""

    def build(self, player: Player) -> "DQN":
        return DQN(self, player)


def make_buffer(
    config: UniformReplayConfig | PrioritizedReplayConfig, device: torch.device, seed: int, stream: str
) -> ReplayBuffer:
    if isinstance(config, PrioritizedReplayConfig):
        return PrioritizedReplay(config, device, seed, stream)
    return ReplayBuffer(config, device, seed, stream)


# ---- what it learns ----------------------------------------------------------------------------------


def td_target(next_q_online: Tensor, next_q_target: Tensor, batch: Transitions, config: DQNConfig) -> Tensor:
    """r + gamma * Q_target(s', a*), a* the best legal action at s'; r alone where the game terminated: float32
    (batch,)."""
    chooser = next_q_online if config.double else next_q_target
    value = next_q_target.gather(1, best_legal(chooser, batch.next_legal).unsqueeze(1)).squeeze(1)
    return batch.reward + config.gamma * torch.where(batch.terminated, 0.0, value)


def td_loss(q: Tensor, target: Tensor, batch: Transitions, config: DQNConfig) -> tuple[Tensor, Tensor, Metrics]:
    """Huber loss of the TD error of the actions taken, and that error. q: (batch, actions), target: (batch,).

    Rows drawn by priority carry their weights in the loss as an extra.
    """
    taken = q.gather(1, batch.action.unsqueeze(1)).squeeze(1)
    td_error = (taken - target).detach()
    losses = nn.functional.huber_loss(taken, target, delta=config.huber_delta, reduction="none")
    loss = (losses * batch.extras["weight"] if "weight" in batch.extras else losses).mean()
    metrics = {"loss": loss.detach(), "q_mean": taken.detach().mean(), "td_error": td_error.abs().mean()}
    return loss, td_error, metrics


# ---- how it plays and learns ---------------------------------------------------------------------------


class ByValue:
    """Plays the best legal action, but where it explores. exploration: how much, 0: never."""

    sees: Sees = "observation"

    def __init__(self, values: Callable[[Any], Tensor], config: ExplorationConfig, exploration: float) -> None:
        self.values, self.config, self.exploration = values, config, exploration

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        return Decision(self.config.choose(self.values(view), legal, keys, self.exploration), {}, memory)


class DQN(Algorithm):
    config: DQNConfig

    def __init__(self, config: DQNConfig, player: Player) -> None:
        super().__init__(config, player)
        player.require_actions(config.name, Discrete)
        key = base_key(player.seed, f"player/{player.name}/net")
        net = make_net(config.net, player.spaces, player.action_space.num_flags, key).to(player.device)
        self.q, self.target = FlatNet(net), FlatNet(deepcopy(net).eval())
        self.acting = self.q.evaluation_twin()
        self.act_fast = self.acting.quick or compiled(self.acting, player.compile)
        self.optimizer = config.optimizer.build(self.q.weights)
        self.update_fast = compiled(self.update, player.compile)
        stream = f"player/{player.name}/replay"
        self.buffer = make_buffer(config.replay_buffer, player.device, player.seed, stream)
        self.rolled_out = False
        self.updates_left = 0
        player.nets = {"q": self.q.net, "target": self.target.net}
        player.optimizers = {"q": self.optimizer}
        player.lr_schedule, player.er_schedule = config.learning_rate, config.exploration.schedule
        player.replay_buffer = self.buffer

    def policy(self, explore: bool) -> ByValue:
        exploration = self.config.exploration
        return ByValue(self.act_fast, exploration, exploration.schedule(self.player.opt_steps) if explore else 0.0)

    def module(self) -> Deterministic:
        return Deterministic(self.acting.net, best_legal, self.player.action_space.num_flags)

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
        self.optimizer.learning_rate.fill_(self.config.learning_rate(self.player.opt_steps))
        if isinstance(self.buffer, PrioritizedReplay):
            metrics, td_error = self.update_fast(
                {**rows, "extras.weight": self.buffer.importance(self.player.opt_steps)}
            )
            self.buffer.learn_surprise(td_error)
        else:
            metrics, _ = self.update_fast(rows)
        target = self.config.target
        if isinstance(target, CopyConfig) and (self.player.opt_steps + 1) % target.interval == 0:
            self.target.follow(self.q, share=1.0)
        return metrics

    def update(self, rows: Mapping[str, Tensor]) -> tuple[Metrics, Tensor]:
        """What an opt step does to the weights: tensor operations alone, one graph where it is compiled.

        Gives the TD errors of the rows beside the metrics."""
        gradient, td_error, metrics = self.gradient(Transitions.from_rows(rows))
        gradient, grad_norm = clip(gradient, self.config.max_grad_norm)
        self.optimizer.step(gradient)
        if isinstance(self.config.target, PolyakConfig):
            self.target.follow(self.q, share=self.config.target.tau)
        return {**metrics, "grad_norm": grad_norm}, td_error

    def gradient(self, batch: Transitions) -> tuple[Tensor, Tensor, Metrics]:
        """The gradient of the loss with respect to all weights, as one vector."""
        with torch.no_grad():
            next_q = self.target(batch.next_observation)
            online = self.acting(batch.next_observation) if self.config.double else next_q
            target = td_target(online, next_q, batch, self.config)
        loss, td_error, metrics = td_loss(self.q(batch.observation), target, batch, self.config)
        return self.q.gradient(loss), td_error, metrics

    def state_dict(self) -> dict[str, Any]:
        return {"rolled_out": self.rolled_out, "updates_left": self.updates_left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rolled_out, self.updates_left = state["rolled_out"], state["updates_left"]
