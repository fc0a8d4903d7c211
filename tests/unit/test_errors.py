"""Exit codes and typed errors."""

from __future__ import annotations

from sluice import errors
from sluice.errors import ExitCode, Retry, SluiceError, error_for_exit_code

TYPED = [c for c in SluiceError.__subclasses__() if c.__module__ == "sluice.errors"]


def test_each_exit_code_has_one_error_and_each_error_one_exit_code() -> None:
    assert {c.exit_code: c for c in TYPED}.keys() == set(ExitCode) - {ExitCode.DONE, ExitCode.OTHER}
    assert len({c.exit_code for c in TYPED}) == len(TYPED)
    for kind in TYPED:
        assert error_for_exit_code(int(kind.exit_code)) is kind
    for code in (1, 137, 143, -9, 99):
        assert error_for_exit_code(code) is SluiceError


def test_the_exit_codes_are_those_that_users_were_promised() -> None:
    assert {c.name: int(c) for c in ExitCode} == {
        "DONE": 0, "OTHER": 1, "CONFIG": 10, "SOURCE_UNREACHABLE": 20, "OFFSETS_GONE": 21, "TOPIC_RECREATED": 22,
        "NOT_AUTHORIZED": 23, "SINK_FAILED": 30, "LEASE_HELD": 40, "CHECKPOINT_MISFIT": 41, "QUALITY_FAILED": 50,
        "HELD": 51,
    }  # fmt: skip


def test_only_what_time_can_mend_is_tried_again() -> None:
    again = {c.__name__ for c in TYPED if c.retry is not Retry.NEVER}
    assert again == {"SourceUnreachableError", "SinkError", "LeaseHeldError"}


def test_an_error_says_three_things() -> None:
    told = str(errors.SinkError("it broke", state="clean", next_step="sluice run p"))
    assert told.splitlines() == ["it broke", "  data: clean", "  next: sluice run p"]
