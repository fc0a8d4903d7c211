"""dlt with a source that yields Arrow tables, and its Delta destination. It keeps offsets in its state."""

import io
import sys
from collections.abc import Iterator

import dlt
import pyarrow as pa
import pyarrow.json
from confluent_kafka import Consumer, TopicPartition

bootstrap, topic, out = sys.argv[1:]


@dlt.resource(name="records", table_format="delta")
def records() -> Iterator[pa.Table]:
    """Yield what the topic holds, 100,000 records at a time."""
    offsets = dlt.current.resource_state().setdefault("offsets", {})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 10,
        }
    )
    parts = consumer.list_topics(topic).topics[topic].partitions
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p))[1] for p in parts}
    consumer.assign([TopicPartition(topic, p, offsets.get(str(p), 0)) for p in parts])
    left = {p for p, end in ends.items() if end > offsets.get(str(p), 0)}
    while left:
        found = [m for m in consumer.consume(100_000, timeout=5) if m.error() is None]
        found = [m for m in found if m.offset() < ends[m.partition()]]
        if not found:
            continue
        table = pyarrow.json.read_json(io.BytesIO(b"\n".join(m.value() for m in found)))
        table = table.append_column("partition", pa.array([m.partition() for m in found], pa.int32()))
        yield table.append_column("offset", pa.array([m.offset() for m in found], pa.int64()))
        for message in found:
            offsets[str(message.partition())] = message.offset() + 1
        left -= {p for p in left if offsets.get(str(p), 0) >= ends[p]}


pipeline = dlt.pipeline(
    "bench", destination=dlt.destinations.filesystem(f"file://{out}"), dataset_name="bench", pipelines_dir=f"{out}-dlt"
)
pipeline.run(records())
