"""Writes torch modules as files that run without palestra, and loads them again: torch.export programs, and ONNX."""

import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

TOLERANCE = 1e-4  # of numbers in an action, and of the values of two choices: kernels add up in different orders


class ExportError(RuntimeError):
    """The player cannot be exported, or the exported file does not act as the player does."""


@contextmanager
def exporting(folder: Path, what: str) -> Iterator[None]:
    """A context in which a new folder is filled, and that removes it again if it is left by an exception.

    what: is exported into it. Raises ExportError if the folder exists.
    """
    if folder.exists():
        raise ExportError(f"{folder} exists already; move it away or delete it, to export the {what} again")
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        raise


def write_program(
    module: nn.Module, example: tuple[Any, ...], shapes: Any, path: Path
) -> tuple[ExportedProgram, Callable[..., Any]]:
    """Write a torch.export program; returns it, and the module that is loaded from the file.

    example: what the module is called with. shapes: which sizes may differ, as torch.export.export has them.
    """
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    program.example_inputs = None
    with open(path, "wb") as file:  # torch aborts for a path that is no UTF-8
        torch.export.save(program, file)
    with open(path, "rb") as file:
        return program, torch.export.load(file).module()


def write_onnx(
    program: ExportedProgram, entries: Sequence[str], others: Sequence[str], outputs: Sequence[str], path: Path
) -> tuple[Callable[[Iterable[Tensor]], list[Tensor]], dict[str, Any]]:
    """Write a program as an ONNX file; returns what computes its outputs, and what the description says of its inputs.

    entries, others: the names of the inputs; an entry keeps its own name if ONNX takes it and nothing else in the file
    has it. What the outputs do not depend on is no input of the file. Raises ExportError without the extra.
    """
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators that are not used
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it, and says so less clearly)
    except ImportError as error:
        raise ExportError(f"{error}; ONNX needs an extra: pip install 'palestra[onnx]'") from error
    inputs = [*free_names(entries, {*others, *outputs}).values(), *others]
    written: Any = torch.onnx.export(program, input_names=inputs, output_names=outputs, dynamo=True, verbose=False)
    graph = written.model.graph
    inner = {value.name for node in graph for value in node.outputs} | {*graph.initializers}
    names = list(inputs)
    for place in range(len(entries)):
        names[place] = other_than(names[place], inner | {*names[:place], *names[place + 1 :]})
    renamed = dict(zip(inputs, names, strict=True))
    for value in graph.inputs:
        value.name = renamed[value.name]
    written.save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = [entry.name for entry in session.get_inputs()]

    def run(tensors: Iterable[Tensor]) -> list[Tensor]:
        given = dict(zip(names, tensors, strict=True))
        found = session.run(list(outputs), {name: given[name].cpu().numpy() for name in wanted})
        return [torch.from_numpy(each) for each in found]

    return run, {"onnx_inputs": wanted, "onnx_names": dict(zip(entries, names, strict=False))}


def free_names(entries: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return names of inputs for entries: their own, if ONNX takes it and nothing else in the file has it."""
    found: dict[str, str] = {}
    for number, entry in enumerate(entries):
        name = entry if re.fullmatch(r"[A-Za-z_][\w/.-]*", entry, re.ASCII) else f"entry_{number}"
        found[entry] = other_than(name, {*taken, *found.values()})
    return found


def other_than(name: str, taken: Collection[str]) -> str:
    """Return the name, or one like it that is not taken."""
    while name in taken:
        name = f"observation_{name}"
    return name


# ---- in words ------------------------------------------------------------------------------------------


def entry_of(value: Tensor) -> dict[str, Any]:
    """Return the shape and type of a batch, as the description of an exported file has them."""
    return {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}


def example_of(library: str, entry: Mapping[str, Any]) -> str:
    """Write an array of one world or item as Python: legal actions are all true, everything else is 0.

    library: np or torch. entry: as `entry_of` gives it; a size may be `any`.
    """
    sizes, kind = (1, *(1 if size == "any" else size for size in entry["shape"][1:])), entry["dtype"]
    make = "ones" if kind == "bool" else "zeros"
    if library == "np":
        return f"np.{make}({sizes}, {'bool' if kind == 'bool' else f'np.{kind}'})"
    dtype = "" if kind == "float32" else f", dtype=torch.{kind}"
    return f"torch.{make}({', '.join(map(str, sizes))}{dtype})"
