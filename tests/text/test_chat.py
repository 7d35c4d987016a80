"""Prompts are values: equal messages make equal prompts, which a sampler computes once."""

from palestra.text.models.model import Message, Prompt


def test_equal_prompts_are_one_key() -> None:
    prompts: list[Prompt] = [(Message("system", "a"), Message("user", "b")) for _ in range(2)]
    assert len(set(prompts)) == 1
    assert Message("user", "a") != Message("assistant", "a")
