"""The table of mutants fits the tree: `make mutants` runs them, and takes most of an hour."""

import ast

import pytest

from tests.mutants.mutant import ROOT
from tests.mutants.table import MUTANTS


def test_there_are_about_150_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= 150
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_a_mutant_changes_one_place_of_a_file_that_stays_python(file: str) -> None:
    text = (ROOT / file).read_text()
    program = ast.dump(ast.parse(text))
    for mutant in MUTANTS:
        if mutant.file == file:
            assert text.count(mutant.old) == 1, mutant
            assert ast.dump(ast.parse(text.replace(mutant.old, mutant.new))) != program, f"the same program: {mutant}"


def test_the_tests_that_must_notice_a_mutant_are_there() -> None:
    texts = {path: path.read_text() for path in {ROOT / test.partition("::")[0] for m in MUTANTS for test in m.tests}}
    for mutant in MUTANTS:
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in texts[ROOT / file], mutant
