"""The config of a run in which a model learns from data."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import PrivateAttr, model_validator
from torch.utils.data import Dataset

from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    InBranch,
    NonEmptyStr,
    OwnFunctionConfig,
    PositiveInt,
    UnreadConfig,
    UserConfig,
    below,
    check,
    failure,
    has_unread,
    import_path,
    load_class,
    reading_own,
    under,
)
from palestra.config.errors import listed, shown
from palestra.config.files import values_of
from palestra.config.places import place_of
from palestra.config.usual import completed
from palestra.data.items import LABEL, TensorItems
from palestra.data.loading import LoadingConfig
from palestra.data.own_loaders import LoaderConfig
from palestra.data.rows import WHOLE_FILE, RowsDataConfig, is_other_file
from palestra.data.sets import TRAIN, DataConfig, FileRows, UserDataConfig
from palestra.evaluation.config import EvaluationName
from palestra.evaluation.measures import MeasuredSet
from palestra.games.dialogue.game import AnyScenarioConfig, DialogueConfig, DialogueGame
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.scenario import instance_of
from palestra.games.dialogue.tryout import first_protocol, make_protocol
from palestra.games.normalization import UNCHANGED
from palestra.models.labelled import Classifier, ClassifierConfig, LabelledConfig, Regressor, RegressorConfig
from palestra.models.learning import LearningConfig
from palestra.models.metrics import AnyMetricConfig, score_of
from palestra.models.model import Model
from palestra.models.sources import AnyModelStart
from palestra.randomness import base_key, world_keys
from palestra.run.base import EvaluatedRunConfig, TrainingClass, of_this_file
from palestra.run.sections import ProcessesConfig, RunOutputConfig
from palestra.runtime.intervals import Interval


class ScenarioDataConfig(DataConfig):
    judged_by: ClassVar = {"held_out": True}

    name: Literal["scenario"]
    """what a role of a dialogue observes before anything is said; the label of the instance is to be predicted"""
    protocol: AnyProtocolConfig
    """who speaks when, who decides, and what they get for it"""
    scenario: AnyScenarioConfig
    """the instances, the tokens of which messages are made, and what each role sees"""
    role: NonEmptyStr
    """the role that observes"""
    held_out: bool
    """true: instances as evaluations draw them; false: as training does"""
    num_items: PositiveInt
    """how many instances are drawn, by the run's seed"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        usual: dict[str, Any] = {"protocol": "nip", "scenario": "witness", "held_out": False, "num_items": 20_000}
        made = first_protocol(said)
        usual |= {} if made is None else {"role": made.verifiers[0]}
        with below("scenario"):
            return usual | {"scenario": completed(said.get("scenario", "witness"), place_of(AnyScenarioConfig), made)}

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if not isinstance(self.protocol, UnreadConfig):
            with below("protocol"):
                roles = make_protocol(self.protocol).roles
            if self.role not in roles:
                raise ConfigError.at("role", f"expected one of {listed(roles)}, got {self.role!r}")
        return self

    def build(self, train: Any, seed: int) -> "ScenarioData":
        return ScenarioData(self, seed)


class ScenarioData(TensorItems):
    """Items are the observations of a role in new games of a dialogue, with the label.

    Item i is what `role` observes in the game that `reset` makes of the i-th key of the stream "data/training" or
    "data/held out" of the run's seed. Raises ConfigError, with paths relative to the config.
    """

    num_classes = 2

    def __init__(self, config: ScenarioDataConfig, seed: int) -> None:
        device = torch.device("cpu")
        rules = DialogueConfig(
            name="dialogue", protocol=config.protocol, scenario=config.scenario, observation=UNCHANGED
        )
        with below("scenario"):
            game = DialogueGame(rules, device, "torch")
            self.scenario, self.files = game.scenario, game.scenario.files
            if LABEL in game.spaces[config.role]:
                raise ConfigError.at("", f"expected other entries than {LABEL!r} in what {config.role!r} sees")
            keys = world_keys(
                base_key(seed, f"data/{'held out' if config.held_out else 'training'}"), config.num_items, device
            )
            try:
                state = (game.held_out() if config.held_out else game).reset(keys)
                observation = game.observe(state, config.role)
            except Exception as error:  # of a scenario of the user's own
                raise ConfigError.at("", f"{config.scenario.name!r} fails: {failure(error)}") from error
        self.instances = instance_of(state)
        if self.files and "row" in self.instances:
            split = (getattr(config.scenario, "held_out", None),)
            rows = self.instances["row"].numpy()
            self.file_rows = FileRows(next(iter(self.files.values())), split, "scenario.held_out", rows)
        else:  # equal configs draw equal instances
            drawn = config.model_dump_json(exclude={"role", "num_items"})
            self.file_rows = FileRows(drawn, None, "", np.arange(config.num_items))
        super().__init__(observation, state["label"])

    def describe(self, index: int) -> str:
        """Describe the instance of an item as people read it."""
        return self.scenario.describe({name: value[index] for name, value in self.instances.items()})


class FitTrainerConfig(Config):
    name: Literal["fit"]
    """in each epoch the model learns from the training data, batch by batch"""


AnyFitTrainerConfig = Annotated[FitTrainerConfig | UserConfig, ByName(user_class=TrainingClass)]
AnySetConfig = Annotated[RowsDataConfig | ScenarioDataConfig | UserDataConfig, ByName(user_class=Dataset)]
AnyDataConfig = Annotated[
    RowsDataConfig | ScenarioDataConfig | UserDataConfig | LoaderConfig, ByName(user_class=Dataset)
]
AnyModelConfig = Annotated[ClassifierConfig | RegressorConfig | UserConfig, ByName(user_class=Model)]


class OnlySets(Config):
    data: dict[str, AnySetConfig]
    """data sets by name"""


class OneModel(Config):
    model: AnyModelConfig
    """what learns"""


def model_class(config: ClassifierConfig | RegressorConfig | UserConfig) -> type[Model]:
    """Return the class of the model that a config names."""
    match config:
        case ClassifierConfig():
            return Classifier
        case RegressorConfig():
            return Regressor
        case _:
            return load_class(config.name, Model)  # type: ignore[type-abstract]


NO_GAMES = "trainer fit learns from data, and has no games"


class FitExecutionConfig(ProcessesConfig):
    absent = dict.fromkeys(("kernel", "step_within_s", "gradients", "compile"), NO_GAMES)
    usual: ClassVar[Any] = {**ProcessesConfig.usual, "device": "cpu", "num_threads": 1}

    loading: LoadingConfig
    """how data are read; it changes no bit"""


class FitOutputConfig(RunOutputConfig):
    absent = dict.fromkeys(("layer_norms", "info", "replay_in_checkpoints"), NO_GAMES)


class SetEvaluationConfig(Config):
    """A data set by which a model is judged."""

    usual: ClassVar[Any] = {
        "batch_size": 256,
        "interval": {"every": 1, "unit": "epochs"},
        "at_start": True,
        "weights": "latest",
        "metrics": [],
    }

    name: EvaluationName
    """by which records and `best` name it"""
    data: NonEmptyStr
    """the key of `data` whose set it is"""
    batch_size: PositiveInt
    """items that are computed at once; it changes rounding alone"""
    interval: Interval | None
    """when the model is judged while it learns; it is judged at the end, too; null: only then"""
    at_start: bool
    """whether it is also judged before it learns"""
    weights: Literal["latest", "averaged"]
    """averaged: with the averages of learning.ema"""
    metrics: list[AnyMetricConfig]
    """what is computed of the whole set besides the model's scores: by name, or classes of your own; []: nothing"""


class FitConfig(EvaluatedRunConfig):
    """A run in which a model learns from data."""

    counters = ("opt_steps", "items", "epochs")
    has_model = True
    in_words = "a run in which a model learns from data"
    axes = ("opt_steps", "items")
    options = ("--onnx", "--weights")
    bitless = ("loading", *ProcessesConfig.bitless)
    changeable = ("data", "evaluations", "execution", "learning.precision")
    absent = dict.fromkeys(("game", "num_worlds", "roles", "players"), NO_GAMES)
    usual: ClassVar[Any] = {
        "trainer": "fit",
        "num_replicas": 1,
        "stop": {"after": 20, "unit": "epochs"},
        "output": {"record": {"every": 1, "unit": "epochs"}, "save": {"every": 1, "unit": "epochs"}},
    }

    trainer: Annotated[AnyFitTrainerConfig, InBranch.SAME_PART]  # type: ignore[assignment]
    """who trains: by name, or a class of your own"""
    model: Annotated[AnyModelConfig | None, InBranch.FIXED]
    """what learns: by name, or a class of your own, package.module:Class, with its keys; null: the model that a program
    hands over (FitTrainer.set_model)"""
    warm_start: Annotated[AnyModelStart | None, InBranch.FIXED]
    """begin with weights that were learned elsewhere; optimizers, averages and schedules begin anew; null: begin with
    random weights"""
    data: Annotated[dict[str, AnyDataConfig], InBranch.SAME_PART]
    """data sets by name; the model learns from `train`, which may be a loader of your own"""
    num_replicas: Annotated[PositiveInt, InBranch.FIXED]
    """how many trainings learn the same model in lockstep, each from batches of its own: 1, or a power of two"""
    learning: LearningConfig
    """how it learns"""
    evaluations: list[SetEvaluationConfig]
    """by which data sets it is judged, and when; []: none"""
    execution: FitExecutionConfig
    """where and how the run is computed; equal bits are promised only while device and num_threads are unchanged"""
    output: FitOutputConfig
    """what is shown and stored; it changes no bit of the results"""
    _given: type[Model] | None = PrivateAttr(default=None)  # the class of the model that a program has handed over

    def errors(self) -> Iterator[ConfigErrorItem]:
        yield from self._data_errors()
        if self.are_scores_known():
            for place, each in enumerate(self.measured()):
                for name in {name for name in each.own_scores if each.own_scores.count(name) > 1}:
                    message = f"expected other names than those of the model's scores, each once, got {name!r} twice"
                    yield ConfigErrorItem(f"evaluations.{place}.metrics", message)
        yield from super().errors()

    def are_scores_known(self) -> bool:
        """Return whether there is a model, whose class may be imported, as those of all metrics."""
        is_known = self._given is not None if self.model is None else not has_unread(self.model)
        return is_known and not any(has_unread(metric) for each in self.evaluations for metric in each.metrics)

    def _data_errors(self) -> Iterator[ConfigErrorItem]:
        if TRAIN not in self.data:
            yield ConfigErrorItem(f"data.{TRAIN}", "expected a data set, but the key is missing")
        if self.learning.precision == "float16" and self.execution.device == "cpu":
            message = "expected float32 or bfloat16, because execution.device is cpu, got 'float16'"
            yield ConfigErrorItem("learning.precision", f"{message}; on a GPU, such as cuda, it has a loss scale")
        yield from self._loader_errors()
        names = [each.name for each in self.evaluations]
        for place, each in enumerate(self.evaluations):
            path = f"evaluations.{place}"
            if each.name in names[:place]:
                yield ConfigErrorItem(f"{path}.name", f"expected different names, got {each.name!r} twice")
            if each.data not in self.sets():
                expected = of_this_file("a data set, not a loader,", self.sets())
                yield ConfigErrorItem(
                    f"{path}.data", f"{expected}, got {each.data!r}; a new one needs data.{each.data}"
                )
            if each.weights == "averaged" and self.learning.ema is None:
                message = "expected 'latest', because learning.ema is null, got 'averaged'"
                yield ConfigErrorItem(f"{path}.weights", message)

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        return str(under(data, "data", TRAIN, "name") or "")

    def _loader_errors(self) -> Iterator[ConfigErrorItem]:
        """Give the faults of keys that mean nothing with a loader of the user's own, and of those that a set needs."""
        has_loader = isinstance(self.data.get(TRAIN), OwnFunctionConfig)
        for key in ("order", "batch_size", "last_batch"):
            value = getattr(self.learning, key)
            if has_loader and value is not None:
                why = f"because data.{TRAIN} is a loader, which makes the batches"
                got = shown(value) if isinstance(value, str | int) else "a mapping"
                yield ConfigErrorItem(f"learning.{key}", f"expected null, {why}, got {got}")
            elif not has_loader and value is None:
                message = f"expected a value, because data.{TRAIN} is a data set, got null"
                yield ConfigErrorItem(f"learning.{key}", message)
        if not self.sets() and self.learning.seeding is not None:
            why = "because there are no data sets but a loader"
            yield ConfigErrorItem("learning.seeding", f"expected null, {why}, got {shown(self.learning.seeding)}")
        for name, each in self.data.items():
            if name != TRAIN and isinstance(each, OwnFunctionConfig):
                yield ConfigErrorItem(f"data.{name}", f"expected a data set, because only {TRAIN} may be a loader")

    def sets(self) -> dict[str, DataConfig]:
        """Return the data sets by name, without a loader of the user's own."""
        return {name: each for name, each in self.data.items() if not isinstance(each, OwnFunctionConfig)}

    @classmethod
    def learns_by(cls, data: Mapping[str, Any]) -> list[str]:
        name = under(data, "model", "name")
        return [str(name)] if name else []

    def measured(self) -> list[MeasuredSet]:
        kind = self._given if self.model is None else model_class(self.model)
        scores = [score.name for score in (kind.scores if kind is not None else ())]
        return [
            MeasuredSet(each.name, each.interval, [*scores, *(s.name for m in each.metrics if (s := score_of(m)))])
            for each in self.evaluations
        ]

    def kept(self) -> dict[str, str]:
        if not isinstance(self.data[TRAIN], RowsDataConfig):
            return {}
        why = "its training rows say how the model sees all others; put other rows into another set, as data.new.file"
        return {f"data.{TRAIN}.{key}": why for key in RowsDataConfig.model_fields if key != "num_items"}

    def begin_change(self, overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """As in BaseRunConfig: a set of a new name has the keys of `train`, and of another file all rows are taken."""
        data, notes = super().begin_change(overrides)
        sets, train = data["data"], self.data[TRAIN]
        for name, said in self._said_of_sets(overrides).items():
            if name not in sets and not isinstance(train, LoaderConfig):
                sets[name] = train.model_dump()
            is_of_rows = isinstance(self.data.get(name, train), RowsDataConfig) and name != TRAIN
            is_chosen = "part" in said or "held_out" in said
            if is_of_rows and not is_chosen and is_other_file(said.get("file"), sets[name]["file"]):
                sets[name] |= WHOLE_FILE
                what = f"data.{name}.file is another file than the run's"
                notes.append(f"{what}: all of its rows are taken (data.{name}.part=all)")
        return data, notes

    def unjudged(self, overrides: Sequence[str]) -> Iterator[ConfigErrorItem]:
        judging = list(dict.fromkeys(each.data for each in self.evaluations))
        for name in self._said_of_sets(overrides):
            if name not in (*judging, TRAIN):
                expected = f"expected a set by which an evaluation judges ({', '.join(judging)})"
                yield ConfigErrorItem(
                    f"data.{name}", f"{expected}, got {name!r}; one does with evaluations.0.data={name}"
                )

    def _said_of_sets(self, overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what overrides say of data sets: by name, the values by the first key below the set."""
        found: dict[str, dict[str, Any]] = {}
        for key, value in values_of(overrides, self.model_dump()).items():
            first, _, rest = key.partition(".")
            name, _, below = rest.partition(".")
            if first == "data" and name:
                found.setdefault(name, {})[below.partition(".")[0]] = value
        return found

    def judged_by(self, evaluation: str) -> list[Config]:
        found = [each for each in self.evaluations if each.name == evaluation]
        return [section for each in found for section in (each, self.data[each.data], self.data[TRAIN])]

    def learning_keys(self) -> list[str]:
        return ["learning"]

    def with_model(self, model: Model) -> Self:
        """Return this config, which names no model, with the class of one, and the keys that it was made with.

        If the class cannot be imported from a module, nobody else can make such a model, and the key stays null. The
        class's module becomes trusted. Raises ConfigError where keys or scores do not fit.
        """
        named, path = model.config, None
        if not isinstance(named, LabelledConfig):
            with suppress(ValueError):
                path = import_path(type(model))
            with reading_own():
                named = None if path is None else check({"model": {**named.model_dump(), "name": path}}, OneModel).model
        config = self.model_copy(update={"model": named})
        config._given = type(model)
        ConfigError.require_none(config.errors())
        if named is None and self.evaluators is not None:
            message = "expected null, because other processes cannot build a model of set_model, got a mapping"
            raise ConfigError.at("evaluators", message)
        return config
