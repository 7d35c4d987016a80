"""GymnasiumWorld: environments of Gymnasium that step together, as a World.

Letters: B worlds, T steps.
"""

import warnings
from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector.vector_env import AutoresetMode
from numpy import count_nonzero, vdot
from torch import Tensor

from palestra.config import ConfigError
from palestra.games.game import Observation
from palestra.games.gymnasium.config import EnvironmentConfig
from palestra.games.gymnasium.environments import close_vector, make_vector
from palestra.games.gymnasium.faults import fault_of_numbers
from palestra.games.gymnasium.normalization import Moments
from palestra.games.gymnasium.pictures import Pictures, frames_per_second
from palestra.games.gymnasium.seeding import RunningEpisodes, episode_seed
from palestra.games.gymnasium.spaces import MASK, WHOLE, Arrays, ObservationReader
from palestra.games.info import InfoFields, StepInfo
from palestra.games.spaces import ActionSpace, Box
from palestra.games.world import EnvironmentFailed, EnvironmentWorld, Outcome


class EnvironmentGame(Protocol):
    """What a GymnasiumWorld uses of the game that makes it (palestra.games.gymnasium.game.GymnasiumGame)."""

    device: torch.device
    is_on_cpu: bool
    world_reader: ObservationReader
    action_space: ActionSpace
    transforms_observations: bool
    transforms_rewards: bool
    floats: dict[str, str]
    reward_moments: Moments
    step_within_s: float | None
    to_gym_actions: Callable[[np.ndarray], np.ndarray]

    @property
    def config(self) -> EnvironmentConfig: ...

    def transform(self, observations: Arrays) -> Arrays: ...

    def update_observation_statistics(self, observations: Arrays) -> None: ...


class GymnasiumWorld(EnvironmentWorld):
    """A vector environment.

    It is opened at its first use; it may be closed at any time, and the next use opens it again where it was.

    In every autoreset mode, an outcome holds the true last observation of an episode that ends, a step that only
    begins an episode is not `valid` (its action is ignored, its reward is 0), and an episode that the environment
    declares both terminated and truncated has terminated.

    `state_dict` holds the numbers of the running episodes and their actions so far: a resumed world replays them from
    their seeds. If a replay differs from the original in any bit, the world warns, begins that episode anew, and
    `exact` is False from then on. The same happens with every `entry_point` vector environment, whose state cannot be
    restored.

    training: whether this world updates the game's running statistics. first: the number of the first of its worlds,
    by which the seeds of episodes go. `step` does not use its keys: all randomness comes from these seeds. info: reads
    fields of the environments' info; None if none are recorded.
    """

    vector: Any  # of Gymnasium
    _whole: Observation  # with the mask of legal actions, if there is one
    _raw_observation: Arrays  # the last observations before normalisation and clipping; unused if there is neither
    _awaiting_reset: np.ndarray | None  # bool (B,): episodes that have ended, whose worlds the next step only resets
    _returns: np.ndarray  # float64 (B,): discounted returns of the running episodes

    def __init__(self, game: EnvironmentGame, num_worlds: int, key: int, training: bool, first: int = 0) -> None:
        self.game, self.num_worlds, self.key, self.training, self.first = game, num_worlds, key, training, first
        self._has_mask = game.world_reader.mask is not None
        if not self._has_mask:
            self.legal = torch.ones(num_worlds, game.action_space.num_flags, dtype=torch.bool, device=game.device)
        self._all_true = torch.ones(num_worlds, dtype=torch.bool, device=game.device)
        self._all_false = torch.zeros(num_worlds, dtype=torch.bool, device=game.device)
        self.info: InfoFields | StepInfo | None = None
        self._pictures = Pictures()
        self._stored: dict[str, Any] | None = None
        self._floats = tuple(game.floats)
        self._is_plain = game.world_reader.read_whole is not None and not game.transforms_observations
        self._tensor: Callable[[np.ndarray], Tensor] = torch.from_numpy
        if not game.is_on_cpu:
            self._tensor = lambda value: torch.from_numpy(value).to(game.device)

    def __getattr__(self, name: str) -> Any:
        """Make what only open environments have at the first use of any of it."""
        if name in ("observation", "legal", "_whole", "vector"):
            self._open()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def frames_per_second(self) -> float:  # type: ignore[override]
        """The environment's render_fps, or what stands for it."""
        return frames_per_second(self.vector.metadata)

    def render(self) -> np.ndarray:
        try:
            (rendered,) = self.vector.render()
            return self._pictures(rendered)
        except Exception as error:  # every rendering library raises its own exceptions
            message = f"{self.game.config.id!r} cannot be rendered here: {' '.join(str(error).split())}"
            raise ConfigError.at("game.id", message) from error

    def read_info(self, info: InfoFields | StepInfo) -> None:
        self.info = info
        self._ask_for_info()

    def _ask_for_info(self) -> None:
        """Tell the environments which fields are asked for, once they are open.

        A vector environment of the user's own gives all that it has.
        """
        if self.info is not None and "vector" in self.__dict__ and not self.game.config.is_vector:
            self.vector.read_info(list(self.info.paths))

    # ---- a step ----------------------------------------------------------------------------------------

    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        game = self.game
        gym_actions = game.to_gym_actions(action.numpy() if game.is_on_cpu else action.cpu().numpy())
        try:
            raw, rewards, terminated, truncated, infos = self.vector.step(gym_actions.copy())  # it may write into them
        except EnvironmentFailed as failed:
            failed.place = failed.place or self._place(failed.world)  # `_open` has set it if it failed there
            raise
        arrays = game.world_reader.read(raw)
        single = rewards.astype(np.float32)
        are_finite = isfinite(vdot(single, single))  # the fastest look at few numbers; squares may overflow
        for name in self._floats:
            values = arrays[name]
            are_finite = are_finite and isfinite(vdot(values, values))
        if not are_finite:
            self._require_numbers(arrays, single, terminated | truncated)
        reward = self._tensor(single)
        self._episodes.add(gym_actions)
        if self._awaiting_reset is not None or count_nonzero(terminated) or count_nonzero(truncated):
            return self._step_with_ends(arrays, rewards, terminated, truncated, infos)
        if self.info is not None:
            self.info.step(infos, None, None, False)
        self._decide_at({WHOLE: self._tensor(arrays[WHOLE])} if self._is_plain else self._observe(arrays), None)
        transformed = self._transform_rewards(rewards, None, None) if game.transforms_rewards else reward
        all_false = self._all_false
        return Outcome(self.observation, self.legal, transformed, reward, all_false, all_false, self._all_true, ())

    def _step_with_ends(
        self, arrays: Arrays, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: dict[str, Any]
    ) -> Outcome:
        """Finish a step in which episodes end, or only begin because they ended in the step before."""
        reset_only, self._awaiting_reset = self._awaiting_reset, None
        valid = None if reset_only is None else ~reset_only
        if reset_only is not None and valid is not None:
            self._episodes.begin(reset_only)
            if self.game.config.is_vector:  # gymnasium's own give zeros there; others may give anything
                rewards = np.where(valid, rewards, 0)
                terminated, truncated = terminated & valid, truncated & valid
        ended = terminated | truncated
        if self.info is not None:
            self.info.step(infos, valid, ended, self._mode is AutoresetMode.SAME_STEP)
        if count_nonzero(ended):
            last, first = self._end(arrays, ended, infos)
        else:
            last = first = self._observe(arrays)
        self._decide_at(first, self._awaiting_reset)
        observation, legal = self._parted(last, ended)
        reward = self._tensor(rewards.astype(np.float32))
        return Outcome(
            observation=observation,
            legal=legal,
            reward=self._transform_rewards(rewards, reset_only, ended) if self.game.transforms_rewards else reward,
            raw_reward=reward,
            terminated=self._tensor(terminated),
            truncated=self._tensor(truncated & ~terminated),
            valid=self._all_true if valid is None else self._tensor(valid),
            tallies=(),
        )

    def _end(self, arrays: Arrays, ended: np.ndarray, infos: dict[str, Any]) -> tuple[Observation, Observation]:
        """Return the true observations after a step in which episodes have ended, and those of the next decisions."""
        if self._mode is AutoresetMode.NEXT_STEP:
            self._awaiting_reset = ended
            outcome = self._observe(arrays)
            return outcome, outcome
        if self._mode is AutoresetMode.SAME_STEP:
            after_reset, last = arrays, self._last_observations(infos, ended)
            outcome = self._observe({name: _replace(value, ended, last[name]) for name, value in arrays.items()})
        else:
            outcome = self._observe(arrays)
            after_reset = self._reset("the reset after episode {episode}", options={"reset_mask": ended})
        self._episodes.begin(ended)
        return outcome, self._observe_after_reset(outcome, ended, after_reset)

    def _last_observations(self, infos: dict[str, Any], ended: np.ndarray) -> Arrays:
        if "final_obs" not in infos:
            raise EnvironmentFailed(
                "expected the last observation of an episode as info['final_obs'], because the vector environment "
                "resets in the same step, got none; the vectorizations 'sync' and 'async' provide it",
                place=self._place(None),
            )
        final = infos["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:
            last = self.game.world_reader.read_list([final[i] for i in np.flatnonzero(ended)])
        else:
            last = {name: value[ended] for name, value in self.game.world_reader.read(final).items()}
        if (found := self._fault_of_observations(last)) is not None:
            world = int(np.flatnonzero(ended)[found[0]])
            step = self._episodes.num_steps_of(world)
            raise EnvironmentFailed(found[1], world, self._place(world, f"step {step} of episode {{episode}}"))
        return last

    def restart(self, where: Tensor) -> None:
        """Abandon the running episodes of some worlds, bool (B,), and begin the next ones.

        That is not possible in an `entry_point` vector environment.
        """
        mask = where.cpu().numpy()
        after_reset = self._reset("the reset after episode {episode}", options={"reset_mask": mask})
        self._episodes.begin(mask)
        if self._awaiting_reset is not None:
            self._awaiting_reset = self._awaiting_reset & ~mask
        self._decide_at(self._observe_after_reset(self._whole, mask, after_reset), self._awaiting_reset)

    def _reset(self, when: str, **options: Any) -> Arrays:
        """Return the first observations of new episodes. when: what an error says of the moment, see `_place`."""
        try:
            arrays = self.game.world_reader.read(self.vector.reset(**options)[0])
            if (found := self._fault_of_observations(arrays)) is not None:
                raise EnvironmentFailed(found[1], found[0])
        except EnvironmentFailed as failed:
            failed.place = self._place(failed.world, when)
            raise
        return arrays

    def _require_numbers(self, arrays: Arrays, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Raise EnvironmentFailed if a reward or an observation of a step is no number. ended: bool (B,)."""
        config = self.game.config.reward
        found = fault_of_numbers(rewards, "the reward", config.clip is not None and config.normalize is None)
        if found is not None:
            raise EnvironmentFailed(found[1], found[0], self._place(found[0]))
        if (found := self._fault_of_observations(arrays)) is not None:
            world, fault = found
            begins = self._mode is AutoresetMode.SAME_STEP and bool(ended[world])
            place = self._place(world, "the reset after episode {episode}") if begins else self._place(world)
            raise EnvironmentFailed(fault, world, place)

    def _fault_of_observations(self, arrays: Arrays) -> tuple[int, str] | None:
        """Find the first row of an observation that holds what is no number, and say what is wrong; else None."""
        config = self.game.config.observation
        may_be_infinite = config.clip is not None and config.normalize is None
        faults = (fault_of_numbers(arrays[name], text, may_be_infinite) for name, text in self.game.floats.items())
        return next(filter(None, faults), None)

    @property
    def _name(self) -> str:
        return self.game.config.id + ("" if self.training else ", in an evaluation")

    def _place(self, world: int | None, when: str = "step {step} of episode {episode}") -> str:
        """Say which environment fails, and when. world: None if it is not known which one."""
        if world is None:
            return f"{self._name}, all worlds, step {self._episodes.num_steps + 1} since they were made"
        if self._awaiting_reset is not None and self._awaiting_reset[world]:
            when = "the reset after episode {episode}"
        step, episode = self._episodes.num_steps_of(world) + 1, int(self._episodes.numbers[world])
        return f"{self._name}, world {self.first + world}, {when.format(step=step, episode=episode)}"

    # ---- observations and rewards of the player ----------------------------------------------------------

    def _decide_at(self, observation: Observation, may_lack: np.ndarray | None) -> None:
        """Let the next decisions be made at these observations. may_lack: as of `_parted`."""
        self._whole = observation
        self.observation, self.legal = self._parted(observation, may_lack)

    def _parted(self, observation: Observation, may_lack: np.ndarray | None) -> tuple[Observation, Tensor]:
        """Part observations from the legal actions that travel with them.

        may_lack: bool (B,), worlds in which nobody decides now, where no action needs to be legal; None: none.
        """
        if not self._has_mask:
            return observation, self.legal
        legal, space = observation[MASK], self.game.action_space
        assert not isinstance(space, Box)
        lacks = ~torch.stack([flags.any(dim=1) for flags in space.split(legal)]).all(dim=0)
        if lacks.any():
            wrong = lacks.cpu().numpy() & (True if may_lack is None else ~may_lack)
            if wrong.any():
                world, source = int(wrong.argmax()), self.game.config.action_mask
                raise EnvironmentFailed(f"expected a legal action in {source}, got none", world, self._place(world))
            legal = legal | lacks.unsqueeze(1)
        return {name: value for name, value in observation.items() if name != MASK}, legal

    def _observe(self, arrays: Arrays) -> Observation:
        """Return new observations as the player gets them; they update the game's statistics."""
        if not self.game.transforms_observations:
            return self._tensors(arrays)
        self._raw_observation = arrays
        if self.training:
            self.game.update_observation_statistics(arrays)
        return self._tensors(self.game.transform(arrays))

    def _observe_after_reset(self, observation: Observation, where: np.ndarray, arrays: Arrays) -> Observation:
        """Return `observation` with new rows where episodes began.

        The other rows stay as they are, although the statistics have changed since they were normalised.
        """
        game = self.game
        if not game.transforms_observations:
            return self._tensors(arrays)
        self._raw_observation = arrays
        first = {name: value[where] for name, value in arrays.items()}
        if self.training:
            game.update_observation_statistics(first)
        rows, new = self._tensor(np.flatnonzero(where)), self._tensors(game.transform(first))
        return {name: value.index_copy(0, rows, new[name]) for name, value in observation.items()}

    def _tensors(self, arrays: Arrays) -> Observation:
        return {name: self._tensor(value) for name, value in arrays.items()}

    def _transform_rewards(
        self, rewards: np.ndarray, reset_only: np.ndarray | None, ended: np.ndarray | None
    ) -> Tensor:
        """Return the rewards to learn from, normalised and clipped as the config says, as float32.

        reset_only, ended: bool (B,), worlds whose step only began an episode, and those whose episode has ended; None:
        none.
        """
        game = self.game
        if game.config.reward.normalize is not None:
            self._returns = self._returns * game.config.reward.normalize.gamma + rewards
            if self.training:
                game.reward_moments.update(self._returns if reset_only is None else self._returns[~reset_only])
            if ended is not None:
                self._returns[ended] = 0.0
            rewards = game.reward_moments.scaled(rewards, game.config.reward.normalize.eps)
        if game.config.reward.clip is not None:
            rewards = rewards.clip(-game.config.reward.clip, game.config.reward.clip)
        return self._tensor(rewards.astype(np.float32))

    # ---- open, close, store ------------------------------------------------------------------------------

    def _open(self) -> None:
        config, stored = self.game.config, self._stored
        self._raw_observation = {}
        self._awaiting_reset = None
        self._returns = np.zeros(self.num_worlds)
        self._episodes = RunningEpisodes(self.num_worlds)
        try:
            named = (self._name, self.game.step_within_s)
            self.vector = make_vector(config, self.num_worlds, self.key, *named, self.first)
        except EnvironmentFailed as failed:
            failed.place = self._place(failed.world, "when it is made")
            raise
        self._mode = self.vector.metadata["autoreset_mode"]
        self._ask_for_info()
        if stored is None or config.is_vector:
            self._episodes.numbers += 0 if stored is None else int(stored["episodes"].max()) + 1
            seed = episode_seed(self.key, self.first, int(self._episodes.numbers[0]))
            self._decide_at(self._observe(self._reset("its first reset", seed=seed)), None)
            if stored is not None:
                self._warn(
                    np.ones(self.num_worlds, dtype=bool), "is a vector environment of its own, which cannot be replayed"
                )
        else:
            self._replay(stored)
        self._stored = None

    def _replay(self, stored: dict[str, Any]) -> None:
        """Replay the running episodes up to where they were."""
        self._episodes.load_state_dict(stored)
        awaiting_reset, self._returns = (stored[name].cpu().numpy().copy() for name in ("awaiting_reset", "returns"))
        self.exact = stored["exact"]
        try:
            self.vector.set_attr("replay", self._episodes.replays())
            raw, _ = self.vector.reset()
            have_ended = np.array(self.vector.get_attr("has_ended"))
        except EnvironmentFailed as failed:
            failed.place = self._place(failed.world, "the replay up to step {step} of episode {episode}")
            raise
        arrays = self.game.world_reader.read(raw)
        before = {name: value.cpu().numpy() for name, value in stored["raw_observation"].items()}
        differs = awaiting_reset != have_ended
        for name, value in arrays.items():
            is_same = (value == before[name]) | ((value != value) & (before[name] != before[name]))  # nan is the same
            differs |= ~is_same.reshape(self.num_worlds, -1).all(axis=1)
        self._raw_observation = arrays
        self._awaiting_reset = awaiting_reset if awaiting_reset.any() else None
        whole = {name: value.to(self.game.device) for name, value in stored["observation"].items()}
        self._decide_at(whole, self._awaiting_reset)
        if differs.any():
            self._warn(differs, "did not give the same observations when it was replayed from its seed")
            self._returns[differs] = 0.0
            self.restart(torch.from_numpy(differs))

    def _warn(self, which: np.ndarray, why: str) -> None:
        self.exact = False
        warnings.warn(
            f"{self.game.config.id} {why}: {which.sum()} of {self.num_worlds} worlds begin a new episode, and the run "
            "does not go on to the same bits",
            stacklevel=2,
        )

    def state_dict(self) -> dict[str, Any]:
        if self._stored is not None:
            return self._stored
        observation = {name: value.cpu() for name, value in self._whole.items()}
        waits = np.zeros(self.num_worlds, dtype=bool) if self._awaiting_reset is None else self._awaiting_reset
        raw = {name: torch.tensor(value) for name, value in self._raw_observation.items()}
        return {
            **self._episodes.state_dict(),
            "awaiting_reset": torch.tensor(waits),
            "returns": torch.tensor(self._returns),
            "observation": observation,
            "raw_observation": raw if self.game.transforms_observations else observation,
            "exact": self.exact,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._close_vector()
        self._stored, self.exact = state, state["exact"]

    def close(self) -> None:
        """Close the environments and end their processes. The next use opens them again, where they were."""
        if "observation" in self.__dict__:
            self._stored = self.state_dict()
        self._close_vector()

    def _close_vector(self) -> None:
        vector = self.__dict__.pop("vector", None)
        for name in ("observation", "_whole", *(["legal"] if self._has_mask else [])):
            self.__dict__.pop(name, None)
        if vector is not None:
            close_vector(vector)


def _replace(values: np.ndarray, where: np.ndarray, rows: np.ndarray) -> np.ndarray:
    new = values.copy()
    new[where] = rows
    return new
