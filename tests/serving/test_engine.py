import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from palestra.serving.engine import MOST_AT_ONCE, MOST_TOKENS, MOST_WAITING, Engine
from palestra.serving.errors import ApiError
from palestra.text.models.model import SamplingConfig
from palestra.text.models.network import Drawn

COLD = SamplingConfig(temperature=0.5, top_p=None, top_k=None, max_tokens=4)
WARM = COLD.model_copy(update={"temperature": 1.0})


class Echo:
    """Models that answer with the prompt. Each batch waits until `go` is set; they are noted."""

    def __init__(self) -> None:
        self.go, self.began, self.drawing = threading.Event(), threading.Event(), threading.Event()
        self.batches: list[tuple[str, list[str]]] = []

    def get(self, name: str) -> Any:
        self.name = name
        return self

    def draw(
        self, prompts: Sequence[list[int]], keys: Sequence[int], sampling: SamplingConfig, is_wanted: Callable[[], bool]
    ) -> list[Drawn]:
        self.began.set()
        assert self.go.wait(10)
        words = ["".join(map(chr, prompt)) for prompt in prompts]
        if "boom" in words:
            raise RuntimeError("a stranger's error\nof two lines")
        if "panic" in words:
            raise PanicException("of Rust")
        while "endless" in words and is_wanted():
            self.drawing.set()
        self.batches.append((self.name, words))
        return [Drawn(prompt, [0.0], "stop") for prompt in prompts]


class PanicException(BaseException):
    """As Rust raises it, which is no Exception."""


def ask(engine: Engine, word: str, num: int = 1, model: str = "m", sampling: SamplingConfig = COLD) -> Any:
    return engine.ask(model, list(map(ord, word)), range(num), sampling)


def said(found: Any) -> list[str]:
    return ["".join(map(chr, drawn.ids)) for drawn in found.result(10)]


def begun(exact: bool = False) -> tuple[Echo, Engine]:
    """An engine that is busy with a first batch, so that everything else waits."""
    models = Echo()
    engine = Engine(models, exact)  # type: ignore[arg-type]
    ask(engine, "first")
    assert models.began.wait(10)
    return models, engine


def test_what_waits_for_one_model_and_is_drawn_alike_is_one_batch() -> None:
    models, engine = begun()
    asked = [("m", "a", COLD), ("m", "b", WARM), ("n", "c", COLD), ("m", "d", COLD), ("n", "e", COLD)]
    found = [ask(engine, word, 2, model, sampling) for model, word, sampling in asked]
    models.go.set()
    assert [said(each) for each in found] == [[word] * 2 for _, word, _ in asked]
    assert models.batches[1:] == [("m", ["a", "a", "d", "d"]), ("m", ["b", "b"]), ("n", ["c", "c", "e", "e"])]


def test_a_batch_is_bounded_and_an_exact_one_holds_one_request() -> None:
    for exact, expected in ((False, [[MOST_AT_ONCE + 1], [60, 4], [1]]), (True, [[MOST_AT_ONCE + 1], [60], [4], [1]])):
        models, engine = begun(exact)
        found = [ask(engine, str(num), num) for num in (MOST_AT_ONCE + 1, 60, 4, 1)]
        models.go.set()
        assert [len(each.result(10)) for each in found] == [MOST_AT_ONCE + 1, 60, 4, 1]
        sizes = [[words.count(word) for word in dict.fromkeys(words)] for _, words in models.batches[1:]]
        assert sizes == expected


def test_a_request_that_fails_is_told_in_one_line_and_all_others_are_answered() -> None:
    models, engine = begun()
    found = {word: ask(engine, word) for word in ("a", "boom", "b", "panic", "c")}
    models.go.set()
    assert [said(found[word]) for word in "abc"] == [["a"], ["b"], ["c"]]
    for word, message in (("boom", "RuntimeError: a stranger's error of two lines"), ("panic", "PanicException: of R")):
        error = found[word].exception(10)
        assert isinstance(error, ApiError)
        assert error.status == 500
        assert error.message.startswith(f"the model failed: {message}")
    assert said(ask(engine, "d")) == ["d"]


def test_what_nobody_waits_for_any_more_is_not_computed_further() -> None:
    models, engine = begun()
    models.go.set()
    endless = ask(engine, "endless")
    assert models.drawing.wait(10)
    assert endless.cancel()
    assert said(ask(engine, "a")) == ["a"]


def test_too_many_that_wait_are_told_to_come_again_and_who_has_left_is_not_answered() -> None:
    models, engine = begun()
    found = [ask(engine, str(number), 64) for number in range(MOST_WAITING // 64 - 1)]
    for word, num in (("late", 65), ("x" * MOST_TOKENS, 1)):
        with pytest.raises(ApiError) as refused:
            ask(engine, word, num)
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    assert found[1].cancel()
    models.go.set()
    assert [len(each.result(10)) for each in (found[0], found[2])] == [64, 64]
    assert not any("1" in words for _, words in models.batches)
    assert found[-1].result(10)
    assert ask(engine, "late", 65).result(10)
