"""The batch of which losses are computed.

Letters: B answers, A tokens of the longest, T columns.
"""

from typing import TypedDict

from torch import Tensor


class Batch(TypedDict):
    """Answers with their prompts.

    Of pairs, every tensor but `weight` has an axis of 2 behind the first: the better answer, and the worse one.

    tokens: int64 (B, T): prompts, padded on the left, and then answers, padded on the right. read: int64 (B, T), 0 for
    padding. is_answer: bool (B, A), the tokens that are learned, which are the last A columns without their padding.
    weight: float32 (B,), how much each answer counts, or its advantage. sampled: float32 (B, A), the log-probability of
    each token when it was drawn, 0 without one. reference: (B, A), those of the model to which the loss stays near, 0
    for a loss that asks for none.
    """

    tokens: Tensor
    read: Tensor
    is_answer: Tensor
    weight: Tensor
    sampled: Tensor
    reference: Tensor


def mean_of_answer(values: Tensor, is_answer: Tensor) -> Tensor:
    """Return the mean of values (B, A) over the tokens of each answer, (B,); of pairs (B, 2)."""
    return sum_of_answer(values, is_answer) / is_answer.sum(dim=-1)


def sum_of_answer(values: Tensor, is_answer: Tensor) -> Tensor:
    """Return the sum of values (B, A) over the tokens of each answer, (B,); of pairs (B, 2)."""
    return values.masked_fill(~is_answer, 0.0).sum(dim=-1)
