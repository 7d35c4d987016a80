"""How answers are drawn: equal prompts are computed once, and rows whose answer has ended leave the batch.

The draw of a token depends on its row's key and the number of the token alone, so an answer does not depend on what is
computed beside it, except for rounding.

Letters: U different prompts, B rows, P tokens of the longest prompt, V tokens of the vocabulary.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from palestra.randomness import fold, random_bits
from palestra.text.models.model import SamplingConfig
from palestra.text.models.network import Network, left_padded, scaled_log_probs


class Drawn(NamedTuple):
    """The tokens of an answer, with their log-probabilities, and why there are no more."""

    ids: list[int]
    log_probs: list[float]
    stop: Literal["stop", "length"]


class Rows:
    """Rows of a batch that a network reads one token at a time: its cache, and which columns of it are no padding.

    mask: int64 (B, columns so far). logits: after the last column, (B, V).
    """

    def __init__(self, network: Network, prompts: Sequence[Sequence[int]]) -> None:
        self.network = network
        ids, self.mask = left_padded(prompts, network.device)
        self.cache: Any = None
        self._compute(ids)

    def _compute(self, ids: Tensor) -> None:
        logits, self.cache = self.network(ids, self.mask, 1, cache=self.cache, use_cache=True)
        self.logits = logits[:, -1]

    def read(self, tokens: Tensor) -> None:
        """Read one more token in each row, (B,)."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        self._compute(tokens[:, None])

    def select(self, indices: Tensor) -> None:
        """Keep the rows of these numbers, in this order; a row may be kept several times."""
        self.cache.reorder_cache(indices)
        self.mask, self.logits = self.mask[indices], self.logits[indices]


@torch.no_grad()
def draw_answers(
    network: Network,
    prompts: Sequence[Sequence[int]],
    keys: Tensor,
    sampling: SamplingConfig,
    stops: Collection[int],
    context: int | None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[Drawn]:
    """Draw an answer to each prompt.

    prompts: of one token at least, and fewer than `context`. keys: int64 (B,). stops: tokens that end an answer.
    context: the most tokens that the network reads; None for one without such a limit. is_wanted: False ends the
    answers, wherever they are.
    """
    device = keys.device
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    rows = Rows(network, list(numbers))
    rows.select(torch.tensor([numbers[tuple(prompt)] for prompt in prompts], device=device))
    most = sampling.max_tokens
    room = [most if context is None else min(most, context - len(prompt)) for prompt in prompts]
    rooms = torch.tensor(room, device=device)
    ending = torch.tensor(sorted(stops), device=device)
    drawn = [Drawn([], [], "length") for _ in prompts]
    running = torch.arange(len(prompts), device=device)  # the number of each row's prompt
    while True:
        time = len(drawn[int(running[0])].ids)
        log_probs = scaled_log_probs(rows.logits, sampling.temperature)
        tokens = draw_tokens(log_probs, fold(keys[running], time), sampling)
        has_stopped = torch.isin(tokens, ending)
        chosen = log_probs.gather(1, tokens[:, None])[:, 0]
        for row, token, log_prob, is_last in zip(
            running.tolist(), tokens.tolist(), chosen.tolist(), has_stopped.tolist(), strict=True
        ):
            ids, own, _ = drawn[row]
            ids.append(token)
            own.append(log_prob)
            if is_last:
                drawn[row] = Drawn(ids, own, "stop")
        is_left = ~has_stopped & (rooms[running] > time + 1)
        left = is_left.nonzero()[:, 0]
        if len(left) == 0 or not is_wanted():
            return drawn
        if len(left) < len(running):
            rows.select(left)
            running, tokens = running[left], tokens[left]
        rows.read(tokens)


def draw_tokens(log_probs: Tensor, keys: Tensor, sampling: SamplingConfig) -> Tensor:
    """Draw a token in each row: int64 (B,), of log-probabilities (B, V) and keys (B,), each used for this alone.

    The probabilities are added up in the order of the vocabulary, and the token is the first whose sum exceeds a
    uniform number in [0, 1) times the sum of all, in float64.
    """
    probs = log_probs.double().exp()
    if sampling.top_k is not None and sampling.top_k < probs.shape[1]:
        kept = probs.topk(sampling.top_k, dim=1).indices
        probs = torch.zeros_like(probs).scatter_(1, kept, probs.gather(1, kept))
    if sampling.top_p is not None:
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(dim=1) - ordered
        is_kept = before < sampling.top_p * ordered.sum(dim=1, keepdim=True)
        probs = torch.zeros_like(probs).scatter_(1, order, ordered * is_kept)
    sums = probs.cumsum(dim=1)
    # 52 bits, so that the product stays below the sum of all
    uniform = ((random_bits(keys, 1) >> 12) & ((1 << 52) - 1)).double() * 2.0**-52
    return torch.searchsorted(sums, uniform * sums[:, -1:], right=True)[:, 0]
