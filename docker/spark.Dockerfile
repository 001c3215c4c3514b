# Spark standalone, master and worker: the Python, the packages and the paths of the Airflow image, so that a driver there and executors here agree.
FROM python:3.11.13-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 50000 --gid 0 --home-dir /home/mailslice --create-home mailslice \
    && install -d -o 50000 -g 0 -m 775 /opt/spark-work /artifacts

WORKDIR /opt/mailslice
COPY requirements.txt pyproject.toml README.md ./
COPY include include
# requirements.txt pins what the extras of pyproject.toml name: no Airflow here.
RUN pip install --no-cache-dir uv==0.13.8 \
    && uv pip install --system --no-cache --constraints requirements.txt -e ".[worker,duties]"

ENV PYTHONPATH=/opt/mailslice/include \
    SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    SPARK_SCALA_VERSION=2.12 \
    SPARK_WORKER_DIR=/opt/spark-work \
    SPARK_NO_DAEMONIZE=true
USER 50000:0
EXPOSE 7077 8080 8081
CMD ["spark-class", "org.apache.spark.deploy.master.Master", "--host", "spark-master", "--port", "7077", "--webui-port", "8080"]
