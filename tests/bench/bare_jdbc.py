"""The bare script into PostgreSQL: what a data engineer writes first. Drains a topic by ``df.write.jdbc`` and exits."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

bootstrap, topic, schema, url, table, checkpoint = sys.argv[1:]
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


def write(batch: DataFrame, _: int) -> None:
    batch.write.jdbc(url, table, mode="append", properties={"driver": "org.postgresql.Driver"})


(
    rows.writeStream.foreachBatch(write)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
spark.stop()
