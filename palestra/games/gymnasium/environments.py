"""Makes environments from a config, one alone or a vector of them; a ConfigError says why one cannot be made."""

import warnings
from contextlib import suppress
from importlib import import_module

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from gymnasium.vector.vector_env import AutoresetMode

from palestra.config import ConfigError, UntrustedError, UserConfig, admit, failure, import_own
from palestra.games.config import NotDeclared, is_without_environments
from palestra.games.gymnasium.arguments import is_atari, nearest_ids, passed_arguments
from palestra.games.gymnasium.config import EnvironmentConfig
from palestra.games.gymnasium.known_spaces import make_stand_in, wrap_stand_in
from palestra.games.gymnasium.masks import WithMask, mask_entry
from palestra.games.gymnasium.own_vector import CheckedVector
from palestra.games.gymnasium.seeding import EpisodeSeeds
from palestra.games.gymnasium.spaces import MASK, action_space
from palestra.games.gymnasium.sync import LeanSyncVectorEnv
from palestra.games.gymnasium.workers import CheckedSteps, WatchedVectorEnv, WorkerSignals
from palestra.games.gymnasium.wrappers import wrap
from palestra.games.world import EnvironmentFailed

AUTORESET = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}
EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "ale_py": "atari", "opencv": "atari", "pygame": "box2d"}


def make_environment(config: EnvironmentConfig) -> gymnasium.Env:
    """Make one environment in its wrappers, or a stand-in for it (see palestra.games.gymnasium.known_spaces).

    Raises ConfigError, with paths relative to the config, if it cannot be made.
    """
    uses_stand_in = is_without_environments()
    env = make_stand_in(config) if uses_stand_in else _make_bare(config)
    for index, wrapper in enumerate(config.wrappers):
        try:
            env = (wrap_stand_in if uses_stand_in else wrap)(env, wrapper)
        except NotDeclared:
            raise
        except gymnasium.error.DependencyNotInstalled as error:
            message = f"{wrapper.name!r} {_missing(str(error))}"
            raise ConfigError.at(f"wrappers.{index}.name", message) from error
        except (Exception, SystemExit) as error:
            why = failure(error) if isinstance(wrapper, UserConfig) else error
            message = f"{wrapper.name!r} does not fit the environment or wrapper that it wraps: {why}"
            raise ConfigError.at(f"wrappers.{index}", message) from error
    return env


def _make_bare(config: EnvironmentConfig) -> gymnasium.Env:
    _register(config.id)
    _silence_mujoco(config.id)
    arguments = passed_arguments(config.id, config.arguments, vector=False)
    try:
        return gymnasium.make(config.id, disable_env_checker=True, **arguments)
    except (Exception, SystemExit) as error:  # an environment may refuse its arguments by any of them
        raise _explained(config, error) from error


def make_vector(
    config: EnvironmentConfig, num_worlds: int, key: int, name: str, step_within_s: float | None, first: int = 0
) -> VectorEnv:
    """Make `num_worlds` environments that step together.

    key: of the stream of the seeds of their episodes; an `entry_point` vector environment is seeded at its first reset
    instead. name, step_within_s: as of WatchedVectorEnv; only environments in processes of their own can take too long.
    first: the number of the first of them.

    Raises ConfigError if an `entry_point` vector environment cannot be made, and EnvironmentFailed if any other one
    fails, now or when it is used.
    """
    if is_without_environments():
        raise NotDeclared
    if config.vectorization.name == "entry_point":
        return _make_own_vector(config, num_worlds)
    makers = [WorkerSignals(_make_seeded, config, key, world, first) for world in range(num_worlds)]
    mode = AUTORESET[config.vectorization.autoreset]
    if config.vectorization.name == "async":
        return WatchedVectorEnv(makers, name, step_within_s, first, copy=False, autoreset_mode=mode)
    try:
        return LeanSyncVectorEnv(makers, mode)
    except RuntimeError as error:  # gymnasium's, where environments differ in their spaces
        raise EnvironmentFailed(failure(error)) from error


def _make_seeded(config: EnvironmentConfig, key: int, world: int, first: int) -> gymnasium.Env:
    """Make an environment whose config was tried before: a failure now is the environment's, not the config's."""
    try:
        env = make_environment(config)
        if (source := config.action_mask) is not None and mask_entry(source) == MASK:
            env = WithMask(env, source, action_space(env.action_space)[0].num_flags)
    except ConfigError as error:
        raise EnvironmentFailed(str(error), world) from error
    return EpisodeSeeds(CheckedSteps(env) if config.vectorization.name == "async" else env, key, world, first)


def _make_own_vector(config: EnvironmentConfig, num_worlds: int) -> VectorEnv:
    _register(config.id)
    arguments = passed_arguments(config.id, config.arguments, vector=True)
    try:
        vector = gymnasium.make_vec(config.id, num_worlds, vectorization_mode="vector_entry_point", **arguments)
    except (Exception, SystemExit) as error:  # an environment may refuse its arguments by any of them
        raise _explained(config, error) from error
    if not isinstance(vector.metadata.get("autoreset_mode"), AutoresetMode):
        vector.close()
        message = (
            f"expected 'sync' or 'async', because the vector environment of {config.id} does not declare "
            "metadata['autoreset_mode'], which says when its episodes begin, got 'entry_point'"
        )
        raise ConfigError.at("vectorization.name", message)
    return CheckedVector(vector)


def autoreset_mode(vector: VectorEnv) -> AutoresetMode:
    """Return when a vector environment resets its worlds, as it declares."""
    return vector.metadata["autoreset_mode"]


def close_vector(vector: VectorEnv) -> None:
    """Close a vector environment in any state, and end all of its processes."""
    with suppress(Exception, SystemExit):  # a failure to close harms nothing
        vector.close()
    for process in getattr(vector, "processes", ()):
        if process.is_alive():
            process.kill()
        process.join()
    vector.closed = True


def _register(env_id: str) -> None:
    """Register an environment that is not gymnasium's own. Raises ConfigError if its module cannot be imported."""
    module, colon, _ = env_id.rpartition(":")
    if colon:
        try:
            import_own(module)
        except ValueError as error:
            raise ConfigError.at("id", f"{env_id!r} cannot be made: {error}") from error
    if is_atari(env_id):
        try:
            import ale_py
        except ImportError as error:
            raise ConfigError.at("id", f"{env_id!r} {_missing('ale_py')}") from error
        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner with every process


def registered(env_id: str) -> EnvSpec | None:
    """Import the module of an id and return what is registered under it; None if that fails or there is nothing."""
    module, colon, _ = env_id.rpartition(":")
    with suppress(ConfigError, UntrustedError):
        if not colon or admit(module):
            _register(env_id)
    return gymnasium.registry.get(env_id.rpartition(":")[2])


def has_limit(config: EnvironmentConfig) -> bool:
    """Tell whether an episode is truncated after so many steps, whatever the environment itself does.

    True also where that is not known: of vector environments of their own, and of what cannot be imported.
    """
    if config.is_vector or any(wrapper.name == "gymnasium.wrappers:TimeLimit" for wrapper in config.wrappers):
        return True
    if config.arguments.get("max_num_frames_per_episode") is not None:  # Atari
        return True
    if "max_episode_steps" in config.arguments:
        return config.arguments["max_episode_steps"] is not None
    spec = registered(config.id)
    return spec is None or spec.max_episode_steps is not None


def _silence_mujoco(env_id: str) -> None:
    """Silence MuJoCo's warnings that gymnasium's own files are out of date.

    They would come with every new environment, on the terminal and in a file in the working directory.
    """
    spec = gymnasium.registry.get(env_id)
    if spec is not None and "mujoco" in str(spec.entry_point):
        with suppress(ImportError):  # making the environment reports it
            import_module("mujoco").set_mju_user_warning(_warn_unless_out_of_date)


def _warn_unless_out_of_date(text: str) -> None:
    if "is deprecated" not in text:
        warnings.warn(f"MuJoCo: {text}", stacklevel=2)


def _explained(config: EnvironmentConfig, error: BaseException) -> ConfigError:
    text = " ".join(str(error).split())
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        message = f"expected an environment that gymnasium knows, got {config.id!r}; {nearest_ids(config.id)}"
        return ConfigError.at("id", message)
    if isinstance(error, gymnasium.error.DependencyNotInstalled | ImportError):
        return ConfigError.at("id", f"{config.id!r} {_missing(text)}")
    text = text.partition(" was raised from the environment creator")[0]
    if isinstance(error, gymnasium.error.Error):
        return ConfigError.at("id", f"{config.id!r} cannot be made with these arguments: {text}")
    why = f"{text} (game.arguments.NAME=VALUE gives one)" if isinstance(error, TypeError) else failure(error)
    return ConfigError.at("arguments", f"{config.id!r} cannot be made with these arguments: {why}")


def _missing(text: str) -> str:
    extra = next((extra for word, extra in EXTRAS.items() if word in text.lower()), None)
    return f"cannot be made: {text}" if extra is None else f"needs an extra: pip install 'palestra[{extra}]'"
