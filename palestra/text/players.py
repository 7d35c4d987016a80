"""Text players: a model that writes, how it is sampled, and what it learns from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import model_validator

from palestra.config import (
    ByKey,
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    InBranch,
    NonNegativeInt,
    PositiveInt,
    below,
    cut,
    failure,
)
from palestra.players import FromRunConfig
from palestra.players.scripted import ScriptedPlayerConfig
from palestra.players.updates import AnyUpdatesConfig
from palestra.text.algorithms import AnyTextAlgorithm
from palestra.text.algorithms.algorithm import AlgorithmFailed, JobConfig, Seat, TextAlgorithm
from palestra.text.algorithms.algorithm import Example as ChosenExample
from palestra.text.game import TextGame
from palestra.text.models.local import TuningConfig
from palestra.text.models.losses import PreferenceConfig
from palestra.text.models.model import Example as JobExample
from palestra.text.models.model import Job, PromptRefused, SamplingConfig, TextModel
from palestra.text.models.sources import FolderConfig, NewConfig
from palestra.text.rollouts import DecisionRow, Rollouts
from palestra.text.scripts import ScriptName, named_script, own_names, own_text_script_model
from palestra.text.servers.calls import Calls
from palestra.text.servers.config import ServerConfig, ServerTuningConfig
from palestra.text.servers.job_files import JobFileError, decisions_of, pairs_of, preference_file, supervised_file
from palestra.text.servers.jobs import FileJob
from palestra.text.servers.model import ServerModel
from palestra.text.waves import PromptTooLong, Writer

AnyTextModelConfig = Annotated[NewConfig | FolderConfig | ServerConfig, ByName()]


def build_model(config: AnyTextModelConfig, player: str, key: int, device: torch.device, calls: Calls) -> TextModel:
    """Make the model of a player. key: an int64 of which weights are drawn. calls: by which one at a server is asked.

    Raises ConfigError, at keys of the config.
    """
    if isinstance(config, ServerConfig):
        return ServerModel(player, config, calls)
    return config.build(key, device)


class ImitateConfig(JobConfig):
    usual: ClassVar[dict[str, Any]] = {
        **JobConfig.usual,
        "scripted": "random",
        "num_questions": 2000,
        "tuning": {"num_passes": 2},  # so many opt steps that a small new model gives valid answers
    }

    losses = ("supervised",)

    scripted: ScriptName
    """the scripted player whose answers the player learns, before any dialogue of its own"""
    num_questions: PositiveInt
    """on how many questions the scripted player answers, in every role of the player"""

    def user_names(self) -> list[str]:
        return own_names(self.scripted)


class TextPlayerConfig(Config):
    model: Annotated[AnyTextModelConfig, InBranch.FIXED]
    """what writes"""
    sampling: SamplingConfig
    """how its answers are drawn while it trains"""
    num_retries: NonNegativeInt
    """how often an answer that means nothing in its turn is asked for again; then the role is silent, and goes on"""
    warm_start: Annotated[FromRunConfig | None, InBranch.FIXED]
    """begin with the weights of a player of another run of text, which is copied; null: with those of the model"""
    imitate: Annotated[ImitateConfig | None, InBranch.FIXED]
    """what the player learns before its first dialogue; null: nothing"""
    algorithm: Annotated[AnyTextAlgorithm | None, InBranch.SAME_PART]
    """how it learns from its dialogues; null: it stays as it is"""
    updates: Annotated[AnyUpdatesConfig, InBranch.FREE]
    """in which epochs the player learns; in the others it only answers"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Require a sampling that fits a policy gradient, and jobs that fit the place of the model."""
        is_policy_gradient = self.algorithm is not None and self.algorithm.loss.name == "policy_gradient"
        if is_policy_gradient:
            found = {f"sampling.{key}": getattr(self.sampling, key) for key in ("top_p", "top_k")}
            found |= {"num_retries": self.num_retries or None}
            why = "with a policy gradient, which goes by the probabilities of all answers that could have been drawn"
            ConfigError.require_none(
                ConfigErrorItem(key, f"expected {0 if key == 'num_retries' else 'null'} {why}, got {value}")
                for key, value in found.items()
                if value is not None
            )
        is_at_server = isinstance(self.model, ServerConfig)
        ConfigError.require_none(
            ConfigErrorItem(f"{part}.{fault.path}", fault.message)
            for part in ("imitate", "algorithm")
            if (config := getattr(self, part)) is not None
            for fault in _faults_of_job(config, is_at_server)
        )
        if is_at_server and is_policy_gradient:
            needs = "which needs the probabilities of answers, and so a local model (new, folder)"
            raise ConfigError.at("algorithm", f"expected another algorithm than a policy gradient, {needs}, got it")
        return self

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        """Return the usual keys; a model with random weights begins by imitating, else no answer of it is valid."""
        model = said.get("model", {})
        learns = {}
        if isinstance(model, Mapping) and model.get("name") == "server":
            parts = {part: said[part] for part in ("imitate", "algorithm") if isinstance(said.get(part), Mapping)}
            named = {part: {"name": value["name"]} if "name" in value else {} for part, value in parts.items()}
            learns = {part: {**name, "tuning": ServerTuningConfig.usual} for part, name in named.items()}
        is_new = isinstance(model, Mapping) and model.get("name", "new") == "new"
        imitate: dict[str, Any] | None = {} if is_new else None
        sampling = {"max_tokens": 32} if is_new else {}
        usual = {"model": "new", "sampling": sampling, "num_retries": 0, "imitate": imitate, "updates": "constant"}
        return usual | learns


def _faults_of_job(config: JobConfig, is_at_server: bool) -> Iterator[ConfigErrorItem]:
    """Find what of the keys of a job does not fit the place of the model."""
    if isinstance(config.tuning, ServerTuningConfig) != is_at_server:
        keys = ", ".join(ServerTuningConfig.usual if is_at_server else TuningConfig.usual)
        where = "behind a server" if is_at_server else "in this process"
        yield ConfigErrorItem("tuning", f"expected {keys}, because the model is {where}, got other keys")
    if is_at_server and (per := getattr(config.loss, "per", "token")) != "token":
        yield ConfigErrorItem("loss.per", f"expected 'token', because servers know no other, got {per!r}")


AnyTextPlayer = Annotated[TextPlayerConfig | ScriptedPlayerConfig | FromRunConfig, ByKey(own_text_script_model)]


class TextPlayer:
    """A player with a model of its own, in one role or in several.

    opt_steps: those of all its jobs so far. imitated: the scripted player whose answers it learns first. teacher: the
    one whose answers its algorithm learns from. chosen: the examples of its last job.
    """

    def __init__(
        self, name: str, config: TextPlayerConfig, game: TextGame, model: TextModel, roles: Sequence[str]
    ) -> None:
        """Make the player. roles: those in which it sits. Raises ConfigError, with paths relative to its config."""
        self.name, self.config, self.game, self.model = name, config, game, model
        self.opt_steps = 0
        self.algorithm: TextAlgorithm | None = None
        self.imitated = self.teacher = None
        self.chosen: list[ChosenExample] = []
        if config.imitate is not None:
            with below("imitate"):
                self.imitated = named_script(config.imitate.scripted, game, roles)
                _check_tuning(model, config.imitate)
        if config.algorithm is not None:
            self.algorithm = config.algorithm.build(Seat(name, game.protocol, game.grammar.words))
            with below("algorithm"):
                _check_tuning(model, config.algorithm)
                if self.algorithm.teacher is not None:
                    self.teacher = named_script(self.algorithm.teacher, game, roles)

    def writer(self) -> Writer:
        return Writer(self.name, self.model, self.config.sampling, self.config.num_retries)

    def job(self, rollouts: Rollouts, epoch: int, key: int) -> Job | FileJob | None:
        """Return the job by which the player learns from roll-outs; None if there is nothing to learn from."""
        assert self.algorithm is not None
        config: JobConfig = self.algorithm.config
        read = rollouts if self.algorithm.all_epochs else Rollouts(r for r in rollouts.rows if r.epoch == epoch)
        self.chosen = chosen_examples(self.algorithm, read, torch.tensor([key]))
        temperature = self.config.sampling.temperature if config.loss.name == "policy_gradient" else 1.0
        return self._job(self.chosen, config, temperature)

    def imitation(self, rollouts: Rollouts) -> Job | FileJob | None:
        """Return the job by which the player learns what a scripted player has answered in its roles; None: nothing."""
        assert self.config.imitate is not None
        return self._job([ChosenExample(row, 1.0) for row in rollouts.of(self.name)], self.config.imitate, 1.0)

    def _job(self, chosen: Sequence[ChosenExample], config: JobConfig, temperature: float) -> Job | FileJob | None:
        if not chosen:
            return None
        if isinstance(self.model, ServerModel):
            return _file_job(chosen, config)
        return Job([self._example(each) for each in chosen], config.loss, config.begin_from, temperature)

    def _example(self, chosen: ChosenExample) -> JobExample:
        """Return an example by its tokens. Raises PromptTooLong for one that the model cannot read."""
        row, worse = chosen.row, () if chosen.worse is None else chosen.worse.answer_ids
        try:
            if row.stop == "scripted":
                return JobExample.of(self.model.written(row.prompt, row.answer), chosen.weight)
            if chosen.answer is None:
                return JobExample(row.prompt_ids, row.answer_ids, chosen.weight, row.log_probs, worse)
            ids = self.model.answer_ids(chosen.answer, len(row.prompt_ids))
        except PromptRefused as error:
            raise PromptTooLong(row.question, row.role, self.name, error) from error
        return JobExample(row.prompt_ids, ids, chosen.weight)

    def state_dict(self) -> dict[str, Any]:
        return {"opt_steps": self.opt_steps, "model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.opt_steps = state["opt_steps"]
        self.model.load_state_dict(state["model"])


def chosen_examples(algorithm: TextAlgorithm, rollouts: Rollouts, keys: torch.Tensor) -> list[ChosenExample]:
    """Return the examples of an algorithm, without empty answers that would be imitated.

    Raises AlgorithmFailed, in one line, for what its loss cannot learn from.
    """
    where, loss = f"{type(algorithm).__name__}.examples", algorithm.config.loss.name
    try:
        found = list(algorithm.examples(rollouts, keys))
    except Exception as error:
        raise AlgorithmFailed(f"{where}: raises {failure(error)}") from error
    for each in found:
        if (fault := _fault(each, loss)) is not None:
            raise AlgorithmFailed(f"{where}: expected {fault}")
    if loss == "policy_gradient":
        return found
    # an empty answer, as of a server that refuses, means nothing in any turn, and went well by chance
    return [each for each in found if (each.row.answer if each.answer is None else each.answer).strip()]


def _fault(example: Any, loss: str) -> str | None:
    """Say what was expected of an example for a loss, and what was got; None if it is right."""
    is_example = isinstance(example, ChosenExample) and isinstance(example.row, DecisionRow)
    if (
        not is_example
        or not isinstance(example.answer, str | None)
        or not isinstance(example.worse, DecisionRow | None)
    ):
        return f"Examples of decisions, got {cut(repr(example))}"
    weight, is_any = example.weight, loss == "policy_gradient"
    if not (isinstance(weight, Real) and math.isfinite(weight)) or (not is_any and weight <= 0):
        return f"{'a finite weight' if is_any else f'a positive weight, because the loss is {loss}'}, got {weight!r}"
    if example.row.stop == "scripted":
        return f"decisions of a model, got one of the scripted {example.row.player!r}"
    if example.answer is not None and loss != "supervised":
        return f"sampled answers for a {loss.replace('_', ' ')}, got {cut(repr(example.answer))}"
    if (example.worse is None) == (loss == "preference"):
        got = "none" if example.worse is None else cut(repr(example.worse.answer))
        return f"{'a' if example.worse is None else 'no'} worse answer, because the loss is {loss}, got {got}"
    if example.worse is not None and example.worse.prompt != example.row.prompt:
        return f"a worse answer to the same prompt, got one to {cut(repr(example.worse.prompt))}"
    return None


def _file_job(examples: Sequence[ChosenExample], config: JobConfig) -> FileJob:
    """Return the job of a model behind a server. Raises AlgorithmFailed for examples that no file can hold."""
    try:
        if isinstance(config.loss, PreferenceConfig):
            return FileJob(preference_file(pairs_of(examples)), "dpo", {"beta": config.loss.beta}, config.begin_from)
        return FileJob(supervised_file(decisions_of(examples)), "supervised", {}, config.begin_from)
    except JobFileError as error:
        raise AlgorithmFailed(str(error)) from error


def _check_tuning(model: TextModel, config: JobConfig) -> None:
    with below("tuning"):
        model.check_tuning(config.tuning)
