"""The patches of ``make mutants`` fit the product as it is, and name tests that are there."""

from __future__ import annotations

import shlex
from collections import Counter

import pytest
from tests.mutants.__main__ import MUTANTS, PAGE, PARTS, PRODUCT, ROOT, Mutant, applies, load, render


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_patch_applies_to_the_product_and_names_tests(mutant: Mutant) -> None:
    assert applies(mutant)
    files = [line.split()[2] for line in mutant.file.read_text().splitlines() if line.startswith("diff --git")]
    assert [file for file in files if not file.removeprefix("a/").startswith(PRODUCT)] == []
    assert mutant.expects
    missing = [shlex.split(expected)[0] for expected in mutant.expects]
    assert [path for path in missing if not (ROOT / path).exists()] == []


def test_each_part_has_ten_mutants() -> None:
    assert Counter(mutant.part for mutant in MUTANTS) == dict.fromkeys(PARTS, 10)


def test_page_has_what_is_on_record_of_each_mutant() -> None:
    assert PAGE.read_text() == render(load())
