"""Evaluations of a stored run that differ from those of its config: in other games, other pairings, other numbers."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from palestra.config import Config, ConfigError, ConfigErrorItem, check_overridden, reading_own
from palestra.run.branching import differences, is_below
from palestra.run.kinds import read_stored_config
from palestra.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Changes:
    """The changes that are asked for in the evaluations of a run.

    overrides: of `evaluations` and `game`, such as `evaluations.0.max_rounds=50` or `game.dimension=4`; the game is
    that of the evaluations without a game of their own. pairings: role -> player, in place of the pairings of every
    evaluation, or of ASKED_OF_GAMES if the run has no evaluation; roles that are left out keep the run's players. No
    pairings leave those of the evaluations.
    """

    overrides: Sequence[str]
    pairings: Sequence[Mapping[str, str]]

    def lines(self) -> list[str]:
        """The changes, as one types them for a command."""
        texts = [",".join(f"{role}={player}" for role, player in pairing.items()) for pairing in self.pairings]
        return [*self.overrides, *(f"--pairing {text}" for text in texts)]

    def asked_path(self, path: str) -> str:
        """The path of an error as the user typed it: `--pairing`, and `game` if an override changes the game."""
        if self.pairings and (pairing := re.fullmatch(r"evaluations\.\d+\.pairings\.\d+\.(.*)", path)):
            return f"--pairing {pairing[1]}"
        if any(override.startswith(("game.", "game=")) for override in self.overrides):
            return re.sub(r"^evaluations\.\d+\.game(?=\.|$)", "game", path)
        return path


def changed_stored_config(folder: RunFolder, overrides: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """The config of a stored run with overrides of what may change where the run is evaluated or used.

    Gives with it a line for each change that nobody has typed.
    Raises ConfigError, which names the keys, for overrides of other keys, RunFolderError, UntrustedError.
    """
    config = read_stored_config(folder.config)
    if not overrides:
        return config, ()
    if not config.changeable:
        raise ConfigError.at(overrides[0], f"expected no change, because the run is {config.in_words}")
    data, notes = config.begin_change(overrides)
    marks = {key: None for key in ("best", "evaluators") if key in data}  # nothing is marked any more
    with reading_own():  # the modules that overrides name, because the user typed them
        changed = check_overridden(data | marks, overrides, type(config))
    expected = f"expected a change of {', '.join(config.changeable)} alone, because the run has learned by its config"
    keys = [change.key for change in differences(config.model_copy(update=marks), changed)]
    kept = config.kept()
    faults = {key: expected for key in keys if not is_below(key, config.changeable)}
    faults |= {
        key: f"expected no change, because {kept[each]}" for key in keys for each in kept if is_below(key, [each])
    }
    ConfigError.require_none(ConfigErrorItem(*fault) for fault in faults.items())
    return changed, notes


@contextmanager
def errors_at(path_of: Callable[[str], str]) -> Iterator[None]:
    """A context that changes the paths of errors in configs. path_of: gives the new path for one of the config."""
    try:
        yield
    except ConfigError as error:
        ConfigError.require_none(ConfigErrorItem(path_of(each.path), each.message) for each in error.errors)


def digest(sections: Sequence[Config]) -> str:
    """A few characters that differ for evaluations by different sections of configs, for names of files."""
    text = "\n".join(json.dumps(each.model_dump(mode="json"), sort_keys=True) for each in sections)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
