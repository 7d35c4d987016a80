"""`code_validation`: does a small program do what its task says? 60 programs, each right and with a planted bug.

The programs are text alone: nothing of palestra ever runs them. They lie in programs/*.yml, each with the line of its
bug, and with checks by which a test has proven the labels. B keys.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple

import torch
import yaml
from pydantic import Field
from torch import Tensor

from palestra.config import Config
from palestra.games.dialogue.protocol import ACCEPT, Protocol
from palestra.randomness import base_key, fold, random_bits, random_integers
from palestra.text.dialogue import Question
from palestra.text.scenarios.scenario import Drawn, TextScenario

FIELDS = ("task", "program")


class Program(NamedTuple):
    """A program, right and with a bug.

    task: what it should do. versions: its text by label, which differs in one line: 0 has the bug. line: the number of
    that line, from 1. checks: expressions of Python that are all true of the right version, but not of the other one;
    `raises`, `run` and `changed` in them are functions of the test.
    """

    name: str
    task: str
    versions: tuple[str, str]
    line: int
    checks: tuple[str, ...]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Program":
        """Make a program of its entry in a file; `bug` stands in place of `line` in the version that has it."""
        lines = data["program"].rstrip("\n").split("\n")
        [place] = (number for number, line in enumerate(lines) if line.strip() == data["line"])
        wrong = lines[place].replace(data["line"], data["bug"])
        versions = "\n".join([*lines[:place], wrong, *lines[place + 1 :]]), "\n".join(lines)
        return cls(data["name"], data["task"], versions, place + 1, tuple(data["checks"]))


@cache
def programs() -> tuple[Program, ...]:
    """Read all programs, in the order of their files."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    folder = files("palestra.text.scenarios") / "programs"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yml"))
    texts = [(folder / name).read_text(encoding="utf-8") for name in names]
    return tuple(Program.read(data) for text in texts for data in yaml.load(text, Loader=loader))


class CodeValidationConfig(Config):
    name: Literal["code_validation"]
    """does a small program do what its task says? 60 programs of palestra, each right and with a bug; none is run"""
    sees: dict[str, list[Literal["task", "program"]]]
    """what each role sees of the question; []: nothing"""
    held_out: Annotated[float, Field(ge=0.05, le=0.95)]
    """the share of the programs that evaluations draw, and training never does; both versions of each"""

    @classmethod
    def usual(cls, said: Mapping[str, Any], protocol: Protocol | None) -> dict[str, Any]:
        return {"held_out": 0.2, "sees": {role: [*FIELDS] for role in (protocol.roles if protocol else ())}}

    def build(self, protocol: Protocol) -> "CodeValidation":
        return CodeValidation(self, protocol)


class CodeValidation(TextScenario):
    """Questions with the fields `task` and `program`; the label says whether the program is right.

    Programs and labels are drawn uniformly.
    """

    fields = FIELDS

    def __init__(self, config: CodeValidationConfig, protocol: Protocol) -> None:
        super().__init__(config, protocol)
        self.sees = config.sees
        found = programs()
        # none of a run's randomness: another seed shall hold out the same programs
        order = random_bits(torch.tensor([base_key(0, "code_validation/held out")]), len(found))[0].argsort().tolist()
        num_held_out = round(config.held_out * len(found))
        self.programs = {
            True: [found[place] for place in sorted(order[:num_held_out])],
            False: [found[place] for place in sorted(order[num_held_out:])],
        }
        self._of_text = {text: each for each in found for text in each.versions}
        texts = "\n".join(f"{each.task}\n{text}" for each in found for text in each.versions)
        self.files = {"code_validation": hashlib.sha256(texts.encode()).hexdigest()}

    def draw(self, keys: Tensor, held_out: bool) -> list[Drawn]:
        among = self.programs[held_out]
        labels = random_integers(fold(keys, 0), 1, 2)[:, 0].tolist()
        chosen = [among[place] for place in random_integers(fold(keys, 1), 1, len(among))[:, 0].tolist()]
        return [
            Drawn({"task": each.task, "program": each.versions[label]}, label)
            for each, label in zip(chosen, labels, strict=True)
        ]

    def argue(self, question: Question, verdict: int) -> str:
        """Name the line of the bug, as "Line 7 is wrong: `if length > 1:`"; in a right program the same line."""
        if verdict == ACCEPT:
            return "The program does what the task says: I have followed every line."
        line = self._of_text[question.fields["program"]].line
        text = question.fields["program"].split("\n")[line - 1].strip()
        return f"Line {line} is wrong: `{text}`"

    def describe(self, question: Question) -> str:
        return self._of_text[question.fields["program"]].name
