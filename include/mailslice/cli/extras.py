"""Finds the extra of the package to which a missing module belongs. An ImportError names a module;
pyproject.toml lists the distributions of an extra.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from mailslice.model.errors import BadInput

EXTRAS: Mapping[str, Sequence[str]] = {
    "worker": (
        "aiosmtpd boto3 botocore cassandra httptools obstore orjson pika prometheus_client "
        "structlog urllib3 uvloop"
    ).split(),
    "duties": "great_expectations matplotlib numpy pandas psutil pyarrow pyspark".split(),
    "airflow": ["airflow", "yaml"],
    "webadmin": ["fastapi", "starlette", "uvicorn"],
    "postal": ["pymysql"],
}
"""Extra -> its own modules, without those of the extras that it includes."""


class MissingExtra(BadInput):
    """A command needs an extra that is not installed."""

    def __init__(self, command: str, extra: str, module: str) -> None:
        super().__init__(
            f"{command} needs the extra `{extra}`: pip install 'mailslice[{extra}]' "
            f"(the module {module} is missing)"
        )


def extra_of(module: str | None) -> str | None:
    """The extra that brings a module; None where no extra does."""
    top = (module or "").partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules), None)


def require_extra(extra: str) -> None:
    """Raises ModuleNotFoundError unless all modules of the extra are installed.

    For commands that would change something before they import a missing module.
    """
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
