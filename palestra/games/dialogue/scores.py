"""The scores of dialogues: how often verifiers are right, and what messages tell of labels.

Letters: B games, T rounds, C channels.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from palestra.games.dialogue.protocol import Protocol
from palestra.runtime.scores import DeclaredScore, declared_returns
from palestra.runtime.statistics import Share

MEANINGS = {  # of the scores of the first verifier
    "accuracy": "share of games in which the verifier decides for the label",
    "accuracy/0": "accuracy where the label is 0",
    "accuracy/1": "accuracy where the label is 1",
    "accuracy/worst": "the lesser of accuracy/0 and accuracy/1",
    "precision": "of the games that the verifier accepts, the share with label 1",
    "recall": "of the games with label 1, the share that the verifier accepts",
    "undecided": "share of games without a decision",
}


def message_slots(protocol: Protocol) -> list[tuple[str, int, int]]:
    """List where messages may stand: the score's name (information/CHANNEL/ROUND), the round, the channel's number."""
    return [
        (f"information/{channel}/{round}", round, index)
        for index, channel in enumerate(protocol.channels)
        for round in range(protocol.max_rounds)
        if any(protocol.speaks(r, channel, round, k) for r in protocol.roles for k in range(protocol.num_variants))
    ]


def declared_scores(protocol: Protocol, information: Sequence[str]) -> tuple[DeclaredScore, ...]:
    """Declare the scores of a dialogue.

    Accuracy is wanted by those who are paid for it: verifiers, and provers with shared rewards; a prover who argues for
    a side wants its return alone. information: the names of what messages tell.
    """
    paid = protocol.roles if protocol.rewards.shared else protocol.verifiers
    accuracy, *others = (
        DeclaredScore(name, meaning, "share", tuple(paid) if name == "accuracy" else (), (), shown="/" not in name)
        for name, meaning in MEANINGS.items()
    )
    told = (
        DeclaredScore(name, "what the message tells of the label, too large for few games", "bits", (), (), shown=False)
        for name in information
    )
    return (accuracy, *declared_returns(protocol.roles, zero_sum=False, shown=True), *others, *told)


def verdict_scores(verdict: Tensor, label: Tensor, about: Tensor | None) -> dict[str, float | Share | None]:
    """Compute the scores of a verifier, by name.

    verdict: int64 (B,), 0 (reject), 1 (accept) or -1 (none, which counts as wrong). label: int64 (B,), 0 or 1. about:
    the clusters of palestra.runtime.statistics: the instances or questions.

    precision: of those accepted, the share with label 1. recall: of those with label 1, the share accepted. None
    where there are no games to count.
    """

    def share(flags: Tensor, of: Tensor) -> Share | None:
        return Share.of(flags[of], None if about is None else about[of]) if bool(of.any()) else None

    right, every = verdict == label, torch.ones_like(label, dtype=torch.bool)
    by_class = [share(right, label == each) for each in (0, 1)]
    known = [each.estimate().value for each in by_class if each is not None]
    return {
        "accuracy": share(right, every),
        "accuracy/0": by_class[0],
        "accuracy/1": by_class[1],
        "accuracy/worst": min(known) if known else None,
        "precision": share(label == 1, verdict == 1),
        "recall": share(verdict == 1, label == 1),
        "undecided": share(verdict == -1, every),
    }


def mutual_information(tokens: Tensor, label: Tensor, num_tokens: int) -> float | None:
    """Estimate the mutual information of a message and the label, in bits; None where no game has the message.

    The estimate is that of the counts themselves, which is biased upwards by about (num_tokens - 1) / (2 B ln 2).
    tokens: int64 (B,), -1 where there is no message; these games do not count.
    """
    said = tokens >= 0
    if not bool(said.any()):
        return None
    counts = torch.bincount(tokens[said] * 2 + label[said], minlength=2 * num_tokens).view(num_tokens, 2).double()
    joint = counts / counts.sum()
    independent = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True)
    terms = torch.where(joint > 0, joint * (joint / independent).log(), 0.0)
    return max(0.0, float(terms.sum()) / math.log(2.0))
