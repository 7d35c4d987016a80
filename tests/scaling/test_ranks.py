"""The place that torchrun gives to a process."""

import pytest

from palestra.config import ConfigError
from palestra.scaling.ranks import Ranks
from palestra.scaling.replica import Replica

SAID = {
    "TORCHELASTIC_RUN_ID": "1",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}


def test_a_process_is_alone_unless_torchrun_has_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Ranks.here() == (0, 1, 0, 1, 0, 0)


def test_torchrun_says_which_replicas_a_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SAID.items():
        monkeypatch.setenv(name, value)
    assert Ranks.here() == (2, 4, 0, 2, 1, 3)
    head = Replica.heading(8)
    assert (head.index, head.num, head.num_here, head.place) == (4, 8, 2, 0)
    assert head.heads
    assert not head.leads
    with pytest.raises(ConfigError, match=r"num_replicas: expected a multiple of the 4 processes .*, got 2"):
        Replica.heading(2)
