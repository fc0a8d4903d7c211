"""The quarantine, by rule."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.showcase import quarantine

from sluice.delta.refused import Refused, refused


def test_records_are_counted_by_the_rule_that_they_broke_and_its_column(tmp_path: Path) -> None:
    quarantine(tmp_path / "q", [("not_null", "id", 2), ("decode", None, 5), ("not_null", "amount", 3)])
    assert refused(str(tmp_path / "q")) == [
        Refused("decode", None, 5), Refused("not_null", "amount", 3), Refused("not_null", "id", 2),
    ]  # fmt: skip


def test_where_nothing_was_ever_refused_there_is_no_table(tmp_path: Path) -> None:
    assert refused(str(tmp_path / "q")) == []
