"""What a main says: short lines on stderr, each beginning with ``sluice:``."""

from __future__ import annotations

import logging
import sys

__all__ = ["logger", "set_up"]

logger = logging.getLogger("sluice")


def set_up() -> None:
    """Send the lines of :data:`logger` to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s sluice: %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
