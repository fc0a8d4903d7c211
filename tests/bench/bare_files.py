"""The bare script for files: drains a folder of JSON lines into Delta and exits."""

import sys

from pyspark.sql import SparkSession

folder, schema, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
(
    spark.readStream.schema(schema)
    .json(folder)
    .writeStream.format("delta")
    .option("checkpointLocation", f"{out}_checkpoint")
    .trigger(availableNow=True)
    .start(out)
    .awaitTermination()
)
spark.stop()
