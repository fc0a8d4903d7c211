"""The table of what does not go together: the documentation is written from it, and each row has a case."""

from __future__ import annotations

import re
from itertools import groupby
from operator import itemgetter

import pytest
from tests.fixtures.golden import sections

from sluice.pipeline.support import documented
from sluice.shipped import CHECKOUT

assert CHECKOUT
PAGE = CHECKOUT / "docs" / "support.md"
HEAD = """\
# What does not go together

What one section of a pipeline file cannot have beside another one, and what a run, a command or the Arrow path cannot
do with it. The file, the command and the trigger form are refused by the same table, in these words. An ellipsis stands
for what your file says.

`pytest --update-golden -n0 tests/unit/pipeline/test_support.py` writes this page.
"""


def test_support_page_is_the_table(request: pytest.FixtureRequest) -> None:
    page = HEAD
    for feature, rows in groupby(sorted(documented(), key=itemgetter(0)), key=itemgetter(0)):
        page += f"\n## {feature}\n\n| not with | why, and the way out |\n|---|---|\n"
        page += "".join(f"| {beside} | {told} |\n" for _, beside, told in rows)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page


OF_A_PACKAGE = {"no transactions", "a sink that is not read back", "a source that finds no offsets by time"}
"""No built-in kind is so; ``tests/chaos/test_toy.py`` has a package whose kinds are."""


def test_support_limit_has_a_file_that_it_refuses() -> None:
    said = "\n".join(" ".join(text.split()) for name in ("check", "possible") for text in sections(name).values())
    untested = [
        (feature, beside)
        for feature, beside, told in documented()
        if feature != "the Arrow path"
        and beside not in OF_A_PACKAGE
        and not re.search(".+?".join(map(re.escape, told.replace("sink.…", "…").split("…"))), said)
    ]
    assert untested == []
