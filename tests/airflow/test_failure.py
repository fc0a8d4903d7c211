"""A main's last words become the exception's."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigError, ExitCode, OffsetsGoneError, SluiceError, SourceUnreachableError
from sluice_airflow.failure import from_exit

pytestmark = pytest.mark.airflow


def test_the_three_parts() -> None:
    output = [
        "26/11/21 INFO noise",
        "sluice: error: offsets are gone: flights-0 [0, 5)",
        "  data: planned, nothing written",
        "  next: choose ignore_range",
        "26/11/21 INFO shutting down",
    ]
    error = from_exit(21, output, command="unused")
    assert isinstance(error, OffsetsGoneError)
    assert (error.what, error.state, error.next_step) == (
        "offsets are gone: flights-0 [0, 5)",
        "planned, nothing written",
        "choose ignore_range",
    )


def test_what_may_have_several_lines_and_the_last_message_counts() -> None:
    output = ["sluice: error: first", "  next: x", "sluice: error: flights.yaml is bad:", "  line 1", "  next: y"]
    error = from_exit(10, output, command="unused")
    assert isinstance(error, ConfigError)
    assert (error.what, error.next_step) == ("flights.yaml is bad:\n  line 1", "y")


def test_a_message_without_an_end_does_not_swallow_the_log() -> None:
    output = ["sluice: error: cut off", *(f"log line {i}" for i in range(100))]
    assert from_exit(30, output, command="look").what == "cut off"


def test_silence_keeps_the_code_and_nothing_of_the_output() -> None:
    error = from_exit(20, ["one", "", "secret.key=AKIASECRET"], command="sluice status flights")
    assert isinstance(error, SourceUnreachableError)
    assert error.what == "the Spark application ended with exit code 20 (source_unreachable)"
    assert error.next_step == "sluice status flights"
    assert error.state


@pytest.mark.parametrize("code", [-9, 137])
def test_a_signal_has_a_name(code: int) -> None:
    error = from_exit(code, [], command="")
    assert type(error) is SluiceError
    assert "SIGKILL" in error.what


@pytest.mark.parametrize("code", [c for c in ExitCode if c is not ExitCode.DONE])
def test_every_code_has_its_type(code: ExitCode) -> None:
    assert from_exit(int(code), [], command="").exit_code is code
