"""What the end of many dialogues says: how often verifiers are right, and what messages tell of labels.

Letters: B games, T rounds, C channels.
"""

import math

import torch
from torch import Tensor

from palestra.runtime.statistics import Share

NAMES = ("accuracy", "accuracy/0", "accuracy/1", "accuracy/worst", "precision", "recall", "undecided")


def verdict_measures(verdict: Tensor, label: Tensor) -> dict[str, float | Share | None]:
    """verdict: int64 (B,), 0 (reject), 1 (accept) or -1 (none, which counts as wrong). label: int64 (B,), 0 or 1.

    precision: of those accepted, the share with label 1. recall: of those with label 1, the share accepted. None
    where there are no games to count.
    """
    right = verdict == label
    by_class = [_share(right[label == each]) for each in (0, 1)]
    known = [share.estimate().value for share in by_class if share is not None]
    return {
        "accuracy": _share(right),
        "accuracy/0": by_class[0],
        "accuracy/1": by_class[1],
        "accuracy/worst": min(known) if known else None,
        "precision": _share((label == 1)[verdict == 1]),
        "recall": _share((verdict == 1)[label == 1]),
        "undecided": _share(verdict == -1),
    }


def mutual_information(tokens: Tensor, label: Tensor, num_tokens: int) -> float | None:
    """The mutual information of a message and the label, in bits, of the counts themselves: it is biased upwards by
    about (num_tokens - 1) / (2 B ln 2). tokens: int64 (B,), -1 where there is no message; these games do not count."""
    said = tokens >= 0
    if not bool(said.any()):
        return None
    counts = torch.bincount(tokens[said] * 2 + label[said], minlength=2 * num_tokens).view(num_tokens, 2).double()
    joint = counts / counts.sum()
    independent = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True)
    terms = torch.where(joint > 0, joint * (joint / independent).log(), 0.0)
    return max(0.0, float(terms.sum()) / math.log(2.0))


def _share(flags: Tensor) -> Share | None:
    return Share(int(flags.sum()), len(flags)) if len(flags) else None
