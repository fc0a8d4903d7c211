"""An Iceberg table as a sink, by pyiceberg: Spark's Iceberg jars are not needed."""
