"""Names for trials where their runs are compared with others."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from palestra.config import ConfigError, UntrustedError
from palestra.storage.disk import RunFolderError
from palestra.sweeps.folder import sweep_of
from palestra.sweeps.naming import point_texts, short_keys
from palestra.sweeps.space import BASE

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

MOST_KEYS = 3  # that a name tells


def trial_names(runs: Iterable[Path]) -> dict[Path, str]:
    """Return the names of the trials to which runs belong, by the folder of the run.

    A name is that of the trial's base, if the sweep has several, and its values of the keys that are searched, or of
    more than MOST_KEYS keys its number. Runs of no sweep are left out, and those of a sweep whose study cannot be read
    here.
    """
    found, of_sweeps = dict[Path, str](), dict[Path, Mapping[str, str]]()
    for run in runs:
        if (sweep := sweep_of(run)) is not None:
            if sweep not in of_sweeps:
                of_sweeps[sweep] = _names_in(sweep)
            if (name := of_sweeps[sweep].get(run.absolute().parent.name)) is not None:
                found[run] = name
    return found


def _names_in(sweep: Path) -> dict[str, str]:
    """Return the names of a sweep's trials, by their folders."""
    try:
        from palestra.sweeps.outcomes import place_of
        from palestra.sweeps.stored import StoredSweep

        return {f"{place_of(trial):04d}": _name(trial) for trial in StoredSweep.open(sweep).trials}
    except (ImportError, RunFolderError, ConfigError, UntrustedError):  # of ImportError: there is no Optuna here
        return {}


def _name(trial: "FrozenTrial") -> str:
    """Return the name of a trial, as "ppo-cartpole, gamma 0.99"."""
    point = point_texts(trial)
    keys = short_keys(key for key in point if key != BASE)
    told = [f"{short} {point[key]}" for key, short in keys.items()]
    base = [point[BASE]] if BASE in point else []
    return ", ".join([*base, *(told if len(told) <= MOST_KEYS else [f"trial {trial.number}"])])
