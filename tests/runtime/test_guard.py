"""Whether functions are those that a kernel was written for; edits of losses and choices: tests/algorithms/kernels."""

import json
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from palestra.randomness import fold, random_choice
from palestra.runtime import guard
from palestra.runtime.guard import Kernel, find_edit, fingerprint, kernel_properties, kernel_property
from palestra.schedules import ConstantSchedule
from tests.runtime.scaled import Base, Scaled

NAME, LEAF = "palestra.randomness:fold", "palestra.randomness:_signed"


def test_a_function_is_named_by_its_code() -> None:
    assert guard.name_of(fold) == NAME
    assert guard.name_of(ConstantSchedule.__call__) == "palestra.schedules:ConstantSchedule.__call__"


def test_a_fingerprint_is_the_same_in_every_process_and_changes_with_the_source(tmp_path: Path) -> None:
    first = fingerprint(fold)
    assert first == fingerprint(fold)
    assert len(first) == 64
    assert first != fingerprint(random_choice)


@pytest.mark.parametrize(
    "value", [7, -0.0, "text", (1, 2.0), {"a": 1}, [True], {1, 2}, None, np.arange(3), torch.ones(2)]
)
def test_what_a_global_name_stands_for_is_part_of_a_fingerprint(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(fold)
    monkeypatch.setitem(fold.__globals__, "GAMMA", value)
    assert fingerprint(fold) != before


def test_defaults_are_part_of_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(fold)
    monkeypatch.setattr(fold, "__defaults__", (3,))
    assert fingerprint(fold) != before


def test_a_name_that_was_lent_by_wraps_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*arguments: Any) -> Any: ...

    other.__module__, other.__qualname__ = fold.__module__, fold.__qualname__
    assert guard._described(other) != guard._described(fold)
    assert guard._described(cache(fold)) == guard._described(fold)


# ---- what a function means -------------------------------------------------------------------------------

STOCK = """
def stock(x, y, *, z=2.0):
    total = [each + y for each in x]
    return sum(total, z) * LIMIT
"""
SAME = {
    "comments": """
def stock(x, y, *, z=2.0):  # one
# two
    # three
    total = [each + y for each in x]
    return sum(total, z) * LIMIT  # four
""",
    "a docstring": """
def stock(x, y, *, z=2.0):
    '''What it is for,
at any place.'''
    total = [each + y for each in x]
    return sum(total, z) * LIMIT
""",
    "annotations": """
def stock(x: list[float], y: "float", *, z: float = 2.0) -> "float":
    note: str
    total: list[float] = [each + y for each in x]
    return sum(total, z) * LIMIT
""",
    "another formatting": """
def stock(x, y, *, z=(2.0)):

    total = [
        each + y
        for each in x
    ]
    return (sum(
        total, z,
    ) * LIMIT)
""",
    "other variables": """
def stock(rows, shift, *, z=2.0):
    moved = [row + shift for row in rows]
    return sum(moved, z) * LIMIT
""",
}
OTHER = {
    "a number": STOCK.replace("2.0", "3.0"),
    "the kind of a number": STOCK.replace("2.0", "2"),
    "an operation": STOCK.replace("each + y", "each - y"),
    "variables that change places": STOCK.replace("each + y", "y + each"),
    "parameters that change places": STOCK.replace("(x, y,", "(y, x,"),
    "a parameter that is called by its name": STOCK.replace("z", "w"),
    "another global name": STOCK.replace("LIMIT", "OTHER_LIMIT"),
    "another attribute": STOCK.replace("LIMIT", "LIMIT.real"),
    "one statement less": STOCK.replace("    total = [", "    total = x; [", 1),
    "a decorator": f"@(lambda function: function){STOCK}",
}


def in_a_file(text: str, file: Path) -> FunctionType:
    file.write_text(text)
    room: dict[str, Any] = {"__name__": "palestra.made_up", "LIMIT": 1.0, "OTHER_LIMIT": 1.0}
    exec(compile(text, str(file), "exec"), room)
    found: FunctionType = room["stock"]
    return found


@pytest.mark.parametrize("way", [*SAME, *OTHER])
def test_a_fingerprint_is_that_of_what_a_function_means(way: str, tmp_path: Path) -> None:
    stock = fingerprint(in_a_file(STOCK, tmp_path / "stock.py"))
    assert (fingerprint(in_a_file((SAME | OTHER)[way], tmp_path / "edited.py")) == stock) == (way in SAME)


class Part:
    def double(self, x: int) -> int:
        return 2 * x


class Owner(Part):
    __module__ = "palestra.runtime.guard"  # as ours

    def __init__(self) -> None:
        self.parts = {"first": [ConstantSchedule(name="constant", value=1.0)]}
        self.num_choices = 0

    def act(self) -> Any: ...

    @kernel_property
    def act_kernel(self) -> int:
        self.num_choices += 1
        return self.num_choices


def kernel_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], mirrors: tuple[str, ...]) -> Kernel:
    hashes = {}
    for name in names:
        holder, method = guard.defined(name)
        function = guard.called(holder, method)
        assert function is not None
        hashes[name] = fingerprint(function, holder)
    file = tmp_path / "mirrors.json"
    file.write_text(json.dumps({"random_observations": hashes}))
    monkeypatch.setattr(Kernel, "file", file)
    return Kernel(__name__, "random_observations", mirrors, "much")


def test_methods_of_all_that_can_be_reached_are_looked_up_as_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "palestra.schedules:ConstantSchedule.__call__"
    kernel, owner = kernel_of(tmp_path, monkeypatch, [name, LEAF], ()), Owner()
    assert find_edit(kernel, owner) is None

    class Other(ConstantSchedule):
        def __call__(self, step: int) -> float:
            return 2.0

    owner.parts["first"].append(Other(name="constant", value=1.0))
    edit = find_edit(kernel, owner)
    assert edit is not None
    assert edit.startswith("Other.__call__ differs from palestra's (test_guard.py, line ")


def test_a_mirrored_function_in_the_place_of_another_is_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, owner = kernel_of(tmp_path, monkeypatch, [SCALE, LEAF], ()), Owner()
    owner.parts["first"].append(type("Own", (Scaled,), {"scale": guard.called(*guard.defined(LEAF))})(**SCALED))
    edit = find_edit(kernel, owner)
    assert edit is not None
    assert edit.startswith("Own.scale differs from palestra's (randomness.py, line ")


# ---- constants of classes --------------------------------------------------------------------------------


SCALED = {"name": "constant", "value": 1.0}
SCALE = "tests.runtime.scaled:Scaled.scale"


@pytest.mark.parametrize(("cls", "name"), [(Base, "EPSILON"), (Scaled, "FACTORS"), (Scaled, "EPSILON")])
def test_a_constant_of_a_class_that_was_assigned_is_an_edit(
    cls: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inherited one, too, in the class where it stands as in the one that inherits it."""
    kernel, owner = kernel_of(tmp_path, monkeypatch, [SCALE], ()), Owner()
    owner.parts["first"].append(Scaled(**SCALED))
    assert find_edit(kernel, owner) is None
    monkeypatch.setattr(cls, name, (1.0,), raising=False)
    edit = find_edit(kernel, owner)
    assert edit is not None
    assert edit.startswith("Scaled.scale, or a constant that it reads, was edited (scaled.py, line ")


class WithAnother(Scaled):
    EPSILON: ClassVar[float] = 1e-5


class WithAProperty(Scaled):
    @property
    def EPSILON(self) -> float:  # type: ignore[override]  # noqa: N802
        return 1e-5


@pytest.mark.parametrize("cls", [WithAnother, WithAProperty])
def test_a_constant_that_a_subclass_has_otherwise_is_an_edit(
    cls: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, owner = kernel_of(tmp_path, monkeypatch, [SCALE], ()), Owner()
    owner.parts["first"].append(cls(**SCALED))
    edit = find_edit(kernel, owner)
    assert edit is not None
    assert edit.startswith(f"{cls.__name__}.scale, or a constant that it reads, was edited (scaled.py, line ")


def test_a_constant_that_one_object_has_otherwise_is_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, owner, part = kernel_of(tmp_path, monkeypatch, [SCALE], ()), Owner(), Scaled(**SCALED)
    owner.parts["first"].append(part)
    assert find_edit(kernel, owner) is None
    vars(part)["FACTORS"] = (2.0, 4.0)
    assert find_edit(kernel, owner) is not None


def test_other_attributes_of_objects_are_no_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, owner = kernel_of(tmp_path, monkeypatch, [SCALE], ()), Owner()
    owner.parts["first"].append(Scaled(name="constant", value=7.0))
    assert find_edit(kernel, owner) is None


def test_a_mirror_that_is_no_function_is_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    owner.act = 3  # type: ignore[assignment, method-assign]
    assert find_edit(kernel_of(tmp_path, monkeypatch, [NAME], ("act",)), owner) == (
        "Owner.act is no function with a source"
    )


def test_a_kernel_without_hashes_steps_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = find_edit(kernel_of(tmp_path, monkeypatch, [], ()), Owner())
    assert edit == "mirrors.json has no hashes for random_observations; `make kernels` writes them"


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"random_observations": null}', '{"random_observations": 3}'])
def test_a_kernel_steps_aside_where_its_file_is_missing_or_broken(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of(tmp_path, monkeypatch, [LEAF], ())
    kernel.file.unlink() if text is None else kernel.file.write_text(text)
    edit = find_edit(kernel, Owner())
    assert edit == "mirrors.json has no hashes for random_observations; `make kernels` writes them"


@pytest.mark.parametrize("sha256", [None, "", 3, "0" * 64])
def test_a_hash_that_is_another_is_an_edit(sha256: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(tmp_path, monkeypatch, [LEAF], ())
    kernel.file.write_text(json.dumps({kernel.name: {LEAF: sha256}}))
    edit = find_edit(kernel, Owner())
    assert edit is not None
    assert edit.startswith("_signed, or a constant that it reads, was edited (randomness.py, line ")


def test_a_method_that_is_bound_to_another_object_is_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, owner, part = kernel_of(tmp_path, monkeypatch, [SCALE], ()), Owner(), Scaled(**SCALED)
    owner.parts["first"].append(part)
    vars(part)["scale"] = part.scale
    assert find_edit(kernel, owner) is None
    vars(part)["scale"] = Scaled(name="constant", value=7.0).scale
    assert find_edit(kernel, owner) == "Scaled.scale is no function with a source"


def test_a_function_without_a_source_is_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(tmp_path, monkeypatch, [LEAF], ())
    monkeypatch.setattr(guard, "meaning", lambda code: ("", frozenset()))
    assert find_edit(kernel, Owner()) is not None


def test_a_kernel_is_chosen_at_first_use() -> None:
    owner = Owner()
    assert (owner.act_kernel, owner.act_kernel) == (1, 1)
    assert kernel_properties(Owner) == ["act_kernel"]
    assert isinstance(Owner.act_kernel, kernel_property)
