"""`palestra check` refuses what `palestra train` would refuse before its first step, in the same words.

Covers palestra.games.config, palestra.games.gymnasium.known_spaces, palestra.runtime.device,
palestra.training.trainable.
"""

import copy
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from palestra import Callback, Trainer, make_trainer
from palestra.cli import app
from palestra.commands.check import dry_run
from palestra.config import ConfigError, load_yaml
from palestra.games.config import NotDeclared
from palestra.games.dialogue.protocol import turns_in_words
from palestra.games.gymnasium import GymnasiumConfig
from palestra.games.gymnasium.arguments import known_arguments
from palestra.games.gymnasium.environments import make_environment
from palestra.games.gymnasium.known_spaces import SPACES, make_stand_in
from palestra.kinds.games.config import RunConfig
from palestra.kinds.text.config import TextConfig
from palestra.run.kinds import read_config

CONFIGS = Path(__file__).parents[2] / "configs"
GAMES = ("dqn-cartpole", "ppo-pendulum", "dqn-lunarlander", "sac-hopper", "dqn-pong", "dqn-nim")
ALGORITHMS = ("dqn-cartpole", "dqn-pong", "ppo-cartpole", "ppo-pendulum", "ppo-pong", "sac-pendulum", "td3-pendulum")
WIDTHS = {"net_arch", "hidden_widths"}
LACKS = "only this machine lacks, so that train refuses it here: "
NEEDS_AN_EXTRA = re.compile(r"needs an extra: pip install")

pytestmark = pytest.mark.usefixtures("in_tmp_path")


class Started(Exception):
    pass


class StopAtOnce(Callback):
    def __init__(self) -> None:
        super().__init__(None)

    def before_train(self, trainer: Any) -> None:
        raise Started


def smaller(value: Any) -> Any:
    """With layers of one unit, and a small replay buffer."""
    if isinstance(value, list):
        return list(map(smaller, value))
    if not isinstance(value, dict):
        return value
    found = {key: smaller(each) for key, each in value.items()}
    found |= {key: min(value[key], 1000) for key in value.keys() & {"capacity"}}
    return found | {
        key: [1 if isinstance(width, int) else width for width in value[key]] for key in value.keys() & WIDTHS
    }


@cache
def shipped(name: str) -> dict[str, Any]:
    """A shipped config that trains in little memory: training makes buffers and networks before it is stopped."""
    config = load_yaml(CONFIGS / f"{name}.yml")
    algorithm = learner_of(config)["algorithm"]
    algorithm |= smaller(algorithm)
    return config


def refused_by_train(config: dict[str, Any]) -> list[str]:
    quiet = copy.deepcopy(config)
    quiet["output"] |= {"display": "quiet", "recorders": []}
    try:
        Trainer(quiet, callbacks=[StopAtOnce()], console=Console(quiet=True)).fit()
    except Started:
        return []
    except ConfigError as error:
        return str(error).splitlines()
    raise AssertionError("fit came to its end")


def refused_by_check(config: dict[str, Any]) -> list[str]:
    try:
        return dry_run(config, []).lacks  # type: ignore[arg-type]
    except ConfigError as error:
        return str(error).splitlines()


def learner_of(config: dict[str, Any]) -> dict[str, Any]:
    return next(player for player in config["players"].values() if "algorithm" in player)


def with_values(name: str, **values: Any) -> dict[str, Any]:
    """A shipped config in which values are replaced; keys with __ in place of dots below the algorithm, if they begin
    with a lower-case a__."""
    config = copy.deepcopy(shipped(name))
    for path, value in values.items():
        *parents, last = path.split("__")
        place: Any = config
        if parents[:1] == ["a"]:
            place, parents = learner_of(config)["algorithm"], parents[1:]
        for key in parents:
            place = place[key]
        place[last] = value
    return config


def crossed() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every algorithm in every game."""
    for game in GAMES:
        for algorithm in ALGORITHMS:
            config = copy.deepcopy(shipped(game))
            learner_of(config)["algorithm"] = copy.deepcopy(learner_of(shipped(algorithm))["algorithm"])
            yield f"{algorithm} in {game}", config


def mutated() -> Iterator[tuple[str, dict[str, Any]]]:
    def case(name: str, **values: Any) -> tuple[str, dict[str, Any]]:
        return f"{name} {values}", with_values(name, **values)

    deep_sets = {"name": "deep_sets", "point_widths": [8], "head_widths": [8]}
    gone = {"from_run": "runs/gone", "player": "agent", "checkpoint": "latest", "take": "all"}
    freeze = {"name": "freeze", "player": "agent", "net": "value", "weights": ["*"], "num_opt_steps": None}
    normalized = {"name": "mlp", "net_arch": [{"repeat": 1, "net_arch": ["l", "b", 8]}], "activation": "relu"}
    reshape = {"name": "gymnasium.wrappers:ReshapeObservation", "arguments": {"shape": [7]}}
    for name in ("ppo-cartpole", "ppo-lunarlander", "ppo-pong"):
        yield case(name, a__num_minibatches=100000)
        yield case(name, num_worlds=1, a__rollout_length=3)
        yield case(name, callbacks=[freeze])
    for name in ("dqn-cartpole", "dqn-pong", "sac-hopper", "td3-pendulum", "dqn-nim"):
        yield case(name, num_worlds=1000, a__replay_buffer__capacity=999)
        yield case(name, a__replay_buffer__scratch_folder="no/such/folder")
        yield case(name, output__checkpoint_folder=f"{__file__}/is/a/file")
    for name in ("dqn-cartpole", "ppo-pendulum", "dqn-polyhedra", "sac-hopper", "dqn-pong"):
        yield case(name, execution__device="cuda:77")
        yield case(name, execution__device="xpu")
    yield case("dqn-cartpole", a__net=deep_sets)
    yield case("dqn-cartpole", a__net=normalized)
    yield case("dqn-pong", a__net=deep_sets)
    yield case("dqn-nim", a__net=deep_sets)
    yield case("dqn-cartpole", players__agent__warm_start=gone)
    yield case("dqn-cartpole", game__wrappers=[reshape])
    yield case("dqn-cartpole", game__wrappers=[{"name": "gymnasium.wrappers:ClipAction", "arguments": {}}])
    yield case("ppo-cartpole", callbacks=[freeze | {"player": "nobody"}])
    yield case("dqn-nim", num_worlds=10**15, a__replay_buffer__capacity=10**17)
    yield case("dqn-nim", game__num_heaps=10**12)
    yield case("dqn-nim", execution__num_threads=10**12)


def assert_refused_alike(cases: Iterator[tuple[str, dict[str, Any]]], at_least: int) -> None:
    differing, num_refused = {}, 0
    for name, config in cases:
        by_train, by_check = refused_by_train(config), refused_by_check(config)
        if any(map(NEEDS_AN_EXTRA.search, by_train)):
            continue  # not every machine has them, and `check` asks for none
        num_refused += bool(by_train)
        if by_train != by_check:
            differing[name] = by_train, by_check
    assert not differing
    assert num_refused >= at_least


def test_every_mutation_of_a_shipped_config_is_refused_alike() -> None:
    assert_refused_alike(mutated(), at_least=20)


def test_every_algorithm_is_refused_alike_in_every_game() -> None:
    assert_refused_alike(crossed(), at_least=15)


def test_check_makes_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("an environment is made")

    monkeypatch.setattr(gymnasium, "make", refuse)
    monkeypatch.setattr(gymnasium, "make_vec", refuse)
    for file in sorted(CONFIGS.glob("*.yml")):
        dry_run(file, [])


WALK = "{name: gymnasium, id: 'tests.gym_probes:Walk-v0', arguments: {}, wrappers: [], vectorization: {name: sync, "
WALK += "autoreset: same_step}, observation: {normalize: null, clip: null, channels: null}, reward: {normalize: null, "
WALK += "clip: null}, action_mask: null}"
STEPS = "arguments.max_episode_steps"
LIMIT = "{name: gymnasium.wrappers:TimeLimit, arguments: {max_episode_steps: 5}}"


@pytest.mark.parametrize(
    ("name", "overrides", "key"),
    [
        ("ppo-cartpole", [], None),
        ("ppo-cartpole", [f"game.{STEPS}=null"], STEPS),
        ("ppo-cartpole", [f"game.{STEPS}=null", f"game.wrappers=[{LIMIT}]"], None),
        ("ppo-cartpole", [f"game={WALK}"], STEPS),  # as it is registered
        ("dqn-pong", [], None),
        ("dqn-pong", ["game.arguments.max_num_frames_per_episode=null"], STEPS),
        ("sac-pendulum-batched", [], None),
        ("sac-pendulum-batched", ["game.max_rounds=null"], "max_rounds"),
        ("dqn-nim", [], None),
    ],
)
def test_where_only_the_game_ends_its_episodes_the_key_that_cuts_them_off_is_told(
    name: str, overrides: list[str], key: str | None
) -> None:
    told = [line for line in dry_run(CONFIGS / f"{name}.yml", overrides).plan if line.startswith("nothing ends the")]
    assert [f"game.{key}=1000, for instance" in line for line in told] == ([] if key is None else [True])


@pytest.mark.parametrize("limit", ["null", "500"])
def test_train_tells_what_check_tells_of_episodes_that_nothing_ends(limit: str) -> None:
    changes = [f"game.{STEPS}={limit}", "output.display=plain", "output.recorders=[]"]
    shown = Console(file=io.StringIO(), width=200)
    with pytest.raises(Started):
        Trainer(CONFIGS / "ppo-cartpole.yml", overrides=changes, callbacks=[StopAtOnce()], console=shown).fit()
    told = "nothing ends the episodes of CartPole-v1 but its own rules" in shown.file.getvalue()  # type: ignore[attr-defined]
    assert told == (limit == "null")


PLATEAU = "{name: early_stopping, of: %s, goal: %s, min_delta: 0, patience: 1}"
OF_RETURNS = "{name: evaluation, evaluation: main, pairing: 0, measure: return/agent/median}"
OF_TRAINING = "{name: training_returns, role: agent, interval: {every: 1, unit: epochs}}"


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("ppo-cartpole", [], []),
        (
            "ppo-cartpole",
            ["best.goal=min"],
            ["best.goal=min looks for the lowest return/agent, which agent wants high"],
        ),
        ("ppo-cartpole", ["best.goal=min", "best.measure=length"], []),  # nobody says who wants it
        ("ppo-cartpole", ["best.goal=min", "best.measure=return/agent/std"], []),  # nor this
        (
            "ppo-cartpole",
            [f"callbacks=[{PLATEAU % (OF_TRAINING, 'max')}, {PLATEAU % (OF_RETURNS, 'min')}]"],
            ["callbacks.1.goal=min looks for the lowest return/agent/median, which agent wants high"],
        ),
        ("dqn-polyhedra", ["best.pairing=5"], ["best.goal=max looks for the highest rho, which agent wants low"]),
        ("dqn-polyhedra", ["best.pairing=5", "best.goal=min"], []),
        ("dqn-polyhedra", ["best.pairing=0", "best.goal=min"], []),  # one learner wants it, the other the contrary
        (
            "supervised-claims",
            ["best.goal=min"],
            ["best.goal=min looks for the lowest accuracy, which verifier wants high"],
        ),
    ],
)
def test_a_goal_that_no_learning_player_wants_is_told(name: str, overrides: list[str], expected: list[str]) -> None:
    assert [line for line in dry_run(CONFIGS / f"{name}.yml", overrides).plan if " looks for the " in line] == expected


@pytest.mark.parametrize("name", ["ppo-cartpole", "supervised-claims"])
def test_train_tells_what_check_tells_of_goals(name: str) -> None:
    changes = ["best.goal=min", "output.display=plain", "output.recorders=[]"]
    shown = Console(file=io.StringIO(), width=200)
    with pytest.raises(Started):
        make_trainer(CONFIGS / f"{name}.yml", overrides=changes, callbacks=[StopAtOnce()], console=shown).fit()
    assert "best.goal=min looks for the lowest " in shown.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("env_id", SPACES)
def test_declared_spaces_are_those_of_the_environment(env_id: str) -> None:
    config = gymnasium_config(env_id)
    try:
        made = make_environment(config)
    except ConfigError as error:
        if NEEDS_AN_EXTRA.search(str(error)):
            return
        raise
    stand_in = make_stand_in(config)
    assert stand_in.observation_space.shape == made.observation_space.shape
    assert stand_in.action_space == made.action_space


def gymnasium_config(env_id: str, **changed: Any) -> GymnasiumConfig:
    known = known_arguments(env_id, vector=False)
    assert known is not None
    usual = {name: argument.usual for name, argument in known.items()}
    game: dict[str, Any] = read_config(CONFIGS / "dqn-cartpole.yml").game.model_dump()
    return GymnasiumConfig(**game | {"id": env_id, "arguments": usual | changed})


@pytest.mark.parametrize(
    ("env_id", "changed"),
    [
        ("LunarLander-v3", {"continuous": True}),
        ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False}),
        ("Ant-v5", {"include_cfrc_ext_in_observation": False}),
        ("FrozenLake-v1", {}),
    ],
)
def test_spaces_that_arguments_change_are_not_declared(env_id: str, changed: dict[str, Any]) -> None:
    with pytest.raises(NotDeclared):
        make_stand_in(gymnasium_config(env_id, **changed))


def told(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["check", *arguments])
    return result.exit_code, result.output.splitlines()


def test_check_says_what_it_could_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(config: Any) -> None:
        raise ImportError("No module named 'wandb'")

    monkeypatch.setattr("palestra.recording.services.WandbRecorder", missing)
    keys = "project: p, entity: null, group: null, run_name: null, tags: [], notes: null, mode: offline"
    wandb = f"{{name: wandb, {keys}, checkpoints: false}}"
    nim, lander = str(CONFIGS / "dqn-nim.yml"), str(CONFIGS / "ppo-lunarlander.yml")
    assert told(nim) == (
        0,
        [
            f"{nim}: complete and consistent",
            "train: 1,500 opt steps, player updates after each roll-out of 2 rounds in 256 worlds",
            "test: 15,000 games, evaluation main: 5 pairings of 3,000 games each",
        ],
    )
    assert told(lander, f"output.recorders=[{wandb}]") == (
        0,
        [
            f"{lander}: complete and consistent",
            "train: 1,000,000 env steps, agent updates after each roll-out of 1,024 rounds in 16 worlds",
            "test: 200 games, evaluation main: 2 pairings of 100 games each",
            f"{LACKS}output.recorders.0: No module named 'wandb'; it needs an extra: pip install 'palestra[wandb]'",
            "not checked: the environment LunarLander-v3, which is not made here",
        ],
    )


def test_check_of_an_unknown_environment_finds_what_needs_none() -> None:
    own = [str(CONFIGS / "ppo-cartpole.yml"), "game.id=tests.gym_probes:Walk-v0", "game.arguments={}"]
    code, lines = told(*own)
    assert (code, lines[-1]) == (
        0,
        "not checked: the environment tests.gym_probes:Walk-v0, which is not made here, and whether actions, networks, "
        "wrappers, callbacks and players of other runs fit it",
    )
    code, lines = told(*own, "players.agent.algorithm.num_minibatches=100000")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("players.agent.algorithm.num_minibatches: expected at")
    code, lines = told(*own, "execution.device=cuda:77")
    assert code == 0
    assert any(line.startswith(f"{LACKS}execution.device: expected a device of this mac") for line in lines)


# ---- what only this machine lacks ------------------------------------------------------------------------


def test_what_only_this_machine_lacks_is_told_and_is_no_error_of_check(tmp_path: Path) -> None:
    nim, scratch = str(CONFIGS / "dqn-nim.yml"), "player.algorithm.replay_buffer.scratch_folder"
    asked = ["execution.device=cuda:77", f"{scratch}=/not/here", "output.checkpoint_folder=/dev/null/no"]
    code, lines = told(nim, *asked)
    assert (code, lines[0]) == (0, f"{nim}: complete and consistent")
    [lacks] = [line.removeprefix(LACKS) for line in lines if line.startswith(LACKS)]
    assert [item.partition(": ")[0] for item in lacks.split("; ")] == [
        "execution.device",
        "output.checkpoint_folder",
        f"players.{scratch}",
    ]
    assert told(nim)[1][-1].startswith("test: ")  # nothing is lacking there
    for each in asked:
        result = CliRunner().invoke(app, ["train", nim, each, "--quiet", "--run", str(tmp_path / "run")])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_is_told_also_where_this_machine_lacks_something() -> None:
    code, lines = told(str(CONFIGS / "dqn-nim.yml"), "execution.device=cuda:77", "replay_buffer.capacity=1")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith("players.player.algorithm.replay_buffer.capacity: expected at least")


def test_a_tournament_for_another_device_is_checked() -> None:
    code, lines = told("tournament-polyhedra", "execution.device=cuda:77")
    assert code == 0
    assert lines[-1].startswith(f"{LACKS}execution.device: expected a device of this machine, got 'cuda:77'")


# ---- what a run would do -------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TRAIN = re.compile(
    r"train: ([\d,]+) ((?:opt|env) steps), "
    r"(?:\w+ updates from the play in \S+|"
    r"(?:\w+ updates after each|\w+(?:, \w+)* and \w+ update (?:together after each|in turn, each after a)) "
    r"roll-out of [\d,]+ rounds? in [\d,]+ worlds?(?: of its own)?)"
    r"(?:; \d actors? plays? in \d process, \d turn behind)?"
)
EXACT = "evaluation exploitability: 1 game, played by exploitability; "
TEST = re.compile(rf"test: ([\d,]+) games, ({EXACT})?evaluation main: (\d+) pairings? of ([\d,]+) games(?: each)?")


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize(
    "file", [*sorted(CONFIGS.glob("*.yml")), *sorted(EXAMPLES.glob("*.yml"))], ids=lambda p: p.stem
)
def test_what_a_shipped_config_does_is_said_in_words(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    train, test, *turns = dry_run(file, []).plan
    config = read_config(file)
    if isinstance(config, TextConfig):
        assert train.startswith(f"train: {config.stop.after:g} epochs, in each epoch the players talk about ")
        assert (test, turns[-1][:12]) == ("test: the final evaluations: main", "an epoch has")
        return
    if not isinstance(config, RunConfig):
        size = config.learning.batch_size
        end = f"train: {config.stop.after:g} epochs, in each epoch"
        assert train == f"{end} the model learns from data.train, in batches of {size} items"
        assert (test, turns) == (f"test: the final evaluations: {config.evaluations[0].name}", [])
        return
    words = TRAIN.fullmatch(train)
    if file.stem == "double":
        assert train.startswith("train: 2,000 opt steps, as DoubleDQN says: One epoch: each player rolls out")
    elif file.stem == "alternating":
        assert train == "train: 1,200 opt steps, as Alternating says: One epoch: the turns of one player"
        page = (EXAMPLES.parent / "own-trainer.md").read_text()
        assert f"alternating.yml: complete and consistent\n{train}\n{test}\n```" in page
    else:
        assert words is not None, train
        assert (number(words[1]), words[2].replace(" ", "_")) == (config.stop.after, config.stop.unit)
    games = TEST.fullmatch(test)
    assert games is not None, test
    assert number(games[1]) == int(games[3]) * number(games[4]) + (games[2] is not None)
    meetings = [line for line in turns if line.startswith("worlds of ")]
    assert len(meetings) == sum(len(config.meets_of(name)) for name in config.learners())
    assert (len(turns) > len(meetings)) == (config.game.name == "dialogue")


@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier"])
def test_who_speaks_when_is_said_of_every_dialogue(protocol: str, in_tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["config", "ppo", protocol, "witness"])
    Path("run.yml").write_text(result.output)
    code, (title, train, test, *turns) = told("run.yml")
    assert (code, title) == (0, "run.yml: complete and consistent")
    assert TRAIN.fullmatch(train)
    assert TEST.fullmatch(test)
    config = read_config("run.yml").game.protocol
    assert turns == turns_in_words(protocol, config.build())
    page = (EXAMPLES.parent / "dialogue.md").read_text()
    shown = ["\n".join(turns)] if protocol in ("nip", "merlin_arthur") else []
    shown += ["\n".join(["$ palestra check nip.yml", "nip.yml" + title[7:], train, test, *turns])] * (protocol == "nip")
    assert all(f"{lines}\n```" in page for lines in shown)


def test_who_speaks_when_is_said_of_a_tournament(in_tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["config", "ppo", "merlin_arthur", "witness"])
    Path("run.yml").write_text(result.output)
    game = load_yaml(Path("run.yml"))["game"]
    tournament = load_yaml(CONFIGS / "tournaments" / "tournament-polyhedra.yml") | {"game": game}
    roles = ("prover0", "prover1", "verifier")
    tournament["pairings"] = [dict.fromkeys(roles, "witness_optimal"), dict.fromkeys(roles, "random")]
    Path("cup.yml").write_text(yaml.safe_dump(tournament, sort_keys=False))
    turns = turns_in_words("merlin_arthur", read_config("run.yml").game.protocol.build())
    assert told("cup.yml") == (0, ["cup.yml: complete and consistent", *turns])


@pytest.mark.parametrize(
    "command",
    [
        ["dqn-polyhedra", "host.updates={name: contiguous_periodic, period: 10, first: 0, last: 3}"],
        ["ppo-cartpole", "best.goal=min"],
    ],
)
def test_check_says_what_the_page_shows(command: list[str]) -> None:
    page = (EXAMPLES.parent / "config.md").read_text()
    code, lines = told(*command)
    assert code == 0
    assert "\n".join([f"$ palestra check {shlex.join(command)}", *lines, "```"]) in page
