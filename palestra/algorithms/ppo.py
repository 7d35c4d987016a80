"""PPO: proximal policy optimisation (Schulman et al. 2017) with generalized advantages (Schulman et al. 2016), in the
details of Huang et al. 2022.

Discrete, multi-discrete and box actions, legal-action masks, several roles. Truncated games are bootstrapped from what
their player would have decided on next. To run: palestra train configs/ppo-cartpole.yml
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any, Literal, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn

from palestra.algorithms.ppo_by_hand import ByHand, Rows, Terms, one_thread
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
)
from palestra.distributions import Categorical, ClippedGaussian, SquashedGaussian
from palestra.games.fused import Decision, Memory, Sees, Transitions
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.nets import NetConfig, make_net
from palestra.nets.acting import acting_twin
from palestra.nets.initialisation import initialize_orthogonal
from palestra.nets.learning import learning_twin
from palestra.nets.weights import compiled, evaluation_twin, flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig
from palestra.player import Algorithm, AlgorithmConfig, Deterministic, Metrics, Player, Turn
from palestra.randomness import base_key, fold, random_normals, random_permutation
from palestra.schedules import ScheduleConfig

# Letters: M rows of a roll-out; T decisions of each of W chains; B rows of any batch; A numbers that a policy puts out.

# ---- what a run must say -----------------------------------------------------------------------------


class ClipConfig(Config):
    name: Literal["clip"]
    """no gain from probability ratios beyond 1 +- epsilon (Schulman et al. 2017, eq. 7)"""
    epsilon: ScheduleConfig
    """how far ratios may pay, a function of the player's opt steps"""


class KLPenaltyConfig(Config):
    name: Literal["kl_penalty"]
    """pay for the KL divergence from the policy that gathered the experience (Schulman et al. 2017, eq. 8)"""
    coefficient: PositiveFloat
    """price of the divergence at the start"""
    target: PositiveFloat | None
    """the price is halved where a turn's divergence falls below target / 1.5, doubled where it exceeds 1.5 * target;
    null: never"""


class SeparateConfig(Config):
    name: Literal["separate"]
    """a network for the policy and one for the value"""
    policy: NetConfig
    """the policy's network"""
    value: NetConfig
    """the value's network"""


class SharedConfig(Config):
    name: Literal["shared"]
    """one network whose last output is the value"""
    net: NetConfig
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


class PPOConfig(AlgorithmConfig):
    """Every key of `algorithm: {name: ppo}`. No defaults: `palestra config ppo cartpole` prints a complete file."""

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
    """opt steps per pass, each on its share of the roll-out"""
    objective: Annotated[ClipConfig | KLPenaltyConfig, ByName()]
    """what keeps the policy near the one that gathered the experience"""
    value_clip: PositiveFloat | None
    """values may move so far from those at the roll-out before they stop paying; null: freely"""
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
    body: Annotated[SeparateConfig | SharedConfig, ByName()]
    """the networks"""
    initialization: Annotated[StockConfig | OrthogonalConfig, ByName()]
    """how the networks begin"""
    box_actions: Annotated[ClippedGaussianConfig | SquashedGaussianConfig, ByName()] | None
    """how actions that are vectors of numbers are drawn; null: actions are discrete"""
    evaluation: Literal["deterministic", "sampled"]
    """in evaluations play the most likely action, or draw one"""
    optimizer: OptimizerConfig
    """how gradients become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""

    def build(self, player: Player) -> "PPO":
        return PPO(self, player)


# ---- advantages ----------------------------------------------------------------------------------------


class Chains(NamedTuple):
    """Decisions that follow each other, W chains of T, all (T, W). next_value: of the true next observation; looked at
    only where a game was truncated, and at the last valid row of a chain."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


def generalized_advantages(chains: Chains, gamma: float, gae_lambda: float) -> Tensor:
    """GAE (Schulman et al. 2016, eq. 16): float32 (T, W).

    Nothing follows a terminated row, and the value of its next observation alone a truncated one: no advantage crosses
    a reset. Invalid rows are passed over, and have advantage 0.
    """
    if chains.valid.device.type == "cpu":
        arrays: Any = (column.numpy() for column in chains)
        return torch.from_numpy(_loop_over_rows(Chains(*arrays), gamma, gae_lambda))
    return _loop_over_steps(chains, gamma, gae_lambda)


def _loop_over_steps(chains: Chains, gamma: float, gae_lambda: float) -> Tensor:
    advantages = torch.zeros_like(chains.value)
    ahead, later = torch.zeros_like(chains.value[0]), torch.zeros_like(chains.value[0])
    is_last = torch.ones_like(chains.valid[0])
    for t in reversed(range(len(advantages))):
        reward, value, next_value, terminated, truncated, valid = (column[t] for column in chains)
        following = torch.where(truncated | is_last, next_value, later + gae_lambda * ahead)
        advantage = reward - value + gamma * torch.where(terminated, 0.0, following)
        advantages[t] = torch.where(valid, advantage, 0.0)
        ahead, later = torch.where(valid, advantage, ahead), torch.where(valid, value, later)
        is_last = is_last & ~valid
    return advantages


@numba.njit(cache=True, nogil=True)
def _loop_over_rows(chains: Any, gamma: float, gae_lambda: float) -> np.ndarray:
    """The same for a CPU, of a tuple of arrays."""
    num_steps, num_chains = chains.reward.shape
    advantages = np.zeros((num_steps, num_chains), dtype=np.float32)
    ahead, later = np.zeros(num_chains, dtype=np.float32), np.zeros(num_chains, dtype=np.float32)
    is_last = np.ones(num_chains, dtype=np.bool_)
    for t in range(num_steps - 1, -1, -1):
        for w in range(num_chains):
            if chains.valid[t, w]:
                advantage = chains.reward[t, w] - chains.value[t, w]
                if not chains.terminated[t, w]:
                    is_cut = chains.truncated[t, w] or is_last[w]
                    advantage += gamma * (chains.next_value[t, w] if is_cut else later[w] + gae_lambda * ahead[w])
                advantages[t, w] = advantage
                ahead[w], later[w], is_last[w] = advantage, chains.value[t, w], False
    return advantages


# ---- what it learns ------------------------------------------------------------------------------------


class Experience(NamedTuple):
    """Rows of a roll-out, made ready for the passes over it. All tensors (M, ...).

    choice: what the policy drew, before a box clipped or squashed it. log_prob, value: at the roll-out. goal: what the
    value should have been. weight: of the row in a mean, 0.0 where it does not count.
    """

    observation: dict[str, Tensor]
    legal: Tensor
    choice: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    goal: Tensor
    weight: Tensor

    def rows(self, index: Tensor) -> "Experience":
        """Some rows, in the order of `index`."""
        observation, *columns = self
        return Experience(
            {name: entry.index_select(0, index) for name, entry in observation.items()},
            *(column.index_select(0, index) for column in columns),
        )


class Pace(NamedTuple):
    """The numbers of an opt step that change while a run goes on, as tensors without axes."""

    entropy_coefficient: Tensor
    bound: Tensor  # epsilon of the clipped objective, or the price of divergence


def scaled(batch: Experience, config: PPOConfig) -> Experience:
    """A minibatch whose weights sum to 1, with advantages of mean 0 and standard deviation 1 where the config says
    so."""
    weight, advantage = batch.weight / batch.weight.sum().clamp(min=1.0), batch.advantage
    if config.normalize_advantages:
        centered = advantage - torch.dot(weight, advantage)
        advantage = centered / (torch.dot(weight, centered.square()).sqrt() + 1e-8)
    return batch._replace(weight=weight, advantage=advantage)


NUM_ROWS_COMPARED = 40
METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "value_mean")


def ppo_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Experience, pace: Pace, config: PPOConfig
) -> tuple[Tensor, Tensor]:
    """The loss, and the numbers of METRICS: sums by weight over the rows of `batch`, which may be part of a minibatch.

    log_prob, entropy, value: (M,), with the weights that are learned.
    """
    log_ratio = log_prob - batch.log_prob
    ratio = log_ratio.exp()
    kl = ratio - 1.0 - log_ratio  # of one row: never negative, its mean is unbiased (Schulman, "Approximating KL")
    if isinstance(config.objective, ClipConfig):
        held = ratio.clamp(1.0 - pace.bound, 1.0 + pace.bound)
        gain = torch.minimum(ratio * batch.advantage, held * batch.advantage)
        is_clipped = (ratio.detach() != held.detach()).to(torch.float32)
    else:
        gain = ratio * batch.advantage - pace.bound * kl
        is_clipped = torch.zeros_like(batch.weight)
    policy_loss = -torch.dot(batch.weight, gain)

    error = (value - batch.goal).square()
    if config.value_clip is not None:
        near = batch.value + (value - batch.value).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, (near - batch.goal).square())
    value_loss = torch.dot(batch.weight, error)

    mean_entropy = torch.dot(batch.weight, entropy)
    loss = policy_loss + config.value_coefficient * value_loss - pace.entropy_coefficient * mean_entropy
    with torch.no_grad():
        means = [torch.dot(batch.weight, column.detach()) for column in (kl, is_clipped, value)]
        metrics = torch.stack([loss, policy_loss, value_loss, mean_entropy, *means])
    return loss, metrics


# ---- how it plays --------------------------------------------------------------------------------------


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

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """The likeliest actions."""
        return self.distribution.mode(outputs, legal)

    def log_prob_and_entropy(self, outputs: Tensor, batch: Experience) -> tuple[Tensor, Tensor]:
        return self.distribution.log_prob_and_entropy(outputs, batch.legal, batch.choice)


class BoxHead(nn.Module):
    """Draws vectors of numbers; the policy puts out means."""

    def __init__(
        self, space: Box, config: ClippedGaussianConfig | SquashedGaussianConfig, device: torch.device
    ) -> None:
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


def make_head(config: PPOConfig, player: Player) -> DiscreteHead | BoxHead:
    """What draws the player's actions. Raises ConfigError where `box_actions` does not fit them."""
    space, path = player.action_space, f"players.{player.name}.algorithm.box_actions"
    if not isinstance(space, Box):
        if config.box_actions is not None:
            raise ConfigError([ConfigErrorItem(path, f"the actions are {space}, no Box; expected null")])
        return DiscreteHead(space)
    if config.box_actions is None:
        message = f"null stands there, but the actions are {space}; expected clipped_gaussian or squashed_gaussian"
        raise ConfigError([ConfigErrorItem(path, message)])
    is_bounded = all(map(math.isfinite, (*space.low, *space.high)))
    if isinstance(config.box_actions, SquashedGaussianConfig) and not is_bounded:
        raise ConfigError([ConfigErrorItem(f"{path}.name", f"{space} has no bounds; expected clipped_gaussian")])
    return BoxHead(space, config.box_actions, player.device)


class ActorCritic(nn.Module):
    """All weights of a player: of its networks, and those that the head learns. The last output of a shared network is
    the value."""

    def __init__(self, config: PPOConfig, player: Player) -> None:
        super().__init__()
        head = make_head(config, player)
        num, stream = head.num_outputs, f"player/{player.name}/net"
        self.value: nn.Module | None = None
        match config.body:
            case SeparateConfig(policy=policy, value=value):
                self.policy = make_net(policy, player.spaces, num, base_key(player.seed, f"{stream}/policy"))
                self.value = make_net(value, player.spaces, 1, base_key(player.seed, f"{stream}/value"))
            case SharedConfig(net=net):
                self.policy = make_net(net, player.spaces, num + 1, base_key(player.seed, f"{stream}/both"))
        self.head = head
        if isinstance(config.initialization, OrthogonalConfig):
            self._initialize(config.initialization, base_key(player.seed, f"{stream}/orthogonal"))

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What the policy puts out (B, A), and values (B,)."""
        outputs = self.policy(observation)
        if self.value is None:
            return outputs[:, :-1], outputs[:, -1]
        return outputs, self.value(observation)[:, 0]

    def _initialize(self, config: OrthogonalConfig, key: int) -> None:
        initialize_orthogonal(self.policy, config.hidden_gain, config.policy_gain, key)
        if self.value is not None:
            initialize_orthogonal(self.value, config.hidden_gain, config.value_gain, key + 1)
        else:
            *_, last = (module for module in self.policy.modules() if isinstance(module, nn.Linear))
            last.weight.data[-1] *= config.value_gain / config.policy_gain


class Acting:
    """Draws actions from the policy, or plays the likeliest ones."""

    sees: Sees = "observation"

    def __init__(
        self, net: Callable[[Mapping[str, Tensor]], Tensor], head: DiscreteHead | BoxHead, is_shared: bool, draws: bool
    ) -> None:
        self.net, self.head, self.is_shared, self.draws = net, head, is_shared, draws

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        outputs, extras = self.net(view), {}
        if self.is_shared:
            extras = {"value": outputs[:, -1]}
            outputs = outputs[:, :-1].contiguous()
        if not self.draws:
            return Decision(self.head.mode(outputs, legal), {}, memory)
        action, remembered = self.head.draw(outputs, legal, keys)
        return Decision(action, extras | remembered, memory)


# ---- how it learns ---------------------------------------------------------------------------------------


class PPO(Algorithm):
    config: PPOConfig

    def __init__(self, config: PPOConfig, player: Player) -> None:
        super().__init__(config, player)
        self.net = ActorCritic(config, player).to(player.device)
        self.weights = flatten_weights(self.net)
        self.parameters = list(self.net.parameters())  # asking a module each time costs as much as a small layer
        self.refuse_batch_norm()
        self.acting = acting_twin(self.net.policy)
        self.valuing = self.acting if self.net.value is None else acting_twin(self.net.value)
        self.gradient = torch.zeros_like(self.weights)
        self.by_hand = self.find_by_hand()
        self.gradient_fast = compiled(self.gradient_of, player.compile)
        self.optimizer = config.optimizer.build(self.weights)
        self.key = torch.tensor([base_key(player.seed, f"player/{player.name}/minibatches")], device=player.device)
        self.experience: Experience | None = None
        self.explained_variance = torch.zeros((), device=player.device)
        self.rolled_out, self.passes_left, self.passes_made = False, 0, 0
        self.kl_price = config.objective.coefficient if isinstance(config.objective, KLPenaltyConfig) else 0.0
        player.nets, player.optimizers = {"actor_critic": self.net}, {"actor_critic": self.optimizer}
        player.lr_schedule = config.learning_rate

    def policy(self, explore: bool) -> Acting:
        draws = explore or self.config.evaluation == "sampled"
        return Acting(self.acting, self.net.head, self.net.value is None, draws)

    def module(self) -> Deterministic:
        if self.config.evaluation == "sampled":
            raise NotImplementedError("this player draws its actions; to export it, `evaluation` must be deterministic")
        head = self.net.head
        return Deterministic(
            evaluation_twin(self.net.policy),
            lambda outputs, legal: head.mode(outputs[:, : head.num_outputs], legal),
            self.player.action_space.num_flags,
        )

    def learn(self, turn: Turn) -> None:
        config = self.config
        if not self.rolled_out:  # attributes, not locals, remember where we are: a resumed run goes on right here
            self.digest(turn.collect(config.rollout_length))
            self.rolled_out, self.passes_left = True, config.num_passes
            turn.safe_point()
        while self.passes_left:
            turn.before_step()
            metrics = self.make_pass()
            turn.after_step(metrics, config.num_minibatches)
        self.rolled_out = False

    def find_by_hand(self) -> ByHand | None:
        """What finds the gradient without autograd, where the networks allow it."""
        config, head = self.config, self.net.head
        parts = self.gradient.split([sum(p.numel() for p in part.parameters()) for part in self.net.children()])
        nets = [self.net.policy] if self.net.value is None else [self.net.policy, self.net.value]
        found = [learning_twin(net, part) for net, part in zip(nets, parts, strict=False)]
        twins = [twin for twin in found if twin is not None]
        if len(twins) < len(nets):
            return None
        terms = Terms(
            is_clipped=isinstance(config.objective, ClipConfig),
            bound=0.0,
            value_clip=math.inf if config.value_clip is None else config.value_clip,
            value_coefficient=config.value_coefficient,
            entropy_coefficient=0.0,
            total_weight=1.0,
            advantage_shift=0.0,
            advantage_scale=1.0,
        )
        log_std = head.log_std if isinstance(head, BoxHead) else None
        by_hand = ByHand(twins, head.distribution, log_std, parts[-1], terms, config.normalize_advantages)
        return by_hand if self.agrees(by_hand) else None

    @torch.no_grad()
    def agrees(self, by_hand: ByHand) -> bool:
        """Whether gradients by hand are those of the loss as it stands in this file, on a minibatch made up: a loss
        that was changed here is the one that is learned."""
        keys = torch.arange(NUM_ROWS_COMPARED)
        observation = {
            name: (random_normals(fold(keys, place), math.prod(space.shape)).view(-1, *space.shape)).to(space.dtype)
            for place, (name, space) in enumerate(self.player.spaces.items(), start=1)
        }
        legal = torch.ones(NUM_ROWS_COMPARED, self.player.action_space.num_flags, dtype=torch.bool)
        outputs, value = self.net(observation)
        action, drawn = self.net.head.draw(outputs.contiguous(), legal, fold(keys, 0))
        noise = random_normals(keys, 3)
        batch = Experience(
            observation=observation,
            legal=legal,
            choice=drawn.get("choice", action),
            log_prob=drawn["log_prob"] + 0.3 * noise[:, 0],  # beyond what is clipped, on both sides
            value=value + 0.3 * noise[:, 1],
            advantage=noise[:, 2],
            goal=value + noise[:, 1],
            weight=(keys % 5 > 0).float(),
        )
        with torch.enable_grad():
            wanted, _ = self.gradient_of(batch, Pace(torch.tensor(0.01), torch.tensor(0.2)))
        _, *columns = batch
        by_hand.find_gradient(observation, Rows(*(column.numpy() for column in columns)), keys, 0.01, 0.2)
        found = self.gradient.clone()
        self.gradient.zero_()
        return torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))

    def refuse_batch_norm(self) -> None:
        """It acts otherwise in play than in learning: the two would disagree on every probability."""
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.net.modules()):
            message = "batch norm does not go with PPO; expected a network without it, as with layer norm ('l')"
            raise ConfigError([ConfigErrorItem(f"players.{self.player.name}.algorithm.body", message)])

    # ---- from a roll-out to experience -----------------------------------------------------------------

    @torch.no_grad()
    def digest(self, batch: Transitions) -> None:
        """Values, advantages and goals of a roll-out: all that the passes over it need."""
        extras = batch.extras
        value = extras["value"] if "value" in extras else self.values(batch.observation)
        advantage = self.advantages(batch, value)
        goal, weight = advantage + value, batch.valid.to(torch.float32)
        self.experience = Experience(
            observation=batch.observation,
            legal=extras["legal"],
            choice=extras.get("choice", batch.action),
            log_prob=extras["log_prob"],
            value=value,
            advantage=advantage,
            goal=goal,
            weight=weight,
        )
        share = weight / weight.sum().clamp(min=1.0)
        spread = torch.dot(share, (goal - torch.dot(share, goal)).square())
        error = torch.dot(share, (advantage - torch.dot(share, advantage)).square())
        self.explained_variance = 1.0 - error / spread.clamp(min=1e-12)

    def values(self, observation: Mapping[str, Tensor]) -> Tensor:
        """float32 (rows,), with the weights that stand."""
        return self.valuing(observation)[:, -1]

    def advantages(self, batch: Transitions, value: Tensor) -> Tensor:
        """float32 (M,). The rows of one role in one world are a chain; they come round by round, in a round turn by
        turn."""
        turns, advantage = self.player.turns, torch.empty_like(value)
        rows = torch.arange(len(value), device=value.device).view(self.config.rollout_length, len(turns), -1)
        for role in self.player.roles:
            own = rows[:, [number for number, turn_of in enumerate(turns) if turn_of == role]].flatten(0, 1)  # (T, W)
            columns = (batch.reward, value, batch.terminated, batch.truncated, batch.valid)
            reward, value_of, terminated, truncated, valid = (column[own] for column in columns)
            is_last = valid & (valid.flip(0).cumsum(0).flip(0) == 1)
            next_value = self.next_values(batch.next_observation, own, valid & ~terminated & (truncated | is_last))
            chains = Chains(reward, value_of, next_value, terminated, truncated, valid)
            advantage[own] = generalized_advantages(chains, self.config.gamma, self.config.gae_lambda)
        return advantage

    def next_values(self, observation: Mapping[str, Tensor], rows: Tensor, needed: Tensor) -> Tensor:
        """The values of next observations where they are needed; elsewhere any number. rows, needed, result: (T, W)."""
        if needed.device.type != "cpu":  # a GPU would have to wait to learn where
            return self.values(observation)[rows]
        wanted = rows[needed]
        found = torch.zeros(rows.shape)
        found[needed] = self.values({name: value[wanted] for name, value in observation.items()})
        return found

    # ---- from experience to weights ----------------------------------------------------------------------

    def make_pass(self) -> Metrics:
        """One pass over the experience: an opt step per minibatch. Gives the means of their metrics."""
        assert self.experience is not None
        config, opt_steps = self.config, self.player.opt_steps
        order = random_permutation(fold(self.key, self.passes_made), len(self.experience.weight))
        with nullcontext() if self.by_hand is None else one_thread():
            steps = [
                self.opt_step(self.experience, index, opt_steps + number)
                for number, index in enumerate(order.tensor_split(config.num_minibatches))
            ]
        metrics = dict(zip((*METRICS, "grad_norm"), torch.stack(steps).mean(dim=0).unbind(), strict=True))
        self.passes_made += 1
        self.passes_left -= 1
        if config.target_kl is not None and metrics["approx_kl"] > config.target_kl:
            self.passes_left = 0
        if self.passes_left == 0:
            self.adapt_kl_price(metrics["approx_kl"])
            self.experience = None
        return {**metrics, "explained_variance": self.explained_variance}

    def opt_step(self, experience: Experience, index: Tensor, opt_steps: int) -> Tensor:
        """Learn from one minibatch, the rows `index`. Gives the numbers of METRICS, and the norm of the gradient."""
        config = self.config
        bound = config.objective.epsilon(opt_steps) if isinstance(config.objective, ClipConfig) else self.kl_price
        entropy_coefficient = config.entropy_coefficient(opt_steps)
        if self.by_hand is None:
            pace = Pace(*torch.tensor([entropy_coefficient, bound], device=self.weights.device).unbind())
            gradient, metrics = self.gradient_fast(experience.rows(index), pace)
            self.gradient.copy_(gradient)
        else:
            observation, *columns = experience
            rows = Rows(*(column.numpy() for column in columns))
            self.gradient.zero_()
            sums = self.by_hand.find_gradient(observation, rows, index, entropy_coefficient, bound)
            metrics = torch.from_numpy(sums).float()
        grad_norm = self.gradient.norm()
        if config.max_grad_norm is not None:
            self.gradient *= (config.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.optimizer.learning_rate.fill_(config.learning_rate(opt_steps))
        self.optimizer.step(self.gradient)
        return torch.cat([metrics, grad_norm.unsqueeze(0)])

    def gradient_of(self, batch: Experience, pace: Pace) -> tuple[Tensor, Tensor]:
        """The gradient of the loss of a minibatch with respect to all weights, as one vector; the numbers of
        METRICS."""
        outputs, value = self.net(batch.observation)
        log_prob, entropy = self.net.head.log_prob_and_entropy(outputs, batch)
        loss, metrics = ppo_loss(log_prob, entropy, value, scaled(batch, self.config), pace, self.config)
        return flat_gradient(loss, self.parameters), metrics

    def adapt_kl_price(self, kl: Tensor) -> None:
        """Schulman et al. 2017, section 4; the divergence is that of a turn's last pass."""
        objective = self.config.objective
        if isinstance(objective, KLPenaltyConfig) and objective.target is not None:
            if kl < objective.target / 1.5:
                self.kl_price /= 2.0
            elif kl > objective.target * 1.5:
                self.kl_price *= 2.0

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "rolled_out": self.rolled_out,
            "passes_left": self.passes_left,
            "passes_made": self.passes_made,
            "kl_price": self.kl_price,
            "explained_variance": self.explained_variance,
            "experience": None if self.experience is None else self.experience._asdict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("rolled_out", "passes_left", "passes_made", "kl_price"):
            setattr(self, name, state[name])
        device = self.player.device
        self.explained_variance = state["explained_variance"].to(device)
        self.experience = None
        if state["experience"] is not None:
            observation = {name: value.to(device) for name, value in state["experience"].pop("observation").items()}
            rest = {name: value.to(device) for name, value in state["experience"].items()}
            self.experience = Experience(observation=observation, **rest)
