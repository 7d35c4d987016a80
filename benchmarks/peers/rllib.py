"""RLlib's APPO on CartPole: env steps that were learned from, per second.

    make peers
    .venv-peers-rllib/bin/python benchmarks/peers/rllib.py [--runners 2] [--seconds 30]

It has an environment of its own, because RLlib asks for one version of gymnasium, which is not that of the other peers.
`python -m benchmarks.actors --only APPO` trains `appo-cartpole` with as many actors.
"""

import argparse
import json
import time
from typing import Any

import ray  # type: ignore[import-not-found]
from ray.rllib.algorithms.appo import APPOConfig  # type: ignore[import-not-found]

NUM_WARM = 5  # calls of train, each of a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    ray.init(num_cpus=given.runners + 2, include_dashboard=False, log_to_driver=False)
    # 32 environments in all, roll-outs of 32 steps, minibatches of 1024 rows: those of appo-cartpole, but for passes
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=given.runners, num_envs_per_env_runner=32 // given.runners, rollout_fragment_length=32
        )
        .learners(num_learners=0)
        .training(lr=2e-3, train_batch_size_per_learner=1024, grad_clip=0.5, gamma=0.98, entropy_coeff=0.0)
        .reporting(min_time_s_per_iteration=1)
    )
    algorithm = config.build_algo()
    for _ in range(NUM_WARM):
        result = algorithm.train()
    before, began = _learned(result), time.perf_counter()
    while (seconds := time.perf_counter() - began) < given.seconds:
        result = algorithm.train()
    learned = _learned(result) - before
    mean_return = result["env_runners"].get("episode_return_mean")
    print(json.dumps({"env_steps_per_s": learned / seconds, "return": mean_return, "ray": ray.__version__}))
    algorithm.stop()


def _learned(result: dict[str, Any]) -> int:
    """The env steps that the learner has got, each once; 0 before its first result."""
    found = result.get("learners", {}).get("default_policy", {})
    return int(found.get("num_module_steps_trained_lifetime", 0))


if __name__ == "__main__":
    main()
