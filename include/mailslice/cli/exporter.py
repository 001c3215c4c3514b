"""`mailslice exporter`: figures of all queues and duties for Prometheus, on one port."""

import signal
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Annotated

from mailslice.cli.arguments import PORT, duration, listen_address, option
from mailslice.cli.output import Output
from mailslice.model.host_port import host_port
from mailslice.model.settings import load_settings


def exporter(
    out: Output,
    *,
    port: Annotated[int, option("--port PORT", "Port of /metrics, /livez and /readyz.", PORT)],
    host: Annotated[
        str | None,
        option(
            "--host ADDRESS",
            "Address to listen on; MAILSLICE_WORKER_HEALTH_HOST if not given.",
            listen_address,
        ),
    ] = None,
    interval: Annotated[
        timedelta,
        option(
            "--interval DURATION",
            "Between two rounds that ask the stores; a scrape never asks.",
            partial(duration, minimum=timedelta(seconds=1)),
            show_default="30s",
        ),
    ] = timedelta(seconds=30),
) -> None:
    """Serve figures of queues, duties and workers to Prometheus until SIGTERM.

    One serves an installation. It reads the management API, the ledger and workers' records.
    """
    from mailslice.cli.exporter_samples import JAMES, POSTAL_ALONE, Exporter
    from mailslice.stores import has_cassandra, open_stores
    from mailslice.worker.health import HealthServer

    settings = load_settings()
    address = host or settings.worker.health_host
    sources = JAMES if has_cassandra(settings) else POSTAL_ALONE
    seconds = interval.total_seconds()
    figures = Exporter(lambda: open_stores(settings), seconds, time.monotonic, sources)
    pages = {"/metrics": figures.page, "/livez": figures.livez, "/readyz": figures.readyz}
    server = HealthServer(address, port, pages)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    figures.start()
    server.start()
    out.line(
        {"host": address, "port": server.port},
        f"metrics on http://{host_port(address, server.port)}/metrics",
    )
    stop.wait()
    server.stop()
    figures.stop()
