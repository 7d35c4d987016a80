"""Puts a first file together, for a model that learns from a data set, from the usual values of both and their kind."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import Dataset

from palestra.config import Config, ConfigError, apply_overrides, below, check
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.data.reading import DataFailed, Reader
from palestra.data.sets import TRAIN, make_sets
from palestra.games.spaces import Discrete, RoleSpaces
from palestra.models.labelled import LabelledConfig, spaces_of
from palestra.runs.fit import AnyModelConfig, AnySetConfig, FitConfig, model_class
from palestra.runs.starting import remedies

VALID = "valid"  # the set by which a first file judges a model, besides `train`
Data = dict[str, Any]


class _Sets(Config):
    data: dict[str, AnySetConfig]
    """data sets by name"""


class _Learner(Config):
    model: AnyModelConfig
    """what learns"""


def starting_fit_data(model: str, said: Data, overrides: Sequence[str]) -> Data:
    """A file in which a model learns from a data set; keys for which no part has a value are left out.

    said: of the key `data.train`. overrides: those of the data count before these are made; one such as
    data.test.part=test adds a set of that name. A set by which the model is judged stands beside `train` if the data
    set can hold items out. Raises ConfigError if the data cannot be made.
    """
    sets = _sets(said, overrides)
    made = make_sets(sets.data, seed=0)
    data: Data = {"model": _model(model, made[TRAIN], overrides), "data": sets.model_dump()["data"]}
    names = [name for name in data["data"] if name != TRAIN] or [TRAIN]
    with remedies(data, FitConfig):
        scores = model_class(check({"model": data["model"]}, _Learner).model).scores
    data["evaluations"] = [{"name": name, "data": name} for name in names]
    goal = "max" if scores[0].high_for else "min"
    data["best"] = {"evaluation": names[0], "pairing": None, "measure": scores[0].name, "goal": goal}
    found: Data = completed(data, Place(FitConfig))
    return found


def _sets(said: Data, overrides: Sequence[str]) -> _Sets:
    """The key `data`, with the overrides that are about it. Raises ConfigError."""
    own = [override for override in overrides if override.strip().startswith("data.")]
    names = [override.split("=")[0].strip().split(".")[1] for override in own]
    data: Data = {"data": dict.fromkeys([TRAIN, *names], said)}
    for override in own:
        with suppress(ConfigError):  # of a key that only the complete file has
            data = apply_overrides(data, [override], _Sets)
    data = completed(data, Place(_Sets), None)
    train = data["data"][TRAIN]
    with suppress(ConfigError):
        judged_by = check({"data": {TRAIN: train}}, _Sets).data[TRAIN].judged_by
        if judged_by and len(data["data"]) == 1:
            data["data"][VALID] = train | judged_by
    data = apply_overrides(data, own, _Sets)
    with remedies(data, _Sets):
        return check(data, _Sets)


def _model(name: str, train: Dataset[Any], overrides: Sequence[str]) -> Data:
    """The key `model`, of a model with keys that fit a data set."""
    said: Data = {"name": name}
    shipped: Any = Place(_Learner).below("model", {"model": said}).model_of(said)
    about: RoleSpaces | None = None
    if shipped is not None and issubclass(shipped, LabelledConfig):
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
