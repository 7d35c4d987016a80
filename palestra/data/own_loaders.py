"""Loaders of the user's own: any iterable of batches.

One that has `state_dict` and `load_state_dict`, as torchdata's StatefulDataLoader and the streams of Hugging Face's
datasets, is made once, and its state lies in checkpoints. Any other one is made anew for each epoch; a resumed run
reads the epoch again up to its batch, and compares the hash of these batches with the stored one.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, ClassVar

from palestra.config import ConfigError, InBranch, NonEmptyStr, OwnFunctionConfig, PositiveInt, failure
from palestra.data.loading import Batches
from palestra.data.reading import BatchKey, DataFailed, hash_of
from palestra.data.workers import end_workers_with_run, next_of
from palestra.randomness import base_key, fold_number, restored_global_states, seed_global_states
from palestra.runtime.limits import lack
from palestra.storage.stored_files import encode

ARGUMENTS = ("config", "seed", "epoch")


class LoaderConfig(OwnFunctionConfig):
    """A loader of the user's own.

    Its function is called with those of the arguments `config` (this object), `seed` (of the run) and `epoch` that its
    signature names.
    """

    key: ClassVar = "loader"
    usual: ClassVar[Any] = {"num_batches": None}

    loader: Annotated[NonEmptyStr, InBranch.FIXED]
    """a function of your own, as package.module:function, that gives an iterable of batches"""
    num_batches: PositiveInt | None
    """batches of an epoch; null: all that the loader gives before it ends"""

    def made(self, seed: int, epoch: int) -> Any:
        """Call the function. Raises ConfigError."""
        try:
            function = self.function()
            named = inspect.signature(function).parameters.values()
            takes_all = any(each.kind is each.VAR_KEYWORD for each in named)
            given = dict(zip(ARGUMENTS, (self, seed, epoch), strict=True))
            wanted = ARGUMENTS if takes_all else [each.name for each in named if each.name in ARGUMENTS]
            loader = function(**{name: given[name] for name in wanted})
        except Exception as error:
            message = f"{self.loader!r} fails, which may have the arguments {', '.join(ARGUMENTS)}: {failure(error)}"
            raise ConfigError.at("loader", message) from error
        if not hasattr(loader, "__iter__"):
            expected = f"expected an iterable of batches from {self.loader!r}"
            raise ConfigError.at("loader", f"{expected}, got {type(loader).__name__}")
        end_workers_with_run(loader)
        return loader


class OwnLoader(Batches):
    """The batches that a loader of the user's own gives.

    name: of the set in the config, for messages. seed: the run's. warn: is told in a line why a resumed run may compute
    other bits. Raises ConfigError, with paths relative to the config, if the loader cannot be made.

    The global generators of Python, NumPy and torch are seeded by the seed, the epoch and the batch before a batch is
    read, and are afterwards as they were.

    check: as of a Reader.
    """

    check: Callable[[Any], tuple[int, str] | None] | None = None

    def __init__(self, config: LoaderConfig, name: str, seed: int, warn: Callable[[str], None]) -> None:
        self.config, self.name, self.seed, self.warn = config, name, seed, warn
        self.num = config.num_batches
        self.key = fold_number(base_key(seed, name), 0)
        self.loader: Any = self._made(0)
        self.is_stateful = all(callable(getattr(self.loader, each, None)) for each in ("state_dict", "load_state_dict"))
        self.going: Iterator[Any] | None = None  # over the batches of a loader with state
        self.place = (0, 0)  # the epoch and the number of the next batch
        self.state: Any = None  # of a loader with state that was closed
        self.turn = 0  # the number of its pass over the data
        self.hash = ""  # of the batches of this epoch that were read from a loader without state

    @contextmanager
    def _seeded(self, epoch: int, number: int) -> Iterator[None]:
        """A context of what may draw random numbers just before the batch of a number."""
        with restored_global_states():
            seed_global_states(fold_number(fold_number(self.key, epoch), number) % 2**63)
            yield

    def _made(self, epoch: int) -> Any:
        with self._seeded(epoch, 0):
            return self.config.made(self.seed, epoch)

    def first_batch(self) -> Any:
        key = BatchKey(0, 0, ())
        if (batch := self._next(self._begun(self._made(0), key), key)) is END:
            raise DataFailed(f"{self.name}: expected a batch from the loader, got none")
        return batch

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[BatchKey, Any]]:
        batches = self._going_on(epoch, start) if self.is_stateful else self._read_again(epoch, start)
        number, limit = start, self.config.num_batches
        while limit is None or number < limit:
            key = BatchKey(epoch, number, ())
            if (batch := self._next(batches, key)) is END and self.is_stateful and (number == 0 or limit is not None):
                self.turn += limit is not None
                batches = self._pass_begun(key)  # its state was that of an end
                batch = self._next(batches, key)
            if batch is END:
                if number == 0 or limit is not None:
                    expected = "a batch" if limit is None else f"{limit} batches in an epoch (num_batches)"
                    raise DataFailed(f"{self.name}: expected {expected} from the loader, got {number or 'none'}; {key}")
                return
            if self.check is not None and (fault := self.check(batch)) is not None:
                raise DataFailed(f"{self.name}: item {fault[0]} of {key} has {fault[1]}")
            if not self.is_stateful:
                self.hash = hash_of(batch, self.hash)
            number += 1
            yield key, batch

    def _next(self, batches: Iterator[Any], key: BatchKey) -> Any:
        """Read a batch; END if there is none."""
        self.place = (key.epoch, key.number + 1)
        return self._asked(lambda: next_of(batches), key)

    def _begun(self, loader: Any, key: BatchKey) -> Iterator[Any]:
        """Begin to read, apart from the first batch: torch's loaders draw here, also where one goes on."""
        return self._asked(lambda: iter(loader), key)

    def _asked(self, call: Callable[[], Any], key: BatchKey) -> Any:
        with self._seeded(key.epoch, key.number):
            try:
                return call()
            except StopIteration:
                return END
            except Exception as error:
                why = lack(error) or f"{type(error).__name__}: {error}".splitlines()[0]
                message = f"{self.name}: the loader fails: {why}; the run waited for {key}"
                raise DataFailed(message, traceback.format_exc()) from error

    def _read_again(self, epoch: int, start: int) -> Iterator[Any]:
        """Begin an epoch of a loader without state, and read up to a batch."""
        is_made = self.loader is not None and epoch == 0
        batches = self._begun(self.loader if is_made else self._made(epoch), BatchKey(epoch, 0, ()))
        self.loader, before, self.hash = None, self.hash, ""
        for number in range(start):
            self.hash = hash_of(self._next(batches, BatchKey(epoch, number, ())), self.hash)
        if start and self.hash != before:
            what = f"the loader gave other batches before batch {start} of epoch {epoch} than it gave at first"
            self.warn(f"{self.name}: {what}; equal bits are not promised")
        return batches

    def _going_on(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of a loader with state: a new pass where an epoch is one, else where it has come to."""
        if self.loader is None:
            self.loader = self._made(0)
            self.loader.load_state_dict(self.state)
        if self.config.num_batches is None and (self.going is None or start == 0):
            self.turn, self.going = epoch, None
        return self._pass_begun(BatchKey(epoch, start, ())) if self.going is None else self.going

    def _pass_begun(self, key: BatchKey) -> Iterator[Any]:
        """Let a loader with state read on, or anew if its state is that of an end.

        The streams of Hugging Face's datasets begin anew only in another epoch than that of the state which they loaded
        last, also inside of a loader.
        """
        for each in (self.loader, getattr(self.loader, "dataset", None)):
            if (set_epoch := getattr(each, "set_epoch", None)) is not None:
                set_epoch(self.turn)
        self.going = self._begun(self.loader, key)
        return self.going

    def state_dict(self) -> dict[str, Any]:
        if not self.is_stateful:
            return {"hash": self.hash}
        with self._seeded(*self.place):  # torchdata's begins to read if it has not yet
            state = self.state if self.loader is None else self.loader.state_dict()
        try:
            encode(state, "", {})
        except TypeError as error:
            what = f"{error}".removeprefix("state")
            raise DataFailed(f"{self.name}: the state_dict of the loader cannot be stored: {what}") from error
        return {"loader": state, "turn": self.turn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.is_stateful:
            self.loader.load_state_dict(state["loader"])
            self.turn = state["turn"]
        else:
            self.hash = state["hash"]

    def close(self) -> None:
        if self.is_stateful and self.going is not None:
            with suppress(Exception):  # after a failure
                self.state = self.loader.state_dict()
            self.loader = None
        self.going = None


END = object()  # in place of a batch, where there are no more
