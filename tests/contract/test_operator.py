"""The contract of operators with state: what they refuse before a run, and what becomes of each record in a stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.fixtures.decoding import Record, frame_of
from tests.fixtures.held import Held
from tests.fixtures.inside import MODULES, on_path

from sluice.errors import ConfigError
from sluice.facts import Duplicates, Windows
from sluice.kinds import imported, kind_of
from sluice.pipeline import Pipeline, load
from sluice.pipeline.window import Window
from sluice.ranges import Counts, OffsetRange
from sluice.run.checkpoint import Checkpoint, Clock
from sluice_spark.batch.panes import PaneWriter
from sluice_spark.batch.quarantine import opened
from sluice_spark.batch.results import ResultWriter
from sluice_spark.batch.stateful import StatefulWriter
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.decoders.base import COLUMN, RULE
from sluice_spark.sinks.delta.table import DeltaSink
from sluice_spark.sources.base import RECORD_SCHEMA, within
from sluice_spark.transforms.sample import shape_of
from sluice_spark.transforms.transform import transformer
from sluice_spark.windows import state
from sluice_spark.windows.decomposition import decompose
from sluice_spark.windows.late import all_inside, inside, late, partly_late
from sluice_spark.windows.watermark import seconds

pytestmark = pytest.mark.spark

WINDOW = {"time": "at", "size": "1h", "by": ["k"], "aggregates": {"n": "count(*)"}, "watermark": "1h"}
SLIDING = {**WINDOW, "slide": "30m"}
PROCESSOR = {
    "python": "counting:Counting", "by": ["k"], "time": "at", "watermark": "1h", "schema": "k STRING, n BIGINT",
}  # fmt: skip
OPERATORS: dict[str, dict[str, Any]] = {
    "window": {"window": WINDOW},
    "window-update": {"window": {**WINDOW, "output": "update"}},
    "window-complete": {"window": {k: v for k, v in WINDOW.items() if k != "watermark"} | {"output": "complete"}},
    "sliding": {"window": SLIDING},
    "panes": {"window": {**SLIDING, "panes": "auto"}},
    "sessions": {"window": {k: v for k, v in WINDOW.items() if k != "size"} | {"gap": "10m"}},
    "dedupe": {"dedupe": {"keys": ["k", "v"], "time": "at", "within": "1h"}},
    "processor": {"processor": PROCESSOR},
    "aggregate": {"aggregate": {"by": ["k"], "aggregates": {"n": "count(*)"}}},
    "aggregate-complete": {"aggregate": {"by": ["k"], "aggregates": {"n": "count(*)"}, "output": "complete"}},
}
SCHEMA = "at TIMESTAMP, k STRING, `a.b` STRING, `ä ö` INT, v DOUBLE, s STRUCT<x: FLOAT>, m DECIMAL(10,2), d DATE"
Make = Callable[..., Pipeline]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:

    def pipeline(keys: dict[str, Any], sql: str = "SELECT * FROM source", schema: str = SCHEMA) -> Pipeline:
        spec = {
            "pipeline": "p", "source": {"kafka": {"topics": ["t"]}}, "decode": {"json": {"schema": schema}},
            "transform": {"sql": sql}, "rows": "filter", "sink": {"delta": {"path": str(tmp_path / "table")}}, **keys,
        }  # fmt: skip
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(spec, allow_unicode=True))
        return load(tmp_path / "p.yaml")

    with on_path(MODULES):
        yield pipeline


# --- before a run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        ({"window": {**SLIDING, "by": ["a.b", "ä ö"], "aggregates": {"n": "count(*)", "the mean": "avg(v)"}}},
         "window_start:timestamp,window_end:timestamp,a.b:string,ä ö:int,n:bigint,the mean:double,_run:string"),
        ({"window": {"time": "at", "gap": "30m", "by": ["a.b"], "aggregates": {"n": "count(*)"}, "watermark": "2h"}},
         "window_start:timestamp,window_end:timestamp,a.b:string,n:bigint,_run:string"),
        ({"dedupe": {"keys": ["a.b", "ä ö", "m", "d"], "time": "at", "within": "1h"}},
         "at:timestamp,k:string,a.b:string,ä ö:int,v:double,s:struct<x:float>,m:decimal(10,2),d:date,_topic:string,"
         "_partition:int,_offset:bigint,_timestamp:timestamp,_run:string"),
        ({"processor": PROCESSOR}, "k:string,n:bigint,_run:string"),
        ({"aggregate": {"by": ["a.b"], "aggregates": {"the mean": "avg(v)"}}},
         "a.b:string,the mean:double,_run:string"),
    ],
    ids=["window", "sessions", "dedupe", "processor", "aggregate"],
)  # fmt: skip
def test_operator_has_the_columns_of_the_file(
    spark: SparkSession, make: Make, keys: dict[str, Any], columns: str
) -> None:
    sql = "SELECT * EXCEPT (`a.b`) FROM source" if "processor" in keys else "SELECT * FROM source"
    made = make(keys, sql)
    assert shape_of(spark, made, transformer(made)).schema.simpleString() == f"struct<{columns}>"


BASE: dict[str, dict[str, Any]] = {
    "window": WINDOW,
    "dedupe": {"keys": ["k"], "time": "at", "within": "1h"},
    "processor": PROCESSOR,
}
PLAIN = "SELECT * EXCEPT (`a.b`) FROM source"
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    *((kind, PLAIN, {"time": "ät"}, f"{kind}.time") for kind in BASE),
    *((kind, PLAIN, {"time": "d"}, "d is DATE") for kind in BASE),
    *((kind, PLAIN, {keys: ["w"]}, f"{kind}.{keys}") for kind, keys in zip(BASE, ("by", "keys", "by"), strict=True)),
    *((kind, "SELECT * FROM source WHERE rand() < 0.5", {}, "rand()") for kind in BASE),
    *((kind, "SELECT DISTINCT * FROM source", {}, "'Distinct'") for kind in BASE),
    *((kind, "SELECT * FROM source LIMIT 5", {}, "'GlobalLimit'") for kind in BASE),
    ("window", PLAIN, {"time": "k"}, "k is STRING"),
    ("window", PLAIN, {"aggregates": {"n": "v + 1"}}, "window.aggregates"),
    ("window", PLAIN, {"aggregates": {"n": "sum(x)"}}, "window.aggregates"),
    ("window", PLAIN, {"aggregates": {"n": "count(DISTINCT k)"}}, "approx_count_distinct"),
    ("window", "SELECT * FROM source WHERE at > now() - INTERVAL 1 DAY", {}, "now()"),
    ("window", "SELECT *, uuid() AS id FROM source", {}, "uuid()"),
    ("window", "SELECT *, current_date AS today FROM source", {}, "current_date()"),
    ("window", "SELECT * FROM source ORDER BY at", {}, "'Sort'"),
    ("window", "SELECT * FROM source UNION ALL SELECT * FROM source", {}, "'Union'"),
    ("window", "SELECT s.* FROM source s JOIN (SELECT 1D AS v) t USING (v)", {}, "'Join'"),
    ("window", "SELECT * FROM source WHERE v > (SELECT avg(v) FROM source)", {}, "'Aggregate'"),
    ("window", "SELECT *, row_number() OVER (PARTITION BY k ORDER BY at) AS n FROM source", {}, "'Window'"),
    ("dedupe", PLAIN, {"keys": ["v"]}, "v is DOUBLE"), ("dedupe", PLAIN, {"keys": ["s"]}, "s is STRUCT"),
    ("dedupe", "SELECT *, map(1, 2) AS q FROM source", {"keys": ["q"]}, "q is MAP"),
    ("dedupe", "SELECT *, k COLLATE UTF8_LCASE AS q FROM source", {"keys": ["q"]}, "q is STRING COLLATE"),
    ("aggregate", PLAIN, {"by": ["w"]}, "aggregate.by"),
    ("aggregate", PLAIN, {"aggregates": {"n": "v + 1"}}, "aggregate.aggregates"),
    ("aggregate", PLAIN, {"aggregates": {"n": "count(DISTINCT k)"}}, "approx_count_distinct"),
    ("aggregate", "SELECT * FROM source LIMIT 5", {}, "'GlobalLimit'"),
    ("processor", PLAIN, {"by": ["v"]}, "v is DOUBLE"),
    ("processor", "SELECT * FROM source", {}, "processor: "),  # Spark cannot pass a column with a dot
    ("processor", PLAIN, {"python": "processing:Plain"}, "processing:Plain"),
    ("processor", PLAIN, {"python": "processing:Asking"}, "processing:Asking"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sql", "keys", "named"), REFUSED)
def test_operator_refuses_before_a_run(
    spark: SparkSession, make: Make, kind: str, sql: str, keys: dict[str, Any], named: str
) -> None:
    made = make({kind: {**BASE.get(kind, OPERATORS.get(kind, {}).get(kind, {})), **keys}}, sql)
    with pytest.raises(ConfigError) as refused:
        shape_of(spark, made, transformer(made))
    assert named in refused.value.what


@pytest.mark.parametrize("text", ["approx_count_distinct(k)", "size(collect_set(k))", "max_by(k, at)", "sum(made)"])
def test_window_takes_other_aggregates_and_times_that_a_transform_makes(
    spark: SparkSession, make: Make, text: str
) -> None:
    sql = "SELECT *, timestamp_millis(`ä ö`) AS known_now, `ä ö` AS made FROM source WHERE v > 1"
    made = make({"window": {**WINDOW, "time": "known_now", "aggregates": {"n": text}}}, sql)
    assert shape_of(spark, made, transformer(made)).schema.names[3] == "n"


# --- a stream ------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def row(minute: int | None, key: str) -> bytes:
    """Return a record with an event time, in minutes from noon."""
    at = None if minute is None else (NOON + timedelta(minutes=minute)).isoformat()
    return json.dumps({"at": at, "k": key, "v": minute or 0}).encode()


BATCHES = [
    [row(0, "a"), row(5, "b"), b"{", row(None, "a"), row(5, "b"), row(10**8, "a")],  # the last is of the far future
    [row(50, "a"), row(130, "b"), row(200, "c")],
    [row(205, "c")],
    [row(139, "b"), row(141, "b"), row(210, "a"), row(10, "late")],  # what is before 140 is late
    [row(900, "z")],
]
ENDS = [sum(map(len, BATCHES[: n + 1])) for n in range(len(BATCHES))]
SPANS = [OffsetRange("t", 3, end - len(batch), end) for batch, end in zip(BATCHES, ENDS, strict=True)]


PARTS = ("window", "panes", "dedupe", "processor", "aggregate")
"""A stream of each class that writes batches; the others are long."""


def writer_of(spark: SparkSession, spec: Pipeline, folder: Path) -> StatefulWriter:
    transform = transformer(spec)
    shape = shape_of(spark, spec, transform)
    kind = imported(kind_of("operators", str(spec.keeps)).writer)
    sink, quarantine = DeltaSink(str(folder / "table"), "a"), opened(spec.quarantine_path, "q")
    writer = kind(spec, "r", transform, shape.schema, sink, quarantine)
    if not isinstance(writer, ResultWriter):
        return writer
    writer = replace(writer, taken=shape.rows)
    if not isinstance(writer, WindowWriter) or writer.window.panes == "off":
        return writer
    return PaneWriter.of(writer, decompose(spark, writer.window, shape.rows))


@pytest.mark.parametrize("name", ["window", "window-complete", "dedupe", "processor"])
def test_operator_names_a_record_before_1970_that_no_watermark_makes_late(
    spark: SparkSession, make: Make, tmp_path: Path, name: str
) -> None:
    spec = make(OPERATORS[name], schema="at TIMESTAMP, k STRING, v INT")
    writer, span = writer_of(spark, spec, tmp_path), OffsetRange("t", 3, 0, 2)
    source = Held(frame_of(spark, [Record(row(0, "a")), Record(b'{"at": "1960-01-01T00:00:00Z", "k": "a", "v": 1}')]))
    takes_all = name == "window-complete"
    now = int(NOON.timestamp() * 1000)
    for mark, refused, dropped in ((0, not takes_all, False), (1, False, not takes_all)):
        seen = replace(writer, clock=Clock(mark, mark, now)).count([span], source)
        assert (seen.bad, seen.late) == ({("t", 3): 1} if refused else {}, {("t", 3): 1} if dropped else {})


@pytest.mark.parametrize(("name", "mean"), [("window", "AVG"), ("panes", "sum")])
def test_window_refuses_a_number_with_which_a_sum_would_end_every_run(
    spark: SparkSession, make: Make, tmp_path: Path, name: str, mean: str
) -> None:
    keys = OPERATORS[name]["window"] | {"aggregates": {"s": "sum(n)", "m": f"{mean}( `D` )", "x": "max(big)"}}
    spec = make({"window": keys}, schema="at TIMESTAMP, k STRING, n BIGINT, d DECIMAL(38,2), big BIGINT")
    good = [{"n": 2**53}, {"n": -(2**53)}, {"d": 10**33}, {"big": 2**63 - 1}, {}]
    bad = [{"n": 2**53 + 1}, {"n": -(2**63)}, {"d": 10**33 + 1, "n": 1}]
    records = [Record(json.dumps({"at": NOON.isoformat(), "k": "a", **v}).encode()) for v in good + bad]
    writer, span = writer_of(spark, spec, tmp_path), OffsetRange("t", 3, 0, len(records))
    frame = frame_of(spark, records)
    writer = replace(writer, clock=Clock(1, 1, int(NOON.timestamp() * 1000)))
    assert writer.count([span], Held(frame)).bad == {("t", 3): len(bad)}
    found = {
        r["_offset"]: (r[RULE], r[COLUMN])
        for r in writer.judged(frame).withColumnRenamed("offset", "_offset").collect()
    }
    assert [found[n] for n in range(len(good))] == [(None, None)] * len(good)
    assert [found[len(good) + n] for n in range(len(bad))] == [("aggregate_overflow", c) for c in ("n", "n", "d")]


@pytest.mark.parametrize("name", [n if n in PARTS else pytest.param(n, marks=pytest.mark.long) for n in OPERATORS])
def test_operator_accounts_for_each_record_and_keeps_what_is_open(
    few: SparkSession, make: Make, tmp_path: Path, name: str
) -> None:
    spec = make(OPERATORS[name], schema="at TIMESTAMP, k STRING, v INT")
    writer, checkpoint = writer_of(few, spec, tmp_path), Checkpoint(str(tmp_path / "checkpoint"))
    everything = frame_of(few, [Record(value) for batch in BATCHES for value in batch]).persist()
    source, accounts, notes = Held(everything), list[Counts](), list[Any]()
    for number, span in enumerate(SPANS):
        everything.where(within([span])).coalesce(1).write.parquet(str(tmp_path / "made" / str(number)))
        (tmp_path / "in").mkdir(exist_ok=True)
        (file,) = (tmp_path / "made" / str(number)).glob("*.parquet")
        file.rename(tmp_path / "in" / f"{number}.parquet")

    def on_batch(emitted: DataFrame, number: int) -> None:
        own = writer.at(checkpoint, number)
        prepared = own.prepare(emitted, f"b{number}", SPANS[number : number + 1], source)  # type: ignore[arg-type]
        own.commit(number, prepared, {}, f"b{number}")
        accounts.extend(account.counts for account in prepared.accounts)
        notes.append((prepared.fact(Duplicates) or prepared.fact(Windows)).as_dict())

    stream = few.readStream.schema(RECORD_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = writer.emit(stream).writeStream.outputMode(writer.output).foreachBatch(on_batch)
    query = query.option("checkpointLocation", checkpoint.path).trigger(availableNow=True).start()
    query.awaitTermination()

    timeless = name.startswith("aggregate")
    quarantine = {r._offset: r._errors[0].rule for r in writer.quarantine.rows(few).collect()}
    assert quarantine == {2: "json"} | ({} if timeless else {3: "event_time_missing", 5: "event_time_ahead"})
    late = {"dedupe": 2, "processor": 2, "window-complete": 0, "aggregate": 0, "aggregate-complete": 0}.get(name, 1)
    doubled = int(name == "dedupe")
    assert [c.filtered for c in accounts] == [doubled, 0, 0, late, 0]
    assert [c.written for c in accounts] == [3 - doubled + 2 * timeless, 3, 1, 4 - late, 1]
    assert [c.quarantined for c in accounts] == [len(quarantine), 0, 0, 0, 0]
    assert [sum(count for *_, count in note["late"]) for note in notes][:5] == [0, 0, 0, late, 0]
    if name != "window-complete" and not timeless:
        assert notes[3]["late_by"] == int((NOON + timedelta(minutes=140)).timestamp() * 1000)

    last = checkpoint.path, checkpoint.committed()[-1]
    found = [r.asDict() for r in few.read.format("delta").load(str(tmp_path / "table")).drop("_run").collect()]
    if name == "dedupe":
        offsets = sorted(r["_offset"] for r in found)
        assert offsets in ([0, first, 6, 7, 8, 9, 11, 12, 14] for first in (1, 4))
        (kept,) = state.remembered_keys(few, *last)
        assert kept["keys"] == 1
    elif name == "processor":
        counts = [("a", 1), ("b", 2), ("a", 2), ("b", 3), ("c", 1), ("c", 2), ("b", 4), ("a", 3), ("z", 1)]
        assert Counter((r["k"], r["n"]) for r in found) == Counter(counts)
        (kept,) = state.held_keys(few, *last)
        assert kept["keys"] == 4
    elif timeless:
        assert {r["k"]: r["n"] for r in found} == {"a": 5, "b": 5, "c": 2, "late": 1, "z": 1}
        assert state.groups(few, *last) == [{"keys": 5}]
        (kept,) = state.of_key(few, *last, ["k"], {"k": "b"}, 9)
        assert json.loads(kept["state"]) == {"count": 5}
    else:
        assert Counter({(minutes(r["window_start"]), r["k"]): r["n"] for r in found}) == WRITTEN[name]
        if name not in ("panes", "window-complete"):
            assert sum(each["keys"] for each in state.open_windows(few, *last)) == {"sliding": 2}.get(name, 1)


def several(*rows: tuple[int | None, str]) -> bytes:
    """Return a record of several rows: minutes from noon and a key of each."""
    made = [{"at": None if m is None else (NOON + timedelta(minutes=m)).isoformat(), "k": key} for m, key in rows]
    return json.dumps({"rows": made}).encode()


MANY = [
    several((0, "a"), (5, "a"), (70, "b")),
    several(),
    several((10, "late"), (200, "a")),
    several((10, "late"), (15, "late")),
    several((None, "a"), (210, "b")),
    several((220, "a"), (220, "a")),
]
"""The watermark is at 140 minutes."""


@pytest.mark.parametrize("name", ["window", "sliding", "processor", "aggregate"])
def test_operator_accounts_for_a_record_of_many_rows_once(
    spark: SparkSession, make: Make, tmp_path: Path, name: str
) -> None:
    sql = "SELECT inline(rows), _topic, _partition, _offset, _timestamp FROM source"
    spec = make({"rows": "many", **OPERATORS[name]}, sql, "rows ARRAY<STRUCT<at: TIMESTAMP, k: STRING>>")
    late_by = round((NOON + timedelta(minutes=140)).timestamp() * 1000)
    writer = replace(writer_of(spark, spec, tmp_path), clock=Clock(late_by, late_by, late_by))
    span, frame = OffsetRange("t", 3, 0, len(MANY)), frame_of(spark, [Record(value) for value in MANY])
    emitted = writer.emit(frame).limit(0)  # of a stream; here only the account is looked at
    prepared = writer.prepare(emitted, "b0", [span], Held(frame))
    (account,) = prepared.accounts
    fact = prepared.fact(Windows)
    assert fact is not None
    timeless = name == "aggregate"
    # without rows; and, by time, records of which each row is late: also the first, but for its row of minute 70
    late = 0 if timeless else 2
    assert account.counts == Counts(5 - late - (not timeless), 1 + late, int(not timeless))
    assert fact.partly_late == (0 if timeless else 1)
    assert [count for *_, count in fact.late] == ([] if timeless else [late])
    writer.commit(0, prepared, {}, "b0")
    refused = [] if timeless else [(r._offset, r._errors[0].rule) for r in writer.quarantine.rows(spark).collect()]
    assert refused == ([] if timeless else [(4, "event_time_missing")])


def test_aggregate_refuses_a_group_that_a_topic_has_no_key_for(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    into = {"aggregate": OPERATORS["aggregate"]["aggregate"], "sink": {"kafka": {"topic": "out", "key": "k"}}}
    quarantine = {"quarantine": {"delta": {"path": str(tmp_path / "refused")}}}
    writer = writer_of(spark, make({**into, **quarantine}, schema="k STRING"), tmp_path)
    frame = frame_of(spark, [Record(b'{"k": "a"}'), Record(b'{"k": null}')])
    assert writer.count([OffsetRange("t", 3, 0, 2)], Held(frame)).bad == {("t", 3): 1}
    found = [(r[RULE], r[COLUMN]) for r in writer.judged(frame).orderBy("offset").collect()]
    assert found == [(None, None), ("group_key_missing", "k")]


def minutes(moment: datetime) -> int:
    return int((moment.replace(tzinfo=UTC) - NOON).total_seconds() // 60)


def windows(step: int, *, last: bool, late: bool = False) -> Counter[tuple[int, str]]:
    """Return the windows of an hour by starts and keys; the last one is open, or written too."""
    sound = [(0, "a"), (5, "b"), (5, "b"), (50, "a"), (130, "b"), (200, "c"), (205, "c"), (139, "b"), (141, "b"),
             (210, "a"), *[(10, "late")] * late, *[(900, "z")] * last]  # fmt: skip
    return Counter((at, key) for m, key in sound for at in range(m // step * step - 60 + step, m + 1, step))


WRITTEN = {
    "window": windows(60, last=False),
    "window-update": windows(60, last=True),
    "window-complete": windows(60, last=True, late=True),
    "sliding": windows(30, last=False),
    "panes": windows(30, last=False),
    "sessions": Counter(
        {(0, "a"): 1, (5, "b"): 2, (50, "a"): 1, (130, "b"): 1, (139, "b"): 2, (200, "c"): 2, (210, "a"): 1}
    ),
}  # fmt: skip


# --- the rules of late records, against Spark's own windows --------------------------------------------------

SIZES = [("60s", None), ("60s", "60s"), ("60s", "20s"), ("60s", "25s"), ("50s", "49s"), ("1s", None)]
MICROS = [n * 500_000 for n in range(-300, 400)] + [-1, 1, 59_999_999, 60_000_001]


@pytest.mark.parametrize(("size", "slide"), SIZES)
def test_window_rules_of_late_records_and_of_intervals_are_those_of_spark(
    spark: SparkSession, size: str, slide: str | None
) -> None:
    keys: dict[str, Any] = {"size": size, "slide": slide, "watermark": timedelta(0)}
    window = Window(time="at", aggregates={"n": "count(*)"}, **keys)
    rows = spark.createDataFrame([(m,) for m in MICROS], "us LONG").select("us", F.timestamp_micros("us").alias("at"))
    marks, spans = [0, 120_000, 119_999, 90_500, -60_000], [(0, 60_000), (-61_000, 20_000), (30_500, 30_501)]
    marked = [each for mark in marks for each in (late(window, mark), partly_late(window, mark))]
    marked += [of(window, *span) for of in (inside, all_inside) for span in spans]
    found = {r[0]: r[1] for r in rows.select("us", F.array(*marked)).collect()}
    own = F.window("at", seconds(window.length), seconds(window.step))
    bounds: dict[int, list[tuple[int, int]]] = {}
    for us, start, end in rows.select("us", F.unix_micros(own["start"]), F.unix_micros(own["end"])).collect():
        bounds.setdefault(us, []).append((start, end))
    for us in MICROS:
        expected: list[bool] = []
        for mark in marks:
            closed = [end <= mark * 1000 for _, end in bounds[us]]
            expected += [all(closed), any(closed) and not all(closed)]
        expected += [of(a * 1000 <= start < b * 1000 for start, _ in bounds[us]) for of in (any, all) for a, b in spans]
        assert found[us] == expected, us
