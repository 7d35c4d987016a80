"""Losses on answers by name: a file each. To register one, add its config to AnyTextLoss."""

from typing import Annotated

from palestra.config import ByName
from palestra.text.models.losses.policy_gradient import PolicyGradientConfig
from palestra.text.models.losses.preference import PreferenceConfig
from palestra.text.models.losses.supervised import SupervisedConfig

AnyTextLoss = Annotated[SupervisedConfig | PolicyGradientConfig | PreferenceConfig, ByName()]
