"""``sluice acknowledge``: closes losses that will not be recovered, with a reason."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.output import err, print_json, print_table
from sluice.errors import ConfigError

__all__ = ["acknowledge"]


def acknowledge(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why they will not be recovered; recorded in the ledger.")
    ],
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="TOPIC:PARTITION:START-END", help="Only these offsets; repeatable."),
    ] = None,
    of_run: Annotated[str | None, typer.Option("--of", metavar="ID", help="Only what this run lost.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Open them again: sluice redrive finds them then.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Close lost ranges that will not be recovered, such as what retention removed.

    They stay counted as lost, and the audit goes on to balance. They are no
    longer open: no redrive looks for them, no alert counts them, and the
    write-ahead log need not keep them. Without --range and --of: all open lost
    ranges. No live run may be at work. Idempotent. Exit codes: as sluice run.
    """
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger
    from sluice.ranges import OffsetRange
    from sluice.run.acknowledgement import acknowledge as close

    try:
        spans = [OffsetRange.parse(text) for text in ranges or []]
    except ValueError as error:
        raise ConfigError(str(error), state="nothing was changed", next_step="fix --range") from None
    book = Ledger.open()
    name = name_of(book, pipeline)
    chosen = close(book, name, reason=reason, ranges=spans, of_run=of_run, undo=undo)
    listed = [{"topic": r.topic, "partition": r.partition, "start": r.start, "end": r.end} for r in chosen]
    count = sum(map(len, chosen))
    if as_json:
        print_json({"pipeline": name, "offsets": count, "ranges": listed, "undone": undo, "reason": reason})
        return
    if chosen:
        print_table(listed, ["topic", "partition", "start", "end"])
    done = "open again" if undo else "acknowledged: they stay lost, and are no longer open"
    err.print(f"{count:,} offsets are {done}" if chosen else "there is no such lost range", markup=False)
