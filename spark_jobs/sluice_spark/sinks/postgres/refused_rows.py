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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.postgres import literal, name_of
from sluice_spark.sinks.base import MOST, Refusal, RowsRefusedError
from sluice_spark.sinks.postgres.commits import fetched, one
from sluice_spark.sinks.postgres.database import EXHAUSTED, REFUSALS, SURROUNDINGS, AdbcError, describe, refusal

__all__ = ["Refused", "Unfit", "refused_rows"]

Refused = dict[tuple[str, int, int], Refusal]

_PART = 4096
"""Rows that are tried at a time, until one of them is refused."""
_PLACE = ("_topic", "_partition", "_offset")
_PLACES = ", ".join(map(name_of, _PLACE))
_TRIED = ", ".join(f"t.{name_of(name)}" for name in _PLACE)
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
    columns: pa.Schema,
    batches: Callable[[], Iterable[pa.RecordBatch]],
    prepared: Callable[[Any], tuple[Sequence[Unfit], Sequence[str], Sequence[str]]],
    *,
    immediate: bool,
) -> Refused:
    """Return the rows that are refused; all others can be committed together.

    The rows of a record are taken together, or not at all. For two records that the table does not take together, the
    one of the higher offset is refused.

    Parameters
    ----------
    connected
        Begins a transaction, and rolls it back at its end. The table does not change; its sequences advance.
    columns
        The rows' columns.
    batches
        Returns the rows, which have their offsets.
    prepared
        Prepares the table, and returns what it must not get, the statements that write the rows of
        ``pg_temp.sluice_staged`` to it, and those that come once before them.
    immediate
        Whether deferred constraints are checked for each part.

    Returns
    -------
    dict
        Empty if no row is refused now, or if more are than :data:`MOST`.
    """
    found: Refused = {}
    with connected() as connection:
        for batch in batches():
            _bring(connection, pa.Table.from_batches([batch]), found)
            if len(found) > MOST:
                return {}
    with connected() as connection, connection.cursor() as cursor:
        unfit, statements, before = prepared(cursor)
        if immediate:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("DROP TABLE IF EXISTS pg_temp.sluice_staged")  # of a session that a pooler lends
        reader = pa.RecordBatchReader.from_batches(columns, _without(batches(), found))
        cursor.adbc_ingest("sluice_came", reader, mode="create", temporary=True)
        for statement in (*_staged(unfit, columns.names), *before, _trial(statements)):
            cursor.execute(statement)
        told = fetched(cursor, f"SELECT {_PLACES}, detail, faulty, code FROM pg_temp.sluice_refused")
        tried = int(one(cursor, f"SELECT count(DISTINCT {_ROW}) FROM pg_temp.sluice_tried"))
        connection.rollback()
    if tried and tried == sum(bool(code) for *_, code in told) and not any(code[:2] in REFUSALS for *_, code in told):
        return {}  # all, by errors that need not be of a row: the table is at fault
    found |= {tuple(place): Refusal(detail, column or None) for *place, detail, column, _ in told}
    return found if len(found) <= MOST else {}


def _bring(connection: Any, rows: pa.Table, found: Refused) -> None:
    """Find the rows with values that no column holds, such as a zero character: they do not reach the server."""
    zeros = np.zeros(rows.num_rows, dtype=bool)
    for name in rows.column_names:
        if pa.types.is_string(rows.schema.field(name).type):
            here = pc.fill_null(pc.match_substring(rows[name], "\0"), False).to_numpy(zero_copy_only=False)
            for place in _places(rows.filter(pa.array(here & ~zeros))):
                found[place] = Refusal("a text has a zero character, and PostgreSQL holds none", name)
            zeros |= here
    _halve(connection, rows.filter(pa.array(~zeros)) if zeros.any() else rows, found)


def _halve(connection: Any, rows: pa.Table, found: Refused) -> None:
    if not rows.num_rows or len(found) > MOST:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL client_encoding = 'UTF8'")  # until the transaction is rolled back
            cursor.adbc_ingest("sluice_brought", rows, mode="create", temporary=True)
        connection.rollback()
        return
    except AdbcError as error:
        connection.rollback()
        told = describe(error, "the table")
        if not isinstance(told, RowsRefusedError):
            raise told from error
        why = refusal(error)
    if rows.num_rows == 1:
        found[_places(rows)[0]] = why
        return
    half = rows.num_rows // 2
    _halve(connection, rows.slice(0, half), found)
    _halve(connection, rows.slice(half), found)


def _places(rows: pa.Table | pa.RecordBatch) -> list[tuple[str, int, int]]:
    return list(zip(*(rows.column(name).to_pylist() for name in _PLACE), strict=True))


def _without(batches: Iterable[pa.RecordBatch], found: Refused) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pa.array([place not in found for place in _places(batch)], pa.bool_())) if found else batch


def _staged(unfit: Sequence[Unfit], columns: Sequence[str]) -> Iterator[str]:
    """Yield the statements that make ``pg_temp.sluice_staged`` a view of the part that is tried."""
    yield (
        f"CREATE TEMPORARY TABLE sluice_refused AS SELECT {_PLACES}, ''::text AS detail, ''::text AS faulty, "
        f"''::text AS code, 0::bigint AS {_ROW} FROM pg_temp.sluice_came WITH NO DATA"
    )
    for each in unfit:
        why = f"{literal(each.detail)}, {literal(each.column or '')}, '', 0"
        chosen = f"SELECT {_PLACES}, {why} FROM pg_temp.sluice_came WHERE {each.condition}"
        yield f"INSERT INTO pg_temp.sluice_refused {chosen}"
    yield (
        f"CREATE TEMPORARY TABLE sluice_tried AS SELECT *, dense_rank() OVER (ORDER BY {_PLACES}) AS {_ROW} "
        f"FROM pg_temp.sluice_came WHERE ({_PLACES}) NOT IN (SELECT {_PLACES} FROM pg_temp.sluice_refused)"
    )
    yield f"CREATE INDEX ON pg_temp.sluice_tried ({_ROW})"
    yield "ANALYZE pg_temp.sluice_tried"
    first, past = (f"current_setting({literal(name)})::bigint" for name in (_FIRST, _PAST))
    yield (
        f"CREATE TEMPORARY VIEW sluice_staged AS SELECT {', '.join(map(name_of, columns))} FROM pg_temp.sluice_tried "
        f"WHERE {_ROW} >= {first} AND {_ROW} < {past}"
    )
    for name in (_FIRST, _PAST):
        yield f"SELECT set_config({literal(name)}, '0', true)"


def _trial(statements: Sequence[str]) -> str:
    """Return the statement that tries all parts, and adds the rows that are refused to ``pg_temp.sluice_refused``.

    At the end those are tried again, by themselves, until no more of them are taken: a row may need one that came
    behind it.
    """
    # names of variables that no column has: PostgreSQL would not know which is meant
    quote = f"$sluice_{uuid.uuid4().hex}$"
    given = ", ".join(map(literal, statements))
    classes = ", ".join(map(literal, sorted(SURROUNDINGS)))
    return f"""DO {quote}
DECLARE
    sluice_firsts bigint[]; sluice_ends bigint[]; sluice_again boolean := false; sluice_count bigint := 0;
    sluice_before bigint := 0;
    sluice_first bigint; sluice_past bigint; sluice_middle bigint;
    sluice_given text; sluice_said text; sluice_faulty text; sluice_where text;
BEGIN
    SELECT array_agg(n), array_agg(n + {_PART}) INTO sluice_firsts, sluice_ends
        FROM generate_series(1, (SELECT max(t.{_ROW}) FROM pg_temp.sluice_tried AS t), {_PART}) AS n;
    LOOP
        IF coalesce(cardinality(sluice_firsts), 0) = 0 OR sluice_count > {MOST} THEN
            EXIT WHEN sluice_count > {MOST} OR (sluice_again AND sluice_count = sluice_before);
            sluice_again := true; sluice_before := sluice_count;
            SELECT array_agg(r.{_ROW} ORDER BY r.{_ROW}), array_agg(r.{_ROW} + 1 ORDER BY r.{_ROW})
                INTO sluice_firsts, sluice_ends FROM pg_temp.sluice_refused AS r WHERE r.{_ROW} > 0;
            CONTINUE;
        END IF;
        sluice_first := sluice_firsts[1]; sluice_firsts := sluice_firsts[2:];
        sluice_past := sluice_ends[1]; sluice_ends := sluice_ends[2:];
        PERFORM set_config({literal(_FIRST)}, sluice_first::text, true);
        PERFORM set_config({literal(_PAST)}, sluice_past::text, true);
        BEGIN
            FOREACH sluice_given IN ARRAY ARRAY[{given}] LOOP
                EXECUTE sluice_given;
            END LOOP;
            IF sluice_again THEN
                DELETE FROM pg_temp.sluice_refused AS r WHERE r.{_ROW} = sluice_first;
                sluice_count := sluice_count - 1;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS sluice_said = MESSAGE_TEXT, sluice_faulty = COLUMN_NAME,
                sluice_where = PG_EXCEPTION_CONTEXT;
            IF (left(SQLSTATE, 2) IN ({classes}) OR SQLSTATE IN ({literal(EXHAUSTED)}))
                AND split_part(sluice_where, E'\n', 1) NOT LIKE '%RAISE%' THEN RAISE;
            END IF;
            IF sluice_past - sluice_first > 1 THEN
                sluice_middle := (sluice_first + sluice_past) / 2;
                sluice_firsts := ARRAY[sluice_first, sluice_middle] || sluice_firsts;
                sluice_ends := ARRAY[sluice_middle, sluice_past] || sluice_ends;
            ELSIF NOT sluice_again THEN
                INSERT INTO pg_temp.sluice_refused
                    SELECT DISTINCT {_TRIED}, sluice_said, sluice_faulty, SQLSTATE, t.{_ROW}
                    FROM pg_temp.sluice_tried AS t WHERE t.{_ROW} = sluice_first;
                sluice_count := sluice_count + 1;
            END IF;
        END;
    END LOOP;
END {quote}"""
