"""Analyses of stored dialogues: a model, or a rule, judges what was said."""

from typing import Annotated

from palestra.config import ByName, UserConfig
from palestra.text.analyses.analysis import Analysis
from palestra.text.analyses.follows_up import FollowsUpConfig
from palestra.text.analyses.keeps_to_role import KeepsToRoleConfig
from palestra.text.analyses.quotes import QuotesConfig
from palestra.text.analyses.reward import RewardConfig

AnyAnalysisConfig = Annotated[
    KeepsToRoleConfig | FollowsUpConfig | QuotesConfig | RewardConfig | UserConfig, ByName(user_class=Analysis)
]
