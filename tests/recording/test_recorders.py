"""What recorders promise.

Covers palestra.recording, palestra.recording.files.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ImageSequence

from palestra.config import Config, ConfigError, check
from palestra.recording import RecorderConfig, make_recorders
from palestra.recording.files import CsvConfig, CsvRecorder, TensorBoardConfig, TensorBoardRecorder
from palestra.recording.recorders import RunCard, RunEnd, flat_params, numbers_of, without_clock
from palestra.recording.services import MlflowConfig
from palestra.recording.values import Histogram, Image, Media, Video, values_of
from palestra.storage.records_file import JsonlRecorder, Measure, read_records
from tests.forked import run as run_forked
from tests.records import POLYHEDRA, RHO, evaluation_of, played_pair, returns_in


def test_a_record_is_one_line_with_its_keys_in_the_order_given(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "records.jsonl")
    recorder.write({"env_steps": 2, "b": {"z": 1, "a": "two\nlines"}, "a": None})
    recorder.write({"env_steps": 3, "clock": {"seconds": 0.5}})
    text = (tmp_path / "records.jsonl").read_text()  # before close: every line is flushed
    assert text == (
        '{"env_steps": 2, "b": {"z": 1, "a": "two\\nlines"}, "a": null}\n{"env_steps": 3, "clock": {"seconds": 0.5}}\n'
    )
    assert recorder.length == len(text)
    recorder.close()


def test_nan_and_infinities_become_null(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "r")
    recorder.write(
        {"a": float("nan"), "b": [float("inf"), 1.0], "c": torch.tensor(float("nan")), "d": np.float32("-inf")}
    )
    assert (tmp_path / "r").read_text() == '{"a": null, "b": [null, 1.0], "c": null, "d": null}\n'


def test_numbers_of_numpy_and_torch_are_accepted(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "r")
    values = [
        np.int64(3),
        np.float64(0.1),
        np.bool_(True),
        torch.tensor(2**40),
        torch.tensor(0.5, dtype=torch.bfloat16),
    ]
    recorder.write({"values": values, "array": np.arange(3), "tensor": torch.ones(1, 2, requires_grad=True)})
    assert read_records(tmp_path / "r") == [
        {"values": [3, 0.1, True, 2**40, 0.5], "array": [0, 1, 2], "tensor": [[1.0, 1.0]]}
    ]


def test_what_has_no_place_in_json_is_an_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "r")
    recorder.write({"a": 1})
    with pytest.raises(TypeError):
        recorder.write({"a": 1, "b": object()})
    recorder.write({"a": 2})
    assert read_records(tmp_path / "r") == [{"a": 1}, {"a": 2}]


def test_cut_back_to_a_checkpoint_and_written_again_gives_the_same_bytes(tmp_path: Path) -> None:
    records = [{"env_steps": step, "loss": step / 7} for step in range(6)]
    whole = JsonlRecorder(tmp_path / "whole")
    for record in records:
        whole.write(record)
    cut = JsonlRecorder(tmp_path / "cut")
    for record in records[:3]:
        cut.write(record)
    length = cut.length
    cut.write({"env_steps": 3, "loss": "never to be seen"})
    cut.close()
    with open(tmp_path / "cut", "ab") as file:
        file.write(b'{"env_steps": 4, "lo')  # a kill in the middle of a line
    resumed = JsonlRecorder(tmp_path / "cut")
    resumed.cut(length)
    assert resumed.length == length
    for record in records[3:]:
        resumed.write(record)
    resumed.flush()
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert resumed.length == whole.length


def test_what_a_checkpoint_says_of_the_records_is_what_a_cut_has_left(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "r")
    recorder.write({"a": 1})
    before = recorder.measure.then()
    recorder.write({"a": 2})
    assert recorder.measure.then() == Measure([(tmp_path / "r").read_bytes()]).then() != before
    recorder.cut(before.length)
    assert recorder.measure.then() == before


def test_cut_repairs_a_last_line_that_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    recorder = JsonlRecorder(path)
    recorder.cut(10_000)
    recorder.write({"a": 3})
    assert read_records(path) == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("torn", [b'{"a": 2', b"{", b'"a', b"12", b"\x00\x00\x00", b"\xc3", b""], ids=repr)
def test_a_torn_last_line_is_left_out_when_records_are_read(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'{"a": 1}\n' + torn)
    assert read_records(path) == [{"a": 1}]


def test_a_spoilt_line_before_the_last_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(ValueError, match=r"r, line 2: "):
        read_records(path)


def test_records_that_differ_by_the_clock_alone_are_equal_without_it() -> None:
    one, two = ({"env_steps": 1, "loss": {"host": 0.5}, "clock": {"seconds": s}} for s in (1.0, 2.0))
    assert without_clock(one) == without_clock(two) == {"env_steps": 1, "loss": {"host": 0.5}}
    assert "clock" in one


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def card(folder: Path) -> RunCard:
    params = {"players.host.gamma": 0.9, "players.host.net": "mlp", "seed": 3, "warm_start": None}
    return RunCard(folder, params, "env_steps")


def read_hparams(folder: Path) -> tuple[dict[str, object], int | None]:
    """As TensorBoard's own plugin reads them: the hyperparameters, and the status of the session's end."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    events = EventAccumulator(str(folder))
    events.Reload()
    found = events.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(found[metadata.SESSION_START_INFO_TAG])
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    if metadata.SESSION_END_INFO_TAG not in found:
        return values, None
    return values, metadata.parse_session_end_info_plugin_data(found[metadata.SESSION_END_INFO_TAG]).status


def test_numbers_have_names_and_evaluations_name_their_players() -> None:
    record = {
        "kind": "evaluation",
        "evaluation": "main",
        "env_steps": 8,
        "ratings": {"host": {"host": 12.5}},
        "roles": ["host", "agent"],
        "pairs": [
            {
                "players": {"agent": "random", "host": "host"},
                "learned": ["host"],
                "scores": {"rho": 0.25, "return/host": 1.0},
                "intervals": {"rho": [0.125, None]},
            },
            {
                "players": {"host": "random", "agent": "agent"},
                "learned": ["agent"],
                "scores": {"rho": None},
                "intervals": {},
                "actions": [1, 2],
            },
        ],
        "clock": {"seconds": 0.5},
    }
    assert numbers_of(record) == {
        "env_steps": 8,
        "clock/seconds": 0.5,
        "evaluation/main/ratings/host/host": 12.5,
        "evaluation/main/host vs random/rho": 0.25,
        "evaluation/main/host vs random/rho/low": 0.125,
        "evaluation/main/host vs random/return/host": 1.0,
    }


def test_params_are_the_config_flattened() -> None:
    data = {"seed": 0, "best": None, "net": {"net_arch": [8, "b"]}, "pairings": [{"agent": "a"}, {}], "tags": {}}
    assert flat_params(data) == {
        "seed": 0,
        "best": None,
        "net.net_arch": '[8, "b"]',
        "pairings.0.agent": "a",
        "pairings.1": "{}",
        "tags": "{}",
    }


def test_tensorboard_shows_numbers_hyperparameters_and_how_the_run_ended(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(TensorBoardConfig(name="tensorboard"))
    assert recorder.open(card(tmp_path)) == 0
    recorder.write(0, {"env_steps": 64, "players": {"host": {"loss": 0.5, "name": "dqn"}}})
    recorder.write(1, {"env_steps": 128, "players": {"host": {"loss": 0.125}}, "clock": {"seconds": 1}})
    recorder.flush()
    params = {"players.host.gamma": 0.9, "players.host.net": "mlp", "seed": 3.0, "warm_start": "null"}
    assert read_hparams(tmp_path / "tensorboard") == (params, None)
    recorder.close(RunEnd("failed", 130, {"final/host vs random/rho": 0.75}))
    scalars = read_scalars(tmp_path / "tensorboard")
    assert scalars["at_a_glance/players/host/loss"] == [(64, 0.5), (128, 0.125)]
    assert scalars["detail/clock/seconds"] == [(128, 1.0)]
    assert scalars["final/host vs random/rho"] == [(130, 0.75)]
    assert "players/host/name" not in scalars
    assert read_hparams(tmp_path / "tensorboard") == (params, 2)  # STATUS_FAILURE


def test_tensorboard_has_twenty_scalars_at_a_glance_that_stay_the_same(tmp_path: Path) -> None:
    """Scores of learning players first; other scalars, and what comes when there is no room, are details."""
    recorder = TensorBoardRecorder(TensorBoardConfig(name="tensorboard"))
    recorder.open(card(tmp_path))

    def pair(host: str, agent: str, *learned: str) -> dict[str, Any]:
        return played_pair({"host": host, "agent": agent}, learned, {"rho": 0.5}, 0.0, intervals={}, games=9)

    pairs = [pair("a", f"b{i}", "host") for i in range(14)]
    players = {"first": "a", "second": "b"}
    games = played_pair(players, ["second"], {"return/first": 1.0, "return/second": 2.0}, 0.0)
    metrics = {f"p{i}": {"loss": 1.0, "q_mean": 2.0, "episodes": {"return": {"host": 3.0}}} for i in range(9)}
    recorder.write(0, evaluation_of([games], returns_in("first", "second"), [*players], env_steps=0))
    recorder.write(0, evaluation_of([pair("x", "y"), *pairs], RHO, POLYHEDRA, env_steps=0))
    recorder.write(1, {"env_steps": 8, "players": metrics})
    recorder.write(2, {"env_steps": 16, "players": {"p9": {"loss": 1.0}}})
    recorder.close(RunEnd("complete", 16, {"final/x": 1.0}))
    tags = read_scalars(tmp_path / "tensorboard").keys()
    glance = {tag.removeprefix("at_a_glance/") for tag in tags if tag.startswith("at_a_glance/")}
    expected = {"evaluation/main/a vs b/return/second"} | {f"evaluation/main/a vs b{i}/rho" for i in range(11)}
    expected |= {f"players/p{i}/episodes/return/host" for i in range(8)}
    assert glance == expected
    assert len(glance) == 20
    assert {"detail/evaluation/main/x vs y/rho", "detail/players/p0/loss", "detail/players/p9/loss"} <= tags
    assert {tag.split("/")[0] for tag in tags} == {"at_a_glance", "detail", "final"}
    assert sorted(tags)[0].startswith("at_a_glance/")


def test_tensorboard_and_csv_begin_anew_when_a_run_goes_on(tmp_path: Path) -> None:
    for recorder in (TensorBoardRecorder(TensorBoardConfig(name="tensorboard")), CsvRecorder(CsvConfig(name="csv"))):
        recorder.open(card(tmp_path))
        for number, step in enumerate((0, 10, 20, 20)):
            recorder.write(number, {"kind": "training", "env_steps": step, "loss": 1.0})
        recorder.flush()
        assert recorder.open(card(tmp_path)) == 0
        for number, step in enumerate((0, 10, 10)):
            recorder.write(number, {"kind": "training", "env_steps": step, "loss": 2.0})
        recorder.close(RunEnd("complete", 10, {}))
    assert read_scalars(tmp_path / "tensorboard")["detail/loss"] == [(0, 2.0), (10, 2.0), (10, 2.0)]
    assert (tmp_path / "csv" / "training.csv").read_text() == "record,env_steps,loss\n0,0,2.0\n1,10,2.0\n2,10,2.0\n"


def test_csv_gets_new_columns_and_a_table_for_each_kind(tmp_path: Path) -> None:
    recorder = CsvRecorder(CsvConfig(name="csv"))
    recorder.open(card(tmp_path))
    recorder.write(0, {"kind": "training", "env_steps": 1, "a": 0.1})
    recorder.flush()
    recorder.write(1, {"kind": "evaluation", "env_steps": 1, "score, 'x'": 7})
    recorder.write(2, {"kind": "training", "env_steps": 2, "b": 1e-30})
    recorder.flush()
    recorder.write(3, {"kind": "training", "env_steps": 3, "b": 2, "a": None})
    recorder.close(RunEnd("complete", 3, {}))
    tables = {path.name: path.read_text() for path in (tmp_path / "csv").iterdir()}
    assert tables == {
        "training.csv": "record,env_steps,a,b\n0,1,0.1,\n2,2,,1e-30\n3,3,,2\n",
        "evaluation.csv": "record,env_steps,\"score, 'x'\"\n1,1,7\n",
    }


def values_record(folder: Path) -> dict[str, Any]:
    """A record with a value of every kind; its files lie in the run's folder, but for one that was lost."""
    image, video = Image(np.arange(30, dtype=np.uint8).reshape(5, 6)), Video(COLOURS, 10)
    (folder / "media" / "notes").mkdir(parents=True)
    (folder / "media" / "notes" / "board-64-8.png").write_bytes(image.to_bytes())
    (folder / "media" / "notes" / "film-64-8.gif").write_bytes(video.to_bytes())
    return {
        "kind": "training",
        "env_steps": 64,
        "opt_steps": 8,
        "players": {
            "host": {"loss": 0.5, "actions": {"histogram": {"edges": [0.0, 1.0, 2.0, 3.0], "counts": [3, 0, 1]}}}
        },
        "notes": {
            "text": {"text": "two\nlines"},
            "at": {"datetime": "2026-01-02T03:00:00"},
            "board": {"image": "media/notes/board-64-8.png"},
            "film": {"video": "media/notes/film-64-8.gif"},
            "lost": {"image": "media/notes/lost-64-8.png"},
            "nothing": None,
        },
    }


COLOURS = np.random.default_rng(0).integers(0, 4, (3, 4, 6, 3), dtype=np.uint8) * 80


def test_values_have_names_and_a_lost_file_is_left_out(tmp_path: Path) -> None:
    record = values_record(tmp_path)
    assert dict(values_of(record, tmp_path)) == {
        "players/host/actions": Histogram([0.0, 1.0, 2.0, 3.0], [3, 0, 1]),
        "notes/text": "two\nlines",
        "notes/at": "2026-01-02T03:00:00",
        "notes/board": Media(False, tmp_path, "media/notes/board-64-8.png"),
        "notes/film": Media(True, tmp_path, "media/notes/film-64-8.gif"),
    }
    assert numbers_of(record) == {"env_steps": 64, "opt_steps": 8, "players/host/loss": 0.5}


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "media/link", "media/link/secret", "run.json"])
def test_no_file_from_elsewhere_is_filed_as_an_image(name: str, tmp_path: Path) -> None:
    """Whoever has made the run may have written its records."""
    run = tmp_path / "run"
    (run / "media").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (run / "run.json").write_text("{}")
    (run / "media" / "link").symlink_to(tmp_path if name.endswith("link/secret") else tmp_path / "secret")
    assert (run / name).is_file()
    assert dict(values_of({"notes": {"board": {"image": name}}}, run)) == {}


def test_names_of_values_are_told_from_values() -> None:
    """Whoever calls a number "text" or a text "image" finds them under these names."""
    record = {"notes": {"text": 3.0, "image": {"text": "a"}, "histogram": {"edges": {"text": "b"}}}}
    assert dict(values_of(record, Path())) == {"notes/image": "a", "notes/histogram/edges": "b"}
    assert numbers_of(record) == {"notes/text": 3.0}


def test_images_and_videos_are_what_they_were(tmp_path: Path) -> None:
    values_record(tmp_path)
    with PIL.Image.open(tmp_path / "media" / "notes" / "board-64-8.png") as picture:
        assert np.array_equal(np.array(picture), np.arange(30).reshape(5, 6))
    with PIL.Image.open(tmp_path / "media" / "notes" / "film-64-8.gif") as film:
        frames = [np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)]
        assert film.info["duration"] == 100
    assert np.array_equal(frames, COLOURS)  # of few colours: GIF has 256 per frame


def test_tensorboard_shows_histograms_images_videos_and_texts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = TensorBoardRecorder(TensorBoardConfig(name="tensorboard"))
    recorder.open(card(tmp_path))
    recorder.write(0, values_record(tmp_path))
    recorder.close(RunEnd("complete", 64, {}))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (histogram,) = events.Histograms("players/host/actions")
    shown = histogram.histogram_value
    assert (histogram.step, shown.min, shown.max, shown.num, shown.sum) == (64, 0.0, 3.0, 4.0, 4.0)
    assert (shown.bucket_limit, shown.bucket) == ([1.0, 2.0, 3.0], [3.0, 0.0, 1.0])
    for name, file in (("board", "board-64-8.png"), ("film", "film-64-8.gif")):
        (image,) = events.Images(f"notes/{name}")
        assert image.encoded_image_string == (tmp_path / "media" / "notes" / file).read_bytes()
        assert (image.step, image.width, image.height) == (64, 6, 5 if name == "board" else 4)
    for name, text in (("text", b"two\nlines"), ("at", b"2026-01-02T03:00:00")):
        (event,) = events.Tensors(f"notes/{name}/text_summary")
        assert (event.step, event.tensor_proto.string_val[0]) == (64, text)


def test_csv_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    recorder = CsvRecorder(CsvConfig(name="csv"))
    recorder.open(card(tmp_path))
    recorder.write(0, values_record(tmp_path))
    recorder.close(RunEnd("complete", 64, {}))
    table = (tmp_path / "csv" / "training.csv").read_text()
    assert table == "record,env_steps,opt_steps,players/host/loss\n0,64,8,0.5\n"


def test_libraries_are_imported_where_a_recorder_is_made_and_not_before() -> None:
    code = (
        "import sys; import palestra.algorithms, palestra.recording as r;"
        "heavy = ('tensorboard', 'wandb', 'mlflow', 'trackio');"
        "before = [name for name in heavy if name in sys.modules];"
        "r.make_recorders([r.TensorBoardConfig(name='tensorboard')]);"
        "sys.exit((before, 'tensorboard' in sys.modules) != ([], True))"
    )
    assert run_forked([sys.executable, "-c", code]).returncode == 0


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    config = MlflowConfig(
        name="mlflow", tracking_uri="sqlite:///m.db", experiment="e", run_name=None, tags={}, checkpoints=False
    )
    with pytest.raises(ConfigError, match=r"^output\.recorders\.1: .*pip install 'palestra\[mlflow\]'$"):
        make_recorders([CsvConfig(name="csv"), config])


OWN = """
from palestra.config import PositiveInt, UserConfig
from palestra.recording import Recorder

class Deaf(Recorder):
    class Config(UserConfig):
        width: PositiveInt

    def open(self, run): return 0
    def write(self, number, record): ...
    def flush(self): ...
    def close(self, end): ...

class Broken(Deaf):
    def __init__(self, config): raise ValueError("no such printer")

class Half(Recorder):
    class Config(UserConfig): ...

class Other: ...
"""


class Recorders(Config):
    recorders: list[RecorderConfig]


@pytest.fixture
def own_recorders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "printers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())


@pytest.mark.usefixtures("own_recorders")
def test_a_recorder_of_ones_own_is_checked_by_its_config_and_built() -> None:
    configs = check({"recorders": [{"name": "csv"}, {"name": "printers:Deaf", "width": 80}]}, Recorders).recorders
    made = make_recorders(configs)
    assert list(made) == ["csv", "printers:Deaf"]
    assert made["printers:Deaf"].config.width == 80  # type: ignore[attr-defined]


@pytest.mark.usefixtures("own_recorders")
@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"name": "printers:Deaf", "width": 0}, r"^recorders\.0\.width: expected .*, got 0$"),
        ({"name": "printers:Deaf"}, r"^recorders\.0\.width: expected .*, but the key is missing$"),
        ({"name": "printers:Other"}, r"^recorders\.0\.name: expected a subclass of .*Recorder, got 'printers:Other'$"),
        ({"name": "cvs"}, r"^recorders\.0\.name: expected one of .*or a class of your own.*did you mean 'csv'\?$"),
    ],
)
def test_what_is_wrong_with_a_recorder_of_ones_own_is_told_at_its_place(entry: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check({"recorders": [entry]}, Recorders)


@pytest.mark.usefixtures("own_recorders")
@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"name": "printers:Broken", "width": 1}, r"no such printer \(printers\.py, line \d+\)"),
        ({"name": "printers:Half"}, "abstract"),
    ],
)
def test_a_recorder_of_ones_own_that_cannot_be_made_is_an_error_of_the_config(entry: Any, error: str) -> None:
    configs = check({"recorders": [{"name": "csv"}, entry]}, Recorders).recorders
    with pytest.raises(ConfigError, match=rf"^output\.recorders\.1: 'printers:.*' cannot be made: .*{error}"):
        make_recorders(configs)


def test_a_password_in_the_config_is_refused_and_not_repeated() -> None:
    data = {
        "name": "mlflow",
        "tracking_uri": "https://me:hush@host",
        "experiment": "e",
        "run_name": None,
        "tags": {},
        "checkpoints": False,
    }
    with pytest.raises(ConfigError, match=r"tracking_uri: .*MLFLOW_TRACKING_PASSWORD") as caught:
        check(data, MlflowConfig)
    assert "hush" not in str(caught.value)
