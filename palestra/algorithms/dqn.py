"""DQN: Q-learning with a replay buffer and a target network (Mnih et al. 2015). Where the config says so: double (van
Hasselt et al. 2016), dueling (Wang et al. 2016), with prioritized replay (Schaul et al. 2016), n-step, distributional.

What a network tells of an action (value_heads.py) are K numbers: (B, A, K); where that is its expected return, (B, A).
Legal-action masks hold in acting and in targets. Left out on purpose: reward clipping, frame stacking.
To run: palestra train configs/dqn-polyhedra.yml
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Deterministic, Seat, Turn, capacity_errors
from palestra.algorithms.kernels.dqn import by_hand_of
from palestra.algorithms.parts.exploration import EpsilonGreedyConfig, ExplorationConfig, best_legal, choose_by_mlp
from palestra.algorithms.parts.return_distributions import (
    FRACTIONS,
    ExpectedConfig,
    ImplicitQuantileConfig,
    ImplicitQuantileNet,
    MeanValues,
    ValueConfig,
    joined_streams,
    of_action,
    seen_at,
)
from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Discount,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from palestra.games.game import Observation, expand_mask
from palestra.games.policy import Decision, Memory, Sees
from palestra.games.spaces import Discrete
from palestra.nets import NetConfig, make_net
from palestra.nets.flat import FlatNet
from palestra.nets.inputs import made_up
from palestra.nets.kernels.acting import QuickMLP
from palestra.nets.weights import compiled
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import base_key, fold, seeded_global_state
from palestra.rollouts.n_step import NStepConfig, TransitionsConfig, make_producer
from palestra.rollouts.transitions import Transitions
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
    dueling: bool
    """the network tells a state's value and every action's advantage, which add up to the action's value"""
    value: ValueConfig
    """what the network tells of an action"""
    transitions: TransitionsConfig
    """what of a roll-out becomes a row of the replay buffer"""
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

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        num_waiting = self.transitions.steps - 1 if isinstance(self.transitions, NStepConfig) else 0
        per_world = self.rollout_length * seat.num_turns + num_waiting * seat.num_roles
        return capacity_errors(self.replay_buffer.capacity, seat.num_worlds * per_world)

    def build(self, player: Player) -> "DQN":
        return DQN(self, player)


def make_buffer(
    config: UniformReplayConfig | PrioritizedReplayConfig, device: torch.device, seed: int, stream: str
) -> ReplayBuffer:
    if isinstance(config, PrioritizedReplayConfig):
        return PrioritizedReplay(config, device, seed, stream)
    return ReplayBuffer(config, device, seed, stream)


def make_q_net(config: DQNConfig, player: Player) -> nn.Module:
    """The network, with as many outputs as it tells of all actions, and of the state where it is dueling."""
    place = f"player/{player.name}"
    num_outputs, key = player.action_space.num_flags + config.dueling, base_key(player.seed, f"{place}/net")
    if not isinstance(config.value, ImplicitQuantileConfig):
        return make_net(config.net, player.spaces, num_outputs * config.value.num_told, key)
    if FRACTIONS in player.spaces:
        message = f"the observation has an entry {FRACTIONS!r}, beside which the network sees fractions; rename it"
        raise ConfigError([ConfigErrorItem(f"players.{player.name}.algorithm.value", message)])
    body = make_net(config.net, player.spaces, config.value.embedding_dim, key)
    with seeded_global_state(base_key(player.seed, f"{place}/embedding")):
        return ImplicitQuantileNet(config.value, body, num_outputs)


# ---- what it learns ----------------------------------------------------------------------------------


def td_target(next_choosing: Tensor, next_target: Tensor, batch: Transitions, config: DQNConfig) -> Tensor:
    """r + discount * Q_target(s', a*), a* the best legal action at s'; r alone where the game terminated: (B,) or, as
    the law of the return, (B, K). What networks tell of all actions at s': next_choosing by which a* is chosen,
    next_target of the target network."""
    best = best_legal(config.value.mean(next_choosing), batch.next_legal)
    told = of_action(next_target, best)
    told = told.masked_fill(expand_mask(batch.terminated, told), 0.0)
    discount = ~batch.terminated * batch.extras.get("discount", config.gamma)
    return config.value.target(told, batch.reward, discount)


def td_loss(told: Tensor, target: Tensor, batch: Transitions, config: DQNConfig) -> tuple[Tensor, Tensor, Metrics]:
    """The mean loss of what is told of the actions taken, and how much every row surprises: (B,).

    That is the TD error or, of a law of the return, the row's loss. Rows drawn by priority carry their weights in the
    loss as an extra.
    """
    taken = of_action(told, batch.action)
    losses, td_error = config.value.losses(taken, target, batch.extras)
    loss = (losses * batch.extras["weight"] if "weight" in batch.extras else losses).mean()
    q_mean = config.value.mean(taken.detach()).mean()
    metrics = {"loss": loss.detach(), "q_mean": q_mean, "td_error": td_error.abs().mean()}
    return loss, td_error if isinstance(config.value, ExpectedConfig) else losses.detach(), metrics


# ---- how it plays and learns ---------------------------------------------------------------------------


class ByValue:
    """Plays the best legal action, but where it explores. exploration: how much, 0: never.

    quick: what finds the same values, for epsilon_greedy alone; there a single kernel acts.
    """

    sees: Sees = "observation"

    def __init__(
        self, values: Callable[[Any], Tensor], config: ExplorationConfig, exploration: float, quick: QuickMLP | None
    ) -> None:
        self.values, self.config, self.exploration, self.quick = values, config, exploration, quick

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        seen = None if self.quick is None else self.quick.arguments(view)
        if seen is not None:
            arguments: Any = (*seen, legal.numpy(), keys.numpy(), self.exploration)
            return Decision(torch.from_numpy(choose_by_mlp(*arguments)), {}, memory)
        return Decision(self.config.choose(self.values(view), legal, keys, self.exploration), {}, memory)


class DQN(Algorithm):
    config: DQNConfig

    def __init__(self, config: DQNConfig, player: Player) -> None:
        super().__init__(config, player)
        player.require_actions(config.name, Discrete)
        net = make_q_net(config, player).to(player.device)
        self.q, self.target = FlatNet(net), FlatNet(deepcopy(net).eval())
        self.acting = self.q.evaluation_twin()
        self.act_fast = compiled(self.acting, player.compile and self.acting.quick is None)
        self.quick = self.quick_values() if type(self) is DQN else None
        self.optimizer = config.optimizer.build(self.q.weights)
        self.by_hand = by_hand_of(self) if type(self) is DQN else None  # a derived class may have another loss
        self.update_fast = compiled(self.update, player.compile and self.by_hand is None)
        stream = f"player/{player.name}/replay"
        self.buffer = make_buffer(config.replay_buffer, player.device, player.seed, stream)
        self.producer = make_producer(
            config.transitions, config.gamma, config.rollout_length, player.turns, player.device
        )
        self.fractions_key = torch.tensor(
            [base_key(player.seed, f"player/{player.name}/fractions")], device=player.device
        )
        player.nets = {"q": self.q.net, "target": self.target.net}
        player.optimizers = {"q": self.optimizer}
        player.lr_schedule, player.er_schedule = config.learning_rate, config.exploration.schedule
        player.replay_buffer = self.buffer

    def policy(self, explore: bool) -> ByValue:
        config = self.config.exploration
        quick = self.quick if type(config) is EpsilonGreedyConfig else None
        return ByValue(self.values, config, config.schedule(self.player.opt_steps) if explore else 0.0, quick)

    @torch.no_grad()
    def quick_values(self) -> QuickMLP | None:
        """The network's kernel, if its outputs are what `values` says as it stands, on observations made up."""
        if self.acting.quick is None:
            return None
        (quick,) = self.acting.quick
        seen = made_up(self.player.spaces, torch.arange(8, device=self.player.device))
        return quick if torch.equal(quick(seen), self.values(seen)) else None

    def values(self, observation: Observation) -> Tensor:
        return self.worth(self.act_fast(observation))

    def worth(self, outputs: Tensor) -> Tensor:
        """What every action is worth, by the network's outputs: (B, A)."""
        return self.config.value.mean(self.told(outputs))

    def told(self, outputs: Tensor) -> Tensor:
        """The network's outputs as what they tell of every action: (B, A) or (B, A, K)."""
        expected, dueling = isinstance(self.config.value, ExpectedConfig), self.config.dueling
        if expected and not dueling:
            return outputs
        told = outputs.reshape(outputs.shape[0], self.player.action_space.num_flags + dueling, -1)
        told = joined_streams(told) if dueling else told
        return told.squeeze(2) if expected else told

    def module(self) -> Deterministic:
        net = MeanValues(self.acting.net, self.worth)
        return Deterministic(net, best_legal, self.player.action_space.num_flags)

    def learn(self, turn: Turn) -> None:
        config = self.config
        for _ in turn.once("roll_out"):
            transitions = self.producer(turn.collect(config.rollout_length))
            self.buffer.add(transitions.rows(), transitions.valid)
        for _ in turn.times("updates", 0 if self.is_warming_up() else config.updates_per_turn):
            turn.before_step()
            turn.after_step(self.opt_step(self.buffer.sample(config.batch_size)))

    def is_warming_up(self) -> bool:
        return self.player.env_steps < self.config.warmup_env_steps or self.buffer.is_empty

    def opt_step(self, rows: Mapping[str, Tensor]) -> Metrics:
        config, opt_steps = self.config, self.player.opt_steps
        self.optimizer.learning_rate.fill_(config.learning_rate(opt_steps))
        rows = dict(rows)
        if isinstance(self.buffer, PrioritizedReplay):
            rows["extras.weight"] = self.buffer.importance(opt_steps)
        if isinstance(config.value, ImplicitQuantileConfig):
            drawn = config.value.draw(fold(self.fractions_key, opt_steps), config.batch_size)
            rows |= {f"extras.{name}": value for name, value in drawn.items()}
        metrics, surprise = self.update_fast(rows)
        if isinstance(self.buffer, PrioritizedReplay):
            self.buffer.learn_surprise(surprise)
        if isinstance(config.target, CopyConfig) and (opt_steps + 1) % config.target.interval == 0:
            self.target.follow(self.q, share=1.0)
        return metrics

    def update(self, rows: Mapping[str, Tensor]) -> tuple[Metrics, Tensor]:
        """What an opt step does to the weights: tensor operations alone, one graph where it is compiled.

        Gives beside the metrics how much the rows surprise."""
        find_gradient = self.gradient if self.by_hand is None else self.by_hand.find_gradient
        gradient, surprise, metrics = find_gradient(Transitions.from_rows(rows))
        gradient, grad_norm = self.optimizer.clip(gradient, self.config.max_grad_norm)
        self.optimizer.step(gradient)
        if isinstance(self.config.target, PolyakConfig):
            self.target.follow(self.q, share=self.config.target.tau)
        return {**metrics, "grad_norm": grad_norm}, surprise

    def gradient(self, batch: Transitions) -> tuple[Tensor, Tensor, Metrics]:
        """The gradient of the loss with respect to all weights, as one vector."""
        next_seen, extras, is_implicit = batch.next_observation, batch.extras, FRACTIONS in batch.extras
        with torch.no_grad():
            next_target = self.told(self.target(seen_at(next_seen, extras.get(f"target_{FRACTIONS}"))))
            if self.config.double:
                next_choosing = self.told(self.acting(next_seen))
            else:  # never by the fractions of the target: where these are large by chance, the riskier action is chosen
                next_choosing = self.told(self.target(next_seen)) if is_implicit else next_target
            target = td_target(next_choosing, next_target, batch, self.config)
        told = self.told(self.q(seen_at(batch.observation, extras.get(FRACTIONS))))
        loss, surprise, metrics = self.loss(told, target, batch, self.config)
        return self.q.gradient(loss), surprise, metrics

    def loss(self, *parts: Any) -> tuple[Tensor, Tensor, Metrics]:
        """A class of your own may have another."""
        return td_loss(*parts)

    def state_dict(self) -> dict[str, Any]:
        return {"producer": self.producer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.producer.load_state_dict(state["producer"])
