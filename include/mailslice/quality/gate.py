"""Run a gate: Great Expectations over small frames, Data Docs, and one error that says what does not hold."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailslice.model.errors import GateFailed
from mailslice.quality.docs import Docs
from mailslice.quality.expectations import Expectation, Frame

__all__ = ["Expectation", "Finding", "Frame", "GateResult", "run_gate"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one expectation: `observed` are values that broke it (a few), or those that held it; over `rows` rows."""

    frame: str
    sentence: str
    success: bool
    column: str
    observed: str
    rows: int
    failed_rows: int

    def as_json(self) -> dict[str, object]:
        """For the step's summary."""
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
        """The findings as JSON values."""
        return [finding.as_json() for finding in self.findings]


def run_gate(name: str, frames: Sequence[Frame], docs: Docs) -> GateResult:
    """Hold every frame against its expectations. Raises GateFailed naming the first that does not hold, the value, the rows and how many more fail."""
    result = judge(name, frames, docs)
    broken = [finding for finding in result.findings if not finding.success]
    if broken:
        first = broken[0]
        more = f"; {len(broken) - 1} more expectations fail" if len(broken) > 1 else ""
        raise GateFailed(
            f"gate {name} of {docs.duty} on queue {docs.queue}: not true: {first.sentence!r} ({first.frame}: {first.column} is {first.observed} "
            f"in {first.failed_rows} of {first.rows} rows){more}. See {result.link}"
        )
    return result


def judge(name: str, frames: Sequence[Frame], docs: Docs) -> GateResult:
    """The findings, whatever they are; Data Docs are built either way."""
    # Before the import: it would report home, and draw progress bars into task logs.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier

    for chatty in ("great_expectations", "great_expectations.data_context.types.base"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="mailslice-docs-") as folder:
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        for site, told in dict(context.variables.data_docs_sites or {}).items():
            shutil.rmtree(
                told["store_backend"]["base_directory"], ignore_errors=True
            )  # a temporary folder that nobody would remove
            context.delete_data_docs_site(site)
        context.add_data_docs_site("docs", _site(folder))
        findings: list[Finding] = []
        for frame in frames:
            if frame.rows:
                findings += _judge(
                    context,
                    frame,
                    f"{docs.duty}.{name}.{frame.name}",
                    RunIdentifier(run_name=docs.run_name),
                )
        link = _publish(context, Path(folder), name, docs, findings)
    return GateResult(name, tuple(findings), link)


def _publish(context: Any, folder: Path, name: str, docs: Docs, findings: Sequence[Finding]) -> str:
    context.build_data_docs(site_names=["docs"])
    return docs.publish(
        folder,
        name,
        success=all(finding.success for finding in findings),
        findings=[finding.as_json() for finding in findings],
    )


def _site(folder: str) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": folder},
    }


def _judge(context: Any, frame: Frame, suite_name: str, run_id: Any) -> list[Finding]:
    import great_expectations as gx
    import great_expectations.expectations as gxe
    import pandas as pd

    built = [
        getattr(gxe, each.kind)(
            **each.arguments,
            description=each.sentence,
            meta={"sentence": each.sentence, "notes": each.sentence},
        )
        for each in frame.expectations
    ]
    suite = context.suites.add(gx.ExpectationSuite(suite_name, expectations=built))
    asset = context.data_sources.add_pandas(suite_name).add_dataframe_asset(frame.name)
    data = asset.add_batch_definition_whole_dataframe("all")
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name=suite_name, data=data, suite=suite)
    )
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=suite_name,
            validation_definitions=[definition],
            result_format={"result_format": "SUMMARY"},
        )
    )
    table = pd.DataFrame([dict(row) for row in frame.rows])
    outcome = checkpoint.run(batch_parameters={"dataframe": table}, run_id=run_id)
    (validation,) = outcome.run_results.values()
    return [_finding(frame, table, result) for result in validation.results]


def _finding(frame: Frame, table: Any, result: Any) -> Finding:
    arguments = result.expectation_config.kwargs
    column = arguments.get("column") or f"{arguments.get('column_A')}, {arguments.get('column_B')}"
    values = result.result.get("partial_unexpected_list") or _held(table, arguments.get("column"))
    if error := (result.exception_info or {}).get("exception_message"):
        values = [error]
    shown = ", ".join(_shown(value) for value in list(dict.fromkeys(map(_hashable, values)))[:3])
    failed = int(result.result.get("unexpected_count") or 0)
    return Finding(
        frame.name,
        result.expectation_config.meta["sentence"],
        bool(result.success),
        column,
        shown,
        len(frame.rows),
        failed,
    )


def _held(table: Any, column: str | None) -> list[Any]:
    return table[column].tolist()[:3] if column in table else []


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())[:120]
