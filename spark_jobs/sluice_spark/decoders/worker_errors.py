"""What a decoder in a Python worker tells the driver of a failure that is no fault of the records.

Spark gives the driver a text, in which records and the pipeline's own functions may quote anything. So that this text
may decide what becomes of a batch, it stands between two marks that only this driver and its workers know.
"""

from __future__ import annotations

import json
import uuid

from sluice.errors import SluiceError, error_for_exit_code

__all__ = ["MARK", "found_in", "told"]

MARK = f"sluice-{uuid.uuid4().hex}"
"""The driver's. What runs in a worker must bring it along: there this constant has another value."""


def told(error: SluiceError, mark: str) -> RuntimeError:
    """Return the exception with which a worker tells of an error.

    Parameters
    ----------
    mark
        The driver's :data:`MARK`.
    """
    parts = {"code": int(error.exit_code), "what": error.what, "state": error.state, "next_step": error.next_step}
    return RuntimeError(f"{mark}{json.dumps(parts)}{mark}")


def found_in(text: str) -> SluiceError | None:
    """Return the error that a worker of this driver told of; None if the text has none."""
    parts = text.split(MARK, 2)
    if len(parts) < 3:
        return None
    found = json.loads(parts[1])
    return error_for_exit_code(found["code"])(found["what"], state=found["state"], next_step=found["next_step"])
