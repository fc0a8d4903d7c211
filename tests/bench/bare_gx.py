"""The bare Great Expectations script that would follow the bare drain, in a process of its own."""

import json
import sys
from pathlib import Path

import great_expectations as gx
from great_expectations import ExpectationSuite, ValidationDefinition
from great_expectations.checkpoint import Checkpoint, UpdateDataDocsAction
from pyspark.sql import SparkSession

table, suite_file, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
frame = spark.read.format("delta").load(table)
context = gx.get_context(mode="file", project_root_dir=folder)
asset = context.data_sources.add_spark("bench").add_dataframe_asset("rows")
batch = asset.add_batch_definition_whole_dataframe("all")
expectations = [
    {**item, "kwargs": {k: [c.lstrip("_") for c in v] if k == "column_list" else v for k, v in item["kwargs"].items()}}
    for item in json.loads(Path(suite_file).read_text())["expectations"]
]
suite = context.suites.add(ExpectationSuite(name="bench", expectations=expectations))
definition = context.validation_definitions.add(ValidationDefinition(name="bench", data=batch, suite=suite))
checkpoint = context.checkpoints.add(
    Checkpoint(name="bench", validation_definitions=[definition], actions=[UpdateDataDocsAction(name="docs")])
)
outcome = checkpoint.run(batch_parameters={"dataframe": frame})
spark.stop()
sys.exit(0 if outcome.success else 1)
