"""A causal language model of transformers as sampling and tuning call it: the same way, so that they agree.

Letters: B rows, T columns, V tokens of the vocabulary.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from palestra.models.learning import computing_in

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
        number: int = self.causal_lm.get_input_embeddings().weight.shape[0]
        return number

    @property
    def device(self) -> torch.device:
        device: torch.device = self.causal_lm.device
        return device

    def forward(self, ids: Tensor, mask: Tensor, num_logits: int, **cache: Any) -> tuple[Tensor, Any]:
        """Return the logits (B, num_logits, V) after the last columns of tokens (B, T), and the cache.

        mask: int64 (B, all columns so far), 0 for padding. cache: `use_cache` and `cache`, of columns read before.
        """
        named: dict[str, Any] = {"attention_mask": mask if self._needs_mask(mask) else None}
        if "position_ids" in self.takes:
            named["position_ids"] = positions(mask)[:, -ids.shape[1] :]
        if "logits_to_keep" in self.takes:
            named["logits_to_keep"] = num_logits
        with sdpa_kernel(ATTENTION), computing_in(str(self.computes_in).removeprefix("torch."), self.device):
            outputs = self.causal_lm(input_ids=ids, **named, **cache)
        return outputs.logits[:, -num_logits:], getattr(outputs, "cache", None)

    def _needs_mask(self, mask: Tensor) -> bool:
        return not mask.is_cpu or bool((mask == 0).any())


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
