"""The config of a Gymnasium environment: complete, checked without making anything, told plainly where it is wrong.

Covers palestra.games.gymnasium, palestra.games.gymnasium.arguments, palestra.games.gymnasium.config.
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from config_mutations import assert_every_mutation_is_told
from gymnasium.envs.registration import load_env_creator

from palestra.config import ConfigError, check
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.arguments import VECTOR_ENVIRONMENTS, known_arguments, passed_arguments
from palestra.games.gymnasium.environments import make_environment
from palestra.games.gymnasium.known_spaces import SPACES
from palestra.games.gymnasium.wrappers import WrapperConfig
from tests.complete_models import find_defaults, find_undescribed
from tests.forked import run as run_forked
from tests.games.gym_worlds import CPU, cart_pole, gym_data

RENDERING = {"render_mode", "default_camera_config"}
OF_THE_ID = {"game", "num_envs"}
ENVIRONMENTS = [env_id for env_id in gymnasium.registry if known_arguments(env_id, vector=False) is not None]
ATARI_IDS = ("ALE/Pong-v5", "PongNoFrameskip-v4", "PongNoFrameskip-v0")


def errors_of(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check(data, GymnasiumConfig)
    return str(caught.value).splitlines()


def refusal(data: dict[str, Any]) -> str:
    """Why a sound config cannot be played here."""
    with pytest.raises(ConfigError) as caught:
        GymnasiumGame(check(data, GymnasiumConfig), CPU)
    return str(caught.value)


def test_no_key_has_a_default_and_each_is_described() -> None:
    assert find_defaults(GymnasiumConfig) == []
    assert find_undescribed(GymnasiumConfig) == []


def test_every_break_is_told_by_its_path() -> None:
    wrappers = [
        {"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 3}},
        {"name": "gymnasium.wrappers:ResizeObservation", "arguments": {"shape": [8, 8]}},
    ]
    observation = {"normalize": {"eps": 1e-8}, "clip": 10.0}
    reward = {"normalize": {"gamma": 0.9, "eps": 1e-8}, "clip": None}
    assert_every_mutation_is_told(cart_pole(wrappers=wrappers, observation=observation, reward=reward), GymnasiumConfig)


def test_gymnasiums_own_environments_are_known() -> None:
    missing = SPACES.keys() - set(ENVIRONMENTS)
    assert not missing
    assert known_arguments("Hopper-v5", vector=False) is not None
    assert known_arguments("phys2d/CartPole-v1", vector=False) is None


def test_a_missing_argument_is_named_with_its_usual_value() -> None:
    assert errors_of(cart_pole(arguments={"sutton_barto_reward": True})) == [
        "arguments.max_episode_steps: expected an integer or null (usually 500), but the key is missing"
    ]


def test_an_unknown_argument_is_told_with_the_nearest() -> None:
    (line,) = errors_of(
        cart_pole(arguments={"sutton_barto_reward": True, "max_episode_steps": 5, "max_episodes_step": 5})
    )
    assert line.startswith("arguments.max_episodes_step: unknown key; did you mean 'max_episode_steps'?")


def test_an_argument_of_a_wrong_type_is_told() -> None:
    arguments = {"sutton_barto_reward": 1, "max_episode_steps": 500}
    assert errors_of(cart_pole(arguments=arguments)) == [
        "arguments.sutton_barto_reward: expected true or false (usually false), got 1"
    ]


def test_an_unknown_id_is_told_with_the_nearest() -> None:
    (line,) = errors_of(gym_data(id="CartPol-v1"))
    assert line.startswith(
        "id: expected an environment that gymnasium knows, got 'CartPol-v1'; the nearest known: 'CartPole-v1'"
    )


def test_an_unknown_id_of_an_extra_is_told_when_it_is_made() -> None:
    pytest.importorskip("ale_py")
    arguments = {name: argument.usual for name, argument in (known_arguments("ALE/Pong-v5", False) or {}).items()}
    assert "game.id: expected an environment that gymnasium knows, got 'ALE/Pogn-v5'" in refusal(
        gym_data(id="ALE/Pogn-v5", arguments=arguments)
    )


def test_an_argument_that_an_environment_of_ones_own_does_not_take_is_told() -> None:
    told = "cannot be made with these arguments: Walk() takes no arguments (game.arguments.NAME=VALUE gives one)"
    assert refusal(gym_data(arguments={"speed": 3})) == f"game.arguments: 'tests.gym_probes:Walk-v0' {told}"


def test_an_argument_that_an_environment_of_ones_own_needs_is_told() -> None:
    told = refusal(gym_data(id="tests.gym_probes:TwoStates-v0"))
    assert told.endswith(
        "cannot be made with these arguments: TwoStates.__init__() missing 1 required positional argument: 'limit' "
        "(game.arguments.NAME=VALUE gives one)"
    )


def test_a_module_that_is_not_there_is_told() -> None:
    assert "game.id: 'no.such:Walk-v0' cannot be made: importing 'no.such' failed" in refusal(
        gym_data(id="no.such:Walk-v0")
    )


def test_a_wrapper_that_does_not_fit_is_told_by_its_place() -> None:
    wrappers = [
        {"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 3}},
        {"name": "gymnasium.wrappers:GrayscaleObservation", "arguments": {"keep_dim": False}},
    ]
    assert refusal(gym_data(wrappers=wrappers)).startswith(
        "game.wrappers.1: 'gymnasium.wrappers:GrayscaleObservation' does not fit the environment or wrapper that"
    )


@pytest.mark.filterwarnings("ignore:.*missing AutoresetMode")
def test_entry_points_take_no_wrappers_and_must_declare_their_autoreset_mode() -> None:
    entry_point = {"name": "entry_point"}
    wrappers = [{"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 3}}]
    (line,) = errors_of(cart_pole(vectorization=entry_point, wrappers=wrappers))
    assert line.startswith("wrappers: expected [], ")
    lonely = refusal(gym_data(id="tests.gym_probes:Lonely-v0", vectorization=entry_point))
    why = "because the vector environment of tests.gym_probes:Lonely-v0 does not declare metadata['autoreset_mode']"
    assert f"game.vectorization.name: expected 'sync' or 'async', {why}" in lonely
    assert "game.id" in refusal(gym_data(vectorization=entry_point))


def test_normalisation_of_nothing_is_refused() -> None:
    data = gym_data(
        id="tests.gym_probes:TwoStates-v0", arguments={"limit": 3}, observation={"normalize": None, "clip": 1.0}
    )
    assert refusal(data).startswith(
        "game.observation: expected null for normalize and clip, because the observation has no numbers"
    )


def test_a_missing_extra_is_named() -> None:
    extras = {"HalfCheetah-v5": "mujoco", "LunarLander-v3": "box2d", "ALE/Pong-v5": "atari"}
    program = (
        "import sys; sys.modules |= {'mujoco': None, 'Box2D': None, 'ale_py': None, 'cv2': None}\n"
        "sys.path[:0] = ['tests', '.']\n"
        "from tests.games.gymnasium.test_gym_config import refusal\n"
        "from tests.games.gymnasium.test_gym_spaces import usual; from tests.games.gym_worlds import gym_data\n"
        f"for env_id in {list(extras)}: print(refusal(gym_data(id=env_id, arguments=usual(env_id))))\n"
        "resize = {'name': 'gymnasium.wrappers:ResizeObservation', 'arguments': {'shape': [8, 8]}}\n"
        "print(refusal(gym_data(id='tests.gym_probes:Pixels-v0', wrappers=[resize])))"
    )
    root = Path(__file__).parents[3]
    done = run_forked([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *(f"game.id: {env_id!r} needs an extra: pip install 'palestra[{extra}]'" for env_id, extra in extras.items()),
        "game.wrappers.0.name: 'gymnasium.wrappers:ResizeObservation' needs an extra: pip install 'palestra[atari]'",
    ]


def test_a_check_imports_no_extra_and_makes_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("an environment was made")

    for name in ("mujoco", "Box2D", "ale_py", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(gymnasium, "make", refuse)
    for env_id in (*ENVIRONMENTS, *ATARI_IDS):
        arguments = {}
        for name, argument in (known_arguments(env_id, vector=False) or {}).items():
            arguments[name] = list(argument.usual) if isinstance(argument.usual, tuple) else argument.usual
        assert check(gym_data(id=env_id, arguments=arguments), GymnasiumConfig).id == env_id


# ---- the tables, beside what they list ---------------------------------------------------------------------


def signature(creator: Any) -> dict[str, Any]:
    parameters = inspect.signature(creator).parameters.values()
    left_out = RENDERING | OF_THE_ID
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default for p in parameters if p.kind in kinds and p.name not in left_out}


@pytest.mark.parametrize("env_id", [*ENVIRONMENTS, *ATARI_IDS])
def test_known_arguments_are_those_of_the_environment_with_its_defaults(env_id: str) -> None:
    if env_id in ATARI_IDS:
        pytest.importorskip("ale_py")
    spec = gymnasium.spec(env_id)
    try:
        creator = load_env_creator(str(spec.entry_point))
    except (ImportError, gymnasium.error.DependencyNotInstalled):
        pytest.skip("its extra is not installed")
    registered = {name: value for name, value in spec.kwargs.items() if name not in OF_THE_ID}
    expected = signature(creator) | registered | {"max_episode_steps": spec.max_episode_steps}
    known = known_arguments(env_id, vector=False)
    assert known is not None
    assert {name: argument.usual for name, argument in known.items()} == expected


@pytest.mark.parametrize("env_id", [*VECTOR_ENVIRONMENTS, "ALE/Pong-v5"])
def test_known_arguments_of_vector_environments_are_theirs(env_id: str) -> None:
    if env_id.startswith("ALE"):
        pytest.importorskip("ale_py")
    creator = load_env_creator(str(gymnasium.spec(env_id).vector_entry_point))
    assert set(known_arguments(env_id, vector=True) or {}) == set(signature(creator))


def test_a_wrapper_has_all_arguments_of_its_class_and_keeps_no_statistics() -> None:
    for name in WrapperConfig.classes:
        cls = getattr(gymnasium.wrappers, name)
        assert set(WrapperConfig.parameters(cls)) == set(signature(cls.__init__)) - {"self", "env"}
    left_out = {name for name, each in vars(gymnasium.wrappers).items() if isinstance(each, type)}
    assert {"NormalizeObservation", "NormalizeReward"} <= left_out - set(WrapperConfig.classes)


def test_ranges_without_bound_are_written_as_null() -> None:
    given = {"healthy_z_range": [0.7, None], "max_episode_steps": None}
    assert passed_arguments("Hopper-v5", given, vector=False) == {
        "healthy_z_range": (0.7, float("inf")),
        "max_episode_steps": -1,
    }


def test_a_wrapper_of_ones_own_is_called_with_its_config(in_tmp_path: Path) -> None:
    (in_tmp_path / "my_wrappers.py").write_text(
        "import gymnasium\n"
        "from palestra.config import PositiveFloat, UserConfig\n"
        "class Scale(gymnasium.RewardWrapper):\n"
        "    class Config(UserConfig):\n"
        "        factor: PositiveFloat\n"
        '        """how much more"""\n'
        "    def __init__(self, env, config):\n"
        "        super().__init__(env)\n"
        "        self.factor = config.factor\n"
        "    def reward(self, reward):\n"
        "        return self.factor * reward\n"
    )
    data = gym_data(wrappers=[{"name": "my_wrappers:Scale", "factor": 3.0}])
    env = make_environment(check(data, GymnasiumConfig))
    env.reset(seed=0)
    assert env.step(5)[1] == 3.0
    assert (
        "wrappers.0.factor: expected a number > 0, but the key is missing"
        in errors_of(gym_data(wrappers=[{"name": "my_wrappers:Scale"}]))[0]
    )
