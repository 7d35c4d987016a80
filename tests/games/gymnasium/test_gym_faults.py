"""Environments that raise, exit, are killed, or give what Gymnasium does not allow: one error, which says where.

Covers palestra.games.gymnasium.faults, palestra.games.gymnasium.seeding, palestra.games.gymnasium.workers,
palestra.games.world.
"""

import multiprocessing
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector.vector_env import AutoresetMode, VectorEnv

from palestra.commands.failures import one_line_errors
from palestra.config import ConfigError
from palestra.games.gymnasium import GymnasiumWorld
from palestra.games.gymnasium.environments import LeanSyncVectorEnv, close_vector
from palestra.games.gymnasium.faults import fault_of_observation
from palestra.games.gymnasium.seeding import EpisodeSeeds
from palestra.games.gymnasium.workers import CheckedSteps, WatchedVectorEnv
from palestra.games.world import EnvironmentFailed, Outcome
from palestra.storage.run_folder import RunFolder
from tests.games.gym_worlds import MODES, gym_game
from tests.gym_oddities import Breaking, Cockpit
from tests.gym_probes import Walk

FAULTS = {
    "raise": "ArithmeticError: the sum is too large (gym_oddities.py, line ",
    "panic": "Panic: all is lost (gym_oddities.py, line ",
    "exit": "SystemExit: 3 (gym_oddities.py, line ",
    "four": "expected a tuple (observation, reward, terminated, truncated, info) from step, got a tuple of 4",
    "none": "expected a tuple (observation, reward, terminated, truncated, info) from step, got None",
    "shape": "expected shape (3,) of the observation, as in its space, got (2,)",
    "words": "expected dtype float64 of the observation, as in its space, got <U1",
    "ragged": "expected an array of shape (3,) as the observation, got [[1.0], [], [2.0]]",
    "number": "expected shape (3,) of the observation, as in its space, got ()",
    "reward": "expected a number as the reward, got '1.5'",
    "no reward": "expected a number as the reward, got None",
    "rewards": "expected a number as the reward, got an array of shape (2,) and dtype float64",
    "terminated": "expected True or False as terminated, got 'no'",
    "truncated": "expected True or False as truncated, got None",
    "info": "expected a dict as info, got [1]",
    "reset": "ArithmeticError: no way back (gym_oddities.py, line ",
    "reset alone": "expected a tuple (observation, info) from reset, got an array of shape (3,) and dtype float64",
}
LOST = {
    "_exit": "its process ended with exit code 3",
    "kill": "its process ended with SIGKILL (the kernel sends it when memory runs out)",
}


def make(is_async: bool, env: Callable[[], gymnasium.Env], world: int) -> gymnasium.Env:
    return EpisodeSeeds(CheckedSteps(env()) if is_async else env(), 7, world)


def vector(way: str, mode: AutoresetMode, *envs: Callable[[], gymnasium.Env]) -> VectorEnv:
    makers = [partial(make, way == "async", env, world) for world, env in enumerate(envs)]
    if way == "async":
        return WatchedVectorEnv(makers, "walks", None, copy=False, autoreset_mode=mode)
    return LeanSyncVectorEnv(makers, mode)


def failing(vector: VectorEnv) -> EnvironmentFailed:
    """What comes of playing on."""
    vector.reset()
    with pytest.raises(EnvironmentFailed) as caught:  # noqa: PT012 (some step of these)
        for _ in range(20):
            vector.step(np.full(vector.num_envs, 5))
    close_vector(vector)
    return caught.value


def failing_world(world: GymnasiumWorld, num_steps: int = 20) -> str:
    """The same of a world."""
    with pytest.raises(EnvironmentFailed) as caught:  # noqa: PT012
        for _ in range(num_steps):
            step(world)
    world.close()
    return str(caught.value)


def step(world: GymnasiumWorld) -> Outcome:
    none = torch.zeros(world.num_worlds, dtype=torch.int64)
    return world.step(none, none)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("how", FAULTS)
def test_what_an_environment_does_wrong_is_told_with_its_world(
    way: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = failing(vector(way, AutoresetMode.NEXT_STEP, Walk, Walk, partial(Breaking, how, 4), Walk))
    assert failed.fault.startswith(FAULTS[how])
    assert len(failed.fault.splitlines()) == 1
    assert failed.world == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["_exit", "kill"])
def test_a_process_that_is_lost_is_told_with_its_world_and_exit_status(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lost = vector("async", AutoresetMode.SAME_STEP, Walk, Walk, partial(Breaking, how, 4))
    failed = failing(lost)
    assert (failed.fault, failed.world) == (LOST[how], 2)
    assert not any(process.is_alive() for process in lost.processes)
    assert capfd.readouterr() == ("", "")


def test_an_environment_that_cannot_be_made_in_its_process_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    game = gym_game("async", id="tests.gym_oddities:Breaking-v0", arguments={"how": "make", "at": 0})
    world = game.make_world(2, 3, training=True)
    with pytest.raises(EnvironmentFailed, match=r"^tests\S+, world 0, when it is made: .* not in a process of my own"):
        _ = world.observation
    assert capfd.readouterr() == ("", "")


def test_a_spawned_process_imports_what_its_owner_may(capfd: pytest.CaptureFixture[str]) -> None:
    """Spawned, as everywhere but on Linux, it starts without what its owner has read."""
    start_method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        world = gym_game("async").make_world(2, 3, training=True)
        assert step(world).valid.all()
        world.close()
    finally:
        multiprocessing.set_start_method(start_method, force=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["reward", "observation"])
def test_what_is_no_number_is_told_at_once(where: str, mode: str) -> None:
    """NotANumber gives it in the third step of an episode; in which an episode may also end."""
    world = gym_game("sync", mode, id="tests.gym_oddities:NotANumber-v0", arguments={"where": where}).make_world(
        3, 7, training=True
    )
    entry = "the reward" if where == "reward" else "the observation[0]"
    message = failing_world(world)
    pattern = rf"tests\S+, world \d, step 3 of episode \d+: expected a finite number as {re.escape(entry)}, got nan"
    assert re.fullmatch(pattern, message), message


@pytest.mark.parametrize("mode", MODES)
def test_what_is_no_number_at_the_end_or_the_beginning_of_an_episode_is_told_there(mode: str) -> None:
    """Every episode of a Gap is one step long."""
    for where, place in {"last": "step 1 of episode 2", "first": "the reset after episode 2"}.items():
        world = gym_game("sync", mode, id="tests.gym_oddities:Gap-v0", arguments={"where": where}).make_world(
            1, 7, True
        )
        expected = "expected a finite number as the observation['b'][1, 0], got "
        assert failing_world(world) == f"tests.gym_oddities:Gap-v0, world 0, {place}: {expected}{np.inf}"


def test_an_infinity_that_is_clipped_is_a_number() -> None:
    changes = {"id": "tests.gym_oddities:Gap-v0", "arguments": {"where": "last"}}
    world = gym_game("sync", "disabled", observation={"normalize": None, "clip": 5.0}, **changes).make_world(1, 7, True)
    largest = [float(step(world).observation["b"].max()) for _ in range(5)]
    assert largest == [0.0, 0.0, 5.0, 5.0, 5.0]


def test_the_traceback_of_another_process_comes_along() -> None:
    failed = failing(vector("async", AutoresetMode.NEXT_STEP, Walk, partial(Breaking, "raise", 2)))
    [note] = failed.__notes__
    assert note.startswith("In the process of world 1:\nTraceback")
    assert 'raise ArithmeticError("the sum\\nis too large")' in note


def test_shapes_that_only_fit_together_are_refused() -> None:
    """Two of four numbers and two of two are as many as four of three."""
    few, many = partial(Breaking, "shapes", 1), partial(Breaking, "shapes", 2)
    vector = LeanSyncVectorEnv([many, few], AutoresetMode.NEXT_STEP)
    vector.reset(seed=0)
    vector.envs[0].num_steps = 1
    with pytest.raises(
        EnvironmentFailed, match=r"^expected shape \(3,\) of the observation, as in its space, got \(4,\)"
    ):
        vector.step(np.array([5, 5]))


def test_the_last_observation_of_an_episode_is_looked_at_too() -> None:
    class Odd(Walk):
        def step(self, action: Any) -> Any:
            observation, reward, *others = super().step(action)
            return observation[: 3 - any(others[:2])], reward, *others

    failed = failing(vector("sync", AutoresetMode.SAME_STEP, Odd))
    assert failed.fault == FAULTS["shape"]


def test_ctrl_c_inside_an_environment_is_the_users() -> None:
    class Interrupted(Walk):
        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    vector = LeanSyncVectorEnv([Interrupted], AutoresetMode.NEXT_STEP)
    vector.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        vector.step(np.array([5]))


# ---- where -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_the_step_and_the_episode_are_told(way: str, mode: str) -> None:
    game = gym_game(way, mode, id="tests.gym_oddities:Breaking-v0", arguments={"how": "raise", "at": 9})
    world = game.make_world(1, 3, training=False)
    lengths = [0]  # of the episodes so far
    while sum(lengths) < 8:
        outcome = step(world)
        lengths[-1] += int(outcome.valid)
        if outcome.terminated | outcome.truncated:
            lengths.append(0)
    where = f"step {lengths[-1] + 1} of episode {len(lengths) - 1}"
    told = failing_world(world, 2)
    assert told.startswith(f"tests.gym_oddities:Breaking-v0, in an evaluation, world 0, {where}: ArithmeticError")


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_a_reset_that_fails_is_told_as_one(mode: str) -> None:
    game = gym_game("sync", mode, id="tests.gym_oddities:Breaking-v0", arguments={"how": "reset", "at": 3})
    world = game.make_world(1, 3, training=True)
    told = failing_world(world)
    assert told.startswith("tests.gym_oddities:Breaking-v0, world 0, the reset after episode 1: ArithmeticError")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_replay_that_fails_is_told_as_one(way: str, tmp_path: Path) -> None:
    arguments = {"how": "raise", "at": 2, "mended": str(tmp_path / "mended")}
    game = gym_game(way, id="tests.gym_oddities:Breaking-v0", arguments=arguments)
    world = game.make_world(3, 3, training=True)
    (tmp_path / "mended").touch()
    step(world)
    while max(map(world._episodes.num_steps_of, range(world.num_worlds))) < 2:
        step(world)
    state = world.state_dict()
    game.close()
    (tmp_path / "mended").unlink()
    world.load_state_dict(state)
    with pytest.raises(EnvironmentFailed, match=r"world \d, the replay up to step \d of episode \d: Arithmetic"):
        _ = world.observation
    assert world.state_dict() is state  # nothing is lost


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("exit", "SystemExit: 3 (gym_oddities.py, line "),
        ("four", "expected a tuple (observations, rewards, terminated, truncated, infos) from step"),
        ("shape", "expected shape (2, 3) of the batch of observations, as in its space, got (2, 2)"),
        ("rewards", "expected 2 numbers as rewards, got shape (2, 1) and dtype float64"),
        ("terminated", "expected 2 bools as terminated, got shape (2,) and dtype int64"),
        ("infos", "expected a dict as infos, got a list"),
    ],
)
def test_a_vector_of_its_own_is_watched_as_well(how: str, why: str) -> None:
    game = gym_game("entry_point", id="tests.gym_oddities:BreakingVector-v0", arguments={"how": how})
    world = game.make_world(2, 3, training=True)
    place = "tests.gym_oddities:BreakingVector-v0, all worlds, step 3 since they were made"
    assert failing_world(world).startswith(f"{place}: {why}")


# ---- what may be observed --------------------------------------------------------------------------------


def cockpit(**changes: Any) -> Any:
    observation, _ = Cockpit().reset()
    return {name: value for name, value in (observation | changes).items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"gear": ...},
            "expected a dict with the entries 'camera', 'deep.er', 'gear', 'lamps', 'speed' as the observation, "
            "got a dict with the entries 'camera', 'speed', 'lamps', 'deep.er'",
        ),
        ({"gear": 2}, "expected a value of Discrete(4, start=-2) as the observation['gear'], got 2"),
        ({"gear": 1.0}, "expected dtype int64 of the observation['gear'], as in its space, got float64"),
        (
            {"camera": np.zeros((36, 40, 3))},
            "expected dtype uint8 of the observation['camera'], as in its space, got float64",
        ),
        (
            {"deep.er": {"1": np.array([4, 0]), "wide": 0}},
            "expected a value of MultiDiscrete([4 4]) as the observation['deep.er']['1'], got an array of shape (2,) "
            "and dtype int64",
        ),
        ({"deep.er": [1]}, "expected a dict with the entries '1', 'wide' as the observation['deep.er'], got [1]"),
        (
            {"lamps": np.zeros(4, np.int8)},
            "expected shape (2, 2) of the observation['lamps'], as in its space, got (4,)",
        ),
    ],
)
def test_an_entry_that_is_not_as_its_space_says_is_named(changes: Any, why: str) -> None:
    assert fault_of_observation(Cockpit.observation_space, cockpit(**changes)) == why


@pytest.mark.parametrize(
    "changes",
    [{}, {"speed": np.zeros(2, np.float32)}, {"speed": [1, 2]}, {"gear": np.uint8(1)}, {"more": 3}],
)
def test_what_loses_nothing_is_let_through(changes: Any) -> None:
    assert fault_of_observation(Cockpit.observation_space, cockpit(**changes)) is None


def test_a_module_that_exits_when_it_is_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_at_import.py").write_text("import sys\nsys.exit('no licence')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape("game.id: 'leaving_at_import:X-v0' cannot be made: importing")):
        gym_game(id="leaving_at_import:X-v0")


def test_an_environment_that_changes_the_working_directory_moves_no_run(in_tmp_path: Path) -> None:
    (elsewhere := in_tmp_path / "elsewhere").mkdir()
    run = RunFolder.create_at(Path("run"))
    world = gym_game(id="tests.gym_oddities:Moving-v0", arguments={"folder": str(elsewhere)}).make_world(1, 3, True)
    assert Path.cwd() == in_tmp_path
    with one_line_errors():  # around the work of every command
        step(world)
        assert Path.cwd() == elsewhere  # in which the environment may have files of its own
        run.evaluations.make()
    world.close()
    assert (in_tmp_path / "run" / "evaluations").is_dir()
