"""First files: what the parts of a run say of them, put together.

Covers palestra.kinds.games.starting, palestra.config.usual.
"""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.commands.starting import starting_config
from palestra.config import ConfigError, load_yaml

RUNNER = CliRunner()


def test_a_fitted_config_is_complete_and_names_the_usual_arguments(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["config", "ppo", "LunarLander-v3"])
    assert done.exit_code == 0, done.output
    (tmp_path / "lander.yml").write_text(done.output)
    config = palestra.load_config(tmp_path / "lander.yml")
    game = config.game
    assert game.arguments["max_episode_steps"] == 1000  # type: ignore[union-attr]
    assert game.arguments["gravity"] == -10.0  # type: ignore[union-attr]
    assert [evaluation.max_rounds for evaluation in config.evaluations] == [1000]


def test_sac_fits_discrete_actions() -> None:
    algorithm = starting_config("sac", ["CartPole-v1"]).players["agent"].algorithm  # type: ignore[union-attr]
    assert algorithm.log_std is None
    assert algorithm.entropy_coefficient.target_entropy.name == "per_log_actions"


def test_a_policy_without_critics_draws_vectors_of_numbers_too() -> None:
    loss = "loss=tests.algorithms.test_off_policy:Cloning"
    of_numbers, of_choices = (starting_config("off_policy", [game, loss]) for game in ("Pendulum-v1", "CartPole-v1"))
    algorithms = [config.players["agent"].algorithm for config in (of_numbers, of_choices)]  # type: ignore[union-attr]
    assert [each.box_actions and each.box_actions.name for each in algorithms] == ["state_dependent_gaussian", None]


def test_a_key_of_all_players_may_be_given_once() -> None:
    config = starting_config("on_policy", ["matrix", "loss=reinforce"])
    assert {each.algorithm.loss.name for each in config.players.values()} == {"reinforce"}  # type: ignore[union-attr]
    assert {each.algorithm.estimator.name for each in config.players.values()} == {"reward_to_go"}  # type: ignore[union-attr]


def test_an_id_without_its_version_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"got 'LunarLander'; .*; did you mean 'LunarLander-v[0-9]'"):
        starting_config("ppo", ["LunarLander"])


def test_networks_fit_what_is_seen() -> None:
    given = ["game.observation.channels=last"]
    mixed = starting_config("ppo", ["tests.gym_probes:Mixed-v0", *given])
    net = mixed.players["agent"].algorithm.body.net  # type: ignore[union-attr]
    kinds = {name: entry.name for name, entry in net.entries.items()}
    assert {kinds[name] for name in kinds if "pixels" in name} == {"impala_cnn"}
    assert {kinds[name] for name in kinds if "pixels" not in name} == {"mlp"}
    pong = starting_config("ppo", ["ALE/Pong-v5"])
    assert pong.players["agent"].algorithm.body.net.name == "nature_cnn"  # type: ignore[union-attr]


def test_where_channels_are_is_asked_where_no_shape_tells_it() -> None:
    with pytest.raises(ConfigError) as caught:
        starting_config("ppo", ["tests.gym_probes:Mixed-v0"])
    [message] = str(caught.value).splitlines()
    assert message.startswith("game.observation.channels: expected first or last, because the shape (4, 5, 3) of ")
    assert message.endswith("; give it, as game.observation.channels=last")


def test_errors_of_a_game_of_ones_own_have_full_keys() -> None:
    with pytest.raises(ConfigError) as raised:
        starting_config("ppo", ["tests.gym_probes:Walk-v0", "game.observation.clip=-3.0"])
    assert str(raised.value) == "game.observation.clip: expected a number > 0 or null, got -3.0"


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_critics_that_see_an_image_see_the_action_beside_it(algorithm: str) -> None:
    game = "tests.gym_probes:Camera-v0"
    fitted: Any = starting_config(algorithm, [game]).players["agent"].algorithm
    assert fitted.policy_net.name == "impala_cnn"
    assert {name: net.name for name, net in fitted.critic_net.entries.items()} == {
        "observation": "impala_cnn",
        "action": "mlp",
    }


def test_a_wrong_name_gets_the_nearest_and_an_algorithm_that_cannot_play_says_why() -> None:
    with pytest.raises(ConfigError, match="the nearest known: 'CartPole-v1'"):
        starting_config("ppo", ["CartPol-v1"])
    done = RUNNER.invoke(app, ["config", "ppo", "CartPol-v1"])
    assert done.exit_code == 2
    with pytest.raises(ConfigError, match=r"expected one of the algorithms dqn, .* or a class of your own as package"):
        starting_config("nothing", ["CartPole-v1"])
    with pytest.raises(ConfigError, match=r"^players.agent.algorithm.name: expected Discrete actions for 'dqn'"):
        starting_config("dqn", ["Pendulum-v1"])


GARDEN = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Garden(gymnasium.Env):
    action_space = Discrete(4)

    def __init__(self, size):
        self.observation_space = Box(0.0, 1.0, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}


gymnasium.register("Garden-v0", entry_point=Garden)
"""


def test_an_environment_that_needs_an_argument_is_given_it_by_an_override(in_tmp_path: Path) -> None:
    (in_tmp_path / "garden.py").write_text(GARDEN)
    config = starting_config("ppo", ["garden:Garden-v0", "game.arguments.size=5"])
    assert config.game.arguments == {"max_episode_steps": None, "size": 5}  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"'size' \(game\.arguments\.NAME=VALUE gives one\)"):
        starting_config("ppo", ["garden:Garden-v0"])


def test_the_file_of_an_environment_without_a_limit_says_so_and_evaluates_short_games(in_tmp_path: Path) -> None:
    (in_tmp_path / "path.py").write_text(GARDEN.replace("size):", "size=3):").replace("Garden-v0", "Path-v0"))
    done = RUNNER.invoke(app, ["config", "ppo", "path:Path-v0"])
    config = load_yaml(done.stdout)
    [evaluation] = config["evaluations"]
    assert config["game"]["arguments"] == {"max_episode_steps": None}
    assert (evaluation["max_rounds"], evaluation["at_start"]) == (1000, False)
    assert done.stderr.startswith("nothing ends the episodes of path:Path-v0 but its own rules")


def test_the_file_of_an_environment_with_a_limit_has_that_limit(in_tmp_path: Path) -> None:
    limited = GARDEN.replace("size):", "size=3):").replace('"Garden-v0"', '"Yard-v0", max_episode_steps=40')
    (in_tmp_path / "yard.py").write_text(limited)
    done = RUNNER.invoke(app, ["config", "ppo", "yard:Yard-v0"])
    config = load_yaml(done.stdout)
    [evaluation] = config["evaluations"]
    assert config["game"]["arguments"] == {"max_episode_steps": 40}
    assert (evaluation["max_rounds"], evaluation["at_start"]) == (40, True)
    assert not done.stderr


# ---- own parts ----------------------------------------------------------------------------------------------------


OWN = """
from typing import ClassVar

import torch

from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.parts.replay import AnyReplayConfig
from palestra.config import PositiveFloat, PositiveInt, UserConfig
from palestra.games import ObservationConfig, UserGameConfig
from palestra.games.nim import NimConfig, NimGame
from palestra.nets import NetConfig


class Piles(NimGame):
    class Config(UserGameConfig):
        usual: ClassVar = {"num_heaps": 2, "max_stones": 5}
        usual_run: ClassVar = {"roles": {"first": "both", "second": "both"}, "stop": {"after": 7}}
        num_heaps: PositiveInt
        \"\"\"how many\"\"\"
        max_stones: PositiveInt
        \"\"\"in a heap\"\"\"
        observation: ObservationConfig
        \"\"\"what is done with it\"\"\"


class SmallDQN(DQN):
    class Config(UserConfig, DQNConfig):
        usual_run: ClassVar = {"num_worlds": 3}
        name: str
        size: PositiveFloat
        \"\"\"weight\"\"\"

        @classmethod
        def usual(cls, said, spaces):
            return {"size": 1.0 / spaces.action.num, "gamma": 0.5}


class Lacking(SmallDQN):
    class Config(SmallDQN.Config):
        patience: PositiveInt
        \"\"\"of which nothing is said\"\"\"


class Wrong(SmallDQN):
    class Config(SmallDQN.Config):
        usual: ClassVar = [1]
"""


@pytest.fixture
def own_parts(in_tmp_path: Path) -> None:
    (in_tmp_path / "own_parts.py").write_text(OWN)


@pytest.mark.usefixtures("own_parts")
def test_own_parts_say_what_their_first_file_says_and_the_rest_comes_from_the_parts_they_are_made_of() -> None:
    config = starting_config("own_parts:SmallDQN", ["own_parts:Piles", "players.both.algorithm.size=0.25"])
    algorithm: Any = config.players["both"].algorithm  # type: ignore[union-attr]
    assert (algorithm.size, algorithm.gamma, algorithm.double) == (0.25, 0.5, True)
    assert (algorithm.net.name, algorithm.optimizer.name, algorithm.replay_buffer.layout) == ("mlp", "adam", "whole")
    assert (config.num_worlds, config.stop.after, config.stop.unit) == (3, 7, "opt_steps")
    assert starting_config("own_parts:SmallDQN", ["nim"]).players["player"].algorithm.size == 1 / 9  # type: ignore[union-attr]
    assert starting_config("ppo", ["own_parts:Piles"]).game.max_stones == 5  # type: ignore[union-attr]


@pytest.mark.usefixtures("own_parts")
def test_a_key_of_which_no_part_says_anything_is_asked_for() -> None:
    with pytest.raises(ConfigError) as caught:
        starting_config("own_parts:Lacking", ["own_parts:Piles"])
    place = "players.both.algorithm.patience"
    assert str(caught.value) == f"{place}: expected an integer >= 1, but the key is missing; give it, as {place}=VALUE"
    config = starting_config("own_parts:Lacking", ["own_parts:Piles", f"{place}=2"])
    assert config.players["both"].algorithm.patience == 2  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"^expected a mapping, or a class method that gives one, as Wrong"):
        starting_config("own_parts:Wrong", ["nim"])


def test_a_file_that_is_complete_reads_no_usual_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a usual value was read")

    monkeypatch.setattr(palestra.config.usual, "usual_of", refuse)
    for name in ("ppo-cartpole", "dqn-polyhedra", "nip-witness"):
        palestra.load_config(name, ["seed=3", "learning_rate=0.001"] if name == "ppo-cartpole" else ["seed=3"])


# ---- with a loss, and what goes with it -------------------------------------------------------------------------

LOSSES = """
from palestra.algorithms.losses.loss import OnPolicyLoss
from palestra.algorithms.ppo import PPO, PPOConfig
from palestra.config import PositiveFloat, UserConfig
from palestra.schedules import ScheduleConfig


class Imitates(OnPolicyLoss):
    heads = ("policy",)

    class Config(UserConfig):
        rate: ScheduleConfig
        \"\"\"weight\"\"\"

    def terms(self, batch):
        return {"loss_policy": -self.config.rate(batch.opt_steps) * batch.mean(batch.log_prob)}


class CalmPPO(PPO):
    class Config(UserConfig, PPOConfig):
        name: str
        calm: PositiveFloat
        \"\"\"how calm\"\"\"
"""


@pytest.fixture
def losses(in_tmp_path: Path) -> None:
    (in_tmp_path / "losses_of_mine.py").write_text(LOSSES)


@pytest.mark.usefixtures("losses")
def test_what_overrides_say_counts_before_a_file_is_tried() -> None:
    """Without values the estimator of the shipped config would fit no such loss."""
    own = "loss={name: losses_of_mine:Imitates, rate: 0.5}"
    algorithm: Any = starting_config("on_policy", ["nim", own, "estimator={name: none}"]).players["player"].algorithm  # type: ignore[union-attr]
    assert algorithm.estimator.name == "none"
    assert algorithm.loss.rate(0) == 0.5
    assert list(algorithm.body.nets) == ["policy"]
    algorithm = starting_config("on_policy", ["nim", own]).players["player"].algorithm  # type: ignore[union-attr]
    assert algorithm.estimator.model_dump() == {"name": "reward_to_go", "gamma": 0.99, "at_truncation": "end"}


@pytest.mark.parametrize("override", ["loss=reinforce", "loss.name=reinforce"])
@pytest.mark.parametrize(("critic", "heads"), [(None, ["policy"]), (0.5, ["policy", "value"])])
def test_reinforce_comes_with_its_estimator_its_heads_and_one_pass(
    override: str, critic: float | None, heads: list[str]
) -> None:
    more = [] if critic is None else [f"loss.critic={{coefficient: {critic}}}"]
    algorithm: Any = starting_config("on_policy-cartpole", [override, *more]).players["agent"].algorithm  # type: ignore[union-attr]
    assert (algorithm.loss.name, algorithm.num_passes) == ("reinforce", 1)
    assert list(algorithm.body.nets) == heads
    assert algorithm.estimator.name == ("reward_to_go" if critic is None else "gae")
    assert algorithm.estimator.gamma == 0.98, "as the shipped config has it, and so are its networks"
    assert algorithm.body.nets["policy"].net_arch == [64, 64]
    algorithm = starting_config("on_policy", ["cartpole", override, *more]).players["agent"].algorithm  # type: ignore[union-attr]
    assert (list(algorithm.body.nets), algorithm.num_passes, algorithm.estimator.gamma) == (heads, 1, 0.99)


@pytest.mark.usefixtures("losses")
def test_keys_of_an_algorithm_of_ones_own_can_be_overridden() -> None:
    name = "algorithm.name=losses_of_mine:CalmPPO"
    config = starting_config("ppo-cartpole", [name, "players.agent.algorithm.calm=0.01"])
    assert config.players["agent"].algorithm.calm == 0.01  # type: ignore[union-attr]
    with pytest.raises(
        ConfigError, match=r"^players.agent.algorithm.calm: expected a number > 0, but the key is missing$"
    ):
        starting_config("ppo-cartpole", [name])


@pytest.mark.parametrize(
    "words",
    [
        ["on_policy", "nim", "estimator=none"],
        ["on_policy-cartpole", "estimator=none"],
        ["on_policy-cartpole", "learning_rate_factors={x: 2}"],
        ["dqn-nim", "players.player.algorithm.net.net_arch=[b]"],
    ],
)
def test_no_file_is_printed_that_check_refuses(words: list[str], in_tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["config", *words])
    assert result.exit_code in (0, 2)
    if result.exit_code == 0:
        Path("printed.yml").write_text(result.stdout)
        assert RUNNER.invoke(app, ["check", "printed.yml"]).exit_code == 0
    else:
        assert result.stdout == ""


def test_a_file_for_a_device_that_is_not_here_is_printed() -> None:
    result = RUNNER.invoke(app, ["config", "dqn-nim", "execution.device=cuda:7"])
    assert result.exit_code == 0
    assert "device: cuda:7" in result.stdout


@pytest.mark.parametrize("loss", ["reinforce", "torchrl.objectives:ReinforceLoss", "torchrl.objectives:A2CLoss"])
def test_several_passes_of_a_loss_that_holds_for_one_are_refused(loss: str, in_tmp_path: Path) -> None:
    config = starting_config("on_policy", ["cartpole", f"loss={loss}"])
    Path("run.yml").write_text(palestra.config.render(config, type(config)))
    line = (
        f"players.agent.algorithm.num_passes: expected 1 (the loss '{loss}' holds only for the policy that collected "
        "the roll-out, which the first pass changes), got 3\n"
    )
    for command in (["check", "run.yml"], ["train", "run.yml", "--quiet", "--run", "run"]):
        result = RUNNER.invoke(app, [*command, "num_passes=3"])
        assert (result.exit_code, result.stderr) == (2, line)
    assert not Path("run").exists()
    assert RUNNER.invoke(app, ["check", "run.yml"]).exit_code == 0
