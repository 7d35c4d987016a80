import threading
from collections.abc import Sequence
from typing import Any

import pytest

from palestra.serving.engine import MOST_AT_ONCE, MOST_CHARACTERS, MOST_WAITING, Engine
from palestra.serving.errors import ApiError
from palestra.text.chat import Message
from palestra.text.models.model import Answer, PromptBeyondContext, PromptRefused, Request, SamplingConfig

COLD = SamplingConfig(temperature=0.5, top_p=None, top_k=None, max_tokens=4)
WARM = COLD.model_copy(update={"temperature": 1.0})


class Echo:
    """Models that answer with the prompt. Each batch waits until `go` is set; they are noted."""

    def __init__(self) -> None:
        self.go, self.began, self.batches = threading.Event(), threading.Event(), list[tuple[str, list[str]]]()

    def get(self, name: str) -> Any:
        self.name = name
        return self

    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
        self.began.set()
        assert self.go.wait(10)
        words = [request.prompt[0].content for request in requests]
        for number, word in enumerate(words):
            if word in ("long", "half"):
                raise (PromptBeyondContext if word == "long" else PromptRefused)("expected another prompt", number)
            if word == "boom":
                raise RuntimeError("a stranger's error\nof two lines")
        self.batches.append((self.name, words))
        return [Answer(word, (1,), (2,), (0.0,), "stop") for word in words]


def requests(word: str, num: int = 1) -> list[Request]:
    return [Request((Message("user", word),), number) for number in range(num)]


def begun(exact: bool = False) -> tuple[Echo, Engine]:
    """An engine that is busy with a first batch, so that everything else waits."""
    models = Echo()
    engine = Engine(models, exact)  # type: ignore[arg-type]
    engine.ask("m", requests("first"), COLD)
    assert models.began.wait(10)
    return models, engine


def test_what_waits_for_one_model_and_is_drawn_alike_is_one_batch() -> None:
    models, engine = begun()
    asked = [("m", "a", COLD), ("m", "b", WARM), ("n", "c", COLD), ("m", "d", COLD), ("n", "e", COLD)]
    found = [engine.ask(model, requests(word, 2), sampling) for model, word, sampling in asked]
    models.go.set()
    assert [[answer.text for answer in each.result(10)] for each in found] == [[word] * 2 for _, word, _ in asked]
    assert models.batches[1:] == [("m", ["a", "a", "d", "d"]), ("m", ["b", "b"]), ("n", ["c", "c", "e", "e"])]


def test_a_batch_is_bounded_and_an_exact_one_holds_one_request() -> None:
    for exact, expected in ((False, [[MOST_AT_ONCE + 1], [60, 4], [1]]), (True, [[MOST_AT_ONCE + 1], [60], [4], [1]])):
        models, engine = begun(exact)
        found = [engine.ask("m", requests(str(num), num), COLD) for num in (MOST_AT_ONCE + 1, 60, 4, 1)]
        models.go.set()
        assert [len(each.result(10)) for each in found] == [MOST_AT_ONCE + 1, 60, 4, 1]
        sizes = [[words.count(word) for word in dict.fromkeys(words)] for _, words in models.batches[1:]]
        assert sizes == expected


def test_a_prompt_that_cannot_be_read_leaves_its_batch() -> None:
    models, engine = begun()
    found = {word: engine.ask("m", requests(word), COLD) for word in ("a", "long", "b", "half", "c")}
    models.go.set()
    assert [found[word].result(10)[0].text for word in "abc"] == ["a", "b", "c"]
    for word, code in (("long", "context_length_exceeded"), ("half", "invalid_value")):
        error = found[word].exception(10)
        assert isinstance(error, ApiError)
        assert (error.status, error.param, error.code) == (400, "messages", code)


def test_a_model_that_fails_is_told_in_one_line_and_the_engine_goes_on() -> None:
    models, engine = begun()
    failed, other = engine.ask("m", requests("boom"), COLD), engine.ask("m", requests("a"), WARM)
    models.go.set()
    error = failed.exception(10)
    assert isinstance(error, ApiError)
    assert error.status == 500
    assert error.message.startswith("the model failed: RuntimeError: a stranger's error of two lines")
    assert other.result(10)[0].text == "a"


def test_too_many_that_wait_are_told_to_come_again_and_who_has_left_is_not_answered() -> None:
    models, engine = begun()
    found = [engine.ask("m", requests(str(number), 64), COLD) for number in range(MOST_WAITING // 64 - 1)]
    for late in (requests("late", 65), requests("x" * MOST_CHARACTERS)):
        with pytest.raises(ApiError) as refused:
            engine.ask("m", late, COLD)
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    assert found[1].cancel()
    models.go.set()
    assert [len(each.result(10)) for each in (found[0], found[2])] == [64, 64]
    assert not any("1" in words for _, words in models.batches)
    assert found[-1].result(10)
    assert engine.ask("m", requests("late", 65), COLD).result(10)
