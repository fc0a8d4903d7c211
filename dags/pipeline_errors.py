"""No DAG, but the import error of every bad file of include/pipelines: here it stops no good DAG (Airflow)."""

from sluice_airflow.factory import refuse_bad_files

refuse_bad_files()
