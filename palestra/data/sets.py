"""Data sets that a config names: map-style sets of the user's own, of which a config may take the first items alone."""

from typing import Annotated, Any, ClassVar

from torch.utils.data import Dataset

from palestra.config import ByName, Config, ConfigError, PositiveInt, UserConfig, failure


class DataConfig(Config):
    """The keys of every data set."""

    usual: ClassVar = {"num_items": None}

    num_items: PositiveInt | None
    """only the first so many items, such as those of one batch, to see whether a model can learn them by heart; null:
    all"""


class UserDataConfig(UserConfig, DataConfig):
    """Base of the `Config` of a data set of the user's own: a map-style `torch.utils.data.Dataset`.

    Its class is called with the config. It has `data[index]` and `len(data)`, and may have `collate(items)`, which
    makes a batch, and `weights`, N numbers by which `{name: weighted}` draws.
    """

    def build(self, *arguments: Any, **named: Any) -> Any:
        """Make the data set. Raises ConfigError if it fails, is empty, or lacks a length."""
        try:
            data = super().build(*arguments, **named)
            num = len(data)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError.at("name", f"{self.name!r} fails: {failure(error)}") from error
        if num == 0:
            raise ConfigError.at("name", f"expected items in {self.name!r}, got none")
        return data


AnyDataConfig = Annotated[UserDataConfig, ByName(user_class=Dataset)]


def num_items(data: Any, config: DataConfig) -> int:
    """Return how many items of a set are read. Raises ConfigError where the config asks for more than there are."""
    if config.num_items is None:
        return len(data)
    if config.num_items > len(data):
        raise ConfigError.at("num_items", f"expected at most {len(data)}, as the set has, got {config.num_items}")
    return config.num_items
