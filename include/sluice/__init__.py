"""The core both sides share: spec, ranges, recovery, ledger, lag. Imports neither Airflow nor Spark."""

__version__ = "0.1.0"
