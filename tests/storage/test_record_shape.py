"""What every record holds: a wrong value is named by its key, and what palestra and its users write passes."""

from typing import Any

import pytest

from palestra.storage.records_file import require_shape
from tests.records import POLYHEDRA, evaluation_of, played_pair, returns_in

PAIR = played_pair({"host": "a", "agent": "b"}, ["host"], {"return/host": 0.1, "return/agent": None}, 0.1)
EVALUATION = evaluation_of([PAIR], returns_in(*POLYHEDRA), POLYHEDRA, opt_steps=8, clock={"seconds": 0.1})
NO_PAIRS = {key: value for key, value in EVALUATION.items() if key != "pairs"}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"longer": "than it was"},
        {"kind": "training", "opt_steps": 3, "players": {"a": {"loss": None, "episodes": {"length": 2.0}}}},
        {"kind": "failed_evaluation", "evaluation": "main", "why": "it raised"},
        EVALUATION | {"env_steps": 16, "pairs": [PAIR, PAIR | {"intervals": {}, "same_as": PAIR["players"]}]},
    ],
)
def test_what_is_written_passes(record: dict[str, Any]) -> None:
    require_shape(record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"env_steps": "x"}, "env_steps: expected it to be a valid integer, got 'x'"),
        ({"env_steps": True}, "env_steps: expected it to be a valid integer, got True"),
        ({"clock": 3}, "clock: expected a mapping, got 3"),
        ({"clock": {"train_seconds": float("inf")}}, "clock.train_seconds: .*, got inf"),
        ({"clock": {"time": {"play": None}}}, "clock.time.play: .*, got None"),
        ({"kind": ["training"]}, "kind: .*"),
        ({"kind": "training", "players": {"a": 3}}, "players.a: .*, got 3"),
        (NO_PAIRS, "pairs: expected a value, got none"),
        (EVALUATION | {"evaluation": ["main"], "pairs": []}, r"evaluation: .*, got \['main'\]"),
        (EVALUATION | {"pairs": [PAIR | {"scores": {"mine": "1"}}]}, "pairs.0.scores.mine: .*, got '1'"),
        (EVALUATION | {"pairs": [PAIR | {"scores": {"mine": 1.0}}]}, "expected the evaluation's roles and declared .*"),
        (EVALUATION | {"pairs": [PAIR | {"intervals": {"mine": [1.0]}}]}, "pairs.0.intervals.mine: .*"),
        (EVALUATION | {"declared_scores": [{"name": "mine"}]}, "declared_scores.0.meaning: expected a value, got none"),
        (EVALUATION | {"roles": ["host"]}, "expected the evaluation's roles and declared scores in each pair, .*"),
        (EVALUATION | {"pairs": [PAIR | {"players": {"host": ["a"]}}]}, "pairs.0.players.host: .*"),
        (EVALUATION | {"pairs": [PAIR | {"learned": ["nobody"]}]}, "pairs.0: expected roles of players in learned.*"),
        ({"opt_steps": 1, "pairs": 3}, "evaluation: expected a value, got none"),
    ],
)
def test_what_differs_is_named_by_its_key(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$|^{message}, got "):
        require_shape(record)
