import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.text.algorithms.algorithm import Example
from palestra.text.models.model import Message
from palestra.text.servers.job_files import (
    MOST_LINE_BYTES,
    Decision,
    JobFileError,
    Pair,
    decisions_of,
    pairs_of,
    preference_file,
    read_messages,
    read_pairs,
    read_supervised,
    supervised_file,
)
from tests.text.rows import row

ASK, ANSWER, MORE = Message("user", "is it?"), Message("assistant", "no"), Message("user", "sure?")
TEXTS = st.text(max_size=3)  # also halves of pairs of UTF-16, which JSON escapes
MESSAGES = st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXTS)
PROMPTS = st.lists(MESSAGES, min_size=1, max_size=3).map(tuple)


def lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


@settings(max_examples=50)
@given(st.lists(st.builds(Decision, PROMPTS, TEXTS), min_size=1), st.lists(st.builds(Pair, PROMPTS, TEXTS, TEXTS)))
def test_what_is_written_is_read_again(decisions: list[Decision], pairs: list[Pair]) -> None:
    assert list(read_supervised(supervised_file(decisions))) == decisions
    assert not pairs or list(read_pairs(preference_file(pairs))) == pairs


def test_later_prompts_that_hold_the_earlier_answers_go_into_one_example() -> None:
    dialogue = [Decision((ASK,), "no"), Decision((ASK, ANSWER, MORE), "yes")]
    other = [Decision((ASK,), "no"), Decision((ASK, Message("assistant", "No."), MORE), "yes")]
    found = lines(supervised_file([*dialogue, *other, dialogue[0], dialogue[0]]))
    assert [len(each["messages"]) for each in found] == [4, 2, 4, 2, 2]
    assert found[0]["messages"][1::2] == [
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "yes"},
    ]
    assert found[2]["messages"][1] == {"role": "assistant", "content": "No.", "weight": 0}, "not the player's own"


def test_pairs_have_the_form_that_openai_asks_for() -> None:
    assert lines(preference_file([Pair((ASK, ANSWER), "a", "b")])) == [
        {
            "input": {
                "messages": [{"role": "user", "content": "is it?"}, {"role": "assistant", "content": "no"}],
            },
            "preferred_output": [{"role": "assistant", "content": "a"}],
            "non_preferred_output": [{"role": "assistant", "content": "b"}],
        }
    ]


def test_decisions_of_an_algorithm_have_the_answer_that_should_have_been_given_and_no_weight() -> None:
    assert decisions_of([Example(row(), 1.0), Example(row(), 1.0, "no")]) == [
        Decision(row().prompt, "yes"),
        Decision(row().prompt, "no"),
    ]
    assert pairs_of([Example(row(), 1.0, worse=row(answer="no"))]) == [Pair(row().prompt, "yes", "no")]
    with pytest.raises(JobFileError, match=r"question 0, 'verifier': expected the weight 1, .*, got 0.5"):
        decisions_of([Example(row(), 0.5)])


def test_files_of_others_are_read() -> None:
    """With parts of texts, other names of roles, empty tools, empty lines, and any line ends."""
    parts = [{"type": "text", "text": "is "}, {"type": "text", "text": "it?"}]
    messages: list[Any] = [{"role": "developer", "content": "judge"}, {"role": "user", "content": parts, "name": None}]
    example = {"messages": [*messages, {"role": "assistant", "content": "no", "weight": 1}], "tools": []}
    content = b"\n" + json.dumps(example | {"parallel_tool_calls": True}).encode() + b"\r\n\n"
    assert list(read_supervised(content)) == [Decision((Message("system", "judge"), ASK), "no")]


SAID = {"role": "user", "content": "?"}
GIVEN = {"role": "assistant", "content": "no"}


@pytest.mark.parametrize(
    ("example", "error"),
    [
        ([], "line 2: expected a JSON object, got a list without entries"),
        ({"prompt": "?"}, "line 2: expected the key messages, got none"),
        ({"messages": [SAID, GIVEN], "tools": [{}]}, 'line 2: expected messages alone, got "tools", too'),
        ({"messages": []}, "line 2: messages: expected a list of messages, got a list without entries"),
        ({"messages": [SAID, "no"]}, 'line 2: messages.1: expected an object with role and content, got "no"'),
        ({"messages": [SAID]}, "line 2: expected an answer of the assistant at the end, got a message of another role"),
        ({"messages": [GIVEN]}, "line 2: expected a message before the first answer that is learned, got none"),
        ({"messages": [SAID, GIVEN | {"weight": 0}]}, "line 2: expected an answer of the assistant with the weight 1"),
        ({"messages": [SAID, GIVEN | {"weight": 0.5}]}, "line 2: messages.1.weight: expected 0 or 1, .*, got 0.5"),
        ({"messages": [SAID | {"weight": 1}, GIVEN]}, "line 2: messages.0.weight: expected 0 or 1, of an answer"),
        ({"messages": [SAID | {"role": "tool"}, GIVEN]}, 'line 2: messages.0.role: expected one of system, .* "tool"'),
        ({"messages": [SAID | {"content": None}, GIVEN]}, "line 2: messages.0.content: expected a text, got null"),
        ({"messages": [SAID, GIVEN | {"tool_calls": [1]}]}, 'line 2: messages.1: .* alone, got "tool_calls", too'),
        ({"messages": [SAID | {"content": [{"type": "image_url"}]}, GIVEN]}, "messages.0.content.0: expected a part"),
    ],
)
def test_what_is_wrong_with_a_line_is_named(example: Any, error: str) -> None:
    content = supervised_file([Decision((ASK,), "no")]) + json.dumps(example).encode()
    with pytest.raises(JobFileError, match=error):
        list(read_supervised(content))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"input": None}, "line 1: input: expected an object with messages, got null"),
        ({"input": {"messages": [SAID], "tools": [{}]}}, 'line 1: input: expected messages alone, got "tools", too'),
        ({"preferred_output": [SAID]}, "line 1: preferred_output: expected one answer of the assistant"),
        ({"non_preferred_output": [GIVEN, GIVEN]}, "line 1: non_preferred_output: expected one answer"),
        ({"chosen": 1}, 'got "chosen", too'),
    ],
)
def test_what_is_wrong_with_a_pair_is_named(changed: dict[str, Any], error: str) -> None:
    example = {"input": {"messages": [SAID]}, "preferred_output": [GIVEN], "non_preferred_output": [GIVEN]}
    with pytest.raises(JobFileError, match=error):
        list(read_pairs(json.dumps(example | changed).encode()))


def test_decisions_are_read_one_after_the_other_because_all_at_once_may_need_far_more_memory_than_the_file() -> None:
    content = supervised_file([Decision((ASK,), "no")]) + b"nothing"
    found = read_supervised(content)
    assert next(found) == Decision((ASK,), "no")
    with pytest.raises(JobFileError, match="line 2: expected a JSON object"):
        next(found)


def test_what_is_no_json_is_named() -> None:
    for content, error in {
        b"": "expected at least one line with an example, got an empty file",
        b"\xff": "line 1: expected a JSON object, got other text",
        b"[" * 100_000: "line 1: expected a JSON object, got brackets nested too deeply",
        b"9" * 10_000: "line 1: expected a JSON object, got other text",
        b"\n" + b"[" * (MOST_LINE_BYTES + 1): "line 2: expected at most 8388608 bytes, got 8388609",
    }.items():
        with pytest.raises(JobFileError, match=error):
            list(read_supervised(content))


def test_a_message_of_no_text_is_quoted_in_short() -> None:
    with pytest.raises(JobFileError, match=r"^messages: expected a list of messages, got \"x{56}\.\.\.$"):
        read_messages("x" * 10_000, "messages")
