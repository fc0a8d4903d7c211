"""A session that begins before it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fixtures.books import Place

from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_spark.runs.context import RunContext


def context(tmp_path: Path, open_session: Callable[[], Any]) -> RunContext:
    place = Place(tmp_path)
    return RunContext(load(str(place.file)), "a", place.ledger, place.home, open_session, Recovery.REPLAY, None)


def test_a_session_that_began_is_waited_for_and_becomes_that_of_the_thread(tmp_path: Path) -> None:
    began, go_on, threads = threading.Event(), threading.Event(), list[int]()
    there = object()

    def open_session() -> Any:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            began.set()
            assert go_on.wait(30)
        return there

    own = context(tmp_path, open_session)
    own.begin_session()
    own.begin_session()
    assert began.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert own.session() is cast(Any, there)
    assert len(threads) == 2
    assert threads[0] != threads[1] == threading.get_ident()


def test_a_session_that_could_not_begin_says_so_when_it_is_needed(tmp_path: Path) -> None:
    def open_session() -> Any:
        raise OSError("no JVM")

    own = context(tmp_path, open_session)
    own.begin_session()
    with pytest.raises(OSError, match="no JVM"):
        own.session()
