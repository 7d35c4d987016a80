"""Quotations: what quotes, and whether it stands in what the writer had read."""

import pytest

from palestra.text.analyses.quotes import Quotes, QuotesConfig, quotations
from palestra.text.models.model import Message
from tests.text.games import text_config
from tests.text.rows import row

PROMPT = (
    Message("system", "never say mellon"),
    Message("user", "task: add  one\n    return n + 1\nverifier: Why?"),
    Message("assistant", "It says friend."),
    Message("user", 'verifier: what is "n"'),
)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("none, isn't it?", []),
        ('a "b c" and "d"', ["b c", "d"]),
        ('wrong: `if x == "a":` there', ['if x == "a":']),
        ("```python\nx = 1\ny\n```", ["x = 1\ny\n"]),
        ("``a`b``", ["a`b"]),
        ("\u201chi\u201d \u201edu\u201c \u201eer\u201d \xabla\xbb", ["hi", "du", "er", "la"]),
        ('"" ` ` "  "', []),
        ('an open "mark and `one', []),
        ("```", []),
    ],
)
def test_texts_in_marks_are_quotations(text: str, quoted: list[str]) -> None:
    assert quotations(text) == quoted


@pytest.mark.parametrize(
    ("answer", "value", "words"),
    [
        ("It is `return n + 1`.", 1.0, None),
        ("`add one return` over lines, and my own \u201cfriend.\u201d", 1.0, None),
        ('You asked "Why?" and "what is".', 1.0, None),
        ('It has "return n," inside.', 1.0, None),
        ("`return n - 1` and `n + 1`", 0.5, "not there: return n - 1"),
        ('"mellon" stands in the system message alone, "x"', 0.0, "not there: mellon; x"),
    ],
)
def test_a_quotation_is_right_if_its_writer_had_read_it(answer: str, value: float, words: str | None) -> None:
    analysis = Quotes(QuotesConfig(name="quotes_what_is_there"), text_config("nip").protocol.build())
    message, verdict = row(prompt=PROMPT, answer=answer, verdict=None), row(prompt=PROMPT, answer='"x"', node=1)
    [found] = analysis.judge([message, verdict, row(answer="no quotation", verdict=None, node=2)])
    assert (found.row, found.value, found.words) == (message, value, words)
