"""Decodes CSV records a chunk at a time, and sets aside each record that the Spark path might decode in another way.

Why what is accepted is right: ``docs/arrow.md``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from sluice.decoders.config import CsvDecode
from sluice_spark.arrow.base import Decoded, is_text
from sluice_spark.arrow.columns import arrow_type, finish, read_text

__all__ = ["CsvChunks"]

_LONGEST = 32_768


class CsvChunks:
    """Decodes chunks of CSV records into typed columns.

    Parameters
    ----------
    config
        How a record is divided.
    schema
        The declared columns; each type must be supported: :func:`~sluice_spark.arrow.columns.unsupported`.
    """

    keyed = False

    def __init__(self, config: CsvDecode, schema: T.StructType) -> None:
        self._config = config
        self._schema = schema  # a worker has no Spark session that parses DDL
        self._fields = schema.fields
        self.columns = pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in self._fields])
        own = config.escape not in (None, config.quote)
        marks = [config.quote, "\r", "\n", *([config.escape] if own else [])]
        self._special = "|".join(re.escape(str(mark)) for mark in marks)
        self._cells = _Cells(config, len(self._fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._config, self._schema)  # patterns are compiled again

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] = ()) -> Decoded:
        """Decode the values of a chunk; those that may be decoded in another way by Spark are left out."""
        good = [n for n, v in enumerate(values) if v and is_text(v) and len(v) <= _LONGEST]
        lines = pa.array([values[n] for n in good], pa.binary()).cast(pa.string())
        special = pc.match_substring_regex(lines, self._special).to_numpy(zero_copy_only=False)
        plain = np.flatnonzero(~special)
        split = pc.split_pattern(lines.take(pa.array(plain)), self._config.separator)
        sound = pc.list_value_length(split).to_numpy() == len(self._fields)
        if not sound.all():
            plain, split = plain[sound], split.filter(pa.array(sound))
        cells = split.flatten()
        width = len(self._fields)
        texts = [cells.take(pa.array(np.arange(n, len(cells), width))) for n in range(width)]
        heads = self._heads(texts, len(plain))
        texts = [pc.if_else(pc.equal(t, self._config.null_text), pa.scalar(None, t.type), t) for t in texts]
        order = plain
        if special.any():
            number, others, names = self._quoted(lines, np.flatnonzero(special))
            heads = np.concatenate([heads, names])
            order = np.concatenate([plain, number])
            sort = np.argsort(order)
            places = pa.array(sort)
            texts = [pa.concat_arrays([t, o]).take(places) for t, o in zip(texts, others, strict=True)]
            heads, order = heads[sort], order[sort]
        return self._finished(texts, heads, np.asarray(good, np.int64)[order], len(values))

    def _finished(self, texts: Sequence[pa.Array], doubtful: Any, numbers: Any, count: int) -> Decoded:
        arrays = []
        for f, text in zip(self._fields, texts, strict=True):
            parsed = read_text(text, f.dataType)
            found = finish(parsed, f.dataType, nullable=f.nullable)
            arrays.append(found.array)
            doubtful = doubtful | np.asarray(pc.and_(text.is_valid(), parsed.is_null()))
            if found.doubtful is not None:
                doubtful = doubtful | found.doubtful
        made = pa.Table.from_arrays(arrays, schema=self.columns)
        if doubtful.any():
            sure = np.flatnonzero(~doubtful)
            made, numbers = made.take(pa.array(sure)), numbers[sure]
        return Decoded(made, None if len(numbers) == count else numbers)

    def _heads(self, texts: Sequence[pa.Array], count: int) -> Any:
        """Return which records consist of the columns' names, and so are refused if producers send header lines."""
        if not self._config.header:
            return np.zeros(count, dtype=bool)
        same = [np.asarray(pc.equal(t, f.name)) for f, t in zip(self._fields, texts, strict=True)]
        return reduce(np.logical_and, same)

    def _quoted(self, lines: pa.Array, special: Any) -> tuple[Any, list[pa.Array], Any]:
        """Split records with quotes, escapes or line breaks; those that are not sound are left out.

        Returns
        -------
        numbers, texts, heads
            The records' numbers, the text of each column, and which of them consist of the columns' names.
        """
        numbers, rows, heads = [], [], []
        names = [f.name for f in self._fields]
        texts = [isinstance(f.dataType, T.StringType) for f in self._fields]
        null = self._config.null_text
        for number, line in zip(special.tolist(), lines.take(pa.array(special)).to_pylist(), strict=True):
            cells = self._cells.of(line)
            if cells is None:
                continue
            bare = [self._cells.bare(cell) for cell in cells]
            numbers.append(number)
            heads.append(self._config.header and bare == names)
            # a quoted text is never null; of other types, quotes do not matter
            rows.append(
                [None if (c if text else b) == null else b for c, b, text in zip(cells, bare, texts, strict=True)]
            )
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        return np.array(numbers, np.int64), [pa.array(c, pa.string()) for c in columns], np.array(heads, dtype=bool)


class _Cells:
    """Splits records with quotes, by the patterns of the Spark path."""

    def __init__(self, config: CsvDecode, count: int) -> None:
        self._config = config
        self._count = count
        self._own = config.escape not in (None, config.quote)
        quote, escape, sep = (re.escape(c) for c in (config.quote, config.escape or config.quote, config.separator))
        inside = (
            rf"(?:[^{quote}{escape}]|{escape}.)*+" if self._own else rf"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
        )
        null = f"{re.escape(config.null_text)}(?={sep})|" if config.null_text else ""
        one = rf"(?:{null}{quote}{inside}{quote}|[^{quote}{escape}{sep}\r\n]*+)"
        self._sound = re.compile(rf"(?s)(?:{one}{sep})++")
        self._one = re.compile(rf"(?s)({one}){sep}")
        self._escaped = re.compile(rf"(?s){escape}(.)")

    def of(self, line: str) -> list[str] | None:
        """Return the cells of a record with their quotes; None if it is not sound, or has another number of them."""
        if line.endswith(("\n", "\r")):  # like the last line of a file, a record may end with a line break
            line = line[:-2] if line.endswith("\r\n") else line[:-1]
        marks = (self._config.quote, self._config.escape) if self._own else (self._config.quote,)
        if not any(mark in line for mark in marks if mark):
            sound = bool(line) and "\n" not in line and "\r" not in line
            cells = line.split(self._config.separator) if sound else []
        else:
            whole = line + self._config.separator
            cells = self._one.findall(whole) if self._sound.fullmatch(whole) else []
        return cells if len(cells) == self._count else None

    def bare(self, cell: str) -> str:
        """Return a cell without its quotes."""
        quote = self._config.quote
        if not cell.startswith(quote):
            return cell
        inner = cell[1:-1]
        return self._escaped.sub(r"\1", inner) if self._own else inner.replace(quote * 2, quote)
