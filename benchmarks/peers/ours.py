"""palestra: `python -m benchmarks.peers.ours WORK`. Display, records and all else as users have it.

"batched" plays palestra's own batched CartPole.
"""

from typing import Any

from benchmarks.peers.script import Work, answer


def config_of(work: Work) -> dict[str, Any]:
    """The whole config of a run that does the work: a shipped config, with what the work says in its place."""
    raise NotImplementedError("palestra has no configs yet for PPO, DQN and SAC in Gymnasium environments")


def measure(work: Work) -> dict[str, Any]:
    config_of(work)
    raise NotImplementedError


if __name__ == "__main__":
    answer(measure)
