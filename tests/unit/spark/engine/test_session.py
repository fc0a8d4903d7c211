"""The end of a main: exit code, traceback and session; and its command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import pytest

from sluice.errors import ConfigError, SinkError
from sluice_spark.engine import session
from sluice_spark.engine.session import run_main


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a main that raises this; return its exit code."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: None)

    def run(error: BaseException | None) -> int:
        def main() -> None:
            if error is not None:
                raise error

        run_main(main)
        return codes.pop()

    return run


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (None, 0, []),
        (SinkError("full"), 30, ["full"]),
        (ConfigError("no such key", state="untouched", next_step="write another"), 10,
         ["no such key", "untouched", "write another"]),
        (KeyboardInterrupt(), 130, []),
        (SystemExit(7), 7, []),
        (SystemExit("text"), 1, []),
        (ValueError("odd"), 1, ["Traceback (most recent call last):", "sluice: error: ValueError: «odd»"]),
    ],
)  # fmt: skip
def test_main_ends_with_the_exit_code_of_its_error_and_a_traceback_only_of_an_unexpected_one(
    ended: Callable[..., int],
    error: BaseException | None,
    code: int,
    lines: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert ended(error) == code
    written = capfd.readouterr().err
    assert all(line in written for line in lines)
    assert ("Traceback" in written) is isinstance(error, ValueError)


@pytest.mark.parametrize("remote", [True, False])
def test_main_stops_a_remote_session_and_no_other(
    ended: Callable[..., int], monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    active = mock.Mock()
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: active)
    monkeypatch.setattr(session, "is_remote", lambda: remote)
    assert ended(SinkError("full")) == 30
    assert active.stop.called is remote
