"""The networks of an actor-critic: their configs, a module with all of their weights, and the policy that plays."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict
from torch import Tensor, nn

from palestra.algorithms.parts.action_heads import AnyHead
from palestra.algorithms.parts.advantages import REMEMBERED, Experience
from palestra.algorithms.parts.distributions import Distribution
from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, InBranch, PositiveFloat
from palestra.games.policy import Decision, Memory, Observes, told_probabilities
from palestra.games.spaces import RoleSpaces, Space
from palestra.nets import AnyNetConfig, UserNets, make_net, usual_net
from palestra.nets.recurrent import NamedNet
from palestra.nets.user_nets import RecurrentNet
from palestra.nets.weights import output_weights
from palestra.players.player import Player
from palestra.randomness import base_key, seeded_global_state

# Letters: B rows of any batch; A numbers that a policy puts out; T decisions of each of W sequences.

# ---- what a run must say -----------------------------------------------------------------------------


class SeparateConfig(Config):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, AnyNetConfig]

    name: Literal["separate"]
    """a network for each head, by the head's name"""

    @property
    def nets(self) -> dict[str, Any]:
        """The config of each network, by the name of its head."""
        return dict(self.__pydantic_extra__)


class SharedConfig(Config):
    name: Literal["shared"]
    """one network, whose outputs are those of all heads, one after the other"""
    net: AnyNetConfig
    """the network"""

    @property
    def nets(self) -> dict[str, Any]:
        """The config of the network."""
        return {"net": self.net}


AnyBody = Annotated[SharedConfig | SeparateConfig, ByName(), InBranch.FIXED]


def usual_body(
    heads: Sequence[str], spaces: RoleSpaces, said: Mapping[str, Any], critics: Collection[str] = ()
) -> dict[str, Any]:
    """Return what a first file says of a body: one network for images, else one for each head.

    said: what the file says of the algorithm. critics: the heads that observe the action, too.
    """
    if not critics and any(space.is_image for space in spaces.observation.values()):
        return {"name": "shared"}
    nets = {head: usual_net(spaces.with_action() if head in critics else spaces) for head in heads}
    if VALUE in heads and said.get("centralized_critic") is True:
        nets[VALUE] = usual_net(spaces.with_entries(spaces.critic))
    return {"name": "separate", **nets}


def head_errors(body: SeparateConfig | SharedConfig, heads: Collection[str]) -> list[ConfigErrorItem]:
    """Return errors, at paths below the algorithm's config, of separate networks that are not those of the heads."""
    if isinstance(body, SharedConfig):
        return []
    known = f"unknown key; the heads of this algorithm are {', '.join(heads)}"
    faults = {key: known for key in body.nets if key not in heads}
    missing = {head: f"expected a network for the head {head!r}, but the key is missing" for head in heads}
    faults |= {head: message for head, message in missing.items() if head not in body.nets}
    return [ConfigErrorItem(f"body.{key}", message) for key, message in faults.items()]


def check_critic(body: SeparateConfig | SharedConfig, centralized: bool) -> None:
    """Raise ConfigError, at a path below the algorithm's config, for a centralized critic in a shared network."""
    if centralized and isinstance(body, SharedConfig):
        why = "centralized_critic is true: with a shared network the policy would observe what critics alone may"
        raise ConfigError.at("body.name", f"expected 'separate' ({why}), got 'shared'")


class StockConfig(Config):
    name: Literal["stock"]
    """torch's own initial weights"""


class OrthogonalConfig(Config):
    usual: ClassVar = {"hidden_gain": 1.41421356, "policy_gain": 0.01, "value_gain": 1.0}

    name: Literal["orthogonal"]
    """orthogonal weights (Saxe et al. 2014), biases 0"""
    hidden_gain: PositiveFloat
    """scale of hidden layers; sqrt(2) is common"""
    policy_gain: PositiveFloat
    """scale of the policy's outputs; 0.01 makes all actions equally likely at the start"""
    value_gain: PositiveFloat
    """scale of the value's output, and of those of all other heads but the policy"""


InitializationConfig = Annotated[StockConfig | OrthogonalConfig, ByName(), InBranch.FIXED]


# ---- what the critic observes --------------------------------------------------------------------------


def spaces_of_critic(centralized: bool, player: Player) -> dict[str, Space]:
    """Return the spaces that the value's network observes.

    They are those of the player's observation (IPPO, de Witt et al. 2020), and of what the game shows critics alone if
    the critic is centralized (MAPPO, Yu et al. 2022). Raises ConfigError where the game shows critics nothing, or not
    the same in all roles of the player.
    """
    if not centralized:
        return player.spaces
    shown = [dict(player.critic_spaces.get(role, {})) for role in player.roles]
    other = f"something else than those of {player.roles[0]!r}, in which {player.name!r} also sits"
    for role, spaces in zip(player.roles, shown, strict=True):
        if not spaces or spaces != shown[0]:
            message = f"expected false (the game shows critics of {role!r} {other if spaces else 'nothing'}), got true"
            raise ConfigError.at(f"players.{player.name}.algorithm.centralized_critic", message)
    return player.spaces | shown[0]


# ---- all weights ---------------------------------------------------------------------------------------


POLICY, VALUE = "policy", "value"


class HeadedNet(nn.Module):
    """All weights of a player: those of its networks, and those with which its actions are drawn.

    heads: how many outputs each has, by name. A separate network is the attribute named as its head. A shared one is
    the attribute named as the first head; it puts out the heads' outputs one after the other. draws: draws actions from
    the outputs of the head `policy`, if the loss has it. others: by head, the entries that its network observes, if
    these are not the player's own.
    """

    def __init__(
        self,
        body: SeparateConfig | SharedConfig,
        initialization: StockConfig | OrthogonalConfig,
        heads: Mapping[str, int],
        draws: AnyHead,
        player: Player,
        others: Mapping[str, dict[str, Space]],
    ) -> None:
        super().__init__()
        self.heads, self.others, stream = dict(heads), dict(others), f"player/{player.name}/net"
        self.is_shared, self.entries = isinstance(body, SharedConfig), tuple(player.spaces)
        if isinstance(body, SharedConfig):
            key = base_key(player.seed, f"{stream}/both")
            self.add_module(next(iter(heads)), make_net(body.net, player.spaces, sum(heads.values()), key))
        else:
            for head, num in heads.items():
                key = base_key(player.seed, f"{stream}/{head}")
                self.add_module(head, make_net(body.nets[head], others.get(head, player.spaces), num, key))
        self.head = draws
        if isinstance(initialization, OrthogonalConfig):
            self._initialize(body, initialization, base_key(player.seed, f"{stream}/orthogonal"))

    def output_weights(self) -> list[str]:
        """Name the weights of each network's last layer, and the head's own (palestra.nets.weights.output_weights)."""
        return [f"{place}.{name}" for place, part in self.named_children() for name in output_weights(part)]

    def net_of(self, head: str) -> nn.Module:
        """Return the network that puts out the head's outputs, alone or among others."""
        return self.get_submodule(next(iter(self.heads)) if self.is_shared else head)

    def split(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs of a shared network (M, ...) by head."""
        return dict(zip(self.heads, outputs.split(list(self.heads.values()), dim=1), strict=True))

    def forward(self, observation: dict[str, Tensor], memory: Memory, episode_start: Tensor) -> dict[str, Tensor]:
        """Return the outputs of every head along sequences, such as those of an Experience: by name (M, K)."""
        if self.is_shared:
            first = next(iter(self.heads))
            return self.split(NamedNet(first, self.net_of(first)).unroll(observation, memory, episode_start))
        own = {name: observation[name] for name in self.entries}
        return {
            head: NamedNet(head, self.net_of(head)).unroll(
                observation if head in self.others else own, memory, episode_start
            )
            for head in self.heads
        }

    def distribution_and_value(self, batch: Experience) -> tuple[Distribution, Tensor]:
        """Return the policy's distribution and the values, (M,), at the observations of a batch."""
        outputs = self(batch.observation, batch.memory, batch.episode_start)
        assert self.head is not None
        return self.head.distribution(outputs[POLICY], batch.legal), outputs[VALUE][:, 0]

    def refuse_memories(self, why: str, *allowed: str) -> None:
        """Raise ConfigError, at a path below the algorithm's config, for a recurrent network of other heads."""
        for head in self.heads:
            if head not in allowed and isinstance(self.net_of(head), RecurrentNet):
                message = f"expected a network without a memory{why}, got a recurrent one"
                raise ConfigError.at(f"body.{'net' if self.is_shared else head}", message)

    def _initialize(self, body: SeparateConfig | SharedConfig, config: OrthogonalConfig, key: int) -> None:
        """Initialize the networks orthogonally, except those that a program has given, which keep their weights."""
        gains = {head: config.policy_gain if head == POLICY else config.value_gain for head in self.heads}
        if isinstance(body, SeparateConfig):
            for number, head in enumerate(self.heads):
                if not isinstance(body.nets[head], UserNets):
                    initialize_orthogonal(self.net_of(head), config.hidden_gain, gains[head], key + number)
        elif not isinstance(body.net, UserNets):
            net, (first, *others) = self.net_of(next(iter(self.heads))), self.heads
            initialize_orthogonal(net, config.hidden_gain, gains[first], key)
            *_, last = (module for module in net.modules() if isinstance(module, nn.Linear))
            rows = self.split(last.weight.data.T)
            for head in others:
                rows[head] *= gains[head] / gains[first]


# ---- how it plays --------------------------------------------------------------------------------------

Draw = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


class ActorCriticPolicy:
    """Draws actions from the policy, or plays the most likely ones.

    policy: the network that acts. value: the value's network, if it has a memory and must see every step of a roll-out,
    else None. gives_value: whether the last output of the policy's network is the value. draws: whether actions are
    drawn. kernel: draws the same actions faster than the head. entries: those of the observation that the policy's
    network gets, if the observation has others for a centralized critic, else None.
    """

    def __init__(
        self,
        policy: NamedNet,
        value: NamedNet | None,
        head: AnyHead,
        gives_value: bool,
        draws: bool,
        kernel: Draw | None,
        entries: tuple[str, ...] | None = None,
    ) -> None:
        self.entries = entries
        self.observes: Observes = "observation" if entries is None else "with_critics"
        self.policy, self.value, self.head, self.gives_value, self.draws = policy, value, head, gives_value, draws
        self.draw: Draw = head.draw if kernel is None else kernel
        self.recurrent = [part for part in (policy, value) if part is not None and part.remembers]

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        if not memory:
            for part in self.recurrent:
                memory = memory | part.initial_memory(len(legal), legal.device)
        extras = {REMEMBERED + name: entry for name, entry in memory.items()}
        own = view if self.entries is None else {name: view[name] for name in self.entries}
        outputs, memory_after = self.policy.step(own, memory)
        if self.gives_value:
            extras["value"] = outputs[:, -1]
        elif self.value is not None:
            value, of_value = self.value.step(view, memory)
            extras["value"] = value[:, 0]
            memory_after |= of_value
        if outputs.shape[1] > self.head.num_outputs:
            outputs = outputs[:, : self.head.num_outputs].contiguous()
        if not self.draws:
            return Decision(self.head.mode(outputs, legal), {}, memory_after)
        action, drawn = self.draw(outputs, legal, keys)
        return Decision(action, extras | drawn, memory_after)

    def probabilities(self, view: Mapping[str, Tensor], legal: Tensor) -> Tensor | None:
        """Return the probabilities of actions that it draws, at the start of a game: (B, flags); None if it draws none.

        None also for vectors of numbers.
        """
        if not self.draws:
            return None
        outputs, _ = self.policy.step(view, self.policy.initial_memory(len(legal), legal.device))
        return told_probabilities(self.head, outputs[:, : self.head.num_outputs], legal)


def initialize_orthogonal(net: nn.Module, hidden_gain: float, output_gain: float, key: int) -> None:
    """Draw orthogonal weights for every linear and convolutional layer (Saxe et al. 2014), and set biases to zero.

    The linear layer that was registered last gives the outputs: its weights are scaled by `output_gain`, those of all
    others by `hidden_gain`. Other weights (normalisations, recurrent cells) stay as they are. All numbers come from
    `key`; torch's global state does not change.
    """
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    output = [layer for layer in layers if isinstance(layer, nn.Linear)][-1]
    with seeded_global_state(key):
        for layer in layers:
            nn.init.orthogonal_(layer.weight, output_gain if layer is output else hidden_gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
