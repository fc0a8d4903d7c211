"""How a main ends: with the exit code of its error, and with a traceback only where the error is none of the user's."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from sluice.errors import ConfigError, SinkError
from sluice_spark.engine import session
from sluice_spark.engine.session import Parser, run_main


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | BaseException | None], int]:
    """Let a main raise this; return the exit code that it ends with."""
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
    ("error", "code"),
    [(None, 0), (SinkError("full"), 30), (KeyboardInterrupt(), 130), (SystemExit(7), 7), (SystemExit("text"), 1)],
)
def test_a_main_ends_with_the_code_of_what_it_raised(
    ended: Callable[..., int], error: BaseException | None, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == code
    assert "Traceback" not in capfd.readouterr().err


def test_a_users_mistake_is_told_in_three_parts(ended: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(ConfigError("no such key", state="untouched", next_step="write another")) == 10
    assert capfd.readouterr().err == "sluice: error: no such key\n  data: untouched\n  next: write another\n"


def test_what_nobody_expected_shows_where_it_came_from(
    ended: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert ended(ValueError("odd")) == 1
    said = capfd.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("sluice: error: ValueError: odd\n")


@pytest.mark.parametrize("remote", [True, False])
def test_a_session_is_stopped_whose_server_goes_on(
    ended: Callable[..., int], monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    stopped: list[bool] = []

    class Session:
        def stop(self) -> None:
            stopped.append(True)

    monkeypatch.setattr(session.SparkSession, "getActiveSession", Session)
    monkeypatch.setattr(session, "is_remote", lambda: remote)
    assert (ended(SinkError("full")), stopped) == (30, [True] * remote)


def test_a_wrong_command_line_is_a_configuration_error() -> None:
    parser = Parser(prog="bounded_run.py")
    parser.add_argument("--run", required=True)
    with pytest.raises(ConfigError, match="--run") as caught:
        parser.parse_args([])
    assert "bounded_run.py --help" in caught.value.next_step
