"""The bare Great Expectations script that would follow the bare drain, in a process of its own."""

import json
import sys
from pathlib import Path
from typing import Any

import great_expectations as gx
from great_expectations import ExpectationSuite, ValidationDefinition
from great_expectations.checkpoint import Checkpoint, UpdateDataDocsAction
from pyspark.sql import DataFrame, SparkSession


def validate(frame: DataFrame, expectations: list[dict[str, Any]], folder: str) -> bool:
    """Validate rows as the tutorial of Great Expectations does, Data Docs included."""
    context = gx.get_context(mode="file", project_root_dir=folder)
    asset = context.data_sources.add_spark("bench").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(ExpectationSuite(name="bench", expectations=expectations))
    definition = context.validation_definitions.add(ValidationDefinition(name="bench", data=batch, suite=suite))
    actions = [UpdateDataDocsAction(name="docs")]
    checkpoint = context.checkpoints.add(Checkpoint(name="bench", validation_definitions=[definition], actions=actions))
    return bool(checkpoint.run(batch_parameters={"dataframe": frame}).success)


if __name__ == "__main__":
    table, suite_file, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    frame = spark.read.format("delta").load(table)
    expectations = json.loads(Path(suite_file).read_text())["expectations"]
    for item in expectations:  # the bare drain keeps the names of Kafka's columns
        if "column_list" in item["kwargs"]:
            item["kwargs"]["column_list"] = [name.lstrip("_") for name in item["kwargs"]["column_list"]]
    success = validate(frame, expectations, folder)
    spark.stop()
    sys.exit(0 if success else 1)
