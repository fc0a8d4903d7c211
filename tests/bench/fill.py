"""Fills a topic with generated JSON records of about 150 bytes, through Spark's Kafka sink."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = SparkSession.builder.getOrCreate()
n = F.col("id")
value = F.to_json(
    F.struct(
        n.alias("id"),
        F.timestamp_seconds(F.lit(1_767_225_600) + n / 60).alias("ts"),
        (F.pmod(n * 7919, F.lit(100_000)) / 100).alias("amount"),
        F.element_at(F.array(*map(F.lit, ["DE", "FR", "IT", "ES", "PL"])), (n % 5 + 1).cast("int")).alias("country"),
        F.md5(n.cast("string")).alias("payload"),
    )
)
(
    spark.range(0, count, 1, 8)
    .select(F.col("id").cast("string").alias("key"), value.alias("value"))
    .write.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("kafka.batch.size", 262_144)
    .option("kafka.linger.ms", 20)
    .option("topic", topic)
    .save()
)
spark.stop()
