"""Slow brokers, tables and databases cost the page few threads, and no other reader waits for them."""

from __future__ import annotations

import threading

import pytest

from sluice.errors import SourceUnreachableError
from sluice_airflow.page.answers import Answers, AskedError

pytestmark = pytest.mark.airflow


class Silent:
    """Questions that are answered when the test says so."""

    def __init__(self, answers: Answers, count: int) -> None:
        self.go, asked = threading.Event(), threading.Semaphore(0)

        def ask() -> str:
            asked.release()
            self.go.wait()
            return "new"

        self.threads = [threading.Thread(target=answers.of, args=(("lag", f"p{n}"), ask)) for n in range(count)]
        for thread in self.threads:
            thread.start()
        for _ in self.threads:
            asked.acquire()

    def answer(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join()


def test_page_asks_with_one_thread_and_others_get_an_error_at_once() -> None:
    answers = Answers()
    silent = Silent(answers, 1)
    with pytest.raises(AskedError, match="lag"):
        answers.of(("lag", "p0"), lambda: "asked twice")
    silent.answer()
    assert answers.of(("lag", "p0"), lambda: "asked twice") == "new"


def test_page_serves_an_old_answer_while_a_thread_asks() -> None:
    answers = Answers(fresh=0.0)
    assert answers.of(("lag", "p0"), lambda: "old") == "old"
    silent = Silent(answers, 1)
    assert answers.of(("lag", "p0"), lambda: "asked twice") == "old"
    silent.answer()


def test_page_bounds_the_threads_that_silent_brokers_take() -> None:
    answers = Answers(askers=2)
    silent = Silent(answers, 2)
    with pytest.raises(AskedError):
        answers.of(("lag", "p2"), lambda: "a third")
    silent.answer()
    assert answers.of(("lag", "p2"), lambda: "a third") == "a third"


def test_page_keeps_a_failure_as_an_answer() -> None:
    answers, asked = Answers(), []

    def ask() -> None:
        asked.append(1)
        raise SourceUnreachableError("no broker answered")

    for _ in range(3):
        with pytest.raises(SourceUnreachableError):
            answers.of(("log", "p"), ask)
    assert len(asked) == 1


def test_page_forgets_old_answers() -> None:
    answers = Answers(kept=0.0)
    for n in range(50):
        answers.of(("lag", f"p{n}"), lambda: None)
    assert len(answers._said) == 1
    assert not answers._asking
