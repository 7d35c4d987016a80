"""Makes the pictures of the README from a finished run: python docs/make_pictures.py RUN

docs/images/display.svg: the live display in a terminal of 80x24, before the last evaluation. docs/images/rho.png: rho
over training.
"""

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.segment import SegmentLines

from palestra.recording.display.screen import Screen, Warnings
from palestra.recording.plots import plot_scores
from palestra.recording.results import Evaluation, Progress
from palestra.run.kinds import read_config
from palestra.run.records import History
from palestra.runtime.timing import summed_times
from palestra.storage.records_file import read_records
from palestra.training.opening import named_classes

IMAGES = Path(__file__).parent / "images"
SHOWN = ("length", "loss", "q_mean", "grad_norm", "learning_rate", "exploration")


def main(run: Path) -> None:
    records = read_records(run / "records.jsonl")
    picture = plot_scores(records, "env_steps")
    assert picture is not None
    (IMAGES / "rho.png").write_bytes(picture)
    evaluations = [Evaluation.from_record(record) for record in records if record["kind"] == "evaluation"][:-1]
    moment = [r for r in records if r["kind"] == "training" and r["opt_steps"] <= evaluations[-1].opt_steps][-1]
    config = read_config(run / "config.yml")
    history = History(config.counters)
    for record in records:
        if record["kind"] == "training" and record["opt_steps"] <= moment["opt_steps"]:
            history.add(record)
    lasts = {name: history.last(name) for name in moment["players"]}
    trainer = named_classes(config)[0]
    fraction, seconds = moment[config.stop.unit] / config.stop.after, moment["clock"]["train_seconds"]
    progress = Progress(
        name=run.name,
        run_folder=f"runs/{run.name}",
        device="cpu",
        stages={"train": trainer.train_stage(config), "test": trainer.test_stage(config)},
        stage="train",
        fraction=fraction,
        elapsed_s=seconds,
        remaining_s=seconds * (1 - fraction) / fraction,
        time=summed_times(r for r in records if r["opt_steps"] <= moment["opt_steps"]),
        counters={name: moment[name] for name in ("env_steps", "opt_steps", "epochs", "episodes")},
        rates={name: moment["clock"][f"{name}_per_s"] for name in ("env_steps", "opt_steps")},
        players={name: {key: last[key] for key in SHOWN if key in last} for name, last in lasts.items()},
        curves={name: history.points(name) for name in lasts},
        evaluations=evaluations,
        tasks=[],
        end_reason=None,
        phase=lambda: "updating",
    )
    console = Console(width=80, height=24, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(SegmentLines(Screen().lines(progress, Warnings(0, ()), 0.0, 80, 23), new_lines=True))
    svg = console.export_svg(title="palestra train")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts from elsewhere: the reader's own will do
    (IMAGES / "display.svg").write_text(svg)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
