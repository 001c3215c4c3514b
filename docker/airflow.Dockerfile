# Airflow with everything its duties need: the environment of requirements.txt, as the local stack has it, and Java for spark-submit.
# api-server, scheduler, dag-processor, triggerer and the one-shot init run this image.
FROM python:3.11.13-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 50000 --gid 0 --home-dir /home/mailslice --create-home mailslice \
    && install -d -o 50000 -g 0 -m 775 /opt/airflow /opt/airflow/logs /opt/airflow/logins /artifacts

WORKDIR /opt/mailslice
COPY requirements.txt ./
RUN pip install --no-cache-dir uv==0.13.8 \
    && uv pip install --system --no-cache --require-hashes -r requirements.txt

# Editable: the DAGs find jobs/ beside include/, and Spark's executors find the same path in their image.
COPY pyproject.toml README.md ./
COPY include include
COPY dags dags
COPY jobs jobs
COPY plugins plugins
RUN uv pip install --system --no-cache --no-deps --no-build-isolation -e .

ENV AIRFLOW_HOME=/opt/airflow \
    PYTHONPATH=/opt/mailslice/include \
    GX_ANALYTICS_ENABLED=false
COPY docker/airflow_init.py docker/airflow_init.py
USER 50000:0
EXPOSE 8080
CMD ["airflow", "version"]
