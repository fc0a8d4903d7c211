"""A Delta table by its path: what a store that cannot be read, or refuses, is said to be."""

from __future__ import annotations

import pytest

from sluice.errors import ExitCode, SluiceError
from sluice.storage import file_system
from sluice_spark.sinks.delta.table import DeltaSink


@pytest.mark.parametrize(
    ("wrong", "bucket", "code", "token"),
    [
        pytest.param({"AWS_SECRET_ACCESS_KEY": "wrong"}, "lake", ExitCode.NOT_AUTHORIZED, "SignatureDoesNotMatch",
                     id="secret"),
        pytest.param({"AWS_ACCESS_KEY_ID": "nobody"}, "lake", ExitCode.NOT_AUTHORIZED, "InvalidAccessKeyId", id="key"),
        pytest.param({}, "nowhere", ExitCode.SINK_FAILED, "no bucket 'nowhere'", id="bucket"),
    ],
)  # fmt: skip
def test_delta_table_in_a_store_that_refuses_is_an_error_of_its_type(
    guarded_store: dict[str, str], monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], bucket: str,
    code: ExitCode, token: str,
) -> None:  # fmt: skip
    for name, value in {**guarded_store, **wrong}.items():
        monkeypatch.setenv(name, value)
    file_system.__globals__["_s3"].cache_clear()  # of other credentials
    with pytest.raises(SluiceError) as refused:
        DeltaSink(f"s3a://{bucket}/table", "app").version()
    assert (refused.value.exit_code, token in refused.value.what) == (code, True)
    assert "wrong" not in str(refused.value)
