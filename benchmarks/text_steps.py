"""Opt steps beside TRL's: SFTTrainer and GRPOTrainer on equal rows, with an equal model. Part of benchmarks.text.

Rows are prompts and answers that are tokens already, so that neither tokenizes while it is timed, and GRPO's rows are
given in place of sampled ones. Neither saves, evaluates or logs.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch

from benchmarks.measuring import Row, alternate
from palestra.randomness import base_key, fold, random_floats, random_integers
from palestra.text.models.local import TuningConfig
from palestra.text.models.losses import PolicyGradientConfig, SupervisedConfig
from palestra.text.models.model import Example, Job
from palestra.text.models.sources import NewConfig, byte_tokenizer

OURS = "palestra"
CPU = torch.device("cpu")
BATCH_SIZE, NUM_ROWS, WARMUP_STEPS = 64, 1024, 3
LEARNING_RATE, CLIP_RANGE = 1e-4, 0.2
TUNING = TuningConfig.model_validate(
    {
        "num_passes": 10**6,
        "batch_size": BATCH_SIZE,
        "num_microbatches": 1,
        "groups": [
            {
                "weights": "*",
                "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
                "learning_rate": {"name": "constant", "value": LEARNING_RATE},
            }
        ],
        "max_grad_norm": 1.0,
        "precision": "float32",
    }
)
SUPERVISED = SupervisedConfig(name="supervised", per="token")
GRADIENT = PolicyGradientConfig(
    name="policy_gradient", per="token", clip_range=CLIP_RANGE, kl_coefficient=0.0, kl_to="base"
)

Rates = Mapping[str, Callable[[], float]]


def rows_of_steps(num_steps: int, num_repeats: int) -> list[Row]:
    """Opt steps per second of batches of 64 rows, each of 24 to 40 and 8 to 16 tokens."""
    told = f"{BATCH_SIZE} rows of 24 to 40 + 8 to 16 tokens"
    works: dict[str, tuple[str, Rates]] = {
        "supervised": ("TRL, SFTTrainer", {"TRL, SFTTrainer": sft(num_steps), OURS: ours(SUPERVISED, num_steps)}),
        "policy gradient": ("TRL, GRPOTrainer", {"TRL, GRPOTrainer": grpo(num_steps), OURS: ours(GRADIENT, num_steps)}),
    }
    found: list[Row] = []
    for row, (baseline, rates) in works.items():
        found += Row.of(row, told, "opt steps/s", 1, alternate(rates, num_repeats), baseline)
    return found


def examples() -> list[Example]:
    """Rows of random bytes, no two of which are the same, with an advantage and log-probabilities."""
    keys = fold(torch.tensor([base_key(0, "rows")]), torch.arange(NUM_ROWS))
    lengths, tokens = random_integers(fold(keys, 0), 2, 2**31), random_integers(fold(keys, 1), 56, 256)
    advantages = (random_floats(fold(keys, 2), 1)[:, 0] - 0.5).tolist()
    found = []
    for length, ids, advantage in zip(lengths.tolist(), tokens.tolist(), advantages, strict=True):
        prompt, answer = 24 + length[0] % 17, 8 + length[1] % 9
        found.append(Example(tuple(ids[:prompt]), tuple(ids[40 : 40 + answer]), advantage, (-5.5,) * answer))
    return found


def new_model() -> Any:
    return NewConfig(name="new", **(NewConfig.usual | {"context": 256})).build(base_key(0, "model"), CPU)


def ours(loss: Any, num_steps: int) -> Callable[[], float]:
    rows = examples()
    if isinstance(loss, SupervisedConfig):
        rows = [Example(row.prompt_ids, row.ids, 1.0) for row in rows]
    numbers = count()

    def measure() -> float:
        job = Job(rows, loss, "before", 1.0)
        tuning = new_model().tuning(job, TUNING, next(numbers))
        for _ in range(WARMUP_STEPS):
            tuning.step()
        begun = time.perf_counter()
        for _ in range(num_steps):
            tuning.step()
        return num_steps / (time.perf_counter() - begun)

    return measure


# ---- TRL -------------------------------------------------------------------------------------------------


def common(num_steps: int) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": BATCH_SIZE,
        "max_steps": WARMUP_STEPS + num_steps,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def tokenizer() -> Any:
    made = byte_tokenizer()
    made.pad_token = made.eos_token
    return made


def timed(trainer: Any, num_steps: int) -> float:
    """Opt steps per second of a trainer of transformers, after the warm-up."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        begun = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if state.global_step == WARMUP_STEPS:
                self.begun = time.perf_counter()
            if state.global_step == WARMUP_STEPS + num_steps:
                self.seconds = time.perf_counter() - self.begun

    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    return num_steps / clock.seconds


def sft(num_steps: int) -> Callable[[], float]:
    from datasets import Dataset  # type: ignore[import-not-found]
    from trl import SFTConfig, SFTTrainer  # type: ignore[import-not-found]

    rows = [
        {
            "input_ids": [*row.prompt_ids, *row.ids],
            "completion_mask": [0] * len(row.prompt_ids) + [1] * len(row.ids),
        }
        for row in examples()
    ]

    def measure() -> float:
        trainer = SFTTrainer(
            model=new_model().network.causal_lm,
            args=SFTConfig(**common(num_steps), completion_only_loss=True, loss_type="nll"),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer(),
        )
        return timed(trainer, num_steps)

    return measure


def grpo(num_steps: int) -> Callable[[], float]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = examples()
    prepared = [_prepared(rows[first : first + BATCH_SIZE]) for first in range(0, NUM_ROWS, BATCH_SIZE)]

    class Given(GRPOTrainer):
        """Learns from rows that are given, where it would sample."""

        number = 0

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            self.number += 1
            return prepared[self.number % len(prepared)]

    def measure() -> float:
        trainer = Given(
            model=new_model().network.causal_lm,
            reward_funcs=lambda completions, **named: [0.0] * len(completions),
            args=GRPOConfig(**common(num_steps), beta=0.0, loss_type="bnpo", epsilon=CLIP_RANGE, num_generations=8),
            train_dataset=Dataset.from_dict({"prompt": ["a"] * NUM_ROWS}),
            processing_class=tokenizer(),
        )
        return timed(trainer, num_steps)

    return measure


def _prepared(rows: list[Example]) -> dict[str, Any]:
    """A batch as GRPOTrainer's sampling would have made it."""
    from benchmarks.models.trl_losses import padded

    prompts, prompt_mask = padded([row.prompt_ids for row in rows], "left")
    answers, answer_mask = padded([row.ids for row in rows], "right")
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": answers,
        "completion_mask": answer_mask,
        "advantages": torch.tensor([row.weight for row in rows]),
        "old_per_token_logps": padded([row.log_probs for row in rows], "right", torch.float32)[0],
        "num_items_in_batch": answer_mask.sum(),
    }
