"""The core that both sides share: pipeline file, ranges, recovery, ledger, lag. Imports neither Airflow nor Spark."""

__version__ = "0.1.0"
"""The only definition of the version: the build reads it, and ``sluice --version`` prints it."""
