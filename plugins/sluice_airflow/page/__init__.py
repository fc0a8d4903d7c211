"""Sluice's page in Airflow: what the ledger, the broker and the tables say of each pipeline."""
