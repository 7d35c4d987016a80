"""d3rlpy 2.8, which learns from rows: `python -m benchmarks.peers.d3rlpy WORK`.

    python3.11 -m venv .venv-d3rlpy && .venv-d3rlpy/bin/pip install torch==2.13.0 'd3rlpy==2.8.*'

It has an environment of its own, because it asks for one version of gymnasium, which is not that of the other peers.

WORK: {"algorithm": of benchmarks.offline.settings, "rows": an .npz file, "seed": ..., and either "opt_steps" and
"policy", an .npz file for the layers of the policy's network, or "timed_seconds" and "loop": "bare" or "fit"}.
"""

import time
from typing import Any

import d3rlpy
import numpy as np

from benchmarks.offline.settings import BATCH_SIZE, HIDDEN, SETTINGS
from benchmarks.peers.script import Done, Work, answer, versions_of

NUM_WARM = 200  # opt steps


def read_rows(file: str) -> d3rlpy.dataset.MDPDataset:
    with np.load(file, allow_pickle=False) as rows:
        return d3rlpy.dataset.MDPDataset(
            observations=rows["observation.observation"].astype(np.float32),
            actions=rows["action"].astype(np.float32),
            rewards=rows["reward"].astype(np.float32),
            terminals=rows["terminated"].astype(np.float32),
            timeouts=rows["truncated"].astype(np.float32),
        )


def make_algorithm(name: str) -> Any:
    """One with the settings that both sides have, and networks of the same widths."""
    setting = SETTINGS[name]
    config = getattr(d3rlpy.algos, f"{setting.theirs}Config")
    encoder = d3rlpy.models.VectorEncoderFactory(list(HIDDEN), activation="relu")
    encoders = {key: encoder for key in config.__dataclass_fields__ if key.endswith("encoder_factory")}
    return config(batch_size=BATCH_SIZE, **setting.keys, **encoders).create(device="cpu:0")


def fit(algorithm: Any, rows: Any, num: int, callback: Any = None) -> None:
    quiet = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
    algorithm.fit(rows, n_steps=num, n_steps_per_epoch=min(num, 10_000), callback=callback, **quiet)


def layers_of(algorithm: Any) -> dict[str, np.ndarray]:
    """Weights and biases of the policy's network, whose output is the action before a tanh, in their order."""
    named = dict(algorithm.impl.policy.named_parameters())
    layers = [name.removesuffix(".weight") for name in named if name.endswith(".weight")]
    return {
        f"{number}.{kind}": named[f"{layer}.{kind}"].detach().numpy()
        for number, layer in enumerate(layers)
        for kind in ("weight", "bias")
    }


def learn(work: Work) -> dict[str, Any]:
    d3rlpy.seed(work["seed"])
    algorithm, rows, began = make_algorithm(work["algorithm"]), read_rows(work["rows"]), time.process_time()
    fit(algorithm, rows, work["opt_steps"])
    seconds = time.process_time() - began
    layers = layers_of(algorithm)
    observations = rows.episodes[0].observations[:16]
    action = observations
    for number in range(len(layers) // 2):
        action = (np.maximum(action, 0.0) if number else action) @ layers[f"{number}.weight"].T
        action = action + layers[f"{number}.bias"]
    assert np.allclose(np.tanh(action), algorithm.predict(observations), atol=1e-5), "expected the policy's layers"
    np.savez(work["policy"], **layers)  # type: ignore[arg-type]
    return {"cpu_seconds": seconds, "transitions": rows.transition_count}


def count_opt_steps(work: Work) -> dict[str, Any]:
    """Opt steps and their seconds of the processor, with the draw of their batches."""
    algorithm, rows = make_algorithm(work["algorithm"]), read_rows(work["rows"])
    began, num = 0.0, 0

    def count(*_: Any) -> None:
        nonlocal began, num
        num += 1
        if num == NUM_WARM:
            began = time.process_time()
        if num > NUM_WARM and time.process_time() - began >= work["timed_seconds"]:
            raise Done

    try:
        if work["loop"] == "fit":
            fit(algorithm, rows, 10_000_000, count)
        algorithm.build_with_dataset(rows)
        while True:
            algorithm.update(rows.sample_transition_batch(BATCH_SIZE))
            count()
    except Done:
        return {"opt_steps": num - NUM_WARM, "cpu_seconds": time.process_time() - began}


def measure(work: Work) -> dict[str, Any]:
    result = count_opt_steps(work) if "loop" in work else learn(work)
    return result | {"versions": versions_of("d3rlpy", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
