"""The interface of a fact: one kind of thing that a batch did beside moving records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self

__all__ = ["BatchFact"]


@dataclass(frozen=True)
class BatchFact:
    """A fact of a batch, for example how many windows it closed.

    A fact is in the metadata of the sink's commit and in the ledger, in the same form: a driver that dies between the
    two loses none, because the next run records what the metadata has.

    Attributes
    ----------
    name
        Its key in commit metadata.
    event
        The type of its event in the ledger.
    accounted
        Whether the account of a run may have it; see :meth:`account`.
    """

    name: ClassVar[str]
    event: ClassVar[str]
    accounted: ClassVar[bool] = True

    def __bool__(self) -> bool:
        """Return whether there is anything to record."""
        return True

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form of commit metadata and ledger, without optional fields that are unknown."""
        found = [(field, getattr(self, field.name)) for field in fields(self)]
        return {field.name: value for field, value in found if value is not None or field.default is MISSING}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_dict` returned, also by an earlier version; other keys are ignored."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})

    def __or__(self, later: Self) -> Self:
        """Return the fact of two batches of a run; no record may be in both."""
        raise NotImplementedError

    def account(self) -> dict[str, Any]:
        """Return what a run's account says of it, by the account's keys; empty if nothing."""
        return {}

    @classmethod
    def lines(cls, account: Mapping[str, Any]) -> Iterator[str]:
        """Yield in words what :meth:`account` added to the account of a run."""
        yield from ()
