"""One training by palestra for the learning table: `python -m benchmarks.peers.learn_ours WORK`.

WORK: {"setting": a Setting as JSON, "seed": ...}. The answer has the keys of learn_sb3's.
"""

from typing import Any

from benchmarks.peers.ours import config_of
from benchmarks.peers.script import Work, answer


def learn(work: Work) -> dict[str, Any]:
    config_of(work)
    raise NotImplementedError


if __name__ == "__main__":
    answer(learn)
