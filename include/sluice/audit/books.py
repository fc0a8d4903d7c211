"""The ledger's accounts of a pipeline, per partition, and whether they are consistent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.audit.cover import Cover
from sluice.audit.report import AuditReport, shortened
from sluice.ledger import REDRIVEN, Entry, Epoch, Ledger, LostRow
from sluice.ranges import Counts, OffsetRange, RangeAccount, describe, overlaps, subtract

__all__ = ["Books", "Page", "audit"]


def audit(ledger: Ledger, pipeline: str) -> AuditReport:
    """Prove from the ledger alone that every offset is accounted for once.

    - The ranges of all live runs cover ``[initial, position)`` without gap or overlap, also across epochs.
    - Each range splits without remainder.
    - The recorded lost ranges are what the accounts count as lost.
    - What was redriven was lost or quarantined before, and was redriven once, unless it was retracted in between.
    """
    try:
        return Books.read(ledger, pipeline).report()
    except ValueError as error:  # an account that does not balance cannot be loaded
        return AuditReport(pipeline, [], [], [str(error)])


@dataclass
class Page:
    """The ledger's entries of one partition; each list is in the order of offsets.

    Attributes
    ----------
    live
        The splits of live runs.
    lost
        Lost ranges, open or redriven.
    redriven
        The splits of redriven ranges, each with what was not retracted of it since.
    reopened
        What was retracted of ranges that had been redriven from the quarantine.
    replaced
        The splits of interval runs, each with how many offsets it removed from sink and quarantine.
    epoch
        The newest epoch's number and where it begins in this partition; None if it begins at ``starting_offsets``.
    """

    topic: str
    partition: int
    live: list[RangeAccount] = field(default_factory=list)
    lost: list[LostRow] = field(default_factory=list)
    redriven: list[tuple[Entry, list[OffsetRange]]] = field(default_factory=list)
    reopened: list[OffsetRange] = field(default_factory=list)
    replaced: list[tuple[RangeAccount, tuple[int, int]]] = field(default_factory=list)
    epoch: tuple[int, int] | None = None

    @property
    def of_lost(self) -> list[RangeAccount]:
        """The splits of redriven ranges that were lost."""
        return [entry.account for entry, _ in self.redriven if entry.of == "lost"]

    @property
    def of_quarantined(self) -> list[RangeAccount]:
        """The splits of redriven ranges that were quarantined."""
        return [entry.account for entry, _ in self.redriven if entry.of == "quarantined"]

    @property
    def standing_lost(self) -> list[OffsetRange]:
        """What of the redriven losses was not retracted since."""
        return [span for entry, spans in self.redriven if entry.of == "lost" for span in spans]

    @property
    def standing_quarantined(self) -> list[OffsetRange]:
        """What of the redriven records of the quarantine was not retracted since."""
        return [span for entry, spans in self.redriven if entry.of == "quarantined" for span in spans]

    @property
    def first(self) -> int:
        """The first offset that is accounted for; an interval may begin before the first live run."""
        return min([self.live[0].range.start, *(a.range.start for a, _ in self.replaced)])

    @property
    def last(self) -> int:
        """The end (exclusive) of the offsets that are accounted for."""
        return max(a.range.end for a in (*self.live, *(a for a, _ in self.replaced)))

    @property
    def open(self) -> list[LostRow]:
        """Lost ranges that are not redriven yet, and may be."""
        return [row for row in self.lost if row.state == "open"]

    @property
    def never_read(self) -> list[LostRow]:
        """Lost ranges that are not redriven: also those that were acknowledged."""
        return [row for row in self.lost if row.state != "redriven"]

    @property
    def counts(self) -> Counts:
        """The split after all redrives and intervals: each offset counts by its final outcome.

        The ledger knows how many offsets an interval added to sink and quarantine and how many it removed. The rest
        counts as filtered.
        """
        lost, quarantined = _planned(self.of_lost), _planned(self.of_quarantined)
        moved = Counts(lost=-lost, quarantined=-quarantined)
        live = sum((a.counts for a in (*self.live, *self.of_lost, *self.of_quarantined)), moved)
        if not self.replaced:
            return live
        written = live.written + sum(a.counts.written - taken for a, (taken, _) in self.replaced)
        refused = live.quarantined + sum(a.counts.quarantined - taken for a, (_, taken) in self.replaced)
        total = Cover(a.range for a in (*self.live, *(a for a, _ in self.replaced))).length(self.first, self.last)
        filtered = total - written - refused - live.absent - live.lost
        return Counts(written, filtered, refused, live.absent, live.lost)

    def as_row(self) -> dict[str, Any]:
        """Return a flat JSON-ready form."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start": self.first,
            "end": self.last,
            **self.counts.as_dict(),
            "redriven": _planned(self.of_lost) + _planned(self.of_quarantined),
            "open": sum(len(row.range) for row in self.open),
        }

    def mixed(self) -> list[OffsetRange]:
        """Return the ranges in which entries overlap each other and an interval.

        For such a range the ledger knows how much sink and quarantine hold, but not which entry each offset belongs to.
        """
        parts = [
            *(a.range for a in (*self.live, *self.of_lost, *self.of_quarantined)),
            *(row.range for row in self.lost),
        ]
        edges = sorted({(r.start, r.end) for r in (*parts, *(a.range for a, _ in self.replaced)) if len(r)})
        found: list[list[int]] = []
        for start, end in edges:
            if found and start < found[-1][1]:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([start, end])
        replaced = Cover(a.range for a, _ in self.replaced)
        spans = [OffsetRange(self.topic, self.partition, start, end) for start, end in found]
        return [span for span in spans if replaced.cut(span)]

    def problems(self) -> list[str]:
        """Return a message for each inconsistency."""
        found = [
            *self._tiles(),
            *self._losses(),
            *self._redriven_losses(),
            *self._redriven_records(),
            *self._replaced(),
        ]
        return shortened(found, f"{self.topic}-{self.partition}")

    def _tiles(self) -> Iterable[str]:
        reach: OffsetRange | None = None
        for span in (a.range for a in self.live):
            if reach is not None and span.start != reach.end:
                kind = "a gap" if span.start > reach.end else "an overlap"
                yield f"{kind} between {reach} and {span}"
            reach = span if reach is None or span.end > reach.end else reach
        if reach is not None and self.epoch is not None:
            number, begin = self.epoch
            if begin != self.live[0].range.start and all(a.range.end != begin for a in self.live):
                yield f"epoch {number} begins at offset {begin} of {self.topic}-{self.partition}, where no range ends"

    def _replaced(self) -> Iterable[str]:
        counts = self.counts if self.replaced else Counts()
        span = f"{self.topic}-{self.partition}"
        for name in ("written", "quarantined", "filtered"):
            if getattr(counts, name) < 0:
                yield (
                    f"intervals removed more offsets from {span} than were there: {name} {getattr(counts, name):,}. "
                    "This also happens if a user deleted rows and an interval wrote them again"
                )

    def _losses(self) -> Iterable[str]:
        live, reopened = Cover(a.range for a in self.live), Cover(self.reopened)
        # what a live run refused, and was retracted from the quarantine's redrive, is lost, but no live run lost it
        lost = Cover(row.range for row in self.lost if row.epoch != REDRIVEN)
        yield from _doubled((row.range for row in self.lost), "is recorded as lost twice")
        for account in self.live:
            span, count = account.range, account.counts.lost
            recorded = lost.length(span.start, span.end)
            if recorded != count:
                where = describe(lost.cut(span)) or "nothing"
                yield f"the account of {span} counts {count:,} offsets as lost, recorded as lost there: {where}"
        for row in self.lost:
            for part in (live if row.epoch != REDRIVEN else reopened).holes(row.range):
                yield f"{part} is recorded as lost, but no account covers it"

    def _redriven_losses(self) -> Iterable[str]:
        redriven = Cover(self.standing_lost)
        lost = Cover(row.range for row in self.lost)
        yield from _doubled(self.standing_lost, "was redriven twice, as lost")
        for account in self.of_lost:
            for part in lost.holes(account.range):
                yield f"{part} was redriven as lost, but was never lost"
        for row in self.lost:
            wrong = redriven.holes(row.range) if row.state == "redriven" else redriven.cut(row.range)
            for part in wrong:
                if row.state != "redriven":
                    yield f"{part} was redriven, but is {row.state} as lost"
                else:
                    yield f"{part} is closed as redriven, but no account covers it"

    def _redriven_records(self) -> Iterable[str]:
        """The ledger knows only how many offsets of a range were quarantined: no more may have been redriven."""
        redriven = Cover(self.standing_quarantined)
        live, gone = Cover(a.range for a in self.live), Cover(row.range for row in self.never_read)
        again = Cover(a.range for a in self.of_lost)
        # what an interval reads again it may refuse again, and that is redriven again
        replaced = Cover(a.range for a, _ in self.replaced)
        once = [part for span in self.standing_quarantined for part in replaced.holes(span)]
        yield from _doubled(once, "was redriven twice, from the quarantine")
        for span in self.standing_quarantined:
            for part in (*live.holes(span), *gone.cut(span)):
                yield f"{part} was redriven from the quarantine, but was never in it"
        rest = Cover(part for span in self.standing_quarantined for part in again.holes(span))
        of_lost = [(entry.account, redriven, spans) for entry, spans in self.redriven if entry.of == "lost"]
        for account, left, spans in (*((a, rest, [a.range]) for a in self.live), *of_lost):
            span, count = account.range, account.counts.quarantined
            taken = sum(left.length(part.start, part.end) for part in spans)
            if taken > count and not replaced.cut(span):
                where = describe(common for part in spans for common in left.cut(part))
                yield (
                    f"{where} was redriven from the quarantine, {taken:,} offsets, "
                    f"but only {count:,} of {span} were quarantined"
                )


@dataclass(frozen=True)
class Books:
    """The ledger's entries of a pipeline, by partition."""

    pipeline: str
    pages: list[Page]
    problems: list[str]

    @classmethod
    def read(cls, ledger: Ledger, pipeline: str) -> Books:
        """Read the entries of a pipeline.

        Raises
        ------
        ValueError
            If an account does not balance; with the range.
        """
        pages: dict[tuple[str, int], Page] = {}

        def page(span: OffsetRange) -> Page:
            return pages.setdefault((span.topic, span.partition), Page(span.topic, span.partition))

        problems = []
        for row in ledger.offsets.lost(pipeline, state=None):
            page(row.range).lost.append(row)
        retracted = ledger.offsets.retracted_from(pipeline)
        entries = ledger.offsets.entries(pipeline)
        refused = {e.batch for e in entries if e.epoch == REDRIVEN and e.of == "quarantined"}
        aside = [(batch, span) for batch, spans in retracted.items() if batch in refused for span in spans]
        for entry in entries:
            account, here = entry.account, page(entry.account.range)
            if entry.epoch > REDRIVEN:
                here.live.append(account)
                continue
            gone = overlaps([account.range], retracted.get(entry.batch, ()))
            if account.counts.lost != (taken := sum(map(len, gone))):
                told = f"; {taken:,} were retracted" if taken else ""
                again = f"{account.counts.lost:,} redriven offsets as lost again{told}"
                problems.append(f"the account of {account.range} counts {again}")
            if entry.of == "lost":  # also what it refused, and was redriven and retracted since
                gone += [span for batch, span in aside if batch > entry.batch and span.cut(account.range)]
            here.redriven.append((entry, subtract([account.range], gone)))
            if entry.of == "quarantined":
                here.reopened += gone
            elif entry.of != "lost":
                problems.append(f"{account.range} was redriven, but the ledger does not say what it was before")
        for _, account, replaced in ledger.offsets.replaced(pipeline):
            page(account.range).replaced.append((account, replaced))
        _begin(pages, ledger.offsets.epoch(pipeline))
        return cls(pipeline, [pages[key] for key in sorted(pages)], problems)

    def report(self) -> AuditReport:
        """Return the report of an audit of these entries."""
        return AuditReport(
            self.pipeline,
            [page.as_row() for page in self.pages if page.live],
            [row.as_dict() for page in self.pages for row in page.open],
            [*self.problems, *(problem for page in self.pages for problem in page.problems())],
        )


def _begin(pages: dict[tuple[str, int], Page], epoch: Epoch) -> None:
    for topic, partitions in (epoch.positions or {}).items():
        for partition, offset in partitions.items():
            if (topic, partition) in pages:
                pages[topic, partition].epoch = (epoch.number, offset)


def _planned(accounts: Sequence[RangeAccount]) -> int:
    return sum(len(a.range) for a in accounts)


def _doubled(ranges: Iterable[OffsetRange], what: str) -> Iterable[str]:
    """Yield a message for each offset range that is in two of the ranges."""
    reach: OffsetRange | None = None
    for span in sorted(ranges):
        common = reach.cut(span) if reach is not None else None
        if common is not None:
            yield f"{common} {what}"
        reach = span if reach is None or span.end > reach.end else reach
