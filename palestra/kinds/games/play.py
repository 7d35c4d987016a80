"""Plays one game in the terminal: a person against players, or players among themselves while a person watches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from palestra.config import ConfigError, below, checking
from palestra.games.game import TensorGame
from palestra.games.policy import Memory, Policy
from palestra.kinds.games.match import Match, Position, advise, begin_match, legal_moves, read_legal_action
from palestra.kinds.games.stored import StoredGames
from palestra.players import SCRIPTED, make_script, script_error
from palestra.players.people import Left, Say, check_roles
from palestra.players.player import Player
from palestra.players.user_scripts import CheckedScript
from palestra.randomness import base_key, world_keys

MOST_DRAWS = 100  # of a first board, for some are over before they begin


@dataclass
class Seated:
    """A player in a role, with its memory of this game."""

    name: str
    policy: Policy
    memory: Memory = field(default_factory=dict)

    def choose(self, position: Position) -> Tensor:
        decision = position.decide(self.policy, self.memory)
        self.memory = decision.memory
        return decision.action


@dataclass
class Person:
    """A person in a role, who types moves, and sees what the role observes.

    answers: the lines that they type. memory: of the role's player, who gives hints.
    """

    match: Match
    stored: StoredGames
    answers: Iterator[str]
    say: Say
    ask: Say
    name: str = "you"
    memory: Memory = field(default_factory=dict)

    def choose(self, position: Position) -> Tensor:
        """Ask the person for a move until it is a legal one. Raises Left."""
        game, role, player = self.match.game, position.role, self._player(position.role)
        if not game.fully_observable:
            self.say(f"\n{self.match.board(role)}")
        while True:
            self.ask(f"{role}, your move ({legal_moves(game, position)}), hint or quit: ")
            text = next(self.answers, "quit").strip()
            if text == "quit":
                raise Left
            if text == "hint":
                self.say("\n".join(self._hint(position)))
                continue
            try:
                action: Tensor = read_legal_action(game, position, text, "")
            except ConfigError as error:
                self.say(str(error))
                continue
            self.memory = position.decide(player.predictor(True, role), self.memory).memory
            return action

    def _player(self, role: str) -> Player:
        return self.stored.players[self.stored.config.roles[role]]

    def _hint(self, position: Position) -> list[str]:
        """Return what the role's player would do.

        A player of the user's own that sees the whole state gives no hint where the role does not see it.
        """
        player = self._player(position.role)
        sees_more = isinstance(player.script, CheckedScript) and player.script.observes == "state"
        if sees_more and not self.match.game.fully_observable:
            return [f"{player.name} sees more than {position.role} observes, and gives no hint"]
        return advise(self.stored, position, self.memory).lines


def choose_seats(
    stored: StoredGames, person: str | None, against: str | None, pairing: Mapping[str, str]
) -> dict[str, str]:
    """Return the names of the players by role, without the person's.

    They are those of the run's config, or in their place those of `pairing`, or in every role `against`. Raises
    ConfigError.
    """
    game = stored.game
    if not isinstance(game, TensorGame):
        way = stored.folder.ways_on().to_evaluate(stored.config.roles, bool(stored.config.evaluations))
        remedy = "" if way is None else f"; to film it: {way} --video"
        raise ConfigError.at("RUN", f"expected a run in a game of boards, got one in an environment{remedy}")
    check_roles(game, "--as", [person] if person else [])
    check_roles(game, "--pairing", pairing)
    seats = {**stored.config.roles, **pairing}
    if against is not None:
        seats = dict.fromkeys(game.roles, against)
    return {role: seats[role] for role in game.roles if role != person}


def seat(stored: StoredGames, name: str, role: str, explores: bool = False) -> Seated:
    """Put a player of the run, or a scripted one, into a role. Raises ConfigError.

    explores: let a player that learns explore, as in training.
    """
    player = stored.players.get(name)
    game = stored.game
    if player is not None:
        if player.script is not None:
            with below(role):
                return Seated(name, player.script.for_seat(game, role))
        if not player.fits(game.spaces[role], game.action_spaces[role]):
            raise ConfigError.at(role, f"expected a player that can sit in the role {role!r}, got {name!r}")
        return Seated(name, player.policy(explores and player.learning))
    if name not in SCRIPTED and not {":", "/"} & {*name}:
        known = f"expected a player of the run ({', '.join(stored.players)}), a scripted one ({', '.join(SCRIPTED)})"
        raise ConfigError.at(role, f"{known} or a class of your own as 'package.module:Class', got {name!r}")
    with checking(), below(role):  # the person has typed it
        if (error := script_error(name, stored.config.game, role)) is not None:
            raise ConfigError.at("", error)
        return Seated(name, make_script(name, game, role))


def new_match(stored: StoredGames, board: str | None, seed: int) -> Match:
    """Make a game on a board, or on one that the game draws by the seed: if it can, one on which somebody decides."""
    if board is not None:
        return begin_match(stored, board, seed)
    game = stored.game
    assert isinstance(game, TensorGame)
    for number in range(MOST_DRAWS):
        key = base_key(seed, f"play/{number}")
        match = Match(game, game.reset(world_keys(key, 1, game.device)), key)
        if game.deciding(match.state).any():
            break
    return match


def play(match: Match, seats: Mapping[str, Seated | Person], say: Say) -> None:
    """Play the game to its end, or until a person leaves.

    A person is told what their role observes, until the game is over.
    """
    game, people = match.game, [role for role, who in seats.items() if isinstance(who, Person)]
    shows_all = game.fully_observable or not people
    say(", ".join(f"{role}: {who.name}" for role, who in seats.items()))
    if shows_all:
        say(f"\n{match.board()}")
    while positions := match.positions():
        rounds = match.rounds
        try:
            actions = {position.role: seats[position.role].choose(position) for position in positions}
        except Left:
            say(f"left after {_rounds(match)}")
            return
        for role, action in actions.items():
            if shows_all or role in people:
                say(f"{role} ({seats[role].name}) chooses {game.describe_action(role, action[0])}")
        match.play(actions)
        if shows_all and match.rounds > rounds:
            say(f"\nafter {_rounds(match)}:\n{match.board()}")
    if not shows_all:
        say(f"\nthe whole game, after {_rounds(match)}:\n{match.board()}")
    end = "cut off" if match.is_cut_off and not match.is_over else "over"
    returns = ", ".join(f"{role} {value:g}" for role, value in match.returns.items())
    say(f"the game is {end} after {_rounds(match)}; returns: {returns}")


def _rounds(match: Match) -> str:
    return f"{match.rounds} round{'' if match.rounds == 1 else 's'}"
