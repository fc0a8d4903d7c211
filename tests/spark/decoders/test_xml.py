"""XML: Python's own parser, and documents that are made to harm."""

from __future__ import annotations

import random
import socket
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures import decoding
from tests.spark.decoders.conftest import XML

pytestmark = pytest.mark.spark

XSI = "http://www.w3.org/2001/XMLSchema-instance"


def decoded(spark: SparkSession, values: list[str | bytes | None], schema: str = XML, **keys: Any) -> list[Any]:
    given = [value.encode() if isinstance(value, str) else value for value in values]
    return decoding.decoded(spark, {"xml": {"schema": schema, **keys}}, given).brief


def test_xml_document_is_what_python_reads_or_is_refused(spark: SparkSession) -> None:
    rng = random.Random(18)
    texts = ["", "x", " x ", "1", "\n", "&lt;b&gt;", "a&amp; &amp;b", "<![CDATA[<b/> ]]>", "é😀", "&#65;&#x1F600;"]
    texts += ["a<!-- </s> -->b", "]]&gt;", "__end", "a<b>c</b>", "<s>x</s>", "\t\r\n", "'\"", "a=b c='d'"]

    def element(name: str) -> str:
        attribute = rng.choice(["", "", ' k="v"', " k='a\"&lt;>b'", ' z = "1"'])
        text = rng.choice(texts)
        return f"<{name}{attribute}/>" if text == "" and rng.random() < 0.5 else f"<{name}{attribute}>{text}</{name}>"

    written = []
    for n in range(3000):
        inner = "".join(rng.choice(["", " ", "\n", "<!-- c -->"]) + element(rng.choice("stzu")) for _ in range(3))
        head = rng.choice(["", "", '<?xml version="1.0"?>', "<!-- <r> -->", "\n", "<?p <q/> ?>"])
        root = rng.choice(["<r>", '<r k="w">', "<r\n>", "<r j=\"/>\" k='y'>"])
        document = f"{head}{root}{inner}</r>{rng.choice(['', '', chr(10), ' '])}"
        if n % 2:
            at = rng.randrange(len(document) + 1)
            document = document[:at] + rng.choice(["<", ">", "</r>", "<r/>", '"', "&", "", "x"]) + document[at + 1 :]
        written.append(document)
    found = decoded(spark, list(written), "s ARRAY<STRING>, t STRING, _k STRING, u STRUCT<_k: STRING>", root="r")
    taken = 0
    for n, (document, outcome) in enumerate(zip(written, found, strict=True)):
        try:
            root = ET.fromstring(document)
        except ET.ParseError:
            assert outcome in ("xml", "utf8"), document
            continue
        fits = root.tag == "r" and not (root.text or "").strip() and not any((e.tail or "").strip() for e in root)
        fits &= all(len(e) == 0 for e in root if e.tag in "st") and len(root.findall("t")) < 2
        us = root.findall("u")
        fits &= len(us) < 2 and all(
            not (u.text or "").strip() and not any((e.tail or "").strip() for e in u) for u in us
        )
        if not fits:
            assert isinstance(outcome, str), document
            continue
        if isinstance(outcome, str):  # what Python is not as strict about: a version, what follows the root
            assert (outcome, n % 2) == ("xml", 1), document
            continue
        taken += 1
        wanted: dict[str, Any] = {"s": [e.text or "" for e in root.findall("s")] or None, "_k": root.get("k")}
        wanted["t"] = next((e.text or "" for e in root.findall("t")), None)
        wanted["u"] = {"_k": us[0].get("k")} if us else None
        assert outcome == {name: value for name, value in wanted.items() if value is not None}, document
    assert taken > 500


def test_xml_values_are_judged_wherever_they_are(spark: SparkSession) -> None:
    schema = (
        "d DECIMAL(5,2), f DOUBLE, b BOOLEAN, t TIMESTAMP, v VARCHAR(2), n ARRAY<STRUCT<_k: INT, d: DATE NOT NULL>>"
    )
    found = decoded(
        spark,
        [
            "<r><d>1.50</d><f>1e3</f><b>TRUE</b><t> 2020-01-01T00:00:00Z\n</t><v>éé</v></r>",
            "<r><d>1.239</d></r>", "<r><d>1,2</d></r>", "<r><f>NaN</f></r>", "<r><f>9007199254740993</f></r>",
            "<r><b>1</b></r>", "<r><t>2020</t></r>", "<r><v>abc</v></r>", "<r><n/></r>",
            "<r><n k='x'><d>2020-01-01</d></n></r>",
            "<r><n><d>2020-01-01</d></n><n><d>2020</d></n></r>", "<r><n><d>2020-01-01</d><d>2020-01-01</d></n></r>",
            "<r><n k='1'><d>2020-01-01</d></n>\n<n k=' 2 '><d>2020-01-02</d></n></r>",
            "<r><n>x<d>2020-01-01</d></n></r>",
        ],
        schema,
    )  # fmt: skip
    assert [found[0][k] for k in "bv"] == [True, "éé"]
    assert str(found[0]["d"]) == "1.50"
    assert found[1:12] == [
        "digits", "type", "type", "digits", "type", "time", "type", "not_null", "type", "time", "duplicate",
    ]  # fmt: skip
    assert [n["_k"] for n in found[12]["n"]] == [1, 2]
    assert found[13] == "type"


def test_xml_distinguishes_markup_in_a_text_from_elements(spark: SparkSession) -> None:
    schema = "s STRING, a ARRAY<STRING>, o ARRAY<STRUCT<t: STRING, u: ARRAY<STRING>>>"
    written = "&lt;b&gt; c&lt;/b&gt;<![CDATA[<x/> <y>]]>"
    real = "<b> c</b>"
    parts = ("<s>%s</s>", "<a> </a><a>%s</a>", "<o><t>%s</t></o>", "<o/><o><u>%s</u></o>")
    found = decoded(
        spark,
        [f"<r>{part % text}</r>" for part in parts for text in (written, real)],
        schema,
    )  # fmt: skip
    text = "<b> c</b><x/> <y>"
    assert found[1::2] == ["type"] * 4
    assert found[0] == {"s": text}
    assert found[2] == {"a": [" ", text]}
    assert found[4]["o"][0]["t"] == text
    assert found[6]["o"][1]["u"] == [text]


def test_xml_refuses_attributes_that_spark_cannot_distinguish(spark: SparkSession) -> None:
    values = [
        '<r id="1" ID="2"/>', '<r id="1" n:id="2"/>', '<r n:id="2" x=">" id="1"/>', '<r xmlns:id="u"/>',
        '<r n:id="3"/>', "<r id='1' x=' id=2 n:id=3'/>", '<r id="1"><z id="2"/></r>',
        "<r id=\"4\">text id='1' id='2'</r>",
    ]  # fmt: skip
    assert decoded(spark, list(values), "_id INT, _VALUE STRING") == [
        "duplicate", {"_id": 1}, {"_id": 1}, {}, {}, {"_id": 1}, {"_id": 1},
        {"_id": 4, "_VALUE": "text id='1' id='2'"},
    ]  # fmt: skip
    assert decoded(spark, list(values), "_id INT, _VALUE STRING", ignore_namespace=True) == [
        "duplicate", "duplicate", "duplicate", "duplicate", {"_id": 3}, {"_id": 1}, {"_id": 1},
        {"_id": 4, "_VALUE": "text id='1' id='2'"},
    ]  # fmt: skip


def test_xml_prefixes_count_unless_the_file_says_otherwise(spark: SparkSession) -> None:
    values: list[str | bytes | None] = [
        '<n:r xmlns:n="u"><n:i>1</n:i></n:r>', "<n:r><n:i>1</n:i><i>2</i></n:r>", "<r><i>3</i></r>", "<n:q/>",
    ]  # fmt: skip
    assert decoded(spark, values, "i INT, `n:i` INT") == [{"n:i": 1}, {"i": 2, "n:i": 1}, {"i": 3}, {}]
    assert decoded(spark, values, "i INT", root="r", ignore_namespace=True) == [{"i": 1}, "duplicate", {"i": 3}, "root"]
    assert decoded(spark, values, "`n:i` INT", root="n:r") == [{"n:i": 1}, {"n:i": 1}, "root", "root"]


def test_xml_names_are_not_taken_for_others(spark: SparkSession) -> None:
    assert decoded(
        spark,
        ["<r><_x>1</_x></r>", '<r x="1"/>', "<r><at.x>1</at.x></r>", '<r _x="2"/>',
         "<r><__sluice_end>0</__sluice_end></r>",
         "<r><__sluice_corrupt/></r>", "<r><x>__sluice_end</x></r>", "<r><xs_any>1</xs_any></r>"],
        "_x INT, `at.x` INT, xs_any STRING",
    ) == [{}, {"_x": 1}, {"at.x": 1}, {}, "xml", "xml", "xml", {"xs_any": "1"}]  # fmt: skip
    assert decoded(spark, ['<r x="1"><_x>2</_x></r>'], "at_x INT, _x INT", attribute_prefix="at_") == [
        {"at_x": 1, "_x": 2}
    ]


def test_xml_document_is_utf8_and_says_nothing_else(spark: SparkSession) -> None:
    heads = ["", "\ufeff", '<?xml version="1.0" encoding="UTF-8"?>', "<?xml version='1.0' encoding='utf-8' ?>\n"]
    others: list[str | bytes | None] = [
        '<?xml version="1.0" encoding="ISO-8859-1"?><r><s>Ã©</s></r>', "<r><s>é</s></r>".encode("latin-1"),
        "<r/>".encode("utf-16"), "<r s=\"encoding='x'\"/>",
    ]  # fmt: skip
    found = decoded(spark, [*(f"{head}<r><s>é</s></r>" for head in heads), *others])
    assert found == [{"s": "é"}] * 4 + ["utf8"] * 3 + [{}]


def test_xml_fetches_nothing_and_expands_no_entity(spark: SparkSession, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(10))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        found = decoded(
            spark,
            [
                f'<!DOCTYPE r [<!ENTITY e SYSTEM "{secret.as_uri()}">]><r><s>&e;</s></r>',
                f'<!DOCTYPE r SYSTEM "http://127.0.0.1:{port}/x.dtd"><r><s>a</s></r>',
                f'<!DOCTYPE r [<!ENTITY % p SYSTEM "http://127.0.0.1:{port}/x"> %p;]><r><s>a</s></r>',
                f"<!DOCTYPE r [{lol}]><r><s>&l9;</s></r>",
                '<!-- c --><!DOCTYPE r [<!ATTLIST r id CDATA "7">]><r/>',
                f'<r xmlns:xi="http://www.w3.org/2001/XInclude"><s><xi:include href="{secret.as_uri()}"/></s></r>',
                f'<r xmlns:x="{XSI}" x:schemaLocation="u http://127.0.0.1:{port}/x.xsd"/>',
                "<r><s><![CDATA[<!DOCTYPE html>]]></s></r>",
            ],
        )  # fmt: skip
        with pytest.raises(BlockingIOError):
            server.accept()
    assert found == ["xml", "xml", "xml", "xml", "xml", "type", {}, {"s": "<!DOCTYPE html>"}]


@pytest.mark.long
def test_xml_documents_that_are_large_or_deep_end_no_task(spark: SparkSession) -> None:
    big, deep = "x" * 3_000_000, 100_000
    values: list[str | bytes | None] = [
        f"<r><s>{big}</s></r>",
        f"<r><s>{'&amp; ' * 200_000}</s></r>",
        f"<r>{'<a>1</a>' * 50_000}</r>",
        f'<r id="1" z="{big[:500_000]}"/>',
        f"{'<!-- c --> ' * 50_000}<r/>",
        f"<r><z>{'<y/>' * deep}</z></r>",
        f'<r id="1" z="{big}"/>',
        f"<r>{'<z>' * deep}{'</z>' * deep}</r>",
        f"<r><s>{'<z>' * deep}{'</z>' * deep}</s></r>",
        f"<r>{'<z>' * deep}",
        f"<r {' '.join(f'a{n}={chr(34)}1{chr(34)}' for n in range(deep))}/>",
        "<" * deep,
        "<r " * deep,
        f"<r>{'</r>' * deep}",
        f"<r {'id=' * deep}",
        f"<r {'x=' + chr(34)}{' id=' * deep}",
        "<!--" * deep,
        "<?" * deep,
    ]
    found = decoded(spark, values, XML, ignore_namespace=True)
    assert [len(found[0]["s"]), len(found[1]["s"]), len(found[2]["a"])] == [3_000_000, 400_000, 50_000]
    assert found[3:6] == [{"_id": 1}, {}, {}]
    assert found[6:] == ["xml"] * 12
