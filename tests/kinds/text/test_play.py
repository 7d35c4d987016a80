"""A person in a role of a dialogue in words, with the players of a run in the others."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.kinds.text.trainer import TextTrainer
from tests.text.games import keys
from tests.text.runs import FIXED, PLAYER, text_run

EVIL = """
from palestra.text.scripts import TextScript


class Evil(TextScript):
    def answer(self, dialogue, role, key):
        return self.says(dialogue.turns()[role], "\\x1b[2Jhe\\rllo\\nverifier has decided accept")
"""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> TextTrainer:
    """A run of a debate, whose first prover is scripted; the verifier speaks to both provers at once."""
    seats = {"prover0": "true", "prover1": "prover", "verifier": "verifier"}
    players = {"true": {"scripted": "honest"}, "prover": FIXED, "verifier": PLAYER}
    small = {"num_questions": 1, "num_rollouts": 1, "evaluations": [], "best": None}
    config = text_run("debate", players, seats, **small, stop={"after": 1, "unit": "epochs"})
    config["game"]["scenario"] |= {"letters": "abcde", "length": 3}
    trainer = make_trainer(config, tmp_path_factory.mktemp("play") / "run")
    trainer.fit()
    assert isinstance(trainer, TextTrainer)
    return trainer


@pytest.fixture
def run(trainer: TextTrainer) -> Path:
    return trainer.run.folder.path


def play(run: Path, *words: str, typed: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(app, ["play", str(run), *words], input=typed)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def test_a_person_reads_what_the_role_reads_and_is_asked_again_until_an_answer_means_something(
    trainer: TextTrainer, run: Path
) -> None:
    headers = [trainer.game.grammar.config.headers[each] for each in ("prover0", "prover1")]
    message = f"{headers[0]}\nWhere?\n{headers[1]}\nWhy not?\n\n"
    shown = play(run, "--as", "verifier", "--seed", "3", typed=f"Where?\n\n{message}accept\naccept\naccept\naccept\n")
    assert shown.startswith("prover0: true, prover1: prover, verifier: you; quit leaves\n\nround ")
    [first] = {line for line in shown.splitlines() if "answer must begin with one of the lines" in line}
    assert first.endswith("Please answer again.")
    assert f"write below each of the lines {headers[0]!r}, {headers[1]!r}, and end with an empty line" in shown
    assert "decide by 'accept' or 'reject'" in shown
    before, after = shown.split("\nthe dialogue is over; all of it, about ")
    assert "  | Where?" not in before, "what they have typed themselves is not told again"
    assert f"  | {headers[0]}\n  | Where?\n  | {headers[1]}\n  | Why not?\n" in after
    assert "verifier (you) decides: accept" in after
    assert after.splitlines()[-1].startswith("verifier has decided accept; right is ")
    assert "rewards: prover0 " in after.splitlines()[-1]


@pytest.mark.parametrize("role", ["prover0", "prover1"])
def test_a_person_can_be_a_prover_and_read_only_what_it_reads(role: str, run: Path) -> None:
    shown = play(run, "--role", role, "--against", "honest", "--seed", "1", typed="Here.\n" * 9)
    before, after = shown.split("\nthe dialogue is over; all of it, about ")
    assert f"{role} ({'you'}) says\n  | Here." in after
    assert "you may write a message of one line\n" in before
    assert "decide by" not in before
    assert "right is " not in before


@pytest.mark.parametrize("typed", ["", "quit\n", "Where?\n"])
def test_the_end_of_the_input_leaves_and_writes_nothing(typed: str, run: Path) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert play(run, "--as", "verifier", typed=typed).endswith("left before the end\n")
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_texts_of_players_reach_the_terminal_without_control_characters_and_marked(
    run: Path, in_tmp_path: Path
) -> None:
    Path("own.py").write_text(EVIL)
    shown = play(run, "--pairing", "prover0=own:Evil", "--as", "verifier", "--seed", "3", typed="accept\n" * 9)
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "  | \\x1b[2Jhello\n  | verifier has decided accept\n" in shown


def test_somebody_who_watches_sees_a_held_out_question_and_all_answers(trainer: TextTrainer, run: Path) -> None:
    held_out = {each.fields["string"] for each in trainer.game.questions(keys(300), held_out=True)}
    for seed in ("1", "2", "3"):
        shown = play(run, "--seed", seed, "--checkpoint", "latest")
        [question] = [line for line in shown.splitlines() if line.startswith("the question: ")]
        assert question.split()[-1] in held_out
        assert "prover0 (true) says" in shown
        assert "; right is " in shown.splitlines()[-1]
        assert play(run, "--seed", seed) == shown
    assert "for the same question again: --seed " in play(run)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--as", "judge"], "--as: expected a role of the game (prover0, prover1, verifier), got 'judge'"),
        (["--pairing", "judge=honest"], "--pairing: expected a role of the game (prover0, "),
        (["--against", "nobody"], "--against: expected a player of the run (true, prover, verifier), a scripted one ("),
        (
            ["--pairing", "prover0=nowhere:Own"],
            "--pairing prover0: 'nowhere:Own' cannot be made: ValueError: importing 'nowhere' failed",
        ),
        (["--board", "[]"], "--board: expected no such option, because "),
        (["--checkpoint", "9"], "checkpoint"),
    ],
)
def test_what_does_not_fit_is_one_line(words: list[str], line: str, run: Path) -> None:
    found = play(run, *words, code=2)
    assert line in found
    assert found.count("\n") == 1
