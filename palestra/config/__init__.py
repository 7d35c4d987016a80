"""Exhaustive configs: models without defaults, loaded, overridden, checked and printed.

A config is a tree of `Config` models. Every key must be written, and every error names its dotted path.
"""

from palestra.config.base import (
    Config,
    Decay,
    Discount,
    Fraction,
    InBranch,
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    replaced,
    under,
    walk,
)
from palestra.config.errors import ConfigError, ConfigErrorItem, Failed, MissingExtra, PartError, below, cut
from palestra.config.files import apply_overrides, list_of_overrides, load_yaml
from palestra.config.library import LibraryClass
from palestra.config.own_classes import (
    admit_modules,
    admits,
    admitted_function,
    failure,
    import_path,
    load_class,
    load_function,
    load_named,
    running_own,
    user_class_hashes,
)
from palestra.config.own_modules import (
    IMPORT_PATH,
    UntrustedError,
    admit,
    checking,
    import_own,
    importing_no_others,
    reading_own,
    trusting,
)
from palestra.config.rendering import render
from palestra.config.validation import check, check_overridden, load_config, load_stored_config
from palestra.config.variants import ByKey, ByName, OwnFunctionConfig, UnreadConfig, UserConfig, has_unread
