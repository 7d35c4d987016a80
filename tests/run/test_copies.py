"""Copies of weights from elsewhere in a run's folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.kinds.data.config import FitConfig
from palestra.kinds.games.config import RunConfig
from palestra.run.copies import Copy, files_of_copies, find_copy, write_copy
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.stored_files import DamagedError

ORIGIN = {"from_run": "runs/one", "player": "host", "checkpoint": "latest"}
WEIGHTS = {"net/weight": torch.arange(6.0).reshape(2, 3)}
FORMER = {**ORIGIN, "opt_steps": 3, "env_steps": 5, "weights": {"size": 1, "sha256": 64 * "0"}}


@pytest.fixture
def copied(make_config: Callable[..., dict[str, Any]], tmp_path: Path) -> Copy:
    settings = RunConfig.model_validate(make_config()).model_dump_json().encode()
    folder = Folder(tmp_path).below("players")
    write_copy(folder, "a/b", ORIGIN, WEIGHTS, settings, opt_steps=3, env_steps=5)
    found = find_copy(folder, "a/b", ORIGIN)
    assert found is not None
    return found


def test_a_copy_holds_what_was_written_and_is_of_one_origin_alone(copied: Copy) -> None:
    assert {path.name for path in copied.folder.path.iterdir()} == files_of_copies(["a/b"])
    assert (copied.facts.opt_steps, copied.facts.env_steps, copied.run(RunConfig).seed) == (3, 5, 0)
    torch.testing.assert_close(copied.tensors(), WEIGHTS, rtol=0, atol=0)
    assert find_copy(copied.folder, "a/b", ORIGIN | {"checkpoint": "best"}) is None
    assert find_copy(copied.folder, "b", ORIGIN) is None
    assert find_copy(None, "a/b", ORIGIN) is None
    with pytest.raises(RunFolderError, match=r"^expected "):
        copied.run(FitConfig)


@pytest.mark.parametrize("end", ["yml", "safetensors"])
def test_a_file_that_reads_alike_but_was_not_written_so_is_refused(end: str, copied: Copy) -> None:
    file = copied.folder.path / f"a%2Fb.{end}"
    for content in (file.read_bytes()[:-1] + b" ", file.read_bytes() + b"\n", None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(DamagedError, match=rf"^a%2Fb\.{end} "):
            copied.run(RunConfig) if end == "yml" else copied.tensors()
        file.write_bytes(b"")


@pytest.mark.parametrize("facts", [FORMER, {}, [1], {**FORMER, "origin": ORIGIN}])
def test_facts_that_palestra_does_not_write_are_refused_in_one_line(facts: Any, copied: Copy) -> None:
    (copied.folder.path / "a%2Fb.json").write_text(json.dumps(facts))
    with pytest.raises(DamagedError, match=r"^a%2Fb\.json differs from what was written: .*$") as raised:
        find_copy(copied.folder, "a/b", ORIGIN)
    assert "\n" not in str(raised.value)


def test_a_copy_without_the_config_of_a_run_is_none_of_a_run(copied: Copy) -> None:
    write_copy(copied.folder, "module", ORIGIN, b"weights")
    found = find_copy(copied.folder, "module", ORIGIN)
    assert found is not None
    assert found.weights() == b"weights"
    with pytest.raises(
        DamagedError, match=r"^expected a copy with the config of its run, got one without module\.yml$"
    ):
        found.run(RunConfig)
