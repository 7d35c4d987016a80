"""An answer as a whole is a decision or a message, in several channels each below its header; else it has a fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.config import ConfigError
from palestra.games.dialogue.protocols import Debate, Nip
from palestra.text.dialogue import Fault, Grammar, GrammarConfig, Move, Turn
from tests.text.games import text_config

DEBATE = Grammar(text_config("debate").grammar, text_config("debate").protocol.build())
CHANNELS = ("prover0", "prover1")
HEADERS = ("# prover0", "# prover1")
BOTH, ONE, NONE = (Turn(channels, may_decide=True) for channels in (CHANNELS, CHANNELS[:1], ()))
BLANKS = st.text(" \t\n", max_size=3)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


def kind(answer: str, turn: Turn) -> str:
    found = DEBATE.read(answer, turn)
    assert isinstance(found, Fault), found
    return found.kind


@pytest.mark.parametrize("turn", [BOTH, ONE, NONE])
@given(before=BLANKS, after=BLANKS)
def test_the_word_alone_decides(turn: Turn, before: str, after: str) -> None:
    for verdict, word in enumerate(("reject", "accept")):
        answer = before + word + after
        assert DEBATE.read(answer, turn) == Move(answer, verdict, {})
        assert kind(answer, Turn(turn.channels, may_decide=False)) == "decision"


@given(TEXTS)
def test_in_one_channel_any_other_answer_is_a_message(answer: str) -> None:
    found = DEBATE.read(answer, ONE)
    if not answer.strip():
        assert isinstance(found, Fault)
        assert found.kind == "empty"
    elif answer.strip() not in ("accept", "reject"):
        assert found == Move(answer, None, {"prover0": answer.strip()})


@given(st.lists(TEXTS, min_size=2, max_size=2), BLANKS)
def test_what_is_written_in_several_channels_is_read_again(texts: list[str], blank: str) -> None:
    messages = dict(zip(CHANNELS, texts, strict=True))
    answer = DEBATE.write(messages) + blank
    found = DEBATE.read(answer, BOTH)
    if any(line.strip() in HEADERS for text in texts for line in text.split("\n")):
        return
    if not all(text.strip() for text in texts):
        assert isinstance(found, Fault)
        assert found.kind == "empty"
    else:
        assert isinstance(found, Move)
        lines = {channel: text.strip() for channel, text in messages.items()}
        assert (found.answer, found.decision, found.messages) == (answer, None, lines)


@given(TEXTS)
def test_every_answer_is_read(answer: str) -> None:
    for channels in (CHANNELS, CHANNELS[:1], ()):
        for may_decide in (True, False):
            found = DEBATE.read(answer, Turn(channels, may_decide))
            if isinstance(found, Move):
                assert found.answer == answer
                assert found.decision is None or may_decide
                assert found.messages.keys() == (set(channels) if found.decision is None else set())
                assert all(text.strip() == text != "" for text in found.messages.values())


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("hello", "header"),
        ("# prover0\nhello", "header"),
        ("hello\n# prover0\na\n# prover1\nb", "header"),
        ("# prover0\na\n# prover0\nb\n# prover1\nc", "header"),
        ("# prover0\n\n# prover1\nb", "empty"),
        ("# prover0 a\n# prover1\nb", "header"),
        (" \n", "empty"),
    ],
)
def test_an_answer_in_several_channels_that_lacks_something_has_a_fault(answer: str, fault: str) -> None:
    assert kind(answer, BOTH) == fault


def test_headers_may_stand_in_any_order_and_amid_blanks() -> None:
    found = DEBATE.read("\n  # prover1 \n b\n\n# prover0\na # prover1\n", BOTH)
    assert isinstance(found, Move)
    assert found.messages == {"prover0": "a # prover1", "prover1": "b"}


def test_who_has_no_channel_must_decide() -> None:
    assert DEBATE.read("hm", NONE) == Fault("channel", "The answer must be 'accept' or 'reject'.")


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (
            {"accept": "yes", "reject": "yes", "headers": {}},
            ["reject: expected another text than that of accept, got 'yes'"],
        ),
        (
            {"accept": " yes", "reject": "a\nb", "headers": {}},
            [
                "accept: expected one line without blanks at its ends, got ' yes'",
                "reject: expected one line without blanks at its ends, got 'a\\nb'",
            ],
        ),
        (
            {"accept": "yes", "reject": "no", "headers": {"main": "no"}},
            ["headers.main: expected another text than that of reject, got 'no'"],
        ),
    ],
)
def test_words_that_do_not_fit_are_a_line_each(keys: dict[str, object], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        text_config(grammar=keys)
    assert str(caught.value).splitlines() == [f"game.grammar.{line}" for line in lines]


@pytest.mark.parametrize(
    ("made", "headers", "line"),
    [
        (Nip, {"side": "x"}, "headers.side: unknown key; the channels of the protocol are main"),
        (
            Debate,
            {"prover0": "x"},
            "headers.prover1: expected a line to write above a message, because 'verifier' speaks there and elsewhere "
            "at once, but the key is missing",
        ),
    ],
)
def test_headers_fit_the_channels(made: type, headers: dict[str, str], line: str) -> None:
    protocol = text_config("debate" if made is Debate else "nip").protocol.build()
    with pytest.raises(ConfigError) as caught:
        Grammar(GrammarConfig(accept="accept", reject="reject", headers=headers), protocol)
    assert str(caught.value) == line
