"""`claims`: is a letter in a string? As "k is in qwkr". Generated; evaluations have strings that training never draws.

Letters: B keys, A letters of the alphabet, L letters of a string.
"""

from collections.abc import Mapping
from itertools import islice, permutations
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from palestra.config import Config, ConfigError, PositiveInt
from palestra.games.dialogue.protocol import ACCEPT, Protocol
from palestra.games.dialogue.rows import faults_of_roles
from palestra.randomness import base_key, fold, random_bits, random_floats, random_integers
from palestra.text.dialogue import Question
from palestra.text.scenarios.scenario import Drawn, TextScenario

FIELDS = ("letter", "string")
MANY_STRINGS = 10_000  # so many always have some on both sides of the split
MOST_LENGTH = 12  # strings are numbered in 64 bits


class ClaimsConfig(Config):
    name: Literal["claims"]
    """is a letter in a string? Strings are generated, and no letter stands twice in one"""
    letters: Annotated[str, Field(min_length=2, max_length=36)]
    """the letters of which strings are made, each once"""
    length: Annotated[PositiveInt, Field(le=MOST_LENGTH)]
    """how many letters a string has, fewer than there are"""
    sees: dict[str, list[Literal["letter", "string"]]]
    """what each role sees of the question; []: nothing"""
    held_out: Annotated[float, Field(ge=0.01, le=0.99)]
    """the share of the strings that evaluations draw, and training never does"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], protocol: Protocol | None) -> dict[str, Any]:
        usual = {"letters": "abcdefghijklmnopqrstuvwxyz", "length": 4, "held_out": 0.2}
        return usual | {"sees": {role: [*FIELDS] for role in (protocol.roles if protocol else ())}}

    @model_validator(mode="after")
    def _check_letters(self) -> "ClaimsConfig":
        if len(set(self.letters)) < len(self.letters) or not self.letters.isprintable() or " " in self.letters:
            raise ConfigError.at("letters", f"expected different printed letters, got {self.letters!r}")
        if self.length >= len(self.letters):
            message = f"expected fewer than there are letters ({len(self.letters)}), got {self.length}"
            raise ConfigError.at("length", message)
        return self

    def build(self, protocol: Protocol) -> "Claims":
        return Claims(self, protocol)


class Claims(TextScenario):
    """Questions with the fields `letter` and `string`; the label says whether the letter is in the string.

    Half of the letters are; where the letter stands is uniform, and so is a letter that does not. A string is held out
    by a hash of its letters.
    """

    fields = FIELDS

    def __init__(self, config: ClaimsConfig, protocol: Protocol) -> None:
        super().__init__(config, protocol)
        ConfigError.require_none(faults_of_roles(config.sees, protocol))
        self.sees = config.sees
        some = list(islice(permutations(range(len(config.letters)), config.length), MANY_STRINGS))
        is_held_out = self._is_held_out(torch.tensor(some))
        if is_held_out.all() or not is_held_out.any():
            got = f"{int(is_held_out.sum())} of {len(some)} held out"
            raise ConfigError.at("held_out", f"expected strings for training and for evaluations, got {got}")

    def _is_held_out(self, strings: Tensor) -> Tensor:
        """Tell which strings are held out: bool (B,). strings: int64 (B, L), of letters by number."""
        places = 36 ** torch.arange(strings.shape[1])
        keys = fold(torch.full((len(strings),), base_key(0, "claims/held out")), (strings * places).sum(dim=1))
        return random_floats(keys, 1)[:, 0] < self.config.held_out

    def draw(self, keys: Tensor, held_out: bool) -> list[Drawn]:
        L, label = self.config.length, random_integers(fold(keys, 0), 1, 2)[:, 0]
        orders = torch.empty((len(keys), len(self.config.letters)), dtype=torch.int64)
        missing, attempt = torch.arange(len(keys)), 2
        while len(missing):  # a string of the other side is drawn anew
            found = random_bits(fold(keys[missing], attempt), orders.shape[1]).argsort(dim=1)
            orders[missing] = found
            missing, attempt = missing[self._is_held_out(found[:, :L]) != held_out], attempt + 1
        place = torch.where(label == ACCEPT, random_integers(fold(keys, 1), 1, L)[:, 0], L)
        letters = self.config.letters
        return [
            Drawn({"letter": letters[order[at]], "string": "".join(letters[i] for i in order[:L])}, is_in)
            for order, at, is_in in zip(orders.tolist(), place.tolist(), label.tolist(), strict=True)
        ]

    def argue(self, question: Question, verdict: int) -> str:
        """Say where the letter stands, as "letter 3", or "nowhere".

        Where the letter stands nowhere, the place is made up: it comes from the string, and is uniform like true ones.
        """
        if verdict != ACCEPT:
            return "nowhere"
        letter, string = question.fields["letter"], question.fields["string"]
        place = string.find(letter)
        if place < 0:
            numbers = torch.tensor([self.config.letters.index(each) for each in letter + string])
            key = fold(
                torch.tensor([base_key(0, "claims/made up")]), (numbers * 36 ** torch.arange(len(numbers))).sum()
            )
            place = int(random_integers(key, 1, len(string))[0, 0])
        return f"letter {place + 1}"

    def describe(self, question: Question) -> str:
        return f"{question.fields['letter']} is in {question.fields['string']}"
