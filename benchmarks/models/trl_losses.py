"""What TRL computes of a few answers: its losses and their gradients, with which a test compares palestra's.

    pip install trl && python -m benchmarks.models.trl_losses > tests/text/trl_losses.json

The figures that are stored there come from TRL 1.16.
"""

import json
import sys
import tempfile
from typing import Any

import torch
from torch import Tensor

from palestra.randomness import base_key
from palestra.text.models.sources import NewConfig

CPU = torch.device("cpu")
TEMPERATURE, CLIP_RANGE, KL_COEFFICIENT = 0.7, 0.2, 0.3
PAST, REFERENCE = 0.15, 0.4  # how far these log-probabilities are from the model's
PROMPTS = ((258, 104, 105, 259), (257, 97, 258, 98, 99, 259), (258, 259))
ANSWERS = ((97, 99, 256), (114, 256), (98, 98, 97, 99))
ADVANTAGES = (1.5, -0.5, 0.25)
WORSE = ((114, 256), (97, 98, 99, 100, 256), (256,))  # answers to the same prompts
BETA, SHIFT = 2.0, 0.1  # of a preference, and how far its reference's weights are from the model's
SIZES: dict[str, Any] = {"num_layers": 2, "width": 8, "num_heads": 2, "mlp_width": 12, "context": 32, "init_std": 0.3}


def causal_lm(shift: float = 0.0) -> Any:
    """A small Llama whose weights follow from no generator of random numbers."""
    made = NewConfig(name="new", **SIZES).build(base_key(0, "model"), CPU).network.causal_lm
    with torch.no_grad():
        for number, weight in enumerate(made.parameters()):
            weight.copy_(0.5 * torch.sin(torch.arange(weight.numel()) * 1.7 + number + shift).view(weight.shape))
    return made


def past_log_probs(shift: float) -> list[list[float]]:
    """Log-probabilities of the answers' tokens as another model might have had them: near to those of this one."""
    now = ((-5.48, -5.68, -5.67), (-5.66, -5.44), (-5.4, -5.75, -5.71, -5.68))
    return [[x + shift * ((3 * i + j) % 5 - 2) for j, x in enumerate(row)] for i, row in enumerate(now)]


def gradient_figures(model: Any) -> dict[str, list[float]]:
    """Of each weight's gradient its norm, and its product with a fixed direction."""
    figures = {}
    for name, weight in model.named_parameters():
        direction = torch.sin(torch.arange(weight.numel(), dtype=torch.float32)).view(weight.shape)
        figures[name] = [float(weight.grad.norm()), float((weight.grad * direction).sum())]
    return figures


def padded(rows: Any, side: str, dtype: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]
    values = [[*f, *row] if side == "left" else [*row, *f] for f, row in zip(fill, rows, strict=True)]
    masks = [
        [*f, *[1] * len(row)] if side == "left" else [*[1] * len(row), *f] for f, row in zip(fill, rows, strict=True)
    ]
    return torch.tensor(values, dtype=dtype), torch.tensor(masks)


def figures_of(loss: Tensor, model: Any) -> dict[str, Any]:
    loss.backward()
    return {"loss": float(loss), "gradients": gradient_figures(model)}


def main() -> None:
    from datasets import Dataset  # type: ignore[import-not-found]
    from trl import (  # type: ignore[import-not-found]
        DPOConfig,
        DPOTrainer,
        GRPOConfig,
        GRPOTrainer,
        RLOOConfig,
        RLOOTrainer,
        SFTConfig,
        SFTTrainer,
    )

    from palestra.text.models.sources import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    out = tempfile.mkdtemp()
    rows = Dataset.from_dict({"prompt": ["a", "b"] * 4})
    common: dict[str, Any] = {"output_dir": out, "report_to": [], "use_cpu": True, "bf16": False}
    prompts, prompt_mask = padded(PROMPTS, "left")
    answers, answer_mask = padded(ANSWERS, "right")
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": answers,
        "completion_mask": answer_mask,
        "advantages": torch.tensor(ADVANTAGES),
        "old_per_token_logps": padded(past_log_probs(PAST), "right", torch.float32)[0],
        "ref_per_token_logps": padded(past_log_probs(REFERENCE), "right", torch.float32)[0],
        "num_items_in_batch": answer_mask.sum(),
    }
    inputs["old_logps"] = (inputs["old_per_token_logps"] * answer_mask).sum(1)
    own = {"temperature": TEMPERATURE, "epsilon": CLIP_RANGE, "num_generations": 2, "per_device_train_batch_size": 2}
    found: dict[str, Any] = {}
    model = causal_lm()
    grpo = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **named: [0.0] * len(completions),
        args=GRPOConfig(**common, **own, beta=0.0, loss_type="bnpo"),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    grpo.beta = KL_COEFFICIENT  # said earlier it would load the model once more
    grpo.current_gradient_accumulation_steps = 1
    found["grpo, bnpo"] = figures_of(grpo._compute_loss(model, inputs), model)
    model = causal_lm()
    rloo = RLOOTrainer(
        model=model,
        reward_funcs=lambda completions, **named: [0.0] * len(completions),
        args=RLOOConfig(**common, **own, beta=0.0),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    found["rloo"] = figures_of(rloo._compute_loss(model, inputs), model)
    model = causal_lm()
    sft = SFTTrainer(
        model=model,
        args=SFTConfig(**common),
        train_dataset=Dataset.from_dict({"text": ["a"] * 4}),
        processing_class=tokenizer,
    )
    labels = torch.cat([torch.full_like(prompts, -100), answers.masked_fill(answer_mask == 0, -100)], dim=1)
    batch = {
        "input_ids": torch.cat([prompts, answers], dim=1),
        "attention_mask": torch.cat([prompt_mask, answer_mask], dim=1),
        "labels": labels,
    }
    found["sft"] = figures_of(sft.compute_loss(sft.model, batch), sft.model)
    model = causal_lm()
    dpo = DPOTrainer(
        model=model,
        ref_model=causal_lm(SHIFT),
        args=DPOConfig(**common, beta=BETA),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4, "chosen": ["b"] * 4, "rejected": ["c"] * 4}),
        processing_class=tokenizer,
    )
    pairs = [
        {"prompt_ids": list(prompt), "chosen_ids": list(better), "rejected_ids": list(worse)}
        for prompt, better, worse in zip(PROMPTS, ANSWERS, WORSE, strict=True)
    ]
    found["dpo"] = figures_of(dpo.compute_loss(dpo.model, dpo.data_collator(pairs)), dpo.model)
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
