"""Networks of an actor-critic: what a config says of them, the heads that draw actions, all weights in one module, and
the policy that plays with them."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.parts.advantages import REMEMBERED, Experience
from palestra.algorithms.parts.distributions import Categorical, ClippedGaussian, Distribution, SquashedGaussian
from palestra.config import Config, ConfigError, ConfigErrorItem, PositiveFloat
from palestra.games.policy import Decision, Memory, Observes
from palestra.games.spaces import Box, Discrete, MultiDiscrete, Space
from palestra.nets import AnyNetConfig, UserNets, make_net
from palestra.nets.initialisation import initialize_orthogonal
from palestra.nets.recurrent import Part
from palestra.nets.weights import output_weights
from palestra.players.player import Player
from palestra.randomness import base_key, random_normals

# Letters: B rows of any batch; A numbers that a policy puts out; T decisions of each of W sequences.

# ---- what a run must say -----------------------------------------------------------------------------


class SeparateConfig(Config):
    name: Literal["separate"]
    """a network for the policy and one for the value"""
    policy: AnyNetConfig
    """the policy's network"""
    value: AnyNetConfig
    """the value's network"""


class SharedConfig(Config):
    name: Literal["shared"]
    """one network whose last output is the value"""
    net: AnyNetConfig
    """the network"""


class StockConfig(Config):
    name: Literal["stock"]
    """torch's own initial weights"""


class OrthogonalConfig(Config):
    name: Literal["orthogonal"]
    """orthogonal weights (Saxe et al. 2014), biases 0"""
    hidden_gain: PositiveFloat
    """scale of hidden layers; sqrt(2) is common"""
    policy_gain: PositiveFloat
    """scale of the policy's outputs; 0.01 makes all actions equally likely at the start"""
    value_gain: PositiveFloat
    """scale of the value's output"""


class ClippedGaussianConfig(Config):
    name: Literal["clipped_gaussian"]
    """normal numbers, clipped to their bounds on their way into the game; log-probabilities are those before"""
    initial_log_std: float
    """logarithm of the standard deviation at the start; it is learned, the same in every state"""


class SquashedGaussianConfig(Config):
    name: Literal["squashed_gaussian"]
    """the tanh of normal numbers, scaled to their bounds"""
    initial_log_std: float
    """logarithm of the standard deviation before the tanh at the start; it is learned, the same in every state"""


BoxActionsConfig = ClippedGaussianConfig | SquashedGaussianConfig

OWN_WEIGHTS = ["log_std"]  # of heads, one or the other
SAMPLED = "sampled_action"  # among the extras of a decision: what the policy drew, where the action is not just that

# ---- heads ---------------------------------------------------------------------------------------------


class DiscreteHead(nn.Module):
    """Draws discrete and multi-discrete actions; the policy puts out logits."""

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.num_outputs = space.num_flags
        is_single = isinstance(space, Discrete)
        self.family = Categorical((space.num,) if isinstance(space, Discrete) else space.nums, is_single)

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions, and the extras that learning from them needs."""
        action, log_prob = self.family.sample(outputs, legal, keys)
        return action, {"log_prob": log_prob}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """The most likely actions."""
        return self.family.mode(outputs, legal)

    def distribution(self, outputs: Tensor, legal: Tensor) -> Distribution:
        """That of the actions at some observations, by what the policy puts out there."""
        return self.family.distribution(outputs, legal)

    def output_weights(self) -> list[str]:
        """Those that heads have besides what a network puts out."""
        return OWN_WEIGHTS

    def probabilities(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Those of all actions, of several choices one after the other: (B, A)."""
        return torch.cat(self.family.distribution(outputs, legal).log_probs, dim=1).exp()


class BoxHead(nn.Module):
    """Draws vectors of numbers; the policy puts out means."""

    def __init__(self, space: Box, config: BoxActionsConfig, device: torch.device) -> None:
        super().__init__()
        self.num_outputs = len(space.low)
        self.log_std = nn.Parameter(torch.full((self.num_outputs,), float(config.initial_log_std)))
        bounds = torch.tensor(space.low, device=device), torch.tensor(space.high, device=device)
        is_clipped = isinstance(config, ClippedGaussianConfig)
        self.family = ClippedGaussian(*bounds) if is_clipped else SquashedGaussian.within(*bounds)

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions, and the extras that learning from them needs."""
        noise = random_normals(keys, self.num_outputs)
        sampled, log_prob = self.family.draw(outputs, self.log_std.detach(), noise)
        return self.family.action(sampled), {"log_prob": log_prob, SAMPLED: sampled}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """The actions of the means: the likeliest ones but for the tanh, which moves the mode."""
        return self.family.action(outputs)

    def distribution(self, outputs: Tensor, legal: Tensor) -> Distribution:
        """That of the values before they are clipped or squashed, by what the policy puts out at some observations."""
        return self.family.distribution(outputs, self.log_std)

    def output_weights(self) -> list[str]:
        """Those that heads have besides what a network puts out."""
        return OWN_WEIGHTS


def make_head(config: BoxActionsConfig | None, player: Player) -> DiscreteHead | BoxHead:
    """What draws the player's actions. Raises ConfigError where `box_actions` does not fit them."""
    space, path = player.action_space, f"players.{player.name}.algorithm.box_actions"
    if not isinstance(space, Box):
        if config is not None:
            message = f"expected null (the actions are {space}, not a Box), got {config.name}"
            raise ConfigError([ConfigErrorItem(path, message)])
        return DiscreteHead(space)
    if config is None:
        message = f"expected clipped_gaussian or squashed_gaussian (the actions are {space}), got null"
        raise ConfigError([ConfigErrorItem(path, message)])
    is_bounded = all(map(math.isfinite, (*space.low, *space.high)))
    if isinstance(config, SquashedGaussianConfig) and not is_bounded:
        message = f"expected clipped_gaussian ({space} has no bounds), got {config.name}"
        raise ConfigError([ConfigErrorItem(f"{path}.name", message)])
    return BoxHead(space, config, player.device)


# ---- what the critic observes --------------------------------------------------------------------------


def spaces_of_critic(centralized: bool, player: Player) -> dict[str, Space]:
    """What the value's network observes: what the player observes (IPPO, de Witt et al. 2020), or also what the game
    shows critics alone (MAPPO, Yu et al. 2022). Raises ConfigError where the game shows critics nothing, or not the
    same in all roles of the player."""
    if not centralized:
        return player.spaces
    shown = [dict(player.critic_spaces.get(role, {})) for role in player.roles]
    for role, spaces in zip(player.roles, shown, strict=True):
        if spaces and spaces == shown[0]:
            continue
        message = f"expected false (the game shows critics of {role!r} nothing), got true"
        if spaces:
            others = f"{role!r} something else than those of {player.roles[0]!r}, in which {player.name!r} also sits"
            message = f"expected false (the game shows critics of {others}), got true"
        path = f"players.{player.name}.algorithm.centralized_critic"
        raise ConfigError([ConfigErrorItem(path, message)])
    return player.spaces | shown[0]


# ---- all weights ---------------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """All weights of a player: of its networks, and those that the head learns. The last output of a shared network is
    the value.

    critic_spaces: what the value's network observes, `spaces_of_critic`. The policy's gets the player's own entries
    alone.
    """

    def __init__(
        self,
        body: SeparateConfig | SharedConfig,
        initialization: StockConfig | OrthogonalConfig,
        head: DiscreteHead | BoxHead,
        player: Player,
        critic_spaces: dict[str, Space],
    ) -> None:
        super().__init__()
        num, stream = head.num_outputs, f"player/{player.name}/net"
        self.entries = tuple(player.spaces)
        self.value: nn.Module | None = None
        match body:
            case SeparateConfig(policy=policy, value=value):
                self.policy = make_net(policy, player.spaces, num, base_key(player.seed, f"{stream}/policy"))
                self.value = make_net(value, critic_spaces, 1, base_key(player.seed, f"{stream}/value"))
            case SharedConfig(net=net):
                self.policy = make_net(net, player.spaces, num + 1, base_key(player.seed, f"{stream}/both"))
        self.head = head
        if isinstance(initialization, OrthogonalConfig):
            self._initialize(body, initialization, base_key(player.seed, f"{stream}/orthogonal"))

    def forward(self, observation: dict[str, Tensor], memory: Memory, episode_start: Tensor) -> tuple[Tensor, Tensor]:
        """What the policy puts out (B, A), and values (B,), of the sequences of an Experience."""
        own = {name: observation[name] for name in self.entries}
        outputs = Part("policy", self.policy).unroll(own, memory, episode_start)
        if self.value is None:
            return outputs[:, :-1], outputs[:, -1]
        return outputs, Part("value", self.value).unroll(observation, memory, episode_start)[:, 0]

    def distribution_and_value(self, batch: Experience) -> tuple[Distribution, Tensor]:
        """The policy's distribution and the values, (M,), at the observations of a batch."""
        outputs, value = self(batch.observation, batch.memory, batch.episode_start)
        return self.head.distribution(outputs, batch.legal), value

    def output_weights(self) -> list[str]:
        """Of the last layer of each network, and the head's own (palestra.nets.weights.output_weights)."""
        return [f"{place}.{name}" for place, part in self.named_children() for name in output_weights(part)]

    def _initialize(self, body: SeparateConfig | SharedConfig, config: OrthogonalConfig, key: int) -> None:
        """Networks that the user has given keep their weights."""
        if isinstance(body, SeparateConfig):
            assert self.value is not None
            if not isinstance(body.policy, UserNets):
                initialize_orthogonal(self.policy, config.hidden_gain, config.policy_gain, key)
            if not isinstance(body.value, UserNets):
                initialize_orthogonal(self.value, config.hidden_gain, config.value_gain, key + 1)
        elif not isinstance(body.net, UserNets):
            initialize_orthogonal(self.policy, config.hidden_gain, config.policy_gain, key)
            *_, last = (module for module in self.policy.modules() if isinstance(module, nn.Linear))
            last.weight.data[-1] *= config.value_gain / config.policy_gain


# ---- how it plays --------------------------------------------------------------------------------------

Draw = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


class ActorCriticPolicy:
    """Draws actions from the policy, or plays the most likely ones.

    policy: the network that acts. value: the value's, where it must see every step of a roll-out because it has a
    memory, else None. is_shared: the policy's last output is the value. draws: whether it draws. kernel: what draws the
    same actions faster than the head. entries: those of the observation that the policy gets, where what it is shown is
    for a centralized critic, too; else None.
    """

    def __init__(
        self,
        policy: Part,
        value: Part | None,
        head: DiscreteHead | BoxHead,
        is_shared: bool,
        draws: bool,
        kernel: Draw | None,
        entries: tuple[str, ...] | None = None,
    ) -> None:
        self.entries = entries
        self.observes: Observes = "observation" if entries is None else "with_critics"
        self.policy, self.value, self.head, self.is_shared, self.draws = policy, value, head, is_shared, draws
        self.draw: Draw = head.draw if kernel is None else kernel
        self.recurrent = [part for part in (policy, value) if part is not None and part.remembers]

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        if not memory:
            for part in self.recurrent:
                memory = memory | part.initial_memory(len(legal), legal.device)
        extras = {REMEMBERED + name: entry for name, entry in memory.items()}
        own = view if self.entries is None else {name: view[name] for name in self.entries}
        outputs, memory_after = self.policy.step(own, memory)
        if self.is_shared:
            extras["value"] = outputs[:, -1]
            outputs = outputs[:, :-1].contiguous()
        elif self.value is not None:
            value, of_value = self.value.step(view, memory)
            extras["value"] = value[:, 0]
            memory_after |= of_value
        if not self.draws:
            return Decision(self.head.mode(outputs, legal), {}, memory_after)
        action, drawn = self.draw(outputs, legal, keys)
        return Decision(action, extras | drawn, memory_after)
