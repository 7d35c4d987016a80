"""Writes the policy of a player as files that run without palestra: a torch.export program and, if asked for, ONNX.

Both take an observation and the legal actions, for any number of worlds, and give `action` and `q_values_or_logits`: of
every choice the Q-value (DQN) or the logit (other algorithms), with no columns for actions that are vectors of numbers.
`policy.json` has the names, shapes and types, and under `normalization` how observations of a Gymnasium environment
must be normalised. The files are loaded again, and must act as the player does.
"""

import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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

Decisions = list[tuple[Mapping[str, Tensor], Tensor, Tensor]]  # observation, legal actions, the player's action
Act = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor]]


class ExportError(RuntimeError):
    """The player cannot be exported, or the exported file does not act as the player does."""


def export_player(player: Player, folder: Path, onnx: bool) -> dict[str, int]:
    """Write `policy.pt2` (torch.export), `policy.json` and, with `onnx`, `policy.onnx` into a new folder.

    Gives for each file the number of decisions in which it was compared with the player. Raises ExportError,
    FileExistsError if the folder exists, NotImplementedError for an algorithm whose policy cannot be exported.
    """
    assert player.algorithm is not None
    module = player.algorithm.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn about their internals
        decisions = _decisions(player)
        folder.mkdir(parents=True)
        try:
            return _write(module, player, decisions, folder, onnx)
        except BaseException:
            shutil.rmtree(folder)
            raise


def _write(module: nn.Module, player: Player, decisions: Decisions, folder: Path, onnx: bool) -> dict[str, int]:
    example = (dict(decisions[0][0]), decisions[0][1])
    batch = torch.export.Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in example[0]}, {0: batch})
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    program.example_inputs = None
    path = folder / "policy.pt2"
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()
    checked = {path.name: _compare(lambda view, legal: loaded(dict(view), legal), decisions, player.action_space, path)}
    if onnx:
        path = folder / "policy.onnx"
        checked[path.name] = _compare(_write_onnx(module, example, shapes, path), decisions, player.action_space, path)
    write_text(folder / "policy.json", to_json(_description(player, example)))
    return checked


class _RecordingPolicy:
    """A policy that adds each decision to a list."""

    def __init__(self, policy: Policy, decisions: Decisions) -> None:
        self.policy, self.observes, self.decisions = policy, policy.observes, decisions

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        decision = self.policy.act(view, legal, keys, memory)
        self.decisions.append((view, legal, decision.action))
        return decision


def _decisions(player: Player) -> Decisions:
    """The decisions of the player in games with random players."""
    decisions: Decisions = []
    game = player.game
    assert game is not None
    played: Any = fuse(game)
    own = _RecordingPolicy(player.policy(explore=False), decisions)
    played.policies = {role: own if role == player.roles[0] else make_script("random", game) for role in game.roles}
    played.collect(played.new_worlds(NUM_WORLDS, player.seed, "export"), (player.roles[0],), NUM_ROUNDS)
    return decisions


def _compare(act: Act, decisions: Decisions, space: ActionSpace, path: Path) -> int:
    """The number of decisions. Raises ExportError unless `act` makes all of them as the player did, or makes a choice
    of the same value."""
    number = different = 0
    for view, legal, action in decisions:
        found, values = act(view, legal)
        if isinstance(space, Box):
            near = (found - action).abs() <= TOLERANCE
        else:
            nums = space.nums if isinstance(space, MultiDiscrete) else (space.num,)
            parts = zip(values.split(list(nums), dim=1), _columns(found), _columns(action), strict=True)
            near = torch.cat(
                [(part.gather(1, one) - part.gather(1, two)).abs() <= TOLERANCE for part, one, two in parts], dim=1
            )
        number += len(action)
        different += int((~near.all(dim=1)).sum())
    if different:
        raise ExportError(f"{path}: expected the player's actions, got others in {different} of {number} decisions")
    return number


def _columns(choices: Tensor) -> tuple[Tensor, ...]:
    return choices.view(len(choices), -1).split(1, dim=1)


def _write_onnx(module: nn.Module, example: Any, shapes: Any, path: Path) -> Act:
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators that are not used
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it, and says so less clearly)
    except ImportError as error:
        raise ExportError(f"{error}; ONNX needs an extra: pip install 'palestra[onnx]'") from error
    names = [*example[0], "legal"]
    torch.onnx.export(
        module,
        example,
        path,
        input_names=names,
        output_names=OUTPUTS,
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {entry.name for entry in session.get_inputs()}  # what an action does not depend on is left out

    def act(view: Mapping[str, Tensor], legal: Tensor) -> tuple[Tensor, Tensor]:
        given = {**view, "legal": legal}
        inputs = {name: given[name].cpu().numpy() for name in names if name in wanted}
        action, values = (torch.from_numpy(output) for output in session.run(OUTPUTS, inputs))
        return action, values

    return act


def _description(player: Player, example: tuple[Mapping[str, Tensor], Tensor]) -> dict[str, Any]:
    def entry(value: Tensor) -> dict[str, Any]:
        return {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}

    return {
        "normalization": None if player.game is None else player.game.transformation(),
        "player": player.name,
        "role": player.roles[0],
        "opt_steps": player.opt_steps,
        "observation": {name: entry(value) for name, value in example[0].items()},
        "legal": entry(example[1]),
        "outputs": OUTPUTS,
        "actions": str(player.action_space),
    }
