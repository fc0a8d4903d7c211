"""The order of severity."""

from __future__ import annotations

from sluice.lag import Status


def test_the_verdict_is_the_worst_in_the_order_of_severity() -> None:
    order = ["OK", "NEW", "BACKLOG", "GROWING", "UNKNOWN", "STUCK", "REWOUND", "LOST", "RECREATED", "AUTH"]
    assert [s.value for s in Status] == order
    for mild, severe in zip(list(Status), list(Status)[1:], strict=False):
        assert Status.worst([mild, severe, mild]) is severe
    assert Status.worst([]) is Status.OK
