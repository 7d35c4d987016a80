"""Puts a first file together, for a model that learns from a data set, from the usual values of both and their kind."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import Dataset

from palestra.config import ConfigError, ConfigErrorItem, below, check
from palestra.config.files import apply_fitting
from palestra.config.own_classes import find_named
from palestra.config.places import Place
from palestra.config.usual import completed, lacking, remedies
from palestra.config.variants import UNSAID, members_of, names_of
from palestra.data.own_loaders import LoaderConfig
from palestra.data.reading import DataFailed, Reader
from palestra.data.rows import WHOLE_FILE, is_other_file
from palestra.data.sets import TRAIN, make_sets
from palestra.games.spaces import Discrete, RoleSpaces
from palestra.kinds.data.config import AnyDataConfig, AnyModelConfig, FitConfig, OneModel, OnlySets, model_class
from palestra.models.labelled import LabelledConfig, spaces_of
from palestra.run.kinds import read_config
from palestra.training.opening import make_trainer
from palestra.training.trainable import apart_from_this_machine

FIT = "fit"
NO_MODEL = "null"  # in place of a model's name
VALID = "valid"  # the set by which a first file judges a model, besides `train`
BY_LOADER = dict.fromkeys(("order", "batch_size", "last_batch", "seeding"))  # what a loader decides, in `learning`
Data = dict[str, Any]


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
        follows = {f"data.{key}" for key in lacking(sets, Place(OnlySets).below("data", {}))}
        sets, follows = _sets(said, overrides), set()
        train = make_sets(check({"data": sets}, OnlySets).data, seed=0)[TRAIN]
        learner = None if model == NO_MODEL else _model(model, train, overrides)
    except ConfigError as error:
        faults = error.errors
        learner = None if model == NO_MODEL else _model(model, None, overrides)
        if learner is not None and _is_labelled(learner):
            follows |= {f"model.{key}" for key in lacking(learner, Place(OneModel).below("model", {}))}
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
        data = apply_fitting(data, [override], OnlySets)
    for each in data["data"].values():
        is_chosen = "part" in each or "held_out" in each
        if not is_chosen and is_other_file(each.get("file"), str(data["data"][TRAIN].get("file"))):
            each |= WHOLE_FILE
    data = completed(data, Place(OnlySets), None)
    train = data["data"][TRAIN]
    with suppress(ConfigError):
        judged_by = check({"data": {TRAIN: train}}, OnlySets).data[TRAIN].judged_by
        if judged_by and len(data["data"]) == 1:
            data["data"][VALID] = train | judged_by
    sets: Data = apply_fitting(data, own, OnlySets)["data"]
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
    own = (override for override in overrides if override.strip().startswith("model."))
    model: Data = completed(apply_fitting({"model": said}, own, OneModel), Place(OneModel), about)["model"]
    return model


def _is_labelled(model: Data) -> Any:
    """Return the config model of a shipped model, whose keys fit the data; else None."""
    found = Place(OneModel).below("model", {"model": model}).model_of(model)
    return found if found is not None and issubclass(found, LabelledConfig) else None


def _judged(model: Data | None, names: Sequence[str]) -> Data:
    """Return the keys `evaluations` and `best` for a model; none while its own keys do not fit. names: of the sets."""
    if model is None:
        return {"evaluations": [{"name": name, "data": name} for name in names], "best": None}
    try:
        first, *_ = model_class(check({"model": model}, OneModel).model).scores
    except ConfigError:
        return {"evaluations": [], "best": None}
    best = {"evaluation": names[0], "pairing": None, "measure": first.name, "goal": "max" if first.high_for else "min"}
    return {"evaluations": [{"name": name, "data": name} for name in names], "best": best}


def named_fit(words: Sequence[str]) -> FitConfig:
    """Return a config for a model and data. words: both, and overrides; the data may be a protocol and a scenario."""
    models, sets = ([*names_of(members_of(each))] for each in (AnyModelConfig, AnyDataConfig))
    models.append(NO_MODEL)
    named = [word for word in words if "=" not in word]
    for place, (what, known) in enumerate((("a model", models), ("data", sets))):
        is_scenario = place == 1 and len(named) == 3
        if len(named) <= place or not (named[place] in known or ":" in named[place] or is_scenario):
            got = repr(named[place]) if len(named) > place else "none"
            others = ", or a protocol and a scenario" * place
            expected = f"expected {what} ({', '.join(known)}, or package.module:Class{others})"
            raise ConfigError.at(" ".join([FIT, *named[: place + 1]]), f"{expected}, got {got}")
    model, *about = named
    said: dict[str, Any] = {"name" if isinstance(find_named(about[0]), type | None) else LoaderConfig.key: about[0]}
    if len(about) > 1:
        said = {"name": "scenario", "protocol": {"name": about[0]}, "scenario": {"name": about[1]}}
    config = starting_fit(model, said, [word for word in words if "=" in word])
    make_trainer(apart_from_this_machine(config))
    return config
