"""What roles read: fields and answers are inserted and never rendered, and a wrong template is one line.

Covers palestra.text.templates.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.config import ConfigError
from palestra.text.dialogue import SILENT, Fault, Move, Question
from palestra.text.models.model import Message
from palestra.text.templates import PARTS
from tests.games.dialogue.test_game import PROTOCOLS
from tests.text.games import QUESTION, text_game

HOSTILE = '{{ 7*7 }} {% include "x" %} {{ role.__class__ }} <|end|> {# no #} \\ "'
CSV = "question,hint,label\n" + "".join(f"Is it {n}?,No,{n % 2}\n" for n in range(20))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with the one part that it must have; beside it a file of rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(CSV)
    place = tmp_path / "mine"
    place.mkdir()
    (place / "system.jinja").write_text("You are {{ role }}.")
    return place


def of_folder(protocol: str = "nip", **said: Any) -> Any:
    return text_game(protocol, prompts={"name": "folder", "path": "mine"}, **said)


def rows(held_out: float = 0.5) -> Any:
    how = {"name": "fraction", "fraction": held_out, "seed": 1}
    return {"name": "rows", "file": "rows.csv", "held_out": how}


# ---- what is inserted ------------------------------------------------------------------------------------


@given(st.one_of(st.just(HOSTILE), st.text(min_size=1)), st.one_of(st.just(HOSTILE), st.text(min_size=1)))
def test_fields_and_answers_stand_in_prompts_as_they_are(field: str, answer: str) -> None:
    game = GAME
    begun = game.begin(Question(0, {"letter": field, "string": HOSTILE}, 1), 0)
    turn = begun.turns()["prover"]
    assert game.prompt(begun, "prover") == (Message("user", f"{field} in {HOSTILE}: accept"),)
    move = game.read(turn, answer)
    if not isinstance(move, Move):
        return
    said = begun.after({"prover": move})
    news = "\n".join(each for each in (f"{field} in {HOSTILE}?", answer.strip()) if each.strip())
    assert game.prompt(said, "verifier") == (Message("user", news),)
    asked = said.after({"verifier": Move(HOSTILE, None, {"main": HOSTILE})})
    prompt = game.prompt(asked, "prover")
    assert prompt[1:] == (Message("assistant", answer), Message("user", HOSTILE))


GAME = text_game("nip, prover first")


def test_own_answers_stand_as_they_were_written_and_those_of_others_have_names_where_the_prompts_say_so(
    folder: Path,
) -> None:
    for protocol, told in (("adp", "prover: because"), ("merlin_arthur", "because")):
        roles = text_game(protocol).roles
        game = text_game(protocol, scenario=rows() | {"sees": {role: ["question", "hint"] for role in roles}})
        begun = game.begin(Question(0, {"question": "Is it?", "hint": "No"}, 0), 0)
        [speaker] = begun.turns()
        said = begun.after({speaker: Move(" because\n", None, {"main": "because"})})
        system, user = game.prompt(said, "verifier")
        assert system.role == "system"
        last = "This is your last chance to decide: answer accept or reject, and nothing else."
        assert user == Message("user", f"question: Is it?\nhint: No\n{told}\n{last}")


def test_a_role_reads_the_fields_that_it_sees_alone(folder: Path) -> None:
    game = text_game("adp", scenario=rows() | {"sees": {"prover": ["question", "hint"], "verifier": []}})
    begun = game.begin(Question(0, {"question": "Is it?", "hint": "No"}, 0), 0)
    silent = begun.after({"prover": SILENT})
    assert "Is it?" in game.prompt(begun, "prover")[-1].content
    read = game.prompt(silent, "verifier")[-1].content
    assert read.startswith("You are not shown the question.\nThis is your last chance")


def test_an_answer_that_is_asked_for_again_stands_before_the_reason_and_is_forgotten_later() -> None:
    game = text_game("nip")
    begun = game.begin(QUESTION, 0)
    fault = game.read(begun.turns()["verifier"], "accept")
    assert isinstance(fault, Fault)
    first, *rest = game.prompt(begun, "verifier", [("accept", fault), (" ", fault)])
    again = Message("user", "again!")
    assert rest == [Message("assistant", "accept"), again, Message("assistant", " "), again]
    assert game.prompt(begun, "verifier") == (first,)


def test_the_last_chance_alone_is_told() -> None:
    game = text_game("nip")  # at most 5 rounds: the verifier has the last one
    reads = [
        game.prompt(each, "verifier")[-1].content for each in game.a_long_dialogue(0) if "verifier" in each.turns()
    ]
    assert [text.endswith("!") for text in reads] == [False, False, True]


def test_a_role_that_has_heard_nothing_since_its_answer_reads_an_empty_message() -> None:
    game = text_game("nip, prover first")
    said = game.begin(QUESTION, 0).after({"prover": Move("a", None, {"main": "a"})}).after({"verifier": SILENT})
    assert game.prompt(said, "prover")[-2:] == (Message("assistant", "a"), Message("user", ""))


def test_a_prover_whose_side_is_drawn_reads_it() -> None:
    game = text_game("adp, side drawn")
    reads = {game.prompt(game.a_long_dialogue(variant)[0], "prover")[0].content for variant in (0, 1)}
    assert {text.rpartition(" ")[2] for text in reads} == {"reject", "accept"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prompts_are_shipped_for_every_protocol_and_those_of_claims_are_short(protocol: str, folder: Path) -> None:
    claims, english = text_game(protocol), text_game(protocol, scenario=rows())
    for game, most in ((claims, 20), (english, 1000)):
        for role in game.roles:
            turns = [d for k in range(game.protocol.num_variants) for d in game.a_long_dialogue(k) if role in d.turns()]
            first = game.prompt(turns[0], role)
            opening = first[-1].content.split("\n")[0]
            assert len(opening) <= most
            assert {message.role for message in first} == ({"user"} if game is claims else {"system", "user"})
    assert english.templates.files.keys() >= {f"{part}.jinja" for part in PARTS}
    verifiers = {
        english.prompt(d, "verifier")[0].content for d in english.a_long_dialogue(0) if "verifier" in d.turns()
    }
    assert all("accept" in text and "{" not in text and "{%" not in text for text in verifiers)


def test_a_folder_with_the_files_of_a_game_gives_the_same_prompts(folder: Path) -> None:
    game = text_game("debate", scenario=rows())
    for name, text in game.templates.files.items():
        (folder / name).write_text(text)
    again = of_folder("debate", scenario=rows())
    assert again.templates.files == game.templates.files
    assert again.prompts_in_words() == game.prompts_in_words()


def test_what_each_role_reads_in_one_dialogue_is_written_for_people() -> None:
    words = text_game("adp").prompts_in_words()
    assert words[0] == "prover reads in round 0:"
    assert words[1].startswith("  user:      ")
    assert words[1].endswith(": accept")
    assert words[2] == "verifier reads in round 1:"
    assert len(words) == 5
    assert words[4].strip() in ("nowhere", "letter 1", "letter 2", "letter 3", "letter 4")


# ---- what does not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "verifier.opening.jinja",
            "a\n\n{{ letr }}",
            "prompts.path: {0}, line 3: unknown field 'letr'; did you mean 'letter'?",
        ),
        (
            "retry.jinja",
            "{{ text }}",
            "prompts.path: {0}, line 1: unknown field 'text'; known ones are 'accept', 'channel'",
        ),
        ("heard.jinja", "{% if %}", "prompts.path: {0}, line 1: Expected an expression, got 'end of statement block'"),
        ("heard.jinja", '{% include "no" %}', "prompts.path: {0}: expected a file 'no' beside it, got none"),
        (
            "judge.system.jinja",
            "x",
            "prompts.path: {0}: expected one of the roles prover, verifier, got 'judge'",
        ),
        (
            "opening.jinja",
            "\n{{ string }}",
            "prompts.path: {0}, line 2: for the role 'verifier': 'string' is undefined",
        ),
        (
            "opening.jinja",
            "\n{{ role.__class__.__mro__ }}",
            "prompts.path: {0}, line 2: for the role 'verifier': access to attribute '__class__' of 'str' object is ",
        ),
        (
            "verifier.sytem.jinja",
            "x",
            "prompts.path: {0}: expected one of the parts system, opening, heard, last_chance, retry, got 'sytem'",
        ),
        (
            "opening.jinja",
            "{{ 1 / 0 }}",
            "prompts.path: {0}, line 1: for the role 'verifier': ZeroDivisionError: division by zero",
        ),
        (
            "opening.jinja",
            "{% for i in range(10**9) %}x{% endfor %}",
            "prompts.path: {0}, line 1: for the role 'verifier': OverflowError: Range too big.",
        ),
        (
            "opening.jinja",
            "\n{{ 'x' * 10**9 }}",
            "prompts.path: {0}, line 2: for the role 'verifier': it needs more than 512 MiB of memory",
        ),
        (
            "opening.jinja",
            "\n{% if role %}{{ 'x' * 4000001 }}{% endif %}",
            "prompts.path: {0}: for the role 'verifier': it makes more than 4,000,000 characters",
        ),
        ("opening.jinja", "\n{{ " + "(" * 999 + ")" * 999, "prompts.path: {0}: it is nested too deeply, or calls"),
        (
            "opening.jinja",
            "{% include 'opening.jinja' %}",
            "prompts.path: {0}, line 1: for the role 'verifier': it is nested too deeply, or calls itself without end",
        ),
    ],
)
def test_a_wrong_template_is_one_line_with_its_file_and_line(folder: Path, name: str, text: str, line: str) -> None:
    (folder / name).write_text(text)
    sees = {"prover": ["letter", "string"], "verifier": ["letter"]}
    with pytest.raises(ConfigError) as caught:
        of_folder(scenario={"name": "claims", "sees": sees})
    [found] = str(caught.value).splitlines()
    if "known ones" in line:
        assert found.startswith(line.format(f"mine/{name}").partition(" 'accept'")[0])
    else:
        assert found.startswith(line.format(f"mine/{name}")), found


def test_a_missing_role_is_one_line(folder: Path) -> None:
    (folder / "system.jinja").rename(folder / "prover.system.jinja")
    with pytest.raises(ConfigError) as caught:
        of_folder()
    assert str(caught.value) == "prompts.path: expected verifier.system.jinja or system.jinja in mine, got neither"


def test_a_missing_folder_and_a_file_that_is_no_text_are_one_line(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        text_game("nip", prompts={"name": "folder", "path": "no/such"})
    assert str(caught.value).startswith("prompts.path: expected a folder with prompts, got none (looked in ")
    (folder / "heard.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as caught:
        of_folder()
    assert str(caught.value).startswith("prompts.path: expected a text file in UTF-8 at mine/heard.jinja, got: ")


def make_huge(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 30)


def test_pipes_and_devices_and_huge_files_of_a_folder_are_refused_unread(folder: Path) -> None:
    place = folder / "heard.jinja"
    makes: list[Callable[[], object]] = [
        lambda: os.mkfifo(place),
        lambda: place.symlink_to("/dev/zero"),
        lambda: make_huge(place),
    ]
    for make in makes:
        place.unlink(missing_ok=True)
        make()
        with pytest.raises(ConfigError, match=r"mine/heard.jinja, got: no plain file of at most 1,048,576 bytes$"):
            of_folder()


def test_a_byte_order_mark_is_no_part_of_a_prompt(folder: Path) -> None:
    plain = of_folder().templates.files
    for file in folder.glob("*.jinja"):
        file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert of_folder().templates.files == plain
