"""The pictures of the README are made by a command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs import make_pictures
from palestra.kinds.games.trainer import Trainer


def test_a_finished_run_gives_the_pictures(
    make_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_pictures, "IMAGES", tmp_path)
    Trainer(
        make_config({"stop": {"after": 12, "unit": "opt_steps"}, "output.record": {"every": 2, "unit": "opt_steps"}}),
        run=tmp_path / "run",
    ).fit()
    make_pictures.main(tmp_path / "run")
    assert (tmp_path / "rho.png").read_bytes().startswith(b"\x89PNG")
    assert "run" in (tmp_path / "display.svg").read_text()
