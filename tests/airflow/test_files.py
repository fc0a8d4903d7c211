"""The pipeline files that the page knows, and how often it reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.showcase import PIPELINE

from sluice.pipeline import Pipeline
from sluice_airflow import files
from sluice_airflow.files import Files

pytestmark = pytest.mark.airflow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pipelines, one of them in a folder below."""
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    (tmp_path / "finance").mkdir()
    for name in ("orders", "finance/refunds"):
        (tmp_path / f"{name}.yaml").write_text(PIPELINE.format(name=Path(name).name, recovery="replay"))
    return tmp_path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are parsed, as often as they are."""
    seen, load = [], files.load

    def count(file: Path) -> Pipeline:
        seen.append(file.stem)
        return load(file)

    monkeypatch.setattr(files, "load", count)
    return seen


def test_page_parses_a_file_once_until_it_or_its_defaults_change(folder: Path, parsed: list[str]) -> None:
    found = Files()
    assert [set(found.valid()) for _ in range(3)] == [{"orders", "refunds"}] * 3
    assert parsed == ["orders", "refunds"]
    (folder / "finance" / "_defaults.yaml").write_text("airflow: {description: ours}")
    assert found.valid()["refunds"].airflow.description == "ours"
    assert parsed == ["orders", "refunds", "refunds"]
    (folder / "orders.yaml").unlink()
    assert set(found.valid()) == {"refunds"}
    assert len(found._read) == 1


def test_page_finds_a_pipeline_by_name_below_the_folder_and_parses_one_file(folder: Path, parsed: list[str]) -> None:
    assert Files().named("orders") is not None
    assert parsed == ["orders"]
    found = Files().named("refunds")
    assert found.file == folder / "finance" / "refunds.yaml"


def test_page_leaves_out_an_invalid_file_and_parses_it_once(folder: Path, parsed: list[str]) -> None:
    (folder / "bad.yaml").write_text("pipeline: bad")
    found = Files()
    assert [set(found.valid()) for _ in range(2)] == [{"orders", "refunds"}] * 2
    assert parsed.count("bad") == 1
    (folder / "merged.yaml").write_text("pipeline: orders_new\n<<<<<<< HEAD\n")
    broken = found.broken()
    assert broken.keys() == {"bad", "orders_new"}
    assert "line" in broken["orders_new"]
    (folder / "bad.yaml").unlink()
    assert found.broken().keys() == {"orders_new"}


def test_page_finds_no_files_in_a_missing_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "none"))
    assert (Files().valid(), Files().named("orders")) == ({}, None)
