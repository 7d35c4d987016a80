"""The gradient of a weighted mean over a batch, computed in one piece or in several, which changes rounding alone.

Letters: B items of a batch.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palestra.config import Failed, failure
from palestra.config.errors import typed
from palestra.data.items import with_changed_parts
from palestra.models.model import WEIGHT, Model, Terms


class TermsError(ValueError):
    """The terms of a loss are not such as learning needs: they have no loss_*, or are not per item."""


class ModelFailed(Failed):
    """A model, or a step of a trainer of the user's own, fails on a batch."""


def told(error: Exception, what: str, key: object) -> ModelFailed:
    """Return the error of a model that raises on a batch. what: computes. key: tells which batch it is."""
    why = str(error) if isinstance(error, TermsError) else f"{what} fails: {failure(error)}"
    return ModelFailed(f"{why}; {key}")


Path = tuple[Any, ...]  # the keys and places that lead to a part of a batch
Belongs = Callable[[Path], bool]  # whether a part of a batch has an entry for each item


def num_items(batch: Any, belongs: Belongs | None = None) -> int:
    """Return how many items a batch has: the length of its first part that belongs to items.

    belongs: says which do; None: its first tensor does, or its first list if it has none. Raises TermsError if it has
    neither.
    """
    for path, part in _parts(batch) if belongs is not None else ():
        if belongs is not None and belongs(path):
            return len(part)
    # A batch is mostly a tensor, or has one first: no need to go through all of it, which takes longer.
    first = next(iter(batch.values()), None) if isinstance(batch, dict) else batch
    if isinstance(first, Tensor) and first.dim():
        return len(first)
    parts: list[Any] = []
    with_changed_parts(batch, parts.append, lambda part: _counts_items(part, part is batch))
    counting = [part for part in parts if _counts_items(part, part is batch)]
    for part in [*(part for part in counting if isinstance(part, Tensor)), *counting]:
        return len(part)
    raise TermsError(f"expected a batch with tensors, whose first axis counts items, got {type(batch).__name__}")


def _parts(part: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield all parts of a batch that may have an entry for each item, each with its path."""
    if _counts_items(part, path == ()):
        yield path, part
    inner = part.items() if isinstance(part, Mapping) else enumerate(part) if isinstance(part, list | tuple) else ()
    for key, each in inner:
        yield from _parts(each, (*path, key))


def found_in(one: Any, two: Any) -> Belongs:
    """Return which parts of a batch have an entry for each item. one, two: batches of one item and of two."""
    lengths = {path: len(part) for path, part in _parts(one)}
    return frozenset(path for path, part in _parts(two) if (lengths.get(path), len(part)) == (1, 2)).__contains__


def said_by(model: Model) -> Belongs | None:
    """Return which parts of a batch have an entry for each item, if the model says it."""
    named = model.per_item
    return None if named is None else lambda path: path[:1] != () and path[0] in named


def sizes_of(size: int, num: int) -> list[int]:
    """Return the sizes of the pieces of a batch of `size` items, which differ by one at most; none is empty."""
    bounds = [size * at // num for at in range(num + 1)]
    return [stop - start for start, stop in itertools.pairwise(bounds) if stop > start]


def pieces(batch: Any, num: int, belongs: Belongs | None = None) -> Iterator[Any]:
    """Cut a batch into `num` pieces of consecutive items, whose sizes differ by one at most.

    belongs: says which parts are cut; None: as far as their lengths say, all that have as many entries as there are
    items. These are tensors with a row for each item, and lists with an entry for each, whatever the entries are:
    texts, or tensors of any lengths. A mapping, a tuple, and the batch itself are cut part by part, unless they are a
    list or a tuple without tensors, lists, tuples and mappings, as of texts. Everything else goes with each piece.
    """
    size = num_items(batch, belongs)
    own = None if belongs is None else {id(part) for path, part in _parts(batch) if belongs(path)}

    def is_cut(part: Any) -> bool:
        return _counts_items(part, part is batch) and len(part) == size and (own is None or id(part) in own)

    start = 0
    for num_rows in sizes_of(size, num):
        rows = slice(start, start + num_rows)
        yield with_changed_parts(batch, lambda part, rows=rows: part[rows] if is_cut(part) else part, is_cut)  # type: ignore[misc]
        start += num_rows


def _counts_items(part: Any, is_batch: bool) -> bool:
    """Return whether a part of a batch, or the batch itself, has an entry for each item, if it has as many."""
    if isinstance(part, Tensor):
        return part.dim() > 0
    if type(part) is list and not is_batch:
        return True
    return type(part) in (list, tuple) and not any(isinstance(each, Tensor | list | tuple | Mapping) for each in part)


def checked(terms: Terms, size: int, num_pieces: int) -> Terms:
    """Return the terms of a piece of `size` items. Raises TermsError."""
    if not isinstance(terms, Mapping):
        raise TermsError(f"expected a dict of tensors as the loss, got {type(terms).__name__}")
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            raise TermsError(f"expected a tensor as the term {name!r}, got {typed(term)}")
    if not any(name.startswith("loss_") for name in terms):
        raise TermsError(f"expected at least one term named loss_*, which is learned, got {', '.join(terms) or 'none'}")
    for name, term in terms.items():
        is_of_batch = term.dim() == 0 and name != WEIGHT
        if term.shape == (size,) or (is_of_batch and num_pieces == 1):
            continue
        message = f"expected one number per item, ({size},), as the term {name!r}, got {tuple(term.shape)}"
        if is_of_batch:
            message += "; a term of the whole batch needs learning.num_microbatches: 1"
        raise TermsError(message)
    return terms


def added(gradients: Iterator[list[Tensor | None]]) -> list[Tensor | None]:
    """Add gradients up in a binary tree that depends on their number alone; at most log2 of them are held at a time."""
    held: list[tuple[int, list[Tensor | None]]] = []
    for gradient in gradients:
        size, total = 1, gradient
        while held and held[-1][0] == size:
            size, total = 2 * size, _sum(held.pop()[1], total)
        held.append((size, total))
    _, total = held.pop()
    while held:
        total = _sum(held.pop()[1], total)
    return total


def _sum(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Add two gradients; not in place, because autograd may give one tensor as the gradient of several weights."""
    return [b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True)]


class Gradient(NamedTuple):
    """The gradient of the loss of a batch: of its weighted sum, of which `total` makes the mean.

    sums: one tensor per weight, which may share their memory; None for a weight that no term reaches. total: the sum of
    the weights of the items. means: of the terms over the batch, with `loss`, the sum of those named loss_*; where the
    items count nothing there are none, and no weight is reached.
    """

    sums: list[Tensor | None]
    total: Tensor | float
    means: Terms


def find_gradient(
    model: Model,
    batch: Any,
    num_microbatches: int,
    weights: Sequence[nn.Parameter],
    context: Callable[[], Any],
    scale: Tensor | None = None,
    belongs: Belongs | None = None,
) -> Gradient:
    """Find the gradient of the weighted mean of the loss over a batch.

    num_microbatches: in how many pieces it is computed. weights: those that learn. context: entered around each piece,
    as for the precision. scale: (), by which the sums are multiplied. belongs: as for `pieces`. Raises TermsError.
    """
    parts = [batch] if num_microbatches == 1 else list(pieces(batch, num_microbatches, belongs))
    sizes = sizes_of(num_items(batch, belongs), num_microbatches)
    sums: dict[str, Tensor] = {}
    counted: list[Tensor | float] = []

    def gradients() -> Iterator[list[Tensor | None]]:
        for piece, num in zip(parts, sizes, strict=True):
            with context():
                found, total = _weighted_sums(checked(model.training_step(piece), num, len(parts)), num)
            for name, value in found.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
            counted.append(total)
            loss: Any = sum(value for name, value in found.items() if name.startswith("loss_"))
            yield list(torch.autograd.grad(loss if scale is None else loss * scale, weights, allow_unused=True))

    gradient = added(gradients())
    if bool((count := sum(counted)) <= 0):
        if count < 0:
            raise TermsError(f"expected a sum above 0 of the term {WEIGHT!r} over a batch, got {count:g}")
        return Gradient([None] * len(weights), 0.0, {})
    means = {name: value / count for name, value in sums.items()}
    means["loss"] = sum(value for name, value in means.items() if name.startswith("loss_"))  # type: ignore[assignment]
    return Gradient(gradient, count, means)


def _weighted_sums(terms: Terms, size: int) -> tuple[Terms, Tensor | float]:
    """Return the sum of each term over the items, each item times its weight, and the sum of the weights.

    A term of the whole batch counts as often as all items together.
    """
    weight = _wide(terms[WEIGHT]) if WEIGHT in terms else None
    total = float(size) if weight is None else weight.sum().detach()
    sums = {}
    for name, term in terms.items():
        if name != WEIGHT:
            wide = _wide(term)
            sums[name] = wide * total if term.dim() == 0 else (wide if weight is None else wide * weight).sum()
    return sums, total


def _wide(term: Tensor) -> Tensor:
    """Return a term as float32; as it is if it is float64."""
    return term if term.dtype == torch.float64 else term.float()
