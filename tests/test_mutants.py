"""The list of mutants fits the code; `make mutants` runs all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.harness import ROOT, Area, Fate, Mutant, copy_of_the_code, fate_of, mutated
from tests.mutants.listed import EXPLAINED, MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_has_its_place_and_its_tests(mutant: Mutant) -> None:
    """A rule that was rewritten takes its mutant along."""
    source = (ROOT / mutant.file).read_text()
    compile(mutated(mutant, source), mutant.file, "exec")
    assert mutant.tests
    assert all((ROOT / path).exists() for path in mutant.tests)


def test_the_list_is_long_enough_and_its_names_are_its_own() -> None:
    areas = Counter(each.area for each in MUTANTS)
    assert sum(areas.values()) >= 60
    assert min(areas[area] for area in Area) >= 10
    names = {each.name for each in MUTANTS}
    assert len(names) == len(MUTANTS)
    assert names >= EXPLAINED.keys()


def test_a_mistake_is_noticed_and_another_text_is_not_one(tmp_path: Path) -> None:
    mistake = next(each for each in MUTANTS if each.name == "any-reply-confirms")
    comment = Mutant(
        "comment", mistake.area, mistake.file, "class OrderGate:", "class OrderGate:  # so", mistake.tests
    )
    with copy_of_the_code(tmp_path) as copy:
        before = (copy / mistake.file).read_text()
        assert fate_of(mistake, copy, 120) is Fate.NOTICED
        assert fate_of(comment, copy, 120) is Fate.SURVIVED
        assert (copy / mistake.file).read_text() == before


def test_a_text_that_is_not_there_is_no_mutant() -> None:
    with pytest.raises(ValueError, match="0 times"):
        mutated(Mutant("gone", Area.STORE, "x.py", "not there", "", ("tests",)), "source")
