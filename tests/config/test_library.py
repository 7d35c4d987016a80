"""A class of a library is named by its path, with all the arguments of its signature."""

import inspect
from typing import Annotated, Any, ClassVar

import pytest

from palestra.config import ByName, Config, ConfigError, LibraryClass, UserConfig, apply_overrides, check


class Decoder(LibraryClass):
    library = "json.decoder"
    base = "json.decoder:JSONDecoder"
    not_said: ClassVar[dict[str, str]] = {"strict": "it is never asked for"}

    name: str
    """a decoder"""
    arguments: dict[str, Any]
    """what it is called with"""


class Own:
    """What the user's own parts of this kind derive from."""


class Holder(Config):
    part: Annotated[Decoder | UserConfig, ByName(user_class=Own)]
    """a decoder, or one's own"""


USUAL: dict[str, Any] = {
    "name": "json.decoder:JSONDecoder",
    "arguments": dict.fromkeys(("object_hook", "parse_float", "parse_int", "parse_constant", "object_pairs_hook")),
}


def part(data: dict[str, Any]) -> Decoder:
    found = check({"part": data}, Holder).part
    assert isinstance(found, Decoder)
    return found


def faults(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        part(data).called_with()
    return {item.path: item.message for item in caught.value.errors}


def test_the_path_alone_stands_for_the_class_with_its_usual_arguments_in_an_override() -> None:
    assert apply_overrides({"part": {}}, ["part=json.decoder:JSONDecoder"], Holder) == {"part": USUAL}
    assert part(USUAL).called_with() == USUAL["arguments"]


def test_arguments_that_are_missing_unknown_or_not_said_are_named() -> None:
    arguments = {key: value for key, value in USUAL["arguments"].items() if key != "parse_int"}
    assert faults(USUAL | {"arguments": arguments | {"parse_flaot": None, "strict": True}}) == {
        "arguments.parse_int": "expected a value (usually null), but the key is missing",
        "arguments.parse_flaot": "unknown argument of json.decoder:JSONDecoder; did you mean 'parse_float'?",
        "arguments.strict": "expected no such key, because it is never asked for",
    }


def test_a_class_that_is_none_is_named_with_the_nearest() -> None:
    expected = "expected a class of json.decoder that derives from JSONDecoder, got 'json.decoder:JSONDecodre'"
    assert faults(USUAL | {"name": "json.decoder:JSONDecodre"}) == {
        "name": f"{expected}; did you mean 'json.decoder:JSONDecoder'?"
    }


@pytest.mark.parametrize(
    ("annotation", "value", "fits"),
    [
        ("int", 3, True),
        ("int", True, False),
        ("float | None", 3, True),
        ("float | None", "3", False),
        ("tuple[int, int]", [3, 4], True),
        ("int | tuple[int, ...]", [3, 4], True),
        ("tuple[int, int]", 3, False),
        ("tuple[int, int]", [3, "4"], False),
        ("Sequence[str | int]", ["3", 4], True),
        ("np.ndarray | int", "3", True),  # nobody knows what that takes
        (float | None, None, True),
        (bool, 0, False),
    ],
)
def test_values_are_of_the_types_that_plain_annotations_name(annotation: Any, value: Any, fits: bool) -> None:
    class Annotated(Decoder):
        @classmethod
        def parameters(cls, found: Any) -> dict[str, inspect.Parameter]:
            return {"own": inspect.Parameter("own", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)}

    config = Annotated(name="json.decoder:JSONDecoder", arguments={"own": value})
    if fits:
        assert config.called_with() == {"own": tuple(value) if isinstance(value, list) else value}
        return
    place = r"own.1" if isinstance(value, list) else "own"
    with pytest.raises(
        ConfigError, match=rf"arguments.{place}: expected (int|float \| None|tuple\[int, int\]|bool), got "
    ):
        config.called_with()
