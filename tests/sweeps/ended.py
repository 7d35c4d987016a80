"""A sweep that has ended, made without its runs, for tests of what becomes of a study that somebody has damaged."""

from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.run.kinds import read_config
from palestra.sweeps.config import read_sweep
from palestra.sweeps.display import make_sweep_display
from palestra.sweeps.outcomes import COUNTS, SECONDS, VALUES
from palestra.sweeps.sweep import Sweep
from tests.sweeps.small_runs import write_base
from tests.sweeps.test_sweep import SWEEP

BUDGET = {"trials": 3, "total": None, "minutes": None}
JOURNAL = {"name": "journal", "path": None, "study": "sweep"}


def ended_sweep(folder: Path, **changes: Any) -> Path:
    """Three trials, of which the second has failed; nothing is left to be done."""
    config = read_sweep(SWEEP | {"budget": BUDGET} | changes, [])
    base = read_config(write_base(folder))
    sweep = Sweep.create(folder / "s", config, {"base": base}, make_sweep_display(Console(quiet=True)))
    for value in (1.0, None, 3.0):
        trial = sweep.study.claim()
        sweep.study.point(trial)
        sweep.folder.trial(trial.number).make()
        sweep.study.note(trial.number, {COUNTS: {"env_steps": 10}, SECONDS: 2.0, VALUES: {"0": value or 0.0}})
        if value is None:
            sweep.study.fail(trial.number, "seed 0: no memory")
        else:
            sweep.study.complete(trial.number, value)
    sweep._keep_best()
    return folder / "s"


def told(*arguments: object) -> Result:
    """What a command says. Fails for anything but an answer, or a line or two on why there is none."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code in (0, 1, 2), result.output
    assert "Traceback" not in result.output
    assert result.exit_code != 2 or len(result.output.splitlines()) <= 4, result.output
    return result
