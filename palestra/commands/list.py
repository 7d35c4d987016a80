"""Lists the names that a config may use, by kind.

Each has a line, taken from its config model or class.
"""

from typing import Any

from palestra.commands.failures import one_line_errors
from palestra.commands.shell import console, say


def list_parts() -> None:
    """List the parts that a config may name, by kind, one line each."""
    with one_line_errors():
        for kind, entries in catalogue().items():
            console.print(kind, style="bold")
            width = max(map(len, entries))
            for name, line in entries.items():
                say(f"  {name:{width}}  {' '.join(line.split())}")


def catalogue() -> dict[str, dict[str, str]]:
    """Return the parts that a config can name, as {kind: {name: one line}}."""
    from palestra.algorithms.off_policy import AnyOffPolicyLoss
    from palestra.algorithms.on_policy import AnyOnPolicyLoss
    from palestra.algorithms.parts.estimators import AnyEstimatorConfig
    from palestra.algorithms.parts.exploration import ExplorationConfig
    from palestra.algorithms.parts.return_distributions import ValueConfig
    from palestra.callbacks import AnyCallbackConfig
    from palestra.data.order import AnyOrderConfig
    from palestra.games import AnyGameConfig
    from palestra.games.dialogue.game import AnyScenarioConfig
    from palestra.games.dialogue.protocols import AnyProtocolConfig
    from palestra.games.polyhedra.rewards import RewardConfig
    from palestra.nets import AnyNetConfig
    from palestra.optimizers import OptimizerConfig
    from palestra.players import SCRIPTED
    from palestra.recording import RecorderConfig
    from palestra.rollouts.n_step import AnyTransitionsConfig
    from palestra.runs.config import AnyAlgorithm, AnyTrainerConfig
    from palestra.runs.fit import AnyDataConfig, AnyFitTrainerConfig, AnyModelConfig
    from palestra.runs.text import AnyTextTrainerConfig
    from palestra.schedules import ScheduleConfig
    from palestra.sweeps.config import AnyPlaceConfig
    from palestra.sweeps.pruning import AnyPruningConfig
    from palestra.sweeps.search import AnySearchConfig
    from palestra.text.algorithms import AnyTextAlgorithm
    from palestra.text.analyses import AnyAnalysisConfig
    from palestra.text.game import AnyTextScenarioConfig
    from palestra.text.models.losses import AnyTextLoss
    from palestra.text.players import AnyTextModelConfig
    from palestra.text.scripts import SCRIPTS
    from palestra.text.templates import AnyPromptsConfig

    return {
        "games": _variants(AnyGameConfig),
        "algorithms": _variants(AnyAlgorithm),
        "trainers": _variants(AnyTrainerConfig) | _variants(AnyFitTrainerConfig) | _variants(AnyTextTrainerConfig),
        "models (fit)": _variants(AnyModelConfig),
        "data (fit)": _variants(AnyDataConfig),
        "orders (fit)": _variants(AnyOrderConfig),
        "losses (on_policy)": _variants(AnyOnPolicyLoss),
        "losses (off_policy)": _variants(AnyOffPolicyLoss),
        "estimators (on_policy)": _variants(AnyEstimatorConfig),
        "nets": _variants(AnyNetConfig),
        "players": {name: _first_paragraph(policy) for name, policy in SCRIPTED.items()},
        "protocols (dialogue)": _variants(AnyProtocolConfig),
        "scenarios (dialogue)": _variants(AnyScenarioConfig),
        "algorithms (text)": _variants(AnyTextAlgorithm),
        "models (text)": _variants(AnyTextModelConfig),
        "losses (text)": _variants(AnyTextLoss),
        "players (text)": {name: _first_paragraph(script) for name, script in SCRIPTS.items()},
        "scenarios (text_dialogue)": _variants(AnyTextScenarioConfig),
        "prompts (text_dialogue)": _variants(AnyPromptsConfig),
        "analyses (text)": _variants(AnyAnalysisConfig),
        "schedules": _variants(ScheduleConfig),
        "rewards (polyhedra)": _variants(RewardConfig),
        "optimizers": _variants(OptimizerConfig),
        "values (dqn)": _variants(ValueConfig),
        "transitions (dqn)": _variants(AnyTransitionsConfig),
        "exploration (dqn)": _variants(ExplorationConfig),
        "callbacks": _variants(AnyCallbackConfig),
        "recorders": _variants(RecorderConfig),
        "searches (sweep)": _variants(AnySearchConfig),
        "pruning (sweep)": _variants(AnyPruningConfig),
        "places (sweep)": _variants(AnyPlaceConfig),
    }


def _variants(union: Any) -> dict[str, str]:
    from palestra.config import UserConfig
    from palestra.config.places import description_of
    from palestra.config.variants import members_of, names_of

    members = members_of(union)
    lines = {}
    for name, model in names_of(members).items():
        module, colon, _ = name.partition(":")  # torch.optim:Adam: one line for all classes of torch.optim
        lines[f"{module}:Class" if colon else name] = description_of(model, "name") or _first_paragraph(model)
    has_own = any(issubclass(model, UserConfig) for model in members)
    return lines | ({"package.module:Class": "a class of your own"} if has_own else {})


def _first_paragraph(thing: type) -> str:
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())
