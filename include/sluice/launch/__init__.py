"""Starts Spark applications: the spark-submit command, and the jars that it needs."""
