"""Turn a config and networks of hironaka.trainer into a config of palestra and networks that it can read.

    python convert_hironaka.py MODEL.pt|CONFIG.yml FOLDER

To be run where hironaka is installed, for a `.pt` of `trainer.save` holds pickled modules: open only your own. It needs
no palestra. FOLDER must be new; it gets run.yml, and from a `.pt` also hironaka_nets.py and a safetensors file for each
network. Then, where palestra is installed:

    cd FOLDER
    palestra train run.yml --run runs/converted                # goes on learning with these networks
    palestra evaluate runs/converted --checkpoint 0            # as they came: checkpoint 0 is written before training

The networks give the same values for the same boards. What is not the same is printed.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

ROLES = ("host", "agent")
SCRIPTED = {
    "RandomHostModule": "random",
    "RandomAgentModule": "random",
    "AllCoordHostModule": "all_coordinates",
    "ChooseFirstAgentModule": "choose_first",
    "ChooseLastAgentModule": "choose_last",
}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {  # torch's, with its own values
    "adam": (
        "Adam",
        {
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0,
            "amsgrad": False,
            "maximize": False,
            "decoupled_weight_decay": False,
        },
    ),
    "sgd": ("SGD", {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}),
}
NETS = '''"""Networks of hironaka.trainer, as convert_hironaka.py found them. The weights lie in safetensors files."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

LAYERS = {layers}


class Residual(nn.Module):
    """Two linear layers with batch norm, and the input added."""

    def __init__(self, in_width, width):
        super().__init__()
        self.lin1, self.bn1 = nn.Linear(in_width, width), nn.BatchNorm1d(width)
        self.lin2, self.bn2 = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.down_sample = None
        if in_width != width:
            self.down_sample = nn.Sequential(nn.Linear(in_width, width), nn.BatchNorm1d(width))

    def forward(self, x):
        shortcut = x if self.down_sample is None else self.down_sample(x)
        return self.bn2(self.lin2(torch.relu(self.bn1(self.lin1(x))))) + shortcut


KINDS = {{"flat": nn.Identity, "relu": nn.ReLU, "linear": nn.Linear}}
KINDS |= {{"batch_norm": nn.BatchNorm1d, "residual": Residual}}


class Sorted(nn.Module):
    """The points in descending order of their first coordinate, flattened, with the host's choice behind them."""

    def __init__(self, role):
        super().__init__()
        self.layers = nn.Sequential(*(KINDS[kind](*widths) for kind, *widths in LAYERS[role]))
        self.layers.load_state_dict(load_file(Path(__file__).parent / f"{{role}}.safetensors"))

    def forward(self, observation):
        points = observation["points"]
        order = torch.argsort(points[:, :, 0], dim=1, descending=True)  # as the original calls it
        flat = points.gather(1, order.unsqueeze(2).expand(-1, -1, points.shape[2])).flatten(1)
        return self.layers(torch.cat([flat, observation["coords"]], dim=1) if "coords" in observation else flat)


def host():
    return Sorted("host")


def agent():
    return Sorted("agent")
'''


class CannotConvert(Exception):
    """One line: what stands there, and what could be converted."""


# ---- the networks ------------------------------------------------------------------------------------------


def layers_of(net: nn.Module, role: str) -> list[list[Any]]:
    """The layers of a network of `hironaka.trainer.nets.create_mlp`: their kinds and widths."""
    layers: list[list[Any]] = []
    for number, module in enumerate(net if isinstance(net, nn.Sequential) else [net]):
        match type(module).__name__:
            case "HostFeatureExtractor" | "AgentFeatureExtractor":
                layers.append(["flat"])
            case "ReLU":
                layers.append(["relu"])
            case "Linear":
                layers.append(["linear", module.in_features, module.out_features])
            case "BatchNorm1d":
                layers.append(["batch_norm", module.num_features])
            case "ResidualBlock":
                layers.append(["residual", module.lin1.in_features, module.lin1.out_features])
            case other:
                raise CannotConvert(f"{role}_net: expected a network that the trainer has made, got {other} ({number})")
    return layers


# ---- the config --------------------------------------------------------------------------------------------


def run_config(config: dict[str, Any], nets: dict[str, nn.Module]) -> dict[str, Any]:
    """The config of palestra; of each trained role with a network, by the name of its function."""
    n = config["dimension"]
    scripted = {role: scripted_player(role, nets.get(role)) for role in ROLES if role not in config}
    players = {
        role: player(config, role, f"hironaka_nets:{role}" if role in nets else None) for role in config_roles(config)
    }
    pairings = [("host", "agent"), ("host", "random"), ("host", "choose_first")]
    pairings += [("random", "agent"), ("all_coordinates", "agent")]
    return {
        "seed": 0,
        "trainer": {"name": "in_turn"},
        "game": {
            "name": "polyhedra",
            "variant": "basic",
            "dimension": n,
            "max_num_points": config["max_num_points"],
            "max_value": config["max_value"],
            "initial_points": None,
            "reduction": "minimal",
            "rescale": bool(config["scale_observation"]),
            "rescale_state": False,
            "max_rounds": 100,
            "reward": {"name": "win"},
            "observation": {"normalize": None, "clip": None},
        },
        "num_worlds": {role: config[role]["rollout_size"] for role in players},
        "num_replicas": 1,
        "actors": None,
        "roles": {role: role for role in ROLES},
        "players": {role: players.get(role, scripted.get(role)) for role in ROLES},
        "stop": {"after": 20000, "unit": "opt_steps"},
        "evaluations": [
            {
                "name": "main",
                "interval": {"every": 1000, "unit": "opt_steps"},
                "at_start": True,
                "num_games": 100,
                "final_num_games": 1000,
                "max_rounds": 100,
                "seed": None,
                "game": None,
                "pairings": [{"host": host, "agent": agent} for host, agent in pairings],
                "references": None,
            }
        ],
        "best": None,
        "evaluators": None,
        "callbacks": [],
        "execution": {
            "device": "cuda" if config["use_cuda"] else "cpu",
            "num_threads": 1,
            "num_processes": 1,
            "timeout_s": 600.0,
            "max_restarts": 0,
            "kernel": "torch" if config["use_cuda"] else "numba",
            "step_within_s": None,
            "gradients": "by_hand",
            "compile": False,
            "actor_processes": 0,
        },
        "output": {
            "display": "auto",
            "record": {"every": 100, "unit": "opt_steps"},
            "statistics": ["mean"],
            "layer_norms": False,
            "info": [],
            "recorders": [{"name": "tensorboard"}] if config["use_tensorboard"] else [],
            "save": {"every": 1000, "unit": "opt_steps"},
            "keep_last": 2,
            "keep_every": None,
            "replay_in_checkpoints": "all",
            "checkpoint_folder": None,
            "stop_within_s": 30.0,
            "mirror": None,
        },
    }


def config_roles(config: dict[str, Any]) -> list[str]:
    return [role for role in ROLES if role in config]


def scripted_player(role: str, net: nn.Module | None) -> dict[str, Any]:
    """The player of a role that the config does not train."""
    name = "RandomHostModule" if net is None else type(net).__name__
    if name not in SCRIPTED:
        raise CannotConvert(
            f"{role}: expected a section in the config or one of {', '.join(SCRIPTED)}, got a network {name} that is "
            "held fixed: add the section to the config, and freeze that player with `palestra branch --freeze`"
        )
    return {"scripted": SCRIPTED[name]}


def player(config: dict[str, Any], role: str, net: str | None) -> dict[str, Any]:
    """A player that learns. net: the name of a function; None: a new network of the same net_arch."""
    keys = config[role]
    made = {"name": "mlp", "net_arch": keys["net_arch"], "activation": "relu"} if net is None else {"name": net}
    epsilon = schedule(keys["er"], keys.get("er_schedule"), "initial_er")
    return {
        "algorithm": {
            "name": "dqn",
            "gamma": float(keys["gamma"]),
            "double": False,
            "dueling": False,
            "value": {"name": "expected", "huber_delta": 1.0},
            "transitions": {"name": "one_step"},
            "rollout_length": keys["max_rollout_step"],
            "updates_per_turn": keys["steps_before_rollout"],
            "warmup_env_steps": keys["initial_rollout_size"] * keys["max_rollout_step"],
            "batch_size": keys["batch_size"],
            "target": {
                "name": "polyak",
                "tau": float(keys["tau"]),
                "interval": keys["steps_before_update_target"],
            },
            "max_grad_norm": float(config["max_grad_norm"]),
            "net": made,
            "optimizer": optimizer(keys["optim"]),
            "learning_rate": schedule(keys["optim"]["args"]["lr"], keys["optim"].get("lr_schedule"), "initial_lr"),
            "exploration": {"name": "epsilon_greedy", "epsilon": epsilon},
            "replay_buffer": {
                "name": "uniform",
                "capacity": config["replay_buffer"]["buffer_size"],
                "layout": "whole",
                "scratch_folder": None,
            },
        },
        "warm_start": None,
        "updates": {"name": "constant"},
        "meets": None,
    }


def schedule(value: float, given: dict[str, Any] | None, initial: str) -> dict[str, Any]:
    mode = "constant" if given is None else given["mode"]
    if mode == "constant" or given is None:
        return {"name": "constant", "value": float(value)}
    first, rate = float(given[initial]), float(given["rate"])
    if mode == "exponential":
        return {"name": "exponential", "initial": first, "final": float(value), "rate": rate}
    return {"name": "inverse", "initial": first, "rate": rate}


def optimizer(given: dict[str, Any]) -> dict[str, Any]:
    """Adam by palestra's own, with no arguments but the learning rate; else torch's."""
    arguments = {key: value for key, value in given["args"].items() if key != "lr"}
    if given["name"] == "adam" and not arguments:
        return {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    name, usual = OPTIMIZERS[given["name"]]
    return {"name": f"torch.optim:{name}", "arguments": usual | arguments}


DIFFERENCES = [
    "stop.after: 20000 opt steps of host and agent together; the original's config names no end",
    "schedules move with every opt step; in the original they stand still during a call of train",
    "the agent's target takes the best of the coordinates that the host chose; the original's, of all",
    "worlds play on between roll-outs, and the state is never divided; only what players see is",
]  # what will not be as it was


# ---- files -------------------------------------------------------------------------------------------------


def convert(source: Path, folder: Path) -> list[str]:
    """Write the folder; gives what will not be as it was."""
    nets: dict[str, nn.Module] = {}
    if source.suffix == ".pt":
        import hironaka.trainer  # noqa: F401  # its classes are named in the file

        saved = torch.load(source, map_location="cpu", weights_only=False)  # modules: the user's own file
        config = saved["config"]
        for role in ROLES:
            net = saved[f"{role}_net"]
            nets[role] = net.module if isinstance(net, nn.DataParallel) else net
    else:
        config = yaml.safe_load(source.read_text())
    try:
        run = run_config(config, nets)
    except KeyError as error:
        raise CannotConvert(
            f"{source}: expected the key {error.args[0]!r} of a DQNTrainer's config, but it is missing"
        ) from error
    trained = {role: layers_of(nets[role], role) for role in config_roles(config) if role in nets}
    folder.mkdir(parents=True)
    (folder / "run.yml").write_text(yaml.safe_dump(run, sort_keys=False))
    if trained:
        (folder / "hironaka_nets.py").write_text(NETS.format(layers=json.dumps(trained)))
    for role in trained:
        weights = {name: value.detach().contiguous() for name, value in nets[role].state_dict().items()}
        save_file(weights, folder / f"{role}.safetensors")
    return DIFFERENCES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a file of trainer.save, or a config")
    parser.add_argument("folder", type=Path, help="a new folder")
    arguments = parser.parse_args()
    try:
        lines = convert(arguments.source, arguments.folder)
    except (CannotConvert, OSError) as error:
        sys.exit(str(error))
    print(f"{arguments.folder}/run.yml\n" + "\n".join(f"- {line}" for line in lines))


if __name__ == "__main__":
    main()
