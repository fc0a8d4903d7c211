"""The Spark side: one bounded run, from the source to the judged sink. Imports the core, never Airflow."""

import sys

from sluice_spark.installed_pyspark import prefer_installed

prefer_installed(sys.path)  # before anything imports PySpark
