"""PPO's networks: what a config says of them, the heads that draw actions, and all weights in one module."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.parts.advantages import Experience
from palestra.algorithms.parts.distributions import Categorical, ClippedGaussian, SquashedGaussian
from palestra.config import Config, ConfigError, ConfigErrorItem, PositiveFloat
from palestra.games.policy import Memory
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.nets import AnyNetConfig, GivenNets, make_net
from palestra.nets.initialisation import initialize_orthogonal
from palestra.nets.recurrent import Part
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
    """as torch's layers begin"""


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

# ---- heads ---------------------------------------------------------------------------------------------


class DiscreteHead(nn.Module):
    """Draws discrete and multi-discrete actions; the policy puts out logits."""

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.num_outputs = space.num_flags
        is_single = isinstance(space, Discrete)
        self.distribution = Categorical((space.num,) if isinstance(space, Discrete) else space.nums, is_single)

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions, and what must be remembered of them."""
        action, log_prob = self.distribution.sample(outputs, legal, keys)
        return action, {"legal": legal, "log_prob": log_prob}

    def draw_by_mlp(self, network: Any, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`draw` by what a plain mlp puts out, on a CPU. network: `QuickMLP.arguments`."""
        action, log_prob = self.distribution.sample_by_mlp(network, legal, keys)
        return action, {"legal": legal, "log_prob": log_prob}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """The likeliest actions."""
        return self.distribution.mode(outputs, legal)

    def log_prob_and_entropy(self, outputs: Tensor, batch: Experience) -> tuple[Tensor, Tensor]:
        return self.distribution.log_prob_and_entropy(outputs, batch.legal, batch.choice)


class BoxHead(nn.Module):
    """Draws vectors of numbers; the policy puts out means."""

    def __init__(self, space: Box, config: BoxActionsConfig, device: torch.device) -> None:
        super().__init__()
        self.num_outputs = len(space.low)
        self.log_std = nn.Parameter(torch.full((self.num_outputs,), float(config.initial_log_std)))
        bounds = torch.tensor(space.low, device=device), torch.tensor(space.high, device=device)
        is_clipped = isinstance(config, ClippedGaussianConfig)
        self.distribution = ClippedGaussian(*bounds) if is_clipped else SquashedGaussian.within(*bounds)

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions, and what must be remembered of them."""
        noise = random_normals(keys, self.num_outputs)
        choice, log_prob = self.distribution.draw(outputs, self.log_std.detach(), noise)
        return self.distribution.action(choice), {"legal": legal, "log_prob": log_prob, "choice": choice}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """The likeliest actions, but for the bend of a tanh."""
        return self.distribution.action(outputs)

    def log_prob_and_entropy(self, outputs: Tensor, batch: Experience) -> tuple[Tensor, Tensor]:
        log_prob = self.distribution.log_prob(outputs, self.log_std, batch.choice)
        return log_prob, self.distribution.entropy(outputs, self.log_std).expand(len(outputs))


def make_head(config: BoxActionsConfig | None, player: Player) -> DiscreteHead | BoxHead:
    """What draws the player's actions. Raises ConfigError where `box_actions` does not fit them."""
    space, path = player.action_space, f"players.{player.name}.algorithm.box_actions"
    if not isinstance(space, Box):
        if config is not None:
            raise ConfigError([ConfigErrorItem(path, f"the actions are {space}, no Box; expected null")])
        return DiscreteHead(space)
    if config is None:
        message = f"null stands there, but the actions are {space}; expected clipped_gaussian or squashed_gaussian"
        raise ConfigError([ConfigErrorItem(path, message)])
    is_bounded = all(map(math.isfinite, (*space.low, *space.high)))
    if isinstance(config, SquashedGaussianConfig) and not is_bounded:
        raise ConfigError([ConfigErrorItem(f"{path}.name", f"{space} has no bounds; expected clipped_gaussian")])
    return BoxHead(space, config, player.device)


# ---- all weights ---------------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """All weights of a player: of its networks, and those that the head learns. The last output of a shared network is
    the value."""

    def __init__(
        self,
        body: SeparateConfig | SharedConfig,
        initialization: StockConfig | OrthogonalConfig,
        head: DiscreteHead | BoxHead,
        player: Player,
    ) -> None:
        super().__init__()
        num, stream = head.num_outputs, f"player/{player.name}/net"
        self.value: nn.Module | None = None
        match body:
            case SeparateConfig(policy=policy, value=value):
                self.policy = make_net(policy, player.spaces, num, base_key(player.seed, f"{stream}/policy"))
                self.value = make_net(value, player.spaces, 1, base_key(player.seed, f"{stream}/value"))
            case SharedConfig(net=net):
                self.policy = make_net(net, player.spaces, num + 1, base_key(player.seed, f"{stream}/both"))
        self.head = head
        if isinstance(initialization, OrthogonalConfig):
            self._initialize(body, initialization, base_key(player.seed, f"{stream}/orthogonal"))

    def forward(self, observation: dict[str, Tensor], memory: Memory, fresh: Tensor) -> tuple[Tensor, Tensor]:
        """What the policy puts out (B, A), and values (B,), of the sequences of an Experience."""
        outputs = Part("policy", self.policy).unroll(observation, memory, fresh)
        if self.value is None:
            return outputs[:, :-1], outputs[:, -1]
        return outputs, Part("value", self.value).unroll(observation, memory, fresh)[:, 0]

    def _initialize(self, body: SeparateConfig | SharedConfig, config: OrthogonalConfig, key: int) -> None:
        """Networks that were given begin as they are."""
        if isinstance(body, SeparateConfig):
            assert self.value is not None
            if not isinstance(body.policy, GivenNets):
                initialize_orthogonal(self.policy, config.hidden_gain, config.policy_gain, key)
            if not isinstance(body.value, GivenNets):
                initialize_orthogonal(self.value, config.hidden_gain, config.value_gain, key + 1)
        elif not isinstance(body.net, GivenNets):
            initialize_orthogonal(self.policy, config.hidden_gain, config.policy_gain, key)
            *_, last = (module for module in self.policy.modules() if isinstance(module, nn.Linear))
            last.weight.data[-1] *= config.value_gain / config.policy_gain
