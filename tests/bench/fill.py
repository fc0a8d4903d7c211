"""Fills a topic with generated JSON records of one of the shapes, through Spark's Kafka sink."""

import sys

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from shapes import COUNTRIES, SHAPES  # spark-submit makes this folder one of the paths

bootstrap, topic, count, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
shape = SHAPES[name]
spark = SparkSession.builder.getOrCreate()
n = F.col("id")


def made(column: str, kind: str, number: int) -> Column:
    """Return a column of generated values."""
    mixed = F.pmod(n * (7919 + 2 * number), F.lit(100_000))
    match kind:
        case "bigint":
            return n if column == "id" else mixed
        case "double":
            return mixed / 100
        case "timestamp":
            return F.timestamp_seconds(F.lit(1_767_225_600) + n / 60)
        case "boolean":
            return mixed % 2 == 0
        case "string" if column == "country":
            return F.element_at(F.array(*map(F.lit, COUNTRIES)), (n % 5 + 1).cast("int"))
        case "string" if column == "payload":
            return F.md5(n.cast("string"))
        case "string":
            return F.concat(F.lit("s"), mixed.cast("string"))
        case "array<string>":
            return F.array(F.lit("new"), mixed.cast("string"))
        case "map<string,double>":
            return F.create_map(F.lit("speed"), mixed / 7, F.lit("taste"), mixed / 3)
        case _:
            return F.struct(F.lit("Main Street 1").alias("street"), F.lit("Bergen").alias("city"), mixed.alias("zip"))


fields = spark.createDataFrame([], shape.schema).schema.fields
columns = [made(f.name, f.dataType.simpleString(), i).alias(f.name) for i, f in enumerate(fields)]
value = F.to_json(F.struct(*columns))
if shape.bad_every:
    value = F.when(n % shape.bad_every == 0, F.regexp_replace(value, '"amount":', '"amount":"x"')).otherwise(value)
rows = [n.cast("string").alias("key"), value.alias("value")]
if shape.skewed:
    part = F.when(n % 2 == 0, F.lit(0)).otherwise(F.pmod(n, F.lit(shape.partitions)))
    rows.append(part.cast("int").alias("partition"))
(
    spark.range(0, count, 1, 8)
    .select(*rows)
    .write.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("kafka.batch.size", 262_144)
    .option("kafka.linger.ms", 20)
    .option("topic", topic)
    .save()
)
spark.stop()
