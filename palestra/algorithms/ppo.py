"""PPO: proximal policy optimisation (Schulman et al. 2017) with generalized advantages (Schulman et al. 2016), in the
details of Huang et al. 2022.

Discrete, multi-discrete and box actions, legal-action masks, several roles. Truncated games are bootstrapped from what
their player would have decided on next. Recurrent networks learn from whole sequences, which begin with the memory that
the roll-out began with. To run: palestra train configs/ppo-cartpole.yml

Networks and their heads: ppo_nets.py. Advantages and the rows of a roll-out: ppo_experience.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import Algorithm, AlgorithmConfig, Deterministic, Seat, Turn
from palestra.algorithms.kernels.ppo import Seen, by_hand_of
from palestra.algorithms.parts.actor_critic import (
    ActorCritic,
    BoxActionsConfig,
    BoxHead,
    DiscreteHead,
    OrthogonalConfig,
    SeparateConfig,
    SharedConfig,
    StockConfig,
    make_head,
)
from palestra.algorithms.parts.advantages import (
    REMEMBERED,
    Chains,
    Experience,
    Pace,
    generalized_advantages,
    in_sequences,
    memory_in,
)
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
from palestra.games.policy import Decision, Memory, Sees
from palestra.nets import is_recurrent_config
from palestra.nets.kernels.acting import ActingMLP, acting_net
from palestra.nets.recurrent import Part
from palestra.nets.weights import compiled, evaluation_twin, flat_gradient, flatten_weights
from palestra.optimizers import OptimizerConfig
from palestra.players.player import Metrics, Player
from palestra.randomness import base_key, fold, random_permutation
from palestra.rollouts.transitions import Transitions
from palestra.schedules import ScheduleConfig

# Letters: M rows of a roll-out; T decisions of each of W chains; B rows of any batch.

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
    """opt steps per pass, each on its share of the roll-out: of its rows; of its worlds if a network is recurrent"""
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
    box_actions: Annotated[BoxActionsConfig, ByName()] | None
    """how actions that are vectors of numbers are drawn; null: actions are discrete"""
    evaluation: Literal["deterministic", "sampled"]
    """in evaluations play the most likely action, or draw one"""
    optimizer: OptimizerConfig
    """how gradients become steps"""
    learning_rate: ScheduleConfig
    """a function of the player's opt steps"""

    def seat_errors(self, seat: Seat) -> list[ConfigErrorItem]:
        is_recurrent = any(is_recurrent_config(net) for _, net in self.body)
        per_world = seat.num_roles if is_recurrent else self.rollout_length * seat.num_turns
        num_sequences = seat.num_worlds * per_world
        if self.num_minibatches <= num_sequences:
            return []
        what = "sequences, one per world and role," if is_recurrent else "rows"
        message = (
            f"{self.num_minibatches} stands there, but a roll-out has {num_sequences} {what} to share out among them"
        )
        return [ConfigErrorItem("num_minibatches", message)]

    def build(self, player: Player) -> "PPO":
        return PPO(self, player)


# ---- what it learns ------------------------------------------------------------------------------------


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


class Acting:
    """Draws actions from the policy, or plays the likeliest ones.

    value: a network of its own for the value, if it must see every step of a roll-out because it has a memory.
    is_shared: the policy's last output is the value.
    """

    sees: Sees = "observation"

    def __init__(
        self, policy: Part, value: Part | None, head: DiscreteHead | BoxHead, is_shared: bool, draws: bool
    ) -> None:
        self.policy, self.value, self.head, self.is_shared, self.draws = policy, value, head, is_shared, draws
        self.remembering = [part for part in (policy, value) if part is not None and part.remembers]
        self.quick: tuple[ActingMLP, DiscreteHead] | None = None  # where a single kernel acts
        if draws and not is_shared and isinstance(policy.net, ActingMLP) and type(head) is DiscreteHead:
            self.quick = policy.net, head

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        if self.quick is not None and not self.remembering:
            net, head = self.quick
            network = net.arguments(view)
            if network is not None:
                action, drawn = head.draw_by_mlp(network, legal, keys)
                return Decision(action, drawn, {})
        if not memory:
            for part in self.remembering:
                memory = memory | part.initial_memory(len(legal), legal.device)
        extras = {REMEMBERED + name: entry for name, entry in memory.items()}
        outputs, remembered = self.policy.step(view, memory)
        if self.is_shared:
            extras["value"] = outputs[:, -1]
            outputs = outputs[:, :-1].contiguous()
        elif self.value is not None:
            value, of_value = self.value.step(view, memory)
            extras["value"] = value[:, 0]
            remembered |= of_value
        if not self.draws:
            return Decision(self.head.mode(outputs, legal), {}, remembered)
        action, drawn = self.head.draw(outputs, legal, keys)
        return Decision(action, extras | drawn, remembered)


# ---- how it learns ---------------------------------------------------------------------------------------


class PPO(Algorithm):
    config: PPOConfig

    def __init__(self, config: PPOConfig, player: Player) -> None:
        super().__init__(config, player)
        head = make_head(config.box_actions, player)
        self.net = ActorCritic(config.body, config.initialization, head, player).to(player.device)
        self.weights = flatten_weights(self.net)
        self.parameters = list(self.net.parameters())  # asking a module each time costs as much as a small layer
        self.refuse_batch_norm()
        self.acting = Part("policy", acting_net(self.net.policy))
        self.valuing = self.acting if self.net.value is None else Part("value", acting_net(self.net.value))
        self.remembers = self.acting.remembers or self.valuing.remembers
        self.gradient = torch.zeros_like(self.weights)
        self.by_hand = by_hand_of(self) if type(self) is PPO else None  # a derived class may have another loss
        # Unrolled steps are others at every roll-out: they would be compiled over and over.
        self.gradient_fast = compiled(self.gradient_of, player.compile and not self.remembers)
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
        value = self.valuing if explore and self.net.value is not None and self.valuing.remembers else None
        return Acting(self.acting, value, self.net.head, self.net.value is None, draws)

    def module(self) -> Deterministic:
        if self.config.evaluation == "sampled":
            raise NotImplementedError(self.player.told_to_draw())
        if self.acting.remembers:
            raise NotImplementedError(
                "this player's policy is recurrent; its memory cannot be exported, only networks without one can"
            )
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

    def refuse_batch_norm(self) -> None:
        """It acts otherwise in play than in learning: the two would disagree on every probability."""
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.net.modules()):
            message = "batch norm does not go with PPO; expected a network without it, as with layer norm ('l')"
            raise ConfigError([ConfigErrorItem(f"players.{self.player.name}.algorithm.body", message)])

    # ---- from a roll-out to experience -----------------------------------------------------------------

    @torch.no_grad()
    def digest(self, batch: Transitions) -> None:
        """Values, advantages and goals of a roll-out: all that the passes over it need."""
        extras, chains = batch.extras, self.chains(len(batch.valid))
        value = extras["value"] if "value" in extras else self.values(batch.observation, memory_in(extras))
        advantage = self.advantages(batch, value, chains)
        goal, weight = advantage + value, batch.valid.to(torch.float32)
        experience = Experience(
            observation=batch.observation,
            memory={},
            fresh=torch.zeros(1, len(weight), dtype=torch.bool, device=weight.device),
            legal=extras["legal"],
            choice=extras.get("choice", batch.action),
            log_prob=extras["log_prob"],
            value=value,
            advantage=advantage,
            goal=goal,
            weight=weight,
        )
        self.experience = in_sequences(experience, batch, chains) if self.remembers else experience
        share = weight / weight.sum().clamp(min=1.0)
        spread = torch.dot(share, (goal - torch.dot(share, goal)).square())
        error = torch.dot(share, (advantage - torch.dot(share, advantage)).square())
        self.explained_variance = 1.0 - error / spread.clamp(min=1e-12)

    def values(self, observation: Mapping[str, Tensor], memory: Memory) -> Tensor:
        """float32 (rows,), with the weights that stand."""
        return self.valuing.step(observation, memory)[0][:, -1]

    def chains(self, num_rows: int) -> list[Tensor]:
        """For every role the numbers of its rows, (T, W): those of one world follow each other. In a roll-out they come
        round by round, in a round turn by turn."""
        turns = self.player.turns
        rows = torch.arange(num_rows, device=self.player.device).view(self.config.rollout_length, len(turns), -1)
        places = [[number for number, role in enumerate(turns) if role == own] for own in self.player.roles]
        return [rows[:, place].flatten(0, 1) for place in places]

    def advantages(self, batch: Transitions, value: Tensor, chains: list[Tensor]) -> Tensor:
        """float32 (M,)."""
        advantage = torch.empty_like(value)
        for own in chains:
            columns = (batch.reward, value, batch.terminated, batch.truncated, batch.valid)
            reward, value_of, terminated, truncated, valid = (column[own] for column in columns)
            is_last = valid & (valid.flip(0).cumsum(0).flip(0) == 1)
            next_value = self.next_values(batch, own, valid & ~terminated & (truncated | is_last))
            decisions = Chains(reward, value_of, next_value, terminated, truncated, valid)
            advantage[own] = generalized_advantages(decisions, self.config.gamma, self.config.gae_lambda)
        return advantage

    def next_values(self, batch: Transitions, rows: Tensor, needed: Tensor) -> Tensor:
        """The values of next observations where they are needed; elsewhere any number. rows, needed, result: (T, W)."""
        if needed.device.type != "cpu":  # a GPU would have to wait to learn where
            return self.values_ahead(batch, rows.flatten()).view_as(rows)
        found = torch.zeros(rows.shape)
        found[needed] = self.values_ahead(batch, rows[needed])
        return found

    def values_ahead(self, batch: Transitions, rows: Tensor) -> Tensor:
        """The values of the next observations of some rows, with what is remembered there: of all up to the row."""
        memory: Memory = {}
        if self.valuing.remembers:
            before = {name: value[rows] for name, value in memory_in(batch.extras).items()}
            _, memory = self.valuing.step({name: value[rows] for name, value in batch.observation.items()}, before)
        return self.values({name: value[rows] for name, value in batch.next_observation.items()}, memory)

    # ---- from experience to weights ----------------------------------------------------------------------

    def make_pass(self) -> Metrics:
        """One pass over the experience: an opt step per minibatch. Gives the means of their metrics."""
        assert self.experience is not None
        config, opt_steps = self.config, self.player.opt_steps
        num_sequences = self.experience.fresh.shape[1]
        order = random_permutation(fold(self.key, self.passes_made), num_sequences)
        seen = None if self.by_hand is None else self.by_hand.see(self.experience)
        steps = [
            self.opt_step(self.experience, index, opt_steps + number, seen)
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

    def opt_step(self, experience: Experience, index: Tensor, opt_steps: int, seen: Seen | None) -> Tensor:
        """Learn from a minibatch, the sequences `index`. Gives the numbers of METRICS, and the norm of the gradient.

        seen: the experience for gradients by hand."""
        config = self.config
        bound = config.objective.epsilon(opt_steps) if isinstance(config.objective, ClipConfig) else self.kl_price
        entropy_coefficient = config.entropy_coefficient(opt_steps)
        if self.by_hand is None or seen is None:
            pace = Pace(*torch.tensor([entropy_coefficient, bound], device=self.weights.device).unbind())
            gradient, metrics = self.gradient_fast(experience.part(index), pace)
            self.gradient.copy_(gradient)
        else:
            metrics = torch.from_numpy(self.by_hand.find_gradient(seen, index.numpy(), entropy_coefficient, bound))
        gradient, grad_norm = self.optimizer.clip(self.gradient, config.max_grad_norm)
        self.optimizer.learning_rate.fill_(config.learning_rate(opt_steps))
        self.optimizer.step(gradient)
        return torch.hstack([metrics, torch.as_tensor(grad_norm)]).float()

    def gradient_of(self, batch: Experience, pace: Pace) -> tuple[Tensor, Tensor]:
        """The gradient of the loss of a minibatch with respect to all weights, as one vector; the numbers of
        METRICS."""
        outputs, value = self.net(batch.observation, batch.memory, batch.fresh)
        log_prob, entropy = self.net.head.log_prob_and_entropy(outputs, batch)
        loss, metrics = self.loss(log_prob, entropy, value, scaled(batch, self.config), pace, self.config)
        return flat_gradient(loss, self.parameters), metrics

    def loss(self, *parts: Any) -> tuple[Tensor, Tensor]:
        """A class of your own may have another."""
        return ppo_loss(*parts)

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
        device, experience = self.player.device, state["experience"]
        self.explained_variance = state["explained_variance"].to(device)
        self.experience = None if experience is None else Experience(**experience).to(device)
