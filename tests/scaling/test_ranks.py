"""The place that a launcher gives to a process, and where processes meet."""

from pathlib import Path

import pytest

from palestra.config import ConfigError
from palestra.scaling.ranks import Board, Ranks, fail
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


def test_palestras_launcher_says_where_its_processes_meet_and_that_they_stay_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Ranks(1, 2, 1, 2).variables(str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    assert Ranks.here() == (1, 2, 1, 2, 0, 0)
    store, _ = Ranks.here().stores(1, 1.0)
    assert isinstance(store, Board)
    assert Path(store.folder).parent == tmp_path
    assert Ranks(0, 2, 0, 2).notes() == []


def test_of_the_reasons_why_processes_cannot_go_on_the_first_one_counts(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert not board.check(["failed"])
    fail(board, "rank 1 has failed", True)
    fail(board, "rank 0 has failed, too", True)
    assert board.check(["failed"])
    assert board.get("failed") == b"1rank 1 has failed"


def test_rank_0_of_torchrun_tells_who_else_reaches_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29400")
    line = "torchrun's store, node1:29400, listens on every interface, and whoever reaches it can run code as you"
    assert [len(Ranks(rank, num).notes()) for rank, num in ((0, 1), (0, 2), (1, 2))] == [0, 1, 0]
    assert Ranks(0, 2).notes()[0].startswith(line)
