"""Reads Delta logs and tables without Spark: names, transaction versions, metadata columns."""
