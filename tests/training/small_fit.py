"""The config of a small fit run, for tests of what its data are."""

from typing import Any


def small_fit(train: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A classifier of two classes that learns from a set in two epochs; changes: other sections, or their keys."""
    config: dict[str, Any] = {
        "seed": 3,
        "trainer": {"name": "fit"},
        "model": {
            "name": "classifier",
            "net": {"name": "mlp", "net_arch": [8], "activation": "relu"},
            "num_classes": 2,
            "label_smoothing": 0.0,
            "class_weights": None,
        },
        "data": {"train": train},
        "learning": {
            "order": {"name": "shuffled"},
            "batch_size": 8,
            "last_batch": "keep",
            "seeding": "per_item",
            "num_microbatches": 1,
            "groups": [
                {
                    "weights": "*",
                    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
                    "learning_rate": {"name": "constant", "value": 0.02},
                }
            ],
            "max_grad_norm": None,
            "ema": None,
            "precision": "float32",
        },
        "evaluations": [],
        "best": None,
        "stop": {"after": 2, "unit": "epochs"},
        "callbacks": [],
        "execution": {
            "device": "cpu",
            "num_threads": 1,
            "loading": {"num_workers": 0, "num_prefetched": 2, "start_method": "fork", "batch_within_s": None},
        },
        "output": {
            "display": "quiet",
            "record": {"every": 3, "unit": "opt_steps"},
            "statistics": ["mean"],
            "recorders": [],
            "save": {"every": 4, "unit": "opt_steps"},
            "keep_last": 2,
            "keep_every": None,
            "checkpoint_folder": None,
            "stop_within_s": 30.0,
            "mirror": None,
        },
    }
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(config[key], dict) else value
    return config
