"""The table of mutants fits the tree: `make mutants` runs them, and takes most of an hour."""

import ast

import pytest

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.table import MUTANTS

every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=str)


def test_there_are_about_150_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= 150
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@every_mutant
def test_a_mutant_changes_one_place_of_a_file_that_stays_python(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    mutated = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text)), "expected another program"


@every_mutant
def test_the_tests_that_must_notice_a_mutant_are_there(mutant: Mutant) -> None:
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()
