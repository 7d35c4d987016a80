"""Makes protocols and scenarios, and tries those of a user's own before anybody plays.

What is wrong with them is told in a line each.

Letters: B worlds, T rounds, C channels.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import torch
from torch import Tensor

from palestra.config import ConfigError, ConfigErrorItem, UserConfig, below, cut, failure, running_own
from palestra.config.validation import checked
from palestra.games.dialogue.protocol import VERDICTS, Protocol, RewardsConfig, faults_of_names, faults_of_turns
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.scenario import OWN_ENTRIES, Scenario
from palestra.games.spaces import Space
from palestra.games.tryout_calls import CannotGoOn, CheckedCalls, described, is_tuple_of, num_worlds_unlike
from palestra.randomness import base_key, fold, random_integers, restored_global_states, world_keys

NUM_DRAWS = 500  # of which the labels are looked at


def make_protocol(config: Any) -> Protocol:
    """Make the protocol of a config. Raises ConfigError, with paths relative to it, for one that cannot be played."""
    with running_own("", f"{config.name!r} cannot be made"):
        protocol: Protocol = config.build()
        is_own = isinstance(config, UserConfig)
        faults = _told(protocol, _attribute_faults(protocol)) if is_own else []
        faults = faults or faults_of_names(protocol)
        faults = faults or (_told(protocol, _method_faults(protocol)) if is_own else [])
        faults = faults or list(faults_of_turns(protocol))
    ConfigError.require_none(ConfigErrorItem("", fault) for fault in faults)
    return protocol


def first_protocol(said: Mapping[str, Any]) -> Protocol | None:
    """Make the protocol of a first file, `nip` if it names none; None if keys of it are missing.

    said: what the file says of the game. Raises ConfigError.
    """
    with below("protocol"):
        config = checked(said.get("protocol", "nip"), AnyProtocolConfig)
        return None if config is None else make_protocol(config)


def make_scenario(config: Any, protocol: Protocol, device: torch.device) -> Scenario:
    """Make the scenario of a config.

    Raises ConfigError, with paths relative to it, for one that cannot be made; one of the user's own is tried.
    """
    if not isinstance(config, UserConfig):
        return config.build(protocol, device)
    with running_own("", f"{config.name!r} cannot be made"):
        scenario: Scenario = config.build(protocol, device)
    tryout = ScenarioTryOut(scenario, protocol)
    with restored_global_states(), torch.no_grad(), suppress(CannotGoOn):
        tryout.play()
    name = type(scenario).__name__
    ConfigError.require_none(ConfigErrorItem("", f"{name}.{method}: {told}") for method, told in tryout.faults.values())
    return scenario


# ---- protocols -----------------------------------------------------------------------------------------


def _told(protocol: Protocol, faults: Iterator[tuple[str, str]]) -> list[str]:
    """Write a line for each attribute or method: its first fault."""
    found: dict[str, str] = {}
    for name, fault in faults:
        found.setdefault(name, fault)
    return [f"{type(protocol).__name__}.{name}: {fault}" for name, fault in found.items()]


def _attribute_faults(protocol: Protocol) -> Iterator[tuple[str, str]]:
    def is_count(value: Any) -> bool:
        return type(value) is int and value >= 1

    expected: dict[str, tuple[str, Any]] = {
        "roles": ("a tuple of different names", lambda v: is_tuple_of(v, str) and v and len(set(v)) == len(v)),
        "verifiers": ("a tuple of roles", lambda v: is_tuple_of(v, str)),
        "channels": (
            "a mapping from names of channels to tuples of roles",
            lambda v: isinstance(v, Mapping) and all(isinstance(c, str) and is_tuple_of(s, str) for c, s in v.items()),
        ),
        "sides": (
            "a mapping from provers to 0 (reject) or 1 (accept), or a tuple of one for each variant",
            lambda v: isinstance(v, Mapping),
        ),
        "num_variants": ("an integer >= 1", is_count),
        **dict.fromkeys(("min_rounds", "max_rounds"), ("an integer >= 1 (super().__init__ sets it)", is_count)),
        "rewards": ("the RewardsConfig of its config", lambda v: isinstance(v, RewardsConfig)),
    }
    for name, (what, fits) in expected.items():
        value = getattr(protocol, name, None)
        if not fits(value):
            yield name, f"expected {what}, got {cut(repr(value))}"


def _method_faults(protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Ask a protocol all that the game asks; give each method that fails, with what is wrong with its answer."""
    flag, number = "True or False", "a finite number"
    for t, k in protocol.moments():
        when = f"in round {t}" + (f" of variant {k}" if protocol.num_variants > 1 else "")
        for role, channel in product(protocol.roles, protocol.channels):
            yield from _answer_fault(protocol, "speaks", (role, channel, t, k), flag, f"{role!r} in {channel!r} {when}")
        for verifier, method in product(protocol.verifiers, ("is_active", "may_decide")):
            yield from _answer_fault(protocol, method, (verifier, t, k), flag, f"{verifier!r} {when}")
    for verifier in protocol.verifiers:
        yield from _answer_fault(protocol, "paid_for", (verifier,), "a tuple of roles", repr(verifier))
    variants = range(protocol.num_variants)
    for verdicts, label, k in product(product(VERDICTS, repeat=len(protocol.verifiers)), (0, 1), variants):
        by_verifier = dict(zip(protocol.verifiers, verdicts, strict=True))
        for role in protocol.roles:
            where = f"{role!r} with the verdicts {by_verifier} and the label {label}"
            where += f" in variant {k}" if len(variants) > 1 else ""
            yield from _answer_fault(protocol, "reward", (role, by_verifier, label, k), number, where)


def _answer_fault(
    protocol: Protocol, method: str, arguments: tuple[Any, ...], expected: str, where: str
) -> Iterator[tuple[str, str]]:
    try:
        first, second = (getattr(protocol, method)(*arguments) for _ in range(2))
    except Exception as error:
        yield method, f"raises {failure(error)} for {where}"
        return
    fits = {
        "reward": lambda: isinstance(first, int | float) and not isinstance(first, bool) and math.isfinite(first),
        "paid_for": lambda: isinstance(first, tuple) and all(role in protocol.roles for role in first),
    }.get(method, lambda: isinstance(first, bool))
    if not fits():
        yield method, f"expected {expected} for {where}, got {cut(repr(first))}"
    elif first != second:
        yield method, f"expected the same answer at every call for {where}, got {first!r} and {second!r}"


# ---- scenarios -----------------------------------------------------------------------------------------


class ScenarioTryOut(CheckedCalls):
    """One scenario, asked for a few instances to find its faults.

    Every call is made twice, and once more for one of the worlds alone.
    """

    def __init__(self, scenario: Scenario, protocol: Protocol) -> None:
        super().__init__(scenario)
        self.scenario, self.protocol = scenario, protocol

    def play(self) -> None:
        num_tokens = getattr(self.scenario, "num_tokens", None)
        if type(num_tokens) is not int or num_tokens < 1:
            self.fault("num_tokens", "an integer >= 1", repr(num_tokens))
            raise CannotGoOn
        spaces = {role: self._spaces(role) for role in self.protocol.roles}
        sizes = {size for entries in spaces.values() for space in entries.values() for size in space.shape}
        num_worlds = num_worlds_unlike(sizes)
        for held_out in (False, True):
            keys = world_keys(base_key(0, f"scenario try-out {held_out}"), num_worlds, self.scenario.device)
            instances = self._draw(fold(keys, 0), held_out)
            for place, (role, entries) in enumerate(spaces.items()):
                messages = self._messages(role, fold(keys, place + 1))
                found = self.call("view", instances, role, messages)
                self.check_observation("view", role, found, entries, "spaces", num_worlds, (instances, messages))
            keys = world_keys(base_key(1, f"scenario labels {held_out}"), NUM_DRAWS, self.scenario.device)
            _, label = self.attempt("draw", keys, held_out)
            wrong = label[(label != 0) & (label != 1)]
            if len(wrong):
                self.fault("draw", "the labels to be 0 or 1", str(int(wrong[0])))
            one = {name: value[0] for name, value in instances.items()}
            for method, argument in (("describe", one), ("describe_token", 0)):
                found = self.attempt(method, argument)
                if not isinstance(found, str):
                    self.fault(method, "a text", described(found))

    def _spaces(self, role: str) -> dict[str, Space]:
        found = self.attempt("spaces", role)
        if not isinstance(found, dict) or not all(isinstance(space, Space) for space in found.values()):
            self.fault("spaces", f"for {role!r} a dict of Space by name", described(found))
            raise CannotGoOn
        for name in OWN_ENTRIES:
            if name in found:
                self.fault("spaces", f"other entries than {', '.join(OWN_ENTRIES)}, which the game adds", repr(name))
                raise CannotGoOn
        return found

    def _draw(self, keys: Tensor, held_out: bool) -> dict[str, Tensor]:
        found, B = self.call("draw", keys, held_out), len(keys)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], dict)):
            self.fault("draw", "a tuple of instances, a dict of tensors by name, and labels", described(found))
            raise CannotGoOn
        instances, label = found
        is_sound = self.check_tensor("draw", "the labels to be ", label, torch.int64, (B,))
        is_sound &= self.check_worlds("draw", instances, B)
        named = {"the labels": label, **{repr(name): value for name, value in instances.items()}}
        for name, value in named.items() if is_sound else ():
            if value.stride(0) == 0:  # a world that begins anew would write to all of them
                self.fault("draw", f"{name} to have memory for each world", "one memory, as expand makes it")
        if not is_sound:
            raise CannotGoOn
        return instances

    def _messages(self, role: str, keys: Tensor) -> Tensor:
        """Draw tokens, or silence (-1), for the channels that the role sees: int64 (B, T, C)."""
        num_channels = sum(role in seen_by for seen_by in self.protocol.channels.values())
        shape = (len(keys), self.protocol.max_rounds, num_channels)
        return random_integers(keys, shape[1] * shape[2], self.scenario.num_tokens + 1).view(shape) - 1
