"""GymnasiumWorld: environments of Gymnasium that step together, as a World.

Letters: B worlds, T steps.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector.vector_env import AutoresetMode
from numpy import count_nonzero
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem
from palestra.games.game import Observation
from palestra.games.gymnasium.environments import autoreset_mode, close_vector, make_vector
from palestra.games.gymnasium.info import InfoFields
from palestra.games.gymnasium.seeding import episode_seed
from palestra.games.gymnasium.spaces import WHOLE, Arrays
from palestra.games.world import EnvironmentFailed, EnvironmentWorld, Outcome
from palestra.recording.aggregates import Aggregates

if TYPE_CHECKING:
    from palestra.games.gymnasium.game import GymnasiumGame


FRAMES_PER_SECOND = 30  # where the environment does not say


class GymnasiumWorld(EnvironmentWorld):
    """A vector environment. Opened at its first use; may be closed at any time, and goes on at its next.

    Whatever the autoreset mode, an outcome holds the true last observation of an episode that ends, a step that only
    begins an episode is not `valid` (its action is ignored, its reward is 0), and where an environment says both
    terminated and truncated, it has terminated.

    What is stored are the running episodes' numbers and actions so far: they are played again from their seeds. Where
    that gives anything else than before, by a bit, the world warns, begins that episode anew, and `exact` is False
    from then on; so it is for every environment that is its own vector environment, which keeps its state to itself.

    training: whether the game's running statistics learn from this world. keys of `step` are not used: what chance
    there is comes from the seeds of the episodes. info: what gathers fields of the environments' info, if anything.
    """

    _vector: Any
    _mode: AutoresetMode
    _seen: Arrays  # the last observations before they are normalised and cut; of no use where they are not
    _over: np.ndarray | None  # bool (B,): episodes that have ended, where the next step only begins new ones
    _episodes: np.ndarray  # int64 (B,): number of the running episode
    _actions: np.ndarray  # (room, B, ...): those of the last `_num_remembered` steps
    _num_remembered: int
    _num_forgotten: int  # steps before them
    _starts: np.ndarray  # int64 (B,): where the running episodes begin among them
    _returns: np.ndarray  # float64 (B,): discounted returns of the running episodes

    def __init__(self, game: "GymnasiumGame", num_worlds: int, key: int, training: bool) -> None:
        self.game, self.num_worlds, self.key, self.training = game, num_worlds, key, training
        self.exact = True
        self.legal = torch.ones(num_worlds, game.action_space.num_flags, dtype=torch.bool, device=game.device)
        self._always = torch.ones(num_worlds, dtype=torch.bool, device=game.device)
        self._never = torch.zeros(num_worlds, dtype=torch.bool, device=game.device)
        self.info: InfoFields | None = None
        self._stored: dict[str, Any] | None = None
        self._read_plain = game.reader.read_whole if game.plain_observations else None
        self._tensor: Callable[[np.ndarray], Tensor] = torch.from_numpy if game.is_on_cpu else self._on_device

    def _on_device(self, value: np.ndarray) -> Tensor:
        return torch.from_numpy(value).to(self.game.device)

    def __getattr__(self, name: str) -> Any:
        """Both come into being together, at the first use of either."""
        if name in ("observation", "_vector"):
            self._open()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def frames_per_second(self) -> float:  # type: ignore[override]
        """As the environment says, or FRAMES_PER_SECOND."""
        return float(self.vector.metadata.get("render_fps", FRAMES_PER_SECOND))

    def picture(self) -> np.ndarray:
        try:
            (frame,) = self.vector.render()
        except Exception as error:  # every library of drawing has its own
            message = f"{self.game.config.id!r} cannot be drawn here: {error}"
            raise ConfigError([ConfigErrorItem("game.id", message)]) from error
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
        return np.ascontiguousarray(frame[:height, :width, :3])

    def gather_info(self, names: Sequence[str], gathered: Aggregates) -> InfoFields:
        self.info = InfoFields(names, self.num_worlds, gathered)
        return self.info

    @property
    def vector(self) -> Any:
        """Gymnasium's own environments, to look at."""
        return self._vector

    # ---- a step ----------------------------------------------------------------------------------------

    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        game = self.game
        acted = game.to_gym_actions(action.numpy() if game.is_on_cpu else action.cpu().numpy())
        try:
            raw, rewards, terminated, truncated, infos = self._vector.step(acted)
        except EnvironmentFailed as failed:
            failed.place = failed.place or self._place(failed.world)  # its own where the world was opened just now
            raise
        if self._num_remembered == len(self._actions):
            self._make_room(acted)
        self._actions[self._num_remembered] = acted
        self._num_remembered += 1
        rewards = rewards.astype(np.float32)
        if self._over is not None or count_nonzero(terminated) or count_nonzero(truncated):
            return self._step_with_ends(raw, rewards, terminated, truncated, infos)
        if self.info is not None:
            self.info.step(infos, None, None, False)
        if self._read_plain is None:
            observation = self._look(game.reader.read(raw))
        else:
            observation = {WHOLE: self._tensor(self._read_plain(raw))}
        self.observation = observation
        reward = self._tensor(rewards)
        learned = reward if game.plain_rewards else self._learned(rewards, None, None)
        never = self._never
        return Outcome(observation, self.legal, learned, reward, never, never, self._always, ())

    def _step_with_ends(
        self, raw: Any, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: dict[str, Any]
    ) -> Outcome:
        """The rest of a step in which episodes end, or only begin because they ended in the step before."""
        seen = self.game.reader.read(raw)
        began, self._over = self._over, None
        valid = None if began is None else ~began
        if began is not None:
            self._begin(began)
            if self.game.config.is_vector:  # gymnasium's own give nothing there; others may give anything
                rewards *= valid
                terminated, truncated = terminated & valid, truncated & valid
        ended = terminated | truncated
        if self.info is not None:
            self.info.step(infos, valid, ended, self._mode is AutoresetMode.SAME_STEP)
        if count_nonzero(ended):
            observation, self.observation = self._end(seen, ended, infos)
        else:
            observation = self.observation = self._look(seen)
        reward = self._tensor(rewards)
        return Outcome(
            observation=observation,
            legal=self.legal,
            reward=reward if self.game.plain_rewards else self._learned(rewards, began, ended),
            raw_reward=reward,
            terminated=self._tensor(terminated),
            truncated=self._tensor(truncated & ~terminated),
            valid=self._always if valid is None else self._tensor(valid),
            tallies=(),
        )

    def _end(self, seen: Arrays, ended: np.ndarray, infos: dict[str, Any]) -> tuple[Observation, Observation]:
        """The true observations after a step in which episodes have ended, and those of the next decisions."""
        if self._mode is AutoresetMode.NEXT_STEP:
            self._over = ended
            outcome = self._look(seen)
            return outcome, outcome
        if self._mode is AutoresetMode.SAME_STEP:
            begun, last = seen, self._last_observations(infos, ended)
            outcome = self._look({name: _replaced(value, ended, last[name]) for name, value in seen.items()})
        else:
            outcome = self._look(seen)
            begun = self._reset("the reset after episode {episode}", options={"reset_mask": ended})
        self._begin(ended)
        return outcome, self._look_again(outcome, ended, begun)

    def _last_observations(self, infos: dict[str, Any], ended: np.ndarray) -> Arrays:
        if "final_obs" not in infos:
            raise EnvironmentFailed(
                "it begins anew in the same step, but does not give the last observation of the episode that has "
                "ended as info['final_obs']; take the vectorization 'sync' or 'async'",
                place=self._place(None),
            )
        final = infos["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:
            return self.game.reader.read_list([final[i] for i in np.flatnonzero(ended)])
        return {name: value[ended] for name, value in self.game.reader.read(final).items()}

    def restart(self, cut: Tensor) -> None:
        """Leave the running episodes of some worlds, bool (B,), and begin the next ones; not for an environment's own
        vector environment."""
        mask = cut.cpu().numpy()
        begun = self._reset("the reset after episode {episode}", options={"reset_mask": mask})
        self._begin(mask)
        if self._over is not None:
            self._over = self._over & ~mask
        self.observation = self._look_again(self.observation, mask, begun)

    def _reset(self, when: str, **options: Any) -> Arrays:
        """The observations with which new episodes begin. when: as of `_place`."""
        try:
            return self.game.reader.read(self._vector.reset(**options)[0])
        except EnvironmentFailed as failed:
            failed.place = self._place(failed.world, when)
            raise

    def _place(self, world: int | None, when: str = "step {step} of episode {episode}") -> str:
        """Which environment fails, and when; None: that is not known."""
        where = self.game.config.id + ("" if self.training else ", in an evaluation")
        if world is None:
            return f"{where}, all worlds, step {self._num_forgotten + self._num_remembered + 1} since they were made"
        if self._over is not None and self._over[world]:
            when = "the reset after episode {episode}"
        step = self._num_remembered - int(self._starts[world]) + 1
        return f"{where}, world {world}, {when.format(step=step, episode=int(self._episodes[world]))}"

    def _begin(self, which: np.ndarray) -> None:
        """Count the episodes that begin after what was remembered."""
        self._episodes += which
        np.putmask(self._starts, which, self._num_remembered)

    # ---- what the player sees and earns ------------------------------------------------------------------

    def _look(self, seen: Arrays) -> Observation:
        """What the player sees of new observations; the game's statistics learn from them."""
        if self.game.plain_observations:
            return self._tensors(seen)
        self._seen = seen
        if self.training:
            self.game.learn_observations(seen)
        return self._tensors(self.game.transform(seen))

    def _look_again(self, observation: Observation, where: np.ndarray, seen: Arrays) -> Observation:
        """The same where new episodes began in some worlds. The other rows stay as they are in `observation`, though
        the statistics have learned."""
        game = self.game
        if game.plain_observations:
            return self._tensors(seen)
        self._seen = seen
        begun = {name: value[where] for name, value in seen.items()}
        if self.training:
            game.learn_observations(begun)
        rows, new = self._tensor(np.flatnonzero(where)), self._tensors(game.transform(begun))
        return {name: value.index_copy(0, rows, new[name]) for name, value in observation.items()}

    def _tensors(self, arrays: Arrays) -> Observation:
        to_tensor = self._tensor
        return {name: to_tensor(value) for name, value in arrays.items()}

    def _learned(self, rewards: np.ndarray, began: np.ndarray | None, ended: np.ndarray | None) -> Tensor:
        """The rewards to learn from. The discounted returns so far go on, and begin anew after an end."""
        game = self.game
        if game.config.reward.normalize is not None:
            self._returns = self._returns * game.config.reward.normalize.gamma + rewards
            if self.training:
                game.learn_returns(self._returns if began is None else self._returns[~began])
            if ended is not None:
                self._returns[ended] = 0.0
            rewards = game.reward_moments.scaled(rewards, game.config.reward.normalize.eps)
        if game.config.reward.clip is not None:
            rewards = rewards.clip(-game.config.reward.clip, game.config.reward.clip)
        return self._tensor(rewards)

    # ---- the actions of the running episodes -------------------------------------------------------------

    def _make_room(self, acted: np.ndarray) -> None:
        """Forget what no running episode needs, and double the room if much is left."""
        first = int(self._starts.min())
        kept = self._actions[first : self._num_remembered]
        room = max(2 * len(kept), len(self._actions), 256)
        self._actions = np.empty((room, *acted.shape), dtype=acted.dtype)
        self._actions[: len(kept)] = kept.reshape(len(kept), *acted.shape)
        self._starts -= first
        self._num_forgotten += first
        self._num_remembered = len(kept)

    # ---- open, close, store ------------------------------------------------------------------------------

    def _open(self) -> None:
        config, stored = self.game.config, self._stored
        self._seen = {}
        self._over = None
        self._actions = np.empty((0, self.num_worlds))
        self._num_remembered = self._num_forgotten = 0
        self._returns = np.zeros(self.num_worlds)
        self._starts = np.zeros(self.num_worlds, dtype=np.int64)
        self._episodes = np.zeros(self.num_worlds, dtype=np.int64)
        try:
            self._vector = vector = make_vector(config, self.num_worlds, self.key)
        except EnvironmentFailed as failed:
            failed.place = self._place(failed.world, "when it is made")
            raise
        self._mode = autoreset_mode(vector)
        if stored is None or config.is_vector:
            self._episodes += 0 if stored is None else int(stored["episodes"].max()) + 1
            seed = episode_seed(self.key, 0, int(self._episodes[0]))
            self.observation = self._look(self._reset("its first reset", seed=seed))
            if stored is not None:
                self._warn(
                    np.ones(self.num_worlds, dtype=bool), "is its own vector environment, which cannot be replayed"
                )
        else:
            self._replay(stored)
        self._stored = None

    def _replay(self, stored: dict[str, Any]) -> None:
        """Play the running episodes again up to where they were."""
        self._episodes, self._starts, actions, over, self._returns = (
            stored[name].cpu().numpy().copy() for name in ("episodes", "starts", "actions", "over", "returns")
        )
        self._actions, self._num_remembered = actions, len(actions)
        self.exact = stored["exact"]
        replays = [(int(self._episodes[i]), actions[self._starts[i] :, i]) for i in range(self.num_worlds)]
        try:
            self._vector.set_attr("replay", replays)
            raw, _ = self._vector.reset()
            are_over = np.array(self._vector.get_attr("is_over"))
        except EnvironmentFailed as failed:
            failed.place = self._place(failed.world, "played again up to step {step} of episode {episode}")
            raise
        seen = self.game.reader.read(raw)
        before = {name: value.cpu().numpy() for name, value in stored["seen"].items()}
        differs = over != are_over
        for name, value in seen.items():
            differs |= (value != before[name]).reshape(self.num_worlds, -1).any(axis=1)
        self._seen = seen
        self._over = over if over.any() else None
        self.observation = {name: value.to(self.game.device) for name, value in stored["observation"].items()}
        if differs.any():
            self._warn(differs, "was played again from its seed and did not give the same observations")
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
        observation = {name: value.cpu() for name, value in self.observation.items()}
        first = int(self._starts.min())
        over = np.zeros(self.num_worlds, dtype=bool) if self._over is None else self._over
        arrays = {
            "episodes": self._episodes,
            "starts": self._starts - first,
            "actions": self._actions[first : self._num_remembered],
            "over": over,
            "returns": self._returns,
        }
        plain = self.game.plain_observations
        return {
            **{name: torch.tensor(value) for name, value in arrays.items()},
            "observation": observation,
            "seen": observation if plain else {name: torch.tensor(value) for name, value in self._seen.items()},
            "exact": self.exact,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shut()
        self._stored = state

    def close(self) -> None:
        """Let go of the environments and their processes. The next use opens them again, where they were."""
        if "observation" in self.__dict__:
            self._stored = self.state_dict()
        self._shut()

    def _shut(self) -> None:
        vector = self.__dict__.pop("_vector", None)
        self.__dict__.pop("observation", None)
        if vector is not None:
            close_vector(vector)


def _replaced(values: np.ndarray, where: np.ndarray, rows: np.ndarray) -> np.ndarray:
    new = values.copy()
    new[where] = rows
    return new
