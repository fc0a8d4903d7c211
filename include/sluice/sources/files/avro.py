"""Avro's object container files: their rows, as JSON, and how many there are.

See `Avro's specification <https://avro.apache.org/docs/1.12.0/specification/#object-container-files>`_. The records are
read by fastavro. Its own reader of such files is not used: it converts times and dates into types of Python that do not
hold all of them, and it has to decompress what is only counted.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, Any

from sluice.errors import ConfigError
from sluice.sources.files.avro_json import Texts
from sluice.sources.files.json_text import UnfitError
from sluice.sources.files.rows import Counted

__all__ = ["count", "rows"]

_MAGIC = b"Obj\x01"
_HEADER = {
    "type": "record", "name": "Header", "fields": [
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}  # fmt: skip
_LEGACY = "org.apache.spark.legacyDateTime"
_MARKED = 64 << 20
"""Bytes between two marks."""


def count(file: IO[bytes]) -> Counted:
    """Count the rows of a file, by the heads of its blocks.

    Raises
    ------
    UnfitError
        If its rows cannot be written as JSON.
    ConfigError
        If fastavro is not installed.
    OSError, EOFError, ValueError
        If it is not a whole Avro file.
    """
    opened = _Opened(file)
    total, marks, marked = 0, [], 0
    for block in opened.blocks():
        total += block.count
        opened.skip(block)
        if file.seekable() and file.tell() - marked >= _MARKED:
            marks.append((total, file.tell()))
            marked = file.tell()
    return Counted(total, opened.columns().encode(), tuple(marks))


def rows(
    file: IO[bytes], *, start: int, end: int, marks: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield rows of a file as JSON, in lists, each with the number of its first row.

    Parameters
    ----------
    start, end
        The numbers of the first row, and of the row after the last one.
    marks
        Those of :class:`~sluice.sources.files.rows.Counted`, if the file can be sought in.
    """
    opened = _Opened(file)
    at, place = max((mark for mark in marks if mark[0] <= start), default=(0, 0))
    if place:
        file.seek(place)
    for block in opened.blocks():
        if at + block.count <= start:
            opened.skip(block)
        else:
            found = opened.records(block, end - at)
            begin = max(start - at, 0)
            yield at + begin, found[begin:]
        at += block.count
        if at >= end:
            return


@dataclass(frozen=True)
class _Block:
    """The head of a block: the number of its records, and its length in bytes."""

    count: int
    size: int


class _Opened:
    """A file whose header was read."""

    def __init__(self, file: IO[bytes]) -> None:
        if find_spec("fastavro") is None:
            raise ConfigError(
                "source.file with format: avro cannot read files here: the package fastavro is missing",
                state="nothing was read or written",
                next_step="install the extra sluice[avro] where Spark's driver and workers run",
            )
        from fastavro import parse_schema, schemaless_reader

        self._file = file
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin as Avro files do")
        header: Any = schemaless_reader(file, parse_schema(_HEADER), None)
        self._sync, meta = header["sync"], header["meta"]
        self._codec = meta.get("avro.codec", b"null").decode()
        if self._codec not in _CODECS:
            raise UnfitError(f"its codec {self._codec!r} is not one of {', '.join(_CODECS)}")
        schema = json.loads(meta["avro.schema"])
        if _LEGACY in meta and re.search(rb'"(?:date|(?:local-)?timestamp-\w+)"', meta["avro.schema"]):
            raise UnfitError("its dates and times are of the calendar of Spark before 3.0 (datetimeRebaseModeInWrite)")
        names: dict[str, Any] = {}
        try:
            whole = parse_schema(_without(schema, "default"), named_schemas=names)
            self._bare = parse_schema(_without(schema, "default", "logicalType"))
        except Exception as error:  # fastavro has many names for what is no schema
            raise UnfitError(f"its schema cannot be read: {error}") from error
        self._schema = schema
        self._text = Texts(names).of(whole, ())

    def columns(self) -> str:
        """Return the names and types of the columns, as a JSON object."""
        schema = _without(self._schema, "default", "doc", "aliases")
        fields = schema["fields"] if isinstance(schema, dict) and "fields" in schema else [{"name": "", "type": schema}]
        told = {f["name"]: f["type"] if isinstance(f["type"], str) else json.dumps(f["type"]) for f in fields}
        return json.dumps(told, ensure_ascii=False)

    def blocks(self) -> Iterator[_Block]:
        """Yield the head of each block; its bytes are to be read, or skipped, before the next one."""
        while (number := self._long()) is not None:
            size = self._long()
            if size is None or number < 0 or size < 0:
                raise ValueError("a block has no length")
            yield _Block(number, size)

    def skip(self, block: _Block) -> None:
        """Go to the end of a block."""
        if self._file.seekable():
            self._file.seek(block.size, io.SEEK_CUR)
        elif len(self._file.read(block.size)) < block.size:  # it is decompressed
            raise EOFError("it ends within a block")
        self._ends()

    def records(self, block: _Block, most: int) -> list[bytes]:
        """Read the first records of a block, as JSON."""
        from fastavro import schemaless_reader

        data = self._file.read(block.size)
        if len(data) < block.size:
            raise EOFError("it ends within a block")
        self._ends()
        stream = io.BytesIO(_CODECS[self._codec](data))
        found = []
        for _ in range(min(block.count, most)):
            value: Any = schemaless_reader(
                stream,
                self._bare,
                None,
                handle_unicode_errors="surrogateescape",
                return_named_type=True,
                return_named_type_override=True,
            )
            # what is not UTF-8 stays as it is, and the decoder refuses it
            found.append(self._text(value).encode("utf-8", "surrogateescape"))
        if most >= block.count and stream.read(1):
            raise ValueError("a block has more than its records")
        return found

    def _ends(self) -> None:
        if self._file.read(len(self._sync)) != self._sync:
            raise EOFError("a block does not end as it should")

    def _long(self) -> int | None:
        """Read a number; None at the end of the file."""
        value = shift = 0
        while shift < 64:
            byte = self._file.read(1)
            if not byte:
                if shift:
                    raise EOFError("it ends within a number")
                return None
            value |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number is too long")


def _snappy(data: bytes) -> bytes:
    import pyarrow as pa

    body, size, shift = data[:-4], 0, 0
    for byte in body[:5]:  # its uncompressed length
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    found: bytes = pa.decompress(body, size, codec="snappy", asbytes=True)
    if zlib.crc32(found) != int.from_bytes(data[-4:], "big"):
        raise ValueError("a block has another checksum")
    return found


def _zstandard(data: bytes) -> bytes:
    import pyarrow as pa

    found: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return found


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.decompress(data, -15),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


def _without(schema: Any, *keys: str) -> Any:
    """Return a schema without some keys; without ``logicalType`` fastavro gives the written values."""
    if isinstance(schema, list):
        return [_without(part, *keys) for part in schema]
    if isinstance(schema, dict):
        return {key: _without(part, *keys) for key, part in schema.items() if key not in keys}
    return schema
