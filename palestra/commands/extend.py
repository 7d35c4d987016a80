"""Gives a run another end."""

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.ranks import fit
from palestra.commands.shell import Overrides, Quiet, Run, Trust, console


def extend(run: Run, overrides: Overrides = None, trust: Trust = False, quiet: Quiet = False) -> None:
    """Give a run another end, such as stop.after=100000, and go on."""
    with one_line_errors(quiet):
        import palestra
        from palestra.config import trusting
        from palestra.storage.run_folder import RunFolder

        RunFolder.open(run).require_named_trainer()
        with trusting(trust):
            trainer = palestra.Trainer.load(run, console=silent if quiet else console)
            trainer.extend(overrides or [])  # only now, because what cannot be built goes on nowhere
        fit(trainer)
