"""The examples of the documents that train: where each stands, and a small config that uses it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from palestra.callbacks import make_callback
from palestra.config import load_yaml
from palestra.kinds.games.trainer import Trainer

ROOT = Path(__file__).parents[2]
Data = dict[str, Any]
Edit = Callable[[Data], None]


def blocks(page: str, kind: str = "python") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)


def block(page: str, part: str, kind: str = "python") -> str:
    """The only block of a page that has some text in it."""
    [found] = [each for each in blocks(page, kind) if part in each]
    return found


@dataclass
class Example:
    """module: the file that the document names, with that block in it. config: a shipped one, into which `change` puts
    it; None: its own in docs/examples. give, callbacks: what a program gives to the trainer besides; None: nothing, so
    that the config says it all."""

    page: str
    part: str
    module: str
    config: str | None
    change: Edit = lambda config: None
    give: Callable[[Trainer, Data], None] | None = None
    callbacks: Callable[[Data], list[Any]] | None = None

    @property
    def code(self) -> str:
        """The block, without the training that a program does at its end."""
        return block(self.page, self.part).partition("\ntrainer = ")[0]

    @property
    def file(self) -> Path:
        folder, name = ("docs/examples", self.module) if self.config is None else ("configs", self.config)
        return ROOT / folder / f"{name}.yml"


def agent(config: Data, **changes: Any) -> None:
    [player] = config["players"].values()
    player["algorithm"] |= changes


def listed_callbacks(config: Data) -> None:
    config |= yaml.safe_load(block("callbacks.md", "my_callbacks", "yaml"))
    config["callbacks"][2]["at"]["after"] = 64
    config["callbacks"][1]["of"]["interval"]["every"] = 32


def shown(page: str, part: str) -> Data:
    """The only block of YAML of a page that has some text in it."""
    data: Data = yaml.safe_load(block(page, part, "yaml"))
    return data


def warming_up(config: Data) -> None:
    """As a learning rate, as one that comes later, and as one that was scaled: a checkpoint holds both of these."""
    schedule = shown("own-parts.md", "warmup:Warmup")["learning_rate"]
    agent(config, critic_learning_rate=schedule, policy_learning_rate=schedule)
    common = {"player": "agent", "key": "critic_learning_rate"}
    later = {
        "name": "change_schedule",
        "at": {"after": 3, "unit": "opt_steps"},
        "schedule": schedule | {"num_steps": 7},
    }
    measure = {"name": "training_returns", "role": "agent", "interval": {"every": 4, "unit": "env_steps"}}
    plateau = {
        "name": "reduce_on_plateau",
        "factor": 0.5,
        "of": measure,
        "goal": "max",
        "min_delta": 0.0,
        "patience": 1,
    }
    config["callbacks"] = [common | later, common | plateau | {"key": "policy_learning_rate"}]


def pushing(config: Data) -> None:
    """Played by a process of its own, so that a resumed run plays those again whose results do not count yet."""
    [evaluation] = shown("own-parts.md", "pushed:Pushed")["evaluations"]
    evaluation |= {"interval": {"every": 5, "unit": "opt_steps"}, "num_games": 2, "final_num_games": 3}
    config["evaluations"].append(evaluation)
    results = {"after": 2, "unit": "opt_steps"}
    config["evaluators"] = {"num_processes": 1, "results": results, "timeout_s": 60.0, "max_restarts": 0}


def pretrained(config: Data) -> None:
    """The weights of the page's file come from the function itself: those of a file are tried in tests/runs."""
    host = shown("own-opponent.md", "host: {torch_module")["players"]["host"]
    config["players"]["host"] = host | {"weights": None}


def alternating(config: Data) -> None:
    config["trainer"]["num_turns"] = 2


def given_callbacks(names: Data) -> list[Any]:
    freeze = {"name": "freeze", "player": "agent", "net": "actor_critic", "weights": ["value.*"], "num_opt_steps": None}
    return [names["Tell"](None), make_callback(freeze)]


def set_flat(trainer: Trainer, names: Data) -> None:
    torch.manual_seed(0)
    trainer.set_model("agent", names["make_net"]())


EXAMPLES = {
    "reinforce": Example("own-algorithm.md", "class Reinforce", "reinforce", None),
    "loss on roll-outs": Example("own-loss.md", "class AdvantageWeighted", "advantage", None),
    "auxiliary loss": Example(
        "own-loss.md",
        "class Restating",
        "auxiliary",
        "on_policy-cartpole",
        lambda config: agent(config, **shown("own-loss.md", "auxiliary:Restating")),
    ),
    "loss from replay": Example("own-loss.md", "class Regret", "regret", None),
    "loss module of TorchRL": Example(
        "own-loss.md",
        "class HigherClip",
        "higher",
        "on_policy-cartpole",
        lambda config: agent(config, loss={"name": "higher:HigherClip", "low": 0.2, "high": 0.28}),
    ),
    "SARSA": Example("sarsa.md", "class Sarsa", "sarsa", None),
    "A2C": Example("a2c.md", "class A2C", "a2c", None),
    "small": Example(
        "own-algorithm.md",
        "class SmallDQN",
        "small",
        "dqn-cartpole",
        lambda config: agent(config, name="small:SmallDQN", size=1e-3),
    ),
    "rollback": Example(
        "own-algorithm.md",
        "class RollbackPPO",
        "losses",
        "ppo-cartpole",
        lambda config: agent(config, name="losses:RollbackPPO", rollback=0.3),
    ),
    "near the start": Example(
        "own-algorithm.md",
        "class NearTheStartPPO",
        "losses",
        "ppo-cartpole",
        lambda config: agent(config, name="losses:NearTheStartPPO", start_coefficient=0.5),
    ),
    "huber": Example(
        "own-algorithm.md",
        "class HuberSAC",
        "losses",
        "sac-pendulum",
        lambda config: agent(config, name="losses:HuberSAC", huber_delta=1.0),
    ),
    "retrace": Example(
        "own-algorithm.md",
        "class RetraceDQN",
        "targets",
        "dqn-cartpole",
        lambda config: agent(config, name="targets:RetraceDQN", trace=0.8, transitions={"name": "targets:Segments"}),
    ),
    "callbacks": Example("callbacks.md", "class StopAt", "my_callbacks", "ppo-cartpole", listed_callbacks),
    "callbacks in Python": Example(
        "callbacks.md", "class Tell", "tell", "ppo-cartpole", lambda config: None, callbacks=given_callbacks
    ),
    "notes": Example(
        "recorders.md",
        "class Notes",
        "notes",
        "dqn-polyhedra",
        lambda config: config.update(callbacks=[{"name": "notes:Notes"}]),
    ),
    "callback that sees roll-outs": Example("callbacks.md", "class Visits", "visits", None),
    "recorder": Example("recorders.md", "class Alarms", "alarms", None),
    "network": Example("nets.md", "class Wide", "wide", None),
    "network with a memory": Example(
        "nets.md",
        "class Fading",
        "fading",
        "ppo-cartpole",
        lambda config: agent(config, body={"name": "shared", "net": {"name": "fading:Fading", "width": 8}}),
    ),
    "network in Python": Example("nets.md", "def make_net", "flat", "dqn-cartpole", lambda config: None, give=set_flat),
    "transition builder": Example(
        "dqn.md",
        "class Clipped",
        "builders_of_mine",
        "dqn-cartpole",
        lambda config: agent(config, transitions={"name": "builders_of_mine:Clipped", "bound": 0.5}),
    ),
    "optimizer": Example(
        "own-parts.md",
        "class Lion",
        "lion",
        "dqn-cartpole",
        lambda config: agent(config, optimizer=shown("own-parts.md", "lion:Lion")["optimizer"]),
    ),
    "schedule": Example("own-parts.md", "class Warmup", "warmup", "sac-pendulum", warming_up),
    "exploration": Example(
        "own-parts.md",
        "class Tolerant",
        "tolerant",
        "dqn-cartpole",
        lambda config: agent(config, exploration=shown("own-parts.md", "tolerant:Tolerant")["exploration"]),
    ),
    "evaluation": Example("own-parts.md", "class Pushed", "pushed", "dqn-cartpole", pushing),
    "replay buffer": Example(
        "own-parts.md",
        "class Recent",
        "recent",
        "td3-pendulum",
        lambda config: agent(config, replay_buffer=shown("own-parts.md", "recent:Recent")["replay_buffer"]),
    ),
    "transition builder of SAC": Example(
        "dqn.md",
        "class Clipped",
        "builders_of_mine",
        "sac-pendulum",
        lambda config: agent(config, transitions={"name": "builders_of_mine:Clipped", "bound": 0.5}),
    ),
    "scripted player": Example(
        "own-parts.md",
        "class Stubborn",
        "stubborn",
        "dqn-polyhedra",
        lambda config: config["players"].update(shown("own-parts.md", "stubborn:Stubborn")["players"]),
    ),
    "scripted player without keys": Example(
        "own-opponent.md",
        "class Lazy",
        "stubborn",
        "dqn-polyhedra",
        lambda config: config["players"].update(agent={"scripted": "stubborn:Lazy"}),
    ),
    "torch module": Example("own-opponent.md", "def build", "pretrained", "dqn-polyhedra", pretrained),
    "reward": Example(
        "config.md",
        "class Hurry",
        "rewards_of_mine",
        "dqn-polyhedra",
        lambda config: config["game"].update(reward={"name": "rewards_of_mine:Hurry", "penalty": 0.05}),
    ),
    "wrapper": Example(
        "gymnasium.md",
        "class Scale",
        "scale",
        "dqn-cartpole",
        lambda config: config["game"]["wrappers"].append({"name": "scale:Scale", "factor": 0.5}),
    ),
    "environment": Example("gymnasium.md", "class Corridor", "corridor", None),
    "trainer": Example("own-trainer.md", "class Alternating", "alternating", None, alternating),
    "trainer by hand": Example("own-trainer.md", "class DoubleDQN", "double", None),
    "game": Example("games.md", "class Pennies", "pennies", None),
    "protocol and scenario": Example("dialogue.md", "class Telegram", "telegram", None),
    "lone verifier": Example("dialogue.md", "class Supervised", "labels", None),
    "scenario": Example("dialogue.md", "class Cups", "telegram", None),
    "game of three roles": Example("games.md", "class Bomb", "bomb", None),
}


def small(example: Example) -> Data:
    """The config, cut down, with the example in it."""
    config = load_yaml(example.file)
    example.change(config)
    config |= {"num_worlds": 4, "stop": {"after": 12, "unit": "opt_steps"}, "best": None}
    sizes = {"batch_size": 8, "warmup_env_steps": 8, "updates_per_turn": 2, "rollout_length": 8, "num_minibatches": 2}
    for player in config["players"].values():
        if "algorithm" in player:
            known = sizes.keys() & player["algorithm"].keys()
            player["algorithm"] |= {key: sizes[key] for key in known}
            if "replay_buffer" in player["algorithm"]:
                player["algorithm"]["replay_buffer"]["capacity"] = 500
    evaluation = {"interval": {"every": 6, "unit": "opt_steps"}, "num_games": 2, "final_num_games": 2, "max_rounds": 10}
    config["evaluations"][0] |= evaluation | {"pairings": [dict(config["roles"])]}
    config["output"] |= {"display": "quiet", "recorders": [], "save": {"every": 3, "unit": "opt_steps"}}
    config["output"] |= {"record": {"every": 2, "unit": "opt_steps"}, "keep_last": 2, "keep_every": 1}
    return config
