"""One DAG for each good file of include/pipelines; a bad one is reported by pipeline_errors.py."""

from sluice_airflow.factory import build_all

globals().update(build_all())
