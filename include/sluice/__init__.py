"""The core both sides share: spec, ranges, recovery, ledger, lag. Imports neither Airflow nor Spark."""

__version__ = "0.1.0"
"""The one place that says it: the build reads it from here, and ``sluice --version`` prints it."""
