"""Puts a first file together, for a model that learns from a data set, from the usual values of both and their kind."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import Dataset

from palestra.config import Config, ConfigError, ConfigErrorItem, apply_overrides, below, check
from palestra.config.places import Place
from palestra.config.usual import completed, lacking
from palestra.config.variants import UNSAID
from palestra.data.own_loaders import LoaderConfig
from palestra.data.reading import DataFailed, Reader
from palestra.data.rows import WHOLE_FILE, is_other_file
from palestra.data.sets import TRAIN, make_sets
from palestra.games.spaces import Discrete, RoleSpaces
from palestra.models.labelled import LabelledConfig, spaces_of
from palestra.runs.fit import AnyModelConfig, AnySetConfig, FitConfig, model_class
from palestra.runs.kinds import read_config
from palestra.runs.starting import remedies

NO_MODEL = "null"  # in place of a model's name
VALID = "valid"  # the set by which a first file judges a model, besides `train`
BY_LOADER = dict.fromkeys(("order", "batch_size", "last_batch", "seeding"))  # what a loader decides, in `learning`
Data = dict[str, Any]


class _Sets(Config):
    data: dict[str, AnySetConfig]
    """data sets by name"""


class _Learner(Config):
    model: AnyModelConfig
    """what learns"""


def starting_fit(model: str, said: Data, overrides: Sequence[str]) -> FitConfig:
    """Return the config of a run in which a model learns from a data set, with the usual keys of both.

    model: its name; "null": that a program hands over. said: of the key `data.train`. overrides: those of the data
    count before these are made; one such as data.test.part=test adds a set of that name. A set by which the model is
    judged stands beside `train` if the data set can hold items out; beside a loader there is none. Raises ConfigError
    with all faults at once: of data, of the model, and of other overrides.
    """
    if LoaderConfig.key in said:
        learner = None if model == NO_MODEL else _model(model, None, overrides)
        by_loader = {"model": learner, "data": {TRAIN: said}, "learning": BY_LOADER} | _judged(None, [])
        return _read(completed(by_loader, Place(FitConfig)), overrides)
    sets, faults = {TRAIN: said}, list[ConfigErrorItem]()
    follows = set[str]()  # keys that follow from the data: nobody knows whether they are missing while there are none
    try:
        follows = {f"data.{key}" for key in lacking(sets, Place(_Sets).below("data", {}))}
        sets, follows = _sets(said, overrides), set()
        train = make_sets(check({"data": sets}, _Sets).data, seed=0)[TRAIN]
        learner = None if model == NO_MODEL else _model(model, train, overrides)
    except ConfigError as error:
        faults, learner = error.errors, None if model == NO_MODEL else _model(model, None, overrides)
        if learner is not None and _is_labelled(learner):
            follows |= {f"model.{key}" for key in lacking(learner, Place(_Learner).below("model", {}))}
    data = {"model": learner, "data": sets} | _judged(learner, [name for name in sets if name != TRAIN] or [TRAIN])
    data = completed(data, Place(FitConfig))
    try:
        config = _read(data, overrides)
    except ConfigError as error:
        told = [each for each in error.errors if each.path not in follows]
        paths = {each.path for each in told}
        faults = [*told, *(each for each in faults if each.path not in paths)]
    ConfigError.require_none(faults)
    return config


def _read(data: Data, overrides: Sequence[str]) -> FitConfig:
    with remedies(data, FitConfig):
        config: FitConfig = read_config(data, overrides)
    return config


def _sets(said: Data, overrides: Sequence[str]) -> Data:
    """Return the key `data`, with the overrides that are about it. Raises ConfigError."""
    own = [override for override in overrides if override.strip().startswith("data.")]
    name_of = {override: override.split("=")[0].strip().split(".")[1] for override in own}
    data: Data = {"data": {TRAIN: said}}
    for override in sorted(own, key=lambda each: name_of[each] != TRAIN):  # the other sets have the keys of `train`
        data["data"].setdefault(name_of[override], dict(data["data"][TRAIN]))
        with suppress(ConfigError):  # of a key that only the complete file has
            data = apply_overrides(data, [override], _Sets)
    for each in data["data"].values():
        is_chosen = "part" in each or "held_out" in each
        if not is_chosen and is_other_file(each.get("file"), str(data["data"][TRAIN].get("file"))):
            each |= WHOLE_FILE
    data = completed(data, Place(_Sets), None)
    train = data["data"][TRAIN]
    with suppress(ConfigError):
        judged_by = check({"data": {TRAIN: train}}, _Sets).data[TRAIN].judged_by
        if judged_by and len(data["data"]) == 1:
            data["data"][VALID] = train | judged_by
    for override in own:
        with suppress(ConfigError):  # the user gets this error when the file is read
            data = apply_overrides(data, [override], _Sets)
    sets: Data = data["data"]
    return sets


def _model(name: str, train: Dataset[Any] | None, overrides: Sequence[str]) -> Data:
    """Return the key `model`, of a model with keys that fit a data set; None: without those that follow from data."""
    said: Data = {"name": name}
    about: Any = None if train is not None else UNSAID
    if train is not None and (shipped := _is_labelled(said)):
        try:
            batch = Reader(f"data.{TRAIN}", train, getattr(train, "collate", None), "per_item", 0).first_batch()
        except DataFailed as error:
            raise ConfigError.at("", str(error)) from error
        with below(f"data.{TRAIN}"):
            about = RoleSpaces(spaces_of(batch), Discrete(1), {})
        num_classes = getattr(train, "num_classes", None)
        said |= {} if num_classes is None or "num_classes" not in shipped.model_fields else {"num_classes": num_classes}
        said |= {"num_outputs": batch["label"].numel()} if "num_outputs" in shipped.model_fields else {}
    data: Data = {"model": said}
    for override in overrides:
        if override.strip().startswith("model."):
            with suppress(ConfigError):
                data = apply_overrides(data, [override], _Learner)
    model: Data = completed(data, Place(_Learner), about)["model"]
    return model


def _is_labelled(model: Data) -> Any:
    """Return the config model of a shipped model, whose keys fit the data; else None."""
    found = Place(_Learner).below("model", {"model": model}).model_of(model)
    return found if found is not None and issubclass(found, LabelledConfig) else None


def _judged(model: Data | None, names: Sequence[str]) -> Data:
    """Return the keys `evaluations` and `best` for a model; none while its own keys do not fit. names: of the sets."""
    if model is None:
        return {"evaluations": [{"name": name, "data": name} for name in names], "best": None}
    try:
        first, *_ = model_class(check({"model": model}, _Learner).model).scores
    except ConfigError:
        return {"evaluations": [], "best": None}
    best = {"evaluation": names[0], "pairing": None, "measure": first.name, "goal": "max" if first.high_for else "min"}
    return {"evaluations": [{"name": name, "data": name} for name in names], "best": best}
