-- Read by the image of PostgreSQL when its volume is new, and never again. Airflow's metadata and the ledger are two
-- databases, each of a role of its own that cannot enter the other one.
\set airflow_password `cat /run/secrets/airflow_db_password`
\set ledger_password `cat /run/secrets/ledger_db_password`

CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE DATABASE airflow OWNER airflow;
REVOKE ALL ON DATABASE airflow FROM PUBLIC;

CREATE ROLE ledger LOGIN PASSWORD :'ledger_password';
CREATE DATABASE ledger OWNER ledger;
REVOKE ALL ON DATABASE ledger FROM PUBLIC;
