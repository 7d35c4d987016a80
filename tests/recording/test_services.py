"""W&B offline, MLflow in a local database and trackio on this machine, for real, read back by their own means."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeConfig

import palestra
from palestra.recording.recorders import Recorder, RunCard, RunEnd, Status
from palestra.recording.services import (
    MlflowConfig,
    MlflowRecorder,
    TrackioConfig,
    TrackioRecorder,
    WandbConfig,
    WandbRecorder,
)
from palestra.recording.values import Image, Video
from palestra.run import records as feeds
from palestra.run.records import Feed
from palestra.storage.records_file import JsonlRecorder

SCORES = {"final/host vs random/rho": 0.75}
PARAMS = {"players.host.gamma": 0.9, "players.host.net": "mlp", "seed": 3, "warm_start": None}


def record(number: int) -> dict[str, Any]:
    return {
        "kind": "training",
        "env_steps": 10 * number,
        "players": {"host": {"loss": number / 7}},
        "notes": {
            "actions": {"histogram": {"edges": [0.0, 1.0, 3.0], "counts": [number, 2]}},
            "word": {"text": f"word {number}"},
            "board": {"image": f"media/board-{number}.png"},
            "film": {"video": f"media/film-{number}.gif"},
        },
    }


def file_media(folder: Path, numbers: range) -> None:
    (folder / "media").mkdir(exist_ok=True)
    for number in numbers:
        (folder / "media" / f"board-{number}.png").write_bytes(board(number).to_bytes())
        (folder / "media" / f"film-{number}.gif").write_bytes(film(number).to_bytes())


def board(number: int) -> Image:
    return Image(np.full((4, 6, 3), 10 * number, dtype=np.uint8))


def film(number: int) -> Video:
    return Video(np.stack([board(number).pixels, board(number + 1).pixels]), 10)


def file_records(recorder: Recorder, folder: Path, numbers: range, status: Status) -> None:
    """Append records to the run's records.jsonl, and feed all that stand there, as one process of a run does."""
    jsonl = JsonlRecorder(folder / "records.jsonl")
    file_media(folder, numbers)
    feed = Feed("recorder", recorder, RunCard(folder, PARAMS, "env_steps"), folder / "records.jsonl")
    for number in numbers:
        jsonl.write(record(number))
        feed.notify(jsonl.length)
    feed.end(RunEnd(status, 10 * numbers[-1], SCORES))
    feed.wait()
    jsonl.close()
    assert list(feed.news()) == []
    assert feed.is_complete


def go_on_from(folder: Path, num_records: int) -> None:
    """Cut the run back to a checkpoint."""
    jsonl = JsonlRecorder(folder / "records.jsonl")
    jsonl.cut(sum(len(line) + 1 for line in (folder / "records.jsonl").read_bytes().split(b"\n")[:num_records]))
    jsonl.close()


LOSSES = [(10 * number, number / 7) for number in range(8)]


# ---- Weights & Biases ----------------------------------------------------------------------------------


def wandb_messages(path: Path) -> Iterator[Any]:
    """The messages in a .wandb file: blocks of 32 KiB as of LevelDB's logs, after a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if kind == 0 or place + 7 + length > len(data):  # the rest is being written
            return
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            message = Record()
            message.ParseFromString(whole)
            whole = b""
            yield message


def finished_messages(folder: Path) -> list[Any]:
    """Those of the one offline run; its file is written by a process of wandb's own, which may be a moment behind."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for _ in range(200):
        messages = list(wandb_messages(path))
        if any(message.WhichOneof("record_type") == "exit" for message in messages):
            return messages
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def test_wandb_offline_has_every_record_once_and_keeps_its_run_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    config = WandbConfig(
        name="wandb",
        mode="offline",
        project="palestra-tests",
        entity=None,
        group="seeds",
        run_name=None,
        tags=["mine"],
        notes=None,
        checkpoints=False,
    )
    ids = []
    for numbers, status in ((range(6), "interrupted"), (range(4, 8), "complete")):
        go_on = numbers[0] > 0
        if go_on:
            go_on_from(tmp_path, 4)
        file_records(WandbRecorder(config), tmp_path, numbers, status)
        messages = finished_messages(tmp_path)
        runs = [m.run for m in messages if m.WhichOneof("record_type") == "run"]
        ids.append(runs[0].run_id)
        assert [sorted(run.tags) for run in (runs[0], runs[-1])] == [["mine", "running"], sorted(["mine", status])]
        assert [m.exit.exit_code for m in messages if m.WhichOneof("record_type") == "exit"] == [int(not go_on)]
    assert ids[0] == ids[1] == (tmp_path / "wandb" / "run-id").read_text().strip()
    assert (runs[0].project, runs[0].run_group, runs[0].display_name) == ("palestra-tests", "seeds", tmp_path.name)
    params = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert {key: params[key] for key in PARAMS} == PARAMS
    items = [m.history.item for m in messages if m.WhichOneof("record_type") == "history"]
    rows = [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in row} for row in items]
    assert [(row["env_steps"], row["players/host/loss"]) for row in rows] == LOSSES
    assert [row["_step"] for row in rows] == list(range(8))
    (files,) = tmp_path.glob("wandb/offline-run-*/files")
    for number, row in enumerate(rows):
        assert row["notes/word"] == f"word {number}"
        histogram = {"_type": "histogram", "values": [number, 2], "bins": [0.0, 1.0, 3.0]}
        assert nested(row, "notes/actions") == histogram
        for name, kind, content in (("board", "image-file", board(number)), ("film", "video-file", film(number))):
            shown = nested(row, f"notes/{name}")
            assert shown["_type"] == kind
            assert (files / shown["path"]).read_bytes() == content.to_bytes()
    summary = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for m in messages
        if m.WhichOneof("record_type") == "summary"
        for item in m.summary.update
    }
    assert summary.items() >= SCORES.items()


def nested(row: dict[str, Any], name: str) -> dict[str, Any]:
    """An entry of a row that is a dict: as a whole, or its entries one by one."""
    parts = {key.removeprefix(f"{name}/"): value for key, value in row.items() if key.startswith(f"{name}/")}
    return row.get(name, parts)


def test_wandb_disabled_does_nothing(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    config = WandbConfig(
        name="wandb",
        mode="disabled",
        project="p",
        entity=None,
        group=None,
        run_name=None,
        tags=[],
        notes=None,
        checkpoints=True,
    )
    file_records(WandbRecorder(config), tmp_path, range(3), "complete")
    assert list(tmp_path.rglob("*.wandb")) == []


# ---- MLflow --------------------------------------------------------------------------------------------


def mlflow_config(uri: str) -> MlflowConfig:
    return MlflowConfig(
        name="mlflow",
        tracking_uri=uri,
        experiment="palestra-tests",
        run_name="mine",
        tags={"team": "red"},
        checkpoints=False,
    )


def test_mlflow_has_every_record_once_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # artifacts land in its mlruns/
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    file_records(MlflowRecorder(mlflow_config(uri)), tmp_path, range(6), "interrupted")
    client = mlflow.MlflowClient(uri)
    run_id = (tmp_path / "mlflow" / "run-id").read_text().strip()
    found = client.get_run(run_id)
    assert (found.info.status, found.data.tags["status"]) == ("KILLED", "interrupted")
    go_on_from(tmp_path, 4)
    file_records(MlflowRecorder(mlflow_config(uri)), tmp_path, range(4, 8), "complete")

    experiment = client.get_experiment_by_name("palestra-tests")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == run_id
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert (found.data.tags["status"], found.data.tags["team"]) == ("complete", "red")
    assert found.data.params == {key: "null" if value is None else str(value) for key, value in PARAMS.items()}
    history = client.get_metric_history(run_id, "players/host/loss")
    assert [(metric.step, metric.value) for metric in history] == LOSSES
    assert found.data.metrics["final/host vs random/rho"] == 0.75
    assert found.data.metrics["records"] == 8
    load, place = mlflow.artifacts, found.info.artifact_uri
    for number in range(8):
        assert load.load_text(f"{place}/notes/word-{number}.txt") == f"word {number}"
        histogram = {"edges": [0.0, 1.0, 3.0], "counts": [number, 2]}
        assert load.load_dict(f"{place}/notes/actions-{number}.json") == histogram
    paths = sorted(file.path for file in client.list_artifacts(run_id, "media"))
    assert paths == sorted(f"media/{name}" for n in range(8) for name in (f"board-{n}.png", f"film-{n}.gif"))
    (tmp_path / "downloaded").mkdir()
    file = client.download_artifacts(run_id, "media/board-3.png", str(tmp_path / "downloaded"))
    assert Path(file).read_bytes() == board(3).to_bytes()


def test_checkpoints_are_artifacts_that_can_be_played_with(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was stopped, and went on."""
    monkeypatch.chdir(tmp_path)
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    offline = {"name": "wandb", "mode": "offline", "project": "p", "entity": None, "group": None, "run_name": None}
    recorders = [
        mlflow_config(uri).model_copy(update={"checkpoints": True}).model_dump(),
        offline | {"tags": [], "notes": None, "checkpoints": True},
    ]
    palestra.Trainer(make_config({"output.recorders": recorders}), run=tmp_path / "run").fit(
        num_steps=9, unit="opt_steps"
    )
    palestra.Trainer.load(tmp_path / "run").fit()
    client = mlflow.MlflowClient(uri)
    run_id = Path("run/mlflow/run-id").read_text().strip()
    folder = Path(client.download_artifacts(run_id, "run"))
    assert not list(folder.rglob("buffers"))
    for which in ("latest", "best"):
        records = []
        for place in ("run", folder):
            stored = palestra.StoredRun.open(place)
            stored.load(which)
            records.append(stored.evaluate("main", 6)[1])
        assert str(records[0]) == str(records[1])  # also where a rating has no interval: nan
    named = {
        entry.path
        for message in finished_messages(Path("run"))
        if message.WhichOneof("record_type") == "artifact"
        for entry in message.artifact.manifest.contents
    }
    sent = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"config.yml", "run.json", "checkpoints/latest", "checkpoints/best"} <= named
    assert named <= sent


def test_mlflow_sends_many_records_in_one_request_and_knows_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    sizes, stamps = list[int](), list[int]()
    log_batch = mlflow.MlflowClient.log_batch

    def counted(client: Any, run_id: str, metrics: Any = (), **others: Any) -> None:
        sizes.append(len(metrics))
        stamps.extend(metric.timestamp for metric in metrics if metric.key == "records")
        log_batch(client, run_id, metrics=metrics, **others)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", counted)
    recorder = MlflowRecorder(mlflow_config(f"sqlite:///{tmp_path}/mlflow.db"))
    recorder.open(RunCard(tmp_path, {}, "env_steps"))
    for number in range(400):  # of three metrics each
        recorder.write(number, record(number))
    recorder.write(400, {"env_steps": 4000, **{f"m{i}": i for i in range(1500)}})
    recorder.flush()
    assert sizes == [999, 201, 1000, 502]  # whole records, but for one that is too large
    assert stamps == sorted(set(stamps))
    assert capfd.readouterr() == ("", "")  # the screen is the display's


def test_an_mlflow_server_that_hangs_up_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.01)

    class HangingUp(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.connection.close()

        def finish(self) -> None: ...

    JsonlRecorder(tmp_path / "records.jsonl").write(record(0))
    with ThreadingHTTPServer(("127.0.0.1", 0), HangingUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        recorder = MlflowRecorder(mlflow_config(f"http://127.0.0.1:{server.server_port}"))
        feed = Feed("mlflow", recorder, RunCard(tmp_path, PARAMS, "env_steps"), tmp_path / "records.jsonl")
        feed.end(RunEnd("complete", 0, {}))
        feed.wait()
        server.shutdown()
    first, last = feed.news()
    assert first.startswith("recorder mlflow failed: MlflowException: ")
    assert last.startswith("recorder mlflow is not finished")


# ---- trackio -------------------------------------------------------------------------------------------


def test_trackio_has_every_record_once_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    trackio = pytest.importorskip("trackio")
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    config = TrackioConfig(
        name="trackio", project=f"p{tmp_path.parent.name}-{tmp_path.name}"[-40:], group=None, space_id=None
    )
    file_records(TrackioRecorder(config), tmp_path, range(6), "interrupted")
    go_on_from(tmp_path, 4)
    file_records(TrackioRecorder(config), tmp_path, range(4, 8), "complete")
    assert capsys.readouterr() == ("", "")  # the screen is the display's
    (run,) = trackio.Api().runs(config.project)
    assert {key: run.config[key] for key in PARAMS} == PARAMS
    rows = storage.get_logs(config.project, run.name)
    assert [(row["env_steps"], row["players/host/loss"]) for row in rows if "env_steps" in row] == LOSSES
    for number, row in enumerate(row for row in rows if "env_steps" in row):
        assert row["notes/word"]["_value"] == f"word {number}"
        assert row["notes/actions"] | {"_type": ""} == {"_type": "", "values": [number, 2], "bins": [0.0, 1.0, 3.0]}
        for name, content in (("board", board(number)), ("film", film(number))):
            (file,) = (tmp_path / "store").rglob(Path(row[f"notes/{name}"]["file_path"]).name)
            assert file.read_bytes() == content.to_bytes()
    ends = [row for row in rows if "env_steps" not in row]
    assert [(row["status"], row["final/host vs random/rho"]) for row in ends] == [
        ("interrupted", 0.75),
        ("complete", 0.75),
    ]
