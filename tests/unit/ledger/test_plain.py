"""Any value that a judgement observed is stored in the ledger as strict JSON."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from sluice.ledger import Ledger
from sluice.ledger.plain import plain
from sluice.ranges import OffsetRange

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


def test_observed_values_are_strict_json() -> None:
    for observed, stored in OBSERVED:
        assert plain(observed) == stored
        json.dumps(plain(observed), allow_nan=False).encode("utf-8")


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_values_without_text_and_cycles_are_json() -> None:
    assert plain([Broken()]) == ["<Broken>"]
    endless: list[Any] = []
    endless.append(endless)
    json.dumps(plain(endless), allow_nan=False)


def anything(dice: random.Random, depth: int = 0) -> Any:
    def text() -> str:
        return "".join(chr(dice.choice((0, 9, 65, 0xD800, 0xDFFF, 0xFFFF, 0x1F600))) for _ in range(dice.randrange(4)))

    kind = dice.randrange(5 if depth < 4 else 3)
    if kind == 3:
        return [anything(dice, depth + 1) for _ in range(3)]
    if kind == 4:
        return {dice.choice((text(), math.nan, 7)): anything(dice, depth + 1) for _ in range(3)}
    return dice.choice((text(), dice.choice(OBSERVED)[0], dice.randbytes(3)))


def test_random_judgements_are_strict_json() -> None:
    for seed in range(200):
        text = json.dumps(plain(anything(random.Random(seed))), allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        assert "\\u0000" not in text, seed


def test_verdict_with_any_values_is_stored_and_read_again(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        ledger.run_planned(
            lease, kind="live", recovery="replay", epoch=1, ranges=[OffsetRange("t", 0, 0, 1)], topic_ids={"t": "i"}
        )
        results = [{"observed": o, "examples": [o], "unexpected_percent": float("nan")} for o, _ in OBSERVED]
        ledger.judged(lease, "p", "r", verdict="failed", judgement={"results": results})
    row = ledger.run("p", "r")
    assert row is not None
    assert row.judgement == {
        "results": [{"observed": s, "examples": [s], "unexpected_percent": "NaN"} for _, s in OBSERVED]
    }
    assert ledger.rebuild() == 2
    json.dumps(ledger.events("p"), allow_nan=False)
