# One image for Airflow's components and Spark's: an executor needs the same Python and packages as its driver.
# Debian's own Python and Java, so that the image is what `make setup` gives on such a machine.
FROM debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
# curl: health checks; procps: Spark's scripts ask ps; mkdir: Java's package links its man pages, whose folder slim
# images may lack
RUN mkdir -p /usr/share/man/man1 && apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates curl openjdk-17-jre-headless procps python3.11 python3.11-venv \
    && rm -rf /var/lib/apt/lists/*

# LANG: Java 17 takes the encoding of texts from it
ENV LANG=C.UTF-8
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV AIRFLOW_HOME=/opt/airflow
ENV AIRFLOW__CORE__DAGS_FOLDER=/opt/sluice/dags
ENV AIRFLOW__CORE__PLUGINS_FOLDER=/opt/sluice/plugins
ENV SLUICE_HOME=/var/sluice
ENV SLUICE_JARS=/opt/jars
ENV SLUICE_JVM_ARCHIVE=/opt/jvm/spark.jsa
WORKDIR /opt/sluice

COPY requirements.txt ./
RUN python3.11 -m venv /opt/venv && pip install --no-cache-dir uv==0.13.9 \
    && uv pip install --no-cache --compile-bytecode --python /opt/venv/bin/python -r requirements.txt

COPY LICENSE README.md hatch_build.py pyproject.toml ./
COPY dags dags
COPY demo demo
COPY include include
COPY plugins plugins
COPY spark_jobs spark_jobs
# Editable: the compose file mounts the checkout's folders over these, and they are what runs.
RUN uv pip install --no-cache --python /opt/venv/bin/python --no-deps --no-build-isolation -e . \
    && python -m compileall -q dags demo include plugins spark_jobs
RUN python -m sluice.launch.jars spark
# A small run is traced, with a broker of its own. The archive fits the jars in the order in which their folder lists
# them, so it is made here and not copied from another stage. Where the order is another one, as it may be after a
# push and a pull, the JVM does without the archive.
RUN python -m sluice.local.archive && rm -r /opt/jars/kafka

COPY docker/entrypoint.sh /usr/local/bin/sluice-entrypoint
# A new volume takes the owner of the folder that it covers.
RUN useradd --uid 10001 --create-home sluice \
    && mkdir -p /opt/airflow/logs /opt/airflow/login /var/sluice \
    && chown -R sluice:sluice /opt/airflow /var/sluice && chmod 700 /var/sluice
USER sluice
ENTRYPOINT ["sluice-entrypoint"]
CMD ["sluice", "--help"]
