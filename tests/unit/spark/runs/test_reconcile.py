"""What the tables hold and the ledger does not know yet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction

from sluice.delta.names import interval_app_id
from sluice.ledger import Ledger
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_spark.runs.reconcile import half_done
from sluice_spark.sinks.delta.table import DeltaSink

SCHEMA = Schema.from_arrow(pa.schema([("a", pa.int64())]))


def committed(path: Path, *transactions: tuple[str, int], settings: dict[str, str | None] | None = None) -> DeltaTable:
    DeltaTable.create(str(path), schema=SCHEMA, mode="ignore", configuration=settings)
    for app, version in transactions:
        DeltaTable(str(path)).create_write_transaction(
            [], "append", SCHEMA, [],
            commit_properties=CommitProperties(app_transactions=[Transaction(app, version, None)]),
        )  # fmt: skip
    return DeltaTable(str(path))


def test_which_intervals_are_half_done_is_asked_once_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, keys = (
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db"),
        [f"2013-01-0{n}/2013-01-0{n + 1}" for n in range(1, 9)],
    )
    span = OffsetRange("t", 0, 0, 4)
    asked: list[str] = []
    for key in keys:
        with ledger.acquire("p", f"run {key}", scope=key) as lease:
            number = ledger.interval_resolved(lease, key, ranges=[span], whole=True, topic_ids={})
            if key != keys[4]:
                accounts = [RangeAccount(span, Counts(written=4))]
                ledger.batch_committed(lease, epoch=-number, batch=0, accounts=accounts)
    committed(tmp_path / "t", *((interval_app_id("p", key), 0) for key in keys))
    real = DeltaTable.transaction_version

    def counted(self: DeltaTable, app: str) -> int | None:
        asked.append(app)
        return real(self, app)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    found = half_done(ledger, "p", DeltaSink(str(tmp_path / "t"), "app"))
    assert [known.interval for known in found] == [keys[4]]
    assert asked == [interval_app_id("p", keys[4])]
    (tmp_path / "t" / "_delta_log" / "_last_checkpoint").write_text('{"version": 1, "parts": 2}')
    assert [known.interval for known in half_done(ledger, "p", DeltaSink(str(tmp_path / "t"), "app"))] == [keys[4]]
