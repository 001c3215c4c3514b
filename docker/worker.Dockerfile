# The hot path alone: mailslice with its `worker` extra, pinned by requirements.txt. No Airflow, no Spark, no Great Expectations, no Java.
FROM python:3.11.13-slim-bookworm

RUN useradd --uid 50000 --gid 0 --home-dir /home/mailslice --create-home mailslice \
    && install -d -o 50000 -g 0 -m 775 /maildir /handlers

WORKDIR /opt/mailslice
COPY requirements.txt pyproject.toml README.md ./
COPY include include
RUN pip install --no-cache-dir uv==0.13.8 \
    && uv pip install --system --no-cache --constraints requirements.txt ".[worker]"

# Handlers of your own are mounted here: --handler module:function finds them in the working folder.
WORKDIR /handlers
USER 50000:0
EXPOSE 2525 8000
ENTRYPOINT ["mailslice"]
CMD ["worker", "run", "--help"]
