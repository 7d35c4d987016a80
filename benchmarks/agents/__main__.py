"""Many agents: `nip` on `witness` beside the same loop built from TorchRL, and play `together` beside `in_turn`.

    python -m benchmarks.agents [--rows A1,A2] [--threads 1] [--repeats 5] [--quick] [--out FOLDER]

TorchRL is the extra `torchrl`. README.md says what is measured, and how.
"""

from benchmarks.agents.ours import config_of, hyperparameters
from benchmarks.comparing import Comparison, Data, main
from benchmarks.peers.processes import OWN_PYTHON, Script

OURS, TORCHRL = (Script(f"benchmarks.agents.{name}", OWN_PYTHON) for name in ("ours", "torchrl"))
NIP: Data = {"kind": "train", "protocol": "nip", "trainer": "together", "solved_at": None, "warmup_env_steps": 16_384}
DEBATE: Data = {"kind": "play", "protocol": "debate"}


def comparisons() -> tuple[Comparison, ...]:
    return (
        Comparison(
            "A1",
            "PPO, nip on witness, both learn",
            "env steps/s",
            NIP | hyperparameters(config_of(NIP | {"seed": 0, "num_threads": 1})),
            {"torchrl": (TORCHRL, {}), "palestra": (OURS, {})},
            lambda answer: float(answer["env_steps"] / answer["seconds"]),
            "at least 5",
        ),
        Comparison(
            "A2",
            "play, debate on witness, three learn",
            "s per 100,000 env steps of each learner",
            DEBATE,
            {name: (OURS, {"trainer": name}) for name in ("in_turn", "together")},
            lambda answer: float(answer["seconds"] * 100_000 / answer["env_steps"]),
            "at most 0.45",
        ),
    )


def lengths(is_quick: bool) -> Data:
    return {"timed_seconds": 1.0 if is_quick else 10.0, "num_epochs": 4 if is_quick else 60}


if __name__ == "__main__":
    main("agents", __doc__, comparisons(), lengths, timeout_s=600.0)
