"""A mutant: one mistake in one file, and the tests that must notice it."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """file: below the root. old: stands there exactly once; new takes its place. tests: files or node ids.
    equal_because: why nothing can notice it; None of a mistake that is to be noticed."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equal_because: str | None = None

    def __str__(self) -> str:
        return f"{self.file}: {_short(self.old)} -> {_short(self.new)}"


def _short(text: str) -> str:
    return " ".join(text.split()) or "nothing"


def mutants(file: str, tests: str, *edits: tuple[str, str]) -> list[Mutant]:
    """Of one file and the tests for it, separated by spaces."""
    return [
        Mutant(f"palestra/{file}", old, new, tuple(f"tests/{test}" for test in tests.split())) for old, new in edits
    ]


def equal_mutant(file: str, tests: str, old: str, new: str, because: str) -> Mutant:
    """One that survives: the program does the same with it."""
    (mutant,) = mutants(file, tests, (old, new))
    return Mutant(mutant.file, old, new, mutant.tests, because)
