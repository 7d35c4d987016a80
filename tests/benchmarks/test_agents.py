"""The benchmark of several agents: TorchRL plays the same game by the same sizes, and both sides do the same work."""

import json
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.agents import __main__ as table
from benchmarks.agents.ours import config_of, hyperparameters, measure
from benchmarks.comparing import main
from palestra.algorithms.parts.distributions import Categorical
from palestra.games import TensorGame, make_game
from palestra.players import make_script
from palestra.randomness import base_key, fold, world_keys

torchrl = pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402
from torchrl.envs import check_env_specs  # noqa: E402

from benchmarks.agents import torchrl as peer  # noqa: E402

Data = dict[str, Any]
TRAIN: Data = {
    **{"kind": "train", "protocol": "nip", "trainer": "together", "seed": 1, "num_threads": 1},
    **{"solved_at": None, "warmup_env_steps": 0, "timed_seconds": 0.0},
}
WORLDS = 64


def flat(observation: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten(1) for value in observation.values()], dim=1)


def test_torchrl_plays_the_same_game() -> None:
    """From equal instances, equal actions lead to equal observations, masks, rewards and ends, till all is over."""
    work = TRAIN | hyperparameters(config_of(TRAIN)) | {"num_worlds": WORLDS}
    env = peer.make_env(work)
    game = make_game(config_of(TRAIN)["game"])
    assert isinstance(game, TensorGame)
    keys = world_keys(base_key(0, "test"), WORLDS, game.device)
    state = game.reset(keys)
    env.reset()
    env.bits, env.label = state["instance.bits"].clone(), state["label"].clone()
    seen = env._observe()
    running = torch.ones(WORLDS, dtype=torch.bool)
    script = {role: make_script("random", game, role) for role in game.roles}
    for step in range(work["max_rounds"]):
        actions = {}
        for role in game.roles:
            legal = game.legal(state, role)
            assert torch.equal(seen[role]["observation"][running], flat(game.observe(state, role))[running])
            assert torch.equal(seen[role]["action_mask"][running], legal[running])
            keys_of_step = fold(fold(keys, step), game.roles.index(role))
            actions[role] = script[role].act({}, legal, keys_of_step, {}).action.view(WORLDS, -1)
        given = {role: {"action": action} for role, action in actions.items()}
        env.round[~running] = 0  # what they do now is not compared
        shown = env._step(TensorDict(given, batch_size=[WORLDS]))
        state, rewards, terminated, _ = game.transition(state, actions, keys)
        for index, role in enumerate(game.roles):
            assert torch.equal(shown[role, "reward"][running, 0], rewards[running, index])
        assert torch.equal(shown["done"][running, 0], terminated.all(dim=1)[running])
        running = running & ~terminated.all(dim=1)
        seen = {role: dict(shown[role].items()) for role in game.roles}
    assert not running.any()


def test_torchrl_draws_the_same_instances_and_begins_ended_games_anew() -> None:
    env = peer.make_env(TRAIN | hyperparameters(config_of(TRAIN)) | {"num_worlds": 4096})
    check_env_specs(env)
    env.reset()
    assert torch.equal(env.bits.any(dim=1).long(), env.label)
    assert abs(float(env.label.float().mean()) - 0.5) < 0.03
    ones = env.bits[env.label == 1].float().mean(dim=0)
    assert ((ones - 128 / 255).abs() < 0.05).all()
    env.round.fill_(3)
    which = torch.arange(4096) < 1000
    before = env.bits.clone()
    env._reset(TensorDict({"_reset": which.unsqueeze(1)}, batch_size=[4096]))
    assert torch.equal(env.round == 0, which)
    assert torch.equal(env.bits[~which], before[~which])


def test_torchrl_chooses_from_the_same_distribution() -> None:
    logits, mask = torch.randn(500, 12), torch.rand(500, 12) < 0.6
    mask[:, [0, -1]] = True
    theirs, ours = peer.MaskedChoices(logits, mask, (9, 3)), Categorical((9, 3), False).distribution(logits, mask)
    drawn = theirs.sample()
    assert mask[:, :9].gather(1, drawn[:, :1]).all()
    assert mask[:, 9:].gather(1, drawn[:, 1:]).all()
    assert torch.allclose(theirs.log_prob(drawn), ours.log_prob(drawn))
    assert torch.allclose(theirs.entropy(), ours.entropy())
    assert torch.equal(theirs.mode, Categorical((9, 3), False).mode(logits, mask))


def test_both_sides_make_the_same_opt_steps_for_the_same_env_steps(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = TRAIN | hyperparameters(config_of(TRAIN)) | {"launched": time.time()}
    ours, theirs = measure(work), peer.measure(work)
    sizes = {
        name: config_of(TRAIN)["players"]["prover"]["algorithm"][name] for name in ("num_passes", "num_minibatches")
    }
    per_epoch = 2 * sizes["num_passes"] * sizes["num_minibatches"]
    for answer in (ours, theirs):
        num_epochs = answer["env_steps"] / (work["num_worlds"] * work["rollout_length"])
        assert answer["opt_steps"] == num_epochs * per_epoch > 0
    assert {"palestra", "torchrl"} <= ours["versions"].keys() | theirs["versions"].keys()


@pytest.mark.parametrize("trainer", ["in_turn", "together"])
def test_play_is_timed_for_the_same_env_steps_of_each_learner(trainer: str) -> None:
    work = {"kind": "play", "protocol": "debate", "trainer": trainer, "seed": 0, "num_threads": 1, "num_epochs": 2}
    answer = measure(work)
    algorithm = config_of(work)["players"]["verifier"]["algorithm"]
    assert answer["num_learners"] == 3
    assert answer["env_steps"] == 2 * config_of(work)["num_worlds"] * algorithm["rollout_length"]
    assert answer["seconds"] > 0


def test_the_table_has_the_ratios_and_what_is_aimed_at(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(script: Any, work: Data, num_threads: int, timeout_s: float) -> Data:
        if work["kind"] == "play":
            return {
                "env_steps": 1000,
                "seconds": 3.0 if work["trainer"] == "in_turn" else 1.0,
                "versions": {"torch": "2"},
            }
        assert {"num_bits", "gamma", "net_arch"} <= work.keys()
        return {"env_steps": 600 if "ours" in script.module else 100, "seconds": 1.0, "versions": {"torch": "2"}}

    monkeypatch.setattr("benchmarks.peers.processes.Script.run", answer)
    monkeypatch.setattr("sys.argv", ["agents", "--repeats", "3", "--out", str(tmp_path)])
    main("agents", table.__doc__, table.comparisons(), table.lengths)
    printed = capsys.readouterr().out
    assert (
        "| A1 | PPO, nip on witness, both learn | env steps/s | 1 | torchrl | 100 | palestra | 600 | 6 (6 to 6) |"
        in printed
    )
    assert "| in_turn | 300 | together | 100 | 0.333 (0.333 to 0.333) |" in printed
    assert printed.rstrip("\n") == (tmp_path / "agents.md").read_text().rstrip("\n")
    stored = json.loads((tmp_path / "agents.json").read_text())
    assert [(each["row"], [round(ratio, 3) for ratio in each["ratios"].values()], each["aim"]) for each in stored] == [
        ("A1", [6.0], "at least 5"),
        ("A2", [0.333], "at most 0.45"),
    ]
    assert all(len(values) == 3 for each in stored for values in each["values"].values())
