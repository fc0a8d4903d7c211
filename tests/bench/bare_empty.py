"""The bare script without its work: batches of a topic of which nothing is read or written."""

import sys

from pyspark.sql import SparkSession

bootstrap, topic, records, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
(
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", records)
    .load()
    .writeStream.foreachBatch(lambda frame, batch: None)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
spark.stop()
