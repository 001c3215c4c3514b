"""Step 4: read back what was published, as its readers will: the metrics file, and the verdicts that a republish works by."""

from __future__ import annotations

from collections import Counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from mailslice.duties.queue_audit.metrics import NAME, file_of
from mailslice.duties.queue_audit.params import Params
from mailslice.duty.audits import Audit, read_audit
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.quality.gate import Expectation, Frame


def run(context: StepContext) -> dict[str, Any]:
    """Whether metrics and files say what was judged. Raises GateFailed."""
    context.need("apply")
    audit = read_audit(context.need("plan"), context.folder).proved()
    return judged(context, "verify", [published(context, audit)])


def published(context: StepContext, audit: Audit) -> Frame:
    """One row a verdict."""
    text = (context.folder.artifacts.read(file_of(context.queue)) or b"").decode()
    whole = not context.params(Params).ranged
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == NAME
    ]
    metrics = {
        sample.labels["verdict"]: sample.value
        for sample in samples
        if sample.labels["queue"] == context.queue
    }
    told = Counter(mail.verdict for mail in audit.mails())
    rows = [
        {
            "verdict": verdict,
            "judged": count,
            "in_files": told[verdict],
            "in_metrics": metrics.get(verdict, -1.0),
        }
        for verdict, count in audit.verdicts.items()
    ]
    expect = [
        Expectation.same(
            "in_files", "judged", "The files hold as many mails of each verdict as were judged so."
        ),
        *([Expectation.same("in_metrics", "judged", "The metrics say the same.")] if whole else []),
    ]
    return Frame("verdicts", rows, expect)
