"""Records as tidy rows, and as tables that pandas and polars read."""

import io
import json
import sys
from pathlib import Path

import pandas
import polars
import pytest
from conftest import TINY
from typer.testing import CliRunner, Result

import palestra
from palestra.cli import app
from palestra.kinds.games.config import RunConfig
from palestra.run.tables import Row, Rows, cells, rows_of_record, rows_of_runs, table, to_csv, to_parquet
from palestra.storage.records_file import read_records
from tests.records import POLYHEDRA, evaluation_of

TRAINING = {
    "kind": "training",
    "env_steps": 8,
    "opt_steps": 2,
    "epochs": 1,
    "episodes": 3,
    "players": {"host": {"loss": 0.1, "q_mean": None}},
    "clock": {"train_seconds": 1.5},
}
PAIR = {"players": {"host": "host", "agent": "random"}, "learned": ["host"]}
PAIR |= {"scores": {"rho": 0.25, "return/host": 2}, "intervals": {}}
COUNTERS = {"env_steps": 8, "opt_steps": 2, "epochs": 1, "episodes": 3}
AXES = ("env_steps", "opt_steps")
EVALUATION = evaluation_of([PAIR], (), POLYHEDRA, **COUNTERS, clock={"seconds": 0.5})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palestra.run.run.plot_scores", lambda *_: None)
        for seed in (0, 1):
            palestra.Trainer(TINY | {"seed": seed}, run=folder / "tiny" / f"seed-{seed}").fit()
    return [folder / "tiny" / f"seed-{seed}" for seed in (0, 1)]


def flat(rows: list[Row]) -> list[tuple[object, ...]]:
    return [tuple(cells(row, AXES)) for row in rows]


def read(run: Path) -> list[Row]:
    """The rows of a run in which nothing is damaged."""
    return list(rows_of_runs([run], pytest.fail).rows)


def palestra_table(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["table", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def test_every_number_of_a_training_record_is_a_row_and_what_is_not_known_is_none() -> None:
    assert list(rows_of_record(TRAINING, RunConfig, "mine", 7)) == [
        Row("mine", 7, COUNTERS, "epochs", 1.0),
        Row("mine", 7, COUNTERS, "episodes", 3.0),
        Row("mine", 7, COUNTERS, "players/host/loss", 0.1),
        Row("mine", 7, COUNTERS, "clock/train_seconds", 1.5),
    ]


def test_the_rows_of_an_evaluation_name_it_and_its_players() -> None:
    assert list(rows_of_record(EVALUATION, RunConfig, "mine", 7)) == [
        Row("mine", 7, COUNTERS, "evaluation/main/clock/seconds", 0.5),
        Row("mine", 7, COUNTERS, "evaluation/main/host vs random/rho", 0.25),
        Row("mine", 7, COUNTERS, "evaluation/main/host vs random/return/host", 2.0),
    ]


def test_records_of_other_kinds_have_no_rows() -> None:
    failed = {"kind": "failed_evaluation", "env_steps": 8, "opt_steps": 2, "evaluation": "main", "why": "it died"}
    assert list(rows_of_record(failed, RunConfig, "mine", 7)) == []


def test_a_row_of_a_run_is_known_by_its_name_and_steps(runs: list[Path]) -> None:
    rows = read(runs[0])
    assert {row.run for row in rows} == {"tiny/seed-0"}
    assert len({(row.name, *row.counters.values()) for row in rows}) == len(rows)
    records = read_records(runs[0] / "records.jsonl")
    rho = [record["pairs"][0]["scores"]["rho"] for record in records if record["kind"] == "evaluation"]
    first = next(row.name for row in rows if row.name.endswith("/rho"))
    assert [row.value for row in rows if row.name == first] == rho
    losses = [record["players"]["host"]["loss"] for record in records if record["kind"] == "training"]
    assert [row.value for row in rows if row.name == "players/host/loss"] == [x for x in losses if x is not None]


def test_a_stored_run_gives_its_rows_and_frames_of_both_libraries(runs: list[Path]) -> None:
    stored = palestra.StoredRun.open(runs[1])
    rows = list(stored.records())
    assert rows == read(runs[1])
    of_pandas, of_polars = stored.table(), stored.table("polars")
    assert isinstance(of_pandas, pandas.DataFrame)
    assert isinstance(of_polars, polars.DataFrame)
    assert list(of_pandas.itertuples(index=False, name=None)) == flat(rows)
    assert of_polars.rows() == flat(rows)
    assert of_polars.schema["seed"] == polars.Int64
    assert of_polars.schema == table(Rows(AXES, []), "polars").schema  # also when a run has recorded nothing
    assert of_pandas["value"].dtype == table(Rows(AXES, []), "pandas")["value"].dtype == "float64"


def test_a_damaged_line_is_left_out_and_told(runs: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "damaged"
    run.mkdir()
    for name in ("config.yml", "run.json"):
        (run / name).write_bytes((runs[0] / name).read_bytes())
    lines = ["{", json.dumps(EVALUATION | {"pairs": [{"rho": 1.0}]}), json.dumps(TRAINING | {"env_steps": "8"})]
    (run / "records.jsonl").write_text("\n".join([*lines, json.dumps(TRAINING), ""]))
    told: list[str] = []
    assert [row.name for row in rows_of_runs([run], told.append).rows][-2:] == [
        "players/host/loss",
        "clock/train_seconds",
    ]
    assert len(told) == 3
    with pytest.warns(UserWarning, match="line 3: env_steps: expected it to be a valid integer, got '8'"):
        assert len(list(palestra.StoredRun.open(run).records())) == 4


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_told_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(palestra.ConfigError, match=rf"{library} needs an extra: pip install 'palestra\[frames\]'"):
        table(Rows(AXES, []), library)  # type: ignore[arg-type]


def test_another_library_is_refused() -> None:
    with pytest.raises(ValueError, match="expected pandas or polars, got 'dask'"):
        table(Rows(AXES, []), "dask")  # type: ignore[arg-type]


# ---- palestra table ------------------------------------------------------------------------------------


def test_the_table_of_several_runs_goes_to_standard_output_as_csv(runs: list[Path]) -> None:
    text = palestra_table(*runs).stdout
    assert text == to_csv(Rows(AXES, [*read(runs[0]), *read(runs[1])]))
    assert text.splitlines()[0] == "run,seed,env_steps,opt_steps,name,value"
    read_again = pandas.read_csv(io.StringIO(text))
    assert list(read_again.itertuples(index=False, name=None)) == flat([*read(runs[0]), *read(runs[1])])


def test_a_table_takes_the_names_that_it_lists_and_the_ends_of_their_words(runs: list[Path]) -> None:
    rows = [*read(runs[0]), *read(runs[1])]
    name = next(row.name for row in rows if row.name.endswith(" vs random/rho"))
    for metric in (name, "random/rho", "rho"):
        found = palestra_table(*runs, "--metrics", metric).stdout
        assert found == to_csv(Rows(AXES, [row for row in rows if row.name.endswith(metric)])), metric
    told = palestra_table(*runs, "--metrics", name[:-1], code=2).stderr
    assert f"got {name[:-1]!r}; recorded are '{name}'" in told


def test_the_table_as_parquet_has_the_same_rows_as_in_csv(runs: list[Path], tmp_path: Path) -> None:
    result = palestra_table(*runs, "--csv", tmp_path / "table.csv", "--parquet", tmp_path / "table.parquet")
    assert result.stdout == ""
    rows = [*read(runs[0]), *read(runs[1])]
    assert (tmp_path / "table.csv").read_text() == to_csv(Rows(AXES, rows))
    found = pandas.read_parquet(tmp_path / "table.parquet")
    assert list(found.itertuples(index=False, name=None)) == flat(rows)
    assert polars.read_parquet(tmp_path / "table.parquet").rows() == flat(rows)
    assert to_parquet(Rows(AXES, rows)) == (tmp_path / "table.parquet").read_bytes()


def test_runs_of_the_same_name_are_named_by_their_paths_and_each_run_stands_there_once(
    runs: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / "tiny" / "seed-0"
    other.parent.mkdir()
    other.symlink_to(runs[1])
    copied = tmp_path / "again" / "tiny" / "seed-1"
    copied.mkdir(parents=True)
    for name in ("config.yml", "run.json", "records.jsonl"):
        (copied / name).write_bytes((runs[1] / name).read_bytes())
    found = list(rows_of_runs([runs[1], copied, runs[1], other], pytest.fail).rows)
    assert list(dict.fromkeys(row.run for row in found)) == [str(other), str(copied)]
    assert len(found) == 2 * len(read(runs[1]))


def test_without_the_extra_parquet_is_refused_and_csv_is_not(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = palestra_table(*runs, "--parquet", tmp_path / "table.parquet", code=2)
    assert result.stderr == "--parquet: pyarrow needs an extra: pip install 'palestra[frames]'\n"
    assert not (tmp_path / "table.parquet").exists()
    palestra_table(*runs, "--csv", tmp_path / "table.csv")


def test_a_folder_that_is_no_run_is_refused_before_anything_is_printed(runs: list[Path], tmp_path: Path) -> None:
    result = palestra_table(runs[0], tmp_path, code=2)
    assert result.stdout == ""
    assert str(tmp_path) in result.stderr


def test_the_frame_of_the_rows_can_be_pivoted_by_name(runs: list[Path]) -> None:
    wide = table(rows_of_runs(runs, pytest.fail), "pandas").pivot(
        index=["run", "env_steps", "opt_steps"], columns="name", values="value"
    )
    assert wide["players/host/loss"].notna().any()
