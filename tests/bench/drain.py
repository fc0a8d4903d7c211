"""A run against what people would write instead: volume, other shapes of data, and the fixed cost of a small run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from tests.bench.harness import HERE, Bench, Figure, Options, compare, measure
from tests.bench.shapes import SHAPES, Shape

from sluice.cli.output import err
from sluice.errors import ConfigError
from sluice.launch import jars

__all__ = ["fixed", "shapes", "volume"]

_SMALL = 10_000

_PEERS = {
    "arrow": ("peer_arrow.py", ("confluent-kafka==2.16.1", "deltalake", "pyarrow")),
    "dlt": ("peer_dlt.py", ("dlt[deltalake]==1.31.0", "confluent-kafka==2.16.1", "pyarrow")),
    "flink": ("peer_flink.py", ("apache-flink==2.2.1", "setuptools<81")),
}
"""Scripts, and what they need; installed for the bench alone."""


@dataclass(frozen=True)
class _Peer:
    """A script of others, and where it runs."""

    script: str
    python: Path
    jars: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bench: Bench, name: str, script: str, needs: Sequence[str]) -> _Peer | None:
        """Return a peer; None if it cannot be installed here."""
        python = bench.python(name, needs)
        if python is None or name != "flink":
            return None if python is None else cls(script, python)
        try:
            found = jars.fetch("flink", report=err.print)
        except ConfigError as error:
            err.print(str(error))
            return None
        # its Parquet format needs Hadoop's classes, which PySpark has
        hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
        return cls(script, python, tuple(found), {"HADOOP_CLASSPATH": ":".join(map(str, hadoop))})

    def __call__(self, bench: Bench, topic: str) -> Figure:
        out = bench.fresh(self.script.removesuffix(".py"))
        argv = [str(self.python), str(HERE / self.script), bench.broker.bootstrap, topic, str(bench.scratch / out)]
        argv += [",".join(map(str, self.jars))] if self.jars else []
        return measure(argv, self.env, bench.scratch / f"{out}.log").figure


def volume(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic, not judged."""
    topic = bench.topic("big", options.records)
    sides = {"bare": lambda: _bare(bench, topic)[0], "ours": lambda: _ours(bench, topic, "--no-validate")}
    for name, (script, needs) in _PEERS.items():
        peer = _Peer.of(bench, name, script, needs)
        if peer is None:
            err.print(f"{name} cannot be installed here: left out")
            continue
        sides[name] = lambda peer=peer: peer(bench, topic)
    return compare("volume: drain, not judged", options.records, options.runs, sides)


def shapes(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain topics of other shapes, not judged."""
    found = {}
    for name, shape in SHAPES.items():
        if name == "small":  # the volume
            continue
        records = int(options.records * shape.records)
        topic = bench.topic(f"shape-{name}", records, name)
        found[name] = compare(
            f"{name}: drain, not judged",
            records,
            options.runs,
            {
                "bare": lambda topic=topic, shape=shape: _bare(bench, topic, shape)[0],
                "ours": lambda topic=topic, shape=shape: _ours(bench, topic, "--no-validate", shape=shape),
            },
        )
    return found


def fixed(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain and judge a small topic."""
    topic = bench.topic("tiny", _SMALL)
    return compare(
        "fixed cost: drain and judge",
        _SMALL,
        options.runs,
        {"bare": lambda: _bare_judged(bench, topic), "ours": lambda: _ours(bench, topic, "--validate")},
    )


def _ours(bench: Bench, topic: str, *options: str, shape: Shape = SHAPES["small"]) -> Figure:
    file = bench.pipeline(topic, bench.fresh("ours"), decode={"json": {"schema": shape.schema}})
    return bench.run(file, *options).figure


def _bare(bench: Bench, topic: str, shape: Shape = SHAPES["small"]) -> tuple[Figure, Path]:
    out = bench.scratch / bench.fresh("bare")
    return bench.bare("bare.py", bench.broker.bootstrap, topic, shape.schema, str(out)), out


def _bare_judged(bench: Bench, topic: str) -> Figure:
    first, out = _bare(bench, topic)
    second = bench.bare("bare_gx.py", str(out), str(bench.suite), str(bench.scratch / bench.fresh("gx")))
    return Figure(first.wall + second.wall, first.cpu + second.cpu, max(first.peak_mb, second.peak_mb))
