"""A causal language model of transformers as sampling and tuning call it: the same way, so that they agree.

When answers are drawn, equal prompts are computed once, and rows whose answer has ended leave the batch. The draw of a
token depends on its row's key and the number of the token alone, so an answer does not depend on what is computed
beside it, except for rounding.

Letters: U different prompts, B rows, P tokens of the longest prompt, T columns, V tokens of the vocabulary.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from palestra.models.learning import computing_in
from palestra.randomness import fold, random_bits
from palestra.text.models.model import SamplingConfig

# not cuDNN's: its gradients were NaN in bfloat16 where padding reads no token (torch 2.11, H100)
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Network(nn.Module):
    """Calls a model of transformers, with what its `forward` takes.

    context: the most tokens that it reads; None if its config names no limit. num_tokens: how many tokens it knows.
    """

    def __init__(self, causal_lm: Any) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.computes_in = torch.float32
        self.takes = frozenset(inspect.signature(causal_lm.forward).parameters)
        names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
        limits = (getattr(causal_lm.config.get_text_config(decoder=True), name, None) for name in names)
        self.context: int | None = next((limit for limit in limits if isinstance(limit, int)), None)

    def keep_in_float32(self, weights: Iterable[nn.Parameter]) -> None:
        """Keep weights that learn in float32, which small steps move; they are computed with in the type they had."""
        for each in weights:
            if each.dtype != torch.float32:
                self.computes_in, each.data = each.dtype, each.data.float()

    @property
    def num_tokens(self) -> int:
        return self.causal_lm.get_input_embeddings().weight.shape[0]

    @property
    def device(self) -> torch.device:
        return self.causal_lm.device

    def forward(self, ids: Tensor, mask: Tensor, num_logits: int, **cache: Any) -> tuple[Tensor, Any]:
        """Return the logits (B, num_logits, V) after the last columns of tokens (B, T), and the cache.

        mask: int64 (B, all columns so far), 0 for padding. cache: `use_cache` and `cache`, of columns read before.
        """
        needs_mask = not mask.is_cpu or bool((mask == 0).any())
        named: dict[str, Any] = {"attention_mask": mask if needs_mask else None}
        if "position_ids" in self.takes:
            named["position_ids"] = positions(mask)[:, -ids.shape[1] :]
        if "logits_to_keep" in self.takes:
            named["logits_to_keep"] = num_logits
        with sdpa_kernel(ATTENTION), computing_in(str(self.computes_in).removeprefix("torch."), self.device):
            outputs = self.causal_lm(input_ids=ids, **named, **cache)
        return outputs.logits[:, -num_logits:], getattr(outputs, "cache", None)


def scaled_log_probs(logits: Tensor, temperature: float) -> Tensor:
    """Return the logarithms of the softmax of logits (..., V) divided by a temperature, in float32 or wider."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature, dim=-1)


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens as int64 (B, T), padded on the left, and which of them are no padding, int64 (B, T)."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def positions(mask: Tensor) -> Tensor:
    """Return the position of each token in its row, int64 (B, T); padding on the left has position 0."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


# ---- drawing answers ----------------------------------------------------------------------------------------


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
        left = (~has_stopped & (rooms[running] > time + 1)).nonzero()[:, 0]
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
