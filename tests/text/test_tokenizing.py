"""Strangers' tokenizers, in their process."""

import os
import signal
import time
from typing import Any

import pytest

from palestra.text.models.encode import Encoder, Isolated, TokenizerError
from palestra.text.models.extra import library
from palestra.text.models.model import Message
from palestra.text.models.sources import byte_tokenizer
from palestra.text.sandbox import Limits

GOOD, GROWING, PANICKING, BACKTRACKING, SLOW = range(5)


def sources() -> list[str]:
    tokenizers = library("tokenizers")
    pre, split = tokenizers.pre_tokenizers, tokenizers.pre_tokenizers.Split

    def made(**parts: Any) -> str:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        text: str = tokenizer.to_str()
        return text

    growing = tokenizers.normalizers.Replace("a", "b" * 40_000)
    return [
        made(decoder=tokenizers.decoders.Replace("a", "b" * 40_000)),
        made(normalizer=growing),
        made(pre_tokenizer=pre.FixedLength(0)),
        made(pre_tokenizer=split(tokenizers.Regex(r"(a|a)+$"), "isolated")),
        made(pre_tokenizer=split(tokenizers.Regex(r"b+(?<!b)"), "isolated")),
    ]


@pytest.fixture(scope="module")
def isolated() -> Isolated:
    return Isolated(sources(), Limits(seconds=0, num_bytes=100 << 20, characters=16 << 20))


@pytest.mark.parametrize(
    ("name", "place", "given", "error"),
    [
        ("encode", GROWING, "a" * 20_000, "needs more than 100 MiB"),
        ("decode", GOOD, [0] * 20_000, "needs more than 100 MiB"),
        ("encode", PANICKING, "a", "PanicException: chunk size must be non-zero"),
        ("encode", BACKTRACKING, "a" * 40 + "b", "PanicException: .*retry-limit-in-match over|needs more than 0 s"),
        ("encode", SLOW, "b" * 100_000, "needs more than 0 s"),
    ],
)
def test_a_text_at_which_a_tokenizer_fails_or_goes_on_and_on_is_refused(
    isolated: Isolated, name: str, place: int, given: Any, error: str
) -> None:
    began_s = time.monotonic()
    with pytest.raises(TokenizerError, match=error):
        isolated(name, place, given)
    assert time.monotonic() - began_s < 30
    assert isolated("encode", GOOD, "a") == [0], "the next text is read"


def test_a_process_that_was_killed_is_followed_by_another_one(isolated: Isolated) -> None:
    isolated("encode", GOOD, "a")
    assert isolated.process.running is not None
    os.kill(isolated.process.running.pid, signal.SIGKILL)
    os.waitid(os.P_PID, isolated.process.running.pid, os.WEXITED | os.WNOWAIT)
    assert isolated("encode", GOOD, "a") == [0]


def test_the_process_ends_with_what_has_started_it() -> None:
    isolated = Isolated(sources()[:1])
    isolated("encode", GOOD, "a")
    process = isolated.process.running
    assert process is not None
    del isolated
    assert process.poll() == -signal.SIGKILL


def test_tokens_and_texts_are_those_of_the_tokenizer_itself() -> None:
    tokenizer = byte_tokenizer()
    inside, outside = (Encoder(tokenizer, [tokenizer.eos_token_id]) for _ in range(2))
    outside.isolate()
    for text in ("", "hi", "é\u2028\n\r\x00 <|end|> \U0001f600", "x" * 10_000):
        [ids] = inside.encode([(Message("user", text),)])
        assert list(outside.encode([(Message("user", text),)])) == [ids]
        assert outside.encode_answer(text) == inside.encode_answer(text)
        assert outside.decode(ids) == inside.decode(ids)
