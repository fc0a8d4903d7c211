"""All that reads or writes a Delta log without Spark: names, transaction versions, metadata columns."""
