"""The report of a run: one shape for all duties, kept as report.json and as a ledger row."""

from collections.abc import Iterable, Mapping
from typing import Any

from mailslice.maintenance.artifacts import FILES, RunFolder
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.run_request import STEPS, RunRequest
from mailslice.maintenance.slice_range import limited_to_slices

DONE, NOTHING, DRY_RUN = "done", "nothing to do", "dry run"
REFUSED, FAILED, RUNNING = "refused", "failed", "running"
BAD = (FAILED, REFUSED)

Report = dict[str, Any]


def counts_whole_queue(report: Mapping[str, Any]) -> bool:
    """Whether the run, also a dry one, ended well and was not limited to some slices."""
    return report.get("status") in {DONE, NOTHING, DRY_RUN} and not limited_to_slices(report)


def is_dry(report: Mapping[str, Any]) -> bool:
    """Whether it was a dry run, also one that was refused or failed."""
    return bool((report.get("params") or {}).get("dry_run"))


def lost_mails(report: Mapping[str, Any], limit: int = 0) -> int | None:
    """Mails that an audit found in no queue. None when these are at most `limit` and more may be
    lost: those with verdict unknown, or too young for the audit (`older_than`).
    """
    verdicts, params = report.get("verdicts") or {}, report.get("params") or {}
    lost = sum(int(verdicts.get(name) or 0) for name in ("lost", "lost or ghost"))
    is_proof = bool(verdicts) and not verdicts.get("unknown") and params.get("older_than") is None
    return lost if lost > limit or is_proof else None


def loss_proof(reports: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last audit that could count lost mails, or its copy; else {}. Reports: newest first."""
    for report in reports:
        if counts_whole_queue(report) and lost_mails(report) is not None:
            return report
        if proof := report.get("lossProof"):
            return dict(proof)
    return {}


def base_report(request: RunRequest, params: DutyParams, folder: RunFolder) -> Report:
    """The fields of every report, with zeros. Integers count rows. Times are ISO 8601 UTC."""
    return {
        "run": request.run,
        "dagRun": request.dag_run,
        "duty": request.duty,
        "queue": request.reported_queue,
        "who": request.who,
        "reason": params.reason,
        "params": params.as_json(),
        "started": None,
        "finished": None,
        "status": RUNNING,
        "message": "",
        "planDigest": None,
        **dict.fromkeys(("planned", "applied", "skipped", "failed"), 0),
        "skippedBy": {},
        "bytes": 0,
        "before": None,
        "after": None,
        "seconds": {},
        "artifacts": folder.uri,
        "dataDocs": None,
        "alerts": [],
    }


def with_steps(report: Report, folder: RunFolder) -> Report:
    """The report with fields of the steps' files: start, seconds by step, link to Data Docs."""
    done = {step: summary for step in STEPS[:4] if (summary := folder.read_json(FILES[step]))}
    started = [str(summary["started"]) for summary in done.values() if summary.get("started")]
    docs = [summary["dataDocs"] for summary in done.values() if summary.get("dataDocs")]
    return {
        **report,
        "seconds": {s: summary["seconds"] for s, summary in done.items() if "seconds" in summary},
        "started": min(started, default=report["started"]),
        "dataDocs": docs[-1] if docs else report["dataDocs"],
    }
