"""The algorithms of text players: which answers a player learns from, a file each."""

from typing import Annotated

from palestra.config import ByName
from palestra.text.algorithms.algorithm import TextAlgorithm, UserAlgorithmConfig
from palestra.text.algorithms.expert_iteration import ExpertIterationConfig
from palestra.text.algorithms.malt import MaltConfig
from palestra.text.algorithms.policy_gradient import PolicyGradientConfig
from palestra.text.algorithms.supervised import SupervisedConfig

AnyTextAlgorithm = Annotated[
    SupervisedConfig | ExpertIterationConfig | PolicyGradientConfig | MaltConfig | UserAlgorithmConfig,
    ByName(user_class=TextAlgorithm),
]
