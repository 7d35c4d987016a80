"""Writes the policy of a player as files that run without palestra: a torch.export program and, if asked for, ONNX.

Both take an observation and the legal actions, for any number of worlds, and give `action` and `q_values_or_logits`: of
every choice the Q-value (DQN) or the logit (other algorithms), with no columns for actions that are vectors of numbers.
A recurrent player's memory is a further input, and comes out last. `policy.json` has the names, shapes and types, and
under `normalization` how the game's own observations must be normalised. The files are loaded again, and
must act as the player does.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palestra.algorithms.algorithm import DeterministicRecurrent
from palestra.games.policy import Decision, Memory, Policy
from palestra.games.spaces import ActionSpace, Box, MultiDiscrete
from palestra.players import make_script
from palestra.players.player import Player
from palestra.rollouts import fuse
from palestra.storage.disk import write_text
from palestra.storage.facts import to_json

NUM_WORLDS, NUM_ROUNDS = 32, 16  # of the games in which the actions of the file and of the player are compared
OUTPUTS = ["action", "q_values_or_logits"]
TOLERANCE = 1e-4  # of numbers in an action, and of the values of two choices: kernels add up in different orders


class Made(NamedTuple):
    """A decision of the player: what went in, and what came out. memory, memory_after: of its policy; {} if it has
    none."""

    view: Mapping[str, Tensor]
    legal: Tensor
    memory: Memory
    action: Tensor
    memory_after: Memory


Act = Callable[[Made], tuple[Tensor, Tensor, Memory]]  # action, values, memory after


class ExportError(RuntimeError):
    """The player cannot be exported, or the exported file does not act as the player does."""


def export_player(
    player: Player, folder: Path, onnx: bool, tell: Callable[[str], None] = lambda line: None
) -> dict[str, int]:
    """Write `policy.pt2` (torch.export), `policy.json` and, with `onnx`, `policy.onnx` into a new folder.

    Gives for each file the number of decisions in which it was compared with the player. tell: called with a line
    before what takes long. Raises ExportError, also if the folder exists, NotImplementedError for an algorithm whose
    policy cannot be exported.
    """
    assert player.algorithm is not None
    if folder.exists():
        raise ExportError(f"{folder} exists already; move it away or delete it, to export the player again")
    module = player.algorithm.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn about their internals
        decisions = _decisions(player, module)
        folder.mkdir(parents=True)
        try:
            return _write(module, player, decisions, folder, onnx, tell)
        except BaseException:
            shutil.rmtree(folder)
            raise


def _write(
    module: nn.Module, player: Player, decisions: list[Made], folder: Path, onnx: bool, tell: Callable[[str], None]
) -> dict[str, int]:
    example = _inputs(decisions[0])
    batch = torch.export.Dim("batch", min=1)
    view, _, *memory = example
    shapes = (
        {name: {0: batch} for name in view},
        {0: batch},
        *({name: {0: batch} for name in each} for each in memory),
    )
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    program.example_inputs = None
    path, description = folder / "policy.pt2", _description(player, decisions[0])
    with open(path, "wb") as file:  # torch aborts for a path that is no UTF-8
        torch.export.save(program, file)
    with open(path, "rb") as file:
        loaded = torch.export.load(file).module()
    checked = {path.name: _compare(lambda made: _outputs(loaded(*_inputs(made))), decisions, player.action_space, path)}
    if onnx:
        path = folder / "policy.onnx"
        tell(f"writing {path} with torch's ONNX exporter; this takes some ten seconds")
        act, description["onnx_inputs"] = _write_onnx(module, example, shapes, path)
        checked[path.name] = _compare(act, decisions, player.action_space, path)
    write_text(folder / "policy.json", to_json(description))
    return checked


def _inputs(made: Made) -> tuple[Any, ...]:
    """What the program is called with."""
    return (dict(made.view), made.legal, *([dict(made.memory)] if made.memory else []))


def _outputs(found: tuple[Any, ...]) -> tuple[Tensor, Tensor, Memory]:
    action, values, *after = found
    return action, values, after[0] if after else {}


# ---- compared with the player ----------------------------------------------------------------------------


class _RecordingPolicy:
    """A policy that adds each decision to a list. module: what is exported of it."""

    def __init__(self, policy: Policy, module: nn.Module, decisions: list[Made]) -> None:
        self.policy, self.observes, self.module, self.decisions = policy, policy.observes, module, decisions

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        decision = self.policy.act(view, legal, keys, memory)
        before, after = self._exported(memory), self._exported(decision.memory)
        if isinstance(self.module, DeterministicRecurrent) and not before:
            before = self.module.net.initial_memory(len(legal), legal.device)
        self.decisions.append(Made(view, legal, before, decision.action, after))
        return decision

    def _exported(self, memory: Memory) -> Memory:
        if not isinstance(self.module, DeterministicRecurrent):
            return {}
        prefix = self.module.prefix
        return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}


def _decisions(player: Player, module: nn.Module) -> list[Made]:
    """The decisions of the player in games with random players."""
    decisions: list[Made] = []
    game = player.game
    assert game is not None
    played: Any = fuse(game)
    own = _RecordingPolicy(player.policy(explore=False), module, decisions)
    played.policies = {role: own if role == player.roles[0] else make_script("random", game) for role in game.roles}
    statistics = game.state_dict()
    played.collect(played.new_worlds(NUM_WORLDS, player.seed, "export"), (player.roles[0],), NUM_ROUNDS)
    game.load_state_dict(statistics)  # these games are no training
    return decisions


def _compare(act: Act, decisions: list[Made], space: ActionSpace, path: Path) -> int:
    """The number of decisions. Raises ExportError unless `act` makes all of them as the player did, or makes a choice
    of the same value, and remembers the same."""
    number = different = 0
    for made in decisions:
        found, values, after = act(made)
        if isinstance(space, Box):
            near = (found - made.action).abs() <= TOLERANCE
        else:
            nums = space.nums if isinstance(space, MultiDiscrete) else (space.num,)
            parts = zip(values.split(list(nums), dim=1), _columns(found), _columns(made.action), strict=True)
            near = torch.cat(
                [(part.gather(1, one) - part.gather(1, two)).abs() <= TOLERANCE for part, one, two in parts], dim=1
            )
        is_same = near.all(dim=1)
        for name, value in made.memory_after.items():
            is_same &= ((after[name] - value).abs() <= TOLERANCE).flatten(1).all(dim=1)
        number += len(found)
        different += int((~is_same).sum())
    if different:
        raise ExportError(f"{path}: expected the player's actions, got others in {different} of {number} decisions")
    return number


def _columns(choices: Tensor) -> tuple[Tensor, ...]:
    return choices.view(len(choices), -1).split(1, dim=1)


# ---- ONNX ------------------------------------------------------------------------------------------------


def _write_onnx(module: nn.Module, example: Any, shapes: Any, path: Path) -> tuple[Act, list[str]]:
    """How the written file acts, and the names of its inputs: what an action does not depend on is left out."""
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators that are not used
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it, and says so less clearly)
    except ImportError as error:
        raise ExportError(f"{error}; ONNX needs an extra: pip install 'palestra[onnx]'") from error
    remembered = list(example[2]) if len(example) > 2 else []
    outputs = [*OUTPUTS, *(f"memory_{name}_after" for name in remembered)]
    torch.onnx.export(
        module,
        (*example, {}),  # it takes a dict at the end for named arguments
        path,
        input_names=[*example[0], "legal", *(f"memory_{name}" for name in remembered)],
        output_names=outputs,
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = [entry.name for entry in session.get_inputs()]

    def act(made: Made) -> tuple[Tensor, Tensor, Memory]:
        given = {**made.view, "legal": made.legal, **{f"memory_{name}": made.memory[name] for name in remembered}}
        inputs = {name: given[name].cpu().numpy() for name in wanted}
        action, values, *after = (torch.from_numpy(output) for output in session.run(outputs, inputs))
        return action, values, dict(zip(remembered, after, strict=True))

    return act, wanted


# ---- how to use them -------------------------------------------------------------------------------------


def _description(player: Player, made: Made) -> dict[str, Any]:
    def entry(value: Tensor) -> dict[str, Any]:
        return {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}

    return {
        "normalization": None if player.game is None else player.game.transformation(player.roles[0]),
        "player": player.name,
        "role": player.roles[0],
        "opt_steps": player.opt_steps,
        "observation": {name: entry(value) for name, value in made.view.items()},
        "legal": entry(made.legal),
        "memory": {name: entry(value) for name, value in made.memory.items()},
        "outputs": OUTPUTS,
        "actions": str(player.action_space),
    }


def loading_lines(folder: Path, file: str) -> list[str]:
    """Three lines of Python that load one of the files, and ask it for the action of one world."""
    description = json.loads((folder / "policy.json").read_text())
    path, memory = str((folder / file).absolute()), description["memory"]
    if file.endswith(".onnx"):
        inputs = description["observation"] | {"legal": description["legal"]}
        inputs |= {f"memory_{name}": entry for name, entry in memory.items()}
        given = ", ".join(f"{name!r}: {_example('np', inputs[name])}" for name in description["onnx_inputs"])
        return [
            "import numpy as np, onnxruntime",
            f"policy = onnxruntime.InferenceSession({path!r})",
            f"action, q_values_or_logits{', *memory' if memory else ''} = policy.run(None, {{{given}}})",
        ]
    entries = [description["observation"], *([memory] if memory else [])]
    view, *state = (
        "{" + ", ".join(f"{n!r}: {_example('torch', e)}" for n, e in each.items()) + "}" for each in entries
    )
    given = ", ".join([view, _example("torch", description["legal"]), *state])
    return [
        "import torch",
        f"policy = torch.export.load({path!r}).module()",
        f"action, q_values_or_logits{', memory' if memory else ''} = policy({given})",
    ]


def _example(library: str, entry: Mapping[str, Any]) -> str:
    """An array of one world: legal actions are all true, everything else is 0."""
    sizes, kind = (1, *entry["shape"][1:]), entry["dtype"]
    make = "ones" if kind == "bool" else "zeros"
    if library == "np":
        return f"np.{make}({sizes}, {'bool' if kind == 'bool' else f'np.{kind}'})"
    dtype = "" if kind == "float32" else f", dtype=torch.{kind}"
    return f"torch.{make}({', '.join(map(str, sizes))}{dtype})"
