# One image for Airflow's components and Spark's: an executor needs the same Python and packages as its driver.
# Debian's own Python and Java, so that the image is what `make setup` gives on such a machine.
FROM debian:bookworm-slim AS base
# curl: health checks; procps: Spark's scripts ask ps; mkdir: Java's package links its man pages, whose folder slim
# images may lack
RUN mkdir -p /usr/share/man/man1 && apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl openjdk-17-jre-headless procps python3.11 \
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

FROM base AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3.11-venv \
    && python3.11 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir uv
ENV UV_NO_CACHE=1
COPY requirements.txt ./
RUN /opt/uv/bin/uv venv --python /usr/bin/python3.11 /opt/venv \
    && /opt/uv/bin/uv pip install --compile-bytecode --python /opt/venv/bin/python -r requirements.txt
COPY LICENSE README.md hatch_build.py pyproject.toml ./
COPY include include
COPY plugins plugins
COPY spark_jobs spark_jobs
# Editable: the compose file mounts the checkout's folders over these, and they are what runs.
RUN /opt/uv/bin/uv pip install --python /opt/venv/bin/python --no-deps --no-build-isolation -e .
RUN python -m sluice.launch.jars spark kafka
# The archive fits the jars at exactly these paths, with these times. It costs a minute, so it follows what rarely
# changes; the run that is traced brings a broker of its own.
RUN SLUICE_HOME=/tmp/home python -m sluice.local.archive

FROM base
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/jars/spark /opt/jars/spark
COPY --from=build /opt/jvm /opt/jvm
COPY LICENSE README.md hatch_build.py pyproject.toml requirements.txt ./
COPY dags dags
COPY include include
COPY plugins plugins
COPY spark_jobs spark_jobs
COPY docker/entrypoint.sh /usr/local/bin/sluice-entrypoint
# A new volume takes the owner of the folder that it covers.
RUN useradd --uid 10001 --create-home sluice \
    && mkdir -p /opt/airflow/logs /opt/airflow/login /var/sluice \
    && chown -R sluice:sluice /opt/airflow /var/sluice
USER sluice
ENTRYPOINT ["sluice-entrypoint"]
CMD ["sluice", "--help"]
