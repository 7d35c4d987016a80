"""What a scenario of text is: labelled questions, what each role sees of them, and what speaks for a verdict.

Those of a user's own are tried before anybody plays: each fault is told in a line.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem, UserConfig, cut, failure, running_own
from palestra.data.table import HALF
from palestra.games.dialogue.protocol import DECISIONS, VERDICTS, Protocol
from palestra.randomness import base_key, global_states, restored_global_states, world_keys
from palestra.text.dialogue import Question


class Drawn(NamedTuple):
    """A question that was drawn: texts by name, and the label, 0 or 1."""

    fields: Mapping[str, str]
    label: int


class TextScenario(ABC):
    """Draws labelled questions, which the roles of a protocol talk about.

    Must be set: `fields`, the names of the texts of a question; `sees`, by role those that it sees. May be set:
    `files`, the SHA-256 of each file that questions come from, by its path: a run is not resumed once one of them has
    changed; `notes`, lines for the user on what may not be meant in them. Must be implemented: `draw`; may be: `argue`,
    `describe`. `__init__` is called with the config and the protocol. A scenario of your own carries its keys as
    `Config`, a UserConfig.
    """

    fields: Sequence[str]
    sees: Mapping[str, Sequence[str]]
    files: Mapping[str, str] = {}
    notes: Sequence[str] = ()

    def __init__(self, config: Any, protocol: Protocol) -> None:
        self.config, self.protocol = config, protocol

    @abstractmethod
    def draw(self, keys: Tensor, held_out: bool) -> list[Drawn]:
        """Draw one question per key.

        keys: int64 (B,), on the CPU, from which all randomness comes (palestra.randomness). held_out: those that
        training never draws, for evaluations; a scenario whose training may draw any question need not tell them apart.
        """

    def argue(self, question: Question, verdict: int) -> str:
        """Return what scripted players say for a verdict; it must not tell which verdict is right.

        An honest player argues for the label.
        """
        return f"The right answer is to {DECISIONS[verdict]}."

    def describe(self, question: Question) -> str:
        """Describe a question as people read it in one line."""
        return "; ".join(f"{name}: {' '.join(text.split())}" for name, text in question.fields.items())


NUM_DRAWS = 100


class _Raised(Exception):
    """A method has raised: nothing else of the scenario can be tried."""


def make_text_scenario(config: Any, protocol: Protocol) -> TextScenario:
    """Make the scenario of a config.

    Raises ConfigError, with paths relative to it, for one that cannot be made; one of the user's own is tried.
    """
    if not isinstance(config, UserConfig):
        return config.build(protocol)
    with running_own("", f"{config.name!r} cannot be made"):
        scenario = config.build(protocol)
    with restored_global_states():
        found: dict[str, str] = {}
        try:
            for method, fault in _faults(scenario, protocol):
                found.setdefault(method, fault)
        except _Raised as raised:
            found.setdefault(*raised.args)
    name = type(scenario).__name__
    ConfigError.require_none(ConfigErrorItem("", f"{name}.{method}: {fault}") for method, fault in found.items())
    return scenario


def _call(scenario: TextScenario, method: str, *arguments: Any) -> Any:
    try:
        return getattr(scenario, method)(*arguments)
    except Exception as error:
        raise _Raised(method, f"raises {failure(error)}") from error


def _faults(scenario: TextScenario, protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Give what is wrong with a scenario: an attribute or method, and its fault."""
    before = list(_faults_of_attributes(scenario, protocol))
    yield from before
    if before:
        return
    for held_out in (False, True):
        keys = world_keys(base_key(0, f"text scenario try-out {held_out}"), NUM_DRAWS, torch.device("cpu"))
        kept, random_before = keys.clone(), global_states()
        drawn = _call(scenario, "draw", keys, held_out)
        if global_states() != random_before:
            yield "draw", "expected chance from its keys alone, got numbers from a global random generator"
        faults = list(_faults_of_drawn(scenario, drawn))
        yield from faults
        if faults:
            return
        if not torch.equal(keys, kept):
            yield "draw", "expected its keys to stay as they were, got other ones"
        if _call(scenario, "draw", kept.clone(), held_out) != drawn:
            yield "draw", "expected the same questions for the same keys, got others at a second call"
        if _call(scenario, "draw", kept[-1:].clone(), held_out) != drawn[-1:]:
            yield "draw", "expected a question to come out alone as it does among others, got another one"
        for question in (Question(number, *each) for number, each in enumerate(drawn)):
            for method, more in (("describe", ()), *(("argue", (v,)) for v in VERDICTS if v is not None)):
                text = _call(scenario, method, question, *more)
                if not isinstance(text, str) or not text.strip():
                    yield method, f"expected a text, got {cut(repr(text))}"


def _faults_of_attributes(scenario: TextScenario, protocol: Protocol) -> Iterator[tuple[str, str]]:
    fields, sees = getattr(scenario, "fields", None), getattr(scenario, "sees", None)
    if not isinstance(fields, list | tuple) or not all(isinstance(name, str) for name in fields):
        yield "fields", f"expected a tuple of names, got {cut(repr(fields))}"
        return
    if not isinstance(sees, dict) or sees.keys() != set(protocol.roles):
        yield "sees", f"expected a dict with the roles {', '.join(protocol.roles)}, got {cut(repr(sees))}"
        return
    for role, names in sees.items():
        for name in names:
            if name not in fields:
                yield "sees", f"expected fields ({', '.join(fields)}) for {role!r}, got {cut(repr(name))}"


def _faults_of_drawn(scenario: TextScenario, drawn: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(drawn, list) or len(drawn) != NUM_DRAWS:
        got = f"{len(drawn)}" if isinstance(drawn, list) else f"{cut(repr(drawn))}"
        yield "draw", f"expected a list of a question per key ({NUM_DRAWS}), got {got}"
        return
    for each in drawn:
        if not isinstance(each, tuple) or len(each) != 2 or not isinstance(each[0], dict):
            yield "draw", f"expected questions as (texts by name, label), got {cut(repr(each))}"
            return
        texts, label = each
        if texts.keys() != set(scenario.fields) or not all(isinstance(text, str) for text in texts.values()):
            yield "draw", f"expected a text for each of {', '.join(scenario.fields)}, got {cut(repr(texts))}"
        elif any(HALF.search(text) for text in texts.values()):
            yield "draw", f"expected texts that UTF-8 can write, got {cut(repr(texts))}"
        if type(label) is not int or label not in (0, 1):
            yield "draw", f"expected the labels to be 0 or 1, got {cut(repr(label))}"
