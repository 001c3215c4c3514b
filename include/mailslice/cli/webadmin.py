"""`mailslice webadmin`: James' webadmin routes for mail queues, without Airflow."""

import logging
import secrets
import socket
from typing import Annotated

from mailslice.cli.arguments import PORT, option
from mailslice.cli.output import Output
from mailslice.model.errors import BadSetting
from mailslice.model.settings import load_settings


def webadmin(
    out: Output,
    *,
    host: Annotated[
        str, option("--host ADDRESS", "Address to listen on.", show_default="127.0.0.1")
    ] = "127.0.0.1",
    port: Annotated[int, option("--port PORT", "Port to listen on.", PORT, show_default="8000")] = (
        8000
    ),
) -> None:
    """Serve James' webadmin routes for mail queues, blobs, counters and tasks until SIGTERM.

    Clients send MAILSLICE_WEBADMIN_TOKEN as 'Authorization: Bearer TOKEN'. The work is done here,
    one task at a time.
    """
    import uvicorn
    from fastapi import HTTPException, Request

    from mailslice.cockpit.facts import Facts
    from mailslice.cockpit.rights import Right
    from mailslice.maintenance.artifacts import artifacts
    from mailslice.webadmin import app, in_process, queues
    from mailslice.webadmin.work import perform

    settings = load_settings()
    given = settings.webadmin.token
    if given is None or not given.get_secret_value().strip():
        raise BadSetting(
            "MAILSLICE_WEBADMIN_TOKEN is unset: set it, or MAILSLICE_WEBADMIN_TOKEN_FILE, to what "
            "clients send as `Authorization: Bearer TOKEN`"
        )
    token = given.get_secret_value().strip().encode()

    def authorized(request: Request) -> None:
        """Whether the token is ours, in a time that does not tell how much of it is right."""
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        right = secrets.compare_digest(sent.strip().encode("utf-8", "replace"), token)
        if scheme.lower() != "bearer" or not right:
            raise HTTPException(
                401, "a bearer token is missing, or wrong", {"WWW-Authenticate": "Bearer"}
            )

    facts = Facts(lambda: settings)
    tasks = in_process.InProcessTasks(
        lambda request, watch: perform(request, settings, watch),
        artifacts(settings),
        socket.gethostname(),
    )
    api = app.webadmin(
        queues.Queues(facts),
        tasks,
        dict.fromkeys(Right, authorized),
        reason_required=lambda: settings.admin.reason_required,
    )
    try:
        listener = socket.create_server((host, port), reuse_port=False)
    except OSError as error:
        raise BadSetting(
            f"{host}:{port} cannot be opened: {error.strerror or error}; choose another with "
            "--host and --port"
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
    out.line({"host": host, "port": bound}, f"webadmin on http://{host}:{bound}")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        tasks.close()
        facts.close()
