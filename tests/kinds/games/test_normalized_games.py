"""Runs in tensor games whose observations are normalised: what moves the statistics, where they go, and that players
learn by them what they cannot learn without.

That killed runs go on to the same bits: tests/test_resume_everywhere.py, and below under `together`.
"""

import contextlib
import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from combinations import PPO
from conftest import PLAIN, MakeRun
from resuming import Killed, ask_to_leave, assert_same_bits, at_call, fit, kill, records
from typer.testing import CliRunner

import palestra
from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.config.validation import checked
from palestra.games import make_game
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.normalization import RunningMoments
from palestra.kinds.games.export import ExportError, export_player
from palestra.kinds.games.trainer import Trainer
from palestra.players.as_gymnasium import as_gymnasium
from palestra.training.stored_training import StoredRun

Data = dict[str, Any]
MakeConfig = Callable[..., Data]


NORMALIZE: Data = {"normalize": {"eps": 1e-8}, "clip": 10.0}
NIM: Data = {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": NORMALIZE}
NIP: Data = {
    "name": "dialogue",
    "protocol": checked({"name": "nip"}, AnyProtocolConfig).model_dump(),
    "scenario": {"name": "witness", "num_bits": 3, "num_seen": 1},
    "observation": NORMALIZE,
}
SEATS: Data = {"roles": {"first": "one", "second": "other"}}
PAIRINGS: Data = {
    "evaluations.0.pairings": [{"first": "one", "second": "other"}, {"first": "one", "second": "random"}],
    "best.measure": "return/first",
}
ALTERNATING: Data = {"name": "alternating_periodic", "period": 1, "phase": 0}
SCALED = '''
import torch

from palestra.config import PositiveFloat
from palestra.games import ObservationConfig, TensorGame, UserGameConfig
from palestra.games.spaces import Discrete, Space
from palestra.randomness import random_integers


class Scaled(TensorGame):
    """A bit is shown as a large number plus or minus a small one; whoever names the bit earns 1."""

    class Config(UserGameConfig):
        offset: PositiveFloat
        """what is added"""
        observation: ObservationConfig
        """what is done with observations"""

        usual = {"offset": 100.0}

    roles = ("agent",)
    moves = (("agent",),)
    quiet_moves = ()
    tallies = ()
    lockstep = True

    def __init__(self, config, device):
        self.settings, self.device = config, device
        self.spaces = {"agent": {"number": Space((1,), torch.float32, padded=False)}}
        self.action_spaces = {"agent": Discrete(2)}

    def reset(self, keys):
        return {"bit": random_integers(keys, 1, 2).squeeze(1), "over": torch.zeros_like(keys, dtype=torch.bool)}

    def deciding(self, state):
        return ~state["over"].unsqueeze(1)

    def observe(self, state, role):
        return {"number": (self.settings.offset + 0.01 * (2.0 * state["bit"] - 1.0)).float().unsqueeze(1)}

    def legal(self, state, role):
        return torch.ones(len(state["bit"]), 2, dtype=torch.bool, device=self.device)

    def transition(self, state, actions, keys):
        reward = ((actions["agent"] == state["bit"]) & ~state["over"]).float().unsqueeze(1)
        over = torch.ones_like(state["over"])
        return {**state, "over": over.clone()}, reward, over.unsqueeze(1), torch.zeros_like(over)
'''


def two_learners(make_config: MakeConfig, trainer: str, **changes: Any) -> Data:
    """Nim, in which two players learn by PPO."""
    learner = {"algorithm": PPO, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    players = {"players": {"one": copy.deepcopy(learner), "other": copy.deepcopy(learner)}}
    return make_config({"game": NIM, "trainer": {"name": trainer}} | SEATS | players | PAIRINGS | changes)


def statistics(trainer: Any) -> dict[str, tuple[int, str]]:
    """How many observations each role's statistics count, and all that they say."""
    state = trainer.game.state_dict()["observation"]
    return {role: (int(entries["heaps"]["count"]), str(entries)) for role, entries in state.items()}


def last_evaluation(run: Path) -> Data:
    return next(record for record in reversed(records(run)) if record["kind"] == "evaluation")


# ---- what moves them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_each_observation_of_a_role_that_learns_counts_once(
    make_config: MakeConfig, tmp_path: Path, trainer: str
) -> None:
    """Nobody but the role that is collected: not those of the opponent in a player's own worlds, not evaluations."""
    trained = fit(tmp_path / "run", two_learners(make_config, trainer))
    counts = {role: count for role, (count, _) in statistics(trained).items()}
    for role, name in SEATS["roles"].items():  # in some rounds it is the other's turn
        assert 0 < counts[role] < trained.players[name].env_steps
    if trainer == "together":  # one of both decides, unless there is no stone at the start
        assert 0.8 * trained.env_steps < sum(counts.values()) <= trained.env_steps


def test_evaluations_move_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    with_evaluations = fit(tmp_path / "with", two_learners(make_config, "in_turn"))
    without = fit(tmp_path / "without", two_learners(make_config, "in_turn", evaluations=[], best=None))
    assert statistics(with_evaluations) == statistics(without)
    before = statistics(with_evaluations)
    with_evaluations.evaluations.play("main", 20, with_scripted=True)
    assert statistics(with_evaluations) == before


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_those_of_a_frozen_player_stand_still(make_config: MakeConfig, tmp_path: Path, trainer: str) -> None:
    other = {"players.other.updates": ALTERNATING, "stop": {"after": 1, "unit": "epochs"}}
    trained = fit(tmp_path / "run", two_learners(make_config, trainer, **other))
    count = statistics(trained)["second"]
    changed = {"stop": {"after": 2, "unit": "epochs"}}
    longer = fit(tmp_path / "longer", two_learners(make_config, trainer, **other | changed))
    assert statistics(longer)["second"] == count
    assert statistics(longer)["first"][0] > statistics(trained)["first"][0]


# ---- where they go -------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", ["nim", "nip"])
@pytest.mark.parametrize("trainer", ["in_turn", "together"])
@pytest.mark.parametrize(
    ("function", "number", "deed"),
    [("_play", 2, kill), ("_play", 3, kill), ("safe_point", 3, ask_to_leave), ("safe_point", 8, ask_to_leave)],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    make_config: MakeConfig,
    tmp_path: Path,
    game: str,
    trainer: str,
    function: str,
    number: int,
    deed: Any,
    uninterrupted_run: MakeRun,
) -> None:
    config = two_learners(make_config, trainer, **{"output.save": {"every": 2, "unit": "opt_steps"}})
    if game == "nip":
        config |= {"game": NIP, "roles": {"prover": "one", "verifier": "other"}, "evaluations": [], "best": None}
    uninterrupted = uninterrupted_run(config)
    with at_call(Trainer, function, number, deed), contextlib.suppress(Killed):
        assert not fit(tmp_path / "run", config).finished
    resumed = fit(tmp_path / "run")
    assert all(
        moments.count > 0
        for entries in resumed.game.observation_transform.moments.values()
        for moments in entries.values()
    )
    assert_same_bits(tmp_path / "run", uninterrupted)


def test_a_stored_run_plays_with_them(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "run", two_learners(make_config, "together"))
    stored = StoredRun.open(tmp_path / "run")
    stored.load("latest")
    _, record = stored.evaluate("main", None)
    assert record["pairs"] == last_evaluation(tmp_path / "run")["pairs"]


@pytest.mark.usefixtures("forked_evaluators")
def test_other_processes_evaluate_with_them(make_config: MakeConfig, tmp_path: Path) -> None:
    config = two_learners(make_config, "together")
    fit(tmp_path / "waiting", config)
    results = {"after": 2, "unit": "opt_steps"}
    fit(
        tmp_path / "async",
        config | {"evaluators": {"num_processes": 1, "results": results, "timeout_s": 300.0, "max_restarts": 0}},
    )
    assert last_evaluation(tmp_path / "async")["pairs"] == last_evaluation(tmp_path / "waiting")["pairs"]


def test_a_loaded_player_reads_the_game_s_own_observations(make_config: MakeConfig, tmp_path: Path) -> None:
    """`legal` comes from the observation as it is, the action from the one that is normalised."""
    fit(tmp_path / "run", two_learners(make_config, "together"))
    player = palestra.load_player(tmp_path / "run", "one")
    game: Any = player.game
    state = game.reset(torch.arange(50))
    own, legal = game.observe(state, "first"), game.legal(state, "first")
    some = legal.any(dim=1)
    view = game.view(state, "first", "observation")
    assert not torch.equal(view["heaps"], own["heaps"])
    assert game.observation_transform.moments["first"]["heaps"].count > 0
    expected = player.policy(explore=False).act(view, legal, torch.arange(50), {}).action[some]
    actions, _ = player.predict(own["heaps"].numpy())
    assert actions[some.numpy()].tolist() == expected.tolist()
    assert torch.equal(game.legal_by("first", own), legal)


def test_a_player_of_several_roles_predicts_by_the_statistics_of_the_role_that_is_named(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    roles, pairing = {"first": "both", "second": "both"}, {"evaluations": [], "best": None}
    learner = {"both": {"algorithm": PPO, "warm_start": None, "updates": {"name": "constant"}, "meets": None}}
    for observation in (NORMALIZE, PLAIN):
        changes = {"game": NIM | {"observation": observation}, "roles": roles, "players": learner} | pairing
        trainer: Any = fit(tmp_path / str(observation["clip"]), make_config(changes))
        player, game = trainer.players["both"], trainer.game
        state = game.reset(torch.arange(60))
        heaps = game.observe(state, "first")["heaps"]
        found = {role: player.predict(heaps, role=role, legal=np.ones((60, 6)))[0].tolist() for role in roles}
        with torch.no_grad():
            for role in roles:
                view = game.transformed(role, {"heaps": heaps})
                policy = player.policy(explore=False)
                legal = torch.ones(60, 6, dtype=torch.bool)
                assert found[role] == policy.act(view, legal, torch.arange(60), {}).action.tolist()
        if observation is PLAIN:
            assert found["first"] == player.predict(heaps, legal=np.ones((60, 6)))[0].tolist()
            continue
        moments = game.observation_transform.moments
        assert not torch.equal(moments["first"]["heaps"].mean, moments["second"]["heaps"].mean)
        with pytest.raises(
            ValueError, match=r"expected the role of 'both' \(first, second\), because each has running"
        ):
            player.predict(heaps)
    with pytest.raises(ValueError, match=r"expected a role in which 'both' sits \(first, second\), got 'third'"):
        player.predict(heaps, role="third")


def test_an_exported_file_normalises_as_the_role_that_is_named_does_and_moves_nothing(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    roles = {"roles": {"first": "both", "second": "both"}, "evaluations": [], "best": None, "game": NIM}
    learner = {"algorithm": PPO, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    trainer: Any = fit(tmp_path / "run", make_config(roles | {"players": {"both": learner}}))
    player, game = trainer.players["both"], trainer.game
    for weight in player.nets["actor_critic"].parameters():  # so that little makes a difference
        weight.data += torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    before = str(game.state_dict())
    heaps = game.observe(game.reset(torch.arange(80)), "second")["heaps"]
    legal, values = torch.ones(80, 6, dtype=torch.bool), []
    for role in ("first", "second"):
        export_player(player, tmp_path / role, onnx=False, role=role)
        assert json.loads((tmp_path / role / "policy.json").read_text())["role"] == role
        action, logits = torch.export.load(tmp_path / role / "policy.pt2").module()({"heaps": heaps}, legal)
        assert action.tolist() == player.predict(heaps, legal=legal, role=role)[0].tolist()
        values.append(logits)
    assert not torch.equal(*values)
    assert str(game.state_dict()) == before
    with pytest.raises(ExportError, match=r"expected the role of 'both' \(first, second\)"):
        export_player(player, tmp_path / "none", onnx=False)
    assert not (tmp_path / "none").exists()


def test_ask_takes_the_game_s_own_observation(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "run", two_learners(make_config, "together"))
    heaps = [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    asked = CliRunner().invoke(app, ["ask", str(tmp_path / "run"), "--role", "first", "--observation", str(heaps)])
    at_board = CliRunner().invoke(app, ["ask", str(tmp_path / "run"), "--role", "first", "--board", "[1,0]"])
    assert asked.exit_code == 0, asked.output
    assert "first: one (ppo" in asked.output
    chosen = [line for line in asked.output.splitlines() if line.startswith("first:")]
    assert chosen == [line for line in at_board.output.splitlines() if line.startswith("first:")]


# ---- what is refused -----------------------------------------------------------------------------------


def test_a_player_of_another_run_has_statistics_that_this_one_has_not(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "run", two_learners(make_config, "together"))
    held: Data = {"from_run": str(tmp_path / "run"), "player": "other", "checkpoint": "latest"}
    for observation, expected in (
        (NORMALIZE, "expected null for game.observation.normalize here and in its run"),
        (PLAIN, "expected a player of a run with the game.observation of this file, got another one"),
    ):
        game = {"game": NIM | {"observation": observation}}
        config = two_learners(make_config, "together", **{"players.other": held}, **game)
        with pytest.raises(ConfigError, match=f"players.other.from_run: {expected}"):
            make_trainer(config, run=tmp_path / "next")
        config = two_learners(make_config, "together", **game)
        config["players"]["other"]["warm_start"] = held | {"take": "all"}
        with pytest.raises(ConfigError, match=f"players.other.warm_start: {expected}"):
            make_trainer(config, run=tmp_path / "next")


def test_a_game_that_nobody_has_trained_in_has_no_statistics(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"game\.observation\.normalize: expected null, because a game that nobody"):
        as_gymnasium(NIM, "first", {"second": "random"}, 0, "raise")
    fit(tmp_path / "run", two_learners(make_config, "together"))
    player = palestra.load_player(tmp_path / "run", "other")
    with pytest.raises(ValueError, match=r"others\['second'\]: expected the game of the player's run \(player.game\)"):
        as_gymnasium(NIM | {"observation": PLAIN}, "first", {"second": player}, 0, "raise")
    game: Any = player.game
    before = str(game.state_dict())
    env = as_gymnasium(game, "first", {"second": player}, 0, "replace")
    seen, _ = env.reset(seed=1)
    own = game.observe(env.worlds.state, "first")["heaps"]
    assert np.allclose(seen, game.transformed("first", {"heaps": own})["heaps"][0])
    env.step(0)
    assert str(game.state_dict()) == before


def test_a_tournament_has_no_statistics(tmp_path: Path) -> None:
    cup = yaml.safe_load((Path(__file__).parents[3] / "configs/tournaments/tournament-polyhedra.yml").read_text())
    cup["game"]["observation"] = NORMALIZE
    (tmp_path / "cup.yml").write_text(yaml.safe_dump(cup))
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "cup.yml")])
    assert result.exit_code == 2
    assert "game.observation.normalize: expected null, because where nobody learns" in result.output


def test_evaluations_play_no_game_with_other_observations(make_config: MakeConfig) -> None:
    other = NIM | {"max_stones": 2}
    for game, expected in (
        (NIM | {"observation": PLAIN}, r"evaluations.0.game.observation: expected the same as in the run's game"),
        (other, r"evaluations.0.game.observation.normalize: expected statistics of first.heaps \(2, 3\)"),
    ):
        with pytest.raises(ConfigError, match=expected):
            make_trainer(two_learners(make_config, "together", **{"evaluations.0.game": game}))


# ---- a game of one's own -------------------------------------------------------------------------------


@pytest.fixture
def scaled(in_tmp_path: Path) -> Iterator[str]:
    (in_tmp_path / "scaled.py").write_text(SCALED)
    yield "scaled:Scaled"
    sys.modules.pop("scaled", None)


def test_a_game_of_one_s_own_is_normalised_where_its_config_has_the_key(scaled: str) -> None:
    game: Any = make_game({"name": scaled, "offset": 7.0, "observation": NORMALIZE})
    assert isinstance(game.observation_transform.moments["agent"]["number"], RunningMoments)
    plain: Any = make_game({"name": scaled, "offset": 7.0, "observation": PLAIN})
    assert plain.observation_transform is None
    printed = CliRunner().invoke(app, ["config", "ppo", scaled])
    assert printed.exit_code == 0, printed.output
    assert yaml.safe_load(printed.output)["game"] == {"name": scaled, "offset": 100.0, "observation": PLAIN}


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_what_is_badly_scaled_is_learned_with_it_alone(scaled: str, tmp_path: Path, algorithm: str) -> None:
    accuracy = {}
    for name, observation in (("plain", PLAIN), ("normalized", NORMALIZE)):
        words = [algorithm, scaled, f"game.observation={json.dumps(observation)}", "num_worlds=64", "best=null"]
        words += ["stop.after=400", "execution.num_threads=1", "output.display=quiet", "evaluations.0.interval=null"]
        result = CliRunner().invoke(app, ["config", *words])
        assert result.exit_code == 0, result.output
        config = yaml.safe_load(result.output)
        config["output"] |= {"recorders": [], "save": None}
        trainer = fit(tmp_path / name, config)
        record = trainer.evaluations.play("main", 500, with_scripted=False)
        accuracy[name] = record["pairs"][0]["scores"]["return/agent"]
    assert accuracy["normalized"] == 1.0
    assert accuracy["plain"] < 0.6
