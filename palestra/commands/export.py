"""Writes the policy of a player as files that run without palestra: a torch.export program and, if asked for, ONNX.

Both take an observation as an environment's `reset` gives it and the legal actions, for any number of worlds. They give
`action`, as `step` takes it, and `q_values_or_logits`: of every choice the Q-value (DQN) or the logit (other
algorithms), with no columns for actions that are vectors of numbers. A recurrent player's memory is a further input,
and comes out last. `policy.json` has the names, shapes and types. The files are loaded again, and must act as
`Player.predict` does.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from palestra.commands.export_check import Act, Decision, ExportError, compare, decisions_of
from palestra.commands.export_files import entry_of, example_of, free_names, write_onnx, write_program
from palestra.games.game import Game
from palestra.games.outside import Outside
from palestra.games.policy import Memory
from palestra.players.player import Player
from palestra.storage.disk import write_bytes
from palestra.storage.facts import to_json

OUTPUTS = ["action", "q_values_or_logits"]


class Program(nn.Module):
    """The exported module: reads an observation as it is outside, acts, and gives actions as they leave palestra."""

    def __init__(self, module: nn.Module, outside: Outside) -> None:
        super().__init__()
        self.module, self.outside = module, outside

    def forward(
        self, observation: dict[str, Tensor], legal: Tensor, memory: dict[str, Tensor] | None = None
    ) -> tuple[Any, ...]:
        view = self.outside.read(observation)
        action, values, *after = self.module(view, legal) if memory is None else self.module(view, legal, memory)
        memories = ({name: each[name].detach() for name in sorted(each)} for each in after)
        return self.outside.act(action).detach(), values.detach(), *memories


def export_player(
    player: Player,
    folder: Path,
    onnx: bool,
    tell: Callable[[str], None] = lambda line: None,
    role: str | None = None,
) -> dict[str, int]:
    """Write `policy.pt2` (torch.export), `policy.json` and, with `onnx`, `policy.onnx` into a new folder.

    Gives for each file the number of decisions in which it was compared with the player. tell: called with a line
    before what takes long. role: in which it observes; None: as for `Player.predict`. Raises ExportError, also if the
    folder exists and where a role must be named, NotImplementedError for an algorithm whose policy cannot be exported.
    """
    assert player.algorithm is not None
    assert player.game is not None
    if folder.exists():
        raise ExportError(f"{folder} exists already; move it away or delete it, to export the player again")
    try:
        role = player.role_of(role)
    except ValueError as error:
        raise ExportError(str(error)) from error
    module = player.algorithm.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn about their internals
        decisions = decisions_of(player, role, module)
        folder.mkdir(parents=True)
        try:
            return _write(module, player, role, decisions, folder, onnx, tell)
        except BaseException:
            shutil.rmtree(folder)
            raise


def _write(
    module: nn.Module,
    player: Player,
    role: str,
    decisions: list[Decision],
    folder: Path,
    onnx: bool,
    tell: Callable[[str], None],
) -> dict[str, int]:
    game: Game = player.game  # type: ignore[assignment]
    outside, space = game.outside(role), game.action_spaces[role]
    program_module, example = Program(module, outside), _inputs(decisions[0])
    batch = torch.export.Dim("batch", min=1)
    shapes = tuple({name: {0: batch} for name in each} if isinstance(each, dict) else {0: batch} for each in example)
    path, description = folder / "policy.pt2", _description(player, role, outside, decisions[0])
    program, loaded = write_program(program_module, example, shapes, path)
    checked = {path.name: compare(lambda made: _outputs(loaded(*_inputs(made))), decisions, space, outside, path)}
    if onnx:
        path = folder / "policy.onnx"
        tell(f"writing {path} with torch's ONNX exporter; this takes some ten seconds")
        act, names = _write_onnx(program, example, path)
        description |= names
        checked[path.name] = compare(act, decisions, space, outside, path)
    write_bytes(folder / "policy.json", to_json(description).encode())
    return checked


def _inputs(made: Decision) -> tuple[Any, ...]:
    """Return what the program is called with."""
    return (dict(made.observation), made.legal, *([dict(made.memory)] if made.memory else []))


def _outputs(found: tuple[Any, ...]) -> tuple[Tensor, Tensor, Memory]:
    action, values, *after = found
    return action, values, after[0] if after else {}


# ---- ONNX ------------------------------------------------------------------------------------------------


def _write_onnx(program: ExportedProgram, example: Any, path: Path) -> tuple[Act, dict[str, Any]]:
    """Write an ONNX file; returns how it acts, and what policy.json says of its inputs and outputs.

    What an action does not depend on is no input.
    """
    remembered = list(example[2]) if len(example) > 2 else []
    entries = onnx_names(example[0], [f"memory_{name}" for name in remembered])
    inputs = [*entries.values(), "legal", *(f"memory_{name}" for name in remembered)]
    outputs = [*OUTPUTS, *(f"memory_{name}_after" for name in remembered)]
    session, names = write_onnx(program, inputs, outputs, path, num_movable=len(entries))
    wanted = [entry.name for entry in session.get_inputs()]

    def act(made: Decision) -> tuple[Tensor, Tensor, Memory]:
        tensors = [*made.observation.values(), made.legal, *made.memory.values()]
        given = dict(zip(names, tensors, strict=True))
        device = made.legal.device
        found = session.run(outputs, {name: given[name].cpu().numpy() for name in wanted})
        action, values, *after = (torch.from_numpy(output).to(device) for output in found)
        return action, values, dict(zip(remembered, after, strict=True))

    onnx_names_of = dict(zip(entries, names, strict=False))
    return act, {"onnx_inputs": wanted, "onnx_names": onnx_names_of, "onnx_outputs": outputs}


def onnx_names(entries: Iterable[str], memory: Iterable[str]) -> dict[str, str]:
    """Return names of inputs for the entries of an observation.

    An entry keeps its own name if ONNX takes it and nothing else in the file has it.
    """
    return free_names(entries, {*OUTPUTS, "legal", *memory, *(f"{name}_after" for name in memory)})


# ---- how to use them -------------------------------------------------------------------------------------


def _description(player: Player, role: str, outside: Outside, made: Decision) -> dict[str, Any]:
    paths = {name: {"path": list(found.path)} for name, found in outside.entries.items()}
    return {
        "player": player.name,
        "role": role,
        "opt_steps": player.opt_steps,
        "environment": outside.setting or None,
        "observation": {name: entry_of(value) | paths[name] for name, value in made.observation.items()},
        "legal": entry_of(made.legal),
        "memory": {name: entry_of(value) for name, value in made.memory.items()},
        "outputs": OUTPUTS,
        "action": entry_of(made.action),
        "actions": str(player.action_space),
    }


def loading_lines(folder: Path, file: str) -> list[str]:
    """Return three lines of Python that load one of the files, and ask it for the action of one world."""
    description = json.loads((folder / "policy.json").read_text())
    path, memory = str((folder / file).absolute()), description["memory"]
    if file.endswith(".onnx"):
        entries = description["observation"].items()
        inputs = {description["onnx_names"][name]: entry for name, entry in entries} | {"legal": description["legal"]}
        inputs |= {f"memory_{name}": entry for name, entry in memory.items()}
        given = ", ".join(f"{name!r}: {example_of('np', inputs[name])}" for name in description["onnx_inputs"])
        return [
            "import numpy as np, onnxruntime",
            f"policy = onnxruntime.InferenceSession({path!r})",
            f"action, q_values_or_logits{', *memory' if memory else ''} = policy.run(None, {{{given}}})",
        ]
    entries = [description["observation"], *([memory] if memory else [])]
    view, *state = (
        "{" + ", ".join(f"{n!r}: {example_of('torch', e)}" for n, e in each.items()) + "}" for each in entries
    )
    given = ", ".join([view, example_of("torch", description["legal"]), *state])
    return [
        "import torch",
        f"policy = torch.export.load({path!r}).module()",
        f"action, q_values_or_logits{', memory' if memory else ''} = policy({given})",
    ]
