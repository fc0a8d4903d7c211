"""A hand-written Arrow script: librdkafka, pyarrow.json, delta-rs. It keeps no progress, and one bad value ends it."""

import io
import sys

import pyarrow as pa
import pyarrow.json
from confluent_kafka import Consumer, TopicPartition
from deltalake import write_deltalake

bootstrap, topic, out = sys.argv[1:]
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
consumer.assign([TopicPartition(topic, p, 0) for p in parts])
left = {p for p, end in ends.items() if end}
held: list = []


def write() -> None:
    lines = b"\n".join(m.value() for m in held)
    table = pyarrow.json.read_json(io.BytesIO(lines), pyarrow.json.ReadOptions(block_size=1 << 24))
    table = table.append_column("_partition", pa.array([m.partition() for m in held], pa.int32()))
    table = table.append_column("_offset", pa.array([m.offset() for m in held], pa.int64()))
    write_deltalake(out, table, mode="append")
    held.clear()


while left:
    for message in consumer.consume(10_000, timeout=5):
        if message.error() is None and message.offset() < ends[message.partition()]:
            held.append(message)
            if message.offset() == ends[message.partition()] - 1:
                left.discard(message.partition())
    if len(held) >= 500_000:
        write()
if held:
    write()
