"""What the benchmark of saving measures, and what of it holds on every machine: the bytes."""

from pathlib import Path

import pytest

from benchmarks import saving
from palestra.buffers.replay import Layout

pytestmark = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="reads /proc")


@pytest.mark.parametrize(
    ("kind", "layout", "num", "segment", "row_mib"),
    [
        ("floats", "whole", 30_000, 8192, 170e-6),
        ("images", "whole", 2400, 1024, 8e-3),  # of each stack one new frame, and some where episodes begin
        ("images", "frames_once", 2400, 1024, 8e-3),
    ],
)
def test_a_save_writes_what_is_new_and_no_more_than_one_unfinished_segment(
    kind: str, layout: Layout, num: int, segment: int, row_mib: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "NEW_ROWS", (80, 400))
    _, (first, again, more) = saving.fill_and_save(kind, layout, num, tmp_path / "run")
    assert 0.8 * num * row_mib < first.written < num * row_mib
    assert again.written < (80 + segment) * row_mib
    assert more.written < (400 + segment) * row_mib
    whole, without_rows = saving.load(layout, num, tmp_path / "run")
    assert whole.written == without_rows.written == 0.0
