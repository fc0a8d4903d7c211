"""Links of Sluice, laid out as in Airflow's providers."""
