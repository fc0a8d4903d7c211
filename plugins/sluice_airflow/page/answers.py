"""Answers of brokers, tables and databases, which may take long: few threads ask, and no request waits for them.

The app shares its threads with the rest of Airflow's API server, so silent brokers must not take them all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sluice.errors import SluiceError

__all__ = ["Answers", "AskedError"]

_Answer = TypeVar("_Answer")


class AskedError(SluiceError):
    """There is no answer yet; another request asks for it."""


@dataclass(frozen=True)
class _Said:
    at: float
    answer: Any
    error: Exception | None


class Answers:
    """What was answered lately, errors included.

    Parameters
    ----------
    fresh
        Seconds for which an answer serves everybody.
    kept
        Seconds for which it still serves while a newer one is asked for.
    askers
        Threads that ask at once, at most.
    """

    def __init__(self, *, fresh: float = 10.0, kept: float = 60.0, askers: int = 8) -> None:
        self._fresh, self._kept, self._askers = fresh, kept, askers
        self._said: dict[tuple[str, str], _Said] = {}
        self._asking: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def of(self, key: tuple[str, str], ask: Callable[[], _Answer]) -> _Answer:
        """Return a fresh answer, or the one before while a thread asks for it; never wait for another thread.

        Raises
        ------
        AskedError
            If there is none so far and a thread asks, or too many ask for something else.
        Exception
            What ``ask`` raised, for as long as an answer is fresh.
        """
        with self._lock:
            now = time.monotonic()
            self._said = {k: said for k, said in self._said.items() if now < said.at + self._kept}
            said = self._said.get(key)
            old = said is None or now >= said.at + self._fresh
            asks = old and key not in self._asking and len(self._asking) < self._askers
            if asks:
                self._asking.add(key)
        if asks:
            said = self._ask(key, ask)
        if said is None:
            raise AskedError(
                f"the {key[0]} is being asked for",
                state="nothing is known of it yet",
                next_step="ask again in some seconds",
            )
        if said.error is not None:
            raise said.error.with_traceback(None)
        return cast("_Answer", said.answer)

    def clear(self) -> None:
        """Forget every answer."""
        with self._lock:
            self._said.clear()

    def _ask(self, key: tuple[str, str], ask: Callable[[], Any]) -> _Said:
        said = None
        try:
            answer = ask()
            said = _Said(time.monotonic(), answer, None)
        except Exception as raised:
            said = _Said(time.monotonic(), None, raised)
        finally:
            with self._lock:
                self._asking.discard(key)
                if said is not None:
                    self._said[key] = said
        return said
