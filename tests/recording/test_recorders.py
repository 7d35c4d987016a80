"""What recorders promise."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from palestra.recording.recorders import JsonlRecorder, Recorder, TensorBoardRecorder, read_records, without_clock


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


def test_tensorboard_shows_nested_numbers_under_tags_joined_by_slashes(tmp_path: Path) -> None:
    recorder: Recorder = TensorBoardRecorder(tmp_path)
    recorder.write({"env_steps": 64, "host": {"loss": torch.tensor(0.5), "name": "dqn", "rho": {"random": 0.25}}})
    recorder.write({"env_steps": np.int64(128), "host": {"loss": 0.125}, "clock": {"seconds": 1}})
    recorder.close()
    scalars = read_scalars(tmp_path)
    assert scalars["host/loss"] == [(64, 0.5), (128, 0.125)]
    assert scalars["host/rho/random"] == [(64, 0.25)]
    assert scalars["clock/seconds"] == [(128, 1.0)]
    assert "host/name" not in scalars


def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    killed = TensorBoardRecorder(tmp_path)
    for step in (0, 10, 20, 30):
        killed.write({"env_steps": step, "loss": 1.0})
    killed.flush()
    resumed = TensorBoardRecorder(tmp_path)
    resumed.cut(length=0, env_steps=10)
    resumed.write({"env_steps": 20, "loss": 2.0})
    resumed.close()
    assert read_scalars(tmp_path)["loss"] == [(0, 1.0), (10, 1.0), (20, 2.0)]


def test_tensorboard_is_imported_where_it_is_used_and_before_the_first_record(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import palestra.recording.recorders as r;"
        "before = 'tensorboard' in sys.modules; r.TensorBoardRecorder(Path(sys.argv[1]));"
        "sys.exit((before, 'tensorboard' in sys.modules) != (False, True))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0
