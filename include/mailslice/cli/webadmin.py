"""`mailslice webadmin`: James' webadmin routes for mail queues, without Airflow."""

import logging
import socket
from typing import Annotated

from mailslice.cli.arguments import PORT, listen_address, option
from mailslice.cli.output import Output
from mailslice.cli.streams import log_infos
from mailslice.model.errors import BadSetting
from mailslice.model.host_port import host_port
from mailslice.model.settings import load_settings


def webadmin(
    out: Output,
    *,
    host: Annotated[
        str,
        option("--host ADDRESS", "Address to listen on.", listen_address, show_default="127.0.0.1"),
    ] = "127.0.0.1",
    port: Annotated[int, option("--port PORT", "Port to listen on.", PORT, show_default="8000")] = (
        8000
    ),
) -> None:
    """Serve James' webadmin routes for mail queues, blobs, counters and tasks until SIGTERM.

    Clients send MAILSLICE_WEBADMIN_TOKEN as 'Authorization: Bearer TOKEN'. This process does the
    work, one task at a time.
    """
    import uvicorn

    from mailslice.cockpit.facts import Facts
    from mailslice.cockpit.rights import Right
    from mailslice.maintenance.artifacts import artifacts
    from mailslice.webadmin import app, in_process, queues
    from mailslice.webadmin.bearer import bearer
    from mailslice.webadmin.work import TaskWork

    log_infos()
    settings = load_settings()
    token = settings.webadmin.token
    authorized = bearer(token.get_secret_value() if token else "")
    facts = Facts(lambda: settings)
    tasks = in_process.InProcessTasks(
        lambda request, watch: TaskWork(request, settings, watch).perform(),
        artifacts(settings),
        socket.gethostname(),
    )
    api = app.webadmin(
        queues.Queues(facts),
        tasks,
        dict.fromkeys(Right, authorized),
        reason_required=lambda: settings.admin.reason_required,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except (OSError, TypeError) as error:  # TypeError: `host` is no host name
        why = getattr(error, "strerror", None) or error
        raise BadSetting(
            f"{host_port(host, port)} cannot be opened: {why}; choose another with --host and "
            "--port"
        ) from error
    bound = listener.getsockname()[1]
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        api,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=5,
    )
    out.line({"host": host, "port": bound}, f"webadmin on http://{host_port(host, bound)}")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        tasks.close()
        facts.close()
