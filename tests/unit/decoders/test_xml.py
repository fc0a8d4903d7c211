"""What the key ``decode.xml`` may say."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sluice.decoders.xml import XmlDecode


@pytest.mark.parametrize(
    ("schema", "keys", "message"),
    [
        ("m MAP<STRING, INT>", {}, "XML has no MAP: declare the fields that you need as a STRUCT"),
        ("a ARRAY<STRUCT<v: VARIANT>>", {}, "XML has no VARIANT"),
        ("a STRUCT<b: BINARY>", {}, "XML has no BINARY: declare it as STRING"),
        ("a ARRAY<ARRAY<INT>>", {}, "'a' is an array of arrays"),
        ("_a ARRAY<INT>", {}, "'_a' is an attribute (attribute_prefix), which is no ARRAY"),
        ("o STRUCT<_a: STRUCT<x: INT>>", {}, "'_a' is an attribute (attribute_prefix), which is no STRUCT"),
        ("o STRUCT<_VALUE: ARRAY<INT>>", {}, "'_VALUE' is the text of an element, which is no ARRAY"),
        ("_topic STRING", {}, "a name that Sluice adds itself"),
        ("a INT", {"attribute_prefix": ""}, "attribute_prefix"),
        ("a INT", {"attribute_prefix": "a b"}, "attribute_prefix"),
        ("a INT", {"root": "<r>"}, "root"),
        ("a INT", {"key": "A"}, "the column 'A' is declared already"),
        ("a INT", {"tombstone": "delete"}, "needs the record's key"),
    ],
)
def test_what_xml_does_not_have_is_refused(schema: str, keys: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        XmlDecode(schema=schema, **keys)
    assert message in str(refused.value)


def test_what_can_be() -> None:
    spec = XmlDecode(schema="`n:a` INT, _b ARRAY<INT>, at_c INT, _VALUE STRING", attribute_prefix="at_", root="n:r")
    assert [spec.is_attribute(name) for name in spec.names] == [False, False, True, False]
    assert not XmlDecode(schema="_VALUE INT").is_attribute("_VALUE")
