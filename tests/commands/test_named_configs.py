"""Configs by name: shipped ones, an algorithm and a game, and files that come before them.

From an installed wheel: tests/doors.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.config import load_yaml
from palestra.config.variants import members_of, names_of
from palestra.games import AnyGameConfig
from palestra.kinds.games.starting import known_algorithms, known_losses
from palestra.kinds.text.starting import text_algorithms
from palestra.run.shipped import shipped_configs

ROOT = Path(__file__).parents[2]
SHIPPED = shipped_configs()
GAMES = [name for name in names_of(members_of(AnyGameConfig)) if name not in ("gymnasium", "spaces")]
OWN_GAMES = {
    "pennies:Pennies": {"num_rounds": 4},
    "probes:Probe": {"kind": "identity", "continuous": False, "limit": 3},
}
USUAL = """    class Config(UserGameConfig):
        usual = {"num_rounds": 6}"""
REFUSED = {  # what an algorithm cannot play, and why
    ("dqn", "pendulum"): "expected Discrete actions for 'dqn', got Box",
    ("td3", "polyhedra"): "expected Box actions for 'td3', got Discrete",
    ("td3", "nim"): "expected Box actions for 'td3', got Discrete",
    ("td3", "connect_four"): "expected Box actions for 'td3', got Discrete",
    ("td3", "tic_tac_toe"): "expected Box actions for 'td3', got Discrete",
    ("td3", "matrix"): "expected Box actions for 'td3', got Discrete",
    ("td3", "harvest"): "expected Box actions for 'td3', got Discrete",
    ("dqn", "dialogue"): "expected Discrete actions for 'dqn', got MultiDiscrete",
    ("sac", "dialogue"): "for 'sac', got MultiDiscrete",
    ("td3", "dialogue"): "expected Box actions for 'td3', got Discrete",
    ("td3", "cartpole"): "expected Box actions for 'td3', got Discrete",
    ("td3", "acrobot"): "expected Box actions for 'td3', got Discrete",
    ("td3", "mountain_car"): "expected Box actions for 'td3', got Discrete",
    ("td3", "CartPole-v1"): "expected Box actions for 'td3', got Discrete",
    ("dqn", "Pendulum-v1"): "expected Discrete actions for 'dqn', got Box",
    (
        "off_policy",
        "pendulum",
    ): "expected Discrete actions for the loss 'q_learning', which values each of them, got Box",
    (
        "off_policy",
        "Pendulum-v1",
    ): "expected Discrete actions for the loss 'q_learning', which values each of them, got",
    (
        "off_policy",
        "dialogue",
    ): "Discrete actions for the loss 'q_learning', which values each of them, got MultiDiscrete",
}
OF_TD3 = {game: message for (algorithm, game), message in REFUSED.items() if algorithm == "td3"}
REFUSED |= {("td3_bc", game): message.replace("'td3'", "'td3_bc'") for game, message in OF_TD3.items()}

SKILLED = """
from typing import ClassVar

from palestra.algorithms.losses.loss import Head, OnPolicyLoss
from palestra.config import PositiveInt, UserConfig


class Skilled(OnPolicyLoss):
    heads = ("policy", Head("skill", 3), "value")

    class Config(UserConfig):
        usual: ClassVar = {"skills": 2}
        skills: PositiveInt
        \"\"\"how many\"\"\"

    def terms(self, batch):
        both = batch.outputs["skill"].sum(dim=1) + batch.value - batch.log_prob * batch.advantage
        return {"loss_all": batch.mean(both)}
"""
CLONED = """
from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss
from palestra.config import UserConfig


class Cloned(OffPolicyLoss):
    heads = ("policy",)
    acts_by = "policy"

    class Config(UserConfig):
        pass

    def terms(self, batch):
        return {"loss_policy": -batch.mean(batch.log_prob)}
"""

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def palestra(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


# ---- every algorithm on every game ---------------------------------------------------------------------


@pytest.mark.parametrize("game", [*GAMES, "CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algorithm", known_algorithms())
def test_check_accepts_what_config_prints_for_every_algorithm_and_game(algorithm: str, game: str) -> None:
    if (algorithm, game) in REFUSED:
        error = palestra("config", algorithm, game, code=2).stderr
        assert REFUSED[algorithm, game] in error
        assert error.count("\n") == 1
        return
    Path("printed.yml").write_text(palestra("config", algorithm, game).stdout)
    palestra("check", "printed.yml")
    printed = load_yaml(Path("printed.yml"))
    assert printed["game"].get("id", printed["game"]["name"]) == game
    assert {player["algorithm"]["name"] for player in printed["players"].values()} == {algorithm}


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "sac"])
@pytest.mark.parametrize("game", OWN_GAMES)
def test_a_game_of_ones_own_has_a_config_for_every_algorithm(algorithm: str, game: str) -> None:
    shutil.copy(ROOT / "docs" / "examples" / "pennies.py", ".")
    keys = [f"game.{key}={json.dumps(value)}" for key, value in OWN_GAMES[game].items()]
    for missing in keys:
        error = palestra("config", algorithm, game, *(key for key in keys if key != missing), code=2).stderr
        key = missing.partition("=")[0]
        assert error.endswith(f"but the key is missing; give it, as {key}=VALUE\n")
    Path("printed.yml").write_text(palestra("config", algorithm, game, *keys).stdout)
    palestra("check", "printed.yml")
    assert load_yaml(Path("printed.yml"))["game"] == {"name": game, **OWN_GAMES[game]}


def test_a_game_of_ones_own_may_say_what_is_usual() -> None:
    text = (ROOT / "docs" / "examples" / "pennies.py").read_text()
    Path("usual_pennies.py").write_text(text.replace("    class Config(UserGameConfig):", USUAL))
    printed = load_yaml(palestra("config", "ppo", "usual_pennies:Pennies").stdout)
    assert printed["game"] == {"name": "usual_pennies:Pennies", "num_rounds": 6}


@pytest.mark.parametrize("algorithm", known_algorithms())
def test_an_algorithm_alone_is_told_its_games(algorithm: str) -> None:
    error = palestra("config", algorithm, code=2).stderr
    assert f"{algorithm}: expected a game after {algorithm} (one of {', '.join(GAMES)}, spaces, the id of a " in error
    shipped = f"{algorithm}-{'cartpole' if algorithm in ('dqn', 'off_policy') else 'pendulum'}"
    assert (shipped if shipped in SHIPPED else "shipped configs: none") in error
    assert palestra("train", algorithm, code=2).stderr == error


def test_an_algorithm_that_is_none_is_told() -> None:
    error = palestra("config", "mine:Sarsa", "cartpole", code=2).stderr
    assert error.startswith("players.agent.algorithm.name: importing 'mine' failed: ModuleNotFoundError")
    names = ", ".join([*known_algorithms(), *known_losses(), "fit", *text_algorithms()])
    expected = (
        f"sarsa: expected one of the algorithms {names}, or a class of your own as package.module:Class, got 'sarsa'"
    )
    assert palestra("config", "sarsa", "cartpole", code=2).stderr == f"{expected}\n"
    assert ", got none; shipped configs: none" in palestra("config", "mine:Sarsa", code=2).stderr


@pytest.mark.parametrize(("algorithm", "game"), [("dqn", "gymnasium"), ("dqn", "chess"), ("sac", "polyhedron")])
def test_a_game_that_is_unknown_is_one_line_with_those_there_are(algorithm: str, game: str) -> None:
    error = palestra("config", algorithm, game, code=2).stderr
    assert error.startswith(f"{algorithm} {game}: expected a game after {algorithm} (one of {', '.join(GAMES)}, ")
    assert f", got '{game}'; shipped configs: {algorithm}-" in error


def test_a_class_that_is_no_game_is_told() -> None:
    assert "game.name: importing 'nowhere' failed" in palestra("config", "dqn", "nowhere:Game", code=2).stderr


def test_a_shipped_config_of_a_batched_game_is_what_its_algorithm_and_game_print() -> None:
    for stem, words in (("ppo-cartpole-batched", ("ppo", "cartpole")), ("sac-pendulum-batched", ("sac", "pendulum"))):
        assert load_yaml(palestra("config", *words).stdout) == load_yaml(SHIPPED[stem])
    others = load_yaml(palestra("config", "ppo", "mountain_car").stdout)["game"]
    assert (others["initial_low"], others["initial_high"]) == (-0.6, -0.4), (
        "the usual starts, not the shipped wide ones"
    )


def test_config_takes_overrides() -> None:
    for words in (("dqn-nim",), ("dqn", "nim"), ("ppo", "nim")):
        printed = load_yaml(palestra("config", *words, "seed=7", "game.num_heaps=4").stdout)
        assert (printed["seed"], printed["game"]["num_heaps"]) == (7, 4)


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        (("on_policy", "CartPole-v1", "ClipPPOLoss"), ["policy", "value"]),
        (("on_policy", "pendulum", "KLPENPPOLoss"), ["policy", "value"]),
        (("on_policy", "nim", "A2CLoss"), ["policy", "value"]),
        (("off_policy", "nim", "DQNLoss"), ["q"]),
        (("off_policy", "CartPole-v1", "DiscreteSACLoss"), ["policy", "critic_0", "critic_1"]),
        (("off_policy", "pendulum", "SACLoss"), ["policy", "critic_0", "critic_1"]),
        (("off_policy", "Pendulum-v1", "SACLoss"), ["policy", "critic_0", "critic_1"]),
    ],
)
def test_a_loss_of_torchrl_is_printed_with_all_arguments_and_what_goes_with_it(
    words: tuple[str, str, str], heads: list[str]
) -> None:
    pytest.importorskip("torchrl")
    algorithm, game, loss = words
    Path("printed.yml").write_text(palestra("config", algorithm, game, f"loss=torchrl.objectives:{loss}").stdout)
    palestra("check", "printed.yml")
    (player,) = load_yaml(Path("printed.yml"))["players"].values()
    printed = player["algorithm"]
    assert printed["loss"]["name"] == f"torchrl.objectives:{loss}"
    assert printed["loss"]["arguments"]["reduction"] == "mean"
    assert [key for key in printed["body"] if key != "name"] == heads


@pytest.mark.parametrize(
    ("algorithm", "game", "loss", "heads"),
    [
        ("on_policy", "CartPole-v1", "{name: skilled:Skilled, skills: 3}", ["policy", "skill", "value"]),
        ("on_policy", "nim", "skilled:Skilled", ["policy", "skill", "value"]),
        ("off_policy", "nim", "{name: regret:Regret, share: 0.5}", ["q"]),
        ("off_policy", "Pendulum-v1", "cloned:Cloned", ["policy"]),
    ],
)
def test_a_loss_of_ones_own_is_printed_with_its_heads(algorithm: str, game: str, loss: str, heads: list[str]) -> None:
    shutil.copy(ROOT / "docs" / "examples" / "regret.py", ".")
    Path("cloned.py").write_text(CLONED)
    Path("skilled.py").write_text(SKILLED + "print('hello: from a module')\n")  # as pygame says when it is imported
    Path("printed.yml").write_text(palestra("config", algorithm, game, f"loss={loss}").stdout)
    palestra("check", "printed.yml")
    (player,) = load_yaml(Path("printed.yml"))["players"].values()
    printed = player["algorithm"]
    usual = {"name": loss} | ({"skills": 2} if loss == "skilled:Skilled" else {})
    assert printed["loss"] == (yaml.safe_load(loss) if loss[0] == "{" else usual)
    assert (printed["box_actions"] is not None) == (game == "Pendulum-v1")
    assert [key for key in printed["body"] if key != "name"] == heads


@pytest.mark.parametrize("words", [("iql",), ("off_policy", "loss=iql")])
@pytest.mark.parametrize("game", ["nim", "pendulum"])
def test_a_loss_of_recorded_play_is_printed_with_its_usual_values(game: str, words: tuple[str, ...]) -> None:
    Path("printed.yml").write_text(palestra("config", words[0], game, *words[1:], "expectile=0.9").stdout)
    palestra("check", "printed.yml")
    printed = next(iter(load_yaml(Path("printed.yml"))["players"].values()))["algorithm"]
    assert printed["loss"] == {
        **{"name": "iql", "num_critics": 2, "expectile": 0.9, "temperature": 0.3333, "max_weight": 100.0}
    }
    assert list(printed["body"]) == ["name", "policy", "critic_0", "critic_1", "value"]
    assert printed["target"] == {"name": "polyak", "tau": 0.005, "interval": 1}
    assert (printed["batch_size"], printed["learning_rate"]["value"]) == (256, 3e-4)
    assert (printed["max_grad_norm"], printed["exploration"], printed["replay_buffer"]["name"]) == (
        None,
        None,
        "uniform",
    )
    expected = {"name": "clipped_gaussian", "initial_log_std": 0.0} if game == "pendulum" else None
    assert printed["box_actions"] == expected


@pytest.mark.parametrize("game", ["nim", "pendulum"])
def test_every_loss_by_name_stands_for_its_algorithm(game: str) -> None:
    assert known_losses() == {
        **dict.fromkeys(("q_learning", "bc", "awac", "iql"), "off_policy"),
        "reinforce": "on_policy",
    }
    for loss, algorithm in known_losses().items():
        if (loss, game) == ("q_learning", "pendulum"):
            assert "for the loss 'q_learning', which values" in palestra("config", loss, game, code=2).stderr
            continue
        printed = palestra("config", loss, game).stdout
        assert printed == palestra("config", algorithm, game, f"loss={loss}").stdout
        assert f"    name: {algorithm} " in printed


def test_train_takes_a_loss_and_a_game() -> None:
    few = ("stop.after=4", "rollout_length=2", "warmup_env_steps=8", "updates_per_turn=2", "batch_size=4")
    palestra("train", "iql", "pendulum", *few, "evaluations=[]", "best=null", "output.recorders=[]", "--quiet")
    algorithm = load_yaml(Path("runs/iql-pendulum-1/config.yml"))["players"]["agent"]["algorithm"]
    assert (algorithm["name"], algorithm["loss"]["name"]) == ("off_policy", "iql")


def test_an_estimator_of_torchrl_by_override_stands_for_all_of_its_keys() -> None:
    pytest.importorskip("torchrl")
    gae = "estimator=torchrl.objectives.value:GAE"
    (player,) = load_yaml(palestra("config", "on_policy-cartpole", gae).stdout)["players"].values()
    arguments = {"gamma": 0.99, "lmbda": 0.95, "average_gae": False, "vectorized": None}
    found = {"name": "torchrl.objectives.value:GAE", "arguments": arguments}
    assert player["algorithm"]["estimator"] == found
    error = palestra("check", "on_policy-cartpole", "loss=torchrl.objectives:ClipPPO", code=2).stderr
    assert error == (
        "players.agent.algorithm.loss.name: expected a class of torchrl.objectives that derives from LossModule, got "
        "'torchrl.objectives:ClipPPO'; did you mean 'torchrl.objectives:ClipPPOLoss'?\n"
    )
    error = palestra("config", "off_policy", "pendulum", "loss=torchrl.objectives:A2CLoss", code=2).stderr
    assert error.startswith(
        "players.agent.algorithm.loss.name: expected torchrl.objectives:DQNLoss, SACLoss, DiscreteSACLoss, a class of"
    )


# ---- by name -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "check", "profile", "config"])
def test_an_unknown_name_is_one_line_that_lists_the_shipped_ones(command: str) -> None:
    error = palestra(command, "ppo-cartpol", code=2).stderr
    assert error.startswith(f"ppo-cartpol: expected one of the shipped configs ({', '.join(SHIPPED)}), or an algorithm")
    assert error.endswith(", got 'ppo-cartpol'; did you mean 'ppo-cartpole'?\n")


def test_a_file_that_is_missing_but_shipped_is_told_by_its_name() -> None:
    error = palestra("train", "configs/ppo-cartpole.yml", code=2).stderr
    assert error.endswith("configs; palestra ships a config under the name ppo-cartpole\n")
    Path("mine.yml").touch()
    assert palestra("train", "mine", code=2).stderr.endswith("; did you mean mine.yml?\n")


@pytest.mark.parametrize("name", ["dqn-nim.yml", "dqn-nim"])
def test_a_file_of_that_name_comes_first_and_a_line_says_so(name: str) -> None:
    Path(name).write_text(palestra("config", "dqn-nim", "stop.after=8", "evaluations=[]", "best=null").stdout)
    note = f"{name}: this file is used, not the config dqn-nim that palestra ships\n"
    checked = palestra("check", "dqn-nim").stdout
    assert checked.startswith(f"{note}{name}: complete and consistent\ntrain: 8 opt steps, ")
    assert checked.endswith("test: no evaluations\n")
    few = "players.player.algorithm.warmup_env_steps=300"
    assert palestra("train", "dqn-nim", few, "output.recorders=[]").stdout.startswith(note)
    assert load_yaml(Path("runs/dqn-nim-1/config.yml"))["stop"]["after"] == 8
    assert palestra("train", "dqn-nim", few, "output.recorders=[]", "--quiet").stdout == ""
    assert palestra("config", "dqn-nim").stdout == palestra("config", "dqn", "nim").stdout  # what palestra ships


def test_a_folder_of_that_name_does_not_come_first() -> None:
    Path("dqn-nim").mkdir()
    assert palestra("check", "dqn-nim").stdout.startswith("dqn-nim: complete and consistent\ntrain: 1,500 opt steps, ")


def test_train_takes_an_algorithm_and_a_game() -> None:
    changes = ("stop={after: 8, unit: opt_steps}", "evaluations=[]", "best=null", "output.recorders=[]")
    palestra("train", "ppo", "nim", *changes, "--quiet")
    palestra("train", "ppo", "nim", *changes, "--quiet", "--seeds", "3,4")
    seeds = [load_yaml(Path(f"runs/ppo-nim-{n}/config.yml"))["seed"] for n in (1, 2, 3)]
    assert seeds == [0, 3, 4]
    error = palestra("train", "ppo", "nim", "gamma", code=2).stderr
    assert error == "gamma: expected an override of the form dotted.key=value, got no '='\n"


def test_short_overrides_stand_for_keys_and_schedules_in_a_run_and_its_branch() -> None:
    changes = ("stop={after: 8, unit: opt_steps}", "evaluations=[]", "best=null", "output.recorders=[]")
    palestra("train", "ppo", "nim", *changes, "learning_rate=1e-3", "gamma=.5", "--quiet", "--run", "run")
    start = "run/checkpoints/00000000"
    palestra("branch", start, "learning_rate=2e-3", "algorithm.gamma=.75", "--quiet", "--run", "branch")
    for run, learning_rate, gamma in (("run", 1e-3, 0.5), ("branch", 2e-3, 0.75)):
        (player,) = load_yaml(Path(run) / "config.yml")["players"].values()
        assert player["algorithm"]["learning_rate"] == {"name": "constant", "value": learning_rate}
        assert player["algorithm"]["gamma"] == gamma


def test_a_short_key_that_both_players_have_is_told_both_keys() -> None:
    error = palestra("check", "dqn-polyhedra", "gamma=.98", code=2).stderr
    every = "players.host.algorithm.gamma, players.agent.algorithm.gamma"
    assert error == f"gamma: expected a key in full, for several end so: {every}\n"
    palestra("check", "dqn-polyhedra", "host.algorithm.gamma=.98")


@pytest.mark.parametrize("command", ["train", "check"])
def test_another_environment_by_override_names_the_command_for_a_config_that_fits(command: str) -> None:
    remedy = "; a config that fits: palestra config ppo Pendulum-v1 > x.yml\n"
    assert palestra(command, "ppo-cartpole", "game.id=Pendulum-v1", code=2).stderr.endswith(remedy)
    assert palestra(command, "ppo-cartpole", "id=Pendulum-v1", code=2).stderr.endswith(remedy)
    arguments = "game.arguments={max_episode_steps: 200, g: 10.0}"
    assert palestra(command, "ppo-cartpole", "game.id=Pendulum-v1", arguments, code=2).stderr.endswith(remedy)
    assert "palestra config" not in palestra(command, "ppo-cartpole", "game.id=Pendulm-v1", code=2).stderr
    assert "palestra config" not in palestra(command, "ppo-cartpole", "game.id=CartPole-v1", "seed=x", code=2).stderr


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_loss_by_name_on_a_shipped_config_brings_what_goes_with_it(command: str, in_tmp_path: Path) -> None:
    more = [] if command == "check" else ["num_worlds=8", "rollout_length=4", "evaluations=[]", "best=null"]
    more += [] if command == "check" else ["stop.after=4", "output.recorders=[]", "--run", "run"]
    palestra(command, "on_policy-cartpole", "loss=reinforce", *more)
    if command == "train":
        algorithm = load_yaml(Path("run/config.yml"))["players"]["agent"]["algorithm"]
        assert (algorithm["loss"]["name"], algorithm["num_passes"]) == ("reinforce", 1)
        assert (algorithm["estimator"]["name"], list(algorithm["body"])) == ("reward_to_go", ["name", "policy"])


def test_a_shipped_config_takes_a_network_of_ones_own_by_override(in_tmp_path: Path) -> None:
    Path("own_net.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 2)\n")
    own = "net={name: 'own_net:make'}"
    palestra("check", "dqn-cartpole", own)
    changes = ("stop.after=1", "warmup_env_steps=64", "evaluations=[]", "best=null", "output.recorders=[]")
    palestra("train", "dqn-cartpole", own, *changes, "--quiet", "--run", "run")
    assert load_yaml(Path("run/config.yml"))["players"]["agent"]["algorithm"]["net"] == {"name": "own_net:make"}


@pytest.mark.parametrize("override", ["loss=reinforce", "loss.name=reinforce"])
def test_another_loss_in_a_file_of_ones_own_names_the_command_for_a_config_that_fits(
    override: str, in_tmp_path: Path
) -> None:
    Path("mine.yml").write_text(palestra("config", "on_policy-cartpole").stdout)
    error = palestra("check", "mine.yml", override, code=2).stderr
    assert error.endswith("; a config that fits: palestra config on_policy CartPole-v1 loss=reinforce > x.yml\n")
    assert "palestra config" not in palestra("check", "mine.yml", "loss.value_coefficient=x", code=2).stderr
    remedy = "; a config that fits: palestra config dqn CartPole-v1 > x.yml\n"
    assert palestra("check", "mine.yml", "algorithm=dqn", code=2).stderr.endswith(remedy)


def test_a_name_alone_for_a_part_without_usual_keys_says_how_the_part_is_written() -> None:
    error = palestra("check", "on_policy-cartpole", "body=shared", code=2).stderr
    assert error.endswith("got the string 'shared'; write {name: shared, net: ...}\n")
    error = palestra("check", "ppo-cartpole", "learning_rate=linear", code=2).stderr
    assert error.endswith("; write {name: linear, initial: ..., final: ..., num_steps: ...}\n")


def test_a_loss_of_recorded_play_finds_the_play_that_is_shipped_and_another_file_begins_anew() -> None:
    shipped = load_yaml(ROOT / "configs" / "iql-pendulum.yml")
    Path("printed.yml").write_text(palestra("config", "iql", "Pendulum-v1").stdout)
    assert load_yaml(Path("printed.yml")) == shipped
    rows = dict(np.load(ROOT / "palestra" / "recorded" / "pendulum.npz"))
    own = {"observations": "observation.observation", "actions": "action", "rewards": "reward", "timeouts": "truncated"}
    np.savez("own.npz", **{name: rows[ours] for name, ours in own.items()})
    Path("printed.yml").write_text(palestra("config", "iql", "Pendulum-v1", "replay_buffer.file=own.npz").stdout)
    learns = load_yaml(Path("printed.yml"))["players"]["agent"]["algorithm"]
    assert learns["replay_buffer"]["columns"]["observation"] == {"observation": ["observations"]}
    assert learns["rollout_length"] is None
    told = palestra("data", "show", "palestra:pendulum").stdout
    assert "9,000 rows" in told
    assert "45 episodes" in told
