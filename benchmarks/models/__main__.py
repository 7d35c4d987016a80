"""A model that learns from data: `fit` beside a bare loop of torch, skorch and Hugging Face's Trainer.

    python -m benchmarks.models [--rows M1,M2] [--threads 1] [--repeats 5] [--quick] [--out FOLDER]

`make peers` builds the virtual environment of the other libraries first. README.md says what is measured, and how.
"""

from collections.abc import Iterator, Sequence

from benchmarks.comparing import Comparison, Data, Measured, main
from benchmarks.peers.processes import OWN_PYTHON, PEERS_PYTHON, Script

WORK: Data = {"hidden": 128, "batch_size": 64, "learning_rate": 1e-3, "record_every": 500}
BARE, OURS = (Script(f"benchmarks.models.{name}", OWN_PYTHON) for name in ("bare", "ours"))
SKORCH, HUGGING_FACE = (Script(f"benchmarks.models.{name}", PEERS_PYTHON) for name in ("skorch", "huggingface"))


def seconds_per_epoch(answer: Data) -> float:
    return float(answer["seconds"] / answer["epochs"])


COMPARISONS = (
    Comparison(
        "M1",
        "digits in batches of 64, AdamW",
        "s per epoch",
        WORK,
        {"bare loop": (BARE, {}), "palestra": (OURS, {}), "skorch": (SKORCH, {}), "Trainer": (HUGGING_FACE, {})},
        seconds_per_epoch,
    ),
    Comparison(
        "M2",
        "the same, and what more costs",
        "s per epoch",
        WORK,
        {
            "palestra": (OURS, {}),
            "seeding per_item": (OURS, {"seeding": "per_item"}),
            "ema": (OURS, {"ema": {"decay": 0.99}}),
            "a checkpoint in 500 opt steps": (OURS, {"save": {"every": 500, "unit": "opt_steps"}}),
            "two workers": (OURS, {"num_workers": 2}),
        },
        seconds_per_epoch,
    ),
)


def used(all_measured: Sequence[Measured]) -> Iterator[str]:
    """Memory and open files of the first repeat."""
    for measured in all_measured:
        for name, (first, *_) in measured.answers.items():
            if "used" in first:
                (mib, mib_then), (files, files_then) = first["used"]["mib"], first["used"]["files"]
                yield (
                    f"- {measured.comparison.row}, {name}, from the tenth epoch to the last of {first['epochs']}: "
                    f"{mib} to {mib_then} MiB, {files} to {files_then} files"
                )


if __name__ == "__main__":
    main(
        "models",
        __doc__,
        COMPARISONS,
        lambda is_quick: {"timed_seconds": 1.0 if is_quick else 10.0},
        lambda m: [*used(m)],
    )
