"""What holds for the config models of palestra: no field has a default, and each is described."""

from pydantic import BaseModel

from palestra.config.places import comment_of, fields_under


def find_defaults(model: type[BaseModel]) -> list[str]:
    """The fields with a default, of a model and all models below it, as `Class.field`; a correct model has none."""
    return [f"{owner.__name__}.{key}" for owner, key, field in fields_under(model) if not field.is_required()]


def find_undescribed(model: type[BaseModel]) -> list[str]:
    """The fields without a comment, of a model and all models below it, as `Class.field`; a correct model has none."""
    return [f"{owner.__name__}.{key}" for owner, key, _ in fields_under(model) if comment_of(owner, key) is None]
