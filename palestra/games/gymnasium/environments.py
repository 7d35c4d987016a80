"""Makes environments from a config, one alone or a vector of them; a ConfigError says why one cannot be made."""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate
from gymnasium.vector.vector_env import AutoresetMode

from palestra.config import ConfigError, UntrustedError, UserConfig, admit, failure, import_own
from palestra.config.own_modules import admitted
from palestra.games.config import NotDeclared, is_without_environments
from palestra.games.gymnasium.arguments import is_atari, nearest_ids, passed_arguments
from palestra.games.gymnasium.config import EnvironmentConfig
from palestra.games.gymnasium.faults import described, fault_of_observation, fault_of_results, fault_of_step, raise_for
from palestra.games.gymnasium.known_spaces import make_stand_in, wrap_stand_in
from palestra.games.gymnasium.masks import WithMask, mask_entry
from palestra.games.gymnasium.memory import own_copy, share_memory
from palestra.games.gymnasium.seeding import EpisodeSeeds
from palestra.games.gymnasium.spaces import MASK, action_space
from palestra.games.gymnasium.workers import CheckedSteps, WatchedVectorEnv, make_in_worker
from palestra.games.gymnasium.wrappers import wrap
from palestra.games.info import FieldReader, GatheredInfos, GathersInfo
from palestra.games.world import EnvironmentFailed


class LeanSyncVectorEnv(GathersInfo, SyncVectorEnv):
    """Steps environments one after another, with checks, at half the cost of gymnasium's class.

    Steps return the same as gymnasium's, to the bit, but for infos, which are GatheredInfos; the next step overwrites
    the observations. Raises EnvironmentFailed if an environment raises, exits or returns an invalid value in a step.

    The environments may share memory, as one array of their class that each writes its observation to. The first step
    finds that out; from then on such observations are copied at once.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        space = self.single_observation_space
        if isinstance(space, Box) and space.shape:
            self._concatenated = self._observations.reshape(-1, *space.shape[1:])  # one environment after another
            self._lengths = [space.shape[0]] * self.num_envs
        else:
            self._concatenated = None
        self._read_fields: FieldReader | None = None
        self._copies: bool | None = None  # whether observations are copied at once; None: the first step decides

    def read_info(self, names: Sequence[str]) -> None:
        """From now on, let the infos of steps have these fields."""
        self._read_fields = FieldReader(names)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        space, read_fields, copies = self.single_observation_space, self._read_fields, self._copies is not False
        infos: Any = {} if read_fields is None else GatheredInfos()
        given: list[Any] = []  # what is copied at once
        observations: list[Any] = self._env_obs
        rewards = self._rewards
        terminated, truncated = self._terminations, self._truncations
        resets_now = self._autoreset_envs.tolist()
        any_ended = any(resets_now)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            assert not any_ended, "expected a reset of every environment whose episode has ended"
        is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        if any_ended:
            terminated[:] = truncated[:] = False
        i = 0
        try:
            for i, env in enumerate(self.envs):
                if resets_now[i] and not is_same_step:
                    observations[i], _ = env.reset()
                    rewards[i] = 0.0
                else:
                    outcome = env.step(actions[i])
                    if not isinstance(outcome, tuple) or len(outcome) != 5:
                        raise_for(fault_of_step(space, outcome), i)
                    observations[i], reward, is_terminated, is_truncated, info = outcome
                    if copies:
                        given.append(observations[i])
                        observations[i] = own_copy(observations[i])
                    # what nearly every step gives needs no closer look
                    if (
                        is_terminated is not False
                        or is_truncated is not False
                        or type(info) is not dict
                        or not isinstance(reward, float)
                    ):
                        raise_for(fault_of_results(reward, is_terminated, is_truncated, info), i)
                        terminated[i], truncated[i] = is_terminated, is_truncated
                        any_ended = any_ended or bool(terminated[i] or truncated[i])
                    rewards[i] = reward
                    if read_fields is not None:
                        infos.fields[i] = read_fields(info)
                    if is_same_step and (is_terminated or is_truncated):
                        raise_for(fault_of_observation(space, observations[i]), i)
                        infos = self._add_info(infos, {"final_obs": own_copy(observations[i])}, i)
                        observations[i], _ = env.reset()
        except (EnvironmentFailed, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may call sys.exit, or raise what is no Exception
            raise EnvironmentFailed(failure(error), i) from error
        if self._copies is None:
            self._copies = share_memory(given)
        self._join(observations)
        if any_ended:  # in this step, or in the one before
            self._autoreset_envs = terminated | truncated
        return self._observations, rewards.copy(), terminated.copy(), truncated.copy(), infos

    def _join(self, observations: list[Any]) -> None:
        """Write the observations of all environments to `_observations`."""
        if self._concatenated is not None:
            try:
                if list(map(len, observations)) == self._lengths:  # their sum alone could fill the array
                    np.concatenate(observations, out=self._concatenated)
                    return
            except (TypeError, ValueError):
                pass  # the loop below finds the fault
        for world, observation in enumerate(observations):
            raise_for(fault_of_observation(self.single_observation_space, observation), world)
        self._observations = concatenate(self.single_observation_space, observations, self._observations)


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
    if (spec := gymnasium.registry.get(config.id)) is not None and "mujoco" in str(spec.entry_point):
        with suppress(ImportError):  # making the environment reports it
            import_module("mujoco").set_mju_user_warning(_warn_unless_out_of_date)
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
    make = partial(make_in_worker, os.getpid(), admitted(), _make_seeded, config, key)
    makers = [partial(make, world, first) for world in range(num_worlds)]
    mode = AutoresetMode[config.vectorization.autoreset.upper()]
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
    has_wrapper = any(wrapper.name == "gymnasium.wrappers:TimeLimit" for wrapper in config.wrappers)
    if config.is_vector or has_wrapper or config.arguments.get("max_num_frames_per_episode") is not None:  # Atari
        return True
    if "max_episode_steps" in config.arguments:
        return config.arguments["max_episode_steps"] is not None
    spec = registered(config.id)
    return spec is None or spec.max_episode_steps is not None


def _warn_unless_out_of_date(text: str) -> None:
    """Warn of what MuJoCo says, but not that gymnasium's own files are out of date.

    That would come with every new environment, on the terminal and in a file in the working directory.
    """
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


class CheckedVector(VectorWrapper):
    """Raises EnvironmentFailed if the vector environment raises, exits or returns an invalid value; names no world."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.batch = batch_space(env.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        expected = "(observations, infos) from reset of the vector environment"
        observations, infos = self._ask(expected, 2, self.env.reset, seed=seed, options=options)
        return observations, _dict(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        expected = "(observations, rewards, terminated, truncated, infos) from step"
        observations, rewards, terminated, truncated, infos = self._ask(expected, 5, self.env.step, actions)
        return (
            observations,
            self._column("rewards", rewards, "biuf"),
            self._column("terminated", terminated, "b"),
            self._column("truncated", truncated, "b"),
            _dict(infos),
        )

    def _ask(self, expected: str, num: int, ask: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the result of a call, if it is a tuple of so many, of which the first are fitting observations."""
        try:
            result = ask(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment may call sys.exit, or raise what is no Exception
            raise EnvironmentFailed(failure(error)) from error
        if not isinstance(result, tuple) or len(result) != num:
            raise EnvironmentFailed(f"expected a tuple {expected}, got {described(result)}")
        raise_for(fault_of_observation(self.batch, result[0], "the batch of observations"))
        return result

    def _column(self, name: str, values: Any, kinds: str) -> np.ndarray:
        """Copy values to an array with one for every world, (B,). kinds: the allowed kinds of numpy's dtypes."""
        try:
            array = np.array(values)  # its own may be written into by the next step
        except ValueError:  # lists that differ in length
            array = np.empty(0, dtype=object)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            expected = "numbers" if "f" in kinds else "bools"
            raise EnvironmentFailed(
                f"expected {self.num_envs} {expected} as {name}, got shape {array.shape} and dtype {array.dtype}"
            )
        return array


def _dict(infos: Any) -> dict[str, Any]:
    if not isinstance(infos, dict):
        raise EnvironmentFailed(f"expected a dict as infos, got a {type(infos).__name__}")
    return infos
