"""Each refusal of a pipeline file: exit code 10 and the key that it names; full texts are in tests/golden/check.txt."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.fixtures.golden import Golden
from tests.fixtures.pipelines import BASES, changed, loaded
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError, ExitCode
from sluice.pipeline import load

REFUSALS: dict[str, list[tuple[str, str, str]]] = {
    "kafka": [
        ("key-transform-misspelt", "transfrom: {sql: SELECT 1}", "'transform'"),
        ("key-unknown", "zzz: 1", "zzz"),
        ("key-schema-misspelt", "decode.json: {shema: x}", "'schema'"),
        ("key-pipeline-missing", "pipeline: null", "pipeline"),
        ("key-tags-belongs-below-airflow", "tags: [orders]", "airflow"),
        ("key-cron-belongs-below-schedule", 'cron: "@daily"', "schedule"),
        ("key-not-text", "true: 1", "true"),
        ("name-with-a-space", "pipeline: Flights 2013", "pipeline"),
        ("name-a-number", "pipeline: 7", "'7'"),
        ("name-with-a-line-break", r'pipeline: "abc\n"', "pipeline"),
        ("topics-not-a-list", "source.kafka.topics: t", "[t]"),
        ("topics-empty", "source.kafka.topics: []", "source.kafka.topics"),
        ("topics-named-twice", "source.kafka.topics: [t, t]", "source.kafka.topics"),
        ("topics-missing", "source.kafka: {}", "source.kafka"),
        ("topic-name-with-a-space", 'source.kafka.topics: ["a b"]', "source.kafka.topics"),
        ("topics-beside-pattern", "source.kafka.pattern: a", "pattern"),
        ("exclude-without-pattern", "source.kafka.exclude: a", "exclude"),
        ("pattern-not-a-regular-expression", "source.kafka: {pattern: a(}", "source.kafka.pattern"),
        ("exclude-not-a-regular-expression", 'source.kafka: {pattern: ".*", exclude: a(}', "source.kafka.exclude"),
        ("origin-header-without-clusters", "source.kafka.origin_header: o", "origin_header"),
        ("batch-of-no-records", "source.kafka.max_records_per_batch: 0", "max_records_per_batch"),
        ("batch-of-many-records", "source.kafka.max_records_per_batch: many", "max_records_per_batch"),
        ("starting-offsets-of-another-topic", "source.kafka.starting_offsets: {u: {0: 5}}", "'u'"),
        ("starting-offsets-without-zone", 'source.kafka.starting_offsets: {by_time: "2026-01-01T00:00:00"}', "by_time"),
        ("starting-offsets-unknown", "source.kafka.starting_offsets: middle", "'middle'"),
        ("decode-unknown", "decode: {orc: {schema: id INT}}", "decode.orc"),
        ("decode-empty", "decode: {}", "decode"),
        ("decode-two-formats", "decode: {text: {}, bytes: {}}", "decode"),
        ("schema-type-unknown", "decode.json.schema: id INTT", "'INTT'"),
        ("schema-type-json", "decode.json.schema: id JSON", "'JSON'"),
        ("schema-without-types", 'decode.json.schema: "id, name"', "decode.json.schema"),
        ("schema-empty", 'decode.json.schema: ""', "decode.json.schema"),
        ("schema-cut-short", 'decode.json.schema: "id INT, a ARRAY<"', "decode.json.schema"),
        ("schema-column-twice", 'decode.json.schema: "id INT, ID INT"', "decode.json.schema"),
        ("schema-field-twice", 'decode.json.schema: "a ARRAY<STRUCT<b: INT, B: INT>>"', "'b'"),
        ("schema-column-without-name", 'decode.json.schema: "id INT, `` STRING"', "decode.json.schema"),
        ("schema-field-without-name", 'decode.json.schema: "a STRUCT<` `: INT>"', "decode.json.schema"),
        ("schema-map-with-other-keys", 'decode.json.schema: "m MAP<INT, INT>"', "decode.json.schema"),
        ("schema-with-the-column-offset", "decode.json.schema: _Offset INT", "_Offset"),
        ("schema-with-a-column-of-sluice", "decode.json.schema: __sluice_x INT", "__sluice_x"),
        ("csv-with-an-array", 'decode: {csv: {schema: "id INT, a ARRAY<INT>"}}', "ARRAY"),
        ("csv-quote-is-the-separator", 'decode: {csv: {schema: id INT, quote: ","}}', "separator"),
        ("csv-null-text-is-the-separator", 'decode: {csv: {schema: id INT, null_text: ","}}', "null_text"),
        ("transform-empty", "transform: {}", "transform"),
        ("transform-both", 'transform: {sql: a, python: "sluice.run.preflight:check"}', "transform"),
        ("transform-without-function", "transform: {python: sluice.run.preflight}", "transform.python"),
        ("transform-module-not-a-name", 'transform: {python: "not-a.module:f"}', "transform.python"),
        ("transform-module-unknown", 'transform: {python: "sluice.nothing:f"}', "'sluice.nothing'"),
        ("transform-package-unknown", 'transform: {python: "nowhere.at.all:f"}', "'nowhere.at.all'"),
        ("transform-function-unknown", 'transform: {python: "sluice.run.preflight:chek"}', "'chek'"),
        ("arrow-beside-aggregate", 'transform: {arrow: "tests.fixtures.specs:write"}, rows: aggregate', "aggregate"),
        ("delta-partitioned-twice-by-a-column", "sink.delta: {path: p, partition_by: [id, id]}", "id appears twice"),
        ("delta-path-empty", 'sink.delta.path: ""', "sink.delta.path"),
        ("delta-widen-up-to-not-a-size", "sink.delta: {path: p, evolve: widen, widen_up_to: much}", "widen_up_to"),
        ("sink-unknown", "sink: {nothing: {}}", "sink.nothing"),
        ("suite-without-file", "quality: {suite: expectations/none.json}", "expectations/none.json"),
        ("max-quarantined-a-fraction", "quality: {max_quarantined: 0.01}", "quality.max_quarantined"),
        ("max-quarantined-over-all", "quality: {max_quarantined: 101%}", "quality.max_quarantined"),
        ("max-lost-negative", "quality: {max_lost: -1}", "quality.max_lost"),
        ("max-lost-true", "quality: {max_lost: yes}", "quality.max_lost"),
        ("max-lost-text", "quality: {max_lost: none}", "quality.max_lost"),
        ("before-commit-only-warns", "quality: {when: before_commit, on_failed: warn}", "before_commit"),
        ("split-without-suite", "quality: {split: critical}", "quality.suite"),
        ("split-beside-many-rows", "quality: {suite: suite.json, split: critical}, rows: many", "rows: many"),
        ("masked-column-judged", 'quality: {masked: [pin], history: {columns: {PIN: ["max"]}}}', "PIN"),
        ("masked-field-judged", 'quality: {masked: [pin], history: {columns: {pin.a: ["mean"]}}}', "pin.a"),
        ("recovery-in-capitals", "recovery: Wal", "'wal'"),
        ("recovery-of-aggregates", "rows: aggregate, recovery: ignore_batch", "recovery"),
        ("recovery-choices-without-its-own", "recovery_choices: [wal]", "recovery_choices"),
        ("cron-of-three-fields", 'schedule: {cron: "0 * *"}', "schedule.cron"),
        ("cron-minute-61", 'schedule: {cron: "61 * * * *"}', "schedule.cron"),
        ("cron-of-six-fields", 'schedule: {cron: "0 0 31 2 2 *"}', "schedule.cron"),
        ("cron-name-misspelt", 'schedule: {cron: "@hourlyy"}', "schedule.cron"),
        ("cron-on-a-day-that-never-comes", 'schedule: {cron: "0 0 30 2 *"}', "schedule.cron"),
        ("cron-by-chance", 'schedule: {cron: "R R(0-3) * * *"}', "schedule.cron"),
        ("cron-a-number", "schedule: {cron: 5}", "schedule.cron"),
        ("cron-key-misspelt", 'schedule: {crom: "0 * * * *"}', "'cron'"),
        ("timezone-unknown", 'schedule: {cron: "0 * * * *", timezone: Mars/Phobos}', "schedule.timezone"),
        ("schedule-unknown", "schedule: daily", "schedule"),
        ("schedule-a-bare-cron", 'schedule: "*/5 * * * *"', '{cron: "*/5 * * * *"}'),
        ("schedule-a-list", "schedule: [on_lag]", "schedule"),
        ("schedule-on-lag-a-mapping", "schedule: {on_lag: true}", "schedule"),
        ("lag-with-a-comma", 'lag: {max_records: "100,000"}', "100000"),
        ("lag-age-of-centuries", "lag: {max_age: 99999999999d}", "lag.max_age"),
        ("lag-share-over-all", "lag: {max_retention_share: 1.5}", "lag.max_retention_share"),
        ("on-idle-without-cron", "lag: {on_idle: wait}", "lag.on_idle"),
        ("duration-without-unit", "wal: {keep: 30}", "wal.keep"),
        ("vacuum-sooner-than-a-run-ends", "vacuum: {keep: 1h}", "vacuum.keep"),
        ("vacuum-of-12-hours", "vacuum: {keep: 12h}", "vacuum.keep"),
        ("vacuum-shorter-than-a-long-run", "vacuum: {keep: 2d}, airflow: {execution_timeout: 3d}", "vacuum.keep"),
        ("vacuum-names-a-longer-time", "vacuum: {keep: 7d}, airflow: {execution_timeout: 8d}", "9d"),
        ("maintenance-steps-out-of-order", "airflow: {maintenance_steps: [vacuum, audit]}", "maintenance_steps"),
        ("maintenance-step-twice", "airflow: {maintenance_steps: [audit, audit]}", "maintenance_steps"),
        ("maintenance-steps-without-clock", "airflow: {maintenance_steps: [audit]}", "maintenance_steps"),
        ("maintenance-step-misspelt", "airflow: {maintenance_steps: [audi], maintenance: manual}", "'audit'"),
        ("maintenance-a-boolean", "airflow: {maintenance: yes}", "airflow.maintenance"),
        ("maintenance-weekly", "airflow: {maintenance: weekly}", "'weekly'"),
        ("airflow-email-of-two", 'airflow: {email: ["a@b, c@d"]}', "airflow.email.0"),
        ("airflow-email-without-host", "airflow: {email: [me]}", "airflow.email.0"),
        ("airflow-tags-not-a-list", "airflow: {tags: orders}", "[orders]"),
        ("airflow-tags-a-mapping", "airflow: {tags: {orders: 1}}", "airflow.tags"),
        ("airflow-access-not-a-mapping", "airflow: {access_control: [can_read]}", "airflow.access_control"),
        ("airflow-start-not-a-date", "airflow: {start_date: yesterday}", "airflow.start_date"),
        ("airflow-a-list", "airflow: [orders]", "execution_timeout"),
        ("airflow-start-before-1970", "airflow: {start_date: 0001-01-01}", "airflow.start_date"),
        ("airflow-retries-a-flag", "airflow: {retries: true}", "airflow.retries: expected a whole number, not true"),
        ("batch-limit-a-flag", "source.kafka.max_records_per_batch: true", "not true"),
        ("airflow-retries-of-64-bits", "airflow: {retries: 100000000000}", "airflow.retries"),
        ("airflow-execution-timeout-zero", "airflow: {execution_timeout: 0s}", "airflow.execution_timeout"),
        ("airflow-pool-too-long", f"airflow: {{pool: {'p' * 300}}}", "airflow.pool"),
        ("airflow-owner-with-nul", 'airflow: {owner: "a\\0b"}', "airflow.owner"),
        ("airflow-tag-with-nul", 'airflow: {tags: ["a\\0b"]}', "airflow.tags.0"),
        ("airflow-description-of-two-lines", 'airflow: {description: "a\\nb"}', "airflow.description"),
        ("airflow-email-nothing", "airflow: {email: }", "airflow.email"),
        ("airflow-callback-module-unknown", "airflow: {on_failure: ['nowhere:f']}", "'nowhere'"),
        ("maintenance-rights-without-it", "airflow: {maintenance_access_control: {A: [can_edit]}}", "maintenance"),
        ("freshness-cron-of-words", "airflow: {freshness: {max_age: 2h, cron: at seven}}", "airflow.freshness.cron"),
        ("rule-name-in-capitals", "rules: [{name: A b, sql: {passes: x}}]", "rules.0.name"),
        ("rule-name-twice", "rules: [{name: a, sql: {passes: x}}, {name: a, sql: {passes: y}}]", "'a'"),
        ("rule-without-kind", "rules: [{name: a}]", "rules.0"),
        ("rule-of-two-kinds", "rules: [{name: a, sql: {passes: x}, not_null: {columns: [x]}}]", "rules.0"),
        ("rule-kind-misspelt", "rules: [{name: a, qsl: {passes: x}}]", "'sql'"),
        ("spark-memory-a-number", "spark: {driver_memory: 4}", "spark.driver_memory"),
        ("spark-memory-without-unit", "spark: {driver_memory: '4096'}", "spark.driver_memory"),
        ("spark-conf-memory", "spark: {conf: {spark.driver.memory: 4g}}", "driver_memory"),
        ("spark-conf-java-options", "spark: {conf: {spark.driver.extraJavaOptions: -Xss4m}}", "defaultJavaOptions"),
        ("spark-conf-master", "spark: {conf: {spark.master: yarn}}", "spark.master"),
        ("spark-conf-not-of-spark", "spark: {conf: {sql.shuffle.partitions: 4}}", "sql.shuffle.partitions"),
        ("spark-conf-secret", "spark: {conf: {spark.hadoop.fs.s3a.secret.key: abc}}", "spark.hadoop.fs.s3a.secret.key"),
        (
            "spark-conf-url-with-password",
            "spark: {conf: {spark.jars.repositories: 'https://b:s3cr3t@h/m'}}",
            "a secret",
        ),
        ("spark-conf-option-with-password", "spark: {conf: {spark.x: 'jdbc:p://h/d?password=s3cr3t'}}", "a secret"),
        ("delta-url-with-password", 'sink: {delta: {path: "s3a://AKIA:s3cr3t@b/t"}}', "the URL has a secret"),
        ("delta-url-with-signature", 'sink: {delta: {path: "abfss://c@a/t?sig=s3cr3t"}}', "the URL has a secret"),
        ("quarantine-url-with-password", 'quarantine: {delta: {path: "s3a://A:s3cr3t@b/q"}}', "the URL has a secret"),
        ("files-sink-on-s3", 'sink: {files: {path: "s3://b/x"}}', "sink.files.path"),
        ("foreach-module-unknown", 'sink: {foreach: {python: "no_such_module:Writer"}}', "'no_such_module'"),
        ("postgres-deletes-without-key", "sink: {postgres: {table: t}}, decode: $deletes", "mode: upsert"),
        ("delta-deletes-without-key", "decode: $deletes", "sink.delta"),
        ("kafka-sink-deletes", "sink: {kafka: {topic: x}}, decode: $deletes", "sink.kafka"),
    ],
    "clusters": [
        ("clusters-named-twice", "source.kafka.clusters: [a, a]", "clusters"),
        ("clusters-not-a-connection", 'source.kafka.clusters: [a, "b:c"]', "'b:c'"),
        ("clusters-beside-connection", "source.kafka.connection: a", "connection"),
        ("clusters-beside-pattern", "source.kafka.topics: null, source.kafka.pattern: t.*", "pattern"),
        ("clusters-without-origin-header", "source.kafka.origin_header: null", "origin_header"),
        ("clusters-topic-too-long", f"source.kafka.topics: [{'t' * 249}]", "source.kafka"),
        ("clusters-beside-window", "window: $window", "window"),
        ("clusters-beside-dedupe", "dedupe: {keys: [id], within: 1h}", "dedupe"),
        ("clusters-beside-aggregate", "rows: aggregate, transform: {sql: SELECT 1}", "rows: aggregate"),
        ("clusters-beside-wal", "recovery: wal", "wal"),
        ("clusters-beside-on-lag", "schedule: on_lag", "on_lag"),
        ("clusters-beside-upsert", "sink: {postgres: {table: t, mode: upsert, key: [id]}}", "upsert"),
        ("clusters-read-from-the-sink", "sink: {kafka: {connection: b, topic: t}}", "sink.kafka.topic"),
    ],
    "files": [
        ("archive-in-another-store", "source.file: {path: inbox, format: json, archive: 's3://b/done'}", "s3://b/done"),
        (
            "archive-of-another-host",
            "source.file: {path: 'hdfs://a/in', format: json, archive: 'hdfs://b/done'}",
            "b/done",
        ),
        ("file-glob-absolute", "source.file.glob: /etc/*", "source.file.glob"),
        ("file-glob-above-the-folder", "source.file.glob: ../*", "source.file.glob"),
        ("file-header-of-json", "source.file.header: true", "header"),
        ("file-header-of-parquet", "source.file.format: parquet, source.file.header: true", "header"),
        ("file-archive-in-the-folder", "source.file.archive: inbox/done", "source.file"),
        ("file-archive-is-the-folder", "source.file.archive: ./inbox/", "source.file"),
        ("file-marker-a-path", "source.file.marker: /x", "marker"),
        ("parquet-decoded-as-csv", "source.file.format: parquet, decode: {csv: {schema: id INT}}", "decode.csv"),
        ("parquet-decoded-as-avro", "source.file.format: parquet, decode: {avro: {schema: id INT}}", "decode.avro"),
        ("parquet-decoded-as-xml", "source.file.format: parquet, decode: {xml: {schema: id INT}}", "decode.xml"),
        ("file-with-on-lag", "schedule: on_lag", "source.file"),
        ("file-with-a-limit-of-lag", "lag: {max_records: 5}", "source.file"),
        ("file-with-mirror-group", "lag: {mirror_group: g}", "lag.mirror_group"),
        ("file-with-freshness", "airflow: {freshness: {max_age: 2h}}", "airflow.freshness"),
        ("file-with-freshness-check", 'airflow: {freshness: {cron: "@daily", max_age: 1h}}', "airflow.freshness"),
        ("file-with-on-idle", 'schedule: {cron: "@daily"}, lag: {on_idle: skip}', "lag.on_idle"),
    ],
    "jdbc": [
        ("jdbc-table-and-query", "source.jdbc.query: SELECT 1", "source.jdbc"),
        ("jdbc-without-table", "source.jdbc: {key: id}", "source.jdbc"),
        ("jdbc-table-of-three-parts", "source.jdbc.table: a.b.c", "source.jdbc.table"),
        ("jdbc-table-too-long", f"source.jdbc.table: {'o' * 64}", "source.jdbc.table"),
        ("jdbc-query-that-deletes", "source.jdbc: {query: DELETE FROM orders, key: id}", "source.jdbc.query"),
        ("jdbc-unique-twice", "source.jdbc.unique: [a, a]", "source.jdbc"),
    ],
    "rate": [("rate-with-headers", "decode.json.headers: {a: b}", "headers")],
    "queue": [
        ("queue-stream-with-a-space", "source.queue.streams: [a b]", "source.queue.streams"),
        ("queue-stream-twice", "source.queue.streams: [a, a]", "source.queue"),
        ("queue-field-of-nats", "source.queue.kind: nats_jetstream, source.queue.field: value", "field"),
        ("queue-kind-unknown", "source.queue.kind: rabbit", "'nats_jetstream'"),
        ("queue-field-of-its-own-class", 'source.queue.kind: "my.queues:Rabbit", source.queue.field: value', "field"),
    ],
    "socket": [
        ("socket-that-listens-too-long", "source.socket.listen: 2h", "source.socket.listen"),
        ("socket-replayed", "recovery: replay", "recovery: wal"),
    ],
    "window": [
        ("window-size-zero", "window.size: 0s", "window.size"),
        ("window-slide-longer-than-size", "window.slide: 2h", "window.slide"),
        ("window-slide-zero", "window.slide: 0s", "window.slide"),
        ("window-aggregate-named-window-start", 'window.aggregates: {Window_Start: "count(*)"}', "Window_Start"),
        ("window-by-a-column-of-sluice", "window.by: [_run]", "_run"),
        ("window-by-an-aggregate", "window.by: [N]", "called N"),
        ("window-complete-with-watermark", "window.output: complete", "window.watermark"),
        ("window-without-watermark", "window.watermark: null", "watermark"),
        ("window-hold-idle-at-once", "window.hold: {idle_after: 0s}", "window.hold"),
        ("window-size-and-gap", "window.gap: 30m", "gap"),
        ("window-without-size", "window.size: null", "size"),
        ("window-of-wrapped-sums", 'spark: {conf: {spark.sql.ansi.enabled: "false"}}', "spark.sql.ansi.enabled"),
        ("window-partitioned-by-another-column", "sink.delta.partition_by: [id]", "'id'"),
    ],
    "aggregate": [
        ("aggregate-by-a-column-of-sluice", "aggregate.by: [_run]", "_run"),
        ("aggregate-by-an-aggregate", "aggregate.by: [N]", "called N"),
        ("aggregate-appended", "aggregate.output: append", "aggregate.output"),
        ("aggregate-of-wrapped-sums", 'spark: {conf: {spark.sql.ansi.enabled: "false"}}', "spark.sql.ansi.enabled"),
        ("aggregate-into-kafka", "sink: {kafka: {topic: out}}", "sink.kafka"),
        (
            "aggregate-complete-into-kafka",
            "sink: {kafka: {topic: out, key: id}}, aggregate.output: complete",
            "sink.kafka",
        ),
        ("aggregate-into-kafka-by-its-result", "sink: {kafka: {topic: out, key: n}}", "sink.kafka.key"),
        (
            "aggregate-into-kafka-by-a-part",
            "sink: {kafka: {topic: out, key: id}}, aggregate.by: [id, at]",
            "sink.kafka.key",
        ),
        ("aggregate-partitioned", "sink.delta.partition_by: [id]", "aggregate.output: update"),
        ("aggregate-beside-also", "also: [{kafka: {topic: out}}]", "aggregate.output: update"),
        ("aggregate-beside-window", "window: $window", "window"),
    ],
    "aggregate window dedupe processor": [
        ("beside-upsert", "sink: {delta: {path: p, mode: upsert, key: [id]}}", "mode: upsert"),
        ("of-aggregates", "rows: aggregate", "rows"),
        ("recovery-ignore-batch", "recovery: ignore_batch", "recovery"),
        ("recovery-ignore-range", "recovery: ignore_range", "recovery"),
    ],
    "dedupe processor": [("beside-before-commit", "quality: {when: before_commit}", "quality.when")],
    "window processor": [
        ("beside-dedupe", "dedupe: {keys: [id], within: 1h}", "dedupe"),
        ("flush-with-on-lag", "BASE.flush: {after: 1d}, schedule: on_lag", "schedule: on_lag"),
        ("flush-of-skipped-runs", "BASE.flush: {after: 1d}, $skipped", "lag.on_idle: skip"),
    ],
    "complete update": [
        ("with-flush", "window.flush: {after: 1d}", "window.flush"),
        ("into-kafka", "sink: {kafka: {topic: out}}", "sink.kafka"),
        ("partitioned", "window.by: [id], sink.delta.partition_by: [id]", "window.output: BASE"),
        ("beside-also", "also: [{kafka: {topic: out}}]", "window.output: BASE"),
    ],
    "delta-upsert postgres-upsert": [
        ("without-key", "sink.SINK.key: null", "key: [id]"),
        ("key-twice", "sink.SINK.key: [id, id]", "sink.SINK"),
        ("key-without-mode", "sink.SINK.mode: null", "mode: upsert"),
        ("sequence-without-mode", "sink.SINK.mode: null, sink.SINK.key: null, sink.SINK.sequence: at", "mode: upsert"),
        ("of-many-rows", "rows: many", "rows"),
        ("of-aggregates", "rows: aggregate", "rows"),
    ],
    "session": [
        ("session-gap-zero", "window.gap: 0s", "window.gap"),
        ("session-with-slide", "window.slide: 5m", "window.slide"),
        ("session-without-by", "window.by: null", "window.gap"),
        ("session-complete", "window.output: complete, window.watermark: null", "complete"),
        ("session-update", "window.output: update", "update"),
    ],
    "complete": [("complete-with-hold", "window.hold: {idle_after: 1d}", "window.hold")],
    "dedupe": [
        ("dedupe-of-many-rows", "rows: many", "rows"),
        ("dedupe-into-kafka", "sink: {kafka: {topic: out}}", "sink.kafka"),
        ("dedupe-key-twice", "dedupe.keys: [id, ID]", "dedupe.keys"),
        ("dedupe-within-zero", "dedupe.within: 0s", "dedupe.within"),
        ("dedupe-beside-split", "quality: {suite: suite.json, split: critical}", "quality.split"),
    ],
    "processor": [
        ("processor-by-twice", "processor.by: [id, ID]", "processor.by"),
        ("processor-module-unknown", 'processor.python: "processors.rotatons:Rotations"', "'processors.rotatons'"),
        ("processor-schema-unknown", "processor.schema: id STRANGE", "processor.schema"),
        ("processor-schema-of-sluice", "processor.schema: _run STRING", "_run"),
        ("processor-beside-window", "window: $window", "window"),
        ("processor-partitioned-by-another-column", "sink.delta.partition_by: [at]", "'at'"),
        ("processor-also-upserts", "also: [{postgres: {table: t, mode: upsert, key: [id]}}]", "also[0].postgres"),
        ("processor-state-limited", "state: {max_bytes: 1}", "state.max_bytes"),
        ("processor-beside-freshness", "quality: {history: {freshness: 1h}}", "quality.history.freshness"),
    ],
    "tables": [
        ("table-version-and-time", "tables.c.delta: {path: c, version: 3, timestamp: 2026-01-01T12:00:00Z}", "version"),
        ("table-time-without-zone", "tables.c.delta.timestamp: 2026-01-01T12:00:00", "tables.c.delta.timestamp"),
        (
            "table-that-sql-does-not-name",
            "tables: {c: {delta: {path: c}}}, transform: {sql: SELECT * FROM source WHERE id > 1}",
            "does not name c",
        ),
        ("table-path-with-an-escape", "tables: {c: {delta: {path: a%41b}}}", "%41"),
        ("table-named-source", "tables: {source: {delta: {path: c}}}", "source"),
        ("table-name-in-capitals", "tables: {Carriers: {delta: {path: c}}}", "Carriers"),
        ("table-name-with-a-hyphen", "tables: {a-b: {delta: {path: c}}}", "a-b"),
        ("table-that-no-transform-reads", "transform: null", "tables"),
        ("table-beside-arrow", 'transform: {arrow: "tests.fixtures.specs:write"}', "transform.arrow"),
    ],
    "also": [
        ("also-the-same-delta-table", "also: [{delta: {path: p}}]", "also[0].delta"),
        ("also-two-topics", "also: [{kafka: {topic: out}}, {kafka: {topic: out}}]", "also[1].kafka"),
        ("also-the-topic-that-is-read", "also: [{kafka: {topic: t}}]", "also[0].kafka.topic"),
        ("also-the-quarantine", "also: [{delta: {path: p_quarantine}}]", "also[0].delta"),
        ("also-files-in-the-sink", "also: [{files: {path: p/in}}]", "also[0].files.path"),
        ("also-files-in-the-checkpoints", "also: [{files: {path: checkpoints/x}}]", "also[0].files.path"),
        ("also-foreach-module-unknown", "also: [{foreach: {python: 'nowhere:Writer'}}]", "nowhere"),
        ("also-a-sink-unknown", "also: [{nothing: {}}]", "nothing"),
        ("also-beside-deletes", "sink.delta: {path: p, mode: upsert, key: [id]}, decode: $deletes", "tombstone"),
    ],
    "upsert-also": [
        ("also-upsert-of-many-rows", "rows: many", "also[0].postgres.mode"),
        ("also-upsert-beside-dedupe", "dedupe: {keys: [id], within: 1h, time: at}", "also[0].postgres.mode"),
        ("also-upsert-beside-window", "window: $window", "also[0].postgres.mode"),
    ],
    "delta-upsert": [("delta-upsert-partitioned", "sink.delta.partition_by: [id]", "partition_by")],
    "delta-deletes": [
        ("delta-deletes-by-sequence", "sink.delta.sequence: _timestamp", "sequence"),
        ("tombstone-beside-arrow", 'transform: {arrow: "tests.fixtures.specs:write"}', "transform.arrow"),
    ],
    "postgres-deletes": [
        ("postgres-deletes-without-record-key", "decode.json.key: null", "key: id"),
        ("postgres-deletes-with-the-column-deleted", "decode.json.schema: _Deleted INT", "_deleted"),
        ("postgres-deletes-by-a-column-of-the-value", "sink.postgres.key: [id, name]", "'name'"),
        ("postgres-deletes-by-sequence", "sink.postgres.sequence: at", "sequence"),
        ("postgres-deletes-table-too-long", f"sink.postgres.table: {'x' * 49}", "table"),
        ("postgres-deletes-table-of-deleted-keys", "sink.postgres.table: sluice_deleted_t", "sluice_deleted_t"),
    ],
    "kafka-sink": [
        ("kafka-sink-topic-with-a-space", "sink.kafka.topic: a b", "sink.kafka.topic"),
        ("kafka-sink-topic-too-long", f"sink.kafka.topic: {'x' * 240}", "sink.kafka.topic"),
        ("kafka-sink-topic-of-commits", "sink.kafka.topic: orders.sluice-commits", "sink.kafka.topic"),
        ("kafka-sink-value-unknown", "sink.kafka.value: avro", "sink.kafka.value"),
        ("kafka-sink-value-key-misspelt", "sink.kafka.value: {colum: v}", "'column'"),
        ("kafka-sink-header-twice", "sink.kafka.headers: [a, a]", "sink.kafka"),
        ("kafka-sink-header-of-sluice", "sink.kafka.headers: [_offset]", "_offset"),
        ("kafka-sink-timeout-zero", "sink.kafka.transaction_timeout: 0s", "sink.kafka.transaction_timeout"),
        ("kafka-sink-kept-too-long", "sink.kafka.keep: 30d", "sink.kafka.keep"),
        ("kafka-sink-is-the-source", "source.kafka.topics: [out]", "sink.kafka.topic"),
        ("kafka-sink-commits-are-the-source", "source.kafka.topics: [out.sluice-commits]", "sink.kafka.topic"),
    ],
    "history": [
        ("history-empty", "quality.history: {}", "quality.history"),
        ("history-column-without-figure", "quality.history: {columns: {a: []}}", "a has no figure"),
        ("history-needs-more-runs-than-it-reads", "quality.history.at_least: 21", "at_least"),
    ],
}
"""By base: the id of each refusal, keys that are changed (by dotted names; null removes one), a part of the error.

Of several bases, each has these refusals: its name precedes the id, and replaces BASE; its sink replaces SINK.
Allowed values and bounds of single keys are recorded in ``pipeline.schema.json``; here is one of each kind.
"""

ROWS = [
    pytest.param(
        base,
        *(text.replace("BASE", base).replace("SINK", base.partition("-")[0]) for text in (changes, named)),
        id=f"{base}-{subject}" if " " in bases else subject,
    )
    for bases, rows in REFUSALS.items()
    for base in bases.split()
    for subject, changes, named in rows
]


def refused(file: Path, golden: Golden) -> str:
    """Check that a file is refused, with all that each refusal has; return what is wrong."""
    with pytest.raises(ConfigError) as caught:
        load(file)
    error = caught.value
    golden("check", error)
    assert error.exit_code == ExitCode.CONFIG == 10
    assert str(file) in error.what
    assert "validate-spec" in error.next_step
    assert error.state == "nothing was read or written"
    assert not any(words in error.what for words in ("Input should be", "instance of", "tuple", "  : ")), error.what
    return error.what


@pytest.mark.parametrize(("base", "changes", "named"), ROWS)
def test_pipeline_file_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden, base: str, changes: str, named: str
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    (tmp_path / "suite.json").write_text("{}")
    text = yaml.safe_dump(changed(changes, base), sort_keys=False)
    assert named in refused(write(tmp_path, text), golden)


TEXTS = [
    ("yaml-of-nothing", "", "p.yaml"),
    ("yaml-of-a-text", "just text", "p.yaml"),
    ("yaml-of-a-list", "- a\n- b\n", "p.yaml"),
    ("yaml-cut-short", "pipeline: [\n", "line 2"),
    ("yaml-with-a-tab", GOOD + "rows:\n\t- one\n", "line 10"),
    ("yaml-with-a-bare-cron", GOOD + "schedule: {cron: * * * * *}\n", "line 9"),
    ("yaml-key-twice", GOOD + "rows: one\nrows: filter\n", "line 10: rows"),
    ("yaml-topics-twice", GOOD.replace("topics: [t]", "topics: [t]\n    topics: [u]"), "line 5: source.kafka.topics"),
    ("yaml-not-a-date", GOOD + "airflow: {start_date: 2024-02-30}\n", "line 9: airflow.start_date"),
    ("yaml-section-empty", GOOD + "airflow:\n", "line 9: airflow"),
    ("yaml-rules-empty", GOOD + "rules:\n", "line 9: rules"),
    ("line-of-a-key", GOOD + "zzz: 1\n", "line 9: zzz"),
    ("line-of-a-nested-key", GOOD.replace("topics: [t]", "topic: [t]"), "line 4: source.kafka.topic"),
    ("line-of-a-value-in-a-section", GOOD + "rows: one\nairflow:\n  email: [me]\n", "line 11: airflow.email.0"),
    ("line-of-a-section-that-lacks-a-key", GOOD.replace("{path: p}", "{}"), "line 8: sink.delta.path"),
    ("line-of-two-keys-at-odds", GOOD + "rows: aggregate\nrecovery: ignore_batch\n", "line 10: recovery"),
]


@pytest.mark.parametrize(("text", "named"), [pytest.param(*row[1:], id=row[0]) for row in TEXTS])
def test_pipeline_text_refuses(tmp_path: Path, golden: Golden, text: str, named: str) -> None:
    assert named in refused(write(tmp_path, text), golden)


def test_pipeline_file_names_all_mistakes_at_once(tmp_path: Path, golden: Golden) -> None:
    text = GOOD.replace("pipeline: p", "pipeline: P") + "rows: two\nzzz: 1\n"
    assert len(refused(write(tmp_path, text), golden).splitlines()) == 4


def test_pipeline_file_takes_the_bases_of_the_refusals(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text("{}")
    for base in BASES:
        assert loaded(tmp_path, base=base).name == "p"
