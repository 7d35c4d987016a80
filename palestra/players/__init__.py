"""Players, who sit in the roles of a game: learning, held fixed, or scripted. To register a scripted player, add it to
SCRIPTED."""

from palestra.config import Config
from palestra.config.variants import names_of
from palestra.games.config import GameConfig
from palestra.games.game import Game
from palestra.players.scripted import ChooseFirstPolicy, ChooseLastPolicy, RandomPolicy, ScriptedPolicy
from palestra.players.scripted_nim import NimOptimal
from palestra.players.scripted_polyhedra import AllCoordinatesHost, GreedyAgent, LookAheadHost, ZeillingerHost

SCRIPTED: dict[str, type[ScriptedPolicy]] = {
    policy.name: policy
    for policy in (
        RandomPolicy,
        ChooseFirstPolicy,
        ChooseLastPolicy,
        AllCoordinatesHost,
        ZeillingerHost,
        LookAheadHost,
        GreedyAgent,
        NimOptimal,
    )
}


class ScriptedPlayerConfig(Config):
    scripted: str
    """a scripted player by name; `palestra list` shows them"""


class FromRunConfig(Config):
    """A player of another run, which is held fixed. It stands in place of a player's config."""

    from_run: str
    """folder of the run that trained the player"""
    player: str
    """the player's name in that run"""
    checkpoint: str
    """latest, best, or the number of a checkpoint"""


def script_error(name: str, game: GameConfig | None, role: str) -> str | None:
    """Why a scripted player cannot sit in a role of a game, or None. game: its config, if it has one."""
    policy = SCRIPTED.get(name)
    if policy is None:
        return f"expected a scripted player ({', '.join(SCRIPTED)}), got {name!r}"
    if policy.game_config is not None and not isinstance(game, policy.game_config):
        (played,) = names_of((policy.game_config,))
        return f"expected the game {played!r} for the player {name!r}, got another one"
    if policy.roles is not None and role not in policy.roles:
        return f"expected the role {' or '.join(policy.roles)} for the player {name!r}, got {role!r}"
    return None


def make_script(name: str, game: Game, role: str | None = None) -> ScriptedPolicy:
    """The scripted player of that name, for a role of that game; None: for the first role."""
    return SCRIPTED[name](game, role or game.roles[0])
