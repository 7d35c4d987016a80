"""A user's mistake in any shipped config of a lone agent: one line that names key, value and remedy; exit code 2.

Covers palestra.kinds.games.config, palestra.run.sections.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import ConfigError, load_yaml
from palestra.run.kinds import read_config

CONFIGS = Path(__file__).parent.parent / "configs"
GYMNASIUM = sorted(file for file in CONFIGS.glob("*.yml") if load_yaml(file)["game"]["name"] == "gymnasium")
EXTRAS = {"ALE": "ale_py", "LunarLander": "Box2D", "HalfCheetah": "mujoco", "Hopper": "mujoco"}
ALGORITHM = "players.agent.algorithm"
OWN = '''
import gymnasium
import torch
from palestra.config import UserConfig
from palestra.nets import RecurrentNet, UserNetConfig


class Remembering(RecurrentNet):
    """Counts its steps."""

    Config = UserNetConfig

    def __init__(self, config, spaces, num_outputs):
        super().__init__()
        self.linear = torch.nn.Linear(1, num_outputs)

    def initial_memory(self, num_worlds, device):
        return {"age": torch.zeros(num_worlds, 1, device=device)}

    def forward(self, observation, memory):
        return self.linear(memory["age"]), {"age": memory["age"] + 1.0}

    def unroll(self, observation, memory, episode_start):
        return self.linear(memory["age"])  # of one step alone


class TooWide(torch.nn.Module):
    Config = UserNetConfig

    def __init__(self, config, spaces, num_outputs):
        super().__init__()
        self.linear = torch.nn.Linear(1, num_outputs + 1)

    def forward(self, observation):
        return self.linear(torch.zeros(len(next(iter(observation.values()))), 1))


class Refusing(torch.nn.Module):
    Config = UserNetConfig

    def __init__(self, config, spaces, num_outputs):
        raise KeyError("sonar")


class Crooked(gymnasium.ObservationWrapper):
    """Sees more than it says."""

    Config = UserConfig

    def __init__(self, env, config):
        super().__init__(env)

    def observation(self, observation):
        return [0.0] * 99
'''
FRAMES = (
    "{name: gymnasium.wrappers:AtariPreprocessing, arguments: {noop_max: 30, frame_skip: 4, screen_size: 84, "
    "terminal_on_life_loss: false, grayscale_obs: true, grayscale_newaxis: false, scale_obs: false}}"
)
STACK = "{name: gymnasium.wrappers:FrameStackObservation, arguments: {stack_size: 4, padding_type: reset}}"

pytestmark = pytest.mark.usefixtures("in_tmp_path")

every_file = pytest.mark.parametrize("file", GYMNASIUM, ids=lambda path: path.stem)
every_file_with_a_replay_buffer = pytest.mark.parametrize(
    "file",
    [file for file in GYMNASIUM if "replay_buffer" in load_yaml(file)["players"]["agent"]["algorithm"]],
    ids=lambda path: path.stem,
)


@pytest.fixture(autouse=True)
def own_classes(in_tmp_path: Path) -> None:
    (in_tmp_path / "own_classes.py").write_text(OWN)


def needs_its_extra(file: Path) -> dict[str, Any]:
    config: dict[str, Any] = load_yaml(file)
    for start, module in EXTRAS.items():
        if config["game"]["id"].startswith(start):
            pytest.importorskip(module)
    return config


def told(file: Path, *overrides: str) -> list[str]:
    """The lines with which the command line refuses a config."""
    result = CliRunner().invoke(app, ["train", str(file), *overrides, "--run", "refused"])
    assert isinstance(result.exception, SystemExit), (file.stem, overrides, result.exception)
    assert (result.exit_code, result.stdout) == (2, ""), (file.stem, overrides, result.output)
    assert not Path("refused").exists(), overrides
    return result.stderr.splitlines()


def one_line(file: Path, *overrides: str) -> str:
    (line,) = told(file, *overrides)
    return line


@every_file
def test_an_environment_that_cannot_be_is_told(file: Path) -> None:
    game = needs_its_extra(file)["game"]
    name, version = game["id"].rsplit("-", 1)
    misspelt = f"{name[:-1]}{name[-1]}{name[-1]}-{version}"
    assert f"expected an environment that gymnasium knows, got {misspelt!r}; the nearest known: " in one_line(
        file, f"game.id={misspelt}"
    )
    assert "nearest known: 'tests.gym_probes:Walk-v0'" in one_line(file, "game.id=tests.gym_probes:Wlak-v0")
    assert one_line(file, "game.arguments.max_episode_steps=0") == (
        "game.arguments.max_episode_steps: expected an integer >= 1, or null (never), got 0"
    )
    lines = told(file, "game.arguments={}")
    assert len(lines) == len(game["arguments"])
    assert all(": expected " in line and ", but the key is missing" in line for line in lines)
    known = next(iter(game["arguments"]))
    assert f"did you mean {known!r}?" in one_line(file, f"game.arguments.{known}x=1")
    assert one_line(file, "num_worlds=0") == "num_worlds: expected an integer >= 1, got 0"


@every_file
def test_wrappers_that_cannot_be_are_told_by_their_place(file: Path) -> None:
    needs_its_extra(file)
    line = one_line(file, "game.wrappers=[{name: gymnasium.wrappers:FrameStakObservation, arguments: {}}]")
    assert line.startswith("game.wrappers.0.name: expected one of 'gymnasium.wrappers:FrameStackObservation', ")
    assert line.endswith("; did you mean 'gymnasium.wrappers:FrameStackObservation'?")
    line = one_line(
        file, "game.wrappers=[{name: gymnasium.wrappers:FrameStackObservation, arguments: {stack_size: 2}}]"
    )
    assert line.startswith("game.wrappers.0.arguments.padding_type: expected a value (usually 'reset'), but the key")
    line = one_line(file, "game.wrappers=[{name: gymnasium.wrappers:TimeLimit, arguments: {max_episode_steps: '9'}}]")
    assert line == "game.wrappers.0.arguments.max_episode_steps: expected int, got '9'"
    assert (
        "game.wrappers.0: 'gymnasium.wrappers:ReshapeObservation' does not fit the environment or wrapper that it wraps"
        in one_line(file, "game.wrappers=[{name: gymnasium.wrappers:ReshapeObservation, arguments: {shape: [7]}}]")
    )
    assert "game.wrappers.0: 'gymnasium.wrappers:FilterObservation' does not fit" in one_line(
        file, "game.wrappers=[{name: gymnasium.wrappers:FilterObservation, arguments: {filter_keys: [a]}}]"
    )
    assert "gives no first observation: " in one_line(file, "game.wrappers=[{name: 'own_classes:Crooked'}]")


def test_wrappers_in_an_impossible_order_are_told() -> None:
    pytest.importorskip("ale_py")
    pong = CONFIGS / "dqn-pong.yml"
    assert one_line(pong, f"game.wrappers=[{STACK}, {FRAMES}]").startswith(
        "game.wrappers: 'ALE/Pong-v5' in the wrappers 'gymnasium.wrappers:FrameStackObservation', "
        "'gymnasium.wrappers:AtariPreprocessing' gives no first observation"
    )
    line = one_line(CONFIGS / "dqn-cartpole.yml", f"game.wrappers=[{STACK}, {FRAMES}]")
    assert (
        "game.wrappers.1: 'gymnasium.wrappers:AtariPreprocessing' does not fit the environment or wrapper that" in line
    )


def nets(algorithm: dict[str, Any]) -> list[str]:
    """The keys of an algorithm under which networks stand."""
    found = [key for key in algorithm if key == "net" or key.endswith("_net")]
    return found + [f"body.{key}" for key in algorithm.get("body", {}) if key != "name"]


@every_file
def test_networks_that_cannot_be_are_told(file: Path) -> None:
    algorithm = needs_its_extra(file)["players"]["agent"]["algorithm"]
    for key in nets(algorithm):
        path = f"{ALGORITHM}.{key}"
        unseen = "{name: deep_sets, point_widths: [8], head_widths: [8]}"
        assert f"{path}.name: expected an observation with one set of points for 'deep_sets', got " in one_line(
            file, f"{path}={unseen}"
        )
        refusing, too_wide, remembering = (
            one_line(file, f"{path}={{name: 'own_classes:{name}'}}") for name in ("Refusing", "TooWide", "Remembering")
        )
        assert f"{path}.name: 'own_classes:Refusing' fails on this observation: KeyError: 'sonar' (own_" in refusing
        assert f"{path}.name: expected outputs of shape (2, " in too_wide
        assert "for 2 worlds from 'own_classes:TooWide', got (2, " in too_wide
        if algorithm["name"] in (
            "ppo",
            "on_policy",
            "off_policy",
        ):  # the last one refuses it when all networks are there
            assert f"{path}.name: expected outputs of shape (3, 2, " in remembering
            assert "for 2 worlds from 'own_classes:Remembering', got (2, " in remembering
        else:
            assert remembering == (
                f"{path}.name: expected a Module that is no RecurrentNet, got 'own_classes:Remembering'"
            )
            recurrent = (
                "{name: recurrent, encoder: {name: mlp, net_arch: [8], activation: relu}, encoder_width: 8, cell: gru, "
                "hidden_size: 8, net_arch: [], activation: relu}"
            )
            line = one_line(file, f"{path}={recurrent}")
            assert line.startswith(f"{path}.name: expected one of ")
            assert line.endswith(", got 'recurrent'")


@every_file_with_a_replay_buffer
def test_a_memory_too_small_for_a_roll_out_is_told(file: Path) -> None:
    config = needs_its_extra(file)
    algorithm = config["players"]["agent"]["algorithm"]
    path = f"{ALGORITHM}.replay_buffer.capacity"
    assert one_line(file, f"{ALGORITHM}.rollout_length=7", "num_worlds=3", f"{path}=20") == (
        f"{path}: expected at least 21 (a roll-out brings up to so many transitions), got 20"
    )
    if algorithm["name"] == "dqn":
        n_step = f"{ALGORITHM}.transitions={{name: n_step, steps: 5}}"
        assert one_line(file, n_step, f"{ALGORITHM}.rollout_length=7", "num_worlds=3", f"{path}=32") == (
            f"{path}: expected at least 33 (a roll-out brings up to so many transitions), got 32"
        )


ACTIONS = {
    "box": ("game.id=Pendulum-v1", "game.arguments={max_episode_steps: 200, g: 10.0}"),
    "discrete": ("game.id=CartPole-v1", "game.arguments={max_episode_steps: 500, sutton_barto_reward: false}"),
    "multi_discrete": ("game.id=tests.gym_probes:Acts-v0", "game.arguments={actions: grid}"),
    "unbounded": ("game.id=tests.gym_probes:Acts-v0", "game.arguments={actions: unbounded}"),
    "text": ("game.id=tests.gym_probes:Acts-v0", "game.arguments={actions: text}"),
}


@pytest.mark.parametrize(
    ("name", "actions", "expected"),
    [
        ("dqn-cartpole", "box", f"{ALGORITHM}.name: expected Discrete actions for 'dqn', got Box"),
        ("dqn-cartpole", "multi_discrete", f"{ALGORITHM}.name: expected Discrete actions for 'dqn', got "),
        (
            "dqn-cartpole",
            "text",
            "game.id: 'tests.gym_probes:Acts-v0' cannot be played: expected Discrete, MultiDiscrete, MultiBinary or "
            "a Box of floats as actions, got Text",
        ),
        (
            "ppo-cartpole",
            "box",
            f"{ALGORITHM}.box_actions: expected clipped_gaussian or squashed_gaussian (the actions are Box",
        ),
        (
            "ppo-pendulum",
            "discrete",
            f"{ALGORITHM}.box_actions: expected null (the actions are Discrete(num=2), not a Box), got clipped",
        ),
        ("sac-pendulum", "multi_discrete", f"{ALGORITHM}.name: expected Box or Discrete actions for 'sac', got "),
        ("sac-pendulum", "unbounded", f"{ALGORITHM}.name: expected a Box with finite bounds"),
        ("td3-pendulum", "discrete", f"{ALGORITHM}.name: expected Box actions for 'td3', got Discrete"),
        ("td3-pendulum", "unbounded", f"{ALGORITHM}.name: expected a Box with finite bounds"),
    ],
)
def test_actions_that_an_algorithm_cannot_choose_are_told(name: str, actions: str, expected: str) -> None:
    assert one_line(CONFIGS / f"{name}.yml", *ACTIONS[actions], "game.wrappers=[]").startswith(expected)


MIXED = (
    *("game.id=tests.gym_probes:Mixed-v0", "game.arguments={}", "game.wrappers=[]"),
    "game.observation.channels=last",
)


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        (
            "dqn-pong",
            MIXED,
            f"{ALGORITHM}.name: expected Discrete actions for 'dqn', got ",
        ),
        (
            "ppo-breakout",
            MIXED,
            f"{ALGORITHM}.body.net.name: expected one image, uint8 of shape (C, H, W), for 'nature_cnn', got "
            "several entries",
        ),
        (
            "ppo-breakout",
            (*ACTIONS["discrete"], "game.wrappers=[]"),
            f"{ALGORITHM}.body.net.name: expected one image, uint8 of shape (C, H, W), for 'nature_cnn', got "
            "'observation', ",
        ),
        (
            "dqn-cartpole",
            ("game.id=tests.gym_probes:Lonely-v0", "game.arguments={}", "game.vectorization={name: entry_point}"),
            "game.vectorization.name: expected 'sync' or 'async', because the vector environment of "
            "tests.gym_probes:Lonely-v0 does not declare",
        ),
        (
            "dqn-cartpole",
            ("game.id=tests.gym_probes:Walk-v0", "game.arguments={}", "game.vectorization={name: entry_point}"),
            "game.id: 'tests.gym_probes:Walk-v0' cannot be made with these arguments: ",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*missing AutoresetMode")
def test_observations_and_vectors_that_do_not_fit_are_told(
    name: str, overrides: tuple[str, ...], expected: str
) -> None:
    assert one_line(CONFIGS / f"{name}.yml", *overrides).startswith(expected)


def test_more_minibatches_than_rows_are_told() -> None:
    overrides = (f"{ALGORITHM}.rollout_length=3", "num_worlds=2", f"{ALGORITHM}.num_minibatches=7")
    assert one_line(CONFIGS / "ppo-cartpole.yml", *overrides) == (
        f"{ALGORITHM}.num_minibatches: expected at most 6 (a roll-out has so many rows), got 7"
    )
    recurrent = (
        f"{ALGORITHM}.body.policy={{name: recurrent, encoder: {{name: mlp, net_arch: [8], activation: relu}}, "
        "encoder_width: 8, cell: gru, hidden_size: 8, net_arch: [], activation: relu}"
    )
    assert one_line(CONFIGS / "ppo-cartpole.yml", recurrent, "num_worlds=2", f"{ALGORITHM}.num_minibatches=3") == (
        f"{ALGORITHM}.num_minibatches: expected at most 2 (a roll-out has so many sequences, one per world and role), "
        "got 3"
    )


@pytest.mark.parametrize(
    ("file", "override", "told"),
    [
        ("dqn-cartpole", "optimizer.beta1=1.0", "expected a number >= 0 and < 1, got 1.0"),
        ("dqn-cartpole", "optimizer={name: sgd, momentum: 1, weight_decay: 0.0}", ">= 0 and < 1, got 1"),
        ("dqn-cartpole", "target.tau=0", "expected a number > 0 and <= 1, got 0"),
        ("iql-pendulum", "loss.expectile=1.0", "expected a number > 0 and < 1, got 1.0"),
    ],
)
def test_numbers_with_which_nothing_is_learned_are_told(file: str, override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_config(file, [f"players.agent.algorithm.{override}"])
