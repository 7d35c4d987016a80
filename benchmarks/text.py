"""A byte model beside others: sampling beside transformers' `generate`, and opt steps beside TRL's, in one table.

    pip install trl && python -m benchmarks.text [--quick] [--json FILE]

Without TRL there are no rows of opt steps. README.md says what is counted, and how.
"""

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import Row, alternate, rate_of, tell
from benchmarks.text_steps import rows_of_steps
from palestra.randomness import base_key, fold, random_integers
from palestra.text.models.model import SamplingConfig
from palestra.text.models.network import draw_answers, left_padded
from palestra.text.models.sources import NewConfig

THEIRS, OURS = "transformers, generate", "palestra"
CPU = torch.device("cpu")
NUM_PROMPTS, MOST_TOKENS = 8, 64
STOPS = tuple(range(16))  # of 260 tokens, which random weights make about equally likely: 16 tokens in the mean


def rows_of(num_answers: int, is_uneven: bool, min_seconds: float, num_repeats: int) -> list[Row]:
    """Sampled tokens per second with some answers to each prompt, whose lengths differ or do not."""
    config = NewConfig(name="new", **(NewConfig.usual | {"context": 256}))
    model = config.build(base_key(0, "model"), CPU)
    lengths = [30 + 4 * number for number in range(NUM_PROMPTS)]
    prompts = [random_integers(fold(torch.tensor([7]), n), n, 256)[0].tolist() for n in lengths]
    repeated = [prompt for prompt in prompts for _ in range(num_answers)]
    stops = STOPS if is_uneven else ()
    works = {THEIRS: theirs(model.network.causal_lm, prompts, num_answers, stops), OURS: ours(model, repeated, stops)}
    for work in works.values():
        work()
    values = alternate({who: rate_of(work, min_seconds) for who, work in works.items()}, num_repeats)
    told = f"{NUM_PROMPTS} prompts, {num_answers} answers each, {'uneven' if is_uneven else 'even'} lengths"
    return Row.of("sampling", told, "tokens/s", 1, values, THEIRS)


def ours(model: Any, prompts: list[list[int]], stops: tuple[int, ...]) -> Callable[[], float]:
    """With the log-probability of every token, which tuning needs."""
    sampling = SamplingConfig(temperature=1.0, top_p=None, top_k=None, max_tokens=MOST_TOKENS)
    numbers, network = count(), model.network

    def work() -> float:
        keys = fold(torch.arange(len(prompts)), next(numbers))
        drawn = draw_answers(network, prompts, keys, sampling, stops, network.context)
        return float(sum(len(each.ids) for each in drawn))

    return work


def theirs(causal_lm: Any, prompts: list[list[int]], num_answers: int, stops: tuple[int, ...]) -> Callable[[], float]:
    ids, mask = left_padded(prompts, CPU)
    causal_lm.generation_config.eos_token_id = None
    named: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    named |= {"max_new_tokens": MOST_TOKENS, "num_return_sequences": num_answers, "pad_token_id": 259}
    if stops:
        named["eos_token_id"] = list(stops)

    def work() -> float:
        with torch.inference_mode():
            drawn = causal_lm.generate(input_ids=ids, attention_mask=mask, **named)[:, ids.shape[1] :]
        has_ended = torch.isin(drawn, torch.tensor(stops, dtype=torch.int64)).cumsum(dim=1)
        has_ended[:, 1:] = has_ended[:, :-1].clone()  # the token that ends an answer counts
        has_ended[:, 0] = 0
        return float((has_ended == 0).sum())

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write every measured value to this file, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    min_seconds, num_repeats = (0.0, 1) if arguments.quick else (2.0, 5)
    works = ((8, True), (8, False), (1, True), (1, False))
    rows = [row for work in works for row in rows_of(*work, min_seconds, num_repeats)]
    if find_spec("trl"):
        rows += rows_of_steps(1 if arguments.quick else 30, num_repeats)
    tell(rows, arguments.json)


if __name__ == "__main__":
    main()
