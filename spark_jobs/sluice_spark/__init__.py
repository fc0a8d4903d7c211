"""The Spark side: one bounded run, from the Kafka source to the judged sink. Imports the core, never Airflow."""
