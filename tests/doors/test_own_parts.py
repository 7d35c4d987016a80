"""Every part of one's own that the documents show: named in a config, trained from the shell, killed, resumed."""

import json
from pathlib import Path

import pytest
import yaml
from resuming import assert_same_bits

from tests.docs.examples import EXAMPLES, small
from tests.doors.conftest import Shell

pytestmark = pytest.mark.slow
NAMED = [name for name, example in EXAMPLES.items() if example.give is None and example.callbacks is None]


@pytest.mark.parametrize("name", NAMED)
def test_a_part_of_ones_own_is_killed_and_resumed_to_the_same_bits(name: str, shell: Shell) -> None:
    example = EXAMPLES[name]
    config = small(example)
    config["stop"]["after"] = 600
    config["output"] |= {"save": {"every": 50, "unit": "opt_steps"}, "record": {"every": 50, "unit": "opt_steps"}}
    config["evaluations"][0]["interval"] = {"every": 300, "unit": "opt_steps"}
    shell.write(f"{example.module}.py", example.code)
    shell.write("run.yml", yaml.safe_dump(json.loads(json.dumps(config))))
    shell("check", "run.yml")
    shell("train", "run.yml", "--run", "alone", "--quiet")
    shell.kill("train", "run.yml", "--run", "run", "--quiet", at=Path("run/checkpoints/00000002"))
    shell("resume", "run", "--quiet")
    assert_same_bits(shell.folder / "run", shell.folder / "alone")
