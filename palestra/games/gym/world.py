"""GymnasiumWorld: environments of Gymnasium that step together, as a World.

Letters: B worlds, T steps.
"""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector.vector_env import AutoresetMode
from torch import Tensor

from palestra.games.game import Observation
from palestra.games.gym.environments import autoreset_mode, close_vector, make_vector
from palestra.games.gym.seeding import episode_seed
from palestra.games.gym.spaces import Arrays
from palestra.games.world import Outcome, World

if TYPE_CHECKING:
    from palestra.games.gym.game import GymnasiumGame


class GymnasiumWorld(World):
    """A vector environment. Opened at its first use; may be closed at any time, and goes on at its next.

    Whatever the autoreset mode, an outcome holds the true last observation of an episode that ends, a step that only
    begins an episode is not `valid` (its action is ignored, its reward is 0), and where an environment says both
    terminated and truncated, it has terminated.

    What is stored are the running episodes' numbers and actions so far: they are played again from their seeds. Where
    that gives anything else than before, by a bit, the world warns, begins that episode anew, and `exact` is False
    from then on; so it is for every environment that is its own vector environment, which keeps its state to itself.

    training: whether the game's running statistics learn from this world. keys of `step` are not used: what chance
    there is comes from the seeds of the episodes.
    """

    _vector: Any

    def __init__(self, game: "GymnasiumGame", num_worlds: int, key: int, training: bool) -> None:
        self.game, self.num_worlds, self.key, self.training = game, num_worlds, key, training
        self.exact = True
        self.legal = torch.ones(num_worlds, game.action_space.num_flags, dtype=torch.bool, device=game.device)
        self._always = torch.ones(num_worlds, dtype=torch.bool, device=game.device)
        self._never = torch.zeros(num_worlds, dtype=torch.bool, device=game.device)
        self._stored: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        """Both come into being together, at the first use of either."""
        if name in ("observation", "_vector"):
            self._open()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # ---- a step ----------------------------------------------------------------------------------------

    def step(self, action: Tensor, keys: Tensor) -> Outcome:
        game = self.game
        acted = game.to_gym_actions(action.numpy() if game.is_on_cpu else action.cpu().numpy())
        raw, rewards, terminated, truncated, infos = self._vector.step(acted)
        began, self._over = self._over, None
        self._remember(acted)
        rewards = rewards.astype(np.float32)
        if began is not None:
            rewards[began] = 0.0
            terminated, truncated = terminated & ~began, truncated & ~began
            self._begin(began)
        seen = game.reader.read(raw)
        has_ended = np.count_nonzero(terminated) or np.count_nonzero(truncated)
        if has_ended:
            truncated = truncated & ~terminated
            outcome, self.observation = self._end(seen, terminated | truncated, infos)
        else:
            outcome = self.observation = self._look(seen)
        learned = rewards if game.plain_rewards else self._transformed(rewards, began, terminated | truncated)
        reward = self._tensor(rewards)
        return Outcome(
            observation=outcome,
            legal=self.legal,
            reward=reward if learned is rewards else self._tensor(learned),
            raw_reward=reward,
            terminated=self._tensor(terminated) if has_ended else self._never,
            truncated=self._tensor(truncated) if has_ended else self._never,
            valid=self._always if began is None else self._tensor(~began),
            tallies=(),
        )

    def _end(self, seen: Arrays, ended: np.ndarray, infos: dict[str, Any]) -> tuple[Observation, Observation]:
        """The true observations after a step in which episodes have ended, and those of the next decisions."""
        reader = self.game.reader
        if self._mode is AutoresetMode.NEXT_STEP:
            self._over = ended
            outcome = self._look(seen)
            return outcome, outcome
        if self._mode is AutoresetMode.SAME_STEP:
            begun = {name: value[ended] for name, value in seen.items()}
            last = self._last_observations(infos, ended)
            seen = {name: _replaced(value, ended, last[name]) for name, value in seen.items()}
            outcome = self._look(seen)
        else:
            outcome = self._look(seen)
            raw, _ = self._vector.reset(options={"reset_mask": ended})
            begun = {name: value[ended] for name, value in reader.read(raw).items()}
        self._begin(ended)
        return outcome, self._joined(outcome, ended, begun)

    def _last_observations(self, infos: dict[str, Any], ended: np.ndarray) -> Arrays:
        if "final_obs" not in infos:
            raise RuntimeError(
                f"{self.game.config.id} begins anew in the same step, but does not give the last observation of the "
                "episode that has ended as info['final_obs']; take the vectorization 'sync' or 'async'"
            )
        final = infos["final_obs"]
        if isinstance(final, np.ndarray) and final.dtype == object:
            return self.game.reader.read_list([final[i] for i in np.flatnonzero(ended)])
        return {name: value[ended] for name, value in self.game.reader.read(final).items()}

    def restart(self, cut: Tensor) -> None:
        """Leave the running episodes of some worlds, bool (B,), and begin the next ones; not for an environment's own
        vector environment."""
        mask = cut.cpu().numpy()
        raw, _ = self._vector.reset(options={"reset_mask": mask})
        self._begin(mask)
        if self._over is not None:
            self._over = self._over & ~mask
        begun = {name: value[mask] for name, value in self.game.reader.read(raw).items()}
        self.observation = self._joined(self.observation, mask, begun)

    def _begin(self, which: np.ndarray) -> None:
        """Count the episodes that begin after what was remembered."""
        self._episodes[which] += 1
        self._starts[which] = self._num_remembered

    # ---- what the player sees and earns ------------------------------------------------------------------

    def _look(self, seen: Arrays) -> Observation:
        """What the player sees of new observations; the game's statistics learn from them."""
        if self.game.plain_observations:
            return {name: self._tensor(value) for name, value in seen.items()}
        self._seen = seen
        if self.training:
            self.game.learn_observations(seen)
        return {name: self._tensor(value) for name, value in self.game.transform(seen).items()}

    def _joined(self, observation: Observation, where: np.ndarray, begun: Arrays) -> Observation:
        """An observation with the beginnings of new episodes at their places; the other rows stay as they are."""
        game = self.game
        if not game.plain_observations:
            self._seen = {name: _replaced(value, where, begun[name]) for name, value in self._seen.items()}
            if self.training:
                game.learn_observations(begun)
            begun = game.transform(begun)
        rows = self._tensor(np.flatnonzero(where))
        return {name: value.index_copy(0, rows, self._tensor(begun[name])) for name, value in observation.items()}

    def _transformed(self, rewards: np.ndarray, began: np.ndarray | None, ended: np.ndarray) -> np.ndarray:
        """The rewards to learn from. The discounted returns so far go on, and begin anew after an end."""
        game = self.game
        learned = rewards
        if game.config.reward.normalize is not None:
            self._returns = self._returns * game.config.reward.normalize.gamma + rewards
            if self.training:
                game.learn_returns(self._returns if began is None else self._returns[~began])
            self._returns[ended] = 0.0
            learned = game.reward_moments.scaled(rewards, game.config.reward.normalize.eps)
        if game.config.reward.clip is not None:
            learned = learned.clip(-game.config.reward.clip, game.config.reward.clip)
        return learned

    def _tensor(self, value: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(value)
        return tensor if self.game.is_on_cpu else tensor.to(self.game.device)

    # ---- the actions of the running episodes -------------------------------------------------------------

    def _remember(self, acted: np.ndarray) -> None:
        if self._num_remembered == len(self._actions):
            self._make_room(acted)
        self._actions[self._num_remembered] = acted
        self._num_remembered += 1

    def _make_room(self, acted: np.ndarray) -> None:
        """Forget what no running episode needs, and double the room if much is left."""
        first = int(self._starts.min())
        kept = self._actions[first : self._num_remembered]
        room = max(2 * len(kept), len(self._actions), 256)
        self._actions = np.empty((room, *acted.shape), dtype=acted.dtype)
        self._actions[: len(kept)] = kept.reshape(len(kept), *acted.shape)
        self._starts -= first
        self._num_remembered = len(kept)

    # ---- open, close, store ------------------------------------------------------------------------------

    def _open(self) -> None:
        config, stored = self.game.config, self._stored
        self._vector = vector = make_vector(config, self.num_worlds, self.key)
        self._mode = autoreset_mode(vector)
        self._seen: Arrays = {}
        self._over: np.ndarray | None = None
        self._actions = np.empty((0,))
        self._num_remembered = 0
        self._returns = np.zeros(self.num_worlds)
        self._starts = np.zeros(self.num_worlds, dtype=np.int64)
        self._episodes = np.zeros(self.num_worlds, dtype=np.int64)
        self._stored = None
        if stored is None or config.is_vector:
            self._episodes += 0 if stored is None else int(stored["episodes"].max()) + 1
            raw, _ = vector.reset(seed=episode_seed(self.key, 0, int(self._episodes[0])))
            self.observation = self._look(self.game.reader.read(raw))
            if stored is not None:
                self._warn(
                    np.ones(self.num_worlds, dtype=bool), "is its own vector environment, which cannot be replayed"
                )
        else:
            self._replay(stored)

    def _replay(self, stored: dict[str, Any]) -> None:
        """Play the running episodes again up to where they were."""
        self._episodes, self._starts, actions, over, self._returns = (
            stored[name].cpu().numpy().copy() for name in ("episodes", "starts", "actions", "over", "returns")
        )
        self._actions, self._num_remembered = actions, len(actions)
        self.exact = stored["exact"]
        replays = [(int(self._episodes[i]), actions[self._starts[i] :, i]) for i in range(self.num_worlds)]
        self._vector.set_attr("replay", replays)
        raw, _ = self._vector.reset()
        seen = self.game.reader.read(raw)
        before = {name: value.cpu().numpy() for name, value in stored["seen"].items()}
        differs = over != np.array(self._vector.get_attr("is_over"))
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
