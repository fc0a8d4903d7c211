"""PyFlink: Kafka into Parquet files, up to the ends of now. It keeps checkpoints; no log makes the files a table."""

import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

bootstrap, topic, out, jars = sys.argv[1:]
env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
for key, value in {
    "pipeline.jars": ";".join(f"file://{jar}" for jar in jars.split(",")),
    "parallelism.default": "2",
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.dir": f"file://{out}-checkpoints",
    "table.local-time-zone": "UTC",
}.items():
    env.get_config().set(key, value)
COLUMNS = "id BIGINT, ts TIMESTAMP_LTZ(3), amount DOUBLE, country STRING, payload STRING"
env.execute_sql(
    f"""
    CREATE TABLE records (
        {COLUMNS}, `partition` INT METADATA VIRTUAL, `offset` BIGINT METADATA VIRTUAL,
        `timestamp` TIMESTAMP_LTZ(3) METADATA VIRTUAL
    ) WITH (
        'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
        'properties.group.id' = 'bench', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset',
        'format' = 'json', 'json.ignore-parse-errors' = 'true', 'json.timestamp-format.standard' = 'ISO-8601'
    )"""
)
env.execute_sql(
    f"""
    CREATE TABLE files ({COLUMNS}, `partition` INT, `offset` BIGINT, `timestamp` TIMESTAMP_LTZ(3))
    WITH ('connector' = 'filesystem', 'path' = 'file://{out}', 'format' = 'parquet')"""
)
env.execute_sql("INSERT INTO files SELECT * FROM records").wait()
