"""The Airflow side of Sluice: opens the gate, waits, shows the verdict, closes the account."""
