"""One topic, five pipelines, five ways to recover. Copy the group whose promise you need.

| group | recovers by | because |
|---|---|---|
| delays | `replay` | it may wait, and Kafka keeps the records |
| archive | `wal` | it must outlive Kafka's retention, and go on while Kafka is down |
| punctuality | `hot` | its batches are large, and executors come and go |
| board | `ignore_range` | it must be on time; single records may be missing, on the books |
| pulse | `ignore_batch` | it must be on time, and a batch more or less does not matter |

Each group has a sensor, a run, a verdict, and the asset event of its own table. The pipeline files are in
`include/pipelines/recovery/`. A file names a strategy, a group may name another one, and a run may override the file's
where the DAG has a param `recovery` and the group names none.
"""

from pathlib import Path

from airflow.sdk import DAG

from sluice_airflow.group import SluiceTaskGroup

FILES = Path(__file__).parent.parent / "include" / "pipelines" / "recovery"

with DAG(
    "recovery_side_by_side",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    max_active_tasks=2,  # each ingest is a Spark driver on this machine
    doc_md=__doc__,
    tags={"sluice", "example", "topic:flights"},
) as dag:
    SluiceTaskGroup(FILES / "flights_delays.yaml", group_id="delays", recovery="replay")
    SluiceTaskGroup(FILES / "flights_archive.yaml", group_id="archive", recovery="wal")
    SluiceTaskGroup(FILES / "flights_punctuality.yaml", group_id="punctuality", recovery="hot")
    SluiceTaskGroup(FILES / "flights_board.yaml", group_id="board", recovery="ignore_range")
    SluiceTaskGroup(FILES / "flights_pulse.yaml", group_id="pulse", recovery="ignore_batch")
