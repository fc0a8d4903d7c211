"""A PostgreSQL table as the sink, against ``df.write.jdbc``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from tests.bench.harness import Bench, Figure, Options, compare
from tests.bench.shapes import SHAPES
from tests.fixtures.postgres import binaries, new_database, server

from sluice.cli.output import err
from sluice.connections import variable_of
from sluice.launch.jars import DEFAULT_REPOSITORY

__all__ = ["postgres"]

_DRIVER = "org/postgresql/postgresql/42.7.4/postgresql-42.7.4.jar"


def postgres(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a topic into PostgreSQL, not judged; the server writes through to the disk, as it does by default."""
    programs, records = binaries(), int(options.records * 0.4)
    if programs is None:
        err.print("there is no PostgreSQL here: left out")
        return {}
    topic, driver = bench.topic("into-postgres", records), _driver(bench.scratch)
    with server(programs, durable=True) as running:
        url = sa.make_url(new_database(running.url))
        parts = {"host": url.host, "port": url.port, "login": url.username, "schema": url.database}
        os.environ[variable_of("postgres_default")] = json.dumps({"conn_type": "postgres", **parts})
        jdbc = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?user={url.username}"

        def ours(mode: dict[str, Any]) -> Figure:
            name = bench.fresh("ours")
            sink = {"postgres": {"table": name.replace("-", "_"), **mode}}
            return bench.run(bench.pipeline(topic, name, sink=sink), "--no-validate").figure

        def bare(options: str) -> Figure:
            name = bench.fresh("bare").replace("-", "_")
            return bench.bare(
                "bare_jdbc.py", bench.broker.bootstrap, topic, SHAPES["small"].schema, jdbc + options, name,
                str(bench.scratch / f"{name}-checkpoint"), jars=[driver],
            )  # fmt: skip

        sides = {
            "bare": lambda: bare(""),
            "ours": lambda: ours({}),
            "bare, tuned": lambda: bare("&reWriteBatchedInserts=true"),
            "ours, upsert": lambda: ours({"mode": "upsert", "key": ["id"]}),
        }
        if driver is None:
            err.print("the JDBC driver cannot be had here: the bare script is left out")
            sides = {name: side for name, side in sides.items() if name.startswith("ours")}
        return compare("into PostgreSQL: drain, not judged", records, options.runs, sides)


def _driver(folder: Path) -> Path | None:
    """Download the JDBC driver, which Sluice does not need."""
    try:
        came = httpx.get(
            f"{os.environ.get('SLUICE_MAVEN_REPO') or DEFAULT_REPOSITORY}/{_DRIVER}", follow_redirects=True
        )
        came.raise_for_status()
    except httpx.HTTPError:
        return None
    file = folder / "postgresql.jar"
    file.write_bytes(came.content)
    return file
