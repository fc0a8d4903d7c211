"""Which crash tests are run: those that did not pass before with the same code, of one shard if that is asked."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from sluice.shipped import CHECKOUT

__all__ = ["SHARD", "Passed", "Shard", "code"]

SHARD = "SLUICE_CHAOS_SHARD"
"""The variable that names the shard: ``3/8`` is the third of eight; without it, or empty, everything is run."""

Item = TypeVar("Item")


class Shard(NamedTuple):
    """One part of many, which together have each name once; a name's part depends on the name alone."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard | None:
        """Return the shard of a text such as ``3/8``; None for an empty one.

        Raises
        ------
        ValueError
            When it is none.
        """
        if not text:
            return None
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"a shard is written as 3/8, and not as {text!r}")
        return cls(int(number), int(count))

    @classmethod
    def from_env(cls) -> Shard | None:
        return cls.parse(os.environ.get(SHARD, ""))

    def __contains__(self, name: object) -> bool:
        return zlib.crc32(str(name).encode()) % self.count == self.number - 1

    def part(self, items: Iterable[Item], name: Callable[[Item], str]) -> list[Item]:
        return [item for item in items if name(item) in self]


def code(*folders: str) -> str:
    """Name the code in folders of the project."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((Path(str(CHECKOUT)) / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass
class Passed:
    """Names of tests, a line each, in a file that goes by the code that they passed with, and by what was asked of it.

    ``SLUICE_CHAOS_FOLDER`` names the folder; without it nothing is remembered.
    """

    file: Path | None

    @classmethod
    def from_env(cls) -> Passed:
        folder = os.environ.get("SLUICE_CHAOS_FOLDER")
        asked = [os.environ.get(name, "") for name in ("SLUICE_CHAOS_KILLS", "SLUICE_CHAOS_SEED")]
        name = "-".join(["passed", code("include", "spark_jobs", "plugins", "tests"), *filter(None, asked)])
        return cls(Path(folder) / name if folder else None)

    def names(self) -> set[str]:
        return set(self.file.read_text().splitlines()) if self.file and self.file.exists() else set()

    def add(self, name: str) -> None:
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as out:
                out.write(name + "\n")
