"""Settings from the environment (`MAILSLICE_*`) or from the file that `make run` writes: one frozen
object a component.

Nothing is read at import: only entry points call `load_settings`. Secrets are `SecretStr`, masked
in repr and logs. `setting_groups` has the fields; other modules import its classes from here. `make
docs` generates docs/settings.md from them, and a test compares the two.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from mailslice.model.durations import format_duration
from mailslice.model.errors import BadSetting
from mailslice.model.names import is_broken
from mailslice.model.setting_groups import (
    AdminSettings,
    AirflowSettings,
    AlertSettings,
    BlobIdKind,
    BlobProvider,
    BlobSettings,
    BlobStrategy,
    CassandraSettings,
    Consistency,
    DutySettings,
    GcSettings,
    GiveUp,
    HashEncoding,
    JamesVersion,
    LogFormat,
    LogSettings,
    OwnSettings,
    PostalMode,
    PostalSettings,
    QueueSettings,
    RabbitSettings,
    RelaySettings,
    S3Settings,
    SmtpInSettings,
    StartTls,
    StuckMode,
    WebadminSettings,
    WorkerSettings,
)
from mailslice.model.setting_types import Duration, Group, LimitRules, Time, Words
from mailslice.model.spark_conf import MASKED

PREFIX = "MAILSLICE_"
STATE_FILE = ".state/run/settings.env"
"""`make run` writes it. Read when the environment names no store. Relative to the clone."""
_STORES = (
    "MAILSLICE_CASSANDRA_CONTACT_POINTS",
    "MAILSLICE_RABBITMQ_URL",
    "MAILSLICE_S3_ENDPOINT",
    "MAILSLICE_POSTAL_URL",
)

CONNECTION = "MAILSLICE_CONNECTION"
"""Names the Airflow connections that hold settings (`mailslice.airflow.deployments`)."""
FILE_SUFFIX = "_FILE"
_SERVICE = re.compile(
    r"_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)$"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://")
_USER = re.compile(r"(?<=['\"]).*@", re.DOTALL)
_SHORT_NAMES = {
    "duty_artifacts": "artifacts",
    "duty_retention": "retention",
    "duty_nodetool": "nodetool",
    "airflow_connection": "connection",
}
"""GROUP_FIELD -> name of a variable that does not name its group."""


class Settings(Group):
    """All settings. `source`: `environment`, the state file, or an Airflow connection."""

    cassandra: CassandraSettings = CassandraSettings()
    own: OwnSettings = OwnSettings()
    rabbitmq: RabbitSettings = RabbitSettings()
    s3: S3Settings = S3Settings()
    blob: BlobSettings = BlobSettings()
    queue: QueueSettings = QueueSettings()
    postal: PostalSettings = PostalSettings()
    duty: DutySettings = DutySettings()
    alert: AlertSettings = AlertSettings()
    admin: AdminSettings = AdminSettings()
    webadmin: WebadminSettings = WebadminSettings()
    gc: GcSettings = GcSettings()
    airflow: AirflowSettings = AirflowSettings()
    log: LogSettings = LogSettings()
    smtp_in: SmtpInSettings = SmtpInSettings()
    relay: RelaySettings = RelaySettings()
    worker: WorkerSettings = WorkerSettings()
    source: str = "environment"
    beside: tuple[str, ...] = ()
    """Variables that were read from the environment although `source` is another."""

    def where(self, name: str) -> str:
        """Where the variable was read, for error messages: `in the environment`, `in FILE`."""
        of_file = self.source != "environment" and name not in self.beside
        return f"in {self.source}" if of_file else "in the environment"


def clone_root() -> Path:
    """The folder above include/. Outside of a clone, some folder that has no state file."""
    return Path(__file__).resolve().parents[3]


def artifacts_of(settings: Settings) -> str:
    """The location of artifacts: the setting, else a state folder; never in site-packages."""
    if settings.duty.artifacts:
        return settings.duty.artifacts
    in_clone = Path(__file__).resolve().is_relative_to(clone_root() / "include")
    return str((clone_root() / ".state" if in_clone else _user_state()) / "artifacts")


def _user_state() -> Path:
    """The user's state folder (XDG Base Directory Specification 0.8)."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "mailslice"
    try:
        return Path.home() / ".local" / "state" / "mailslice"
    except RuntimeError:
        raise BadSetting(
            "MAILSLICE_ARTIFACTS is unset, and this user has no home folder: set it to a folder, "
            "or to s3a://BUCKET/PREFIX"
        ) from None


@cache
def secrets() -> frozenset[str]:
    """Names of the variables whose values are masked."""
    kinds = (SecretStr, SecretStr | None)
    of = {name: groups()[group].model_fields[field] for name, (group, field) in variables().items()}
    return frozenset(name for name, field in of.items() if field.annotation in kinds)


@cache
def variables() -> Mapping[str, tuple[str, str]]:
    """Variable -> (group, field): `MAILSLICE_CASSANDRA_PORT` -> ("cassandra", "port")."""
    named: dict[str, tuple[str, str]] = {}
    for group, cls in groups().items():
        for field in cls.model_fields:
            name = _SHORT_NAMES.get(f"{group}_{field}", f"{group}_{field}")
            named[PREFIX + name.upper()] = (group, field)
    return named


def groups() -> Mapping[str, type[Group]]:
    fields = Settings.model_fields.items()
    return {name: type(one.default) for name, one in fields if isinstance(one.default, Group)}


def load_settings(
    environ: Mapping[str, str] | None = None,
    state_file: Path | None = None,
    origin: Settings | None = None,
) -> Settings:
    """Settings from `environ` (NAME, or NAME_FILE: a file with the value), and from the state file
    if `environ` names no store. `origin` says where the variables of `environ` come from. Raises
    BadSetting.
    """
    environ = os.environ if environ is None else environ
    variables_set = _with_files(_own_variables(environ))
    if variables_set.get(CONNECTION):
        raise BadSetting(
            f"{CONNECTION} names an Airflow connection, which is read inside of Airflow alone. "
            "Remedy: mailslice airflow run --deployment PREFIX -- COMMAND"
        )
    origin = origin or Settings()
    state_file = state_file or clone_root() / STATE_FILE
    if not any(variables_set.get(name) for name in _STORES) and state_file.exists():
        origin = Settings(source=str(state_file), beside=tuple(variables_set))
        written = {name: value for name, value in read_env_file(state_file).items() if value}
        variables_set = {**written, **variables_set}
    known = variables()
    values: dict[str, Any] = {}
    for name, value in variables_set.items():
        if name in known:
            if name in secrets() and is_broken(value):  # before it is sent to a store
                raise BadSetting(f"{name}=*** ({origin.where(name)}): allowed: text in UTF-8")
            group, field = known[name]
            values.setdefault(group, {})[field] = value
        elif not name.removeprefix(PREFIX).startswith(("RUN_", "TEST_", "REQUIRE_", "STACK_")):
            raise BadSetting(
                f"{name} ({origin.where(name)}) is not a setting of mailslice; all are listed in "
                f"docs/settings.md{_nearest(name, known)}"
            )
    try:
        return Settings(**values, source=origin.source, beside=origin.beside)
    except ValidationError as error:
        problems = [_sentence(problem, origin) for problem in error.errors()]
        raise BadSetting("; ".join(problems)) from None


def variable(name: str, environ: Mapping[str, str]) -> str:
    """The value of NAME, or of the file that NAME_FILE names; "" without. Raises BadSetting."""
    either = {one: value for one in (name, name + FILE_SUFFIX) if (value := environ.get(one))}
    return _with_files(either).get(name, "")


def _own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of mailslice that have a value.

    Leaves out variables that Kubernetes and Docker make for a service called mailslice-*: for
    mailslice-smtp-in MAILSLICE_SMTP_IN_PORT=tcp://10.0.0.1:25, which is not that setting.
    """
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX) and value
        if not _ADDRESS.match(value) or not name.endswith(("_PORT", "_TCP", "_UDP", "_SCTP"))
        if name in variables() or not _SERVICE.search(name)
    }


def _with_files(environ: Mapping[str, str]) -> dict[str, str]:
    values = dict(environ)
    for file_variable, path in environ.items():
        name = file_variable.removesuffix(FILE_SUFFIX)
        if name == file_variable or name not in variables():
            continue
        if name in environ:
            raise BadSetting(f"{name} and {file_variable} are both set; allowed is one of them")
        # Editors and `echo` end a file with a line break that is no part of the secret.
        text = _text(path, f"{file_variable}={path!r}", f"a file with the value of {name}")
        values[name] = text.rstrip("\r\n")
        if not values[name]:
            raise BadSetting(f"{file_variable}={path!r}: the file is empty")
        del values[file_variable]
    return values


def read_env_file(path: Path) -> dict[str, str]:
    """The NAME=value lines, without quotes; no blank lines, none with #. Raises BadSetting."""
    allowed = "NAME=value lines in UTF-8. Remove it, or let `make run` write it anew"
    lines = _text(path, str(path), allowed).splitlines()
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    assigned = ((name, value) for name, equals, value in pairs if equals and name[:1] != "#")
    return {name.strip(): value.strip().strip("'\"") for name, value in assigned}


def _text(path: str | Path, named: str, allowed: str) -> str:
    """The file's text. Raises BadSetting, also for bytes that no value can have."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="surrogateescape")
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"{named}: {getattr(error, 'strerror', error)}; allowed: {allowed}"
        ) from None
    if broken := re.search("[\0\udc80-\udcff]", text):
        line = text.count("\n", 0, broken.start()) + 1
        raise BadSetting(f"{named}: line {line} has NUL or no UTF-8 text; allowed: {allowed}")
    return text


def _sentence(problem: Any, origin: Settings) -> str:
    group, field = problem["loc"][:2]
    name = next(name for name, partition in variables().items() if partition == (group, field))
    value = problem["input"]
    if isinstance(value, timedelta):
        value = format_duration(value)
    masked = name in secrets() or problem["type"] == MASKED
    shown = "unset" if value is None else "***" if masked else repr(_without_user(value))
    return f"{name}={shown} ({origin.where(name)}): {_allowed(problem)}"


def _without_user(value: object) -> object:
    """Masks what is before an @: it may be a user and a password, also where none are allowed."""
    return "***@" + value.rpartition("@")[2] if isinstance(value, str) and "@" in value else value


def _allowed(problem: Any) -> str:
    if problem["type"] == "bool_parsing":
        return "allowed: true or false"
    return _USER.sub("***@", str(problem["msg"]).removeprefix("Value error, "))


def _nearest(name: str, known: Mapping[str, object]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {close[0]}?" if close else ""
