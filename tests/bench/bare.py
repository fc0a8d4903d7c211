"""The bare script: what a data engineer writes first. Drains a topic into Delta, or by ``df.write.jdbc``, and exits."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

bootstrap, topic, schema, out, *jdbc = sys.argv[1:]
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
stream = rows.writeStream.option("checkpointLocation", f"{out}_checkpoint").trigger(availableNow=True)
if jdbc:
    table, driver = out.rpartition("/")[2], {"driver": "org.postgresql.Driver"}
    query = stream.foreachBatch(lambda batch, _: batch.write.jdbc(jdbc[0], table, "append", driver)).start()
else:
    query = stream.format("delta").start(out)
query.awaitTermination()
spark.stop()
