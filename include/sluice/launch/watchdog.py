"""Ends a driver whose launcher was killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from sluice.errors import SluiceError
from sluice.ledger import Holder

__all__ = ["LAST_WORDS", "LAUNCHER", "end_with_launcher", "tell_launcher"]

LAUNCHER = "SLUICE_LAUNCHER"
"""The variable by which a driver knows the process that started it, and waits for it."""
LAST_WORDS = "SLUICE_LAST_WORDS"
"""The variable with the file in which a driver on the launcher's machine leaves the error that ended it."""
_EVERY = 1.0


def end_with_launcher() -> None:
    """Watch the process that started this one, if it said so; when it is gone, end this one's group by SIGTERM.

    What the driver has committed stays, as after any SIGTERM. A launcher on another machine is not watched.
    """
    told = os.environ.get(LAUNCHER)
    if told:
        holder = Holder(**json.loads(told))
        threading.Thread(target=_watch, args=(holder,), name="sluice-launcher", daemon=True).start()


def tell_launcher(error: SluiceError) -> None:
    """Leave the error that ends this driver to the process that started it, if it asked for that and is here."""
    if file := os.environ.get(LAST_WORDS):
        with suppress(OSError):
            Path(file).write_text(json.dumps(error.as_dict()), encoding="utf-8")


def _watch(launcher: Holder) -> None:
    while not launcher.is_dead():
        time.sleep(_EVERY)
    os.killpg(os.getpgid(0), signal.SIGTERM)
