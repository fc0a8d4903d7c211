"""The commit metadata, as delta-rs returns it and as others write it."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.delta.notes import note_of


@pytest.mark.parametrize(
    ("commit", "note"),
    [
        ({"sluice": {"app_id": "a"}}, {"app_id": "a"}),
        ({"sluice": '{"app_id": "a"}'}, {"app_id": "a"}),
        ({}, None),
        ({"sluice": "a gate for water"}, None),  # another program's metadata under the same key
        ({"sluice": "7"}, None),
    ],
)
def test_the_metadata_of_a_commit_is_read(commit: dict[str, Any], note: dict[str, Any] | None) -> None:
    assert note_of(commit) == note
