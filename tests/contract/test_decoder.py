"""The contract of decoders on both paths: each record becomes a row or is refused, as documented."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.contract.formats import FORMATS, OTHERS, register
from tests.fixtures.decoding import Record, Refused, decoded, pipeline_for, plan_for
from tests.fixtures.registry import StandIn, stand_in

from sluice.errors import ExitCode, SluiceError, public
from sluice.shipped import CHECKOUT
from sluice_spark.decoders.base import decode, source_columns
from sluice_spark.engine.failures import classify

pytestmark = pytest.mark.spark

TOY = Path(str(CHECKOUT)) / "tests" / "fixtures" / "toy"
KEYED = ("json", "csv", "xml", "avro", "protobuf", "text")
WITH_REGISTRY = ("avro", "protobuf")


@pytest.fixture(scope="module", autouse=True)
def registry() -> Iterator[StandIn]:
    """A schema registry with all schemas, and the package of another decoder."""
    with stand_in() as found, pytest.MonkeyPatch.context() as patched:
        patched.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", found.connection())
        patched.syspath_prepend(str(TOY))
        register(found)
        yield found


def columns_of(name: str) -> list[str]:
    """Return the columns of a format whose types both paths have."""
    return [column for column in FORMATS[name].columns if column not in OTHERS]


@pytest.mark.parametrize("types", ["both paths", "all types"])
@pytest.mark.parametrize("name", FORMATS)
def test_decoder_returns_what_was_written(spark: SparkSession, name: str, types: str) -> None:
    own = FORMATS[name]
    columns = own.columns if types == "all types" else columns_of(name)
    if types == "all types" and not set(columns) & set(OTHERS):
        pytest.skip("it has no other types")
    spec, records, rows = own.sound(columns)
    found = decoded(spark, spec, records)
    assert [case for case in zip(records, found.found, rows, strict=True) if repr(case[1]) != repr(case[2])] == []
    if types == "both paths":
        least = 10 if name in ("json", "csv") else len(rows)  # some values of these only Spark reads
        assert found.kept is None if not own.arrow else len(found.kept or ()) >= least


@pytest.mark.parametrize("name", FORMATS)
def test_decoder_names_the_rule_and_the_column_of_each_refusal(spark: SparkSession, name: str) -> None:
    own = FORMATS[name]
    found = decoded(spark, own.sound(columns_of(name))[0], [value for value, _ in own.bad])
    wrong = [(bad, f) for bad, f in zip(own.bad, found.found, strict=True) if f != Refused.of(bad[1])]
    assert wrong == []
    assert not found.kept


def hostile(chance: random.Random) -> list[bytes | None]:
    """Return records of every format, whole, cut, garbled and doubled, and others that are made to harm."""
    made = [None, b"", b" ", b"\0", b"\xff", b"\xed\xa0\x80", "{}".encode("utf-16"), b"\xef\xbb\xbf"]
    made += [part * 100_000 for part in (b"{", b"[", b"<", b'"', b"<z>", b"=;", b"\0", b"\x02", b'{"a":', b"9")]
    made += [b"x" * 3_000_000, b'{"s": "' + b"x" * 3_000_000 + b'"}', *(chance.randbytes(n) for n in range(40))]
    for name, own in FORMATS.items():
        values = [r.value if isinstance(r, Record) else r for r, _ in own.bad]
        values += [r.value for r in own.sound(columns_of(name))[1][:10]]
        for value in filter(None, values):
            made.append(value)
            if len(value) < 1000:
                at, bits = chance.randrange(len(value)), bytearray(value)
                bits[at] ^= 1 << chance.randrange(8)
                made += [value[:at], bytes(bits), value + value, value[at:]]
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_decoder_loses_no_hostile_record_and_names_a_documented_rule(spark: SparkSession, name: str) -> None:
    """That each comes out once, and that both paths agree, ``decoded`` checks."""
    page = (CHECKOUT / "docs" / "decoding.md").read_text()
    rules = {*re.findall(r"^\| `([a-z0-9_]+)` \|", page.split("## JSON")[0], re.MULTILINE), "pairs"}
    own, chance = FORMATS[name], random.Random(3)
    values = hostile(chance)
    topics = ["j", "c"] if name == "by_topic" else ["t"]
    headers = [("v", b"j")], [("v", b"c")], None
    records = [Record(v, chance.choice(topics), chance.choice(headers)) for v in values]
    found = decoded(spark, own.sound(columns_of(name))[0], records)
    refused = [f for f in found.found if isinstance(f, Refused)]
    assert {f.rule for f in refused} <= rules
    assert len(refused) > len(values) / 10 or name in ("bytes", "pairs")


@pytest.mark.parametrize("name", ["json", "xml", "avro", "protobuf"])
def test_decoder_treats_a_tombstone_as_the_file_says(spark: SparkSession, name: str) -> None:
    given = [Record(None, key=b"a"), Record(None, key=None), Record(b"", key=b"b"), Record(None, key=b"\xff")]
    broken = decoded(spark, FORMATS[name].spec("i INT"), [b""]).found[0]
    (config,) = FORMATS[name].spec("i INT").values()

    def found(ddl: str, **keys: str) -> list[Any]:
        return decoded(spark, {name: {**config, "schema": ddl, "key": "id", **keys}}, given).found

    nothing, text = Refused("null_value"), Refused("utf8", "id")
    assert found("i INT, s STRING") == [nothing, nothing, broken, nothing]
    assert found("i INT, s STRING, m ARRAY<INT>", tombstone="row") == [{"id": "a"}, {}, broken, text]
    missing = Refused("not_null", "i")
    assert found("s STRING, i INT NOT NULL", tombstone="row") == [missing, missing, broken, missing]
    gone = found("s STRING, i INT NOT NULL", tombstone="delete")
    assert gone == [{"id": "a", "_deleted": True}, Refused("null_key"), broken, text]


@pytest.mark.parametrize("name", KEYED)
def test_decoder_adds_the_key_and_the_last_header_of_a_name(spark: SparkSession, name: str) -> None:
    own = FORMATS[name]
    row: dict[str, Any] = {"value": "x"} if name == "text" else {"i": 1, "l": 2, "s": "x"}
    first, (config,) = own.write(row), own.spec("i INT, l BIGINT NOT NULL, s STRING").values()
    columns = {"one": "a", "two": "b", "none": "", "dotted": "a.b", "tick": "`", "again": "a"}
    values = [b"x", b"", None, "é😀".encode(), b"\xff", b"\xed\xa0\x80", b"\x00", b"null", b"x" * 5_000]
    chance = random.Random(20)
    given = [first._replace(key=key) for key in (b"a/1.json", None, "é".encode(), b"\xff", b"")]
    for _ in range(200):
        headers = [(chance.choice(["a", "A", "b", "", "é", "a.b", "`"]), chance.choice(values)) for _ in range(4)]
        given.append(first._replace(headers=headers[: chance.randrange(5)] or None))
    with_key = {} if name == "text" else {"key": "file"}
    found = decoded(spark, {name: {**config, **with_key, "headers": columns}}, given)

    def expected(item: Record) -> dict[str, Any] | Refused:
        last = dict(item.headers or ())
        beside = {"file": item.key} if with_key else {}
        beside |= {column: last.get(header) for column, header in columns.items()}
        texts = {column: (text, text.decode(errors="replace")) for column, text in beside.items() if text is not None}
        wrong = next((column for column, (text, read) in texts.items() if read.encode() != text), None)
        return Refused("utf8", wrong) if wrong else row | {column: read for column, (_, read) in texts.items()}

    assert found.found == [expected(item) for item in given]
    if own.arrow:
        assert found.kept == {n for n, item in enumerate(found.found) if isinstance(item, dict)}


@pytest.mark.parametrize("name", WITH_REGISTRY)
def test_decoder_without_an_answer_of_the_registry_ends_the_run_with_20_and_refuses_no_record(
    spark: SparkSession, registry: StandIn, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, records, _ = FORMATS[name].sound(["i", "l"])
    monkeypatch.setattr(registry, "failing", 500)
    with pytest.raises(Exception, match="it answers 500") as failed:
        decoded(spark, spec, records)
    assert classify(failed.value, lambda: None).exit_code is ExitCode.SOURCE_UNREACHABLE
    plan = plan_for(spark, spec)
    with pytest.raises(SluiceError) as caught:
        plan.decoder.decode([r.value for r in records], [])
    assert caught.value.exit_code is ExitCode.SOURCE_UNREACHABLE
    assert public(caught.value.what).endswith("it answers 500: «…»"), "a proxy may answer with what it was sent"


def test_decoder_travels_to_an_arrow_process_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    jobs = []
    for name in ("json", "csv", "avro", "protobuf", "text", "bytes"):
        spec, records, _ = FORMATS[name].sound(["l", "s", "value"])
        plan = plan_for(spark, spec)
        values = [r.value for r in records]
        jobs.append((plan.decoder, values, [b"k"] * len(values) if plan.decoder.keyed else []))
    expected = [decoder.decode(values, keys).columns.to_pylist() for decoder, values, keys in jobs]  # they are used
    (tmp_path / "decoders").write_bytes(cloudpickle.dumps(jobs))
    script = (
        "import pickle, sys; jobs = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print([decoder.decode(values, keys).columns.to_pylist() for decoder, values, keys in jobs])"
    )
    command = [sys.executable, "-c", script, tmp_path / "decoders"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(expected)


def test_decoder_hands_the_transform_the_columns_and_where_a_record_is_from(spark: SparkSession) -> None:
    frame = spark.sql("SELECT binary('k') AS key, binary('{}') AS value, 't' AS topic, 3 AS partition, 7L AS offset, "
                      "timestamp '2020-01-01' AS timestamp")  # fmt: skip
    seen = source_columns(decode(frame, pipeline_for({"json": {"schema": "i INT, j STRING", "key": "file"}}).decode))
    assert seen.dtypes == [
        ("i", "int"), ("j", "string"), ("file", "string"), ("_topic", "string"), ("_partition", "int"),
        ("_offset", "bigint"), ("_timestamp", "timestamp"),
    ]  # fmt: skip
