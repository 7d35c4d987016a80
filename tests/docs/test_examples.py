"""The examples of docs/examples are complete: their pages show them, and each command that these name works as it says.

That they go on to the same bits, and are verified: tests/docs/test_examples_resume.py.
"""

import itertools
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from resuming import Killed, assert_same_bits, at_call
from typer.testing import CliRunner, Result

import palestra
from palestra.cli import app
from palestra.config import load_yaml, render
from palestra.games import make_game
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from palestra.recording.recorders import without_clock
from palestra.rollouts.transitions import Transitions
from palestra.run.kinds import read_config
from palestra.storage.records_file import read_records
from palestra.testing import check_algorithm
from palestra.testing.algorithms import CARTPOLE, NIM, PENDULUM
from palestra.training.training import Training

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples"
INDEX = (ROOT / "docs" / "examples.md").read_text()
ROWS = re.findall(
    r"^\| \[(\w+)\]\(examples/(\S+)\) \| (\d+) \| .*? \| \[(\S+)\]\(\S+\) \| `(\w+)` \|$", INDEX, flags=re.M
)
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SHORT = {
    "pennies": ["stop.after=40", "players.player.algorithm.warmup_env_steps=256"],
    "bomb": ["stop.after=60", *(f"players.{name}.algorithm.warmup_env_steps=256" for name in ("ann", "ben", "cleo"))],
    "telegram": ["stop.after=16", "num_worlds=16"],
    "corridor": ["stop.after=64", "players.agent.algorithm.warmup_env_steps=64"],
    "wide": ["stop.after=256", "players.agent.algorithm.warmup_env_steps=64"],
    "alarms": ["stop.after=40", "players.player.algorithm.warmup_env_steps=256"],
    "reinforce": ["stop.after=10", "num_worlds=16"],
    "a2c": ["stop.after=20"],
    "advantage": ["stop.after=64"],
    "regret": ["stop.after=40", "players.player.algorithm.warmup_env_steps=256"],
    "sarsa": ["stop.after=20"],
    "alternating": ["stop.after=40", "trainer.num_turns=2"],
    "labels": ["stop.after=40"],
    "double": ["stop.after=40", *(f"players.{name}.algorithm.warmup_env_steps=512" for name in ("host", "agent"))],
    "digits": ["stop.after=2", "data.train.num_items=200"],
    "gan": ["stop.after=2"],
    "visits": ["stop.after=40", "players.player.algorithm.warmup_env_steps=256"],
}
FEW_GAMES = ["evaluations.0.num_games=4", "evaluations.0.final_num_games=4"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the folder of examples, to work in; what is imported and registered there is forgotten afterwards."""
    here = tmp_path / "examples"
    shutil.copytree(FOLDER, here, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield here
    for name in NAMES:
        sys.modules.pop(name, None)
    gymnasium.registry.pop("Corridor-v0", None)


def shell(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def train(name: str, *overrides: str, run: str = "run") -> Any:
    """The run of `palestra train NAME.yml`, as it stands at its end."""
    shell("train", f"{name}.yml", *overrides, "--run", run, "--quiet")
    return Trainer.load(run)


def kill(*_: Any) -> None:
    raise Killed


def training_records(run: str) -> list[dict[str, Any]]:
    return [record for record in read_records(Path(run, "records.jsonl")) if record["kind"] == "training"]


# ---- what the pages say ----------------------------------------------------------------------------------


def test_the_index_names_every_example_and_its_number_of_lines() -> None:
    counted = {path.stem: sum(bool(line.strip()) for line in path.open()) for path in FOLDER.glob("*.py")}
    assert {name: int(lines) for name, _, lines, _, _ in ROWS} == counted
    assert sorted(path.stem for path in FOLDER.glob("*.yml")) == NAMES
    assert all(file == f"{name}.py" for name, file, *_ in ROWS)


def test_every_path_of_the_choice_is_a_complete_example_of_fewer_than_60_lines() -> None:
    text = (ROOT / "docs" / "choose.md").read_text()
    paths = re.findall(
        r"^\| [^|]+ \| [^|]+ \| \[(\w+)\]\(examples/\w+\.py\) \| (\d+) \| \[(\S+)\]\(\S+\) \|$", text, flags=re.M
    )
    assert len(paths) == sum(line.startswith("| ") for line in text.splitlines()) - 1 == 10
    indexed = {name: (lines, page) for name, _, lines, page, _ in ROWS}
    for name, lines, page in paths:
        assert (lines, page) == indexed[name]
        assert int(lines) < 60


@pytest.mark.parametrize(("name", "test"), [(row[0], row[4]) for row in ROWS])
def test_the_index_names_a_test_that_is_there(name: str, test: str) -> None:
    assert any(f"def {test}(" in path.read_text() for path in Path(__file__).parent.glob("test_*.py")), name


@pytest.mark.parametrize(("name", "page"), [(row[0], row[3]) for row in ROWS])
def test_a_page_shows_an_example_as_it_is(name: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert (FOLDER / f"{name}.py").read_text() in re.findall(r"```python\n(.*?)```", text, re.S)
    assert f"palestra train {name}.yml" in text
    shown = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if re.search(rf"\b{name}:\w", block)]
    assert shown
    whole = load_yaml(FOLDER / f"{name}.yml")
    assert any(is_part(yaml.safe_load(block), whole) for block in shown)


def is_part(shown: Any, whole: Any) -> bool:
    """Whether the keys that are shown are somewhere in a config, with these values."""
    if not isinstance(whole, dict):
        return False
    return has_all(shown, whole) or any(is_part(shown, value) for value in whole.values())


def has_all(shown: Any, whole: Any) -> bool:
    if isinstance(shown, dict) and isinstance(whole, dict):
        return all(key in whole and has_all(value, whole[key]) for key, value in shown.items())
    return bool(shown == whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_complete_and_printed_as_it_stands(name: str, place: Path) -> None:
    file = place / f"{name}.yml"
    config = read_config(file)
    assert load_yaml(render(config, type(config))) == load_yaml(file)


# ---- what the commands do --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_trained_killed_resumed_and_evaluated_from_the_shell(name: str, place: Path) -> None:
    is_played = "game" in load_yaml(place / f"{name}.yml")
    short = [*SHORT[name], *(FEW_GAMES if is_played else []), "output.save={every: 4, unit: opt_steps}"]
    with at_call(Training, "safe_point", 0, lambda *_: None) as safe_points:
        train(name, *short, run="alone")

    with at_call(Training, "safe_point", len(safe_points) * 2 // 3, kill), pytest.raises(Killed):
        train(name, *short)
    shell("resume", "run", "--quiet")
    assert_same_bits(place / "run", place / "alone")
    shell("evaluate", "run", *(["--games", "2"] if is_played else []))


def test_the_shortest_way_is_learned_from_every_cell(place: Path) -> None:
    length = train("corridor").config.game.arguments["length"]
    player = palestra.load_player("run")
    places = [(cell, treasure) for cell, treasure in itertools.permutations(range(length), 2)]
    observations = torch.tensor(places, dtype=torch.float32).numpy() / (length - 1)
    assert player.predict(observations)[0].tolist() == [int(treasure > cell) for cell, treasure in places]


def test_processes_of_their_own_play_the_same_corridors(place: Path) -> None:
    runs = {
        kind: train("corridor", *SHORT["corridor"], *FEW_GAMES, f"game.vectorization.name={kind}", run=kind)
        for kind in ("sync", "async")
    }
    records = [[without_clock(record) for record in read_records(Path(kind, "records.jsonl"))] for kind in runs]
    assert records[0] == records[1]
    for one, other in zip(*(trainer.agent_net.parameters() for trainer in runs.values()), strict=True):
        assert torch.equal(one, other)


def test_each_of_three_players_does_better_than_a_random_one(place: Path) -> None:
    train("bomb", "evaluations.0.interval=null", "best=null")
    *_, evaluation = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    *lone, of_random, _ = (pair["scores"] for pair in evaluation["pairs"])
    gains = {name: scores[name] - of_random[name] for name, scores in zip(of_random, lone, strict=True)}
    assert len(gains) == 3
    assert min(gains.values()) > 0.1, gains


def test_the_prover_lifts_the_cup_and_the_verifier_believes_it(place: Path) -> None:
    train("telegram", "evaluations.0.interval=null")
    *_, last = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    [pair] = [pair for pair in last["pairs"] if pair["learned"] == ["prover", "verifier"]]
    assert pair["scores"]["accuracy"] >= 0.98


def test_a_lone_verifier_learns_from_labels_what_can_be_known(place: Path) -> None:
    """Of eight bits it sees two: the optimum is .876."""
    train("labels", "stop.after=600", "evaluations.0.interval=null", "best=null")
    *_, last = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    learned, _ = last["pairs"]
    assert learned["scores"]["accuracy"] > 0.85


def test_who_is_not_asked_changes_nothing_in_the_game_of_three(place: Path) -> None:
    game: Any = make_game({"name": "bomb:Bomb", "limit": 4})
    state = {"sum": torch.tensor([0, 3, 4]), "mover": torch.tensor([1, 0, 2])}
    new, rewards, terminated, _ = game.transition(state, {"first": torch.tensor([2, 0, 2])}, torch.arange(3))
    assert {name: entry.tolist() for name, entry in new.items()} == {"sum": [0, 4, 4], "mover": [1, 1, 2]}
    assert rewards.tolist() == [[0.0, 0.0, 0.0], [-1.0, 0.5, 0.5], [0.0, 0.0, 0.0]]
    assert terminated.all(dim=1).tolist() == [False, True, True]


def test_the_recorder_files_what_lies_above_its_limit(place: Path) -> None:
    train("alarms", "stop.after=200", *FEW_GAMES, "output.record={every: 20, unit: opt_steps}")
    losses = {number: r for number, r in enumerate(read_records(Path("run/records.jsonl"))) if r["kind"] == "training"}
    is_above = {number: r["players"]["player"]["loss"] > 0.05 for number, r in losses.items()}
    assert len(is_above) == 10
    expected = [
        f"record {number}, opt step {losses[number]['opt_steps']}: {losses[number]['players']['player']['loss']:g}"
        for number in losses
        if is_above[number]
    ]
    assert Path("run/alarms.txt").read_text().splitlines() == [*expected, "complete"]
    assert expected


def test_the_digits_are_read(place: Path) -> None:
    train("digits", "stop.after=16", "learning.groups.0.learning_rate.num_steps=368", "evaluations.0.interval=null")
    *_, last = (each for each in read_records(Path("run/records.jsonl")) if each["kind"] == "evaluation")
    assert last["pairs"][0]["scores"]["accuracy"] > 0.94


def test_a_generator_learns_the_circle(place: Path) -> None:
    train("gan", "stop.after=60", "evaluations.0.interval=null")
    first, last = (each for each in read_records(Path("run/records.jsonl")) if each["kind"] == "evaluation")
    far, near = (each["pairs"][0]["scores"]["distance"] for each in (first, last))
    assert far > 1.5 > 0.2 > near


def test_every_position_is_visited_and_every_action_is_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_actions, after_roll_out = Counter[str](), Trainer.after_roll_out

    def look(trainer: Trainer, player: Player, by_role: Mapping[str, Transitions]) -> None:
        for role, rows in by_role.items():
            num_actions[role] += int(rows.valid.sum())
        after_roll_out(trainer, player, by_role)

    monkeypatch.setattr(Trainer, "after_roll_out", look)
    train("visits", *FEW_GAMES)
    notes = [record["notes"] for record in training_records("run")]
    positions = {
        "first": 4**3 - 1,
        "second": 4**3 - 2,
    }  # heaps of 0 to 3 stones, not all empty; who is second, not full
    for role, num in positions.items():
        visited = [note[f"visited/{role}/last"] for note in notes]
        assert visited == sorted(visited)
        assert visited[-1] == num
        assert sum(sum(note[f"actions/{role}"]["histogram"]["counts"]) for note in notes) == num_actions[role]


def test_players_alternate_and_go_on_alternating_from_the_shell(place: Path) -> None:
    short = ["stop={after: 3, unit: epochs}", *FEW_GAMES, "evaluations.0.interval=null", "best=null"]
    short += ["output.record={every: 1, unit: epochs}", "output.save={every: 100, unit: opt_steps}"]

    with at_call(Trainer, "give_turn", 45, kill), pytest.raises(Killed):
        train("alternating", *short)
    shell("resume", "run", "--quiet")
    steps = [
        tuple(record["players"][name]["env_steps"] for name in ("opener", "responder"))
        for record in training_records("run")
    ]
    turns = 30 * 2 * 256  # of two rounds each, in 256 worlds
    assert steps == [(turns, 0), (turns, turns), (2 * turns, turns)]


# ---- losses ------------------------------------------------------------------------------------------------


def test_decisions_weighted_by_their_advantage_balance_the_pole(place: Path) -> None:
    train("advantage", "evaluations.0.interval=null", "best=null")
    *_, evaluation = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    learned, of_random = (pair["scores"]["return/agent"] for pair in evaluation["pairs"])
    assert learned > 450 > 100 > of_random


def test_who_pays_for_regret_wins_at_nim_from_both_seats(place: Path) -> None:
    train("regret", "evaluations.0.interval=null", "best=null")
    *_, evaluation = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    first, second, _, of_random = (pair["scores"] for pair in evaluation["pairs"])
    assert min(first["return/first"], second["return/second"]) > 0.6 > 0.2 > abs(of_random["return/first"])


def test_double_dqn_by_hand_learns_what_the_algorithm_by_name_learns(place: Path) -> None:
    """With its schedules, its exploration, and its counts: else the worlds would soon be others."""
    short = [*SHORT["double"], *FEW_GAMES]
    train("double", *short, run="hand")
    train("double", *short, "trainer={name: in_turn}", run="name")
    for role in ("host", "agent"):
        by_hand, by_name = (palestra.load_player(run, role) for run in ("hand", "name"))
        assert (by_hand.opt_steps, by_hand.env_steps) == (by_name.opt_steps, by_name.env_steps) == (20, 1536)
        for one, other in zip(weights_of(by_hand), weights_of(by_name), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def weights_of(player: Player) -> list[torch.Tensor]:
    return [weight for net in player.nets.values() for weight in net.parameters()]


# ---- A2C -------------------------------------------------------------------------------------------------


def test_a2c_balances_the_pole(place: Path) -> None:
    train("a2c", "stop.after=2000", "evaluations.0.interval=null", "best=null")  # half of what the page takes
    *_, evaluation = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    [pair] = evaluation["pairs"]
    assert (pair["games"], pair["scores"]["return/agent"]) == (100, 500.0)


def test_a2c_resumes_from_every_safe_point_for_every_kind_of_actions(place: Path) -> None:
    import a2c  # type: ignore[import-not-found]

    check_algorithm(a2c.A2C)
    box = {"box_actions": {"name": "clipped_gaussian", "initial_log_std": 0.0}}
    check_algorithm(a2c.A2C, {**box, "normalize_advantages": True}, PENDULUM)


@pytest.mark.parametrize(("game", "roles", "num_moves"), [(CARTPOLE, ["agent"], 1), (NIM, ["first", "second"], 2)])
def test_the_rows_of_a_roll_out_lie_as_the_page_says(
    game: dict[str, Any], roles: list[str], num_moves: int, place: Path
) -> None:
    num_worlds, num_rounds = 3, 5
    config = load_yaml(place / "a2c.yml") | {"num_worlds": num_worlds, "game": game, "evaluations": [], "best": None}
    config["roles"] = dict.fromkeys(roles, "agent")
    trainer = Trainer(config, run="run")
    player = trainer.players["agent"]
    trainer.roll_out(roles[0], num_rounds)  # decisions that wait in its end are rows of the next one
    batch = trainer.roll_out(roles[0], num_rounds)
    assert player.moves == tuple(roles)
    num_rows = num_rounds * num_moves * num_worlds
    assert batch.valid.shape == batch.reward.shape == batch.action.shape == (num_rows,)
    assert batch.extras["log_prob"].shape == (num_rows,)
    flags = trainer.game.action_spaces[roles[0]].num_flags
    assert batch.legal.shape == batch.next_legal.shape == (num_rows, flags)
    compared = 0
    for move, world in itertools.product(range(num_moves), range(num_worlds)):
        column = [(t * num_moves + move) * num_worlds + world for t in range(num_rounds)]
        for row, following in itertools.pairwise([row for row in column if batch.valid[row]]):
            if not (batch.terminated | batch.truncated)[row]:
                compared += 1
                for name, entry in batch.observation.items():
                    assert entry.shape == (num_rows, *trainer.game.spaces[roles[0]][name].shape)
                    assert torch.equal(batch.next_observation[name][row], entry[following])
    assert compared > 0


@pytest.mark.parametrize("box", [None, {"name": "clipped_gaussian", "initial_log_std": 0.0}])
def test_rows_that_do_not_count_change_nothing_that_a2c_learns(box: dict[str, Any] | None, place: Path) -> None:
    config = load_yaml(place / "a2c.yml") | {"num_worlds": 3, "evaluations": [], "best": None}
    config["game"] = CARTPOLE if box is None else PENDULUM
    config["players"]["agent"]["algorithm"]["box_actions"] = box
    trainer = Trainer(config, run="run")
    batch = trainer.roll_out("agent", 8)
    batch.valid[1::3] = False  # all of one world
    algorithm: Any = trainer.players["agent"].algorithm
    before = loss_of(algorithm, batch)
    batch.reward[1::3] = 1e6
    for entry in (*batch.observation.values(), *batch.next_observation.values()):
        entry[1::3] = 7.0
    assert loss_of(algorithm, batch) == pytest.approx(before)


def loss_of(algorithm: Any, batch: Any) -> dict[str, float]:
    terms = algorithm.loss(batch, *algorithm.compute_advantages(batch))
    return {name: term.item() for name, term in terms.items()}


# ---- SARSA -----------------------------------------------------------------------------------------------


def test_sarsa_holds_the_pole_ten_times_as_long_as_chance(place: Path) -> None:
    train("sarsa", "evaluations.0.interval=null", "best=null")
    *_, evaluation = (record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation")
    learned, of_random = (pair["scores"]["return/agent"] for pair in evaluation["pairs"])
    assert learned > 10 * of_random > 100.0


def test_sarsa_learns_from_the_action_that_was_taken_next(place: Path) -> None:
    config = load_yaml(place / "sarsa.yml") | {"num_worlds": 3, "evaluations": [], "best": None}
    config["game"] = CARTPOLE | {"max_rounds": 11}
    config["players"]["agent"]["algorithm"]["rollout_length"] = 40
    trainer = Trainer(config, run="run")
    batch = trainer.roll_out("agent", 40)
    batch.reward = torch.arange(120.0)
    algorithm: Any = trainer.players["agent"].algorithm
    target, counts = algorithm.target(batch)
    next_value, seen = algorithm.net(batch.next_observation), Counter[str]()
    for row in range(120):
        if batch.terminated[row]:
            expected = float(row)
        else:
            kind = "cut off" if batch.truncated[row] else "last" if row >= 117 else "going on"
            seen[kind] += 1
            assert counts[row] == (kind == "going on")
            if kind != "going on":
                continue
            expected = row + 0.98 * next_value[row, batch.action[row + 3]].item()  # the next row of the same world
        assert counts[row]
        assert target[row].item() == pytest.approx(expected, rel=1e-5)
    assert min(seen[kind] for kind in ("cut off", "last", "going on")) > 0
    assert batch.terminated.any()


def test_sarsa_resumes_from_every_safe_point(place: Path) -> None:
    import sarsa  # type: ignore[import-not-found]

    check_algorithm(sarsa.Sarsa)
