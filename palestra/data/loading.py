"""Loads the batches of an epoch, from any of them on, with any number of workers."""

import os
import signal
from collections.abc import Iterator
from multiprocessing import parent_process
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader

from palestra.config import Config, NonNegativeInt, PositiveFloat, PositiveInt
from palestra.data.reading import BatchKey, DataFailed, Reader, Unread
from palestra.runtime.signals import end_with_parent


class LoadingConfig(Config):
    """How data are read. No key changes a bit of the results."""

    usual: ClassVar = {"num_workers": 0, "num_prefetched": 2, "start_method": "forkserver", "batch_within_s": None}

    num_workers: Annotated[NonNegativeInt, Field(le=1024)]
    """processes that read batches; 0: the process that trains does"""
    num_prefetched: PositiveInt
    """batches that each worker reads ahead"""
    start_method: Literal["fork", "forkserver", "spawn"]
    """how workers start; fork is the quickest, and not safe where threads run; a class in a notebook needs it"""
    batch_within_s: PositiveFloat | None
    """seconds that workers may take for a batch, else the run ends with an error; null: any time"""


class Loader:
    """Loads batches of one data set, in order.

    Its workers stay from epoch to epoch, until `close`.
    """

    def __init__(self, reader: Reader, loading: LoadingConfig, batch_size: int, drop_last: bool, pin: bool) -> None:
        self.reader, self.loading, self.batch_size, self.drop_last = reader, loading, batch_size, drop_last
        self.pin = pin
        self._keys = list[BatchKey]()
        self._batches: DataLoader[Any] | None = None

    def _open(self) -> DataLoader[Any]:
        loading, has_workers = self.loading, self.loading.num_workers > 0
        return DataLoader(
            self.reader,
            batch_size=None,  # the reader makes batches
            sampler=self._keys,
            num_workers=loading.num_workers,
            collate_fn=_as_it_is,
            pin_memory=self.pin,
            timeout=(loading.batch_within_s or 0) if has_workers else 0,
            worker_init_fn=_begin_worker,
            multiprocessing_context=loading.start_method if has_workers else None,
            generator=torch.Generator(),  # else it would draw from the global one
            prefetch_factor=loading.num_prefetched if has_workers else None,
            persistent_workers=has_workers,
        )

    def num_batches(self, num_items: int) -> int:
        """Return how many batches an epoch of so many items has."""
        return num_items // self.batch_size if self.drop_last else -(-num_items // self.batch_size)

    def batches(self, epoch: int, indices: Tensor, start: int = 0) -> Iterator[tuple[BatchKey, Any]]:
        """Load the batches of an epoch, each with its key, from the batch of number `start` on.

        indices: the items of the epoch in their order, int64 (n,). Raises DataFailed.
        """
        pieces = indices.split(self.batch_size)[start : self.num_batches(len(indices))]
        self._keys[:] = [BatchKey(epoch, start + at, tuple(piece.tolist())) for at, piece in enumerate(pieces)]
        self._batches = self._batches or self._open()
        loaded = iter(self._batches)
        for key in list(self._keys):
            try:
                batch = next(loaded)
            except RuntimeError as error:  # of torch's own: a worker has died, or is late
                raise DataFailed(f"{self.reader.name}: {self._why(error)}; awaited was {key}") from error
            if isinstance(batch, Unread):
                raise DataFailed(*batch)
            yield key, batch

    def _why(self, error: RuntimeError) -> str:
        if "timed out" in str(error):
            limit = self.loading.batch_within_s
            return f"no worker gave a batch within {limit:g} s (execution.loading.batch_within_s)"
        return f"a worker has ended: {str(error).splitlines()[0]}"

    def close(self) -> None:
        """End the workers; the next batches start new ones."""
        self._batches = None


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin_worker(worker: int) -> None:
    """Let a worker ignore Ctrl-C, which reaches every process of a terminal, and end with the process that trains.

    A forked worker holds the lock of the run, too: it must not outlive the process that trains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    owner = parent_process()
    assert owner is not None
    os.setpgid(0, 0)
    end_with_parent(owner.sentinel)
