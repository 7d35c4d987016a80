"""sbx, the JAX sibling of stable-baselines3: `python -m benchmarks.peers.sbx WORK`. Its replay memory is the latter's.

Its DQN has two layers of the first width asked for, and clips no gradient.
"""

from typing import Any

from benchmarks.peers.script import Work, answer, keep_to_cores, versions_of


def measure(work: Work) -> dict[str, Any]:
    keep_to_cores(work["num_threads"])  # before JAX counts them
    import sbx

    from benchmarks.peers import sb3

    if work["kind"] == "replay":
        raise SystemExit("sbx samples with stable-baselines3's replay buffer")
    return sb3.train(sbx, work) | {"versions": versions_of("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")}


if __name__ == "__main__":
    answer(measure)
