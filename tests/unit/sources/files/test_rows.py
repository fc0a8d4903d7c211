"""Cutting a file into rows: any block size, any quotes, from any row on."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sources.files import rows as module
from sluice.sources.files.rows import count, rows

PIECES = st.lists(
    st.sampled_from(["a", ",", '"x\ny"', '"""q"""', '""', "\n", "\r\n", "\r", "é", "\0", " "]), max_size=14
).map(lambda pieces: "".join(pieces).encode())


def all_rows(data: bytes, *, quoted: bool, header: bool = False) -> list[bytes]:
    found = rows(io.BytesIO(data), quoted=quoted, header=header, start=0, end=1 << 60)
    return [row for _, part in found for row in part]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(module, "_MARKED", 5)


@pytest.mark.usefixtures("small_blocks")
def test_rows_are_the_same_for_any_block_size_and_start() -> None:
    @given(PIECES, st.booleans(), st.booleans())
    def check(data: bytes, quoted: bool, header: bool) -> None:
        found = all_rows(data, quoted=quoted, header=header)
        with pytest.MonkeyPatch.context() as large:
            large.setattr(module, "BLOCK", 1 << 20)
            assert all_rows(data, quoted=quoted, header=header) == found
        counted = count(io.BytesIO(data), quoted=quoted, header=header)
        assert counted.rows == len(found)
        for start in range(len(found)):
            some = rows(io.BytesIO(data), quoted=quoted, header=header, start=start, end=start + 2, marks=counted.marks)
            numbered = [(first + n, row) for first, part in some for n, row in enumerate(part)]
            assert numbered == list(enumerate(found))[start : start + 2]

    check()


@given(st.lists(st.lists(st.text("ab,\"\n'", max_size=4), min_size=2, max_size=3), max_size=5))
def test_csv_rows_are_those_of_a_csv_reader(table: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(table)
    found = all_rows(text.getvalue().encode(), quoted=True)
    assert [next(csv.reader(io.StringIO(row.decode(), newline=""))) for row in found] == table


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\n\r\nb", [b"a", b"", b"b"]),
        (b"\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b'a "b\nc', [b'a "b', b"c"]),
    ],
)
def test_rows_of_lines(data: bytes, expected: list[bytes]) -> None:
    assert all_rows(data, quoted=False) == expected


def test_header_is_no_row() -> None:
    found = count(io.BytesIO(b"\xef\xbb\xbfid,name\r\n1,a\n"), quoted=True, header=True)
    assert (found.rows, found.header) == (1, b"id,name")
    assert count(io.BytesIO(b""), quoted=True, header=True).rows == 0
    assert count(io.BytesIO(b"id,name"), quoted=True, header=True).rows == 0
