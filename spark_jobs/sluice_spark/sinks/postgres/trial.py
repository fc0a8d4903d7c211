"""Finds the rows of a batch that a table refuses: they are tried in parts, in a transaction that is rolled back.

Parts are tried by the server, whose exceptions undo a part and leave the transaction alive; the driver's library gives
a transaction up at its first error. A part is a view: tables that are filled and emptied thousands of times in one
transaction grow with each.
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
_PLACES = ", ".join(map(name_of, _PLACE))
_ROW = name_of("__sluice_row")
_FIRST, _PAST = "sluice.first", "sluice.past"
"""Settings of the transaction: the part that is tried, by the numbers of its rows."""


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
    prepared: Callable[[Any], tuple[Sequence[Unfit], Sequence[str], Sequence[str]]],
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
        Prepares the table, and returns what it must not get, the statements that write the rows of
        ``pg_temp.sluice_staged`` to it, and those that come once before them.

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
        unfit, statements, before = prepared(cursor)
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("DROP TABLE IF EXISTS pg_temp.sluice_staged")  # of a session that a pooler lends
        rows = list(_without(batches(), found))
        if not rows:
            return found
        columns = rows[0].schema
        reader = pa.RecordBatchReader.from_batches(columns, iter(rows))
        cursor.adbc_ingest("sluice_came", reader, mode="create", temporary=True)
        for statement in (*_staged(unfit, columns.names), *before, _trial(statements)):
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


def _staged(unfit: Sequence[Unfit], columns: Sequence[str]) -> Iterator[str]:
    """Yield the statements that make ``pg_temp.sluice_staged`` a view of the part that is tried."""
    yield (
        f"CREATE TEMPORARY TABLE sluice_refused AS SELECT {_PLACES}, ''::text AS detail, ''::text AS faulty "
        "FROM pg_temp.sluice_came WITH NO DATA"
    )
    for each in unfit:
        why = f"{literal(each.detail)}, {literal(each.column or '')}"
        chosen = f"SELECT {_PLACES}, {why} FROM pg_temp.sluice_came WHERE {each.condition}"
        yield f"INSERT INTO pg_temp.sluice_refused {chosen}"
    fits = " AND ".join(f"({each.condition}) IS NOT TRUE" for each in unfit) or "true"
    yield (
        f"CREATE TEMPORARY TABLE sluice_tried AS SELECT *, row_number() OVER (ORDER BY {_PLACES}) AS {_ROW} "
        f"FROM pg_temp.sluice_came WHERE {fits}"
    )
    yield f"CREATE UNIQUE INDEX ON pg_temp.sluice_tried ({_ROW})"
    yield "ANALYZE pg_temp.sluice_tried"
    first, past = (f"current_setting({literal(name)})::bigint" for name in (_FIRST, _PAST))
    yield (
        f"CREATE TEMPORARY VIEW sluice_staged AS SELECT {', '.join(map(name_of, columns))} FROM pg_temp.sluice_tried "
        f"WHERE {_ROW} >= {first} AND {_ROW} < {past}"
    )
    for name in (_FIRST, _PAST):
        yield f"SELECT set_config({literal(name)}, '0', true)"


def _trial(statements: Sequence[str]) -> str:
    """Return the statement that tries all parts, and adds the rows that are refused to ``pg_temp.sluice_refused``."""
    # names of variables that no column has: PostgreSQL would not know which is meant
    quote = f"$sluice_{uuid.uuid4().hex}$"
    return f"""DO {quote}
DECLARE
    sluice_firsts bigint[]; sluice_ends bigint[];
    sluice_first bigint; sluice_past bigint; sluice_middle bigint; sluice_number bigint := 0;
    sluice_given text; sluice_said text; sluice_faulty text;
BEGIN
    SELECT array_agg(n), array_agg(n + {_PART}) INTO sluice_firsts, sluice_ends
        FROM generate_series(1, (SELECT count(*) FROM pg_temp.sluice_tried), {_PART}) AS n;
    WHILE cardinality(sluice_firsts) > 0 AND sluice_number <= {MOST} LOOP
        sluice_first := sluice_firsts[1]; sluice_firsts := sluice_firsts[2:];
        sluice_past := sluice_ends[1]; sluice_ends := sluice_ends[2:];
        PERFORM set_config({literal(_FIRST)}, sluice_first::text, true);
        PERFORM set_config({literal(_PAST)}, sluice_past::text, true);
        BEGIN
            FOREACH sluice_given IN ARRAY ARRAY[{", ".join(map(literal, statements))}] LOOP
                EXECUTE sluice_given;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            IF left(SQLSTATE, 2) NOT IN ({", ".join(map(literal, sorted(REFUSALS)))}) THEN RAISE; END IF;
            GET STACKED DIAGNOSTICS sluice_said = MESSAGE_TEXT, sluice_faulty = COLUMN_NAME;
            IF sluice_past - sluice_first > 1 THEN
                sluice_middle := (sluice_first + sluice_past) / 2;
                sluice_firsts := ARRAY[sluice_first, sluice_middle] || sluice_firsts;
                sluice_ends := ARRAY[sluice_middle, sluice_past] || sluice_ends;
            ELSE
                INSERT INTO pg_temp.sluice_refused
                    SELECT {_PLACES}, sluice_said, sluice_faulty FROM pg_temp.sluice_tried WHERE {_ROW} = sluice_first;
                sluice_number := sluice_number + 1;
            END IF;
        END;
    END LOOP;
END {quote}"""
