"""Loads the batches of an epoch, from any of them on, with any number of workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader

from palestra.config import Config, NonNegativeInt, PositiveFloat, PositiveInt
from palestra.data.reading import BatchKey, DataFailed, Reader, Unread
from palestra.data.workers import begin_worker, next_of
from palestra.runtime.limits import lack
from palestra.runtime.threads import available_cores


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

    def note(self) -> str | None:
        """Return a line for the user if there are more workers than this machine has processors for; else None."""
        if self.num_workers <= (cores := available_cores()):
            return None
        here = f"expected at most {cores}, one for each processor that this process may use"
        return f"execution.loading.num_workers: {here}, got {self.num_workers}; more of them may be slower"


class Dealt(NamedTuple):
    """What a replica gets of a group: consecutive batches, of which each replica of a run takes one.

    key, batch: its own; of a replica for which none is left, those of the first batch, which then do not count. sizes:
    the items of each batch of the group. num_items: of its own; 0 where none is left.
    """

    key: BatchKey
    batch: Any
    sizes: list[int]
    num_items: int


class Batches:
    """Base of what gives the batches of epochs. num: of the epoch that has begun last; None: not known."""

    num: int | None = None

    def first_batch(self) -> Any:
        """Return a batch of which each entry has the shape of all, by a reading of its own. Raises DataFailed."""
        raise NotImplementedError

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[BatchKey, Any]]:
        """Load the batches of an epoch, each with its key, from the batch of number `start` on. Raises DataFailed."""
        raise NotImplementedError

    def dealt(
        self, epoch: int, start: int, replica: int, num: int, size_of: Callable[[BatchKey, Any], int]
    ) -> Iterator[Dealt]:
        """Deal the batches of an epoch out to `num` replicas, in groups of so many, and load those of one of them.

        start: the number of the first batch; where it begins no group, the group that ends the epoch is over. size_of:
        counts the items of a batch. Every replica reads all batches here. Raises DataFailed.
        """
        if start % num:
            return
        batches = self.batches(epoch, start)
        while first := next(batches, None):
            own, sizes = first, [size_of(*first)]
            for place, each in enumerate(islice(batches, num - 1), start=1):
                own = each if place == replica else own
                sizes.append(size_of(*each))
            yield Dealt(*own, sizes, sizes[replica] if replica < len(sizes) else 0)
            if len(sizes) < num:
                return

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on at the same batch, besides its number."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""

    def close(self) -> None:
        """End the workers; the next batches start new ones."""


def in_order(num_items: int) -> Callable[[int], Tensor]:
    """Return the order in which every epoch has the first so many items as they are."""
    return lambda epoch: torch.arange(num_items)


class Loader(Batches):
    """Loads batches of one data set, in order. Its workers stay from epoch to epoch, until `close`.

    order: gives the items of an epoch in their order, int64 (n,). pin: whether batches lie in pinned memory.
    """

    def __init__(
        self,
        reader: Reader,
        loading: LoadingConfig,
        order: Callable[[int], Tensor],
        batch_size: int,
        drop_last: bool,
        pin: bool,
    ) -> None:
        self.reader, self.loading, self.order = reader, loading, order
        self.batch_size, self.drop_last, self.pin = batch_size, drop_last, pin
        self._keys = list[BatchKey]()
        self._batches: DataLoader[Any] | None = None

    def _open(self) -> DataLoader[Any]:
        loading, has_workers = self.loading, self.loading.num_workers > 0
        return _Workers(
            self.reader,
            batch_size=None,  # the reader makes batches
            sampler=self._keys,
            num_workers=loading.num_workers,
            collate_fn=_as_it_is,
            pin_memory=self.pin,
            timeout=(loading.batch_within_s or 0) if has_workers else 0,
            worker_init_fn=begin_worker,
            multiprocessing_context=loading.start_method if has_workers else None,
            generator=torch.Generator(),  # else it would draw from the global one
            prefetch_factor=loading.num_prefetched if has_workers else None,
            persistent_workers=has_workers,
        )

    def first_batch(self) -> Any:
        return self.reader.first_batch()

    def require_sendable(self) -> None:
        """Raise DataFailed for a data set that cannot be sent to workers."""
        if self.loading.num_workers > 0 and self.loading.start_method != "fork":
            try:
                self.reader.__getstate__()
            except Exception as error:
                raise DataFailed(f"{self.reader.name}: {self._why(error)}") from error

    def num_batches(self, num_items: int) -> int:
        """Return how many batches an epoch of so many items has."""
        return num_items // self.batch_size if self.drop_last else -(-num_items // self.batch_size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[BatchKey, Any]]:
        yield from self._read(self._keys_of(epoch, start))

    def dealt(
        self, epoch: int, start: int, replica: int, num: int, size_of: Callable[[BatchKey, Any], int]
    ) -> Iterator[Dealt]:
        """As in Batches; a replica reads its own batches alone."""
        keys = self._keys_of(epoch, start)
        groups = [keys[first : first + num] for first in range(0, len(keys), num)]
        own = [group[replica] if replica < len(group) else group[0] for group in groups]
        for (key, batch), group in zip(self._read(own), groups, strict=True):
            sizes = [len(each.items) for each in group]
            yield Dealt(key, batch, sizes, sizes[replica] if replica < len(group) else 0)

    def _keys_of(self, epoch: int, start: int) -> list[BatchKey]:
        """Return the keys of the batches of an epoch, from one on."""
        indices = self.order(epoch)
        self.num = self.num_batches(len(indices))
        pieces = indices.split(self.batch_size)[start : self.num]
        return [BatchKey(epoch, start + at, tuple(piece.tolist())) for at, piece in enumerate(pieces)]

    def _read(self, keys: Sequence[BatchKey]) -> Iterator[tuple[BatchKey, Any]]:
        self._keys[:] = keys
        loaded = self._loaded()
        for key in keys:
            try:
                batch = next_of(loaded)
            except Exception as error:  # of torch's own: the reader raises none
                why = lack(error) or self._why(error)
                raise DataFailed(f"{self.reader.name}: {why}; the run waited for {key}") from error
            if isinstance(batch, Unread):
                raise DataFailed(*batch)
            yield key, batch

    def _loaded(self) -> Iterator[Any]:
        self._batches = self._batches or self._open()
        yield from self._batches

    def _why(self, error: Exception) -> str:
        why = f"{error}".splitlines()[0] if f"{error}" else type(error).__name__
        if not isinstance(error, RuntimeError):
            method = f"start_method {self.loading.start_method!r}"
            return f"workers cannot start with execution.loading.{method}: {type(error).__name__}: {why}"
        if "timed out" in why:
            return f"no worker gave a batch within {self.loading.batch_within_s:g} s (execution.loading.batch_within_s)"
        return f"a worker has ended: {why.partition('. ')[0]}"  # then torch advises on what it calls multiprocessing

    def close(self) -> None:
        self._batches = None


class _Workers(DataLoader[Any]):
    def check_worker_number_rationality(self) -> None:
        """Do not warn of too many workers in several lines, as torch does: `LoadingConfig.note` says it."""


def _as_it_is(batch: Any) -> Any:
    return batch
