"""The named evaluations of a run, which play games between its players; and the best score among them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem, below
from palestra.evaluation.config import EvaluationConfig, UserEvaluationConfig, play_user_evaluation
from palestra.evaluation.episodes import play_episodes
from palestra.evaluation.evaluator import Batch, Games, Watch, nobody_watches, play_games, play_outcomes
from palestra.evaluation.exploitability import Exploitability, ExploitabilityConfig
from palestra.evaluation.measures import BestConfig, Measure
from palestra.evaluation.ratings import Meeting, rate, rate_over_roles
from palestra.evaluation.video import film_episodes
from palestra.games.config import GameConfig
from palestra.games.game import Game, State, TensorGame
from palestra.games.policy import Policy
from palestra.games.trace import Choice, Trace
from palestra.games.world import WorldGame
from palestra.nets.weights import evaluation_mode
from palestra.players import make_script, read_script
from palestra.players.past import PastPolicy
from palestra.players.player import Player
from palestra.players.scripted import Script
from palestra.randomness import restored_global_states
from palestra.runtime.limits import memory_needed
from palestra.runtime.scores import DeclaredScore, normalized_of
from palestra.runtime.statistics import estimate_mean

NUM_FILMED = 3

Seated = frozenset[tuple[str, tuple[str, str]]]  # pairs of a role, and who sits there


class _ByName(dict[str, EvaluationConfig | UserEvaluationConfig]):
    """The configs of evaluations by their names."""

    def __missing__(self, name: str) -> NoReturn:
        known = f"one of the evaluations {', '.join(self)}" if self else "no evaluation, for the config has none"
        raise ValueError(f"expected {known}, got {name!r}")


class Evaluations:
    """The evaluations of a run, which share its players.

    Whoever owns the players switches their networks to evaluation mode.

    roles: who sits in which role. build_game: builds the game of an evaluation that has its own. fit_player: builds a
    player once more, with the observations and actions of a role in another game; raises ConfigError if its networks do
    not fit there. seed: the run's, for evaluations without one. num_worlds: how many environments step together. info:
    the fields of environments' info that are recorded. Raises ConfigError if a player does not fit the game of a
    pairing.
    """

    counted = "games"

    def __init__(
        self,
        configs: Sequence[EvaluationConfig | UserEvaluationConfig],
        game: Game,
        roles: Mapping[str, str],
        players: Mapping[str, Player],
        build_game: Callable[[GameConfig], Game],
        fit_player: Callable[[Player, Game, str], Player],
        seed: int,
        num_worlds: int,
        info: Sequence[str],
    ) -> None:
        self.configs = _ByName({config.name: config for config in configs})
        self.game, self.roles, self.players, self.seed = game, roles, players, seed
        self.num_worlds, self.info = num_worlds, info
        self.games: dict[str, Game] = {}
        self.scripts: dict[tuple[str, str, str], Script] = {}
        for index, config in enumerate(configs):
            with below(f"evaluations.{index}"):
                self.games[config.name] = self._held_out(game if config.game is None else build_game(config.game))
        self.stand_ins: dict[tuple[str, str, str], Player] = {}
        errors = [
            item for index, config in enumerate(configs) for item in self._make_stand_ins(index, config, fit_player)
        ]
        ConfigError.require_none(errors)
        self.exploitability: dict[str, Exploitability] = {}
        for index, config in enumerate(configs):
            if isinstance(config, UserEvaluationConfig) and isinstance(config.played_by, ExploitabilityConfig):
                with below(f"evaluations.{index}.played_by"):
                    self._prepare(config.name, config.played_by)

    def _prepare(self, name: str, config: ExploitabilityConfig) -> None:
        """Enumerate the positions of a game, and measure the players once, to find those that cannot be measured."""
        self.exploitability[name] = Exploitability(self.games[name], config.max_positions)
        nets = [net for player in self.players.values() for net in player.nets.values()]
        with below("roles"), evaluation_mode(nets), restored_global_states():
            self._exploit(name, config)

    def _exploit(self, name: str, config: ExploitabilityConfig) -> dict[str, float]:
        policies = self._policies(name, config.roles)
        seats: dict[str, list[Policy]] = {role: [policy] for role, policy in policies.items()}
        for role, policy in policies.items():
            if isinstance(policy, PastPolicy):
                if self.exploitability[name].positions is not None:
                    expected = "expected one player, because games have more than one round"
                    raise ConfigError.at(role, f"{expected}, got {config.roles[role]!r}, past selves")
                seats[role] = [*policy.selves()]
        mixtures = {role: [(1.0 / len(those), each) for each in those] for role, those in seats.items()}
        return self.exploitability[name].scores(mixtures)

    def _held_out(self, game: Game) -> Game:
        """Return the game of evaluations, whose observations are transformed as in the run's game.

        Raises ConfigError if its statistics do not fit there.
        """
        held_out = game.held_out()
        if isinstance(game, TensorGame) and isinstance(held_out, TensorGame):
            held_out.observation_transform = game.observation_transform
            self._share_statistics(held_out)
        return held_out

    def _make_stand_ins(
        self,
        index: int,
        config: EvaluationConfig | UserEvaluationConfig,
        fit_player: Callable[[Player, Game, str], Player],
    ) -> Iterator[ConfigErrorItem]:
        """Build players once more whose observations or actions differ in the game of a pairing.

        Gives the errors of those whose networks do not fit, and of scripted ones that cannot sit there.
        """
        game = self.games[config.name]
        for seats, pairing in config.seats().items():
            for role, name in pairing.items():
                player, key = self.players.get(name), (config.name, name, role)
                place, script = f"evaluations.{index}.{seats}.{role}", None if player is None else player.script
                try:
                    if player is None or script is not None:
                        self._script(*key)
                    elif not player.fits(game.spaces[role], game.action_spaces[role]) and key not in self.stand_ins:
                        self.stand_ins[key] = fit_player(player, game, role)
                except ConfigError as error:
                    if player is None or not isinstance(script, PastPolicy | None):
                        yield from (ConfigErrorItem(place, item.message) for item in error.errors)
                        continue
                    expected = f"a player that can play as {role!r}, got {name!r}"
                    if config.game is not None:
                        place, expected = f"evaluations.{index}.game", f"a game in which {name!r} can play as {role!r}"
                    yield ConfigErrorItem(place, f"expected {expected}; {error.errors[0].message}")

    def _script(self, evaluation: str, name: str, role: str) -> Script:
        """Return a scripted player in a role of an evaluation's game; each is made once. Raises ConfigError."""
        seat = evaluation, name, role
        if seat not in self.scripts:
            player, game = self.players.get(name), self.games[evaluation]
            script = None if player is None else player.script
            self.scripts[seat] = make_script(name, game, role) if script is None else script.for_seat(game, role)
        return self.scripts[seat]

    def play(self, name: str, num_games: int, with_scripted: bool, watch: Watch = nobody_watches) -> dict[str, Any]:
        """Play one evaluation, and return its record.

        It holds the results of every pairing in the config's order, all from the same starts, and the ratings of the
        players; of an evaluation of the user's own the run's seats in place of pairings. Players act without
        exploration. with_scripted: also play the pairings in which nobody learns. watch: is told how many games of all
        pairings are over.
        """
        config, game = self.configs[name], self._game(name)
        if isinstance(config, UserEvaluationConfig):
            seed, played_by = self._seed(config), config.played_by
            if isinstance(played_by, ExploitabilityConfig):
                scores, declared = self._exploit(name, played_by), played_by.declared_scores()
            else:
                scores = play_user_evaluation(played_by, self.players, num_games, seed, lambda num: watch(num, 0))
                declared = [DeclaredScore(each, "", "", self.game.roles, low_for=(), shown=True) for each in scores]
            [seats] = self.pairings(name, with_scripted)
            pair = self._names_of(seats) | {"games": num_games, "scores": scores, "intervals": {}}
            return self._record(name, declared, [pair])
        pairs: list[dict[str, Any]] = []
        played: dict[Seated, tuple[Games, dict[str, Any]]] = {}
        meetings: dict[Seated, Meeting] = {}
        keys = {config.final_num_games: "final_num_games", config.num_games: "num_games"}

        def watch_all(num_over: int, num_rounds: int) -> None:
            watch(len(pairs) * num_games + num_over, num_rounds)

        for pairing in self.pairings(name, with_scripted):
            if (seated := self._seated_in(pairing)) not in played:
                with memory_needed(f"{keys.get(num_games, '--games')} of evaluation {name}"):
                    games = self._play(config, game, pairing, num_games, watch_all)
                played[seated] = games, _normalized(games, config).summary()
            games, summary = played[seated]
            names, same = self._names_of(pairing), self.same_as(name, pairing)
            if same is None:
                meetings[seated] = Meeting(names["players"], games.wins, games.clusters)
            pairs.append(names | ({} if same is None else {"same_as": dict(same)}) | summary)
        declared, met = [*game.declared_scores, *config.normalized_scores()], [*meetings.values()]
        return self._record(name, declared, pairs, rate(met), rate_over_roles(met))

    def _names_of(self, pairing: Mapping[str, str]) -> dict[str, Any]:
        """Say who sits where in a pairing, with the roles in the order of the game, and whom training changes."""
        players = {role: pairing[role] for role in self.game.roles}
        learned = [role for role, sitter in players.items() if self._changes(sitter)]
        past = [role for role in learned if not self._learns(players[role])]
        return {"players": players, "learned": learned, **({"past": past} if past else {})}

    def _record(
        self,
        name: str,
        declared: Sequence[DeclaredScore],
        pairs: Sequence[Mapping[str, Any]],
        ratings: Mapping[str, Any] | None = None,
        overall: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make the record of an evaluation, with what its scores are, for readers who may not have the game."""
        said = {"evaluation": name, "roles": [*self.game.roles], "declared_scores": [asdict(each) for each in declared]}
        return {**said, "pairs": pairs, "ratings": ratings, "overall_ratings": overall}

    def num(self, name: str, is_final: bool) -> int:
        """Return how many games a pairing has. is_final: at the end of a run, and of `palestra evaluate`."""
        config = self.configs[name]
        return config.final_num_games if is_final else config.num_games

    def snapshot(self) -> dict[str, Any]:
        """Return the weights of players that learn, past selves, and the state of the game, as in a checkpoint."""
        weights = {name: player.weights() for name, player in self.players.items() if player.learning}
        state = {"players": weights, "game": self.game.state_dict()}
        scripts = {name: player.script for name, player in self.players.items()}
        if kept := {name: each.kept for name, each in scripts.items() if isinstance(each, PastPolicy)}:
            state["past"] = {name: {past: f"{name}/{past}" for past in own} for name, own in kept.items()}
            state["copies"] = {f"{name}/{past}": each for name, own in kept.items() for past, each in own.items()}
        return state

    def pairings(self, name: str, with_scripted: bool) -> list[dict[str, str]]:
        """Return the pairings of one evaluation, role -> player; with_scripted: also those in which nobody learns.

        Those of an evaluation of the user's own are the run's seats.
        """
        pairings = self.configs[name].pairings
        if isinstance(self.configs[name], UserEvaluationConfig):
            return pairings or [dict(self.roles)]
        return [p for p in pairings if with_scripted or any(self._changes(sitter) for sitter in p.values())]

    def most_rounds(self, name: str) -> int | None:
        """Return after how many rounds an evaluation cuts off its games; None for one of the user's own."""
        return getattr(self.configs[name], "max_rounds", None)

    def same_as(self, name: str, pairing: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return another pairing of the same players that tables show in place of this one; None if there is none.

        The same scripted players may have names of the file in one pairing, and their own names in the other.
        """
        same = [each for each in self.configs[name].pairings if self._seated_in(each) == self._seated_in(pairing)]
        first = min(same, key=lambda each: sum(sitter in self.players for sitter in each.values()), default=pairing)
        return None if first == pairing else first

    def _seated_in(self, pairing: Mapping[str, str]) -> Seated:
        """Say who sits in which role, whatever name a scripted player has."""
        return frozenset((role, self._identity(sitter)) for role, sitter in pairing.items())

    def _identity(self, name: str) -> tuple[str, str]:
        if (player := self.players.get(name)) is not None and player.script is None:
            return "player", name
        config = read_script(name) if player is None or player.script is None else player.script.config
        return "script", config.model_dump_json()

    def film(self, name: str, path: Path) -> list[float]:
        """Write a video of NUM_FILMED episodes of the lone agent, and return their returns.

        Raises ConfigError for a game of tensors, and as `film_episodes` does.
        """
        config, game = self.configs[name], self._game(name)
        if not isinstance(game, WorldGame) or isinstance(config, UserEvaluationConfig):
            message = "expected an evaluation in an environment, which can be rendered, got one in a game of tensors"
            raise ConfigError.at("--video", message)
        pairing = next(iter(self.pairings(name, with_scripted=False) or config.pairings))
        (policy,) = self._policies(name, pairing).values()
        return film_episodes(game, policy, NUM_FILMED, config.max_rounds, self._seed(config), path)

    def traces(self, name: str, pairing: Mapping[str, str]) -> list[Trace]:
        """Record the first games of one pairing move by move, without those that are over at their start.

        Only for tensor games.
        """
        config, game = self.configs[name], self._game(name)
        assert isinstance(game, TensorGame)
        assert isinstance(config, EvaluationConfig)
        return trace_games(game, self._policies(name, pairing), config.max_rounds, self._seed(config))

    def outcomes(self, name: str, pairing: Mapping[str, str], num_games: int) -> State:
        """Play games of one pairing and return their `outcome_entries` at the end. Only for tensor games."""
        config, game = self.configs[name], self._game(name)
        assert isinstance(game, TensorGame)
        assert isinstance(config, EvaluationConfig)
        return play_outcomes(game, self._policies(name, pairing), num_games, config.max_rounds, self._seed(config))

    def _policies(self, evaluation: str, pairing: Mapping[str, str]) -> dict[str, Policy]:
        """Return the policies of a pairing, by role."""
        return {role: self._policy(evaluation, name, role) for role, name in pairing.items()}

    def _policy(self, evaluation: str, name: str, role: str) -> Policy:
        """Return the policy of a player in a role; what stands in for the player gets its present weights."""
        player, stand_in = self.players.get(name), self.stand_ins.get((evaluation, name, role))
        if player is None or player.script is not None:
            return self._script(evaluation, name, role)
        if stand_in is not None:
            stand_in.load_weights(player.weights())
        return (stand_in or player).policy(explore=False)

    def _game(self, name: str) -> Game:
        """Return the game of an evaluation, with the state of the run's game (running statistics, for instance)."""
        game = self.games[name]
        self._share_statistics(game)
        return game

    def _share_statistics(self, game: Game) -> None:
        """Let a game observe by the run's statistics. A tensor game and an environment have none in common."""
        if game is not self.game and isinstance(game, TensorGame) == isinstance(self.game, TensorGame):
            game.load_state_dict(self.game.state_dict())

    def _seed(self, config: EvaluationConfig | UserEvaluationConfig) -> int:
        return self.seed if config.seed is None else config.seed

    def _changes(self, name: str) -> bool:
        return self._learns(name) or (name in self.players and isinstance(self.players[name].script, PastPolicy))

    def _learns(self, name: str) -> bool:
        return name in self.players and self.players[name].learning

    def _play(
        self, config: EvaluationConfig, game: Game, pairing: Mapping[str, str], num_games: int, watch: Watch
    ) -> Games:
        seed = self._seed(config)
        policies = self._policies(config.name, pairing)
        if isinstance(game, TensorGame):
            return play_games(game, policies, num_games, config.max_rounds, seed, watch)
        assert isinstance(game, WorldGame)
        policy = policies[game.roles[0]]
        return play_episodes(game, policy, num_games, self.num_worlds, config.max_rounds, seed, watch, self.info)


def _normalized(games: Games, config: EvaluationConfig) -> Games:
    """Add the scores that the references of an evaluation measure."""
    found = {}
    for role, reference in (config.references or {}).items():
        shares = (games.returns[role] - reference.random) / (reference.expert - reference.random)
        found[normalized_of(role)] = estimate_mean(100.0 * shares, games.clusters)
    return replace(games, declared=[*games.declared, *config.normalized_scores()], scores={**games.scores, **found})


class BestScore:
    """The best score so far, by the measure of a config."""

    def __init__(self, config: BestConfig, measure: Measure) -> None:
        self.config, self.measure = config, measure
        self.value: float | None = None
        self.lost: float | None = None  # the best of those that were taken back
        self._before: float | None = None

    def is_nan(self, record: Mapping[str, Any]) -> bool:
        """Tell whether the measure is unknown in the record of an evaluation, as where no episode had an info field."""
        score = self.measure.of(record)
        return score is not None and math.isnan(score)

    def improves(self, record: Mapping[str, Any]) -> bool:
        """Tell whether the record of an evaluation has a strictly better score than all before; never if it is nan.

        A better score becomes the best.
        """
        score = self.measure.of(record)
        if score is None or math.isnan(score) or not self._is_better(score, self.value):
            return False
        self._before, self.value = self.value, score
        return True

    def take_back(self) -> None:
        """Undo the last improvement, whose checkpoint could not be saved."""
        if self.lost is None or self._is_better(self.value, self.lost):
            self.lost = self.value
        self.value = self._before

    @property
    def has_lost_best(self) -> bool:
        """Tell whether a score that was taken back is better than the best."""
        return self._is_better(self.lost, self.value)

    def _is_better(self, one: float | None, other: float | None) -> bool:
        sign = 1.0 if self.config.goal == "max" else -1.0
        return one is not None and (other is None or sign * one > sign * other)


NUM_TRACED = 9


@torch.no_grad()
def trace_games(game: TensorGame, policies: Mapping[str, Policy], max_rounds: int, seed: int) -> list[Trace]:
    """Record the first games of an evaluation, without those that are over at their start.

    Starts and random numbers are those of `play_games`.
    """
    decisions: list[tuple[str, State, Tensor, Tensor]] = []
    worlds = Batch(game, policies, NUM_TRACED, seed, lambda *decision: decisions.append(decision))
    for _ in range(max_rounds):
        if not bool(worlds.running.any()):
            break
        worlds.play_round()
    return [
        Trace(
            choices=tuple(
                Choice(role, {name: value[number] for name, value in state.items()}, actions[number])
                for role, state, decides, actions in decisions
                if bool(decides[number])
            ),
            end={name: value[number] for name, value in worlds.state.items()},
            length=length,
            is_finished=bool(worlds.finished[number]),
            returns=dict(zip(game.roles, worlds.returns[number].tolist(), strict=True)),
        )
        for number, length in enumerate(worlds.lengths.tolist())
        if length
    ]


def typical(traces: Sequence[Trace]) -> Trace | None:
    """Return the game of median length; None if there is none."""
    return sorted(traces, key=lambda trace: trace.length)[len(traces) // 2] if traces else None
