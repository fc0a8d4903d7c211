"""The Airflow side of Sluice: DAGs of pipelines, with their operators, sensor, triggers and hooks."""
