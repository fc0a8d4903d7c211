"""Finds the rows of a batch that a table refuses: they are tried in parts, in a transaction that is rolled back.

Parts are tried by the server, whose exceptions undo a part and leave the transaction alive; the driver's library gives
a transaction up at its first error.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.postgres import literal, name_of
from sluice_spark.sinks.base import Refusal, RowsRefusedError
from sluice_spark.sinks.postgres.commits import fetched, one
from sluice_spark.sinks.postgres.database import REFUSALS, refusal

__all__ = ["Refused", "Unfit", "refused_rows"]

Refused = dict[tuple[str, int, int], Refusal]

MOST = 10_000
"""If a table refuses more rows of a batch than this, the table is wrong, and no value."""
_PART = 4096
"""Rows that are tried at a time, until one of them is refused."""
_PLACE = ("_topic", "_partition", "_offset")
_ROW = name_of("__sluice_row")


@dataclass(frozen=True)
class Unfit:
    """Rows that must not be written, although the database would take them or say little of them.

    Parameters
    ----------
    condition
        Whether a staged row is one, as SQL.
    detail
        What is wrong with each.
    next_step
        What the user can do.
    column
        The column at fault, if it is one.
    """

    condition: str
    detail: str
    next_step: str
    column: str | None = None

    def refuse(self, cursor: Any) -> None:
        """Raise :class:`RowsRefusedError` if there is such a row among the staged ones."""
        if count := int(one(cursor, f"SELECT count(*) FROM pg_temp.sluice_staged WHERE {self.condition}")):
            raise RowsRefusedError(
                f"{count:,} rows cannot be written: {self.detail}",
                state="nothing of this batch was committed",
                next_step=self.next_step,
            )


def refused_rows(
    connected: Callable[[], AbstractContextManager[Any]],
    batches: Callable[[], Iterable[pa.RecordBatch]],
    prepared: Callable[[Any], tuple[Sequence[Unfit], Sequence[str]]],
) -> Refused:
    """Return the rows that are refused; all others can be committed together. Changes nothing.

    Of two rows that the table does not take together, the one of the higher offset is refused.

    Parameters
    ----------
    connected
        Begins a transaction, which is rolled back.
    batches
        Returns the rows, which have their offsets.
    prepared
        Prepares the table, and returns what it must not get, and the statements that write the rows of
        ``pg_temp.sluice_staged`` to it.

    Returns
    -------
    dict
        Empty if no row is refused now, or if more are than :data:`MOST`.
    """
    found: Refused = {}
    for batch in batches():
        _bring(connected, pa.Table.from_batches([batch]), found)
        if len(found) > MOST:
            return {}
    with connected() as connection, connection.cursor() as cursor:
        unfit, statements = prepared(cursor)
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("DROP TABLE IF EXISTS pg_temp.sluice_staged")  # of a session that a pooler lends
        rows = list(_without(batches(), found))
        if not rows:
            return found
        reader = pa.RecordBatchReader.from_batches(rows[0].schema, iter(rows))
        cursor.adbc_ingest("sluice_staged", reader, mode="create", temporary=True)
        for statement in _trial(unfit, statements):
            cursor.execute(statement)
        for *place, detail, column in fetched(cursor, "SELECT * FROM pg_temp.sluice_refused"):
            found[tuple(place)] = Refusal(detail, column or None)
        connection.rollback()
    return found if len(found) <= MOST else {}


def _bring(connected: Callable[[], AbstractContextManager[Any]], rows: pa.Table, found: Refused) -> None:
    """Find the rows with values that no column holds, such as a zero character: they do not reach the server."""
    try:
        with connected() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("sluice_brought", rows, mode="create", temporary=True)
        return
    except RowsRefusedError as error:
        why = refusal(error)
    if rows.num_rows == 1:
        topic, partition, offset = (rows.column(name)[0].as_py() for name in _PLACE)
        found[topic, partition, offset] = why
    elif len(found) <= MOST:
        half = rows.num_rows // 2
        _bring(connected, rows.slice(0, half), found)
        _bring(connected, rows.slice(half), found)


def _without(batches: Iterable[pa.RecordBatch], found: Refused) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        places = zip(*(batch.column(name).to_pylist() for name in _PLACE), strict=True) if found else ()
        yield batch.filter(pa.array([place not in found for place in places])) if found else batch


def _trial(unfit: Sequence[Unfit], statements: Sequence[str]) -> Iterator[str]:
    """Yield the statements that fill ``pg_temp.sluice_refused``: place, detail and column of each row."""
    place = ", ".join(map(name_of, _PLACE))
    yield "DROP TABLE IF EXISTS pg_temp.sluice_refused, pg_temp.sluice_tried"
    yield (
        f"CREATE TEMPORARY TABLE sluice_refused AS SELECT {place}, ''::text AS detail, ''::text AS faulty "
        "FROM pg_temp.sluice_staged WITH NO DATA"
    )
    for each in unfit:
        why = f"{literal(each.detail)}, {literal(each.column or '')}"
        chosen = f"SELECT {place}, {why} FROM pg_temp.sluice_staged WHERE {each.condition}"
        yield f"INSERT INTO pg_temp.sluice_refused {chosen}"
    fits = " AND ".join(f"({each.condition}) IS NOT TRUE" for each in unfit) or "true"
    yield (
        f"CREATE TEMPORARY TABLE sluice_tried AS SELECT *, row_number() OVER (ORDER BY {place}) AS {_ROW} "
        f"FROM pg_temp.sluice_staged WHERE {fits}"
    )
    yield f"CREATE INDEX ON pg_temp.sluice_tried ({_ROW})"
    yield f"ALTER TABLE pg_temp.sluice_staged ADD COLUMN {_ROW} bigint"  # so that both have the same columns
    quote = f"$sluice_{uuid.uuid4().hex}$"
    yield f"""DO {quote}
DECLARE
    firsts bigint[]; ends bigint[]; first bigint; past bigint; middle bigint; given text;
    said text; faulty text; number bigint := 0;
BEGIN
    SELECT array_agg(n), array_agg(n + {_PART}) INTO firsts, ends
        FROM generate_series(1, (SELECT count(*) FROM pg_temp.sluice_tried), {_PART}) AS n;
    WHILE cardinality(firsts) > 0 AND number <= {MOST} LOOP
        first := firsts[1]; past := ends[1]; firsts := firsts[2:]; ends := ends[2:];
        BEGIN
            DELETE FROM pg_temp.sluice_staged;
            INSERT INTO pg_temp.sluice_staged
                SELECT * FROM pg_temp.sluice_tried WHERE {_ROW} >= first AND {_ROW} < past;
            FOREACH given IN ARRAY ARRAY[{", ".join(map(literal, statements))}] LOOP
                EXECUTE given;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            IF left(SQLSTATE, 2) NOT IN ({", ".join(map(literal, sorted(REFUSALS)))}) THEN RAISE; END IF;
            GET STACKED DIAGNOSTICS said = MESSAGE_TEXT, faulty = COLUMN_NAME;
            IF past - first > 1 THEN
                middle := (first + past) / 2;
                firsts := ARRAY[first, middle] || firsts; ends := ARRAY[middle, past] || ends;
            ELSE
                INSERT INTO pg_temp.sluice_refused
                    SELECT {place}, said, faulty FROM pg_temp.sluice_tried WHERE {_ROW} = first;
                number := number + 1;
            END IF;
        END;
    END LOOP;
END {quote}"""
