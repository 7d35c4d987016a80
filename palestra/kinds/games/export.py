"""Writes the policy of a player as files that run without palestra: a torch.export program and, if asked for, ONNX.

Both take an observation as an environment's `reset` gives it and the legal actions, for any number of worlds. They give
`action`, as `step` takes it, and `q_values_or_logits`: of every choice the Q-value (DQN) or the logit (other
algorithms), with no columns for actions that are vectors of numbers. A recurrent player's memory is a further input,
and comes out last. `policy.json` has the names, shapes and types. The files are loaded again, and must act as
`Player.predict` does.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from palestra.algorithms.parts.exported import DeterministicRecurrent
from palestra.games.game import Game, Outside, TensorGame
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import ActionSpace, Box
from palestra.games.spaces_game import SpacesGame
from palestra.games.world import WorldGame
from palestra.players import make_script
from palestra.players.player import Player
from palestra.randomness import base_key, fold, world_keys
from palestra.run.export_files import TOLERANCE, ExportError, entry_of, example_of, exporting, write_onnx, write_program
from palestra.storage.disk import write_bytes
from palestra.storage.stored_files import to_json

OUTPUTS = ["action", "q_values_or_logits"]
NUM_WORLDS, NUM_ROUNDS = 32, 16  # of the games in which the actions of the file and of the player are compared


class Decision(NamedTuple):
    """A decision of the player: what went in, and what came out, as outside palestra, (B, ...).

    memory, memory_after: those of the exported network; {} if it has none.
    """

    observation: Mapping[str, Tensor]
    legal: Tensor
    memory: Memory
    action: Tensor
    memory_after: Memory


Act = Callable[[Decision], tuple[Tensor, Tensor, Memory]]  # action, values, memory after


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
    player: Player, folder: Path, onnx: bool, tell: Callable[[str], None] = lambda line: None, role: str | None = None
) -> dict[str, int]:
    """Write `policy.pt2` (torch.export), `policy.json` and, with `onnx`, `policy.onnx` into a new folder.

    Gives for each file the number of decisions in which it was compared with the player. tell: called with a line
    before what takes long. role: in which it observes; None: as for `Player.predict`. Raises ExportError, also if the
    folder exists and where a role must be named, NotImplementedError for an algorithm whose policy cannot be exported.
    """
    assert player.algorithm is not None
    assert player.game is not None
    with exporting(folder, "player"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn about their internals
        try:
            role = player.role_of(role)
        except ValueError as error:
            raise ExportError(str(error)) from error
        module = player.algorithm.module()
        return _write(module, player, role, decisions_of(player, role, module), folder, onnx, tell)


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


# ---- what the player decides, in games with random players --------------------------------------------------------


def decisions_of(player: Player, role: str, module: nn.Module) -> list[Decision]:
    """Return the decisions of the player in a role, by `Player.predict`, in NUM_WORLDS games of NUM_ROUNDS rounds.

    Where a game cannot be played, they are decisions at as many observations that are drawn at random.

    module: what is exported of it. Raises EnvironmentFailed.
    """
    game = player.game
    asked = _Asked(player, role, module)
    before = player.num_predictions
    try:
        if isinstance(game, SpacesGame):
            legal = torch.ones(NUM_WORLDS, asked.space.num_flags, dtype=torch.bool)
            for number in range(NUM_ROUNDS):
                asked(game.draw(role, NUM_WORLDS, base_key(player.seed, f"export/{number}")), legal.to(game.device))
        elif isinstance(game, TensorGame):
            _play_boards(game, role, asked)
        else:
            assert isinstance(game, WorldGame)
            game.play_outside(NUM_WORLDS, NUM_ROUNDS, base_key(player.seed, "export"), asked)
    finally:
        player.num_predictions = before  # these games are no part of any training
    return asked.decisions


class _Asked:
    """Asks the player, and keeps its decisions."""

    def __init__(self, player: Player, role: str, module: nn.Module) -> None:
        assert player.game is not None
        self.player, self.role, self.module = player, role, module
        self.outside, self.space = player.game.outside(role), player.game.action_spaces[role]
        self.state: Memory | None = None
        self.decisions: list[Decision] = []

    def __call__(self, observation: Any, legal: Tensor | None = None) -> Any:
        """Return the actions at a batch of observations, as they leave palestra.

        legal: None where every action is legal.
        """
        before = self._exported(self.state or {})
        actions, self.state = self.player.predict(observation, self.state, legal=legal, role=self.role)
        device, entries = self.player.device, self.outside.entries.items()
        values = {name: _tensor(_at(observation, name, entry.path), entry.dtype).to(device) for name, entry in entries}
        num = len(next(iter(values.values())))
        if legal is None:
            legal = torch.ones(num, self.space.num_flags, dtype=torch.bool, device=device)
        if isinstance(self.module, DeterministicRecurrent) and not before:
            before = self.module.net.initial_memory(num, device)
        action = torch.as_tensor(actions, device=device)
        self.decisions.append(
            Decision(values, legal, _sorted(before), action, _sorted(self._exported(self.state or {})))
        )
        return actions

    def _exported(self, memory: Memory) -> Memory:
        if not isinstance(self.module, DeterministicRecurrent):
            return {}
        prefix = self.module.prefix
        return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """Copy a value into a tensor, because environments may write into what they gave."""
    if isinstance(value, Tensor):
        return value.detach().to(dtype, copy=True)
    return torch.from_numpy(np.array(value).astype(str(dtype).removeprefix("torch.")))


def _sorted(memory: Memory) -> Memory:
    return {name: memory[name] for name in sorted(memory)}


def _at(observation: Any, name: str, path: tuple[Any, ...]) -> Any:
    """Return an entry of an observation: at its path in one of an environment, or by its name in one of palestra's."""
    if isinstance(observation, dict) and not path:
        return observation[name]
    for key in path:
        observation = observation[key]
    return observation


@torch.no_grad()
def _play_boards(game: TensorGame, role: str, asked: _Asked) -> None:
    """Play a game of boards; the other roles play at random, where they can."""
    others: dict[str, Policy] = {other: make_script("random", game, other) for other in game.roles if other != role}
    keys = world_keys(base_key(asked.player.seed, "export"), NUM_WORLDS, game.device)
    state = game.reset(fold(keys, 0))
    for number in range(NUM_ROUNDS):
        for at, move in enumerate(game.moves):
            move_keys = fold(keys, 1 + number * len(game.moves) + at)
            actions = {}
            for other in move:
                legal, own_keys = game.legal(state, other), move_keys + game.roles.index(other) + 1
                if other == role:
                    given = asked(game.observe(state, role), legal)
                    actions[role] = torch.as_tensor(given, device=game.device)
                else:
                    actions[other] = others[other].act({}, legal, own_keys, {}).action
            state, _, terminated, truncated = game.transition(state, actions, move_keys + len(game.roles) + 1)
        over = terminated.all(dim=1) | truncated
        state = game.refill(state, over, move_keys + len(game.roles) + 2)


# ---- compared with the player ------------------------------------------------------------------------------


def compare(act: Act, decisions: list[Decision], space: ActionSpace, outside: Outside, path: Path) -> int:
    """Compare what a file decides with what the player decided; returns the number of decisions.

    Raises ExportError unless `act` makes all of them as the player did, or makes a choice of the same value, and
    remembers the same.
    """
    number = different = 0
    for made in decisions:
        found, values, after = act(made)
        if found.shape != made.action.shape or found.dtype != made.action.dtype:
            there = [f"{each.dtype} of shape {tuple(each.shape)}" for each in (made.action, found)]
            raise ExportError(f"{path}: expected the player's actions, {there[0]}, got {there[1]}")
        ours, theirs = outside.choose(made.action), outside.choose(found)
        if isinstance(space, Box):
            near = (theirs - ours).abs() <= TOLERANCE
        else:
            parts = zip(space.split(values), _columns(theirs), _columns(ours), strict=True)
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


def _write_onnx(program: ExportedProgram, example: Any, path: Path) -> tuple[Act, dict[str, Any]]:
    """Write an ONNX file; returns how it acts, and what policy.json says of its inputs and outputs.

    What an action does not depend on is no input.
    """
    remembered = list(example[2]) if len(example) > 2 else []
    others = ["legal", *(f"memory_{name}" for name in remembered)]
    outputs = [*OUTPUTS, *(f"memory_{name}_after" for name in remembered)]
    run, names = write_onnx(program, list(example[0]), others, outputs, path)

    def act(made: Decision) -> tuple[Tensor, Tensor, Memory]:
        found = run([*made.observation.values(), made.legal, *made.memory.values()])
        action, values, *after = (output.to(made.legal.device) for output in found)
        return action, values, dict(zip(remembered, after, strict=True))

    return act, {**names, "onnx_outputs": outputs}


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
