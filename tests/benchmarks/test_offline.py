"""The benchmark of learning from recorded play: both sides have the same settings, rows and networks."""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.offline.learning import Curve, Lab, join, markdown, returns_of, rows_of, works
from benchmarks.offline.nets import Pairs, PairsConfig
from benchmarks.offline.ours import make_trainer, products_of, write_rows
from benchmarks.offline.players import Imported, ImportedConfig
from benchmarks.offline.settings import BATCH_SIZE, HIDDEN, SETTINGS
from palestra.games.spaces import Box, Space


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_shared_hyperparameter_has_the_same_value_in_both_libraries(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    write_rows(file := tmp_path / "rows.npz", 400)
    trainer = make_trainer(name, str(file))
    config, theirs = trainer.config.players["agent"].algorithm, SETTINGS[name].keys
    loss = getattr(config, "loss", config)
    pairs = {
        "gamma": config.gamma,
        "tau": getattr(config.target, "tau", None),
        "n_critics": getattr(loss, "num_critics", None),
        "expectile": getattr(loss, "expectile", None),
        "lam": getattr(loss, "temperature", None),
        "weight_temp": 1.0 / getattr(loss, "temperature", 1.0),
        "alpha": getattr(loss, "alpha", None),
        "update_actor_interval": getattr(loss, "policy_interval", None),
    }
    assert {key: pairs[key] for key in theirs if key in pairs} == pytest.approx(
        {key: value for key, value in theirs.items() if key in pairs}
    )
    rates = {schedule(0) for key, schedule in vars(config).items() if key.endswith("learning_rate")}
    assert rates == {value for key, value in theirs.items() if key.endswith("learning_rate")}
    assert (config.batch_size, config.rollout_length) == (BATCH_SIZE, None)
    layers = [each for net in trainer.players["agent"].nets.values() for each in net.modules()]
    hidden = {each.out_features for each in layers if isinstance(each, torch.nn.Linear) and each.in_features in HIDDEN}
    assert hidden <= {*HIDDEN, 1, 3}
    assert HIDDEN[0] in hidden
    assert len(trainer.players["agent"].replay_buffer.data) == 399  # the row that was cut off has no next one
    assert len(products_of(name)) > 0


def test_what_d3rlpy_left_plays_the_tanh_of_its_network(tmp_path: Path) -> None:
    weights = [torch.randn(4, 3), torch.randn(2, 4)]
    arrays: dict[str, Any] = {f"{number}.weight": each.numpy() for number, each in enumerate(weights)}
    arrays |= {f"{number}.bias": np.full(len(each), 0.5, np.float32) for number, each in enumerate(weights)}
    np.savez(tmp_path / "layers.npz", **arrays)
    game: Any = SimpleNamespace(action_spaces={"agent": Box((-1.0,) * 2, (1.0,) * 2)})
    player = Imported(ImportedConfig(scripted="x:y", layers=str(tmp_path / "layers.npz")), game, "agent")
    seen = torch.randn(5, 3, dtype=torch.float64)
    hidden = (seen.float() @ weights[0].T + 0.5).relu()
    played = player.choose({"observation": seen}, torch.ones(5, 0), torch.zeros(5))
    torch.testing.assert_close(played, torch.tanh(hidden @ weights[1].T + 0.5))


def test_a_network_of_pairs_reads_differences_of_points_alone() -> None:
    spaces = {"points": Space((5, 3), torch.float32, padded=True)}
    net, points = Pairs(PairsConfig(name="x:y", width=8), spaces, 4), torch.full((3, 5, 3), -1.0)
    points[:2, :3] = torch.randint(9, (1, 3, 3)).float()
    points[1, :3] += 7.0
    points[2, 0] = 1.0  # one point has no difference
    alone = net({"points": points[:1, :3]})
    torch.testing.assert_close(net({"points": points}), torch.cat([alone, alone, torch.zeros(1, 4)]))


def test_joined_files_have_the_rows_of_all_and_no_two_episodes_of_one_number(tmp_path: Path) -> None:
    for number, file in enumerate(files := [tmp_path / "a.npz", tmp_path / "b.npz"]):
        extra = {} if number else {"extras.log_prob": np.zeros(3)}
        np.savez(file, episode=np.array([0, 0, 1]), reward=np.array([1.0, 2.0, 3.0]) + number, **extra)
    join(files, joined := tmp_path / "c.npz")
    assert returns_of(joined).tolist() == [3.0, 3.0, 5.0, 4.0]
    assert set(np.load(joined).files) == {"episode", "reward"}


def test_what_is_in_the_folder_is_not_done_again_and_all_points_are_shown(tmp_path: Path) -> None:
    given = argparse.Namespace(folder=tmp_path, env_steps=10, opt_steps=10, play_steps=10, sac_steps=10, rows=10)
    lab, made = Lab(given), []
    for _ in range(2):
        lab.made("a", lambda path: (made.append(path), path.write_text("")))
    assert len(made) == 1
    assert len(works(lab)) == 13
    assert Curve([0, 10, 20], [1.0, 5.0, 4.0]).reaches(4.5) == 10
    points = {0: {"palestra": 3.0, "d3rlpy": 1.0}, 1: {"palestra": 4.0, "d3rlpy": 2.0}}
    table = markdown(list(rows_of("work", "return", points, 2.5)))
    assert "| palestra | 3, 4 | 3.5 [" in table
    assert "| d3rlpy | 1, 2 | 1.5 [" in table
