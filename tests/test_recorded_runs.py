"""Recorders beside whole runs: killed and resumed, failing, hanging; training never changes.

Covers palestra.run.run.
"""

import csv
import json
import os
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from palestra.commands.replay import verify
from palestra.config import ConfigError, render
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.trainer import Trainer
from palestra.recording.recorders import Recorder, RunCard, RunEnd, numbers_of, without_clock
from palestra.run import records as feeds
from palestra.run.kinds import read_config
from palestra.storage.disk import Folder
from palestra.storage.records_file import read_records
from palestra.training.checks import TrainingFailed
from tests.forked import run as run_forked

MakeConfig = Callable[..., dict[str, Any]]
TENSORBOARD_AND_CSV = [{"name": "tensorboard"}, {"name": "csv"}]

KILLER = """
import os, signal, time
from pathlib import Path
from palestra.callbacks import Callback
from palestra.config import UserConfig

class Killer(Callback):
    Config = UserConfig

    def after_step(self, trainer, player, metrics):
        if trainer.opt_steps == 22 and "KILL" in os.environ:
            table = Path("run/csv/training.csv")
            while not (table.exists() and "\\n7,96," in table.read_text()):  # recorded after the checkpoint at 80
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.01)


def training_records(run: Path) -> list[dict[str, Any]]:
    return [without_clock(record) for record in read_records(run / "records.jsonl")]


# ---- killed and resumed --------------------------------------------------------------------------------


def csv_rows(run: Path) -> dict[int, dict[str, float]]:
    """The numbers in all tables, by record."""
    rows: dict[int, dict[str, float]] = {}
    for path in (run / "csv").iterdir():
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                number = int(row.pop("record"))
                assert number not in rows
                rows[number] = {name: float(value) for name, value in row.items() if value}
    return rows


def tensorboard_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags = {tag.removeprefix("at_a_glance/").removeprefix("detail/"): tag for tag in events.Tags()["scalars"]}
    assert len(tags) == len(events.Tags()["scalars"])  # each stands in one of the groups alone
    return {name: [(e.step, e.value) for e in events.Scalars(tag)] for name, tag in tags.items()}


def assert_every_record_once(run: Path) -> None:
    records = [numbers_of(record) for record in read_records(run / "records.jsonl")]
    assert csv_rows(run) == dict(enumerate(records))
    expected = defaultdict(list)
    for numbers in records:
        for name, value in numbers.items():
            expected[name].append((numbers["env_steps"], pytest.approx(value, rel=1e-6)))  # float32 there
    found = tensorboard_scalars(run)
    assert {name: found[name] for name in expected} == expected
    assert all(name.startswith("final/") for name in found.keys() - expected.keys())


def test_a_run_that_was_killed_and_resumed_has_every_record_once(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "killing.py").write_text(KILLER)
    config = make_config({"output.recorders": TENSORBOARD_AND_CSV, "callbacks": [{"name": "killing:Killer"}]})
    Trainer(config, run="uninterrupted").fit()
    (in_tmp_path / "config.yml").write_text(render(config, RunConfig))
    command = [sys.executable, "-c", "from palestra.cli import main; main()", "train", "config.yml", "--run", "run"]
    killed = run_forked(command, env=os.environ | {"KILL": "here"}, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    run = in_tmp_path / "run"
    assert 96 in (row["env_steps"] for row in csv_rows(run).values())  # filed beyond the checkpoint, then killed
    Trainer.load(run).fit()
    assert_every_record_once(run)
    assert_every_record_once(in_tmp_path / "uninterrupted")
    assert training_records(run) == training_records(in_tmp_path / "uninterrupted")


# ---- values of every kind ------------------------------------------------------------------------------

NOTER = """
import os, signal
from datetime import datetime, timedelta
import numpy as np
from palestra.callbacks import Callback
from palestra.config import UserConfig
from palestra.recording import Image, Video

class Noter(Callback):
    Config = UserConfig

    def after_step(self, trainer, player, metrics):
        step = trainer.opt_steps
        trainer.note("steps", step)
        trainer.note("actions", np.arange(step, step + 5) / 3)
        trainer.note("words/last", f"step {step}")
        trainer.note("at", datetime(2026, 1, 1) + timedelta(hours=step))
        trainer.note("board", Image(np.full((4, 6), step, dtype=np.uint8)))
        trainer.note("film", Video(np.full((2, 4, 6, 3), step, dtype=np.uint8), 5))
        if step == 22 and "KILL" in os.environ:  # after the checkpoint at 16 and the record at 20
            os.kill(os.getpid(), signal.SIGKILL)
"""


def media(run: Path) -> dict[str, bytes]:
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in (run / "media").rglob("*.*")}


def test_noted_values_of_a_run_that_was_killed_are_those_of_one_that_was_not(
    make_config: MakeConfig, in_tmp_path: Path
) -> None:
    """A checkpoint between two records holds what waits for the second one; a cut record's files are written again."""
    (in_tmp_path / "noting.py").write_text(NOTER)
    config = make_config(
        {
            "output.record": {"every": 5, "unit": "opt_steps"},
            "output.statistics": ["mean", "std", "min", "max", "last", "count"],
            "output.recorders": TENSORBOARD_AND_CSV,
            "callbacks": [{"name": "noting:Noter"}],
        }
    )
    Trainer(config, run="uninterrupted").fit()
    (in_tmp_path / "config.yml").write_text(render(config, RunConfig))
    command = [sys.executable, "-c", "from palestra.cli import main; main()", "train", "config.yml", "--run", "run"]
    killed = run_forked(command, env=os.environ | {"KILL": "here"}, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    run, uninterrupted = in_tmp_path / "run", in_tmp_path / "uninterrupted"
    Trainer.load(run).fit()
    assert_every_record_once(run)
    written, expected = training_records(run), training_records(uninterrupted)
    assert list(map(json.dumps, written)) == list(map(json.dumps, expected))  # in the same order, too
    assert media(run) == media(uninterrupted)

    noted = [record for record in expected if "notes" in record]
    before = 0
    for record in noted:
        steps, step = range(before + 1, record["opt_steps"] + 1), record["opt_steps"]
        notes, before = record["notes"], step
        assert (notes["steps/min"], notes["steps/max"], notes["steps/count"]) == (steps[0], step, len(steps))
        assert notes["steps"] == sum(steps) / len(steps)
        assert sum(notes["actions"]["histogram"]["counts"]) == 5 * len(steps)
        assert notes["words/last"] == {"text": f"step {step}"}
        files = {f"media/notes/{name}-{record['env_steps']}-{step}.{kind}" for name, kind in MEDIA}
        assert {notes["board"]["image"], notes["film"]["video"]} == files
        assert files <= media(run).keys()
    assert before == 24
    assert len(media(run)) == 2 * len(noted)


MEDIA = (("board", "png"), ("film", "gif"))


def test_a_disk_that_refuses_a_picture_costs_the_picture_alone(
    make_config: MakeConfig, in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (in_tmp_path / "noting.py").write_text(NOTER)

    original = Folder.write

    def refuse(folder: Folder, name: str, content: bytes) -> None:
        if name.endswith(".png"):
            raise OSError(28, "No space left on device")
        original(folder, name, content)

    monkeypatch.setattr(Folder, "write", refuse)
    Trainer(make_config({"callbacks": [{"name": "noting:Noter"}]}), run="run").fit()
    noted = [record["notes"] for record in training_records(in_tmp_path / "run") if "notes" in record]
    assert [notes["board"] for notes in noted] == [None] * 6
    assert [notes["words/last"]["text"] for notes in noted] == [f"step {step}" for step in range(4, 25, 4)]
    assert "board-" in capfd.readouterr().out


# ---- failing, hanging ----------------------------------------------------------------------------------


class Broken(Recorder):
    """Raises at one of its calls, again and again."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.ends: list[RunEnd] = []

    def fail_at(self, call: str) -> None:
        if call == self.call:
            raise RuntimeError(f"broken at {call}")

    def open(self, run: RunCard) -> int:
        self.fail_at("open")
        return 0

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        self.fail_at("write")

    def flush(self) -> None:
        self.fail_at("flush")

    def close(self, end: RunEnd) -> None:
        self.fail_at("close")
        self.ends.append(end)


def use(recorders: dict[str, Recorder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.run.run.make_recorders", lambda configs: recorders)


@pytest.mark.parametrize("call", ["open", "write", "flush", "close"])
def test_a_broken_recorder_changes_no_record_and_is_reported(
    call: str,
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = make_config({"output.display": "plain"})
    Trainer(config, run=tmp_path / "alone").fit()
    sound = Broken("nowhere")
    use({"broken": Broken(call), "sound": sound}, monkeypatch)
    trainer = Trainer(config, run=tmp_path / "run")
    capfd.readouterr()
    trainer.fit()
    assert trainer.finished
    assert training_records(tmp_path / "run") == training_records(tmp_path / "alone")
    output = capfd.readouterr().out
    assert output.count(f"recorder broken failed: RuntimeError: broken at {call}; it is tried again") == 1
    assert output.count("recorder broken is not finished") == 1
    assert "recorder sound" not in output
    assert [end.status for end in sound.ends] == ["complete"]


def test_a_server_that_never_answers_changes_no_record(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feeds, "PATIENCE_S", 0.3)
    config = make_config({"output.display": "plain"})
    Trainer(config, run=tmp_path / "alone").fit()
    with socket.create_server(("127.0.0.1", 0)) as server:

        class Remote(Broken):
            def open(self, run: RunCard) -> int:
                with socket.create_connection(server.getsockname()) as connection:
                    return len(connection.recv(1))  # waits until the server is gone

        use({"remote": Remote("nowhere")}, monkeypatch)
        Trainer(config, run=tmp_path / "run").fit()
    assert training_records(tmp_path / "run") == training_records(tmp_path / "alone")
    assert "recorder remote is not finished" in capfd.readouterr().out


# ---- how a run ended -----------------------------------------------------------------------------------


def test_recorders_hear_how_the_run_ended_and_its_final_scores(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Broken("nowhere")
    use({"recorder": recorder}, monkeypatch)
    safe_point = Trainer.safe_point

    def leaving(trainer: Trainer) -> None:
        if trainer.opt_steps == 12:
            trainer.run.signals.received = signal.SIGTERM
        safe_point(trainer)

    def failing(trainer: Trainer) -> None:
        if trainer.opt_steps == 16:
            raise TrainingFailed("for once")
        safe_point(trainer)

    monkeypatch.setattr(Trainer, "safe_point", leaving)
    Trainer(make_config(), run=tmp_path / "run").fit()
    monkeypatch.setattr(Trainer, "safe_point", failing)
    with pytest.raises(TrainingFailed):
        Trainer.load(tmp_path / "run").fit()
    monkeypatch.setattr(Trainer, "safe_point", safe_point)
    Trainer.load(tmp_path / "run").fit()
    Trainer.load(tmp_path / "run").fit()  # is finished: nothing is told
    assert [end.status for end in recorder.ends] == ["interrupted", "failed", "complete"]
    pairs = next(record for record in reversed(read_records(tmp_path / "run" / "records.jsonl")) if "pairs" in record)
    by_name = {
        " vs ".join(pair["players"].values()): pair["scores"]["rho"] for pair in pairs["pairs"] if pair["learned"]
    }
    assert recorder.ends[-1].scores == {f"final/main/{name}/rho": rho for name, rho in by_name.items()}
    assert recorder.ends[-1].step == read_records(tmp_path / "run" / "records.jsonl")[-1]["env_steps"]


def test_recorders_get_no_final_scores_of_a_run_that_was_evaluated_at_opt_step_0_alone(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Broken("nowhere")
    use({"recorder": recorder}, monkeypatch)
    Trainer(make_config(), run=tmp_path / "run").fit(4, "opt_steps")
    evaluated = [
        record["opt_steps"] for record in read_records(tmp_path / "run" / "records.jsonl") if "pairs" in record
    ]
    assert (evaluated, recorder.ends[-1].scores) == ([0], {})


def hparams_tab(folder: Path) -> tuple[dict[str, float], int]:
    """The row that TensorBoard's HPARAMS tab has for the only run in a folder: its final scores, and its status."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, list_session_groups
    from tensorboard.plugins.hparams.backend_context import Context

    events = EventMultiplexer().AddRunsFromDirectory(str(folder))
    events.Reload()
    backend = Context(TBContext(multiplexer=events, data_provider=MultiplexerDataProvider(events, str(folder))))
    request = api_pb2.ListSessionGroupsRequest(slice_size=9, allowed_statuses=api_pb2.Status.values())
    (group,) = list_session_groups.Handler(RequestContext(), backend, "", request).run().session_groups
    (session,) = group.sessions
    values = {each.name.tag: each.value for each in session.metric_values if each.name.tag.startswith("final/")}
    return values, session.status


def test_tensorboards_hparams_tab_has_the_final_scores_of_stopped_resumed_and_finished_runs(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expected() -> dict[str, float]:
        records = [record for record in read_records(tmp_path / "run" / "records.jsonl") if "pairs" in record]
        learned = [pair for pair in records[-1]["pairs"] if pair["learned"]]
        return {f"final/main/{' vs '.join(pair['players'].values())}/rho": pair["scores"]["rho"] for pair in learned}

    safe_point = Trainer.safe_point

    def leaving(trainer: Trainer) -> None:
        if trainer.opt_steps == 12:
            trainer.run.signals.received = signal.SIGTERM
        safe_point(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "safe_point", leaving)
        Trainer(make_config({"output.recorders": [{"name": "tensorboard"}]}), run=tmp_path / "run").fit()
    stopped = expected()
    assert stopped
    assert hparams_tab(tmp_path / "run") == (pytest.approx(stopped), 0)  # STATUS_UNKNOWN
    Trainer.load(tmp_path / "run").fit()
    assert expected() != stopped
    assert hparams_tab(tmp_path / "run") == (pytest.approx(expected()), 1)  # STATUS_SUCCESS


def test_a_finished_run_is_filed_on_resume_where_a_recorder_was_away(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, sound = Broken("open"), Broken("nowhere")
    use({"away": away, "sound": sound}, monkeypatch)
    Trainer(make_config(), run=tmp_path / "run").fit()
    assert (away.ends, len(sound.ends)) == ([], 1)
    away.call = "nowhere"
    for _ in range(2):
        Trainer.load(tmp_path / "run").fit()
        assert away.ends == sound.ends


def test_verify_tells_no_recorder_of_its_replay(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainer(make_config({"output.recorders": [{"name": "csv"}]}), run=tmp_path / "run").fit()
    asked: list[Any] = []
    monkeypatch.setattr("palestra.run.run.make_recorders", lambda configs: asked.append(configs) or {})
    assert verify(tmp_path / "run", None).difference is None
    assert asked == [[]]


def test_a_recorder_named_twice_is_an_error(make_config: MakeConfig) -> None:
    config = make_config({"output.recorders": [{"name": "csv"}, {"name": "tensorboard"}, {"name": "csv"}]})
    with pytest.raises(ConfigError, match=r"^output\.recorders\.2\.name: expected each recorder once, got 'csv' twice"):
        read_config(config)
