"""One topic, five tasks, five ways to recover. Copy the task whose promise you need.

| task | recovers by | because |
|---|---|---|
| delays | `replay` | it may wait, and Kafka keeps the records |
| archive | `wal` | it must outlive Kafka's retention, and go on while Kafka is down |
| punctuality | `hot` | its batches are large, and executors come and go |
| board | `ignore_range` | it must be on time; single records may be missing, on the books |
| pulse | `ignore_batch` | it must be on time, and a batch more or less does not matter |

The pipeline files are in `include/pipelines/recovery/`. A file names a strategy, a task may name another one, and a
run may override both where the DAG has a param `recovery` and the task names none.
"""

from datetime import timedelta

from airflow.sdk import DAG

from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.retry import TypedRetryPolicy

with DAG(
    "recovery_side_by_side",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    max_active_tasks=2,  # each is a Spark driver on this machine
    doc_md=__doc__,
    tags={"sluice", "example", "topic:flights"},
    default_args={
        "retries": 3,
        "retry_delay": timedelta(minutes=1),
        "retry_policy": TypedRetryPolicy(),
        "execution_timeout": timedelta(hours=12),
    },
) as dag:
    BoundedRunOperator(task_id="delays", pipeline="recovery/flights_delays", recovery="replay")
    BoundedRunOperator(task_id="archive", pipeline="recovery/flights_archive", recovery="wal")
    BoundedRunOperator(task_id="punctuality", pipeline="recovery/flights_punctuality", recovery="hot")
    BoundedRunOperator(task_id="board", pipeline="recovery/flights_board", recovery="ignore_range")
    BoundedRunOperator(task_id="pulse", pipeline="recovery/flights_pulse", recovery="ignore_batch")
