"""The named evaluations of a run: who meets whom in which game, played; and the best score among them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, ConfigErrorItem, below
from palestra.evaluation.config import BestConfig, EvaluationConfig
from palestra.evaluation.episodes import play_episodes
from palestra.evaluation.evaluator import Games, evaluation_mode, play_games
from palestra.evaluation.ratings import rate
from palestra.evaluation.trace import trace_game
from palestra.evaluation.video import film_episodes
from palestra.games.config import GameConfig
from palestra.games.game import Game, TensorGame
from palestra.games.policy import Policy
from palestra.games.trace import Trace
from palestra.games.world import WorldGame
from palestra.players import make_script
from palestra.players.player import Player
from palestra.players.scripted import ScriptedPolicy

NUM_FILMED = 3


class Evaluations:
    """The evaluations of a run, which share its players.

    build_game: of an evaluation's own game. seed: the run's, of evaluations that have none. num_worlds: environments
    at a time. Raises ConfigError where a player does not fit the game of a pairing.
    """

    def __init__(
        self,
        configs: Sequence[EvaluationConfig],
        game: Game,
        players: Mapping[str, Player],
        build_game: Callable[[GameConfig], Game],
        seed: int,
        num_worlds: int,
    ) -> None:
        self.configs = {config.name: config for config in configs}
        self.game, self.players, self.seed, self.num_worlds = game, players, seed, num_worlds
        self.games: dict[str, Game] = {}
        for index, config in enumerate(configs):
            with below(f"evaluations.{index}"):
                self.games[config.name] = game if config.game is None else build_game(config.game)
        errors = [item for index, config in enumerate(configs) for item in self._misfits(index, config)]
        if errors:
            raise ConfigError(errors)

    def _misfits(self, index: int, config: EvaluationConfig) -> list[ConfigErrorItem]:
        """Players that see or do something else than the game of their pairing shows and takes."""
        game, errors = self.games[config.name], []
        for number, pairing in enumerate(config.pairings):
            for role, name in pairing.items():
                player = self.players.get(name)
                if player is None or player.fits(game.spaces[role], game.action_spaces[role]):
                    continue
                place = f"pairings.{number}.{role}" if config.game is None else "game"
                message = f"{name!r} does not fit {role!r} of that game: it sees or does something else"
                errors.append(ConfigErrorItem(f"evaluations.{index}.{place}", message))
        return errors

    def play(
        self, name: str, num_games: int, with_scripted: bool, watch: Callable[[int], None] = lambda num_over: None
    ) -> dict[str, Any]:
        """What a record tells of one evaluation: its name, the figures of every pairing from the same starts for all
        in the config's order, and the ratings of the players.

        Players act without exploration, their networks in evaluation mode; the modes are restored. with_scripted: also
        the pairings in which nobody learns. watch: is told again and again how many games of all pairings are over,
        and may raise Interrupted.
        """
        config, game = self.configs[name], self._game(name)
        pairs: list[dict[str, Any]] = []
        for pairing in self.pairings(name, with_scripted):
            games = self._play(config, game, pairing, num_games, lambda num: watch(len(pairs) * num_games + num))
            learned = [role for role, sitter in pairing.items() if self._learns(sitter)]
            pairs.append({"players": dict(pairing), "learned": learned, **games.summary()})
        return {"evaluation": name, "pairs": pairs, "ratings": rate(pairs)}

    def pairings(self, name: str, with_scripted: bool) -> list[dict[str, str]]:
        """The pairings of one evaluation, role -> player; with_scripted: also those in which nobody learns."""
        pairings = self.configs[name].pairings
        return [p for p in pairings if with_scripted or any(self._learns(sitter) for sitter in p.values())]

    def film(self, name: str, path: Path) -> list[float]:
        """Write a video of NUM_FILMED episodes of the lone agent, and give their returns."""
        config, game = self.configs[name], self._game(name)
        if not isinstance(game, WorldGame):
            message = "expected an evaluation in an environment, which can be filmed, got one in a game of tensors"
            raise ConfigError([ConfigErrorItem("--video", message)])
        [player] = [player for player in self.players.values() if player.roles == game.roles]
        with evaluation_mode(list(player.nets.values())):
            policy = player.policy(explore=False)
            return film_episodes(game, policy, NUM_FILMED, config.max_rounds, self._seed(config), path)

    def trace(self, name: str, pairing: Mapping[str, str]) -> Trace | None:
        """A game of one pairing, told move by move; of tensor games."""
        config, game = self.configs[name], self._game(name)
        assert isinstance(game, TensorGame)
        with self._policies(game, pairing) as policies:
            return trace_game(game, policies, config.max_rounds, self._seed(config))

    @contextmanager
    def _policies(self, game: Game, pairing: Mapping[str, str]) -> Iterator[dict[str, Policy]]:
        """How the players of a pairing act, their networks in evaluation mode meanwhile."""
        with evaluation_mode([net for player in self.players.values() for net in player.nets.values()]):
            yield {role: self._policy(name, game, role) for role, name in pairing.items()}

    def _game(self, name: str) -> Game:
        """The game of an evaluation, with what the run's game has learned (running statistics, say)."""
        game = self.games[name]
        if game is not self.game:
            game.load_state_dict(self.game.state_dict())
        return game

    def _seed(self, config: EvaluationConfig) -> int:
        return self.seed if config.seed is None else config.seed

    def _learns(self, name: str) -> bool:
        return name in self.players and self.players[name].learning

    def _play(
        self,
        config: EvaluationConfig,
        game: Game,
        pairing: Mapping[str, str],
        num_games: int,
        watch: Callable[[int], None],
    ) -> Games:
        seed = self._seed(config)
        with self._policies(game, pairing) as policies:
            if isinstance(game, TensorGame):
                return play_games(game, policies, num_games, config.max_rounds, seed, watch)
            assert isinstance(game, WorldGame)
            policy = policies[game.roles[0]]
            return play_episodes(game, policy, num_games, self.num_worlds, config.max_rounds, seed, watch)

    def _policy(self, name: str, game: Game, role: str) -> Policy:
        player = self.players.get(name)
        if player is None:
            return make_script(name, game, role)
        if isinstance(player.script, ScriptedPolicy):  # the player's own is made for its seat in the run's game
            return type(player.script)(game, role)
        return player.policy(explore=False)


class BestScore:
    """The best score so far, by a config's measure."""

    def __init__(self, config: BestConfig, evaluations: Sequence[EvaluationConfig]) -> None:
        self.config = config
        [evaluation] = [each for each in evaluations if each.name == config.evaluation]
        self.pairing = evaluation.pairings[config.pairing]
        self.value: float | None = None
        self._before: float | None = None

    def improves(self, record: Mapping[str, Any]) -> bool:
        """Whether an evaluation is better than all of its name before it; strictly, and never by a nan."""
        if record["evaluation"] != self.config.evaluation:
            return False
        pair = next(pair for pair in record["pairs"] if pair["players"] == self.pairing)
        measure = self.config.measure
        score = pair["rho"] if measure == "rho" else pair["returns"][measure.removeprefix("return/")]
        sign = 1.0 if self.config.goal == "max" else -1.0
        if math.isnan(score) or (self.value is not None and sign * score <= sign * self.value):
            return False
        self._before, self.value = self.value, score
        return True

    def take_back(self) -> None:
        """The last improvement could not be saved: who is better than what was saved is the best."""
        self.value = self._before
