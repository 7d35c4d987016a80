"""A role of a tensor game as a Gymnasium environment, with players of your choice in the other roles.

Letters: B worlds, R roles, A flags of the action space.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from palestra.config import ConfigError
from palestra.games import GameConfig, make_game
from palestra.games.game import IllegalMove, State, TensorGame, choose_worlds, cleared, is_legal, memory_after
from palestra.games.policy import Memory, Policy
from palestra.games.spaces import ActionSpace, Box, Discrete, MultiDiscrete, Space
from palestra.players import make_script, script_error
from palestra.players.player import Player
from palestra.randomness import base_key, fold

Array = np.ndarray[Any, Any]
Illegal = Literal["raise", "replace"]
MAX_SKIPPED_GAMES = 1000  # games in a row that are over before the role's first decision


class SeatedWorlds:
    """B worlds of a game from the seat of one role: each is played on until the role decides, or its game is over.

    reward: float32 (B,), the sum of the role's rewards since its last decision. terminated, truncated: bool (B,).
    place: int64 (B,), the number of the next move in its round.
    """

    def __init__(self, game: TensorGame, role: str, others: Mapping[str, Policy], num_worlds: int) -> None:
        self.game, self.role, self.others = game, role, others
        self.column, self.space = game.roles.index(role), game.action_spaces[role]
        self.is_mine = torch.tensor([role in move for move in game.moves], device=game.device)
        zeros = torch.zeros(num_worlds, dtype=torch.int64, device=game.device)
        self.keys, self.counters, self.place = zeros, zeros, zeros
        self.reward = zeros.to(torch.float32)
        self.terminated = self.truncated = zeros.bool()
        self.state: State = game.reset(zeros)
        self.memory: dict[str, Memory] = {}

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Seed the randomness of worlds; None leaves that of a world as it is."""
        keys = [
            int(old) if seed is None else base_key(int(seed), f"gymnasium/{self.role}")
            for old, seed in zip(self.keys, seeds, strict=True)
        ]
        fresh = torch.tensor([seed is not None for seed in seeds], device=self.game.device)
        self.keys = torch.tensor(keys, device=self.game.device)
        self.counters = self.counters.masked_fill(fresh, 0)

    def observe(self) -> dict[str, Array]:
        observation = self.game.view(self.state, self.role, "observation")
        return {name: value.cpu().numpy() for name, value in observation.items()}

    def legal(self) -> Tensor:
        return self.game.legal(self.state, self.role)

    @torch.no_grad()
    def begin(self, chosen: Tensor) -> None:
        """Begin new games in the worlds `chosen`, bool (B,), and play up to the role's first decision.

        Games that are over before it are skipped.
        """
        for _ in range(MAX_SKIPPED_GAMES):
            fresh = self.game.reset(self._new_keys(chosen))
            self.state = {name: choose_worlds(chosen, fresh[name], value) for name, value in self.state.items()}
            self.place = self.place.masked_fill(chosen, 0)
            self.terminated, self.truncated = self.terminated & ~chosen, self.truncated & ~chosen
            self.memory = {role: cleared(memory, chosen) for role, memory in self.memory.items()}
            self._play_to_decision(chosen)
            self.reward = self.reward.masked_fill(chosen, 0.0)
            if not (chosen := chosen & (self.terminated | self.truncated)).any():
                return
        raise RuntimeError(
            f"expected a game in which {self.role!r} decides, got {MAX_SKIPPED_GAMES} in which it never does"
        )

    @torch.no_grad()
    def step(self, action: Tensor, chosen: Tensor, illegal: Illegal) -> None:
        """Play the role's action in the worlds `chosen`, bool (B,), and play on to its next decision.

        A truncated world is played on, too: its observation is the one at which the role would have decided next.
        illegal: `raise` IllegalMove, or `replace` an illegal action by a random legal one (a number outside its bounds
        by the nearest bound).
        """
        if (wrong := chosen & ~is_legal(action, self.space, self.legal())).any():
            if illegal == "raise":
                world = int(wrong.nonzero()[0, 0])
                got = action[world].tolist()
                raise IllegalMove(f"expected a legal action of {self.role!r} in world {world}, got {got}")
            keys = self._new_keys(wrong)
            if isinstance(self.space, Box):
                legal = action.clamp(action.new_tensor(self.space.low), action.new_tensor(self.space.high))
            else:
                legal = self.space.draw(keys, self.legal())
            action = choose_worlds(wrong, legal, action)
        self.reward = self.reward.masked_fill(chosen, 0.0)
        self._play_moves(chosen, action)
        self._play_to_decision(chosen)

    def _play_to_decision(self, playing: Tensor) -> None:
        while True:
            decides = self.game.deciding(self.state)[:, self.column] & self.is_mine[self.place]
            if not (playing := playing & ~self.terminated & ~decides).any():
                return
            self._play_moves(playing, None)

    def _play_moves(self, playing: Tensor, action: Tensor | None) -> None:
        """Play one move in every world of `playing`, bool (B,). Worlds may be at different moves of a round."""
        place = self.place
        for index, move in enumerate(self.game.moves):
            if (movers := playing & (place == index)).any():
                self._play_move(index, move, movers, action)

    def _play_move(self, index: int, move: tuple[str, ...], movers: Tensor, action: Tensor | None) -> None:
        game, keys = self.game, self._new_keys(movers)
        actions = {}
        for role in move:
            if role == self.role:
                idle = torch.zeros((len(keys), *self.space.shape), dtype=self.space.dtype, device=game.device)
                actions[role] = idle if action is None else action
                continue
            policy = self.others[role]
            view = game.view(self.state, role, policy.observes)
            memory = self.memory.get(role, {})
            decision = policy.act(view, game.legal(self.state, role), keys + game.roles.index(role) + 1, memory)
            actions[role] = decision.action
            decides = movers & game.deciding(self.state)[:, game.roles.index(role)]
            self.memory[role] = memory_after(decides, decision.memory, memory)
        state, rewards, terminated, truncated = game.transition(self.state, actions, keys + len(game.roles) + 1)
        self.state = {name: choose_worlds(movers, value, self.state[name]) for name, value in state.items()}
        self.place = torch.where(movers, (index + 1) % len(game.moves), self.place)
        self.reward = self.reward + torch.where(movers, rewards[:, self.column], 0.0)
        self.terminated = self.terminated | (movers & terminated[:, self.column])
        self.truncated = (self.truncated | (movers & truncated)) & ~self.terminated

    def _new_keys(self, chosen: Tensor) -> Tensor:
        """Return keys that were never used, int64 (B,); those of the worlds `chosen` count as used from now on."""
        keys = fold(self.keys, self.counters)
        self.counters = self.counters + chosen
        return keys


class RoleVectorEnv(VectorEnv[Any, Any, Any]):
    """A gymnasium.vector.VectorEnv with B worlds, made by `as_gymnasium_vector`.

    With AutoresetMode.NEXT_STEP, the next step resets a world that has ended, and ignores the action there; with
    DISABLED the caller resets it: `reset(options={"reset_mask": bool (B,)})`. World i of seed s plays as the
    environment of one world does with seed s + i.
    """

    def __init__(self, worlds: SeatedWorlds, seed: int, illegal: Illegal, autoreset_mode: AutoresetMode) -> None:
        if autoreset_mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
            raise ValueError(f"expected autoreset_mode NEXT_STEP or DISABLED, got {autoreset_mode}")
        self.worlds, self.illegal = worlds, illegal
        self.num_envs = len(worlds.keys)
        self.metadata = {"render_modes": [], "autoreset_mode": autoreset_mode}
        self.single_observation_space = observation_space(worlds.game.spaces[worlds.role])
        self.single_action_space = action_space(worlds.space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.all_worlds = torch.ones(self.num_envs, dtype=torch.bool, device=worlds.game.device)
        self.ended = self.all_worlds
        worlds.seed(range(seed, seed + self.num_envs))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new games, in all worlds or in those of options["reset_mask"].

        Without a seed, the streams of random numbers go on.
        """
        super().reset(seed=seed if isinstance(seed, int) else None)
        chosen = self._reset_mask(options or {})
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            if len(seeds) != self.num_envs:
                raise ValueError(f"expected {self.num_envs} seeds, one per world, got {len(seeds)}")
            self.worlds.seed([number if on else None for number, on in zip(seeds, chosen.tolist(), strict=True)])
        self.worlds.begin(chosen)
        self.ended = self.ended & ~chosen
        return self._observation(), self._infos()

    def _reset_mask(self, options: dict[str, Any]) -> Tensor:
        if "reset_mask" not in options:
            return self.all_worlds
        mask = options["reset_mask"]
        if not (isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,) and mask.dtype == np.bool_):
            raise ValueError(f"expected a numpy array of {self.num_envs} bools as reset_mask, got {mask!r}")
        return torch.from_numpy(mask).to(self.all_worlds.device)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Play the role's actions, and play on until it decides again. Raises IllegalMove if `illegal` is "raise"."""
        worlds, ended = self.worlds, self.ended
        if ended.any() and self.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
            raise gymnasium.error.ResetNeeded(
                f"expected a reset of worlds {ended.nonzero().flatten().tolist()}, whose games are over or not begun"
            )
        action = torch.as_tensor(np.asarray(actions), dtype=worlds.space.dtype, device=worlds.game.device)
        worlds.step(action.reshape(self.num_envs, *worlds.space.shape), ~ended, self.illegal)
        if ended.any():
            worlds.begin(ended)
        self.ended = worlds.terminated | worlds.truncated
        results = (worlds.reward.to(torch.float64), worlds.terminated, worlds.truncated)
        reward, terminated, truncated = (value.cpu().numpy().copy() for value in results)
        return self._observation(), reward, terminated, truncated, self._infos()

    def _observation(self) -> Any:
        observation = self.worlds.observe()
        return next(iter(observation.values())) if len(observation) == 1 else observation

    def _infos(self) -> dict[str, Any]:
        if isinstance(self.worlds.space, Box):
            return {}
        mask = self.worlds.legal().cpu().numpy().copy()
        return {"action_mask": mask, "_action_mask": np.ones(self.num_envs, dtype=np.bool_)}


class RoleEnv(gymnasium.Env[Any, Any]):
    """A gymnasium.Env with one world, made by `as_gymnasium`."""

    def __init__(self, worlds: SeatedWorlds, seed: int, illegal: Illegal) -> None:
        self.worlds, self.vector = worlds, RoleVectorEnv(worlds, seed, illegal, AutoresetMode.DISABLED)
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new game. Without a seed, the stream of random numbers goes on."""
        super().reset(seed=seed)
        observation, infos = self.vector.reset(seed=seed)
        return _first(observation), _first_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play the role's action, and play on until it decides again. Raises IllegalMove if `illegal` is "raise"."""
        observation, reward, terminated, truncated, infos = self.vector.step(action)
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first_info(infos)


def as_gymnasium(
    game: TensorGame | GameConfig | dict[str, Any],
    role: str,
    others: Mapping[str, str | Policy | Player],
    seed: int,
    illegal: Illegal,
) -> RoleEnv:
    """Make a gymnasium.Env of a role of a tensor game.

    game: the rules, or their config, which are then played on the CPU. others: who sits in every other role: a scripted
    player by name or class (`mine:Host`), a policy, or a player (`palestra.load_player`), which does not explore. seed:
    of the games until `reset(seed=...)` gives another. illegal: `raise` IllegalMove, or `replace` an illegal action by
    a random legal one, for learners that do not use info["action_mask"], bool (A,).

    An observation of one entry is its array, one of several is a dict. A step ends where the role decides again, and
    returns the sum of its rewards in between. Games that are over before the role's first decision are skipped.
    Observations are transformed as `game.observation` says, by the statistics that the game has. Raises ConfigError for
    a faulty config, and one that asks for running statistics, ValueError if a role has no player or its player cannot
    sit there.
    """
    return RoleEnv(_seat(game, role, others, 1), seed, illegal)


def as_gymnasium_vector(
    game: TensorGame | GameConfig | dict[str, Any],
    role: str,
    others: Mapping[str, str | Policy | Player],
    seed: int,
    illegal: Illegal,
    num_worlds: int,
    autoreset_mode: AutoresetMode,
) -> RoleVectorEnv:
    """Make a gymnasium.vector.VectorEnv of `num_worlds` worlds of a role of a tensor game.

    The other arguments are those of `as_gymnasium`.
    """
    return RoleVectorEnv(_seat(game, role, others, num_worlds), seed, illegal, autoreset_mode)


def _seat(
    game: TensorGame | GameConfig | dict[str, Any],
    role: str,
    others: Mapping[str, str | Policy | Player],
    num_worlds: int,
) -> SeatedWorlds:
    rules = game if isinstance(game, TensorGame) else make_game(game)
    if not isinstance(rules, TensorGame):
        raise ValueError("expected a tensor game, got a Gymnasium environment")
    if role not in rules.roles or {role, *others} != {*rules.roles} or role in others:
        there = ", ".join(others) or "nobody"
        raise ValueError(
            f"expected each role of the game once ({', '.join(rules.roles)}), got role {role!r} and others: {there}"
        )
    if rules is not game and rules.observation_transform is not None and rules.observation_transform.moments:
        why = "because a game that nobody has trained in has no running statistics"
        message = f"expected null, {why}, got a mapping; to observe as in a run, give the game of a player of it"
        raise ConfigError.at("game.observation.normalize", message)
    policies: dict[str, Policy] = {}
    for other, sitter in others.items():
        if isinstance(sitter, str):
            if fault := script_error(sitter, getattr(rules, "config", None), other):
                raise ValueError(f"others[{other!r}]: {fault}")
            policies[other] = make_script(sitter, rules, other)
        else:
            if isinstance(sitter, Player) and not _observes_as_trained(sitter, rules):
                expected = "expected the game of the player's run (player.game), whose observations it knows"
                raise ValueError(f"others[{other!r}]: {expected}, got one with another `observation`")
            policies[other] = sitter.policy(False, other) if isinstance(sitter, Player) else sitter
    return SeatedWorlds(rules, role, policies, num_worlds)


def _observes_as_trained(player: Player, rules: TensorGame) -> bool:
    """Tell whether a player observes the game as it did where it was trained."""
    if player.game is None or player.game is rules or player.script is not None:
        return True
    if (trained := getattr(player.game, "observation_transform", None)) is None or rules.observation_transform is None:
        return trained is rules.observation_transform
    return not trained.moments and trained.config == rules.observation_transform.config


def observation_space(parts: Mapping[str, Space]) -> spaces.Space[Any]:
    """Return Gymnasium's space for a role's observations: a Box, or a Dict of several."""
    boxes: dict[str, spaces.Space[Any]] = {}
    for name, part in parts.items():
        kind = torch.empty((), dtype=part.dtype).numpy().dtype
        low, high = (-np.inf, np.inf) if np.issubdtype(kind, np.floating) else (0, 1)
        if np.issubdtype(kind, np.integer):
            low, high = np.iinfo(kind).min, np.iinfo(kind).max
        boxes[name] = spaces.Box(low, high, part.shape, kind.type)
    return next(iter(boxes.values())) if len(boxes) == 1 else spaces.Dict(boxes)


def action_space(space: ActionSpace) -> spaces.Space[Any]:
    """Return Gymnasium's space for a role's actions."""
    match space:
        case Discrete():
            return spaces.Discrete(space.num)
        case MultiDiscrete():
            return spaces.MultiDiscrete(list(space.nums))
        case Box():
            return spaces.Box(np.array(space.low, np.float32), np.array(space.high, np.float32), dtype=np.float32)


def _first(observation: Any) -> Any:
    """Return the observation of the first world."""
    return {name: value[0] for name, value in observation.items()} if isinstance(observation, dict) else observation[0]


def _first_info(infos: dict[str, Any]) -> dict[str, Any]:
    return {"action_mask": infos["action_mask"][0]} if infos else {}
