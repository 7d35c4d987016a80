"""The files of fine-tuning jobs in OpenAI's formats: JSON lines of dialogues, or of pairs of answers, both ways.

A line of a supervised file is `{"messages": [...]}`. Each answer of the assistant in it is learned, unless it has
`"weight": 0`, and its prompt is all messages before it. A line of a file of pairs is `{"input": {"messages": [...]},
"preferred_output": [...], "non_preferred_output": [...]}`, with one answer of the assistant in each of the last two.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from palestra.config import cut
from palestra.text.algorithms.algorithm import Example
from palestra.text.models.model import Example as JobExample
from palestra.text.models.model import Message, Prompt, PromptRefused, TextModel

ROLES = ("system", "developer", "user", "assistant")
MOST_LINE_BYTES = 8 << 20  # reading a longer line would stop the other threads of a server for seconds
MOST_MESSAGES = 2048  # of a line, or a request, as with OpenAI


class JobFileError(ValueError):
    """A line of a file is no example, or a decision does not fit into a file. The message is one line."""


class Decision(NamedTuple):
    """An answer to learn, and the prompt after which it was given."""

    prompt: Prompt
    answer: str


class Pair(NamedTuple):
    """Two answers to a prompt, of which the first is the better one."""

    prompt: Prompt
    better: str
    worse: str


# ---- writing -----------------------------------------------------------------------------------------


def decisions_of(examples: Iterable[Example]) -> list[Decision]:
    """Return what an algorithm has chosen. Raises JobFileError for a weight other than 1, which no file can hold."""
    return [
        Decision(each.row.prompt, each.row.answer if each.answer is None else each.answer) for each in _equal(examples)
    ]


def pairs_of(examples: Iterable[Example]) -> list[Pair]:
    """Return the pairs that an algorithm has chosen. Raises JobFileError for a weight other than 1."""
    return [
        Pair(each.row.prompt, each.row.answer, each.worse.answer) for each in _equal(examples) if each.worse is not None
    ]


def _equal(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield examples, all of which must count alike. Raises JobFileError."""
    for each in examples:
        if each.weight != 1.0:
            where = f"question {each.row.question}, {each.row.role!r}"
            raise JobFileError(f"{where}: expected the weight 1, because a server knows no other, got {each.weight:g}")
        yield each


def supervised_file(decisions: Iterable[Decision]) -> bytes:
    """Write decisions, in order; equal ones give equal bytes.

    A decision goes into the line of the one before it if its prompt begins with that one's prompt and answer, as the
    later prompts of a dialogue do. Other answers of the assistant in a prompt are not learned.
    """
    lines: list[list[dict[str, Any]]] = []
    read: Prompt = ()  # all messages of the last line
    for prompt, answer in decisions:
        if not read or prompt[: len(read)] != read:
            lines.append([])
            read = ()
        lines[-1] += [_plain(message, is_learned=False) for message in prompt[len(read) :]]
        read = (*prompt, Message("assistant", answer))
        lines[-1].append(_plain(read[-1], is_learned=True))
    return _json_lines({"messages": messages} for messages in lines)


def preference_file(pairs: Iterable[Pair]) -> bytes:
    """Write pairs, in order; equal ones give equal bytes."""
    return _json_lines(
        {
            "input": {"messages": [_plain(message, is_learned=True) for message in prompt]},
            "preferred_output": [_plain(Message("assistant", better), is_learned=True)],
            "non_preferred_output": [_plain(Message("assistant", worse), is_learned=True)],
        }
        for prompt, better, worse in pairs
    )


def _plain(message: Message, is_learned: bool) -> dict[str, Any]:
    """Return a message as data. is_learned: False marks an answer of the assistant that is not to be learned."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    return plain if is_learned or message.role != "assistant" else plain | {"weight": 0}


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# ---- reading -----------------------------------------------------------------------------------------


def read_supervised(content: bytes) -> Iterator[Decision]:
    """Yield the decisions of a file. Raises JobFileError, which names the line.

    All at once they may need far more memory than the file: each has the messages before it.
    """
    return (decision for _, decision in _decisions(content))


def read_pairs(content: bytes) -> Iterator[Pair]:
    """Yield the pairs of a file. Raises JobFileError, which names the line."""
    return (pair for _, pair in _pairs(content))


def examples_in(model: TextModel, content: bytes, are_pairs: bool) -> list[JobExample]:
    """Return the decisions or pairs of a file, as a local model reads them. Raises JobFileError for a damaged line."""
    return [_example(model, *each) for each in (_pairs(content) if are_pairs else _decisions(content))]


def _example(model: TextModel, number: int, read: Decision | Pair) -> JobExample:
    """Return what stands in a line as a model reads it. number: of the line, which is told if the model cannot."""
    try:
        answer = model.written(*read[:2])
        worse = model.answer_ids(read.worse, len(answer.prompt_ids)) if isinstance(read, Pair) else ()
    except PromptRefused as error:
        raise JobFileError(f"line {number}: {error}") from error
    return JobExample(answer.prompt_ids, answer.ids, 1.0, worse=worse)


def _decisions(content: bytes) -> Iterator[tuple[int, Decision]]:
    """Yield the decisions of a file, each with the number of its line."""
    for number, row in _rows(content):
        where = f"line {number}"
        _require_keys(row, ("messages",), where)
        messages = read_messages(row["messages"], f"{where}: messages", may_weigh=True)
        if messages[-1].role != "assistant":
            raise JobFileError(
                f"{where}: expected an answer of the assistant at the end, got a message of another role"
            )
        weights = [_weight(data, f"{where}: messages.{i}") for i, data in enumerate(row["messages"])]
        learned = [place for place, message in enumerate(messages) if message.role == "assistant" and weights[place]]
        if not learned:
            raise JobFileError(f"{where}: expected an answer of the assistant with the weight 1, got none")
        if learned[0] == 0:
            raise JobFileError(f"{where}: expected a message before the first answer that is learned, got none")
        for place in learned:
            yield number, Decision(messages[:place], messages[place].content)


def _pairs(content: bytes) -> Iterator[tuple[int, Pair]]:
    """Yield the pairs of a file, each with the number of its line."""
    outputs = ("preferred_output", "non_preferred_output")
    for number, row in _rows(content):
        where = f"line {number}"
        _require_keys(row, ("input", *outputs), where)
        if not isinstance(row["input"], dict):
            raise JobFileError(f"{where}: input: expected an object with messages, got {_shown(row['input'])}")
        _require_keys(row["input"], ("messages",), f"{where}: input")
        prompt = read_messages(row["input"]["messages"], f"{where}: input.messages")
        answers = []
        for name in outputs:
            found = read_messages(row[name], f"{where}: {name}")
            if [message.role for message in found] != ["assistant"]:
                raise JobFileError(f"{where}: {name}: expected one answer of the assistant, got other messages")
            answers.append(found[0].content)
        yield number, Pair(prompt, *answers)


def _rows(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with the numbers of their lines, from 1. Empty lines are passed over."""
    number = 0
    for place, line in enumerate(io.BytesIO(content), start=1):
        if not line.strip():
            continue
        if len(line) > MOST_LINE_BYTES:
            raise JobFileError(f"line {place}: expected at most {MOST_LINE_BYTES} bytes, got {len(line)}")
        try:
            number, row = place, json.loads(line)
        except RecursionError:
            raise JobFileError(f"line {place}: expected a JSON object, got brackets nested too deeply") from None
        except ValueError as error:
            raise JobFileError(f"line {place}: expected a JSON object, got other text ({cut(str(error))})") from None
        if not isinstance(row, dict):
            raise JobFileError(f"line {place}: expected a JSON object, got {_shown(row)}")
        yield place, row
    if number == 0:
        raise JobFileError("expected at least one line with an example, got an empty file")


def read_messages(data: Any, where: str, may_weigh: bool = False) -> Prompt:
    """Return the messages of a chat from JSON data. where: names the place in messages. Raises JobFileError.

    A content may be a list of parts that are texts. A developer is what older clients call system. may_weigh: whether a
    message may have a `weight`, which is not read here.
    """
    if not isinstance(data, list) or not data:
        raise JobFileError(f"{where}: expected a list of messages, got {_shown(data)}")
    keys = ("role", "content", "weight") if may_weigh else ("role", "content")
    if len(data) > MOST_MESSAGES:
        raise JobFileError(f"{where}: expected at most {MOST_MESSAGES} messages, got {len(data)}")
    return tuple(_message(each, keys, f"{where}.{place}") for place, each in enumerate(data))


def _message(data: Any, keys: Sequence[str], where: str) -> Message:
    if not isinstance(data, dict):
        raise JobFileError(f"{where}: expected an object with role and content, got {_shown(data)}")
    role, content = data.get("role"), data.get("content")
    if role not in ROLES:
        raise JobFileError(f"{where}.role: expected one of {', '.join(ROLES)}, got {_shown(role)}")
    if others := [key for key, value in data.items() if key not in keys and value is not None]:
        raise JobFileError(f"{where}: expected role and content alone, got {_shown(others[0])}, too")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content.{place}") for place, part in enumerate(content))
    if not isinstance(content, str):
        raise JobFileError(f"{where}.content: expected a text, got {_shown(content)}")
    return Message("system" if role == "developer" else role, content)


def _part(data: Any, where: str) -> str:
    text = data.get("text") if isinstance(data, dict) and data.keys() == {"type", "text"} else None
    if not isinstance(text, str) or data["type"] != "text":
        raise JobFileError(f"{where}: expected a part of the type text, got {_shown(data)}")
    return text


def _weight(data: Mapping[str, Any], where: str) -> int:
    """Return whether a message is learned, 0 or 1, if it is an answer of the assistant."""
    if (weight := data.get("weight")) is None:
        return 1
    if data["role"] != "assistant" or isinstance(weight, bool) or weight not in (0, 1):
        raise JobFileError(f"{where}.weight: expected 0 or 1, of an answer of the assistant, got {_shown(weight)}")
    return int(weight)


def _require_keys(row: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Raise JobFileError unless an object has these keys, and no others that mean anything to a model without tools."""
    if missing := [key for key in keys if key not in row]:
        raise JobFileError(f"{where}: expected the key {missing[0]}, got none")
    allowed = {*keys, "parallel_tool_calls"}
    if others := [key for key in row if key not in allowed and not (key == "tools" and not row[key])]:
        raise JobFileError(f"{where}: expected {' and '.join(keys)} alone, got {_shown(others[0])}, too")


def _shown(value: Any) -> str:
    """Return a value as messages quote it: containers by their type alone, long texts cut."""
    if isinstance(value, dict | list):
        return ("an object" if isinstance(value, dict) else "a list") + ("" if value else " without entries")
    return cut(json.dumps(value), 60)
