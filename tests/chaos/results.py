"""The table of what ran when at which commit: ``docs/chaos-results.json``, and the page that it renders.

``python -m tests.chaos.results [FILE...]`` renders the page, once the tables of other machines are merged into it.
"""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sluice.shipped import CHECKOUT

__all__ = ["DATA", "MARK", "PAGE", "load", "merged", "now", "page", "render", "revision", "update"]

ROOT = Path(str(CHECKOUT))
DATA, PAGE = ROOT / "docs" / "chaos-results.json", ROOT / "docs" / "chaos-results.md"
MARK = "<!-- make chaos writes what follows -->"

Record = dict[str, Any]

_PARTS = {"scenarios": "scenario", "files": "file"}
"""The lists of records, and what a record is about."""
_SUMS = ("lost", "ignored", "doubled", "unaccounted", "failed", "refused")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def revision() -> str:
    """Name the commit of the checkout; with a ``+`` if code differs from it."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    code = ["include", "plugins", "spark_jobs", "tests"]
    changed = subprocess.run([*git, "status", "--porcelain", "--", *code], capture_output=True, text=True, check=False)
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def load(file: Path = DATA) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))


def merged(old: Sequence[Record], new: Sequence[Record], name: str) -> list[Record]:
    """Return for each name the newest record and, if it is another one, the one that tried most, in this order.

    Records of one test file that passed with the same code become one.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in [*old, *new]:
        groups[record[name]].append(record)
    found = []
    for records in groups.values():
        newest_first = sorted(_joined(records), key=lambda r: r["date"], reverse=True)
        most = max(newest_first, key=tried)
        found += [newest_first[0], *([most] if tried(most) > tried(newest_first[0]) else [])]
    return sorted(found, key=lambda r: str(r[name]))


def tried(record: Record) -> int:
    if "file" in record:
        return len(record["passed"]) + len(record["failed"])
    return sum(record[part] or 0 for part in ("deaths", "cuts", "kills"))


def _joined(records: Iterable[Record]) -> list[Record]:
    found: dict[str, Record] = {}
    for number, record in enumerate(sorted(records, key=lambda r: str(r["date"]))):
        place = record.get("code") or str(number)
        if place in found:
            old, passed = found[place], record["passed"]
            record = {
                **record,
                "tests": max(old["tests"], record["tests"]),
                "passed": sorted({*passed, *old["passed"]} - {*record["failed"]}),
                "failed": sorted({*record["failed"], *old["failed"]} - {*passed}),
            }
        found[place] = record
    return list(found.values())


@contextmanager
def _alone() -> Iterator[None]:
    with DATA.open() as held:  # scenarios and shards end at the same time
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def update(**parts: Any) -> None:
    """Merge records into the table, and render the page.

    Parameters
    ----------
    parts
        ``scenarios`` and ``files``: records. ``versions``: of programs, by name.
    """
    with _alone():
        table = load()
        for part, name in _PARTS.items():
            table[part] = merged(table[part], parts.get(part, ()), name)
        table["versions"] = parts.get("versions") or table["versions"]
        DATA.write_text(dumped(table))
        PAGE.write_text(page(PAGE.read_text(), table))


def dumped(table: Mapping[str, Any]) -> str:
    """Return the table in JSON form, a line for each record."""
    lines = []
    for part, value in table.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(record)}" for record in value) + "\n ]" if value else "[]"
        else:
            text = json.dumps(value)
        lines.append(f' "{part}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def page(text: str, table: Mapping[str, Any]) -> str:
    """Return the page: its head, which a person wrote, and what the table renders."""
    return f"{text.partition(MARK)[0]}{MARK}\n\n{render(table)}"


def render(table: Mapping[str, Any]) -> str:
    newest = {record["scenario"]: record for record in reversed(table["scenarios"])}
    parts = ("deaths", "cuts", "kills", *_SUMS)
    sums = {part: f"{sum(record[part] or 0 for record in newest.values()):,}" for part in parts}
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    earlier = table["earlier"]
    blocks = [
        "## Recorded runs",
        f"Newest rows of {len(newest)} scenarios: {sums['deaths']} recorded deaths and {sums['cuts']} power cuts "
        f"resumed, {sums['kills']} drivers killed. **Lost, doubled, unaccounted: {sums['lost']}, {sums['doubled']}, "
        f"{sums['unaccounted']}**; given up on purpose {sums['ignored']}, refused {sums['refused']}, failed "
        f"{sums['failed']}.",
        f"Versions of the last run: {versions}.",
        _table([*_RUNS], [[cell(record) for cell in _RUNS.values()] for record in table["scenarios"]]),
        "## Points that drivers were killed at",
        _points(table),
        "## Tests",
        _table([*_TESTS], [[cell(record) for cell in _TESTS.values()] for record in table["files"]]),
        "## Earlier sums",
        "Of runs that were recorded by strategy and not by scenario, before the steps of today.",
        _table([*earlier[0]], [[v if isinstance(v, str) else _count(v) for v in row.values()] for row in earlier]),
    ]
    return "\n\n".join(blocks) + "\n"


def _of(record: Record, part: str) -> str:
    every = record[f"{part}_of"]
    return _count(record[part]) if every is None else f"{_count(record[part])} of {_count(every)}"


def _count(number: float | None) -> str:
    return "–" if number is None else f"{round(number):,}"


def _counted(part: str) -> Callable[[Record], str]:
    return lambda record: _count(record[part])


_WHEN: dict[str, Callable[[Record], str]] = {"date": lambda r: r["date"][:10], "commit": lambda r: r["commit"]}
_RUNS: dict[str, Callable[[Record], str]] = {
    "scenario": lambda r: f"`{r['scenario']}`",
    "steps": lambda r: f"`{r['steps']}`" if r["steps"] else "earlier",
    "deaths": lambda r: _of(r, "deaths"),
    "power cuts": lambda r: _of(r, "cuts"),
    "kills": lambda r: _of(r, "kills"),
    **{part: _counted(part) for part in ("lost", "doubled", "unaccounted")},
    "given up": _counted("ignored"),
    **{part: _counted(part) for part in ("refused", "failed", "seconds")},
    **_WHEN,
}
_TESTS: dict[str, Callable[[Record], str]] = {
    "file": lambda r: f"`{r['file']}`",
    "tests": _counted("tests"),
    "run": lambda r: _count(tried(r)),
    "passed": lambda r: _count(len(r["passed"])),
    **_WHEN,
}
"""What the columns have."""


def _points(table: Mapping[str, Any]) -> str:
    killed: dict[str, set[str]] = defaultdict(set)
    for record in table["scenarios"]:
        killed[record["strategy"]] |= {*record["points"]}
    for strategy, points in table["points"].items():
        killed[strategy] |= {*points}
    strategies = sorted(killed)
    rows = [
        (f"`{point}`", *("killed" if point in killed[s] else "–" for s in strategies))
        for point in sorted(set().union(*killed.values()))
    ]
    return _table(["point", *(f"`{s}`" for s in strategies)], rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    found = [list(row) for row in rows]
    number = re.compile(r"–|[\d,]+( of [\d,]+)?")
    right = [bool(found) and all(number.fullmatch(row[n]) for row in found) for n in range(len(columns))]
    lines = [list(columns), ["---:" if it else "---" for it in right], *found]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    for other in map(load, map(Path, sys.argv[1:])):
        update(**{part: other[part] for part in _PARTS})
    update()
