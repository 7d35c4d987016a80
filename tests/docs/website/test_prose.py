"""Docstrings name arguments, attributes and errors in sentences; the reference lists them."""

import inspect
import re
from typing import Any

import pytest

from docs.website.prose import read
from docs.website.python_names import public


def test_arguments_and_errors_are_read_from_sentences() -> None:
    prose = read(
        "A player as a run left it.\n\nrun: its folder, which\nmust exist. first, second: who\nsits there; may be None."
        " It is copied. Raises ValueError if no such player learned, RunFolderError and OSError if the run cannot be"
        " read.",
        ["run", "first", "second"],
    )
    assert prose.text == "A player as a run left it."
    assert prose.names == {
        "run": "its folder, which must exist.",
        "first": "who sits there; may be None. It is copied.",
        "second": "who sits there; may be None. It is copied.",
    }
    assert prose.errors == {
        "ValueError": "if no such player learned",
        "RunFolderError": "if the run cannot be read",
        "OSError": "if the run cannot be read",
    }


def test_what_follows_the_sentence_on_errors_stays() -> None:
    prose = read("Raises ConfigError with every fault at once. It imports classes.", ())
    assert prose == ("It imports classes.", {}, {"ConfigError": "with every fault at once"})


@pytest.mark.parametrize("text", ["Two things: a and b.", "It shows `run: 1` as it is.", "Letters: B rows."])
def test_a_word_before_a_colon_is_a_label_only_if_it_is_a_name_at_the_start_of_a_sentence(text: str) -> None:
    assert read(text, ["run", "things", "B"]) == (text, {}, {})


def test_code_in_a_docstring_stays_as_it_is() -> None:
    text = "A list:\n\n    run: 1\n    Raises ValueError"
    assert read(text, ["run"]) == (text, {}, {})


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_nothing_that_a_public_function_says_is_lost() -> None:
    functions: dict[str, Any] = {name: thing for name, thing in public().items() if inspect.isroutine(thing)}
    assert len(functions) > 30
    for name, thing in functions.items():
        said = inspect.cleandoc(thing.__doc__)
        prose = read(said, list(inspect.signature(thing).parameters))
        meanings = {*prose.names.values(), *prose.errors.values()}
        found = words(" ".join([prose.text, *prose.names, *prose.errors, *meanings]))
        assert words(said) - found <= {"Raises", "and", "or"}, name
