"""How fast palestra learns from rows beside d3rlpy, and what the rows cost: seconds of the processor, one thread."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import comparing
from benchmarks.comparing import Comparison, Data, Measured
from benchmarks.measuring import ROOT
from benchmarks.offline.ours import write_rows
from benchmarks.peers.processes import OWN_PYTHON, Script

NAME = "offline"
OURS = Script("benchmarks.offline.ours", OWN_PYTHON)
D3RLPY = Script("benchmarks.peers.d3rlpy", ROOT / ".venv-d3rlpy" / "bin" / "python")  # its module says how it is made
TITLES = {"bc": "BC", "iql": "IQL", "awac": "AWAC", "td3_bc": "TD3+BC"}
AIMS = {"bc": "2.4", "iql": "1.7", "awac": "1.5", "td3_bc": "1.8"}
NUM_ROWS, MANY_ROWS, FEW_ROWS = 100_000, 1_000_000, 20_000


def opt_steps_per_s(answer: Data) -> float:
    return float(answer["opt_steps"] / answer["cpu_seconds"])


def cpu_seconds(answer: Data) -> float:
    return float(answer["cpu_seconds"])


def microseconds(answer: Data) -> float:
    return float(1e6 * answer["cpu_seconds"] / answer["opt_steps"])


def comparisons(folder: Path, is_quick: bool) -> Iterator[Comparison]:
    """All rows of the table. folder: where files of random rows of Hopper's shapes are written."""
    rows, many = folder / "rows.npz", folder / "many.npz"
    num_many = MANY_ROWS // 10 if is_quick else MANY_ROWS
    write_rows(rows, NUM_ROWS)
    write_rows(many, num_many)
    for number, (name, title) in enumerate(TITLES.items(), 1):
        contenders: dict[str, tuple[Script, Data]] = {
            "d3rlpy": (D3RLPY, {"loop": "bare"}),
            "palestra": (OURS, {"kind": "opt_steps", "loop": "bare"}),
            "palestra's trainer": (OURS, {"kind": "opt_steps", "loop": "fit"}),
            "d3rlpy's fit": (D3RLPY, {"loop": "fit"}),
            "matrix products alone": (OURS, {"kind": "products"}),
        }
        work: Data = {"algorithm": name, "rows": str(rows)}
        yield Comparison(
            f"D{number}", f"{title}, batch 256", "opt steps/s", work, contenders, opt_steps_per_s, AIMS[name]
        )
    memories = {each: (OURS, {"memory": each}) for each in ("uniform", "half data, half own")}
    work = {"kind": "batches", "rows": str(rows)}
    yield Comparison("D5", "a batch of 256", "microseconds", work, memories, microseconds, "at most 1.3")
    opened = {
        "read and hashed": (OURS, {"what": "hash"}),
        "palestra": (OURS, {"what": "ready"}),
        "np.load": (OURS, {"what": "load"}),
    }
    work = {"kind": "ready", "rows": str(many), "num_rows": num_many}
    yield Comparison("D6", f"{num_many:,} rows from .npz", "s", work, opened, cpu_seconds, "at most 8")
    recorded = {"an evaluation": (OURS, {"what": "play"}), "data collect": (OURS, {"what": "collect"})}
    work = {"kind": "collect", "num_rows": FEW_ROWS}
    yield Comparison("D7", "Hopper, a step of play", "microseconds", work, recorded, microseconds, "at most 1.15")


def details(all_measured: Sequence[Measured]) -> Iterator[str]:
    """Shares of the matrix products, and memory."""
    for measured in all_measured:
        row, values = measured.comparison.row, measured.values
        if {"matrix products alone", "palestra"} <= set(values):
            pairs = zip(values["palestra"], values["matrix products alone"], strict=True)
            yield f"- {row}: the matrix products alone take {median(a / b for a, b in pairs):.2g} of palestra's time"
        for answer in measured.answers.get("palestra", [])[:1]:
            if "resident_per_byte" in answer:
                told = f"{answer['resident_per_byte']:.3g} for each byte of the file, {answer['peak_per_byte']:.3g}"
                yield f"- {row}: bytes in memory: {told} at most meanwhile"


def main(doc: str | None) -> None:
    with TemporaryDirectory() as place:
        rows = [f"D{number}" for number in range(1, 8)]
        options = comparing.options_of(NAME, doc, rows, num_repeats=5)
        all_measured = [Measured(c, 1) for c in comparisons(Path(place), options.quick) if c.row in options.rows]
        for measured in all_measured:
            measured.measure(options.repeats, {"timed_seconds": 1.0 if options.quick else 4.0}, 900.0)
    text = comparing.report(all_measured, [*details(all_measured)])
    comparing.write("speed", all_measured, text, options.out)
    print(text)
