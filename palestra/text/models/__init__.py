"""Language models: how they answer prompts, and how they learn from answers."""

from typing import Annotated

from palestra.config import ByName
from palestra.text.models.sources import FolderConfig, NewConfig

AnyTextModelConfig = Annotated[FolderConfig | NewConfig, ByName()]
