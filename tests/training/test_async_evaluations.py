"""Evaluations beside training: the results of those in turn, to the bit, at the step that the config names.

Covers palestra.run.evaluating.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import LEARNER
from resuming import fit, pointed_at, records

import palestra
from palestra.run.evaluating import EvaluationRequest
from palestra.storage.stored_files import to_json
from tests.games.gym_worlds import gym_data

Data = dict[str, Any]
MakeConfig = Callable[..., Data]
BESIDE: Data = {
    "num_processes": 1,
    "results": {"after": 3, "unit": "opt_steps"},
    "timeout_s": 120.0,
    "max_restarts": 1,
}


pytestmark = pytest.mark.usefixtures("forked_evaluators")


def of_kind(run: Path, kind: str) -> list[Data]:
    return [record for record in records(run) if record["kind"] == kind]


def in_turn_and_beside(config: Data, folder: Path) -> tuple[Path, Path]:
    fit(folder / "in-turn", config)
    fit(folder / "beside", config | {"evaluators": BESIDE})
    return folder / "in-turn", folder / "beside"


def weights(run: Path) -> Any:
    found = pointed_at(run, "latest")
    assert found is not None
    return found["files"]["tensors.safetensors"], found["rows"], found["counters"]


def assert_same_training_and_results(in_turn: Path, beside: Path) -> None:
    for kind in ("training", "evaluation"):
        assert of_kind(beside, kind) == of_kind(in_turn, kind)
    assert weights(beside) == weights(in_turn)


def test_two_roles_and_two_evaluations_come_out_as_in_turn_and_count_when_they_are_due(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config({"output.record": {"every": 1, "unit": "opt_steps"}})
    config["evaluations"].append(config["evaluations"][0] | {"name": "more", "seed": 5})
    in_turn, beside = in_turn_and_beside(config, tmp_path)
    assert_same_training_and_results(in_turn, beside)
    found = [(record["kind"], record["opt_steps"]) for record in records(beside)]
    for name, step in (("main", 0), ("main", 8), ("main", 16)):
        assert found.index(("evaluation", step)) == found.index(("training", step + 3)) - 2  # and that of "more"
        filed = json.loads((beside / "evaluations" / "async" / f"{name}-opt-step-{step}.json").read_text())
        del filed["clock"]
        assert filed in of_kind(beside, "evaluation")
    assert [step for kind, step in found if kind == "evaluation"] == [0, 0, 8, 8, 16, 16, 24, 24]
    assert found[-3:] == [("evaluation", 24), ("evaluation", 24), ("training", 24)]


def test_a_record_has_its_keys_in_the_same_order_after_a_resume() -> None:
    occasion = EvaluationRequest(["main"], False, False, {"env_steps": 4, "opt_steps": 3, "epochs": 2, "episodes": 1})
    again = EvaluationRequest.from_state(json.loads(to_json(asdict(occasion))), list(occasion.counters))
    assert list(again.counters.items()) == list(occasion.counters.items())


def test_in_an_environment_of_very_uneven_episodes_all_are_played_whatever_their_lengths(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    seen = {"normalize": {"eps": 1e-8}, "clip": 10.0}  # by statistics that move while an evaluation is played
    how = {"name": "sync", "autoreset": "next_step"}
    game = gym_data(id="tests.gym_probes:Uneven-v0", vectorization=how, observation=seen)
    alone = {
        "game": game,
        "num_worlds": 4,
        "num_replicas": 1,
        "roles": {"agent": "agent"},
        "players": {"agent": copy.deepcopy(LEARNER)},
        "evaluations.0.num_games": 30,
        "evaluations.0.max_rounds": 300,
        "evaluations.0.pairings": [{"agent": "agent"}],
        "best": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max"},
    }
    in_turn, beside = in_turn_and_beside(make_config(alone), tmp_path)
    assert_same_training_and_results(in_turn, beside)
    first, *_, last = (record["pairs"][0] for record in of_kind(beside, "evaluation"))
    assert (first["games"], last["games"]) == (30, 12)
    lengths = first["statistics"]["episode_length"]
    assert (lengths["min"], lengths["max"]) == (1, 200)
    num_long = (first["steps"] - 30) / 199
    assert num_long == round(num_long) > 0
    assert first["scores"]["return/agent"] == pytest.approx(first["steps"] / 30)  # a reward of 1 for every step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluations": [], "best": None}, "evaluators: expected null, because there are no evaluations"),
        ({"evaluators": BESIDE | {"num_processes": 0}}, "evaluators.num_processes"),
        ({"evaluators": BESIDE | {"results": {"after": 3, "unit": "minutes"}}}, "evaluators.results.unit"),
        ({"evaluators": {key: BESIDE[key] for key in list(BESIDE)[1:]}}, "evaluators.num_processes"),
    ],
)
def test_what_is_wrong_with_evaluators_is_told(changes: Data, message: str, make_config: MakeConfig) -> None:
    with pytest.raises(palestra.ConfigError) as caught:
        palestra.Trainer(make_config({"evaluators": BESIDE} | changes))
    assert message in str(caught.value)


def test_networks_that_no_config_names_cannot_be_evaluated_beside(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = palestra.Trainer(make_config({"evaluators": BESIDE}), run=tmp_path / "run")
    with pytest.raises(
        palestra.ConfigError,
        match="evaluators: expected null, because other processes cannot build networks of set_model, got a mapping",
    ):
        trainer.set_model("host", trainer.host_net)
