"""Files that are made once, and whole."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["made_once"]


def made_once(file: Path, content: bytes) -> bool:
    """Make a file, unless it is there; return whether this call made it.

    One of several processes makes it. Whoever sees it sees all of it, also after a power cut. A process that is killed
    may leave a file with a leading dot, which no program reads.

    Raises
    ------
    OSError
        If the storage refuses it.
    """
    draft = file.parent / f".{uuid.uuid4().hex}"
    try:
        with draft.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())  # or a power cut may leave the name without the content
        try:
            os.link(draft, file)
        except FileExistsError:
            if not os.path.samefile(draft, file):  # NFS says so too of a link that it made and whose answer was lost
                return False
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True
    finally:
        draft.unlink(missing_ok=True)
