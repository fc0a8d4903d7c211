"""What can be done with each kind of state, by the key of the pipeline file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice_spark.windows import aggregate, duplicates, processors, state

__all__ = ["OPERATORS", "Operator"]


@dataclass(frozen=True)
class Operator:
    """A kind of state.

    Parameters
    ----------
    check
        Check that the operator can take the transform's rows, and return its own, both for an empty batch.
    held
        Return what is kept after a batch: :func:`~sluice_spark.windows.state.open_windows` and its like.
    of_key
        Return what is kept of a key: :func:`~sluice_spark.windows.state.of_key` and its like.
    """

    check: Callable[..., Any]
    held: Callable[..., list[dict[str, Any]]]
    of_key: Callable[..., list[dict[str, Any]]] = state.of_key


OPERATORS = {
    "window": Operator(aggregate.check, state.open_windows),
    "dedupe": Operator(duplicates.check, state.remembered_keys),
    "processor": Operator(processors.check, state.held_keys, state.of_processor),
}
