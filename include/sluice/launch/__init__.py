"""Starts a Spark application: the one spark-submit, and the jars that it needs."""
