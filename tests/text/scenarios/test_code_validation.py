"""Programs whose labels are proven here, by running them; a run shows them, and runs none."""

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from palestra.config import ConfigError
from palestra.config.variants import members_of, names_of
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.text.dialogue import Question
from palestra.text.models.encode import Encoder
from palestra.text.models.sources import NewConfig, byte_tokenizer
from palestra.text.scenarios.code_validation import Program, programs
from palestra.text.scripts import ASKS, named_script
from tests.text.games import first_config, keys, text_config

CODE = {"name": "code_validation"}
BY_TEXT = {text: each for each in programs() for text in each.versions}


def raises(kind: type[Exception], function: Callable[..., Any], *arguments: Any) -> bool:
    """For checks: whether a call raises an error of this kind."""
    try:
        function(*arguments)
    except kind:
        return True
    return False


def run(of: Any, *calls: tuple[Any, ...]) -> list[Any]:
    """For checks: what calls of methods, by name, return one after the other."""
    return [getattr(of, name)(*arguments) for name, *arguments in calls]


def changed(function: Callable[..., Any], items: list[Any], *arguments: Any) -> list[Any]:
    """For checks: a list after a call that changes it and returns nothing."""
    assert function(items, *arguments) is None
    return items


def passes(text: str, check: str) -> bool:
    """Whether a check is true of a program; one that raises is not."""
    names: dict[str, Any] = {"raises": raises, "run": run, "changed": changed}
    exec(compile(text, "program", "exec"), names)
    try:
        return eval(check, names) is True
    except Exception:
        return False


def too_long(*_: Any) -> None:
    raise TimeoutError


def test_every_right_program_passes_its_checks_and_every_bug_is_found_by_one() -> None:
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    try:
        for each in programs():
            buggy, right = ([check for check in each.checks if not passes(text, check)] for text in each.versions)
            assert not right, f"{each.name} fails {right}"
            assert buggy, f"nothing shows the bug of {each.name}"
            assert len(buggy) < len(each.checks), f"the bug of {each.name} is all but subtle"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_there_are_60_different_small_programs_that_differ_in_one_line() -> None:
    assert len(programs()) == len({each.name for each in programs()}) == len({each.task for each in programs()}) == 60
    assert len(BY_TEXT) == 120
    for each in programs():
        buggy, right = (text.split("\n") for text in each.versions)
        assert 8 <= len(right) <= 30
        assert [n for n, pair in enumerate(zip(buggy, right, strict=True), start=1) if len({*pair}) > 1] == [each.line]
        assert max(map(len, right)) <= 100
        assert each.task.isprintable()


@pytest.fixture(scope="module")
def drawn() -> dict[bool, list[Question]]:
    game = text_config("nip", scenario=CODE).build()
    return {held_out: game.questions(keys(3000), held_out) for held_out in (False, True)}


def program_of(question: Question) -> Program:
    return BY_TEXT[question.fields["program"]]


def test_training_never_draws_a_program_of_evaluations_in_either_version(drawn: dict[bool, list[Question]]) -> None:
    training, held_out = ({program_of(question).name for question in drawn[each]} for each in (False, True))
    assert not training & held_out
    assert (len(training), len(held_out)) == (48, 12)
    for questions in drawn.values():
        assert all(q.fields["program"] == program_of(q).versions[q.label] for q in questions)
        assert all(q.fields["task"] == program_of(q).task for q in questions)
        assert abs(sum(question.label for question in questions) / 3000 - 0.5) < 0.03
        by_version = Counter(question.fields["program"] for question in questions)
        assert len(by_version) == 2 * len({program_of(question).name for question in questions})


def test_an_honest_player_names_the_line_of_the_bug_and_a_reason_tells_no_label(
    drawn: dict[bool, list[Question]],
) -> None:
    scenario = text_config("nip", scenario=CODE).build().scenario
    for question in drawn[True]:
        each = program_of(question)
        lines = question.fields["program"].split("\n")
        assert scenario.argue(question, 0) == f"Line {each.line} is wrong: `{lines[each.line - 1].strip()}`"
        assert "right" not in scenario.argue(question, 1)
        assert scenario.describe(question) == each.name
    assert len({scenario.argue(question, 1) for question in drawn[True]}) == 1


@pytest.mark.parametrize("protocol", names_of(members_of(AnyProtocolConfig)))
def test_shipped_prompts_show_what_a_role_sees_and_fit_the_usual_model(protocol: str) -> None:
    game = first_config(protocol={"name": protocol}, scenario=CODE).build()
    tokenizer, longest = byte_tokenizer(), 0
    encoder = Encoder(tokenizer, [tokenizer.eos_token_id])
    for each in (max(programs(), key=lambda each: len(each.task) + len(each.versions[0])), programs()[0]):
        dialogue = game.begin(Question(0, {"task": each.task, "program": each.versions[0]}, 0), 1)
        while not dialogue.is_over:
            moves = {}
            for role, turn in dialogue.turns().items():
                prompt = game.prompt(dialogue, role)
                opening = next(message.content for message in prompt if message.role == "user")
                assert f"Task: {each.task}\n\nProgram:\n```python\n{each.versions[0]}\n```\n" in opening
                assert "has a bug" in opening
                longest = max(longest, len(next(encoder.encode([prompt]))))
                goes_on = role in game.protocol.verifiers and turn.channels and not dialogue.is_last_chance(role)
                script = named_script("reject", game, [role])
                moves[role] = game.read(turn, script.says(turn, ASKS) if goes_on else script.answer(dialogue, role, 1))
            dialogue = dialogue.after(moves)  # type: ignore[arg-type]
    assert longest + 64 < NewConfig.usual["context"]


def test_a_role_that_sees_less_is_told_so() -> None:
    sees = {"prover": ["program"], "verifier": []}
    game = text_config("adp", scenario=CODE | {"sees": sees}).build()
    words = "\n".join(game.prompts_in_words())
    prover, verifier = words.split("verifier reads")
    assert "You are not shown the task." in prover
    assert "def " in prover
    assert "You are not shown the program." in verifier
    assert "def " not in verifier


def test_what_does_not_fit_is_one_line() -> None:
    for changed, line in (
        ({"sees": {"prover": [], "verifier": [], "judge": []}}, "game.scenario.sees.judge: unknown key; the roles of"),
        ({"held_out": 0.0}, "game.scenario.held_out: "),
        (
            {"sees": {"prover": ["label"], "verifier": []}},
            "game.scenario.sees.prover.0: expected one of 'task', 'program'",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            text_config("adp", scenario=CODE | changed).build()
        assert str(caught.value).startswith(line), str(caught.value)
