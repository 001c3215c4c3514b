"""Run a gate: Great Expectations over frames, Data Docs, one error for what does not hold."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mailslice.checks.data_docs import Docs
from mailslice.checks.expectations import Expectation, Frame, Rows
from mailslice.engine.errors import translated_errors
from mailslice.model.errors import GateFailed

_SHOWN = 3
"""Values of a column that a page shows: pages are for people, and must not list mails."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one expectation over `rows` rows. `observed`: values that broke or met it."""

    frame: str
    sentence: str
    success: bool
    column: str
    observed: str
    rows: int
    failed_rows: int

    def as_json(self) -> dict[str, object]:
        return {
            "frame": self.frame,
            "expectation": self.sentence,
            "success": self.success,
            "column": self.column,
            "observed": self.observed,
            "rows": self.rows,
            "failedRows": self.failed_rows,
        }


@dataclass(frozen=True, slots=True)
class GateResult:
    """All findings of a gate, and the link to its Data Docs."""

    name: str
    findings: tuple[Finding, ...]
    link: str

    def lines(self) -> list[dict[str, object]]:
        return [finding.as_json() for finding in self.findings]


Evaluator: TypeAlias = Callable[[str, Sequence[Frame], Docs], GateResult]
"""(gate name, frames, docs) -> the findings of all frames, passed or failed."""


def run_gate(
    name: str, frames: Sequence[Frame], docs: Docs, evaluator: Evaluator | None = None
) -> GateResult:
    """Check every frame against its expectations; `evaluator`: Great Expectations unless given.

    Raises GateFailed with the first failed expectation, its value and rows, and how many more fail.
    """
    result = (evaluator or evaluate)(name, frames, docs)
    broken = [finding for finding in result.findings if not finding.success]
    if broken:
        first = broken[0]
        more = f"; {len(broken) - 1} more expectations fail" if len(broken) > 1 else ""
        raise GateFailed(
            f"gate {name} of {docs.duty} on queue {docs.queue}: not true: {first.sentence!r} "
            f"({first.frame}: {first.column} is {first.observed} in "
            f"{first.failed_rows} of {first.rows} rows){more}. See {result.link}"
        )
    return result


def evaluate(
    name: str, frames: Sequence[Frame], docs: Docs, *, with_pages: bool = True
) -> GateResult:
    """The findings of Great Expectations, failed ones too; Data Docs unless not `with_pages`."""
    # Set before the import, which would report usage. Progress bars would fill task logs.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier

    for chatty in ("great_expectations", "great_expectations.data_context.types.base"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="mailslice-docs-") as folder:
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        for site, settings in dict(context.variables.data_docs_sites or {}).items():
            # Nobody else would remove this temporary folder.
            shutil.rmtree(settings["store_backend"]["base_directory"], ignore_errors=True)
            context.delete_data_docs_site(site)
        backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": folder}
        index = {"class_name": "DefaultSiteIndexBuilder"}
        built = {"site_index_builder": index, "store_backend": backend}
        context.add_data_docs_site("docs", {"class_name": "SiteBuilder", **built})
        findings: list[Finding] = []
        for frame in frames:
            suite = f"{docs.duty}.{name}.{frame.name}"
            findings += _validate(context, frame, suite, RunIdentifier(run_name=docs.run_name))
        link = "not rendered"
        if with_pages:
            context.build_data_docs(site_names=["docs"])
            success = all(finding.success for finding in findings)
            lines = [finding.as_json() for finding in findings]
            link = docs.publish(Path(folder), name, success=success, findings=lines)
    return GateResult(name, tuple(findings), link)


def _validate(context: Any, frame: Frame, suite_name: str, run_id: Any) -> list[Finding]:
    with _table(frame.rows) as (table, count):
        if not count:
            empty = Finding(frame.name, "There are rows to judge.", False, "rows", "0", 0, 0)
            return [] if frame.may_be_empty else [empty]
        # Our page shows not-null rules only where they fail. Great Expectations' page shows all.
        own_sentences = {expectation.sentence for expectation in frame.expectations}
        in_spark = not hasattr(table, "iloc")
        sources = context.data_sources
        source = (sources.add_spark if in_spark else sources.add_pandas)(suite_name)
        checkpoint = _checkpoint(context, frame, suite_name, source)
        outcome = checkpoint.run(batch_parameters={"dataframe": table}, run_id=run_id)
        (validation,) = outcome.run_results.values()
        shown = table.limit(_SHOWN).toPandas() if in_spark else table.head(_SHOWN)
        findings = [_finding(frame, shown, count, result) for result in validation.results]
        return [row for row in findings if not row.success or row.sentence in own_sentences]


@contextmanager
def _table(rows: Rows) -> Iterator[tuple[Any, int]]:
    """The rows in a form that Great Expectations takes, and their count.

    A Spark frame is computed once, and persisted during the gate. Errors of its workers are raised
    here, because Great Expectations would turn them into failed expectations.
    """
    import pandas as pd

    if isinstance(rows, Sequence):
        yield pd.DataFrame([dict(row) for row in rows]), len(rows)
    elif hasattr(rows, "num_rows"):
        yield rows.to_pandas(), rows.num_rows
    else:
        with translated_errors():
            frame = rows.persist()
            count = frame.count()
        try:
            yield frame, count
        finally:
            frame.unpersist()


def _checkpoint(context: Any, frame: Frame, suite_name: str, source: Any) -> Any:
    import great_expectations as gx
    import great_expectations.expectations as gxe

    built = [
        getattr(gxe, expectation.kind)(
            **expectation.arguments,
            description=expectation.sentence,
            meta={"rule": number, "notes": expectation.sentence},
        )
        for number, expectation in enumerate(frame.rules())
    ]
    suite = context.suites.add(gx.ExpectationSuite(suite_name, expectations=built))
    asset = source.add_dataframe_asset(frame.name)
    data = asset.add_batch_definition_whole_dataframe("all")
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name=suite_name, data=data, suite=suite)
    )
    return context.checkpoints.add(
        gx.Checkpoint(
            name=suite_name,
            validation_definitions=[definition],
            result_format={"result_format": "SUMMARY", "partial_unexpected_count": _SHOWN},
        )
    )


def _finding(frame: Frame, first: Any, count: int, result: Any) -> Finding:
    rule = list(frame.rules())[result.expectation_config.meta["rule"]]
    values = result.result.get("partial_unexpected_list") or _values(first, rule)
    if not rule.columns:
        values = [count]
    if not result.success and not result.result.get("unexpected_count"):
        values = _errors(result.exception_info) or values
    observed = ", ".join(list(dict.fromkeys(map(_text, values)))[:_SHOWN])
    failed = int(result.result.get("unexpected_count") or 0)
    column = ", ".join(rule.columns) or "rows"
    return Finding(frame.name, rule.sentence, bool(result.success), column, observed, count, failed)


def _values(first: Any, rule: Expectation) -> list[Any]:
    """Values of the first rows, for an expectation that holds."""
    if len(rule.columns) != 1 or rule.columns[0] not in first:
        return []
    return list(first[rule.columns[0]].tolist())


def _errors(info: Mapping[str, Any] | None) -> list[str]:
    """Messages of what Great Expectations could not compute; it nests them by metric."""
    details = info or {}
    nested = [exception for exception in details.values() if isinstance(exception, Mapping)]
    messages = [exception.get("exception_message") for exception in (details, *nested)]
    return [message for message in messages if message]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())[:120]
