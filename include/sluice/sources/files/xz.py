"""Reads .xz files as the format allows them: several streams, with padding behind each."""

from __future__ import annotations

import io
import lzma
from typing import IO, Any

__all__ = ["Xz"]

_PIECE = 1 << 16


class Xz(io.RawIOBase):
    """The content of an .xz file.

    Python's ``lzma`` takes padding (zeros, between streams or at the end) for a stream that was cut off, or for the end
    of the file, and what follows it is lost.

    Raises
    ------
    EOFError
        By a read, if the file ends within a stream, or is empty.
    lzma.LZMAError
        By a read, if something else than a stream or padding is in it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        self._fresh, self._left, self._any = True, b"", False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read up to as many bytes as fit."""
        while True:
            if self._stream.eof:
                self._left, self._any, self._fresh = self._stream.unused_data, True, True
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            piece = self._left
            if not piece and (self._fresh or self._stream.needs_input):
                piece = self._file.read(_PIECE)
                if not piece:
                    if self._fresh and self._any:
                        return 0
                    raise EOFError("the file ends before its content")
            self._left = b""
            if self._fresh:
                piece = piece.lstrip(b"\0") if self._any else piece
                if not piece:
                    continue
                self._fresh = False
            found = self._stream.decompress(piece, len(buffer))
            if found:
                buffer[: len(found)] = found
                return len(found)

    def close(self) -> None:
        """Close the file, too."""
        self._file.close()
        super().close()
