"""Who sits in a seat: players that learn, that are held fixed, and scripted ones."""

from palestra.config import Config
from palestra.games.game import Game
from palestra.players.scripted import SCRIPTED, ScriptedPolicy


class ScriptedPlayerConfig(Config):
    scripted: str
    """a scripted player by name; `palestra list` shows them"""


class FromRunConfig(Config):
    """A player as another run left it. In place of a player's config: it sits there and is held fixed."""

    from_run: str
    """folder of the run that trained the player"""
    player: str
    """the player's name in that run"""
    checkpoint: str
    """latest, best, or the number of a checkpoint"""


def script_error(name: str, game: type[Game], role: str) -> str | None:
    """Why a scripted player cannot sit there, or None."""
    policy = SCRIPTED.get(name)
    if policy is None:
        return f"{name!r} is no scripted player; known: {', '.join(SCRIPTED)}"
    if policy.game_class not in (None, game):
        return f"{name!r} does not play this game; it plays {policy.game_class.__name__}"
    if policy.roles is not None and role not in policy.roles:
        return f"{name!r} does not sit as {role!r}; it sits as {', '.join(policy.roles)}"
    return None


def make_script(name: str, game: Game, role: str | None = None) -> ScriptedPolicy:
    """The scripted player of that name, for a role of that game; None: for the first one, where all act alike."""
    return SCRIPTED[name](game, role or game.roles[0])
