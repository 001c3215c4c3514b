"""The generated pages under docs/: settings, command line, DAGs, scale, the index of decisions.

`make docs` writes them; a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from mailslice.actions.request import MAIL_ACTIONS
from mailslice.airflow.action_dag import action_doc
from mailslice.airflow.dag_doc import dag_doc
from mailslice.bench.scale import read_measured, scale_page
from mailslice.model.durations import format_duration
from mailslice.model.setting_types import Group
from mailslice.model.settings import groups, variables
from stack.cli_page import cli_page
from stack.house import limits_table
from stack.setting_meanings import meanings
from stack.settings import TEST_PREFIX, stack_variables

_OF_STACK = f"""\
These variables configure `make run`. Services of `make test` have a state and ports of their own: \
`{TEST_PREFIX}...`, 1000 higher
(Airflow's 18080). Versions and sizes are the same variables for both."""
_SETTINGS_INTRO = """\
mailslice reads its settings from the environment. When the environment names no store, it reads
`.state/run/settings.env` of the clone as well, which `make run` writes. An unknown MAILSLICE_ name
and a value that is not allowed are errors that name it. An empty value counts as unset.

## What you set first

| you have | set | and then |
|---|---|---|
| a live James | the addresses of the [stores](#reach-the-stores), MAILSLICE_S3_BUCKET, \
MAILSLICE_BLOB_STRATEGY, and a MAILSLICE_OWN_BUCKET of your own | `mailslice config check` |
| queues of your own | the addresses of the stores, MAILSLICE_QUEUE_SHARED=false \
| `mailslice queue create spool` |
| outgoing mail | MAILSLICE_RELAY_HOST, MAILSLICE_RELAY_STARTTLS, MAILSLICE_WORKER_BOUNCE_QUEUE \
| `mailslice worker run --queue outgoing --handler relay` |
| Airflow, or several machines | MAILSLICE_ARTIFACTS=s3a://BUCKET/PREFIX | `mailslice duty list` |

## How values are written

- **Durations** are `90s`, `15m`, `1h`, `30d`, `0` or ISO 8601. **Lists** have commas between.
- **Secrets** are passwords, secret keys, and URLs that may hold a password. The column *allowed*
  marks them. mailslice masks them in logs and errors.
- **Secrets from files**: for every variable NAME below, `NAME_FILE` may name a file with its value,
  as Docker and Kubernetes mount secrets. mailslice leaves out line ends at the end of the file.
  NAME and NAME_FILE together, an empty file and a file that cannot be read are errors.
- **Any characters**: a password in a URL must be percent-encoded. MAILSLICE_RABBITMQ_PASSWORD,
  MAILSLICE_S3_SECRET_KEY and their files take it as it is.
- **Service links** of Kubernetes and Docker are not settings, and mailslice ignores them. They are
  names that end in `_SERVICE_HOST`, `_SERVICE_PORT`, `_SERVICE_PORT_NAME`, `_PORT_25_TCP` or
  `_PORT_25_TCP_ADDR`, and `tcp://` or `udp://` values of `_PORT`. A Service named
  `mailslice-smtp-in` makes `MAILSLICE_SMTP_IN_PORT=tcp://...`: that setting then counts as unset.

## From Airflow's connections

MAILSLICE_CONNECTION names connections of Airflow. DAGs, tasks and pages read them, and
`mailslice airflow run` for a command ([several deployments](airflow.md#several-deployments)).

Such a connection is of type `generic`. Its extra is a JSON object of the variables on this page:

```json
{"MAILSLICE_RABBITMQ_URL": "amqp://rabbit.eu/", "MAILSLICE_RABBITMQ_USERNAME": "mailslice",
 "MAILSLICE_RABBITMQ_PASSWORD": "any characters", "MAILSLICE_CASSANDRA_PORT": 9042}
```

Airflow finds the connection in its secrets backend, its environment or its database, when a task
runs. Values of the connection win over the environment, which all deployments share. Airflow hides
the fields whose names say *password* or *secret* on its pages, and shows all others: give logins by
USERNAME and PASSWORD, not in a URL. MAILSLICE_RABBITMQ_URL and MAILSLICE_RABBITMQ_MANAGEMENT_URL
stand in the connection together. Give each deployment a MAILSLICE_OWN_BUCKET of its own. The
artifacts of a deployment with a prefix are in the folder of that name below MAILSLICE_ARTIFACTS.

A driver in a pod of Spark on Kubernetes has the settings of its own secrets ([scale](scale.md)).
Then each connection needs a MAILSLICE_DUTY_SPARK_CONF that names the secrets of its deployment, and
MAILSLICE_ARTIFACTS in them ends with the prefix.

## What must agree

- **James**: *equal* before a property means that mailslice and James must have the same value, or
  they read and write different data. *own* means that James has such a property, too, and that
  yours may differ: another host name of the same store, or a user with fewer rights.
- **same everywhere**: *yes* means one value for every process of a deployment: workers, `smtp-in`,
  duties, Spark and the command line.

[Concepts](concepts.md) explains slices, deleted marks, stage marks and the census."""
_TASKS = {
    "Reach the stores": ("cassandra", "rabbitmq", "s3"),
    "Agree with James": ("queue", "blob", "own"),
    "Work mails": ("worker", "relay"),
    "Take mail in by SMTP": ("smtp_in",),
    "Run maintenance": ("duty", "gc", "airflow"),
    "Get notified": ("alert", "log"),
}
"""What a reader wants to do, and the groups for it. Groups without a task come last."""
_SETTINGS_COLUMNS = (
    "| variable | default | allowed | what it is for | James' property | same everywhere |"
)
_KINDS: Mapping[Any, str] = {
    bool: "true, false",
    timedelta: "duration",
    int: "whole number",
    float: "number",
    Path: "path",
}
_HEAD = "Generated (`make docs`); a test compares."


def pages(root: Path) -> Mapping[str, str]:
    """Every generated page: its path below docs/ and its text."""
    scale = (root / "docs" / "scale.md").read_text(encoding="utf-8")
    measured = read_measured(root / "docs" / "performance.json")
    own = {"settings.md": settings_page(), "cli.md": cli_page()}
    architecture = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    return {
        **own,
        "dags.md": dags_page(root),
        "scale.md": _with_figures(scale, "scale.md", scale_page(measured)),
        "adr/index.md": decisions_page(root / "docs" / "adr"),
        "architecture.md": architecture_page(architecture),
    }


def architecture_page(text: str) -> str:
    """The page with the figures of `stack/house.py` from its mark to the end."""
    return _with_figures(text, "architecture.md", f"{limits_table()}\n")


def _with_figures(text: str, name: str, figures: str) -> str:
    """The page with these figures from its mark to the end."""
    head, mark, _ = text.partition("<!-- figures: make docs -->\n")
    if not mark:
        raise ValueError(f"docs/{name} has no mark for the figures that are generated")
    return f"{head}{mark}\n{figures}"


def settings_page() -> str:
    """All variables: of mailslice, and of the local stack."""
    lines = ["# Settings", "", _HEAD, ""]
    lines += [_SETTINGS_INTRO]
    classes, listed = groups(), [group for task in _TASKS.values() for group in task]
    others = tuple(group for group in classes if group not in listed)
    for task, names in {**_TASKS, **({"More": others} if others else {})}.items():
        lines += ["", f"## {task}"]
        for group in names:
            text = " ".join((classes[group].__doc__ or "").split())
            lines += ["", f"### {group}", "", text, ""]
            lines += [_SETTINGS_COLUMNS, "|---|---|---|---|---|---|"]
            lines += _settings_of(group, classes[group])
    lines += [
        "",
        "## The local stack",
        "",
        _OF_STACK,
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    stack = stack_variables().items()
    lines += [_row(name, f"`{default}`", meaning) for name, (default, meaning) in stack]
    return "\n".join(lines) + "\n"


def _settings_of(group: str, cls: type[Group]) -> Iterator[str]:
    """One row a variable of the group."""
    texts = meanings(cls)
    for name, (its_group, field) in variables().items():
        if its_group == group:
            meaning, _, james = texts.get(field, "").partition(" James: ")
            same = field in cls.SAME_AS_JAMES | cls.SAME_EVERYWHERE
            yield _row(
                name,
                _default(cls.model_fields[field]),
                "; ".join(_allowed(cls.model_fields[field])),
                meaning,
                f"{'equal' if field in cls.SAME_AS_JAMES else 'own'}: {james}" if james else "none",
                "yes" if same else "no",
            )


def dags_page(root: Path) -> str:
    """The docstrings of the DAG files, with their params."""
    lines = ["# DAGs", "", f"{_HEAD} The text of each is its `doc_md`, which Airflow shows, too."]
    for file in sorted((root / "dags").glob("*.py")):
        code = file.read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(code)) or ""
        is_duty = file.stem != MAIL_ACTIONS
        doc = (
            dag_doc(file.stem, text, reads_only="Tag.READS" in code)
            if is_duty
            else action_doc(text)
        )
        lines += ["", f"## {file.stem}", "", doc.strip()]
    return "\n".join(lines) + "\n"


def decisions_page(folder: Path) -> str:
    """The decisions that stand, and where the numbers went that were merged into them."""
    lines = ["# Decisions", "", f"{_HEAD} What a later engineer would question, with the"]
    lines += [
        "alternatives that were rejected and why. A new decision gets the next free number.",
        "",
    ]
    lines += ["| ADR | decision |", "|---:|---|"]
    merged = dict[int, int]()
    for file in sorted(folder.glob("[0-9]*.md")):
        text = file.read_text(encoding="utf-8")
        number = int(file.name[:4])
        title = text.partition("\n")[0].partition(". ")[2]
        lines.append(f"| {number} | [{title}]({file.name}) |")
        included = re.search(r"^Includes: ([\d, ]+)", text, re.MULTILINE)
        merged |= {int(old): number for old in re.findall(r"\d+", included[1] if included else "")}
    pairs = ", ".join(f"{old} in {new}" for old, new in sorted(merged.items()))
    lines += ["", "## Numbers that are not used any more", "", f"Merged: {pairs}.", ""]
    lines += ["Moved to [tuning](../tuning.md): 28, 29, 30, 31, 43, 58, 59, 60."]
    return "\n".join(lines) + "\n"


def write(root: Path) -> list[str]:
    """Writes the pages; gives the names of those that changed."""
    changed = []
    for name, text in pages(root).items():
        file = root / "docs" / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None or value in ("", ()):
        return "unset"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, timedelta):
        value = format_duration(value)
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(field: FieldInfo) -> Iterator[str]:
    kinds = get_args(field.annotation) or (field.annotation,)
    if SecretStr in kinds:
        yield "secret"
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            yield ", ".join(str(member.value) for member in kind)
        elif kind in _KINDS:
            yield _KINDS[kind]
        elif get_origin(kind) is Annotated:
            yield from _allowed(FieldInfo.from_annotation(kind))
    for rule in field.metadata:
        for name, word in (
            ("ge", "at least"),
            ("le", "at most"),
            ("min_length", "shortest"),
            ("max_length", "longest"),
        ):
            if (bound := getattr(rule, name, None)) is not None:
                yield f"{word} {format_duration(bound) if isinstance(bound, timedelta) else bound}"
