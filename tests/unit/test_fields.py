"""Durations and places: what is one, and what a misspelt one was meant to be."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import TypeAdapter, ValidationError

from sluice.fields import TablePath, duration


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("2 h", 7200), ("7d", 604_800)])
def test_a_duration_has_a_unit(text: str, seconds: int) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("15min", "15m"), ("15 minutes", "15m"), ("2hrs", "2h"), ("7 days", "7d"), ("2H", "2h"), ("2w", "14d"),
        ("1 week", "7d"), ("1.5h", "90m"), ("0,5 d", "12h"), ("30 sec.", "30s"), ("1.00001s", None), ("soon", None),
        ("5 years", None), ("-5m", None), ("٣ min", None),
    ],
)  # fmt: skip
def test_a_misspelt_one_is_told_with_what_was_meant(text: str, meant: str | None) -> None:
    with pytest.raises(ValueError, match="is not a duration: write 30s, 15m, 2h or 7d") as refused:
        duration(text)
    said = str(refused.value)
    assert said.endswith(f"; did you mean {meant}?") if meant else "did you mean" not in said


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s3a://lake/a#b", "has #, which"),
        ("s3a://lake/a%20b?x", "has % and \\?, which"),
        ("s3a://lake//a", "has an empty part"),
        ("s3a://lake/a b/", ""),
        ("/lake/a#b%20//c/", ""),
    ],
)
def test_a_url_means_the_same_to_all_who_read_it(path: str, told: str) -> None:
    place = TypeAdapter(TablePath)
    if told:
        with pytest.raises(ValidationError, match=told):
            place.validate_python(path)
    else:
        assert place.validate_python(path) == (path.rstrip("/") if "://" in path else path)
