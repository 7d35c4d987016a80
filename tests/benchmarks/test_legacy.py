import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import measuring, polyhedra
from benchmarks.legacy import (
    MAX_VALUE,
    SUBSETS,
    LegacyDQN,
    LegacyGame,
    RandomAgent,
    RandomHost,
    ended,
    new_boards,
    reduce_boards,
    shift_boards,
)
from benchmarks.polyhedra import CONFIG, Steps, original_test_config, random_play, train, train_bare
from palestra import load_config
from palestra.evaluation.evaluator import play_games
from palestra.games.polyhedra.game import decode_host_action, host_subsets
from palestra.games.polyhedra.newton import minimal_points
from palestra.players import make_script
from tests.forked import FORKING

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded_on_one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(num_threads)


def random_boards(num_boards: int, num_points: int, max_value: int) -> Tensor:
    """Integer points, some rows absent; float32."""
    points = torch.randint(max_value + 1, (num_boards, num_points, 3)).float()
    return points.masked_fill(torch.rand(num_boards, num_points, 1) < 0.2, -1.0)


@pytest.mark.parametrize("max_value", [1, 3, MAX_VALUE], ids="values to {}".format)
def test_the_rewrite_keeps_the_minimal_points(max_value: int) -> None:
    points = random_boards(500, 20, max_value)
    expected = points.masked_fill(~minimal_points(points).unsqueeze(2), -1.0)
    reduce_boards(points)
    assert torch.equal(points, expected)


def test_a_move_of_the_rewrite_adds_the_chosen_coordinates_on_the_axis() -> None:
    points = random_boards(400, 3, 9)  # in a tenth of them the game has ended
    chosen = decode_host_action(torch.randint(len(SUBSETS), (400,)), 3)
    axis = (torch.rand(400, 3) * chosen).argmax(1)
    expected = points.clone()
    for board, coords, i in zip(expected, chosen, axis.tolist(), strict=True):
        present = board[:, 0] >= 0
        if present.sum() > 1:
            board[present, i] = board[present] @ coords.float()
    shift_boards(points, chosen.float(), axis)
    assert torch.equal(points, expected)


def test_the_rewrite_leaves_a_board_as_it_is_where_the_axis_was_not_chosen() -> None:
    points = random_boards(50, 8, 9)
    before = points.clone()
    shift_boards(points, torch.tensor([1.0, 0.0, 1.0]).expand(50, 3), torch.ones(50))
    assert torch.equal(points, before)


def test_the_rewrite_numbers_host_actions_as_palestra_does() -> None:
    assert host_subsets(3) == SUBSETS
    game = LegacyGame(RandomHost(), RandomAgent(), CPU)
    chosen, actions = game.host_move(new_boards(200, CPU), exploration=0.5)
    assert torch.equal(chosen, decode_host_action(actions.long(), 3).float())


def test_without_exploration_the_rewrites_agent_picks_a_chosen_coordinate() -> None:
    game = LegacyGame(RandomHost(), RandomAgent(), CPU)
    points = new_boards(200, CPU)
    chosen, _ = game.host_move(points, exploration=0.0)
    actions = game.agent_move(points, chosen, exploration=0.0)
    assert chosen.gather(1, actions.unsqueeze(1)).bool().all()


def test_a_step_of_the_rewrite_gives_the_experience_of_running_games_alone() -> None:
    game = LegacyGame(RandomHost(), RandomAgent(), CPU)
    points = new_boards(100, CPU)
    for _ in range(6):
        running = ~ended(points)
        _, actions, rewards, over, next_observation = game.step(points, "agent", exploration=0.0)
        assert len(actions) == int(running.sum())
        assert torch.equal(over.squeeze(1), ended(points)[running])
        assert torch.equal(rewards, -over.float())
        assert torch.equal(ended(next_observation["points"]), over.squeeze(1))


def test_games_of_the_rewrite_are_as_long_as_palestras() -> None:
    """Random play; the rewrite rescales in float32, which moves the mean length by less than the tolerance."""
    num_games = 2000
    legacy = LegacyGame(RandomHost(), RandomAgent(), CPU).play(num_games) / num_games
    game = load_config(CONFIG).game.build(CPU, "numba")
    policies = {role: make_script("random", game) for role in game.roles}
    lengths = play_games(game, policies, num_games, max_rounds=200, seed=0).lengths
    assert legacy == pytest.approx(float(lengths.sum()) / num_games, rel=0.06)


def test_training_of_the_rewrite_changes_its_networks() -> None:
    dqn = LegacyDQN(CPU)
    before = {role: [p.clone() for p in learner.net.parameters()] for role, learner in dqn.learners.items()}
    dqn.train(20)
    for role, learner in dqn.learners.items():
        pairs = zip(before[role], learner.net.parameters(), strict=True)
        assert not any(torch.equal(old, new) for old, new in pairs)


def test_random_play_counts_every_step_of_a_running_game_once() -> None:
    play = random_play("minimal", "numba", 256, CPU)
    steps = [play() for _ in range(4)]
    assert steps == pytest.approx([256 * 5] * 4, rel=0.03)  # a board that is born ended is no step


def test_the_bare_loop_does_the_same_work_as_the_trainer() -> None:
    steps = Steps(skipped=4, timed=8)
    config = original_test_config(steps, 20, 1, CPU, num_threads=1, compiled=False)
    bare, trained = train_bare(config, steps).players, train(config, steps).players
    for name, player in bare.items():
        assert player.opt_steps == trained[name].opt_steps > 0
        states = player.nets["q"].state_dict(), trained[name].nets["q"].state_dict()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_the_quick_benchmark_fills_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    monkeypatch.setattr(measuring, "subprocess", FORKING)
    monkeypatch.setattr(sys, "argv", ["polyhedra", "--quick", "--json", str(path)])
    polyhedra.main()
    rows = json.loads(path.read_text())["rows"]
    assert {row["row"] for row in rows} == {"H1", "H2", "H3", "H4", "O1"}
    assert all(row["ratio"] > 0 for row in rows)
    printed = capsys.readouterr().out
    assert printed.count("\n| H") + printed.count("\n| O") == len(rows)
