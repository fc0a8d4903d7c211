"""Any value that a judgement observed is stored in the ledger as strict JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from tests.fixtures.ledgers import attempt

from sluice.ledger import Ledger
from sluice.ledger.events import Judged
from sluice.ledger.strict_json import plain

OBSERVED: list[tuple[Any, Any]] = [
    (float("nan"), "NaN"),
    (float("inf"), "Infinity"),
    (np.float64("nan"), "NaN"),
    (np.float64(1.5), 1.5),
    (np.bool_(True), True),
    (np.array([1.0, np.nan]), [1.0, "NaN"]),
    (np.longdouble("nan"), "nan"),
    (pd.Timestamp("2013-01-01", tz="UTC"), "2013-01-01T00:00:00+00:00"),
    (Decimal("NaN"), "NaN"),
    (b"\x00\xff", "b'\\x00\\xff'"),
    ("a\x00b", "a\\x00b"),
    ("half \ud800 pair", "half \\ud800 pair"),
    ("ä €", "ä €"),
    (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00+00:00"),
    (10**5000, hex(10**5000)),
    ({"deep": [{"n": (float("nan"), {3})}], float("inf"): 1, None: 2, "\x00\udfff": 3},
     {"deep": [{"n": ["NaN", [3]]}], "Infinity": 1, "null": 2, "\\x00\\udfff": 3}),
    (object, "<class 'object'>"),
]  # fmt: skip


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_verdict_with_any_values_is_stored_and_read_again(each_ledger: Ledger) -> None:
    with attempt(each_ledger, "r") as lease:
        results = [{"observed": o, "examples": [o], "unexpected_percent": float("nan")} for o, _ in OBSERVED]
        each_ledger.record(lease, Judged(verdict="failed", judgement={"results": results}), run_id="r")
    stored = [{"observed": s, "examples": [s], "unexpected_percent": "NaN"} for _, s in OBSERVED]
    assert each_ledger.runs.known("p", "r").judgement == {"results": stored}
    assert each_ledger.rebuild() == 2
    json.dumps(each_ledger.events("p"), allow_nan=False)


def test_observed_values_without_text_and_cycles_are_json() -> None:
    assert plain([Broken()]) == ["<Broken>"]
    endless: list[Any] = []
    endless.append(endless)
    json.dumps(plain(endless), allow_nan=False)
