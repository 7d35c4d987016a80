"""What models say of single items.

Tables such as a confusion matrix, and the best and worst items, which are read again from their data sets. The run may
come from another person: of the modules that it names those are imported that the user trusts. Items of other sets are
named by their numbers alone.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from palestra.config import importing_no_others, under
from palestra.data.items import LABEL
from palestra.kinds.data.models import load_model
from palestra.recording.results import printable, score_text
from palestra.recording.values import Image
from palestra.report.blocks import Block, Cell, Note, Picture, Section, Strip, Table, count, section_of_first_runs
from palestra.report.figures import Figures
from palestra.report.groups import Group
from palestra.report.reading import Evaluated, RunData

MOST_CLASSES = 30  # of a confusion matrix that is shown
HEIGHT = 64  # pixels to which small images are enlarged, at least
MOST_PIXELS = 256 * 256
MOST_CHARACTERS = 200  # of a described item


def judged_items_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section of judged items, of the first run of each group; none if no evaluation has any."""

    def blocks_of(run: RunData) -> list[Block]:
        last = {each.evaluation.name: each for each in run.evaluated}
        return [block for name, each in last.items() for block in _of_one(run, name, each)]

    return section_of_first_runs("items", "Judged items", groups, blocks_of, "They cannot be shown")


def _of_one(run: RunData, name: str, evaluated: Evaluated) -> list[Block]:
    pair = next((raw for _, raw in evaluated.pairs), {})
    matrix, extremes = under(pair, "tables", "confusion_matrix"), pair.get("extremes")
    data = _data_set(run, name) if matrix or extremes else None
    blocks: list[Block] = []
    if isinstance(matrix, list) and all(isinstance(row, list) for row in matrix):
        blocks.append(_confusion(name, matrix, getattr(data, "classes", None)))
    if isinstance(extremes, Mapping):
        for which in ("worst", "best"):
            blocks += _extremes(f"{name}: the {which} items by {extremes.get('score')}", extremes.get(which), data)
    return blocks


def _data_set(run: RunData, evaluation: str) -> Any:
    """Make the data set of an evaluation; None if it cannot be made, or needs modules that the user does not trust."""
    listed = run.config.get("evaluations")
    entries = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    name = next((each.get("data") for each in entries if each.get("name") == evaluation), None)
    with suppress(Exception), importing_no_others():  # whatever a set of the user's own raises: it is only shown
        return load_model(run.path, "latest", "latest", device=torch.device("cpu")).data_set(str(name))
    return None


def _confusion(name: str, matrix: Sequence[Sequence[Any]], classes: Sequence[Any] | None) -> Block:
    num = len(matrix)
    if num > MOST_CLASSES:
        return Note(f"{name}: a confusion matrix of {num} classes is not shown; the records have it.")
    names = list(map(str, classes if classes is not None and len(classes) == num else range(num)))
    rows = [
        [Cell(own), *(Cell(f"{each:,}" if each else "", each, heat=each / (sum(row) or 1)) for each in row)]
        for own, row in zip(names, matrix, strict=True)
    ]
    caption = f"{name}: items by their class, in rows, and by the class that is predicted, in columns"
    return Table(f"{caption}; colours are shares of a row.", ["", *names], rows, is_heat=True)


def _extremes(title: str, listed: Any, data: Any) -> list[Block]:
    found: list[tuple[int, float]] = []
    with suppress(TypeError, ValueError):  # a damaged record
        found = [(int(item), float(value)) for item, value in listed]
    shown = {item: _item(data, item) for item, _ in found}
    images = {item: each for item, each in shown.items() if isinstance(each, Markup)}
    if images and len(images) == len(shown):
        classes = getattr(data, "classes", None)
        texts = [f"item {item}{_class_text(data, item, classes)}: {score_text(value)}" for item, value in found]
        return [Strip(title, [Picture(images[item], text) for (item, _), text in zip(found, texts, strict=True)])]
    rows = [[count(item), Cell(score_text(value), value), Cell(printable(str(shown[item])))] for item, value in found]
    has_text = any(shown.values())
    head = ["item", "score", *(["what it is"] if has_text else [])]
    return [Table(title, head, [row if has_text else row[:2] for row in rows])] if rows else []


def _item(data: Any, item: int) -> Markup | str:
    """Return an item as a picture, or else as the set's `describe` tells it; "" if it has neither."""
    with suppress(Exception):
        if callable(describe := getattr(data, "describe", None)):
            return str(describe(item))[:MOST_CHARACTERS]
        if (pixels := image_in(data[item])) is not None:
            source = f"data:image/png;base64,{b64encode(Image(pixels).to_bytes()).decode()}"
            return Markup('<img src="{}" alt="{}">').format(source, f"item {item}")
    return ""


def _class_text(data: Any, item: int, classes: Sequence[Any] | None) -> str:
    with suppress(Exception):
        own = data[item][LABEL]
        return f", {classes[int(own)] if classes is not None else int(own)}"
    return ""


def image_in(item: Any) -> np.ndarray | None:
    """Return the first image of an item as uint8 (height, width) or (height, width, 3); None if it has none.

    An image is a tensor or an array (height, width), or with one or three channels first or last; numbers are spread
    over black to white, unless they are uint8.
    """
    entries = item.values() if isinstance(item, Mapping) else item if isinstance(item, tuple | list) else [item]
    for entry in entries:
        array = np.asarray(entry) if isinstance(entry, torch.Tensor | np.ndarray) else None
        if array is None or array.ndim not in (2, 3) or not 2 < array.size <= MOST_PIXELS:
            continue
        if array.ndim == 3 and array.shape[0] in (1, 3):
            array = np.moveaxis(array, 0, -1)
        if array.ndim == 3 and array.shape[-1] == 1:
            array = array[..., 0]
        if array.ndim == 3 and array.shape[-1] != 3:
            continue
        if array.dtype != np.uint8:
            low, high = float(array.min()), float(array.max())
            array = ((array - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
        factor = max(1, HEIGHT // array.shape[0])
        return array.repeat(factor, axis=0).repeat(factor, axis=1)
    return None
