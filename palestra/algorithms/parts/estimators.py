"""Estimators by name: they find the advantages and value targets of a roll-out's decisions.

To register one, add its config to AnyEstimatorConfig. Those of TorchRL (extra: torchrl) come by an adapter.

Letters: T decisions of each of W sequences.
"""

import inspect
import multiprocessing
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from palestra.algorithms.parts.advantages import Sequences, generalized_advantages
from palestra.config import (
    ByName,
    Config,
    Discount,
    Fraction,
    LibraryClass,
    MissingExtra,
    PositiveFloat,
    UserConfig,
    below,
    running_own,
)

OBJECTIVES = "torchrl.objectives"
NETWORKS = ("actor_network", "critic_network", "value_network", "qvalue_network", "actor", "critic")
KNOWN_BY_THE_RUN = ("device", "functional", "action_spec", "action_space", "num_actions", "bounds")
# What `palestra config` writes where TorchRL has no value or one that does not fit here: its networks cannot be called
# by vmap, and rows hold no outputs of the policy before.
INSTEAD = {"gamma": 0.99, "lmbda": 0.95, "reduction": "mean", "deactivate_vmap": True}


class TorchRLConfig(LibraryClass):
    """The base of the configs that name a class of TorchRL, or one of the user's own that derives from it."""

    library = OBJECTIVES
    base = f"{OBJECTIVES}:LossModule"
    not_said: ClassVar[dict[str, str]] = dict.fromkeys((*NETWORKS, *KNOWN_BY_THE_RUN), "the run gives it")

    name: str
    """a class of TorchRL (extra: torchrl), as torchrl.objectives:ClipPPOLoss"""
    arguments: dict[str, Any]
    """what it is called with: all of its arguments but networks and what the run knows"""

    @classmethod
    def module(cls, name: str) -> Any:
        """Import a module. Raises MissingExtra, at the key `name`, where TorchRL is not installed."""
        return torchrl_module(name) if name == cls.library else import_module(name)

    @classmethod
    def is_said(cls, parameter: inspect.Parameter) -> bool:
        """Return whether a file says an argument: no names of keys, and no `gamma` that TorchRL's losses refuse."""
        is_refused = parameter.name.endswith("_key") or (parameter.name == "gamma" and parameter.default is None)
        return not is_refused and super().is_said(parameter)

    @classmethod
    def in_full(cls, name: str) -> dict[str, Any]:
        """Return what `palestra config` writes: TorchRL's own values, but others where those do not fit here."""
        full = super().in_full(name)
        arguments = full["arguments"]
        arguments |= {key: value for key, value in INSTEAD.items() if key in arguments}
        if "dtarg" in arguments:  # KLPENPPOLoss
            arguments["delay_actor"] = True
        return full


def torchrl_module(name: str) -> Any:
    """Import a module of TorchRL. Raises MissingExtra, at the key `name`, where TorchRL is not installed."""
    start_method = multiprocessing.get_start_method(allow_none=True)
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra.at("name", f"{error}; it needs an extra: pip install 'palestra[torchrl]'") from error
    finally:  # importing TorchRL sets it to "spawn", for every process that the program starts from then on
        multiprocessing.set_start_method(start_method, force=True)


class Estimator(ABC):
    """The base of estimators. A class of your own derives from it and carries its `Config`.

    skips_rows: whether it skips rows that do not count, which games of several roles have. whole_games: whether it
    needs whole games, so that a row waits, from one roll-out to the next, until its game has ended. estimates: false if
    it finds nothing. bootstraps: whether it asks for values where a game was cut off, so that the loss must name the
    head `value`. corrects: whether it corrects what an older policy has played, as with `actors` of a run. Values, and
    the log-probabilities that the loss takes for those of the policy that played, are then of the present networks,
    which have no memory, and `estimate` also gets log_ratio, (T, W): the logarithm of the ratio of the probability that
    they give to an action to that with which it was played.
    """

    skips_rows: bool = True
    whole_games: ClassVar[bool] = False
    estimates: ClassVar[bool] = True
    bootstraps: bool = True
    corrects: ClassVar[bool] = False

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def estimate(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the advantages of decisions that follow each other, and their value targets: float32 (T, W) each.

        If the loss has no head `value`, values are 0.
        """


class EstimatorConfig(Config):
    """The base of the configs of the estimators of this file."""

    made: ClassVar[type[Estimator]]

    name: str

    def build(self) -> Estimator:
        return self.made(self)


class GAE(Estimator):
    """Generalized advantages (Schulman et al. 2016, eq. 16); value targets are advantages plus values."""

    def estimate(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        advantage = generalized_advantages(sequences, self.config.gamma, self.config.gae_lambda)
        return advantage, advantage + sequences.value


class DiscountedConfig(EstimatorConfig):
    """The base of the configs of estimators that discount rewards."""

    gamma: Discount
    """discount per decision of the player"""


class GAEConfig(DiscountedConfig):
    made = GAE
    usual: ClassVar[dict[str, Any]] = {"gamma": 0.99, "gae_lambda": 0.95}

    name: Literal["gae"]
    """generalized advantage estimation (Schulman et al. 2016)"""
    gae_lambda: Fraction
    """0: advantages from the value one decision ahead; 1: from all that follows"""


class TDLambdaConfig(DiscountedConfig):
    """The keys of TD(lambda): the numbers of `gae`, under the name that is usual where only values are learned."""

    made = GAE
    usual: ClassVar[dict[str, Any]] = {"gamma": 0.99, "td_lambda": 0.95}

    name: Literal["td_lambda"]
    """value targets are lambda-returns (Sutton & Barto 2018, section 12.1)"""
    td_lambda: Fraction
    """0: targets from the value one decision ahead; 1: from all that follows"""

    @property
    def gae_lambda(self) -> float:
        return self.td_lambda


class VTrace(Estimator):
    """V-trace (Espeholt et al. 2018, eq. 1): value targets of the present policy, from what an older one has played.

    Advantages are those of its section 4.2, which weigh a decision by its ratio of probabilities, too.
    """

    config: "VTraceConfig"
    corrects = True

    def estimate(self, sequences: Sequences, log_ratio: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert log_ratio is not None
        config, ratio = self.config, log_ratio.exp()
        rho, trace = ratio.clamp(max=config.rho_bar), config.trace_lambda * ratio.clamp(max=config.c_bar)
        advantages, targets = torch.zeros_like(sequences.value), torch.zeros_like(sequences.value)
        later = later_target = torch.zeros_like(sequences.value[0])
        is_last = torch.ones_like(sequences.valid[0])
        for t in reversed(range(len(targets))):
            reward, value, next_value, terminated, truncated, valid = (column[t] for column in sequences)
            is_cut = truncated | is_last
            following = torch.where(is_cut, next_value, later).masked_fill(terminated, 0.0)
            following_target = torch.where(is_cut, next_value, later_target).masked_fill(terminated, 0.0)
            difference = rho[t] * (reward + config.gamma * following - value)
            target = value + difference + config.gamma * trace[t] * (following_target - following)
            advantage = rho[t] * (reward + config.gamma * following_target - value)
            advantages[t], targets[t] = torch.where(valid, advantage, 0.0), torch.where(valid, target, value)
            later, later_target = torch.where(valid, value, later), torch.where(valid, target, later_target)
            is_last = is_last & ~valid
        return advantages, targets


class VTraceConfig(DiscountedConfig):
    made = VTrace
    usual: ClassVar[dict[str, Any]] = {"gamma": 0.99, "trace_lambda": 1.0, "rho_bar": 1.0, "c_bar": 1.0}

    name: Literal["v_trace"]
    """V-trace (Espeholt et al. 2018), which corrects what an older policy has played, as with `actors`"""
    trace_lambda: Fraction
    """0: targets from the value one decision ahead; 1: from all that follows"""
    rho_bar: PositiveFloat
    """the largest weight of a decision; larger ones make the values those of the present policy, smaller ones those of
    a policy nearer to the one that played"""
    c_bar: PositiveFloat
    """the largest weight by which a later decision counts: smaller ones vary less, and learn more slowly"""


class RewardToGo(Estimator):
    """The value target is the discounted sum of all later rewards of a game; the advantage is that minus the value."""

    whole_games = True
    config: "RewardToGoConfig"

    @property
    def bootstraps(self) -> bool:  # type: ignore[override]
        return self.config.at_truncation == "bootstrap"

    def estimate(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros_like(sequences.value)
        alone = sequences._replace(value=nothing, next_value=sequences.next_value if self.bootstraps else nothing)
        reward_to_go = generalized_advantages(alone, self.config.gamma, 1.0)
        return reward_to_go - sequences.value, reward_to_go


class RewardToGoConfig(DiscountedConfig):
    made = RewardToGo
    usual: ClassVar[dict[str, Any]] = {"gamma": 0.99, "at_truncation": "end"}

    name: Literal["reward_to_go"]
    """the discounted sum of all rewards that follow, of whole games"""
    at_truncation: Literal["bootstrap", "end"]
    """what follows where a game was cut off; bootstrap: the value of what its player would have decided on next; end:
    nothing, as where a game terminates"""


class NoEstimator(Estimator):
    """Finds nothing, for losses that learn from the rows themselves."""

    estimates = bootstraps = False

    def estimate(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(sequences.value), torch.zeros_like(sequences.value)


class NoEstimatorConfig(EstimatorConfig):
    made = NoEstimator

    name: Literal["none"]
    """neither advantages nor value targets"""


class TorchRLEstimator(Estimator):
    """A value estimator of TorchRL.

    It gets the rows that count first, and after them the others, as terminated ones without reward and value. An
    estimator that averages over all rows cannot skip any.
    """

    config: "TorchRLEstimatorConfig"

    def __init__(self, config: "TorchRLEstimatorConfig") -> None:
        super().__init__(config)
        with below("estimator"):
            cls, arguments = config.load(config.name), config.called_with()
            self.skips_rows = not arguments.get("average_gae", False)
            with running_own("arguments", f"{config.name!r} cannot be made"):
                self.estimator: Any = cls(value_network=None, **arguments)

    def estimate(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        from tensordict import TensorDict

        order = (~sequences.valid).to(torch.uint8).argsort(dim=0, stable=True)
        reward, value, next_value, terminated, truncated, valid = (column.gather(0, order) for column in sequences)
        is_last = valid & ~torch.cat([valid[1:], valid[-1:]])  # of a sequence that others fill up
        ended = terminated | truncated | is_last | ~valid
        following = torch.cat([value[1:], next_value[-1:]])
        columns = {
            "state_value": torch.where(valid, value, 0.0),
            ("next", "state_value"): torch.where(ended, next_value, following),
            ("next", "reward"): torch.where(valid, reward, 0.0),
            ("next", "terminated"): terminated | ~valid,
            ("next", "done"): ended,
        }
        rows = {name: column.T.unsqueeze(2) for name, column in columns.items()}  # (W, T, 1)
        found = self.estimator(TensorDict(rows, batch_size=value.T.shape))
        ordered = (torch.where(valid, found[name].squeeze(2).T, 0.0) for name in ("advantage", "value_target"))
        advantage, value_target = (torch.zeros_like(value).scatter(0, order, column) for column in ordered)
        return advantage, value_target


class TorchRLEstimatorConfig(TorchRLConfig, EstimatorConfig):
    made = TorchRLEstimator
    library = f"{OBJECTIVES}.value"
    base = f"{OBJECTIVES}.value:ValueEstimatorBase"
    not_said: ClassVar[dict[str, str]] = TorchRLConfig.not_said | dict.fromkeys(
        (  # how a value estimator calls networks and reads its input: ours finds all values there
            *("shifted", "shifted_budget", "skip_existing", "deactivate_vmap", "value_chunk_size", "value_chunk_dim"),
            *("num_chunks", "num_chunk", "time_dim", "differentiable", "auto_reset_env"),
        ),
        "the run gives it",
    )

    name: str
    """a value estimator of TorchRL (extra: torchrl), as torchrl.objectives.value:GAE"""


AnyEstimatorConfig = Annotated[
    GAEConfig
    | TDLambdaConfig
    | VTraceConfig
    | RewardToGoConfig
    | NoEstimatorConfig
    | TorchRLEstimatorConfig
    | UserConfig,
    ByName(user_class=Estimator),
]
