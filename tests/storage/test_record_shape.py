"""What every record holds: a wrong value is named by its key, and what palestra and its users write passes."""

from typing import Any

import pytest

from palestra.storage.record_shape import require_shape

PAIR = {"players": {"host": "a", "agent": "b"}, "learned": ["host"], "games": 4, "truncated": 0}
PAIR |= {"rho": 0.5, "low": None, "high": 1, "returns": {"host": 0.1, "agent": None}}
PAIR |= {"return_intervals": {"host": [0.0, 0.2], "agent": [None, None]}}
OWN = {"players": {"agent": "b"}, "learned": [], "games": 4, "scores": {"mine": 1}}
EVALUATION = {"kind": "evaluation", "evaluation": "main", "opt_steps": 8, "clock": {"seconds": 0.1}}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"longer": "than it was"},
        {"kind": "training", "opt_steps": 3, "players": {"a": {"loss": None, "episodes": {"length": 2.0}}}},
        {"kind": "failed_evaluation", "evaluation": "main", "why": "it raised"},
        EVALUATION | {"env_steps": 16, "pairs": [PAIR, OWN], "ratings": None},
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
        (EVALUATION, "pairs: expected a value, got none"),
        (EVALUATION | {"evaluation": ["main"], "pairs": []}, r"evaluation: .*, got \['main'\]"),
        (EVALUATION | {"pairs": [OWN | {"scores": {"mine": "1"}}]}, "pairs.0.scores.mine: .*, got '1'"),
        (EVALUATION | {"pairs": [PAIR | {"players": {"host": ["a"]}}]}, "pairs.0.players.host: .*"),
        (EVALUATION | {"pairs": [PAIR | {"learned": ["nobody"]}]}, "pairs.0: expected roles of players in learned.*"),
        (EVALUATION | {"pairs": [PAIR | {"returns": {}}]}, "pairs.0: expected the same roles.*"),
        ({"opt_steps": 1, "pairs": 3}, "evaluation: expected a value, got none"),
    ],
)
def test_what_differs_is_named_by_its_key(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$|^{message}, got "):
        require_shape(record)
