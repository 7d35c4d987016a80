"""The matrix products of a SAC update, or the convolutions and matrix products of a turn of DQN on images, and nothing
else: `python -m benchmarks.peers.floor WORK`.

No update that leaves none of them out can be faster.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from benchmarks.learning_settings import DQN, SAC, hyperparameters_from_json
from benchmarks.peers.environments import make_environment
from benchmarks.peers.script import Work, answer, time_batches, versions_of

Product = tuple[int, int, int]  # (m, k) times (k, n)


def forward(batch: int, sizes: tuple[int, ...]) -> list[Product]:
    return [(batch, num_in, num_out) for num_in, num_out in pairwise(sizes)]


def weight_gradients(batch: int, sizes: tuple[int, ...]) -> list[Product]:
    return [(num_in, batch, num_out) for num_in, num_out in pairwise(sizes)]


def input_gradients(batch: int, sizes: tuple[int, ...]) -> list[Product]:
    return [(batch, num_out, num_in) for num_in, num_out in pairwise(sizes)]


def products_of_update(h: SAC, observation_size: int, action_size: int) -> list[Product]:
    """Actor and both targets at the next observations; both critics, and their gradients; the actor, both critics on
    its actions, the gradient through them, and the actor's. What reaches no weight (the gradient of an observation) is
    left out."""
    actor = (observation_size, *h.net_arch, 2 * action_size)
    critic = (observation_size + action_size, *h.net_arch, 1)
    b = h.batch_size
    of_critic = forward(b, critic) + forward(b, critic) + weight_gradients(b, critic) + input_gradients(b, critic[1:])
    of_actor = forward(b, critic) + input_gradients(b, critic)
    return [
        *forward(b, actor),
        *(2 * of_critic),
        *forward(b, actor),
        *(2 * of_actor),
        *weight_gradients(b, actor),
        *input_gradients(b, actor[1:]),
    ]


NATURE_CNN = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, window and stride of Mnih et al. 2015
HIDDEN_WIDTH = 512


class NatureCNN:
    """Its convolutions and matrix products alone, on a batch of its own: no biases, no activations. Channels lie
    innermost in memory, the fastest layout on a CPU."""

    def __init__(self, batch: int, image: tuple[int, ...], num_actions: int) -> None:
        x = _channels_last(torch.rand(batch, *image))
        self.convolutions: list[tuple[Tensor, Tensor, int]] = []  # input, weights, stride
        for channels, window, stride in NATURE_CNN:
            weights = _channels_last(torch.rand(channels, x.shape[1], window, window))
            self.convolutions.append((x, weights, stride))
            x = _channels_last(torch.nn.functional.conv2d(x, weights, stride=stride))
        self.output_grads = [_channels_last(torch.rand_like(each)) for each in self._convolve()]
        sizes = (x[0].numel(), HIDDEN_WIDTH, num_actions)
        self.dense = [(torch.rand(batch, a), torch.rand(a, b), torch.rand(batch, b)) for a, b in pairwise(sizes)]

    def _convolve(self) -> list[Tensor]:
        return [torch.nn.functional.conv2d(x, weights, stride=stride) for x, weights, stride in self.convolutions]

    def forward(self) -> None:
        self._convolve()
        for x, weights, _ in self.dense:
            torch.mm(x, weights)

    def backward(self) -> None:
        """The gradients of all weights, and of all inputs but the image."""
        for x, weights, output_grads in self.dense:
            torch.mm(x.T, output_grads)
            torch.mm(output_grads, weights.T)
        for place, ((x, weights, stride), output_grads) in enumerate(
            zip(self.convolutions, self.output_grads, strict=True)
        ):
            wanted = [place > 0, True, False]
            torch.ops.aten.convolution_backward(
                output_grads, x, weights, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, wanted
            )


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def turn_of_dqn(h: DQN, image: tuple[int, ...], num_actions: int) -> Callable[[], None]:
    """What a turn computes: an action at every env step; per opt step the target network at the next observations, and
    the network at the observations with its gradient."""
    acting, learning = NatureCNN(h.num_envs, image, num_actions), NatureCNN(h.batch_size, image, num_actions)

    def compute() -> None:
        for _ in range(h.env_steps_per_turn // h.num_envs):
            acting.forward()
        for _ in range(h.opt_steps_per_turn):
            learning.forward()
            learning.forward()
            learning.backward()

    return compute


def update_of_sac(h: SAC, observation_size: int, action_size: int) -> Callable[[], None]:
    products = products_of_update(h, observation_size, action_size)
    factors = [(torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)) for m, k, n in products]

    def multiply() -> None:
        for left, right, out in factors:
            torch.mm(left, right, out=out)

    return multiply


@torch.no_grad()
def measure(work: Work) -> dict[str, Any]:
    h = hyperparameters_from_json(work["hyperparameters"])
    env = make_environment(work["environment"])
    observed = env.observation_space.shape
    assert observed is not None
    if isinstance(h, DQN):
        assert isinstance(env.action_space, Discrete)
        compute, env_steps = turn_of_dqn(h, observed, int(env.action_space.n)), h.env_steps_per_turn
    else:
        assert isinstance(h, SAC)
        assert env.action_space.shape is not None
        compute, env_steps = update_of_sac(h, observed[0], env.action_space.shape[0]), 1
    compute()
    startup = {"startup_seconds": time.time() - work["launched"]}
    result = time_batches(compute, work["timed_seconds"]) | startup
    num_turns = result["opt_steps"]
    return result | {"env_steps": num_turns * env_steps, "versions": versions_of("gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
