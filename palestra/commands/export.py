"""Export: how a player acts, as files that run without palestra: a torch.export program, and ONNX where asked for.

Both take an observation and the legal actions and give actions and what every choice is worth, for any number of
worlds; `policy.json` says their names, shapes and types, and under `seen_through` how observations of a Gymnasium
environment were normalised before the player saw them. What is written is loaded again and must act as the player
does.
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

NUM_WORLDS, NUM_ROUNDS = 32, 16  # of the games in which exported and own actions are compared
TOLERANCE = 1e-4  # of numbers in an action, and of what two choices are worth: other kernels add up in other orders

Seen = list[tuple[Mapping[str, Tensor], Tensor, Tensor]]  # views, legal actions, and what the player did
Act = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor]]


class ExportError(RuntimeError):
    """The player cannot be exported, or what was written does not act as it does."""


def export_player(player: Player, folder: Path, onnx: bool) -> dict[str, int]:
    """Write `policy.pt2` (torch.export), `policy.onnx` if asked for, and `policy.json` into a new folder.

    Gives the number of decisions compared, by file. Raises ExportError, or FileExistsError for a folder that exists.
    """
    assert player.algorithm is not None
    module = player.algorithm.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters speak of their own insides
        seen = _decisions(player)
        folder.mkdir(parents=True)
        try:
            return _write(module, player, seen, folder, onnx)
        except BaseException:
            shutil.rmtree(folder)
            raise


def _write(module: nn.Module, player: Player, seen: Seen, folder: Path, onnx: bool) -> dict[str, int]:
    example = (dict(seen[0][0]), seen[0][1])
    batch = torch.export.Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in example[0]}, {0: batch})
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    program.example_inputs = None
    path = folder / "policy.pt2"
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()
    checked = {path.name: _compare(lambda view, legal: loaded(dict(view), legal), seen, player.action_space, path)}
    if onnx:
        path = folder / "policy.onnx"
        checked[path.name] = _compare(_write_onnx(module, example, shapes, path), seen, player.action_space, path)
    write_text(folder / "policy.json", to_json(_description(player, example)))
    return checked


class _Watching:
    """A policy that remembers what it saw and did."""

    def __init__(self, policy: Policy, seen: Seen) -> None:
        self.policy, self.observes, self.seen = policy, policy.observes, seen

    def act(self, view: Mapping[str, Tensor], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        decision = self.policy.act(view, legal, keys, memory)
        self.seen.append((view, legal, decision.action))
        return decision


def _decisions(player: Player) -> Seen:
    """What the player sees and does in games beside random players."""
    seen: Seen = []
    game = player.game
    assert game is not None
    played: Any = fuse(game)
    own = _Watching(player.policy(explore=False), seen)
    played.policies = {role: own if role == player.roles[0] else make_script("random", game) for role in game.roles}
    played.collect(played.new_worlds(NUM_WORLDS, player.seed, "export"), (player.roles[0],), NUM_ROUNDS)
    return seen


def _compare(act: Act, seen: Seen, space: ActionSpace, path: Path) -> int:
    """The number of decisions in which `act` does what the player did; another choice must be worth as much."""
    number = different = 0
    for view, legal, action in seen:
        found, worth = act(view, legal)
        if isinstance(space, Box):
            near = (found - action).abs() <= TOLERANCE
        else:
            nums = space.nums if isinstance(space, MultiDiscrete) else (space.num,)
            parts = zip(worth.split(list(nums), dim=1), _columns(found), _columns(action), strict=True)
            near = torch.cat(
                [(part.gather(1, one) - part.gather(1, two)).abs() <= TOLERANCE for part, one, two in parts], dim=1
            )
        number += len(action)
        different += int((~near.all(dim=1)).sum())
    if different:
        raise ExportError(f"{path} gives other actions than the player in {different} of {number} decisions")
    return number


def _columns(choices: Tensor) -> tuple[Tensor, ...]:
    return choices.view(len(choices), -1).split(1, dim=1)


def _write_onnx(module: nn.Module, example: Any, shapes: Any, path: Path) -> Act:
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators that nobody asked for
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
        output_names=["action", "worth"],
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {entry.name for entry in session.get_inputs()}  # what an action does not depend on is left out

    def act(view: Mapping[str, Tensor], legal: Tensor) -> tuple[Tensor, Tensor]:
        values = {**view, "legal": legal}
        inputs = {name: values[name].cpu().numpy() for name in names if name in wanted}
        action, worth = (torch.from_numpy(output) for output in session.run(["action", "worth"], inputs))
        return action, worth

    return act


def _description(player: Player, example: tuple[Mapping[str, Tensor], Tensor]) -> dict[str, Any]:
    def entry(value: Tensor) -> dict[str, Any]:
        return {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}

    return {
        "seen_through": None if player.game is None else player.game.transformation(),
        "player": player.name,
        "role": player.roles[0],
        "opt_steps": player.opt_steps,
        "observation": {name: entry(value) for name, value in example[0].items()},
        "legal": entry(example[1]),
        "actions": str(player.action_space),
    }
