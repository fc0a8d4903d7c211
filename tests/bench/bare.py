"""The bare script: what a data engineer writes first. Drains a topic into Delta and exits."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

bootstrap, topic, schema, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
rows = records.select(
    F.from_json(F.col("value").cast("string"), schema).alias("data"), "topic", "partition", "offset", "timestamp"
).select("data.*", "topic", "partition", "offset", "timestamp")
(
    rows.writeStream.format("delta")
    .option("checkpointLocation", f"{out}_checkpoint")
    .trigger(availableNow=True)
    .start(out)
    .awaitTermination()
)
spark.stop()
