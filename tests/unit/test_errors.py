"""Exit codes, typed errors, crash points, and files that are created once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.atomic_file import made_once
from sluice.errors import ExitCode, Retry, SluiceError, described, error_for_exit_code, public, quoted
from sluice.faults import point

TYPED = [c for c in SluiceError.__subclasses__() if c.__module__ == "sluice.errors"]


def test_exit_codes_are_stable_and_one_for_each_error() -> None:
    assert {c.name: int(c) for c in ExitCode} == {
        "DONE": 0, "OTHER": 1, "CONFIG": 10, "SOURCE_UNREACHABLE": 20, "OFFSETS_GONE": 21, "TOPIC_RECREATED": 22,
        "NOT_AUTHORIZED": 23, "SINK_FAILED": 30, "LEASE_HELD": 40, "CHECKPOINT_MISFIT": 41, "QUALITY_FAILED": 50,
        "HELD": 51,
    }  # fmt: skip
    assert sorted(c.exit_code for c in TYPED) == sorted(set(ExitCode) - {ExitCode.DONE, ExitCode.OTHER})
    assert [error_for_exit_code(int(kind.exit_code)) for kind in TYPED] == TYPED
    assert {error_for_exit_code(code) for code in (1, 137, 143, -9, 99)} == {SluiceError}


def test_errors_that_are_retried() -> None:
    again = {c.__name__ for c in TYPED if c.retry is not Retry.NEVER}
    assert again == {"SourceUnreachableError", "SinkError", "LeaseHeldError"}


def test_crash_point_kills_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_KILL_AT", raising=False)
    point("rows-staged")
    monkeypatch.setenv("SLUICE_KILL_AT", "rows-staged:99")
    point("rows-staged")
    with pytest.raises(AssertionError):
        point("no-such-point")


def test_made_once_by_one_of_several(tmp_path: Path) -> None:
    file = tmp_path / "id"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: made_once(file, b"%d" % n), range(8)))
    assert made.count(True) == 1
    assert file.read_bytes() == b"%d" % made.index(True)
    assert list(tmp_path.iterdir()) == [file]


def test_made_once_by_a_link_whose_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats the request, and answers that the file is there."""
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", repeated)
    assert made_once(tmp_path / "id", b"mine")
    assert not made_once(tmp_path / "id", b"theirs")
    assert (tmp_path / "id").read_bytes() == b"mine"


def test_made_once_syncs_the_content_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "id"
    synced: list[tuple[object, bool]] = []

    def fsync(handle: int) -> None:
        found = os.fstat(handle)
        synced.append(("folder" if os.path.samestat(found, tmp_path.stat()) else found.st_size, file.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    assert made_once(file, b"whole")
    assert synced == [(5, False), ("folder", True)]


def test_made_once_leaves_nothing_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(OSError, match="no links"):
        made_once(tmp_path / "id", b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("t [1, 2): " + described(ValueError("SSN-1 «x» is\nno number")) + ": left", "t [1, 2): ValueError: «…»: left"),
        (f"a: {quoted('token=1')}; b: {quoted('token=2')}", "a: «…»; b: «…»"),
        (f"failed: {quoted('token' * 400)}"[:100], "failed: «…»"),
        ("the query failed: ValueError: a reason of an earlier version", "the query failed"),
        (described(OSError("at x\n ↳ No space (os error 28)")), "OSError: «…»"),
        (described(KeyError()), "KeyError"),
        ("t-0 [0, 5) is gone", "t-0 [0, 5) is gone"),
    ],
)  # fmt: skip
def test_message_without_its_quotations_has_no_foreign_text(text: str, known: str) -> None:
    assert public(text) == known
    assert public(known) == known
    assert "\n" not in text
