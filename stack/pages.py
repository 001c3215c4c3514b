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
from typing import Any, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from mailslice.airflow.dag_doc import dag_doc
from mailslice.bench.scale import read_measured, scale_page
from mailslice.cli.documentation import cli_page
from mailslice.model.durations import format_duration
from mailslice.model.settings import groups, variables
from stack.house import limits_table
from stack.settings import TEST_PREFIX, stack_variables

_OF_STACK = f"""\
Of `make run`. Those of the services that `make test` starts: state and ports are \
`{TEST_PREFIX}...`, 1000 higher
(Airflow's 18080); versions and sizes are the same variables."""
_SETTINGS_INTRO = """\
mailslice reads its settings from the environment. When the environment names no store, it reads
`.state/run/settings.env` of the clone as well, which `make run` writes. An unknown MAILSLICE_ name
and a value that is not allowed are errors that name it.

- **Durations** are `90s`, `15m`, `1h`, `30d` or ISO 8601.
- **Secrets in files**: `NAME_FILE` names a file with the value of the variable NAME, of any
  variable below. One line break at the end is left out. NAME and NAME_FILE together are an error.
- **Secrets** are masked in logs and errors: passwords, secret keys, URLs that may hold a password.
- **Service links** of Kubernetes and Docker (`MAILSLICE_..._SERVICE_HOST`, `..._PORT_25_TCP_ADDR`,
  and `tcp://` values of `..._PORT`) are not settings. mailslice ignores them.
- **Airflow**: `MAILSLICE_CONNECTION=ID` names an Airflow connection whose extra is a JSON object of
  these variables; they win over the environment. `eu_=ID,us_=ID` names several deployments, whose
  DAGs get the prefixes. `MAILSLICE_AIRFLOW_CONFIG` names the [YAML file of the DAGs](dags.md).
- **Equal to James'**: where the last column names a property, mailslice and James must agree.
  `mailslice config check` compares what it can."""
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
    for group, cls in groups().items():
        rows, meanings = list[str](), cls.meanings()
        for name, (its_group, field) in variables().items():
            if its_group == group:
                info = cls.model_fields[field]
                meaning, _, james = meanings.get(field, "").partition(" James: ")
                allowed = "; ".join(_allowed(info))
                rows.append(_row(name, _default(info), allowed, meaning, james))
        text = " ".join((cls.__doc__ or "").split())
        lines += ["", f"## {group}", "", text, ""]
        lines += ["| variable | default | allowed | what it is for | equals James' |"]
        lines += ["|---|---|---|---|---|", *rows]
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


def dags_page(root: Path) -> str:
    """The docstrings of the DAG files, with their params."""
    lines = ["# DAGs", "", f"{_HEAD} The text of each is its `doc_md`, which Airflow shows, too."]
    for file in sorted((root / "dags").glob("*.py")):
        code = file.read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(code)) or ""
        doc = dag_doc(file.stem, text, reads_only="Tag.READS" in code)
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
        elif kind is bool:
            yield "true, false"
    for rule in field.metadata:
        for name, word in (
            ("ge", "at least"),
            ("le", "at most"),
            ("min_length", "shortest"),
            ("max_length", "longest"),
        ):
            if (bound := getattr(rule, name, None)) is not None:
                yield f"{word} {format_duration(bound) if isinstance(bound, timedelta) else bound}"
