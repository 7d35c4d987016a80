"""TorchRL: `python -m benchmarks.agents.torchrl WORK`. Two agents learn `nip` on `witness`, each by PPO, as in the
tutorials of TorchRL on PPO and on several agents: EnvBase, Collector, GAE, ClipPPOLoss.

The rules are plain torch, written for this one game; a test compares them with palestra's. Letters: B worlds.
"""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils import clip_grad_norm_
from torchrl.collectors import Collector
from torchrl.data import Binary, Composite, LazyTensorStorage, MultiCategorical, TensorDictReplayBuffer, Unbounded
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase, ExplorationType
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.peers.script import Stopwatch, Work, answer, versions_of

REJECT, ACCEPT, GO_ON = 0, 1, 2  # the verifier's decisions
AGENTS = ("prover", "verifier")
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


class NipOnWitness(EnvBase):
    """A batch of dialogues. In even rounds the verifier points at a bit and decides, in odd ones the prover points.

    Of each agent: `observation`, float32, all that it sees as one vector; `action_mask`, the flags of its choices one
    after the other; `action`, an index per choice: a bit or silence (the last one), and of the verifier reject, accept
    or go on. Only silence and going on are legal where an agent has no turn.
    """

    def __init__(self, num_worlds: int, num_bits: int, num_seen: int, max_rounds: int, seed: int) -> None:
        super().__init__(batch_size=[num_worlds])
        self.num_bits, self.num_seen, self.max_rounds = num_bits, num_seen, max_rounds
        self.places = torch.arange(num_bits)
        self.choices = {"prover": (num_bits + 1,), "verifier": (num_bits + 1, 3)}
        shared = max_rounds * num_bits + max_rounds
        sizes = {"prover": num_bits + shared, "verifier": 2 * num_bits + shared}
        self.masks = {agent: self._masks(agent) for agent in AGENTS}
        B = self.batch_size
        self.observation_spec = Composite(
            {
                agent: Composite(
                    {
                        "observation": Unbounded((*B, sizes[agent])),
                        "action_mask": Binary(shape=(*B, sum(self.choices[agent])), dtype=torch.bool),
                    },
                    shape=B,
                )
                for agent in AGENTS
            },
            shape=B,
        )
        self.action_spec = Composite(
            {
                agent: Composite(
                    {"action": MultiCategorical(self.choices[agent], shape=(*B, len(self.choices[agent])))}, shape=B
                )
                for agent in AGENTS
            },
            shape=B,
        )
        self.reward_spec = Composite(
            {agent: Composite({"reward": Unbounded((*B, 1))}, shape=B) for agent in AGENTS}, shape=B
        )
        self.set_seed(seed)
        self.bits = torch.zeros(num_worlds, num_bits, dtype=torch.int64)
        self.label, self.round = (torch.zeros(num_worlds, dtype=torch.int64) for _ in range(2))
        self.messages = torch.full((num_worlds, max_rounds), -1)

    def _masks(self, agent: str) -> Tensor:
        """The legal choices where the agent has no turn, and where it has: bool (2, flags)."""
        token = torch.ones(2, self.num_bits + 1, dtype=torch.bool)
        token[0, :-1], token[1, -1] = False, False
        if agent == "prover":
            return token
        decision = torch.ones(2, 3, dtype=torch.bool)
        decision[0, :GO_ON] = False
        return torch.cat([token, decision], dim=1)

    def _set_seed(self, seed: int | None) -> None:
        self.generator = torch.Generator().manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        which = None if tensordict is None else tensordict.get("_reset", None)
        where = torch.ones(self.batch_size, dtype=torch.bool) if which is None else which.view(self.batch_size)
        num = int(where.sum())
        self.label[where] = label = torch.randint(2, (num,), generator=self.generator)
        number = torch.randint(1, 2**self.num_bits, (num,), generator=self.generator) * label
        self.bits[where] = (number.unsqueeze(1) >> self.places) & 1
        self.round[where], self.messages[where] = 0, -1
        return TensorDict(self._observe(), batch_size=self.batch_size)

    def _observe(self) -> dict[str, Any]:
        round = self.round.clamp(max=self.max_rounds - 1)
        messages = one_hot(self.messages + 1, self.num_bits + 1)[:, :, 1:]
        seen = messages.any(dim=1) | (self.places < self.num_seen)
        shared = [messages.flatten(1), one_hot(round, self.max_rounds)]
        bits = torch.stack([seen & (self.bits == 0), seen & (self.bits == 1)], dim=2).flatten(1)
        turn = {"prover": self.round % 2, "verifier": 1 - self.round % 2}
        own = {"prover": self.bits, "verifier": bits}
        return {
            agent: {
                "observation": torch.cat([own[agent], *shared], dim=1).float(),
                "action_mask": self.masks[agent][turn[agent]],
            }
            for agent in AGENTS
        }

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        tokens = [tensordict[agent, "action"][:, 0] for agent in AGENTS]
        is_verifiers = self.round % 2 == 0
        token = torch.where(is_verifiers, tokens[1], tokens[0])
        token = torch.where(token < self.num_bits, token, -1)  # silence, which no mask allows here
        self.messages.scatter_(1, self.round.unsqueeze(1), token.unsqueeze(1))
        decision = torch.where(is_verifiers, tensordict["verifier", "action"][:, 1], GO_ON)
        self.round = self.round + 1
        is_decided = decision != GO_ON
        done = is_decided | (self.round == self.max_rounds)
        right = torch.where(is_decided & (decision == self.label), 1.0, -1.0)
        reward = {"verifier": torch.where(done, right, 0.0), "prover": (decision == ACCEPT).float()}
        new = self._observe()
        for agent in AGENTS:
            new[agent]["reward"] = reward[agent].unsqueeze(1)
        done = done.unsqueeze(1)
        return TensorDict({**new, "done": done, "terminated": done.clone()}, batch_size=self.batch_size)


class MaskedChoices(torch.distributions.Distribution):
    """Several masked categorical choices at once. logits, mask: (B, flags), one choice after the other."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (torch's own name)

    def __init__(self, logits: Tensor, mask: Tensor, nums: tuple[int, ...]) -> None:
        masked = logits.masked_fill(~mask, -1e9)
        self.log_probs = [part.log_softmax(dim=-1) for part in masked.split(list(nums), dim=-1)]
        super().__init__(masked.shape[:-1], torch.Size([len(nums)]), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.cat([part.exp().multinomial(1) for part in self.log_probs], dim=-1)

    @property
    def mode(self) -> Tensor:
        return torch.stack([part.argmax(dim=-1) for part in self.log_probs], dim=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        pairs = zip(self.log_probs, value.unbind(-1), strict=True)
        return sum(part.gather(-1, choice.unsqueeze(-1)).squeeze(-1) for part, choice in pairs)

    def entropy(self) -> Tensor:
        return -sum((part.exp() * part).sum(dim=-1) for part in self.log_probs)


class Agent:
    """What one agent learns with: its networks, loss, advantages, buffer and optimizer."""

    def __init__(self, name: str, env: NipOnWitness, work: Work) -> None:
        num_inputs = env.observation_spec[name, "observation"].shape[-1]
        nums = env.choices[name]
        arch = {"num_cells": list(work["net_arch"]), "activation_class": ACTIVATIONS[work["activation"]]}
        self.name = name
        self.policy = ProbabilisticActor(
            TensorDictModule(
                MLP(num_inputs, sum(nums), **arch), in_keys=[(name, "observation")], out_keys=[(name, "logits")]
            ),
            in_keys={"logits": (name, "logits"), "mask": (name, "action_mask")},
            out_keys=[(name, "action")],
            distribution_class=MaskedChoices,
            distribution_kwargs={"nums": nums},
            return_log_prob=True,
            log_prob_key=(name, "log_prob"),
            default_interaction_type=ExplorationType.RANDOM,
        )
        value_key = (name, "state_value")
        self.value = ValueOperator(MLP(num_inputs, 1, **arch), in_keys=[(name, "observation")], out_keys=[value_key])
        keys = {"value": value_key, "advantage": (name, "advantage"), "value_target": (name, "value_target")}
        self.advantage = GAE(gamma=work["gamma"], lmbda=work["gae_lambda"], value_network=self.value)
        self.advantage.set_keys(**keys, reward=(name, "reward"))
        self.loss = ClipPPOLoss(
            self.policy,
            self.value,
            clip_epsilon=work["clip_range"],
            entropy_coeff=work["entropy_coefficient"],
            critic_coeff=work["value_coefficient"],
            loss_critic_type="l2",
            normalize_advantage=work["normalize_advantages"],
        )
        self.loss.set_keys(**keys, action=(name, "action"), sample_log_prob=(name, "log_prob"))
        num_rows = work["num_worlds"] * work["rollout_length"]
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(num_rows),
            sampler=SamplerWithoutReplacement(),
            batch_size=num_rows // work["num_minibatches"],
        )
        self.parameters = list(self.loss.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=work["learning_rate"], eps=work["adam_eps"])
        self.num_passes, self.max_grad_norm = work["num_passes"], work["max_grad_norm"]

    def learn(self, data: TensorDictBase) -> None:
        """data: of the roll-out, (B, T)."""
        with torch.no_grad():
            data = self.advantage(data)
        own = data.select(self.name)
        self.buffer.extend(own.reshape(-1))
        for _ in range(self.num_passes):
            for batch in self.buffer:
                losses = self.loss(batch)
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                clip_grad_norm_(self.parameters, self.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()


def make_env(work: Work) -> NipOnWitness:
    sizes = {name: work[name] for name in ("num_worlds", "num_bits", "num_seen", "max_rounds", "seed")}
    return NipOnWitness(**sizes)


def train(work: Work) -> dict[str, Any]:
    torch.manual_seed(work["seed"])
    torch.set_num_threads(work["num_threads"])
    stopwatch = Stopwatch(work)
    env = make_env(work)
    agents = [Agent(name, env, work) for name in AGENTS]
    num_steps = work["num_worlds"] * work["rollout_length"]
    policy = TensorDictSequential(*(agent.policy for agent in agents))
    env_steps = 0
    for data in Collector(
        env, policy, frames_per_batch=num_steps, total_frames=-1, auto_register_policy_transforms=False
    ):
        env_steps += num_steps
        for agent in agents:
            agent.learn(data)
            for _ in range(work["num_passes"] * work["num_minibatches"]):
                stopwatch.opt_step()
        if stopwatch.mark(env_steps, ()):
            return stopwatch.result()
    raise AssertionError("the collector ended")


def measure(work: Work) -> dict[str, Any]:
    return train(work) | {"versions": versions_of("torchrl", "tensordict", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
