"""How a config names a model that has learned elsewhere: in another run, or a file of weights."""

from typing import Annotated, Literal

from palestra.config import ByKey, Config, NonEmptyStr

Take = Literal["all", "body"]


class FromModelConfig(Config):
    """The model of another run."""

    from_model: NonEmptyStr
    """folder of the run in which the model learned from data"""
    checkpoint: NonEmptyStr
    """latest, best, the number of a checkpoint, or its opt step, as "@2100" with the quotation marks"""


class ModelStartConfig(FromModelConfig):
    """The model of another run with whose weights one that learns begins."""

    take: Take
    """all: all weights; body: all but those of the outputs, so that it may have had other outputs"""


class FileStartConfig(Config):
    """A file of weights with which a model begins."""

    file: NonEmptyStr
    """a safetensors file with the weights by their names in the model"""
    take: Take
    """all: all weights; body: all but those of the outputs, so that it may have had other outputs"""


class BodyStartConfig(FromModelConfig):
    """The model of another run whose body a player takes into every network of it that fits."""

    take: Literal["body", "policy"]
    """body: all weights but those of the outputs; policy: these, too, for the network of the policy"""


AnyModelStart = Annotated[ModelStartConfig | FileStartConfig, ByKey()]
