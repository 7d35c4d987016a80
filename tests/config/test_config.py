"""Covers palestra.config, palestra.config.base, palestra.config.places, palestra.config.files,
palestra.config.rendering, palestra.config.validation, palestra.config.variants.
"""

import copy
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from config_mutations import assert_every_mutation_is_told
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator, model_validator

from palestra.config import (
    ByKey,
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Discount,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    apply_overrides,
    check,
    check_overridden,
    load_class,
    load_config,
    load_yaml,
    render,
    user_class_hashes,
)
from palestra.config.places import comment_of
from palestra.config.rendering import WORD, scalar
from tests.complete_models import find_defaults, find_undescribed

# ---- a small house of configs --------------------------------------------------------------------


class Reward:
    """Base of rewards, those of the user among them."""


class WinReward(Config):
    """Pays at the end."""

    name: Literal["win"]
    scale: float
    """What a win pays."""

    def build(self, *arguments: int) -> Reward:
        return Reward()


class QConfig(Config):
    """Learns values."""

    name: Literal["q"]
    gamma: Discount
    """Discount per decision of the player, which counts its own decisions alone and none of the ones of others."""
    learning_rate: PositiveFloat
    """Learning rate of the optimizer."""
    net_arch: list[int | str]
    """Hidden layers: a width, or 'b' for batch norm."""
    max_norm: PositiveFloat | None
    """Gradients are cut to this norm."""

    @field_validator("net_arch")
    @classmethod
    def _layers_are_known(cls, layers: list[int | str]) -> list[int | str]:
        wrong = [
            ConfigErrorItem(str(i), f"{layer!r} is no layer; expected 'b'")
            for i, layer in enumerate(layers)
            if layer not in ("b", 8, 16)
        ]
        if wrong:
            raise ConfigError(wrong)
        return layers


class PolicyConfig(Config):
    """Learns a policy."""

    name: Literal["policy", "policy-gradient"]
    num_passes: PositiveInt
    """Passes over a batch."""
    clip_range: Fraction
    """How far a ratio may go."""

    @model_validator(mode="after")
    def _clipping_needs_passes(self) -> "PolicyConfig":
        if self.clip_range == 0 and self.num_passes > 1:
            raise ValueError("clip_range 0 allows one pass; expected num_passes 1")
        return self


Algorithm = Annotated[QConfig | PolicyConfig, ByName()]


class LearningPlayer(Config):
    algorithm: Algorithm
    """How it learns."""


class ScriptedPlayer(Config):
    scripted: Literal["first", "random"]
    """The script."""


class Evaluation(Config):
    num_games: PositiveInt
    """Games per pair."""
    is_paired: bool
    """Same starts for all pairs."""


class Root(Config):
    seed: NonNegativeInt
    """Where all randomness starts."""
    players: dict[str, Annotated[LearningPlayer | ScriptedPlayer, ByKey()]]
    """Who plays."""
    roles: dict[Literal["host", "agent"], str]
    """Who sits where."""
    reward: Annotated[WinReward | UserConfig, ByName(user_class=Reward)]
    """What they play for."""
    evaluations: list[Evaluation]
    """Games apart from training."""
    teacher: Algorithm | None
    """Whom they imitate."""

    @model_validator(mode="after")
    def _seats_are_taken(self) -> "Root":
        faults = [
            ConfigErrorItem(f"roles.{role}", "missing; expected a player's name")
            for role in ("host", "agent")
            if role not in self.roles
        ]
        faults += [
            ConfigErrorItem(f"players.{player}", f"missing; expected since roles.{role} names it")
            for role, player in self.roles.items()
            if player not in self.players
        ]
        if faults:
            raise ConfigError(faults)
        return self


TEXT = """
seed: 0
players:
  ann: {algorithm: {name: q, gamma: 0.99, learning_rate: 3e-4, net_arch: [16, b, 8], max_norm: null}}
  bob: {scripted: first}
roles: {host: ann, agent: bob}
reward: {name: win, scale: 1}
evaluations:
  - {num_games: 100, is_paired: true}
  - {num_games: 30, is_paired: false}
teacher: null
"""


TOP = "seed, players, roles, reward, evaluations, teacher"  # the keys at the top of `data`


@pytest.fixture
def data() -> dict[str, Any]:
    return load_yaml(TEXT)


def errors_of(data: Any, *overrides: str, model: type[Config] = Root) -> list[str]:
    """The lines that a user would read."""
    with pytest.raises(ConfigError) as raised:
        check_overridden(data, overrides, model)
    return str(raised.value).splitlines()


def error_in(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_yaml(text)
    return str(raised.value)


# ---- models --------------------------------------------------------------------------------------


def test_config_is_frozen(data: dict[str, Any]) -> None:
    config = check(data, Root)
    with pytest.raises(ValidationError):
        config.seed = 1  # type: ignore[misc]


def test_defaults_are_found_in_everything_a_model_refers_to() -> None:
    class Deep(Config):
        depth: int = 3

    class Broad(Config):
        by_key: dict[str, list[Annotated[Deep | QConfig, "told somehow"] | None]]
        width: int | None = None

    assert find_defaults(Broad) == ["Broad.width", "Deep.depth"]
    assert find_defaults(Root) == []


def test_fields_without_a_comment_are_found() -> None:
    class Silent(Config):
        name: Literal["silent"]
        told: QConfig
        """Told."""
        untold: int

    assert find_undescribed(Silent) == ["Silent.name", "Silent.untold"]
    assert find_undescribed(Root) == []


def test_config_objects_may_stand_for_mappings(data: dict[str, Any]) -> None:
    algorithm = QConfig(name="q", gamma=0.99, learning_rate=3e-4, net_arch=[16, "b", 8], max_norm=None)
    given = data | {"players": {"ann": LearningPlayer(algorithm=algorithm), "bob": {"scripted": "first"}}}
    assert check(given, Root) == check(data, Root)


def test_checked_config_dumps_to_the_data_it_was_read_from(data: dict[str, Any]) -> None:
    assert check(data, Root).model_dump() == data


def test_integer_is_taken_for_a_float(data: dict[str, Any]) -> None:
    scale = check(data, Root).model_dump()["reward"]["scale"]
    assert (scale, type(scale)) == (1.0, float)


@pytest.mark.parametrize("value", ["true", "'3e-4'", "null", ".nan", ".inf", "[1]"])
def test_float_refuses_what_is_no_finite_number(data: dict[str, Any], value: str) -> None:
    (error,) = errors_of(data, f"players.ann.algorithm.learning_rate={value}")
    assert error.startswith("players.ann.algorithm.learning_rate: ")
    assert error.partition(": ")[2].startswith("expected a number > 0, got ")


# ---- checking ------------------------------------------------------------------------------------


def test_every_mutation_of_a_valid_config_is_told(data: dict[str, Any]) -> None:
    assert_every_mutation_is_told(data, Root)


def test_every_mutation_is_told_in_other_members_of_unions(data: dict[str, Any]) -> None:
    policy = "{name: policy, num_passes: 4, clip_range: 0.2}"
    assert_every_mutation_is_told(apply_overrides(data, [f"players.ann.algorithm={policy}", f"teacher={policy}"]), Root)


def test_all_errors_are_told_at_once_one_line_each(data: dict[str, Any]) -> None:
    del data["seed"]
    overrides = ["players.ann.algorithm.gamma=1.2", "evaluations.1.num_games=0", "reward.name=lose", "teacher={}"]
    assert [line.split(":")[0] for line in errors_of(data, *overrides)] == [
        "seed",
        "players.ann.algorithm.gamma",
        "reward.name",
        "evaluations.1.num_games",
        "teacher.name",
    ]


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("players.ann.algorithm.gamma=1.2", "expected a discount between 0 and 1, got 1.2"),
        ("players.ann.algorithm.gamma=x", "expected a discount between 0 and 1, got the string 'x'"),
        ("players.ann.algorithm.max_norm=0", "expected a number > 0 or null, got 0"),
        ("players.ann.algorithm.max_norm=.inf", "expected a number > 0 or null, got inf, which is not finite"),
        ("players.ann.algorithm.net_arch=[1.5]", "expected an integer or a string, got the float 1.5"),
        ("players.bob.scripted=frist", "expected one of 'first', 'random', got 'frist'; did you mean 'first'?"),
        (
            "players.ann.algorithm=q",
            "expected a mapping with `name`, one of 'q', 'policy', 'policy-gradient', got the string 'q'; "
            "write {name: q, gamma: ..., learning_rate: ..., net_arch: ..., ...}",
        ),
        ("seed=1e6", "expected an integer >= 0 (write 1000000), got the float 1000000.0"),
        ("seed=true", "expected an integer >= 0, got the boolean true"),
        ("seed={a: 1}", "expected an integer >= 0, got a mapping"),
        ("evaluations.0.is_paired=yes", "expected true or false, got the string 'yes'"),
        (
            "evaluations=3",
            "expected a list, each item a mapping with the keys num_games, is_paired, got the integer 3",
        ),
        ("roles={hots: ann}", "expected one of 'host', 'agent', got 'hots'; did you mean 'host'?"),
    ],
)
def test_error_says_what_was_expected_and_what_it_got(data: dict[str, Any], override: str, error: str) -> None:
    (line,) = errors_of(data, override)
    assert line.partition(": ")[2] == error


def test_missing_key_says_what_was_expected(data: dict[str, Any]) -> None:
    del data["players"]["ann"]["algorithm"]["gamma"]
    assert errors_of(data) == [
        "players.ann.algorithm.gamma: expected a discount between 0 and 1, but the key is missing"
    ]


def test_misspelt_key_is_one_error(data: dict[str, Any]) -> None:
    algorithm = data["players"]["ann"]["algorithm"]
    algorithm["gama"] = algorithm.pop("gamma")
    (error,) = errors_of(data)
    assert error.startswith(
        "players.ann.algorithm.gama: unknown key; did you mean 'gamma', which is missing (expected "
    )


def test_unknown_key_near_one_that_is_there_does_not_call_it_missing(data: dict[str, Any]) -> None:
    data["players"]["ann"]["algorithm"]["gama"] = 0.9
    assert errors_of(data) == ["players.ann.algorithm.gama: unknown key; the nearest known key is 'gamma'"]


def test_unknown_key_near_to_nothing_lists_the_known_ones(data: dict[str, Any]) -> None:
    data["evaluations"][0]["zzz"] = 1
    assert errors_of(data) == ["evaluations.0.zzz: unknown key; known keys: num_games, is_paired"]


def test_validators_pass_their_message_through_at_their_place(data: dict[str, Any]) -> None:
    errors = errors_of(data, "teacher={name: policy, num_passes: 2, clip_range: 0}")
    assert errors == ["teacher: clip_range 0 allows one pass; expected num_passes 1"]


def test_validators_may_name_several_places_below_their_own(data: dict[str, Any]) -> None:
    errors = errors_of(data, "players.ann.algorithm.net_arch=[16, x, 8, 3]")
    assert errors == [
        "players.ann.algorithm.net_arch.1: 'x' is no layer; expected 'b'",
        "players.ann.algorithm.net_arch.3: 3 is no layer; expected 'b'",
    ]


def test_error_is_one_line_whatever_a_key_or_validator_says() -> None:
    error = ConfigError([ConfigErrorItem("a\nb", "two\nlines"), ConfigErrorItem("", "one")])
    assert str(error) == "a b: two lines\none"


def test_key_in_capitals_is_near_its_own(data: dict[str, Any]) -> None:
    data["SEED"] = data.pop("seed")
    assert errors_of(data) == ["SEED: unknown key; did you mean 'seed', which is missing (expected an integer >= 0)?"]


LAYERS = "an integer or a list, each item a list, each item an integer"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{heat: -1, layers: 1}", "heat: expected a number > 0 or 'auto', got the integer -1"),
        ("{heat: atuo, layers: 1}", "heat: expected a number > 0 or 'auto', got the string 'atuo'"),
        ("{heat: 1, layers: [[1], x]}", f"layers: expected {LAYERS}, got a list"),
        ("{heat: 1, layers: null}", f"layers: expected {LAYERS}, got null"),
    ],
)
def test_plain_union_is_one_error_without_tags(text: str, error: str) -> None:
    class Furnace(Config):
        heat: PositiveFloat | Literal["auto"]
        layers: int | list[list[int]]

    (line,) = errors_of(load_yaml(text), model=Furnace)
    assert line == error


def test_key_that_is_no_text_is_an_unknown_key(data: dict[str, Any]) -> None:
    data["evaluations"][0][1] = 2
    data["teacher"] = {1: 2}
    data["players"]["bob"] = {1: 2}
    bob, evaluation, teacher = errors_of(data)
    assert bob == (
        "players.bob: expected either players.bob.algorithm or players.bob.scripted, but all of these keys are missing"
    )
    assert evaluation == "evaluations.0.1: unknown key; known keys: num_games, is_paired"
    assert teacher == ("teacher.name: expected one of 'q', 'policy', 'policy-gradient', but the key is missing")


def test_what_is_no_mapping_at_all_is_told() -> None:
    assert errors_of([1]) == [
        "expected a mapping with the keys seed, players, roles, reward, evaluations, teacher, got a list"
    ]


# ---- unions told by name or key ------------------------------------------------------------------


def test_unknown_name_lists_the_known_ones_nearest_first(data: dict[str, Any]) -> None:
    (error,) = errors_of(data, "players.ann.algorithm.name=polici-gradient")
    assert error == (
        "players.ann.algorithm.name: expected one of 'policy-gradient', 'policy', 'q', got 'polici-gradient'; "
        "did you mean 'policy-gradient'?"
    )


def test_misspelt_key_name_is_told(data: dict[str, Any]) -> None:
    (error,) = errors_of(data, "reward={nmae: win, scale: 1}")
    assert error.startswith("reward.nmae: unknown key; did you mean 'name' (expected one of 'win'")


def test_member_may_have_several_names(data: dict[str, Any]) -> None:
    for name in ("policy", "policy-gradient"):
        config = check(data | {"teacher": {"name": name, "num_passes": 1, "clip_range": 0.5}}, Root)
        assert isinstance(config.teacher, PolicyConfig)


def test_keys_of_two_members_exclude_each_other(data: dict[str, Any]) -> None:
    (error,) = errors_of(data, "players.bob={scripted: first, algorithm: null}")
    assert error == (
        "players.bob: expected a mapping with either algorithm or scripted, got 'scripted' and 'algorithm'"
    )


def test_mapping_without_a_telling_key_is_told_the_dotted_paths(data: dict[str, Any]) -> None:
    (error,) = errors_of(data, "players.bob={}")
    assert error == (
        "players.bob: expected either players.bob.algorithm or players.bob.scripted, but all of these keys are missing"
    )


def test_misspelt_telling_key_is_told(data: dict[str, Any]) -> None:
    (error,) = errors_of(data, "players.bob={scriptd: first}")
    assert error == "players.bob.scriptd: unknown key; did you mean 'scripted'?"


def test_union_of_a_users_whose_members_cannot_be_told_apart_is_refused_where_it_is_defined() -> None:
    class Twin(Config):
        name: Literal["q"]

    with pytest.raises(TypeError, match="expected different names, got 'q' for Twin and QConfig"):
        type("Household", (UserConfig,), {"__annotations__": {"twin": Annotated[QConfig | Twin, ByName()]}})
    with pytest.raises(TypeError, match="expected a key that only Twin has, got none"):
        type("Household", (UserConfig,), {"__annotations__": {"twin": Annotated[QConfig | Twin, ByKey()]}})


def test_a_comment_is_the_string_below_a_field_in_the_class_that_declares_it() -> None:
    class Base(Config):
        kept: int
        """of the base,
        in two lines"""
        hidden: int
        """of the base"""

    class Below(Base):
        hidden: float
        """of the class below"""
        said: Annotated[int, Field(description="by pydantic")]
        """not this"""
        bare: int

    keys = ("kept", "hidden", "said", "bare")
    comments = [comment_of(Below, key) for key in keys]
    assert comments == ["of the base, in two lines", "of the class below", "by pydantic", None]


# ---- classes of the user's own -------------------------------------------------------------------

USER_MODULE = """
from palestra.config import PositiveInt, UserConfig
from test_config import Reward, WinReward

class Bonus(Reward):
    class Config(UserConfig):
        bonus: PositiveInt
        \"\"\"What it adds.\"\"\"

class Bare(Reward): ...

class Stranger: ...

class Twisted(Reward):
    class Config(WinReward, UserConfig): ...

class Straight(Reward):
    class Config(UserConfig, WinReward): ...

    def __init__(self, config, *arguments): self.arguments = arguments
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's own in the current directory, forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    sys.modules["test_config"] = sys.modules[__name__]
    path = tmp_path / "my_rewards.py"
    path.write_text(USER_MODULE)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    return path


def test_a_class_of_the_wrong_base_is_at_fault_and_no_key_of_it(data: dict[str, Any], user_module: Path) -> None:
    overrides = ["reward.name=my_rewards:Bare", "reward.rows=3", "nonsense=1"]
    with pytest.raises(ConfigError) as caught:
        check_overridden(data, overrides, Root)
    keys, base = sorted(caught.value.errors, key=lambda error: error.path)
    assert keys.path == "nonsense"
    assert base.path == "reward.name"
    assert base.message.startswith("expected an attribute Config of 'my_rewards:Bare', a subclass of palestra.")


def test_users_own_class_checks_its_keys_by_its_own_model(data: dict[str, Any], user_module: Path) -> None:
    assert_every_mutation_is_told(apply_overrides(data, ["reward={name: 'my_rewards:Bonus', bonus: 3}"]), Root)


def test_source_of_a_users_own_class_is_hashed(data: dict[str, Any], user_module: Path) -> None:
    config = check(apply_overrides(data, ["reward={name: 'my_rewards:Bonus', bonus: 3}"]), Root)
    hashes = {"my_rewards:Bonus": hashlib.sha256(user_module.read_bytes()).hexdigest()}
    assert user_class_hashes(config) == hashes
    user_module.write_text(USER_MODULE + "\nEDITED = True\n")  # an imported class stays what it was
    assert user_class_hashes(config) == hashes


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "my_reward:Bonus",
            "importing 'my_reward' failed: ModuleNotFoundError: No module named 'my_reward'; looked in",
        ),
        ("my_broken:Bonus", "importing 'my_broken' failed: ZeroDivisionError: division by zero"),
        (
            "my_rewards:Bonsu",
            "expected a class of module 'my_rewards' ('Bonus', 'Bare', 'Twisted', 'Straight'), got 'Bonsu'",
        ),
        ("my_rewards:Stranger", f"expected a subclass of {__name__}.Reward, got 'my_rewards:Stranger'"),
        ("my_rewards:Bare", "expected an attribute Config of 'my_rewards:Bare', a subclass of palestra."),
        ("my rewards:Bonus", "expected 'package.module:Class', got 'my rewards:Bonus'"),
        ("lose", "expected one of 'win', or a class of your own as 'package.module:Class', got 'lose'"),
    ],
)
def test_wrong_name_of_a_users_own_class_is_told(
    data: dict[str, Any], user_module: Path, name: str, error: str
) -> None:
    (line,) = errors_of(data, f"reward={{name: '{name}', bonus: 3}}")
    assert line.startswith(f"reward.name: {error}")


def test_a_users_own_class_is_built_by_its_config(data: dict[str, Any], user_module: Path) -> None:
    config = check(apply_overrides(data, ["reward={name: 'my_rewards:Straight', scale: 3.0}"]), Root).reward
    built = config.build(1, 2)
    assert type(built).__name__ == "Straight"
    assert built.arguments == (1, 2)  # type: ignore[union-attr]


def test_a_config_that_would_build_the_class_it_derives_from_is_refused(
    data: dict[str, Any], user_module: Path
) -> None:
    (line,) = errors_of(data, "reward={name: 'my_rewards:Twisted', scale: 3.0}")
    expected = "expected class Config(UserConfig, WinReward) in 'my_rewards:Twisted'"
    assert line == f"reward.name: {expected}, got one that builds another class"


def test_users_own_class_is_refused_where_the_union_allows_none(data: dict[str, Any], user_module: Path) -> None:
    (error,) = errors_of(data, "players.ann.algorithm.name=my_rewards:Bonus")
    assert error.startswith("players.ann.algorithm.name: expected one of ")
    assert error.endswith(", got 'my_rewards:Bonus'")


def test_class_is_loaded_by_its_name() -> None:
    assert load_class("palestra.config:Config", Config) is Config


# ---- YAML ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("3e-4", 3e-4), ("1e-4", 1e-4), ("1.e5", 1e5), ("-1E+2", -100.0), (".5", 0.5), ("5.", 5.0), ("-0.0", -0.0)],
        *[("12", 12), ("-1", -1), ("0", 0), ("1_000_000", 1_000_000)],
        *[("true", True), ("false", False), ("null", None), ("~", None), ("", None)],
        *[(word, word) for word in ("on", "off", "yes", "no", "y", "True", "NULL")],
        *[(word, word) for word in ("010", "0o17", "0x1F", "1:30", "2024-01-01", "1e", "e5", "1.2.3", "_1", ".")],
        *[("'3'", "3"), ('"true"', "true"), ("a:b", "a:b")],
    ],
)
def test_yaml_scalars_mean_what_they_seem_to(text: str, value: Any) -> None:
    found = load_yaml(f"key: {text}")["key"]
    assert (found, type(found)) == (value, type(value))


def test_yaml_keys_are_text() -> None:
    assert load_yaml("{1: a, on: b, null: c, 1.5: d}") == {"1": "a", "on": "b", "null": "c", "1.5": "d"}


def test_all_duplicate_keys_are_told_with_both_lines() -> None:
    errors = error_in("a: 1\nb:\n  - c: 3\n    c: 4\na: 3").splitlines()
    assert errors == [
        "b.0.c: expected each key once, got it in lines 3 and 4",
        "a: expected each key once, got it in lines 1 and 5",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "config: expected a mapping of keys to values, got nothing"),
        ("# only a comment", "config: expected a mapping of keys to values, got nothing"),
        ("[1, 2]", "config: expected a mapping of keys to values, got a list"),
        ("word", "config: expected a mapping of keys to values, got the string 'word'"),
        ("a: 1\nb: [1", "config: invalid YAML in line 2, column 6"),
        ("a: 1\n---\nb: 2", "config: invalid YAML in line 2, column 1"),
        ("a: \x01", "config: invalid YAML: the character U+0001 at 3"),
        ("a: " + "[" * 5000, "config: invalid YAML: nested too deeply"),
        ("a: &x 3\nb: *x", "config: invalid YAML in line 1, column 4: expected plain values, got an anchor"),
        ("a: {<<: {b: 1}}", "config: invalid YAML in line 1, column 5: expected plain keys, got a merge"),
        (
            "a: !!python/object/apply:os.getcwd []",
            "config: invalid YAML in line 1, column 4: expected a plain value, got a tag",
        ),
        (
            "a: @16",
            "config: invalid YAML in line 1, column 4: found character '@' that cannot start any token; a text that "
            "begins with it needs quotes",
        ),
        ("a: !!str 3", "config: invalid YAML in line 1, column 4: expected a plain value, got a tag"),
        ("? [a]\n: 3", "config: invalid YAML in line 1, column 3: expected text as a key"),
    ],
)
def test_what_is_no_plain_yaml_mapping_is_one_clear_error(text: str, error: str) -> None:
    line = error_in(text)
    assert line.startswith(error)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("missing.yml", None, "there is no such file in "),
        (".", None, "cannot be read: Is a directory"),
        ("latin.yml", "name: Größe".encode("latin-1"), "expected UTF-8 text, got invalid start byte at byte 8"),
    ],
)
def test_unreadable_file_is_one_clear_error(tmp_path: Path, name: str, content: bytes | None, error: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load_yaml(path)
    assert str(raised.value).startswith(f"{path}: {error}")


# ---- overrides -----------------------------------------------------------------------------------


def test_override_replaces_a_value_read_by_the_same_rules(data: dict[str, Any]) -> None:
    overrides = ["evaluations.1.num_games=3_000", "players.ann.algorithm.learning_rate=1e-4", "reward={name: on}"]
    changed = apply_overrides(data, overrides)
    assert changed["evaluations"][1]["num_games"] == 3000
    assert changed["players"]["ann"]["algorithm"]["learning_rate"] == 1e-4
    assert changed["reward"] == {"name": "on"}


def test_overrides_leave_their_input_alone(data: dict[str, Any]) -> None:
    before = copy.deepcopy(data)
    apply_overrides(data, ["evaluations.1.num_games=3", "players.ann.algorithm.net_arch.0=8"])
    assert data == before


@pytest.mark.parametrize("overrides", ["seed=1", {"seed": 1}])
def test_overrides_that_are_no_list_are_told_and_not_read_letter_by_letter(
    data: dict[str, Any], overrides: Any
) -> None:
    with pytest.raises(ConfigError, match=r"^overrides: expected a list of texts, such as \['seed=1'\], got "):
        check_overridden(data, overrides, Root)


def test_all_wrong_overrides_are_told_at_once(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        apply_overrides(
            data, ["gama=0.9", "evaluations.7.num_games=3", "seed.x=1", "teacher.x=1", "seed", "seed=[", "roles.-1=x"]
        )
    assert [(error.path, error.message.split("?")[0]) for error in raised.value.errors] == [
        ("gama", "no such key; did you mean 'players.ann.algorithm.gamma'"),
        ("evaluations.7.num_games", "no such key; did you mean 'evaluations.0.num_games'"),
        ("seed.x", "no such key; did you mean 'seed', which is 0 here and no mapping"),
        ("teacher.x", "no such key, because teacher is null here; give all of it: teacher={...}"),
        ("seed", "expected an override of the form dotted.key=value, got no '='"),
        ("seed", "invalid YAML in line 1, column 2: expected the node content, but found '<stream end>'"),
        ("roles.-1", "no such key; did you mean 'roles'"),
    ]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("lr", "no such key; did you mean 'players.ann.algorithm.learning_rate'?"),
        ("ann.lr", "no such key; did you mean 'players.ann.algorithm.learning_rate'?"),
        ("n_eval_episodes", "no such key; did you mean 'evaluations.0.num_games'?"),
        ("--total-timesteps", "no such key, nor stop.after, as it is called here; at the top there are " + TOP),
        (
            "target_update_interval",
            "no such key, nor target.interval, as it is called here; at the top there are " + TOP,
        ),
        (
            "zzz",
            "no such key, and none like it; at the top there are " + TOP,
        ),
    ],
)
def test_an_unknown_key_is_told_with_one_that_may_be_meant(data: dict[str, Any], key: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        apply_overrides(data, [f"{key}=1"])
    assert str(raised.value) == f"{key}: {told}"


@pytest.mark.parametrize("key", ["gamma", "algorithm.gamma", "ann.algorithm.gamma", "players.ann.algorithm.gamma"])
def test_an_override_may_name_a_key_by_its_last_parts_if_no_other_key_ends_so(data: dict[str, Any], key: str) -> None:
    changed = apply_overrides(data, [f"{key}=.98"])
    assert changed["players"]["ann"]["algorithm"]["gamma"] == 0.98


def test_a_key_that_stands_in_the_file_as_it_is_written_is_meant() -> None:
    data = {"seed": 0, "players": {"ann": {"seed": 1, "best_seed": 2}}}
    assert apply_overrides(data, ["seed=7"]) == {"seed": 7, "players": {"ann": {"seed": 1, "best_seed": 2}}}


def test_an_override_by_last_parts_that_several_keys_end_with_is_told_them_all(data: dict[str, Any]) -> None:
    data["players"]["bob"] = copy.deepcopy(data["players"]["ann"])
    with pytest.raises(ConfigError) as raised:
        apply_overrides(data, ["gamma=0.9", "num_games=3", "bob.algorithm.gamma=0.5", "paired=true"])
    assert str(raised.value).splitlines() == [
        "gamma: expected a key in full, for several end so: players.ann.algorithm.gamma, players.bob.algorithm.gamma",
        "num_games: expected a key in full, for several end so: evaluations.0.num_games, evaluations.1.num_games",
        "paired: no such key; did you mean 'evaluations.0.is_paired' or 'evaluations.1.is_paired'?",
    ]


def test_an_override_adds_an_entry_to_a_mapping_of_entries_as_a_whole(data: dict[str, Any]) -> None:
    config = check_overridden(data, ["players.carl={scripted: first}"], Root)
    assert config.players["carl"] == config.players["bob"]
    for override in ("players.carl=first", "players.carl.scripted=first", "roles.carl=ann"):
        assert "no such key" in errors_of(data, override)[0]
    assert errors_of(data, "players.carl={scriptd: first}") == [
        "players.carl.scriptd: unknown key; did you mean 'scripted'?"
    ]


@pytest.mark.parametrize("key", ["lr", "learnig_rate"])
def test_all_keys_that_may_be_meant_are_told(key: str) -> None:
    data = {"policy_learning_rate": 1, "entropy": {"learning_rate": 2}, "rate": 3}
    with pytest.raises(ConfigError, match=r"did you mean 'policy_learning_rate' or 'entropy.learning_rate'\?$"):
        apply_overrides(data, [f"{key}=0.1"])


def test_a_key_that_ends_another_keys_name_must_be_given_in_full() -> None:
    data = {"policy_learning_rate": 1, "entropy": {"learning_rate": 2}}
    every = "policy_learning_rate, entropy.learning_rate"
    with pytest.raises(ConfigError, match=f"^learning_rate: expected a key in full, for several end so: {every}$"):
        apply_overrides(data, ["learning_rate=3"])
    assert apply_overrides(data, ["entropy.learning_rate=3"])["entropy"] == {"learning_rate": 3}


class Flat(Config):
    name: Literal["flat"]
    value: PositiveFloat
    """The value."""


class Sloped(Config):
    name: Literal["sloped"]
    slope: float
    """The slope."""


class WithRates(Config):
    rates: dict[str, Annotated[Flat | Sloped, ByName(of_number="flat")] | None]
    """A rate each."""
    reward: Annotated[WinReward, ByName()]
    """What it pays."""


RATES: dict[str, Any] = {
    "rates": {"one": {"name": "sloped", "slope": 1}, "none": None},
    "reward": {"name": "win", "scale": 1},
}


def test_in_overrides_a_number_may_stand_for_the_mapping_that_the_model_says(tmp_path: Path) -> None:
    changed = apply_overrides(RATES, ["rates.one=1e-3", "none=2"], WithRates)
    assert changed["rates"] == {"one": {"name": "flat", "value": 1e-3}, "none": {"name": "flat", "value": 2}}
    assert errors_of(RATES, "one=-1", model=WithRates) == ["rates.one.value: expected a number > 0, got -1"]
    for value in ("true", "fast"):
        (error,) = errors_of(RATES, f"one={value}", model=WithRates)
        assert error.startswith("rates.one: expected a mapping with `name`, one of 'flat', 'sloped', got the ")
    assert errors_of(RATES, "one=0,5", model=WithRates)[0].endswith("; write 0.5, with a decimal point")
    (error,) = errors_of(RATES, "reward=3", model=WithRates)
    assert error == "reward: expected a mapping with `name`, one of 'win', got the integer 3"


class OfAnother(Config):
    arguments: dict[str, Any]
    """Of a class that only its author knows."""
    shares: dict[str, float]
    """By the names of players."""


def test_an_override_adds_a_key_where_no_model_knows_the_keys_and_nowhere_else() -> None:
    data: dict[str, Any] = {"arguments": {}, "shares": {"host": 0.5}}
    assert apply_overrides(data, ["arguments.size=5"], OfAnother)["arguments"] == {"size": 5}
    assert data["arguments"] == {}
    for override in ("shares.agent=0.5", "argument.size=5", "arguments.size.deep=5"):
        (error,) = errors_of(data, override, model=OfAnother)
        assert "no such key" in error


def test_in_overrides_a_number_stands_for_the_mapping_inside_of_mappings_too() -> None:
    changed = apply_overrides(RATES, ["rates={one: 2, none: null}"], WithRates)
    assert changed["rates"] == {"one": {"name": "flat", "value": 2}, "none": None}


class Bent(Config):
    name: Literal["bent"]
    slope: float
    """The slope."""
    at: float
    """Where it bends."""

    usual: ClassVar[dict[str, Any]] = {"slope": 1.0, "at": 0.5}


class WithLine(Config):
    line: Annotated[Flat | Sloped | Bent, ByName()]
    """The line."""


SLOPED: dict[str, Any] = {"line": {"name": "sloped", "slope": 3.0}}


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["line=bent"], {"name": "bent", "slope": 1.0, "at": 0.5}),
        (["line.name=bent"], {"name": "bent", "slope": 3.0, "at": 0.5}),
        (["line.name=bent", "line.at=2"], {"name": "bent", "slope": 3.0, "at": 2}),
        (["line.name=flat", "line.value=2"], {"name": "flat", "value": 2}),
        (["line={name: bent, at: 2}"], {"name": "bent", "slope": 1.0, "at": 2}),
        (["line=flat"], "flat"),
    ],
)
def test_a_name_stands_for_the_part_with_its_usual_keys_and_keys_that_its_model_has_may_be_added(
    overrides: list[str], line: Any
) -> None:
    assert apply_overrides(SLOPED, overrides, WithLine)["line"] == line
    assert SLOPED["line"] == {"name": "sloped", "slope": 3.0}


def test_a_key_that_no_model_has_is_still_no_key() -> None:
    with pytest.raises(ConfigError, match=r"^line.at: no such key"):
        apply_overrides(SLOPED, ["line.at=2"], WithLine)
    with pytest.raises(ConfigError, match=r"^line.value: no such key"):
        apply_overrides(SLOPED, ["line.value=2"])


def test_a_number_in_a_file_is_told_the_mapping_to_write() -> None:
    data = {"rates": {"one": 1e-3}, "reward": {"name": "win", "scale": 1}}
    (error,) = errors_of(data, model=WithRates)
    assert error.endswith(", got the float 0.001; write {name: flat, value: 0.001}")


def test_config_is_loaded_from_a_file_with_overrides(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "run.yml"
    path.write_text(TEXT)
    assert load_config(path, ["seed=7"], Root) == check(data | {"seed": 7}, Root)


# ---- printing ------------------------------------------------------------------------------------

PRINTED = """\
seed: 0  # Where all randomness starts.
players:  # Who plays.
  ann:
    algorithm:  # How it learns.
      name: q  # Learns values.
      # Discount per decision of the player, which counts its own decisions alone and none of the
      # ones of others.
      gamma: 0.99
      learning_rate: 0.0003  # Learning rate of the optimizer.
      net_arch: [16, b, 8]  # Hidden layers: a width, or 'b' for batch norm.
      max_norm: null  # Gradients are cut to this norm.
  bob:
    scripted: first  # The script.
roles:  # Who sits where.
  host: ann
  agent: bob
reward:  # What they play for.
  name: win  # Pays at the end.
  scale: 1  # What a win pays.
evaluations:  # Games apart from training.
  - num_games: 100  # Games per pair.
    is_paired: true  # Same starts for all pairs.
  - num_games: 30  # Games per pair.
    is_paired: false  # Same starts for all pairs.
teacher: null  # Whom they imitate.
"""


def test_printed_config_has_every_key_with_its_comment_in_the_models_order(data: dict[str, Any]) -> None:
    assert render(dict(reversed(data.items())), Root) == PRINTED


def test_printed_config_object_reads_back_equal(data: dict[str, Any]) -> None:
    config = check(data, Root)
    assert check(load_yaml(render(config, Root)), Root) == config


def test_long_comment_of_a_list_item_stands_above_its_dash() -> None:
    class Item(Config):
        size: int
        """A size so well described that its comment cannot stand beside it, for the line would then be too long."""

    class Items(Config):
        items: list[Item]
        """Two."""

    assert render({"items": [{"size": 1}, {"size": 2}]}, Items).splitlines()[:4] == [
        "items:  # Two.",
        "  # A size so well described that its comment cannot stand beside it, for the line would then be",
        "  # too long.",
        "  - size: 1",
    ]


def test_what_is_no_config_is_not_printed(data: dict[str, Any]) -> None:
    del data["seed"]
    with pytest.raises(ConfigError, match="seed: expected an integer >= 0, but the key is missing"):
        render(data, Root)


class Box(Config):
    """Holds anything."""

    name: Literal["box"]
    label: str | None
    """A long comment, which goes above its key as soon as it does not fit beside it, whatever the key may hold."""
    numbers: list[float | int | bool | str | None]
    """Scalars of all kinds."""
    rows: list[list[float]]
    """Lists in a list."""
    boxes: dict[str, list[Annotated["Box", ByName()]]]
    """Boxes in the box."""


floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=20) | st.sampled_from(
    ["", "null", "1e5", "on", "a: b", "# no", "[", "0x1", "a:b", "- a", "<<"]
)
boxes = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(
        texts,
        st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.just("box"),
                    "label": st.none() | texts,
                    "numbers": st.lists(floats | st.integers() | st.booleans() | texts | st.none(), max_size=9),
                    "rows": st.lists(st.lists(floats, max_size=5), max_size=5),
                    "boxes": inner,
                }
            ),
            max_size=2,
        ),
        max_size=2,
    ),
    max_leaves=3,
)


def typed(data: dict[str, Any]) -> str:
    """Data in a form in which 1, 1.0 and true differ, and the order of keys does not count."""
    return json.dumps(data, sort_keys=True)


@settings(max_examples=100)
@given(label=texts, boxes=boxes)
@example(label="", boxes={"a" * 128: []})
def test_printed_config_reads_back_equal_by_our_reader_and_by_any_other(label: str, boxes: dict[str, Any]) -> None:
    data = {"name": "box", "label": label, "numbers": [], "rows": [], "boxes": boxes}
    printed = render(data, Box)
    assert typed(load_yaml(printed)) == typed(data)
    assert typed(yaml.safe_load(printed)) == typed(data)


WORD_LIKE = st.from_regex(re.compile(r"[A-Za-z_][\w./-]{0,9}(:[\w./-]{1,5}){0,2}", re.ASCII), fullmatch=True)
OF_YAML = ("null", "NULL", "Null", "true", "True", "yes", "NO", "on", "Off", "y", "e5", "_1", "a:1", "x.inf", "z:=")


@settings(max_examples=200)
@given(st.one_of(WORD_LIKE, st.sampled_from(OF_YAML), st.text(max_size=12)))
def test_a_text_without_quotes_is_one_that_any_reader_takes_for_this_text(text: str) -> None:
    printed = scalar(text)
    assert yaml.safe_load(printed) == text
    assert (printed == text) == (WORD.fullmatch(text) is not None and yaml.safe_load(text) == text)


@pytest.mark.parametrize(
    ("value", "text"), [(1e-8, "1.0e-8"), (2.5e-4, "0.00025"), (-3.5e-12, "-3.5e-12"), (1e16, "1.0e+16"), (0.1, "0.1")]
)
def test_a_float_is_printed_with_a_point_and_a_signed_exponent(value: float, text: str) -> None:
    assert scalar(value) == text


def test_errors_of_overrides_and_of_the_file_are_told_together(tmp_path: Path) -> None:
    class Small(Config):
        steps: PositiveInt
        """how many"""
        rate: Fraction
        """how fast"""

    file = tmp_path / "small.yml"
    file.write_text("steps: 0\nrate: 0.5\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, ["rat=1", "rate=2"], Small)
    assert [error.path for error in caught.value.errors] == ["rat", "steps", "rate"]
