"""Batches are the same for any number of workers and from any batch on; what cannot be read is told with its items.

Covers palestra.data.reading.
"""

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np
import pytest
import torch

from palestra.data.loading import Batches, Loader, LoadingConfig
from palestra.data.reading import BatchKey, DataFailed, Reader, Seeding
from palestra.data.workers import packed
from palestra.randomness import global_states
from palestra.runtime.threads import available_cores


class Numbers:
    """Thirty items with their numbers, and a draw of each generator."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        draws = (torch.rand(()).item(), np.random.rand(), random.random())
        return {"index": index, "draws": torch.tensor(draws, dtype=torch.float64)}


class Plain:
    """Thirty items, some of which do what a test wants."""

    def __init__(self, at: int = -1, do: Callable[[], Any] = lambda: None) -> None:
        self.at, self.do = at, do

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return (self.do() if index == self.at else None) or {"x": torch.full((3,), float(index)), "label": index % 2}


def raises() -> None:
    raise OSError("the disk is gone\nand more")


def unknown() -> dict[str, Any]:
    return {"x": torch.zeros(3), "label": object()}


def exits() -> None:
    os._exit(3)


def opens_no_more() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def sleeps() -> None:
    time.sleep(60)


def larger() -> dict[str, Any]:
    return {"x": torch.zeros(4), "label": 1}


def wide() -> dict[str, Any]:
    return {"x": torch.zeros(3, dtype=torch.float64), "label": 1}


def with_more() -> dict[str, Any]:
    return {"x": torch.zeros(3), "label": 1, "more": 1}


def without_label() -> dict[str, Any]:
    return {"x": torch.zeros(3)}


def loader(
    data: Any,
    num_workers: int = 0,
    seeding: Seeding | None = "per_item",
    within_s: float | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    drop_last: bool = False,
) -> Loader:
    loading = LoadingConfig(num_workers=num_workers, num_prefetched=2, start_method="fork", batch_within_s=within_s)
    order = (lambda epoch: torch.arange(30).flip(0)) if isinstance(data, Numbers) else lambda epoch: torch.arange(30)
    return Loader(Reader("data.train", data, collate, seeding, 7), loading, order, 8, drop_last, pin=False)


def read(loaded: Loader, epoch: int = 0, start: int = 0) -> list[Any]:
    return [(key, batch["index"].tolist(), batch["draws"].tolist()) for key, batch in loaded.batches(epoch, start)]


def size_of(key: BatchKey, batch: Any) -> int:
    return len(batch["index"])


@pytest.mark.parametrize("num", [1, 2, 3, 8])
def test_each_replica_gets_a_batch_of_each_group(num: int) -> None:
    """Where none is left for one, it gets the first batch of the group, which does not count; it reads no other."""
    groups = [list(range(first, min(first + num, 4))) for first in range(0, 4, num)]
    for replica in range(num):
        for start in (0, num):
            one, other = loader(Numbers()), loader(Numbers())
            dealt = list(one.dealt(1, start, replica, num, size_of))
            read_by_all = list(Batches.dealt(other, 1, start, replica, num, size_of))
            assert [each.key for each in dealt] == [each.key for each in read_by_all] == one._keys
            expected = [group[replica] if replica < len(group) else group[0] for group in groups[start // num :]]
            assert [each.key.number for each in dealt] == expected
            for each, same, group in zip(dealt, read_by_all, groups[start // num :], strict=True):
                assert torch.equal(each.batch["draws"], same.batch["draws"])
                assert each.sizes == same.sizes == [6 if number == 3 else 8 for number in group]
                assert each.num_items == same.num_items == (each.sizes[replica] if replica < len(group) else 0)
    if num == 3:  # the group that ends the epoch is over, and had one batch
        assert list(loader(Numbers()).dealt(0, 4, 0, num, size_of)) == []
        assert list(Batches.dealt(loader(Numbers()), 0, 4, 0, num, size_of)) == []


def test_batches_follow_from_epoch_and_items_alone() -> None:
    alone, helped, by_one = loader(Numbers()), loader(Numbers(), num_workers=2), loader(Numbers(), num_workers=1)
    before = global_states()
    epochs = [read(alone, epoch) for epoch in range(3)]
    assert global_states() == before
    assert [len(items) for _, items, _ in epochs[0]] == [8, 8, 8, 6]
    assert [index for _, items, _ in epochs[0] for index in items] == list(range(29, -1, -1))
    assert read(by_one, 1) == epochs[1]
    by_one.close()
    for epoch in (0, 2):  # the workers stay
        assert read(helped, epoch) == epochs[epoch]
        for start in (1, 3, 4):
            assert read(helped, epoch, start) == read(alone, epoch, start) == epochs[epoch][start:]
    helped.close()
    assert read(helped, 1, 2) == epochs[1][2:]
    helped.close()
    draws = {tuple(each) for epoch in epochs for _, _, batch in epoch for each in batch}
    assert len(draws) == 3 * 30
    assert [len({each[generator] for each in draws}) for generator in range(3)] == [90, 90, 90]


def test_a_last_batch_that_is_too_small_is_dropped_where_it_is_asked() -> None:
    assert [len(items) for _, items, _ in read(loader(Numbers(), drop_last=True))] == [8, 8, 8]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            Plain(9, raises),
            r"item 9 cannot be read: OSError: the disk is gone; batch 1 of epoch 4 \(items 8, 9, .*15\)",
        ),
        (Plain(9, larger), r"item 9 is x: float32 \(4,\), but item 8 is x: float32 \(3,\); batch 1 of epoch 4"),
        (
            Plain(9, unknown),
            r"item 9 is label: of type object, but item 8 is label: of type int; batch 1 .*; a method `collate",
        ),
        (Plain(9, lambda: [][0]), "item 9 cannot be read, although its length is 30: IndexError: list index out of"),
        (Plain(9, without_label), r"item 9 has no 'label', but item 8 is label: of type int; batch 1"),
        (Plain(9, wide), r"item 9 is x: float64 \(3,\), but item 8 is x: float32 \(3,\); batch 1"),
        (Plain(8, wide), r"item 9 is x: float32 \(3,\), but item 8 is x: float64 \(3,\); batch 1"),
        (Plain(9, with_more), r"item 9 is more: of type int, but item 8 has no 'more'; batch 1"),
        (Plain(9, lambda: {"x": torch.zeros(3), "label": 0.5}), "item 9 is label: of type float, but"),
        (Plain(9, lambda: "text"), "item 9 is of type str, but item 8 is a mapping; batch 1"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_items(data: Plain, told: str, num_workers: int) -> None:
    loaded = loader(data, num_workers)
    batches = loaded.batches(4)
    next(batches)
    with pytest.raises(DataFailed, match=f"^data.train: {told}") as found:
        next(batches)
    assert found.value.told is None or "in <lambda>" in found.value.told or "in raises" in found.value.told
    loaded.close()


def test_an_exception_in_the_collate_function_is_told() -> None:
    batches = loader(Plain(), collate=lambda items: items[0]["nothing"]).batches(0)
    with pytest.raises(DataFailed, match=r"^data.train: `collate` fails: KeyError: 'nothing'; batch 0"):
        next(batches)


def test_a_collate_function_draws_by_the_batch() -> None:
    def collate(items: list[Any]) -> torch.Tensor:
        return torch.rand(2)

    alone, helped = (
        [batch.tolist() for _, batch in loader(Plain(), num, collate=collate).batches(2, start)]
        for num, start in ((0, 0), (1, 2))
    )
    assert alone[2:] == helped
    assert len({tuple(each) for each in alone}) == 4
    with pytest.raises(DataFailed, match=r"^data.train: some item or `collate` draws random numbers, in batch 0"):
        list(loader(Plain(), seeding=None, collate=collate).batches(0))


def test_without_seeding_an_item_that_draws_is_told() -> None:
    assert len(list(loader(Plain(), seeding=None).batches(0))) == 4
    batches = loader(Plain(9, lambda: np.random.rand() * 0), seeding=None).batches(0)
    next(batches)
    with pytest.raises(DataFailed, match=r"^data.train: item 9 draws random numbers; expected none, because `seeding`"):
        next(batches)


def test_a_worker_that_dies_or_is_late_is_told() -> None:
    for data, within_s, told in (
        (Plain(9, exits), None, r"a worker has ended: .*[^. ]; the run waited for batch [01] of epoch 0"),
        (
            Plain(9, sleeps),
            1.0,
            r"no worker gave a batch within 1 s \(execution.loading.batch_within_s\); the run waited for",
        ),
    ):
        loaded = loader(data, num_workers=1, within_s=within_s)
        with pytest.raises(DataFailed, match=f"^data.train: {told}"):
            list(loaded.batches(0))
        loaded.close()


def test_a_worker_that_may_open_no_more_files_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    loaded = loader(Plain(9, opens_no_more), num_workers=1, within_s=20.0)  # after that another line would come
    with pytest.raises(DataFailed, match=r"^data.train: this process may open \d+ files at a time \(ulimit -n\), and "):
        list(loaded.batches(0))
    assert "Traceback" not in capfd.readouterr().err
    loaded.close()


def test_ctrl_c_does_not_end_workers() -> None:
    loaded = loader(Plain(0, lambda: os.kill(os.getpid(), signal.SIGINT)), num_workers=1)
    assert len(list(loaded.batches(0))) == 4
    loaded.close()


def test_a_set_of_many_tensors_is_sent_without_a_file_descriptor_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.data.workers.MOST_SHARED", 2)
    sent = list[int]()
    send = reduction.DupFd
    monkeypatch.setattr(reduction, "DupFd", lambda descriptor: sent.append(descriptor) or send(descriptor))
    rows = torch.arange(90.0).view(30, 3)
    state = {"rows": list(rows), "turned": rows.t(), "items": [torch.tensor([index]) for index in range(300)]}
    state |= {"none": torch.zeros(0), "weight": torch.nn.Parameter(torch.ones(2)), "half": torch.ones(2).bfloat16()}
    found = reduction.ForkingPickler.loads(packed(state))
    assert len(sent) <= 3  # rows have one memory in common; torch sends the parameter
    assert torch.equal(torch.stack(found["rows"]), rows)
    assert torch.equal(torch.cat(found["items"]), torch.arange(300))
    assert torch.equal(found["turned"], rows.t())
    assert torch.equal(found["weight"], state["weight"])
    assert found["weight"].requires_grad
    assert torch.equal(found["half"], state["half"])
    assert found["none"].shape == (0,)
    found["rows"][0].fill_(7.0)
    assert found["turned"][0, 0] == 7.0


def test_more_workers_than_processors_are_told_in_a_line_of_ours(recwarn: pytest.WarningsRecorder) -> None:
    most = available_cores()
    assert loader(Numbers(), num_workers=most).loading.note() is None
    many = loader(Numbers(), num_workers=most + 1)
    assert (note := many.loading.note()) is not None
    assert note.startswith(f"execution.loading.num_workers: expected at most {most}, one for each processor")
    iter(many._open())  # as torch has it, two warnings of some lines
    assert not recwarn.list
