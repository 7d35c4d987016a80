"""Players that talk in words, in the lifecycle of every run: stages, jobs, kills, what does not fit.

Covers palestra.kinds.text.config, palestra.text.players, palestra.kinds.text.evaluations.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_mutations import assert_every_mutation_is_told
from resuming import records

from palestra import make_trainer
from palestra.config import ConfigError, check
from palestra.kinds.text.config import TextConfig
from palestra.kinds.text.evaluations import TextEvaluations
from palestra.kinds.text.trainer import TextTrainer
from palestra.run.kinds import read_config
from palestra.text.rollouts import Rollouts
from palestra.text.waves import Waves
from palestra.training.checks import TrainingFailed
from tests.complete_models import find_defaults, find_undescribed
from tests.text.games import text_config
from tests.text.rows import JOB

EXPERT = {
    "name": "expert_iteration",
    "select": {"name": "threshold", "reward": -1.0},
    "labels": "as_they_come",
    "epochs": "all",
    "truth": {"name": "constant", "value": 0.5},
    **JOB,
}
GRADIENT = {
    "name": "policy_gradient",
    "advantage": "question",
    **JOB,
    "loss": {"name": "policy_gradient", "per": "token", "clip_range": 0.2, "kl_coefficient": 0.1, "kl_to": "imitated"},
}
MALT = {
    "name": "malt",
    "num_continuations": 3,
    "most_answers": 363,
    **JOB,
    "loss": {"name": "preference", "beta": 0.1},
}
PLAYER = {
    "model": {
        "name": "new",
        "num_layers": 1,
        "width": 16,
        "num_heads": 2,
        "mlp_width": 16,
        "context": 128,
        "init_std": 0.1,
    },
    "sampling": {"temperature": 1.0, "top_p": None, "top_k": None, "max_tokens": 4},
    "num_retries": 1,
    "warm_start": None,
    "imitate": {"scripted": "random", "num_questions": 8, **JOB},
    "algorithm": EXPERT,
    "updates": {"name": "constant"},
}
SEATS = {"prover": "prover", "verifier": "verifier"}
MAIN = {
    "name": "main",
    "interval": {"every": 1, "unit": "epochs"},
    "at_start": True,
    "num_games": 4,
    "final_num_games": 6,
    "seed": None,
    "pairings": [SEATS, {"prover": "honest", "verifier": "verifier"}],
}
OUTPUT = {
    "display": "quiet",
    "record": {"every": 1, "unit": "stages"},
    "statistics": ["mean"],
    "transcripts": "prompts",
    "recorders": [],
    "save": {"every": 1, "unit": "opt_steps"},
    "keep_last": 2,
    "keep_every": None,
    "checkpoint_folder": None,
    "stop_within_s": 30.0,
    "mirror": None,
}
CONFIG: dict[str, Any] = {
    "seed": 0,
    "trainer": {"name": "text"},
    "game": text_config("nip").model_dump(),
    "num_questions": 4,
    "num_rollouts": 2,
    "answers_at_once": 6,
    "roles": SEATS,
    "players": {
        "prover": PLAYER | {"algorithm": GRADIENT, "num_retries": 0},
        "verifier": PLAYER,
    },
    "evaluations": [MAIN],
    "best": None,
    "evaluators": None,
    "stop": {"after": 2, "unit": "epochs"},
    "budget": None,
    "callbacks": [],
    "execution": {"device": "cpu", "num_threads": 1},
    "output": OUTPUT,
}


def learning(prover: Any, verifier: Any) -> dict[str, Any]:
    return {"prover": PLAYER | {"algorithm": prover}, "verifier": PLAYER | {"algorithm": verifier}}


def trained(run: Path, **changed: Any) -> TextTrainer:
    trainer = TextTrainer.load(run) if run.exists() else make_trainer(CONFIG | changed, run)
    trainer.fit()
    assert isinstance(trainer, TextTrainer)
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TextTrainer:
    return trained(tmp_path_factory.mktemp("text") / "whole")


def test_an_epoch_has_three_stages_and_records_tell_of_dialogues(whole: TextTrainer) -> None:
    assert whole.counts()["stages"] == 1 + 3 * 2  # what is imitated is a stage, too
    assert whole.counts()["episodes"] == 2 * 4 * 2
    found = [each for each in records(whole.run.folder.path) if each["kind"] == "training"]
    dialogues = [each["dialogues"] for each in found if "dialogues" in each]
    assert len(dialogues) == 2
    assert dialogues[0].keys() >= {"accuracy", "return/prover", "tokens/verifier", "retries/verifier"}
    assert sum("loss" in each["players"]["verifier"] for each in found) == 3
    assert sum("kl" in each["players"]["prover"] for each in found) == 2
    evaluation = next(each for each in records(whole.run.folder.path) if each["kind"] == "evaluation")
    assert [pair["players"]["prover"] for pair in evaluation["pairs"]] == ["prover", "honest"]


def test_of_all_epochs_the_second_one_learns_from_both(tmp_path: Path) -> None:
    def steps(epochs: str) -> list[int]:
        player = PLAYER | {"imitate": None, "algorithm": EXPERT | {"epochs": epochs}}
        changed = {"players": dict.fromkeys(SEATS, player), "evaluations": []}
        trainer = make_trainer(CONFIG | changed | {"stop": {"after": 1, "unit": "epochs"}}, tmp_path / epochs)
        trainer.fit()
        first = trainer.opt_steps
        trainer.extend(["stop.after=2"])
        trainer.fit()
        return [first, trainer.opt_steps - first]

    first, second = steps("this")
    assert steps("all") == [first, pytest.approx(first + second, abs=2)]
    assert second < 1.5 * first


def test_a_prompt_that_a_model_cannot_read_ends_the_run_in_a_line(tmp_path: Path) -> None:
    short = PLAYER | {"model": PLAYER["model"] | {"context": 13}}
    for name, player in (("sampled", short | {"imitate": None}), ("imitated", short)):
        with pytest.raises(TrainingFailed, match="expected "):
            trained(tmp_path / name, players=dict.fromkeys(SEATS, player))


def test_a_first_prompt_that_a_model_cannot_read_is_refused_before_the_run(tmp_path: Path) -> None:
    short = PLAYER | {"model": PLAYER["model"] | {"context": 4}}
    told = r"players\.\w+\.model: expected a prompt of .* at most 3 tokens, got \d+, in what \w+ reads first of"
    with pytest.raises(ConfigError, match=told):
        trained(tmp_path / "run", players=dict.fromkeys(SEATS, short))
    with pytest.raises(ConfigError, match=told):
        TextTrainer.check(read_config(CONFIG | {"players": dict.fromkeys(SEATS, short)}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "deed", "told"),
    [
        (
            "sample",
            lambda: {}["question"],
            r"sample: raises KeyError: 'question' \(test_trainer.py, line \d+\); the ",
        ),
        ("sample", lambda: [], r"sample: expected Rollouts, got \[\]"),
        ("statistics", lambda: 1 / 0, "statistics: raises ZeroDivisionError: division by zero"),
        ("statistics", lambda: None, "statistics: expected a dict with a number for each name, got None"),
        ("statistics", lambda: {"a": 1.0, "b": "x"}, r"statistics: expected a dict .*, got \('b', 'x'\)"),
        ("create_jobs", lambda: 1 / 0, "create_jobs: raises ZeroDivisionError: division by zero"),
        (
            "create_jobs",
            lambda: {"prover": 3},
            "create_jobs: expected a dict with jobs of .*, each with examples, got ",
        ),
        ("await_jobs", lambda: 1 / 0, "await_jobs: raises ZeroDivisionError: division by zero"),
    ],
)
def test_a_stage_of_ones_own_that_fails_ends_the_run_in_a_line_that_names_it(
    method: str, deed: Callable[[], Any], told: str, tmp_path: Path
) -> None:
    own = type("Own", (TextTrainer,), {method: lambda *_: deed()})
    players = dict.fromkeys(SEATS, PLAYER | {"imitate": None})
    trainer = own(CONFIG | {"players": players, "evaluations": []}, tmp_path / "run")
    with pytest.raises(TrainingFailed, match=f"^Own.{told}") as failed:
        trainer.fit()
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"reward": math.nan}, "ValueError: expected finite rewards, got nan of "),
        ({"reward": "1"}, "ArrowInvalid: Could not convert '1'"),
        ({"reward": None}, "ValueError: expected something as reward of each decision, got null"),
        ({"verdict": 7}, "ValueError: expected each node once, .* verdict 7"),
        ({"answer": "\ud800"}, "UnicodeEncodeError: "),
    ],
)
def test_dialogues_of_ones_own_that_no_file_may_hold_end_the_run_in_a_line(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    def sample(trainer: TextTrainer) -> Rollouts:
        return Rollouts(replace(row, **changed) for row in TextTrainer.sample(trainer).rows)

    own = type("Own", (TextTrainer,), {"sample": sample})
    players = dict.fromkeys(SEATS, PLAYER | {"imitate": None})
    with pytest.raises(TrainingFailed, match=f"^Own.sample: raises {told}") as failed:
        own(CONFIG | {"players": players, "evaluations": []}, tmp_path / "run").fit()
    assert "\n" not in str(failed.value)


class Knowing(TextTrainer):
    """Its evaluations count every verdict as the right one."""

    def sample(self) -> Rollouts:
        raise AssertionError("it is for training alone")

    def sample_evaluation(self, name: str, waves: Waves, watch: Callable[[int], None]) -> Rollouts:
        rows = super().sample_evaluation(name, waves, watch).rows
        return Rollouts(replace(row, verdict=None if row.role == "prover" else row.label) for row in rows)


def test_evaluations_are_sampled_by_a_method_of_their_own(tmp_path: Path) -> None:
    players = dict.fromkeys(SEATS, PLAYER | {"imitate": None})
    with pytest.raises(TrainingFailed, match=r"^Knowing\.sample: raises AssertionError"):
        Knowing(CONFIG | {"players": players}, tmp_path / "run").fit()
    [found] = [record for record in records(tmp_path / "run") if record["kind"] == "evaluation"]
    assert {pair["scores"]["accuracy"] for pair in found["pairs"]} == {1.0}
    nothing = type("Nothing", (TextTrainer,), {"sample_evaluation": lambda *_: []})
    with pytest.raises(TrainingFailed, match=r"^Nothing\.sample_evaluation: expected Rollouts, got \[\]"):
        nothing(CONFIG | {"players": players}, tmp_path / "none").fit()


def test_a_player_without_an_example_has_no_job(tmp_path: Path) -> None:
    never = PLAYER | {"algorithm": EXPERT | {"select": {"name": "threshold", "reward": 9.0}}, "imitate": None}
    trainer = make_trainer(
        CONFIG | {"players": {"prover": never, "verifier": never}, "evaluations": []}, tmp_path / "r"
    )
    trainer.fit()
    assert trainer.opt_steps == 0
    assert any("has no example from which" in str(each) for each in records(tmp_path / "r"))


def test_every_key_is_written_and_described_and_every_break_is_told_by_its_path() -> None:
    assert list(find_defaults(TextConfig)) == []
    assert list(find_undescribed(TextConfig)) == []
    assert_every_mutation_is_told(CONFIG, TextConfig)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"roles": {"prover": "prover"}},
            "roles.verifier: expected a player of this file (prover, verifier), but the key is missing",
        ),
        (
            {"evaluations": [MAIN | {"pairings": [SEATS | {"prover": "anna"}]}]},
            "evaluations.0.pairings.0.prover: expected a player of this file (prover, verifier, random, honest, "
            "accept, reject), got 'anna'; a new one needs players.anna",
        ),
        (
            {"players": {}, "evaluations": [], "best": None, "roles": {"prover": "anna"}},
            "roles.verifier: expected a player of this file (it has none), but the key is missing\n"
            "roles.prover: expected a player of this file (it has none), got 'anna'; a new one needs players.anna\n"
            "players: expected at least one player with an algorithm, got none",
        ),
        (
            {"players": {name: PLAYER | {"algorithm": None} for name in SEATS}},
            "players: expected at least one player with an algorithm, got none",
        ),
        (
            {"players": {"prover": "honest", "verifier": PLAYER}},
            "players.prover: expected a mapping with either model and sampling and num_retries and warm_start and "
            "imitate and algorithm and updates or scripted or from_run and player and checkpoint, got the string "
            "'honest'; write {scripted: honest}",
        ),
        (
            {"players": learning(MALT, EXPERT)},
            "players.verifier.algorithm.name: expected 'malt', because players.prover learns from trees of dialogues, "
            "got 'expert_iteration'",
        ),
        (
            {"players": learning(MALT, MALT | {"num_continuations": 2})},
            "players.verifier.algorithm.num_continuations: expected 3, as of players.prover, because all talk in the "
            "same trees, got 2",
        ),
        (
            {"players": learning(MALT, MALT | {"most_answers": 362})},
            "players.verifier.algorithm.most_answers: expected at least 363, because a tree may have so many answers, "
            "got 362",
        ),
        (
            {"players": learning(MALT | {"loss": JOB["loss"]}, MALT)},
            "players.prover.algorithm.loss.name: expected 'preference', by which its examples can be learned, got "
            "'supervised'",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(changed: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(CONFIG | changed, tmp_path / "run")
    assert set(line.splitlines()) <= set(str(caught.value).splitlines())
    assert not (tmp_path / "run").exists()


def test_a_plan_counts_the_answers_of_trees() -> None:
    """Of `nip` with 5 rounds: 3 + 9 + 27 + 81 + 243 answers, or fewer where a scripted prover does not fork."""
    malt = PLAYER | {"algorithm": MALT}
    for prover, most in ((malt, 363), ({"scripted": "honest"}, 3 + 3 + 9 + 9 + 27)):
        config = check(CONFIG | {"players": {"prover": prover, "verifier": malt}}, TextConfig)
        assert config.most_answers() == most
        trees = "8 trees of dialogues that go on in 3 ways each round (4 questions, 2 each)"
        assert config.plan()[-1].startswith(f"an epoch has {trees}, at most {8 * most:,} answers")
    [last] = check(CONFIG, TextConfig).plan()[-1:]
    assert last == "an epoch has 8 dialogues (4 questions, 2 each), at most 40 answers, and at most 2 jobs"


def test_rounds_that_scripted_players_play_before_any_model_are_counted(tmp_path: Path) -> None:
    game = text_config("nip, prover first").model_dump()
    players = {"speaker": {"scripted": "honest"}, "verifier": PLAYER | {"imitate": None}}
    seats = {"prover": "speaker", "verifier": "verifier"}
    stop = {"after": 1, "unit": "epochs"}
    trainer = trained(tmp_path / "run", game=game, players=players, roles=seats, evaluations=[], stop=stop)
    assert trainer.env_steps == sum(rows[-1].round + 1 for rows in trainer.rollouts.dialogues())


def test_a_run_whose_weights_are_no_numbers_ends_in_a_line(tmp_path: Path) -> None:
    groups = [JOB["tuning"]["groups"][0] | {"learning_rate": {"name": "constant", "value": 1e38}}]
    imitate = PLAYER["imitate"] | {"tuning": JOB["tuning"] | {"groups": groups}}
    fault = r"players.prover: (the loss is nan|a weight is no finite number) at opt step [12]"
    with pytest.raises(TrainingFailed, match=fault):
        trained(tmp_path / "run", players=dict.fromkeys(SEATS, PLAYER | {"imitate": imitate}))


def test_a_trainer_that_cannot_be_imported_is_the_one_error_of_a_file(tmp_path: Path) -> None:
    """What the other keys should be, nobody knows."""
    told = {"no_such_module:Own": "importing 'no_such_module' failed: ", "texts": "expected one of "}
    for name, message in told.items():
        with pytest.raises(ConfigError) as caught:
            make_trainer(CONFIG | {"trainer": {"name": name}}, tmp_path / "run")
        [line] = str(caught.value).splitlines()
        assert line.startswith(f"trainer.name: {message}")
    assert line.endswith("got 'texts'; did you mean 'text'?")


def test_games_on_one_question_count_as_dependent_in_the_intervals_of_an_evaluation(tmp_path: Path) -> None:
    honest = {"prover": "honest", "verifier": "random"}
    few = {"pairings": [honest], "num_games": 60}
    game = text_config("nip", scenario={"name": "code_validation", "held_out": 0.05}).model_dump()
    trainer = make_trainer(CONFIG | {"game": game, "evaluations": [MAIN | few]}, tmp_path / "run")
    [pair] = TextEvaluations(trainer).play("main", 60, True, lambda over, rounds: None)["pairs"]
    assert pair["games"] == 60
    assert pair["distinct"] == {"questions": 6}, "both versions of three programs"
    [one] = TextEvaluations(trainer).play("main", 1, True, lambda over, rounds: None)["pairs"]
    assert one["distinct"] == {"questions": 1}
    assert not one["intervals"]
