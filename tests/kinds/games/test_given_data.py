"""Players that learn from recorded play: what they learn, where nobody plays, and how they go on into play."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resuming import ask_to_leave, assert_same_bits, at_call, fit, records
from torch import Tensor, nn
from typer.testing import CliRunner

from palestra import load_player, make_trainer
from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss
from palestra.algorithms.off_policy import OffPolicy
from palestra.algorithms.parts.replay import LearnsByReplay
from palestra.buffers.data_set import DataSetReplay, HeldOutConfig
from palestra.cli import app
from palestra.config import ConfigError, UserConfig
from palestra.games import make_game
from palestra.kinds.games.given_data import held_out_rows
from palestra.kinds.games.recorded import find_columns, read_play
from palestra.kinds.games.starting import starting_data
from palestra.kinds.games.trainer import Trainer
from palestra.nets.weights import evaluation_mode
from palestra.players import make_script
from palestra.rollouts import fuse
from palestra.rollouts.n_step import TransitionBuilder
from palestra.rollouts.transitions import Transitions
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_config
from palestra.runtime.intervals import set_counts
from palestra.scaling.states import equal
from palestra.storage.facts import RunFacts
from palestra.storage.run_folder import RunFolder
from palestra.training.training import Training
from tests.games.gym_worlds import cart_pole, gym_data
from tests.test_gym_training import lone_agent

Data = dict[str, Any]
GAMES = {"dqn": "cartpole", "sac": "pendulum", "td3": "pendulum", "off_policy": "cartpole"}
SMALL = [
    "num_worlds=2",
    "stop.after=24",
    "batch_size=8",
    "updates_per_turn=4",
    "evaluations=[]",
    "best=null",
    "output.display=quiet",
    "output.recorders=[]",
    "output.record.every=4",
    "output.save.every=6",
]
BUFFER = {
    "name": "data_set",
    "capacity": 500,
    "layout": "whole",
    "scratch_folder": None,
    "columns": {
        "observation": {"observation": ["observation"]},
        "action": ["action"],
        "reward": "reward",
        "terminated": "terminated",
        "truncated": "truncated",
        "episode": None,
        "next_observation": {"observation": ["next_observation"]},
        "legal": None,
        "next_legal": None,
        "extras": {},
    },
    "held_out": None,
    "share_of_data": 1.0,
}
UNIFORM = {"name": "uniform", "capacity": 500, "layout": "whole", "scratch_folder": None}
AT = "players.agent.algorithm.replay_buffer"
NO_PLAY = {"rollout_length": None, "warmup_env_steps": 0}


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config_of(algorithm: str, file: str | None, overrides: tuple[str, ...] = (), **changes: Any) -> Data:
    """A small run in a batched game. file: from whose play the agent learns; None: from a uniform buffer."""
    data = read_config(starting_data(algorithm, {"name": GAMES[algorithm]}, []), [*SMALL, *overrides]).model_dump()
    learns = data["players"]["agent"]["algorithm"] | {"warmup_env_steps": 0} | changes
    if file is not None:
        learns["replay_buffer"] = BUFFER | {"file": file} | changes.get("replay_buffer", {})
    data["players"]["agent"]["algorithm"] = learns
    return data


def record_play(file: str, name: str, num_rounds: int = 60, num_worlds: int = 2) -> dict[str, Tensor]:
    """Write the play of a random player into a file, one world after the other, and return its rows in this order."""
    game = make_game(starting_data("dqn" if name == "cartpole" else "sac", {"name": name}, [])["game"])
    played = fuse(game)
    played.policies = {"agent": make_script("random", game, "agent")}
    rows = played.collect(played.new_worlds(num_worlds, 5, "recorded"), ("agent",), num_rounds)["agent"]
    rows.truncated.view(num_rounds, num_worlds)[-1] = ~rows.terminated.view(num_rounds, num_worlds)[-1]
    rows = rows.at(torch.arange(num_rounds * num_worlds).view(num_rounds, num_worlds).T.flatten())
    (entry,) = game.spaces["agent"]
    columns = {key: getattr(rows, key).numpy() for key in ("action", "reward", "terminated", "truncated")}
    observations = {key: getattr(rows, key)[entry].numpy() for key in ("observation", "next_observation")}
    np.savez(file, **columns, **observations)
    return rows.rows()


# ---- what is learned --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", GAMES)
@pytest.mark.parametrize("transitions", ["one_step", "n_step"])
def test_opt_steps_are_those_on_a_uniform_buffer_with_these_rows(algorithm: str, transitions: str) -> None:
    steps = {"name": "n_step", "steps": 3} if transitions == "n_step" else {"name": "one_step"}
    rows = record_play("play.npz", GAMES[algorithm])
    given = make_trainer(config_of(algorithm, "play.npz", transitions=steps, **NO_PLAY), run=Path("given"))
    plain = make_trainer(config_of(algorithm, None, transitions=steps, replay_buffer=UNIFORM)).learners[0]
    learned = plain.algorithm
    assert isinstance(learned, LearnsByReplay)
    builder = learned.config.transitions.build(learned.config.gamma, len(rows["reward"]), ("agent",), plain.device)
    made = builder(Transitions.from_rows(rows))
    learned.buffer.add(made.rows(), made.valid)
    given.fit()
    for _ in range(24):
        learned.opt_step(learned.buffer.sample(8))  # type: ignore[attr-defined]
        set_counts(plain, opt_steps=plain.opt_steps + 1)
    ours, theirs = (each.weights()["nets"] for each in (given.learners[0], plain))
    assert equal(ours, theirs)
    assert (given.env_steps, given.episodes, given.epochs, given.opt_steps) == (0, 0, 5, 24)
    *_, last = records(Path("given"))
    assert last["players"]["agent"]["data_passes"] == 24 * 8 / 120


def test_at_share_1_the_opt_steps_are_those_without_play_and_at_0_those_of_a_uniform_buffer() -> None:
    record_play("play.npz", "cartpole")
    rest = {"rollout_length": 3, "warmup_env_steps": 0}
    one, zero = ({"replay_buffer": {"share_of_data": share}} for share in (1.0, 0.0))
    configs = [
        config_of("dqn", "play.npz", **NO_PLAY),
        config_of("dqn", "play.npz", **rest, **one),
        config_of("dqn", "play.npz", **rest, **zero),
        config_of("dqn", None, **rest, replay_buffer=UNIFORM),
    ]
    alone, all_data, all_own, uniform = (fit(Path(f"run{n}"), each) for n, each in enumerate(configs))
    weights = [each.learners[0].weights()["nets"] for each in (alone, all_data, all_own, uniform)]
    assert equal(weights[0], weights[1])
    assert equal(weights[2], weights[3])
    assert not equal(weights[0], weights[2])
    assert all_data.env_steps == uniform.env_steps > 0


# ---- the same bits after any stop, also on the way into play -------------------------------------------------


def stop_everywhere(make: Callable[[Path], None], run: Path, whole: Path) -> None:
    """Stop a run at each of its safe points in turn, and compare it with the whole one."""
    for safe_point in (1, 2, 5, 9, 14):
        shutil.rmtree(run, ignore_errors=True)
        with at_call(Training, "safe_point", safe_point, ask_to_leave):
            make(run)
        with at_call(Training, "safe_point", 3, ask_to_leave):
            fit(run)
        fit(run)
        assert_same_bits(run, whole)


def test_a_run_from_a_file_and_its_branch_into_play_go_on_to_the_same_bits() -> None:
    record_play("play.npz", "cartpole")
    config = config_of("dqn", "play.npz", replay_buffer={"held_out": {"fraction": 0.5, "seed": 1}}, **NO_PLAY)
    fit(Path("whole"), config)
    stop_everywhere(lambda run: make_trainer(config, run=run).fit(), Path("run"), Path("whole"))
    assert not list(Path("whole").rglob("rows-*")), "rows of the file lie in no checkpoint"
    facts = RunFacts.model_validate_json(Path("whole/run.json").read_text())
    sha256 = hashlib.sha256(Path("play.npz").read_bytes()).hexdigest()
    assert facts.data_files == {"play.npz": sha256}
    assert Checkpoints(RunFolder(Path("whole")), 1, None).load("latest").state["files"] == {"agent": sha256}
    shutil.copy("play.npz", "elsewhere.npz")
    at = "players.agent.algorithm"
    changes = [f"{at}.rollout_length=2", f"{at}.replay_buffer.share_of_data=0.5", f"{at}.replay_buffer.capacity=30"]
    changes += [f"{at}.replay_buffer.file=elsewhere.npz", "num_worlds=3", "stop.after=60"]

    def branch(run: Path) -> None:
        Trainer.branch("whole/checkpoints/latest", changes, run).fit()

    branch(Path("played"))
    stop_everywhere(branch, Path("branched"), Path("played"))
    played: Trainer = Trainer.load("played")
    played.fit()
    assert (played.opt_steps, played.env_steps) == (60, 10 * 2 * 3)  # the turn in which it branched off, too
    buffer = played.learners[0].replay_buffer
    assert isinstance(buffer, DataSetReplay)
    assert len(buffer) == 30
    assert buffer.num_drawn == 24 * 8 + 36 * 4
    with pytest.raises(
        ConfigError, match=rf"^{at}\.replay_buffer\.capacity: expected 30, because rows came round, got 40$"
    ):
        Trainer.branch("played/checkpoints/latest", [changes[2].replace("30", "40"), "stop.after=70"], "more")


def test_a_branch_needs_room_for_the_rows_that_there_are() -> None:
    record_play("play.npz", "cartpole")
    config = config_of("dqn", "play.npz", rollout_length=3, replay_buffer={"share_of_data": 0.5})
    num = fit(Path("run"), config).env_steps
    at, end = "players.agent.algorithm.replay_buffer.capacity", "stop.after=30"
    with pytest.raises(ConfigError, match=rf"^{at}: expected at least {num}, as there are rows, got {num - 1}$"):
        Trainer.branch("run/checkpoints/latest", [f"{at}={num - 1}", end], "less")
    branch: Trainer = Trainer.branch("run/checkpoints/latest", [f"{at}={num}", end], "enough")
    branch.fit()
    assert branch.env_steps > num


@pytest.mark.parametrize(("share", "near", "num"), [(0.06, "0.125", 0), (0.0625, "0.125", 0), (0.99, "0.875", 8)])
def test_a_share_of_the_data_that_is_no_row_or_every_row_of_a_batch_is_refused(
    share: float, near: str, num: int
) -> None:
    config = config_of("dqn", "play.npz", rollout_length=3, replay_buffer={"share_of_data": share})
    told = f"expected 0.0, 1.0, or some of the 8 rows of a batch, such as {near}, got {share}"
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert str(caught.value) == f"{AT}.share_of_data: {told} ({num} rows)"
    read_config(config, [f"{AT}.share_of_data={near}"])
    read_config(config, [f"{AT}.share_of_data=0.0"])
    read_config(config_of("dqn", "play.npz", replay_buffer={"share_of_data": share}, **NO_PLAY))


def test_other_bytes_are_refused_with_both_hashes() -> None:
    record_play("play.npz", "cartpole")
    with at_call(Training, "safe_point", 3, ask_to_leave):
        fit(Path("run"), config_of("dqn", "play.npz", **NO_PLAY))
    before = hashlib.sha256(Path("play.npz").read_bytes()).hexdigest()
    record_play("play.npz", "cartpole", num_rounds=61)
    now = hashlib.sha256(Path("play.npz").read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match=rf"replay_buffer\.file: .*{before[:12]}.*{now[:12]}"):
        fit(Path("run"))
    shutil.copy("play.npz", "others.npz")
    changes = ["players.agent.algorithm.replay_buffer.file=others.npz", "stop.after=60"]
    with pytest.raises(ConfigError, match=rf"replay_buffer\.file: expected 'others\.npz' .*{before[:12]}.*{now[:12]}"):
        Trainer.branch("run/checkpoints/latest", changes, "branch")
    Path("play.npz").unlink()
    with pytest.raises(
        ConfigError, match=r"players\.agent\.algorithm\.replay_buffer\.file: expected a file at 'play.npz'"
    ):
        fit(Path("run"))
    config = Path("run/config.yml").read_bytes()
    done = CliRunner().invoke(app, ["extend", "run", "stop.after=60"])
    assert (done.exit_code, Path("run/config.yml").read_bytes()) == (2, config)
    policy = load_player("run")  # whoever only acts needs no data
    assert policy.opt_steps > 0


def test_replicas_draw_batches_of_their_own() -> None:
    record_play("play.npz", "cartpole")
    config = config_of("dqn", "play.npz", ("num_replicas=2",), **NO_PLAY)
    fit(Path("whole"), config)
    stop_everywhere(lambda run: make_trainer(config, run=run).fit(), Path("run"), Path("whole"))
    state = json.loads(Path("whole/checkpoints/00000004/manifest.json").read_text())
    assert state


# ---- what is held out, and what is normalised -------------------------------------------------------------------


def test_held_out_episodes_are_not_learned_from_and_their_loss_is_recorded() -> None:
    record_play("play.npz", "cartpole", num_rounds=200)
    config = config_of("off_policy", "play.npz", replay_buffer={"held_out": {"fraction": 0.3, "seed": 1}}, **NO_PLAY)
    trainer = fit(Path("run"), config)
    buffer = trainer.learners[0].replay_buffer
    assert isinstance(buffer, DataSetReplay)
    recorded = read_play(buffer.config, trainer.game, "agent")
    assert buffer.data is not None
    assert buffer.held_out is not None
    held_out = held_out_rows(HeldOutConfig(fraction=0.3, seed=1), recorded.episode)
    num_episodes = int(recorded.episode.max()) + 1
    assert len(recorded.episode[held_out].unique()) == round(0.3 * num_episodes)
    assert not set(recorded.episode[held_out].tolist()) & set(recorded.episode[~held_out].tolist())
    assert torch.equal(buffer.data.rows(0, len(buffer.data))["reward"], recorded.rows.reward[~held_out])
    assert torch.equal(buffer.held_out["action"], recorded.rows.action[held_out])
    algorithm = trainer.learners[0].algorithm
    assert isinstance(algorithm, OffPolicy)
    with torch.no_grad(), evaluation_mode([algorithm.net]):
        terms = algorithm.loss.terms(algorithm.batch(Transitions.from_rows(buffer.held_out), 24))
    *_, last = records(Path("run"))
    found = last["players"]["agent"]
    assert {name: found[f"held_out/{name}"] for name in terms} == {name: float(term) for name, term in terms.items()}


@pytest.mark.parametrize("rollout_length", [None, 2])
def test_observations_are_normalised_by_the_rows_that_are_learned_from(rollout_length: int | None) -> None:
    rows = record_play("play.npz", "pendulum", num_rounds=80, num_worlds=5)
    play = {"rollout_length": rollout_length, "warmup_env_steps": 0}
    held_out = {"replay_buffer": {"held_out": {"fraction": 0.2, "seed": 3}}}
    normalize = ("game.observation.normalize={eps: 0.01}", "num_replicas=2")
    trainer = fit(Path("run"), config_of("sac", "play.npz", normalize, **held_out, **play))
    learned = ~held_out_rows(HeldOutConfig(fraction=0.2, seed=3), torch.arange(5).repeat_interleave(80))
    (entry,) = trainer.game.spaces["agent"]
    observation = rows[f"observation.{entry}"][learned].double()
    mean, variance = observation.mean(dim=0), observation.var(dim=0, unbiased=False)
    buffer = trainer.learners[0].replay_buffer
    assert isinstance(buffer, DataSetReplay)
    assert buffer.data is not None
    given = buffer.data.rows(0, 320)
    for name in (f"observation.{entry}", f"next_observation.{entry}"):
        expected = (rows[name][learned].double() - mean) / (variance + 0.01).sqrt()
        torch.testing.assert_close(given[name], expected.float())
    (moments,) = trainer.game.statistics()
    assert int(moments.count) == 320  # type: ignore[attr-defined]
    torch.testing.assert_close(moments.mean, mean)  # type: ignore[attr-defined]


# ---- without a game, and beside others ------------------------------------------------------------------------------


def fit_apart(*overrides: str) -> tuple[Trainer, Data]:
    """A finished run that has learned from play of cartpole and has `spaces` in its place, and its config."""
    record_play("play.npz", "cartpole")
    words = ["replay_buffer.file=play.npz", *SMALL, "num_worlds=1", *overrides]
    data = read_config(starting_data("bc", {"name": "spaces"}, words[:1]), words).model_dump()
    return fit(Path("apart"), data), data


def test_a_game_may_take_the_place_of_spaces_while_nobody_plays() -> None:
    _, data = fit_apart()
    game = starting_data("dqn", {"name": "cartpole"}, [])["game"]
    own = make_game(game).spaces["agent"]
    (name,) = data["players"]["agent"]["algorithm"]["replay_buffer"]["columns"]["observation"]
    assert own.keys() == {name}
    at = "players.agent.algorithm.rollout_length=2"
    changes = [f"game={json.dumps(game)}", at, "num_worlds=3", "actors={num: 3, lag: 0}", "stop.after=40"]
    played: Trainer = Trainer.branch("apart/checkpoints/latest", changes, Path("played"))
    played.fit()
    assert (played.opt_steps, played.env_steps) == (40, 30)
    clipped = json.dumps(game | {"observation": game["observation"] | {"clip": 5.0}})
    with pytest.raises(ConfigError, match=r"^game\.observation\.clip: expected None, as with `spaces`, got 5"):
        Trainer.branch("apart/checkpoints/latest", [f"game={clipped}", *changes[1:]])
    with pytest.raises(ConfigError, match=r"num_worlds: expected 3"):
        Trainer.branch("played/checkpoints/latest", ["num_worlds=2", "actors=null"])


def test_an_environment_may_take_the_place_of_spaces_and_normalises_as_they_did() -> None:
    """Its statistics have another form than theirs, and are those of the file, too."""
    normalize = {"eps": 0.01}
    apart, _ = fit_apart(f"game.observation.normalize={json.dumps(normalize)}")
    game = cart_pole(observation={"normalize": normalize, "clip": None})
    changes = [f"game={json.dumps(game)}", "players.agent.algorithm.rollout_length=2", "stop.after=40"]
    played: Trainer = Trainer.branch("apart/checkpoints/latest", changes, Path("played"))
    played.fit()
    assert (played.opt_steps, played.env_steps) == (40, 10)
    (moments,), (own, _) = apart.game.statistics(), played.game.statistics()
    for name in ("count", "mean", "squares"):
        torch.testing.assert_close(torch.as_tensor(getattr(own, name)), getattr(moments, name))


def test_another_player_may_play_while_one_learns_from_recorded_play(make_config: Any) -> None:
    config = make_config({"num_worlds": {"host": 4, "agent": 2}, "stop.after": 24})
    fit(Path("first"), config)
    done = CliRunner().invoke(app, ["data", "collect", "first", "agent.npz", "--role", "agent", "--rows", "60"])
    assert done.exit_code == 0, done.output
    learns = config["players"]["agent"]["algorithm"]
    columns = find_columns("agent.npz", make_trainer(config).game, "agent")
    learns |= NO_PLAY | {"replay_buffer": BUFFER | {"file": "agent.npz", "columns": columns}}
    fit(Path("whole"), config)
    stop_everywhere(lambda run: make_trainer(config, run=run).fit(), Path("run"), Path("whole"))
    *_, last = (record for record in records(Path("whole")) if record["kind"] == "training")
    assert last["players"]["host"]["env_steps"] > 0 == last["players"]["agent"]["env_steps"]
    assert "episodes" in last["players"]["host"]
    assert "episodes" not in last["players"]["agent"]


def test_networks_that_are_handed_over_learn_from_the_file_too() -> None:
    record_play("play.npz", "cartpole")
    trainer: Trainer = make_trainer(config_of("dqn", "play.npz", **NO_PLAY), run=Path("run"))
    before = trainer.agent_net
    with pytest.raises(ConfigError, match=r"^players\.agent\.algorithm\.net: expected outputs of shape"):
        trainer.set_model(nn.Linear(4, 3))
    assert trainer.agent_net is before
    trainer.set_model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    trainer.fit()
    assert trainer.opt_steps == 24
    with pytest.raises(ValueError, match="expected a player that plays, got 'agent', which learns from recorded play"):
        trainer.roll_out("agent", 1)


class Selects(TransitionBuilder):
    """Keeps the rows whose log_prob is above a number."""

    class Config(UserConfig):
        least: float

    def __call__(self, experience: Transitions) -> Transitions:
        return replace(experience, valid=experience.valid & (experience.extras["log_prob"] > self.config.least))


def test_a_transition_builder_of_one_s_own_that_leaves_no_row_is_told_in_a_line() -> None:
    record_play("play.npz", "cartpole")
    steps = {"name": f"{__name__}:Selects", "least": 2.0}
    told = {"columns": BUFFER["columns"] | {"extras": {"log_prob": ["reward"]}}}
    with pytest.raises(
        ConfigError, match=r"^players\.agent\.algorithm\.transitions\.name: expected some that keep a row"
    ):
        make_trainer(config_of("dqn", "play.npz", transitions=steps, replay_buffer=told, **NO_PLAY))
    make_trainer(config_of("dqn", "play.npz", transitions=steps | {"least": 0.5}, replay_buffer=told, **NO_PLAY))


class Remembers(OffPolicyLoss):
    """Behaviour cloning, weighted by what a file tells of each decision."""

    heads = ("policy",)
    acts_by = "policy"

    class Config(UserConfig):
        column: str

    def terms(self, batch: Any) -> dict[str, Tensor]:
        weight = batch.extras[self.config.column].view(len(batch.reward), -1)[:, -1]
        return {"loss_policy": -batch.mean(weight * batch.log_prob)}


def test_a_loss_of_one_s_own_is_tried_on_rows_of_the_file() -> None:
    rows = record_play("play.npz", "cartpole")
    with np.load("play.npz") as file:
        np.savez("told.npz", **file, mine=np.ones((len(rows["reward"]), 2)))
    told = {"columns": BUFFER["columns"] | {"extras": {"mine": ["mine"]}}}
    loss = {"name": f"{__name__}:Remembers", "column": "mine"}
    body = {"name": "separate", "policy": {"name": "mlp", "net_arch": [8], "activation": "relu"}}
    learning = {"loss": loss, "body": body, "exploration": None, "target": None, **NO_PLAY}
    fit(Path("run"), config_of("off_policy", "told.npz", replay_buffer=told, **learning))
    learning["loss"] = loss | {"column": "log_prob"}  # which rows of play would have
    for file, buffer in (("play.npz", {}), ("told.npz", told)):
        config = config_of("off_policy", file, replay_buffer=buffer, **learning)
        with pytest.raises(
            ConfigError, match=r"^players\.agent\.algorithm\.loss\.name: '.*' fails: KeyError: 'log_prob'"
        ):
            make_trainer(config, run=Path("other"))


def test_networks_that_are_handed_over_are_tried_where_the_file_has_columns_of_its_own() -> None:
    record_play("play.npz", "cartpole")
    told = {"columns": BUFFER["columns"] | {"extras": {"mine": ["reward"]}}}
    trainer = make_trainer(config_of("off_policy", "play.npz", replay_buffer=told, **NO_PLAY))
    before = trainer.agent_net
    with pytest.raises(
        ConfigError, match=r"^players\.agent\.algorithm\.loss\.name: .* fails: AssertionError: not zeros"
    ):
        trainer.set_model(OfZeros(4, 2))
    assert trainer.agent_net is before


class OfZeros(nn.Linear):
    """A network that fails on all that was observed."""

    def forward(self, observation: Tensor) -> Tensor:
        assert not observation.any(), "not zeros"
        return super().forward(observation)


@pytest.mark.parametrize("algorithm", ["dqn", "bc"])
def test_columns_that_play_lacks_are_refused_before_anything_is_played(algorithm: str) -> None:
    record_play("play.npz", "cartpole")
    with np.load("play.npz") as file:
        np.savez("play.npz", **file, logits=file["reward"][:, None])
    made = starting_data(algorithm, {"name": "cartpole"}, ["replay_buffer.file=play.npz"])
    keys = ["replay_buffer.columns.extras={mine: [reward, action]}", "rollout_length=2", *SMALL]
    at = r"^players\.agent\.algorithm\.replay_buffer\.columns\.extras"
    with pytest.raises(
        ConfigError, match=rf"{at}\.mine: expected no such key, as in the player's own play .*, got torch"
    ):
        make_trainer(read_config(made, keys))
    make_trainer(read_config(made, [*keys, "rollout_length=null"]))
    own = r"torch\.float32 \(\)" if algorithm == "bc" else "no such key"
    with pytest.raises(ConfigError, match=rf"{at}\.log_prob: expected {own}, as .*, got torch\.float32 \(1,\)"):
        make_trainer(read_config(made, [*keys, "replay_buffer.columns.extras={log_prob: [logits]}"]))
    with np.load("play.npz") as file:
        np.savez("play.npz", **{**file, "logits": file["reward"]})
    if algorithm == "bc":
        fit(Path("run"), read_config(made, [*keys, "replay_buffer.columns.extras={log_prob: [logits]}"]))


def test_whose_file_it_is_is_a_player() -> None:
    with pytest.raises(ConfigError, match=r"^players\.first: unknown key; the known players: player$"):
        starting_data("bc", {"name": "tic_tac_toe"}, ["players.first.algorithm.replay_buffer.file=play.npz"])


def test_a_first_file_with_recorded_play_gives_turns_where_all_would_play_together() -> None:
    assert starting_data("dqn", {"name": "harvest"}, [])["trainer"]["name"] == "together"
    zeros = np.zeros(4)
    np.savez("play.npz", observation=np.zeros((4, 2)), action=zeros, reward=zeros, episode=zeros)
    words = ["players.farmer_0.algorithm.replay_buffer.file=play.npz"]
    config = read_config(starting_data("bc", {"name": "harvest"}, words), [])
    assert config.trainer.name == "in_turn"
    assert config.learners() == ["farmer_0"]
    shutil.copy("play.npz", "other.npz")
    words += ["players.farmer_1.algorithm.replay_buffer.file=other.npz"]
    both = read_config(starting_data("bc", {"name": "harvest"}, words), [])
    files = {name: data.file for name in both.learners() if (data := both.data_set_of(name))}
    assert files == {"farmer_0": "play.npz", "farmer_1": "other.npz"}


def test_what_another_policy_drew_before_it_was_squashed_is_not_taken_for_one_s_own() -> None:
    record_play("play.npz", "pendulum")
    stored = dict(np.load("play.npz"))
    np.savez("play.npz", **stored, drawn=5 * stored["action"])
    columns = {"sampled_action": ["drawn"]}
    config = config_of("sac", "play.npz", replay_buffer={"columns": BUFFER["columns"] | {"extras": columns}}, **NO_PLAY)
    buffer = make_trainer(config).learners[0].replay_buffer
    assert isinstance(buffer, DataSetReplay)
    assert buffer.data is not None
    rows = buffer.data.rows(0, len(buffer.data))
    assert "extras.sampled_action" not in rows
    assert torch.equal(rows["action"], torch.from_numpy(stored["action"]))


def test_a_branch_into_play_may_have_actors_where_the_game_is_the_same(make_config: Any) -> None:
    config = lone_agent(make_config, gym_data(), {"stop.after": 8})
    fit(Path("first"), config)
    done = CliRunner().invoke(app, ["data", "collect", "first", "play.npz", "--rows", "40"])
    assert done.exit_code == 0, done.output
    columns = find_columns("play.npz", make_trainer(config).game, "agent")
    learns = config["players"]["agent"]["algorithm"]
    learns |= NO_PLAY | {"replay_buffer": BUFFER | {"file": "play.npz", "columns": columns}}
    fit(Path("apart"), config)
    changes = ["players.agent.algorithm.rollout_length=2", "actors={num: 1, lag: 1}", "stop.after=12"]
    played: Trainer = Trainer.branch("apart/checkpoints/latest", changes, Path("played"))
    played.fit()
    assert played.env_steps > 0


# ---- the score by references ----------------------------------------------------------------------------------------


def test_references_add_a_score_between_random_play_and_an_expert() -> None:
    overrides = ("evaluations=[]", "best=null")
    data = starting_data("dqn", {"name": "cartpole"}, [])
    config = config_of("dqn", None, overrides) | {"stop": {"after": 4, "unit": "opt_steps"}}
    config["evaluations"] = data["evaluations"]
    config["evaluations"][0] |= {"num_games": 6, "final_num_games": 6, "max_rounds": 40}
    config["evaluations"][0]["references"] = {"agent": {"random": 22.0, "expert": 500.0}}
    config["best"] = {"evaluation": "main", "pairing": 0, "measure": "normalized/agent", "goal": "max"}
    fit(Path("run"), config)
    evaluations = [record for record in records(Path("run")) if record["kind"] == "evaluation"]
    for pair in (pair for record in evaluations for pair in record["pairs"]):
        scores, ends = pair["scores"], pair["intervals"]
        assert scores["normalized/agent"] == pytest.approx(100 * (scores["return/agent"] - 22) / 478)
        expected = [100 * (end - 22) / 478 for end in ends["return/agent"]]
        assert ends["normalized/agent"] == pytest.approx(expected)
    assert evaluations[0]["declared_scores"][-1]["name"] == "normalized/agent"
    for references, path in (
        ({"nobody": {"random": 0.0, "expert": 1.0}}, "evaluations.0.references.nobody"),
        ({"agent": {"random": 1.0, "expert": 1.0}}, "evaluations.0.references.agent.expert"),
    ):
        config["evaluations"][0]["references"] = references
        with pytest.raises(ConfigError) as error:
            make_trainer(config | {"best": None})
        assert [item.path for item in error.value.errors] == [path]


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "path", "message"),
    [
        (
            ["players.agent.algorithm.replay_buffer=" + json.dumps(UNIFORM)],
            "players.agent.algorithm.rollout_length",
            "only play fills a 'uniform' buffer",
        ),
        (["players.agent.algorithm.warmup_env_steps=7"], "players.agent.algorithm.warmup_env_steps", "expected 0"),
        (["stop.unit=env_steps"], "stop.unit", "expected opt_steps, epochs or minutes, because nobody plays"),
        (["stop.unit=episodes"], "stop.unit", "expected one of"),
        (["output.record.unit=env_steps"], "output.record.unit", "because nobody plays"),
        (
            ["trainer=together"],
            "players.agent.algorithm.rollout_length",
            "with trainer 'together', got null, which trainer.name=in_turn allows",
        ),
        (["actors={num: 1, lag: 1}"], "actors", "expected null, because nobody plays"),
        (
            ["players.agent.algorithm.replay_buffer.held_out={fraction: 0.001, seed: 0}"],
            "players.agent.algorithm.replay_buffer.held_out.fraction",
            "leaves some on both sides",
        ),
    ],
)
def test_what_needs_play_is_refused_where_nobody_plays(overrides: list[str], path: str, message: str) -> None:
    record_play("play.npz", "cartpole")
    with pytest.raises(ConfigError) as error:
        make_trainer(config_of("dqn", "play.npz", **NO_PLAY), overrides=overrides)
    assert [(item.path, message in item.message) for item in error.value.errors] == [(path, True)]
