"""docs/which-algorithm.md says what the algorithms can do, and names what there is."""

import re
from pathlib import Path

import gymnasium
import pytest

from palestra.commands.starting import starting_config
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.config import RunConfig
from palestra.run.kinds import kind_of_run
from palestra.run.shipped import shipped_configs
from tests.docs.known_names import is_command, is_key, is_shipped, variants
from tests.gym_probes import Acts, Walk

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "which-algorithm.md").read_text()
ALGORITHMS = ("ppo", "dqn", "sac", "td3")
ACTIONS = {
    "discrete: one of some (Discrete)": (Walk, {}),
    "several choices at once (MultiDiscrete, MultiBinary)": (Acts, {"actions": "bits"}),
    "continuous actions, within bounds (Box)": (Acts, {"actions": "matrix"}),
    "continuous, without bounds (Box)": (Acts, {"actions": "unbounded"}),
}
TABLE = {
    row[0]: [cell.strip() == "yes" for cell in row[1].split("|")]
    for row in re.findall(r"^\| ([^|]+) \|((?: (?:yes|no) \|){3} (?:yes|no)) \|$", PAGE, re.M)
}


def test_every_kind_of_actions_of_the_table_is_tried() -> None:
    assert TABLE.keys() == ACTIONS.keys()
    assert "| actions | PPO | DQN | SAC | TD3 |" in PAGE


@pytest.mark.parametrize("actions", ACTIONS)
def test_an_algorithm_plays_what_the_table_says(actions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})
    kind, arguments = ACTIONS[actions]
    gymnasium.register("Kind-v0", entry_point=kind, kwargs=arguments)
    for algorithm, is_possible in zip(ALGORITHMS, TABLE[actions], strict=True):
        if is_possible:
            starting_config(algorithm, ["tests.gym_probes:Kind-v0"])
        else:
            with pytest.raises(ConfigError, match=r"players\.agent\.algorithm\.name: expected a? ?(Discrete|Box)"):
                starting_config(algorithm, ["tests.gym_probes:Kind-v0"])


def test_it_names_every_shipped_config_of_an_environment_or_its_like() -> None:
    named = {name for name in re.findall(r"`([a-z0-9_-]+)`", PAGE) if is_shipped(name)}
    environments = {p.stem.split("-")[1] for p in shipped_configs().values() if kind_of_run(load_yaml(p)) is RunConfig}
    assert environments == {name.split("-")[1] for name in named}


def test_what_it_names_exists() -> None:
    unknown = []
    sources = "".join(path.read_text() for path in (ROOT / "palestra" / "algorithms").glob("*.py"))
    spans = re.findall(r"`([^`]+)`", re.sub(r"\]\([^)]*\)", "]", PAGE))
    assert len(spans) > 60
    for span in spans:
        words = re.findall(r"[\w.]+", span.replace("...", ""))
        is_known = (
            is_key(span)
            or span in variants()
            or is_shipped(span)
            or (span.startswith("palestra ") and is_command(span))
            or (span.startswith(("palestra/", "check_environment")))
            or f'"{span}"' in sources
            or ("=" in span and is_key(span.partition("=")[0]))
            or (":" in span and all(is_key(word) or word in variants() for word in words))
            or span in ALGORITHMS
            or hasattr(gymnasium.wrappers, span)
            or span in ("terminated", "truncated")
        )
        unknown += [] if is_known else [span]
    assert unknown == []
