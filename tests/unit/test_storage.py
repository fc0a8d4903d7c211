"""Locations: ``SLUICE_HOME``, paths, object stores, unknown URLs, and places without a checkout."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import fsspec
import pytest
from tests.fixtures.pipelines import loaded

from sluice import shipped
from sluice.delta.table import Table
from sluice.errors import AuthorizationError, ConfigError, SinkError, SluiceError
from sluice.home import Home
from sluice.launch.preflight import check_places
from sluice.pipeline import pipelines_folder
from sluice.storage import file_system, make_folder, remove


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "FILE://{}", "local://{}"])
def test_storage_takes_each_spelling_of_a_path(form: str, tmp_path: Path) -> None:
    place = form.format(tmp_path)
    make_folder(f"{place}/a")
    make_folder(f"{tmp_path}/a/b")
    fs, path = file_system(f"{tmp_path}/a/b")
    assert (path, fs.isdir(path)) == (f"{tmp_path}/a/b", True)
    remove(f"{place}/a", f"{place}/never-there")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["s3://lake/a table/x=%20", "s3a://lake/a table/x=%20", "S3A://lake//a table/x=%20/"])
def test_object_store_needs_no_package(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fs, path = file_system(url)
    assert path == "lake/a table/x=%20"  # an object's name, which is no URL any more
    assert (fs.fs.type_name, fs.fs.region) == ("s3", "eu-central-1")
    assert file_system(url)[0] is fs
    make_folder(url)  # sends no request
    fs.rmdir("lake/table")  # a client that asked would find no server, and one that did it would remove what is there


def test_object_store_has_a_client_for_each_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    fs, _ = file_system("s3://lake/x")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert file_system("s3://lake/x")[0] is not fs


@pytest.mark.parametrize(("scheme", "token"), [("nothing", "s3a://"), ("hdfs", "hdfs-native for hdfs://")])
def test_storage_refuses_a_url_that_it_cannot_open(scheme: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match=f"{scheme}://") as caught:
        file_system(f"{scheme}://bucket/table")
    assert (token in caught.value.next_step, caught.value.what.count(chr(10))) == (True, 0)


def test_storage_takes_a_file_system_without_the_options_of_others() -> None:
    """As that of hdfs-native, which gives every option to its client."""

    class Strict(fsspec.AbstractFileSystem):
        protocol = "strict"

        def __init__(self, host: str | None = None) -> None:
            super().__init__()

    fsspec.register_implementation("strict", Strict, clobber=True)
    assert isinstance(file_system("strict://bucket/table")[0], Strict)


@pytest.mark.parametrize(
    ("variables", "clear"),
    [
        ({"AWS_ENDPOINT_URL": "minio:9000"}, False),
        ({"AWS_ENDPOINT_URL": "http://host/below"}, False),
        ({"AWS_ENDPOINT_URL": "http://host", "AWS_ENDPOINT": "http://other"}, False),
        ({"AWS_ENDPOINT_URL": "http://host/", "AWS_ENDPOINT": "http://host"}, True),
        ({"AWS_ENDPOINT": "https://host:9000"}, True),
    ],
)
def test_object_store_with_an_ambiguous_endpoint_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], clear: bool
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if clear:
        assert file_system("s3a://lake/x")[1] == "lake/x"
        return
    with pytest.raises(ConfigError, match=r"is not clear: AWS_ENDPOINT"):
        file_system("s3a://lake/x")
    remove("s3a://lake/x")  # cleaning raises nothing


def test_object_store_that_cannot_be_listed_is_no_empty_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    fs, path = file_system("s3a://lake/batches")
    for ask in (lambda: fs.find(path), lambda: fs.isdir(path), lambda: fs.glob(f"{path}/x-*")):
        with pytest.raises(OSError, match="lake"):
            ask()


def test_home_that_is_a_url_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", "s3://key:hidden@bucket/home")
    with pytest.raises(ConfigError, match="path") as caught:
        Home.from_env()
    assert "hidden" not in str(caught.value)


def test_home_and_pipelines_without_a_checkout_begin_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "CHECKOUT", None)
    monkeypatch.chdir(tmp_path)
    for name in ("SLUICE_HOME", "SLUICE_PIPELINES"):
        monkeypatch.delenv(name, raising=False)
    assert Home.from_env().root == str(tmp_path / "var")
    with pytest.raises(ConfigError, match=f"{tmp_path}/include/pipelines"):
        pipelines_folder()
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    assert pipelines_folder() == tmp_path / "include" / "pipelines"


ANSWERS = [
    ("Generic S3 error: <Code>ExpiredToken</Code>", AuthorizationError, "ExpiredToken"),
    ("The operation lacked the necessary privileges to complete for path x", AuthorizationError, "privileges"),
    ("S3Exception: Bad Request (Service: S3, Status Code: 400, Request ID: x)", AuthorizationError, "400"),
    ("NoSuchBucket", SinkError, "'lake'"),
    ("connection reset", SinkError, "connection reset"),
]


@pytest.mark.parametrize(("said", "kind", "named"), ANSWERS)
def test_table_in_an_object_store_tells_refused_credentials_from_other_failures(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: type[SluiceError], named: str
) -> None:
    monkeypatch.setattr("deltalake.DeltaTable", mock.Mock(side_effect=OSError(said)))
    with pytest.raises(SluiceError, match=named) as caught:
        Table.open("sink", "s3a://lake/table")
    assert type(caught.value) is kind


def test_quarantine_at_a_url_that_cannot_be_opened_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="nothing://"):
        check_places(loaded(tmp_path, "quarantine.delta.path: nothing://bucket/refused"))
