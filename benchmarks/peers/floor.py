"""The matrix products of a SAC update and nothing else: `python -m benchmarks.peers.floor WORK`.

No update that leaves none of them out can be faster.
"""

import time
from itertools import pairwise
from typing import Any

import torch

from benchmarks.learning_settings import SAC, hyperparameters_from_json
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


def measure(work: Work) -> dict[str, Any]:
    h = hyperparameters_from_json(work["hyperparameters"])
    assert isinstance(h, SAC)
    env = make_environment(work["environment"])
    observed, acted = env.observation_space.shape, env.action_space.shape
    assert observed is not None
    assert acted is not None
    products = products_of_update(h, observed[0], acted[0])
    factors = [(torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)) for m, k, n in products]

    def multiply() -> None:
        for left, right, out in factors:
            torch.mm(left, right, out=out)

    multiply()
    startup = {"startup_seconds": time.time() - work["launched"]}
    result = time_batches(multiply, work["timed_seconds"]) | startup
    return result | {"env_steps": result["opt_steps"], "versions": versions_of("gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
