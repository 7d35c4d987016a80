"""The blocks of docs/own-loop.md run, and the host of its loop learns."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PLAIN

import palestra
from palestra.config import load_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-loop.md").read_text()
GAME, LOOP, ENVIRONMENT, VERTICES, PLAYER = re.findall(r"```python\n(.*?)```", PAGE, re.S)
STEPS = "range(1, 1201)"


def names_after(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.fixture(autouse=True)
def _same_chance_afterwards() -> Any:
    with torch.random.fork_rng():
        yield


def test_a_game_is_made_of_a_mapping() -> None:
    assert names_after(GAME)["nim"].roles == ("first", "second")


def test_the_loop_stores_what_was_decided_and_opens_a_new_world_for_each_that_ended() -> None:
    assert STEPS in LOOP
    names = names_after(LOOP.replace(STEPS, "range(1, 201)"))
    buffer = names["buffer"]
    assert 199 * names["B"] < buffer.num_added <= 200 * names["B"]
    rows = buffer.rows(buffer.num_added - 10_000, buffer.num_added)
    ended = rows["goes_on"] == 0
    assert ended.any()
    assert torch.equal(rows["reward"] > 0, ended)
    assert torch.equal((rows["next_points"][:, :, 0] >= 0).sum(1) == 1, ended)
    assert ((rows["points"][:, :, 0] >= 0).sum(1) > 1).all()


@pytest.mark.slow
def test_the_host_of_the_loop_learns() -> None:
    rho = names_after(LOOP)["rho"]
    assert len(rho) == 6
    assert rho[-1] > 1.2 * rho[0]


def test_worlds_of_an_environment_step_together() -> None:
    names = names_after(ENVIRONMENT)
    assert names["seen"].shape == (8, 4)
    assert names["outcome"].valid.all()
    assert names["cartpole"].state_dict()["observation"]["observation"] != {}


def test_the_vertices_are_those_that_the_page_names(capsys: pytest.CaptureFixture[str]) -> None:
    names_after(VERTICES)
    assert re.sub(r"\s", "", capsys.readouterr().out) == "tensor([[True,False,True],[True,True,False]])"


def test_a_loaded_player_chooses_in_the_game_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_yaml(ROOT / "configs" / "dqn-polyhedra.yml")
    config |= {"num_worlds": 8, "stop": {"after": 2, "unit": "opt_steps"}, "best": None, "evaluations": []}
    config["output"] |= {"display": "quiet", "recorders": []}
    for player in config["players"].values():
        player["algorithm"] |= {"warmup_env_steps": 8, "batch_size": 8}
    monkeypatch.chdir(tmp_path)
    palestra.Trainer(config, run="runs/mine").fit()
    choices = names_after(PLAYER.replace('"best"', '"latest"'))["choices"]
    assert choices.shape == (5,)
    assert set(choices.tolist()) <= set(range(4))


# ---- palestra.make_game ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("game", "error"),
    [
        (
            {"name": "nim", "num_heaps": 3, "observation": PLAIN},
            r"^game\.max_stones: expected an integer >= 1, but the key is missing$",
        ),
        (
            {"name": "nim", "num_heaps": 3, "max_stones": "x", "observation": PLAIN},
            r"^game\.max_stones: .*, got the string 'x'$",
        ),
        ({"name": "chess"}, r"^game\.name: expected one of .*'polyhedra'.*, got 'chess'$"),
        ("nim", r"^game: expected a mapping with `name`, .*, got the string 'nim'; write \{name: nim, .*\}$"),
    ],
)
def test_a_mapping_that_is_no_game_is_refused_with_the_key(game: Any, error: str) -> None:
    with pytest.raises(palestra.ConfigError, match=error):
        palestra.make_game(game)


def test_a_game_is_on_the_device_that_is_named() -> None:
    game = palestra.make_game({"name": "nim", "num_heaps": 3, "max_stones": 3, "observation": PLAIN}, device="meta")
    assert game.device.type == "meta"
    assert palestra.make_game(load_yaml(ROOT / "configs" / "dqn-polyhedra.yml")["game"]).kernel == "numba"  # type: ignore[attr-defined]
