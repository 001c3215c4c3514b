"""The audits of a queue, as others read them: which one is the newest, and its verdicts, once they are proved to be what the audit wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mailslice.duty.artifacts import RunFolder, artifacts
from mailslice.duty.context import FILES
from mailslice.duty.ledger import Ledger
from mailslice.duty.plans import digest_of, reading, require_same
from mailslice.duty.report import DONE, DRY_RUN
from mailslice.duty.sliced import held_to_slices
from mailslice.model.errors import BadInput, PlanRefused
from mailslice.model.mail import QueueName

if TYPE_CHECKING:
    from mailslice.spark.plan_files import Digest
    from mailslice.spark.verdict_files import Judged
    from mailslice.stores import Stores

DUTY = "queue_audit"
PARTS = "plan"
"""The folder of the Parquet files, in the run's folder."""
CENSUS_PATIENCE = timedelta(minutes=5)
"""How long the lock of a queue's audits is waited for: its owner may hold the work queue for 195 s."""
_LOOKED_AT = 200


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit. `census`: it knows of each ready message of the work queue, or found no mail to ask about (`needless`); `shared`: James worked on the
    queue, too. `digest` names this very plan.
    """

    run: str
    queue: QueueName
    made_at: datetime
    shared: bool
    census: bool
    needless: bool
    verdicts: Mapping[str, int]
    rows: Digest
    files: tuple[str, ...]
    digest: str
    folder: RunFolder

    def proved(self) -> Audit:
        """Itself, once its files were read and are what it says. Raises PlanRefused."""
        from mailslice.spark.plan_files import Digest
        from mailslice.spark.verdict_files import digest_of_judged

        found = sum((digest_of_judged(rows) for rows in self._batches()), Digest())
        if found != self.rows:
            raise PlanRefused(
                f"the files of audit {self.run} below {self.folder.uri}/{PARTS} were changed: their digest is {found}, it was {self.rows}"
            )
        return self

    def mails(self) -> Iterator[Judged]:
        """Its mails, oldest slice first within each file."""
        for rows in self._batches():
            yield from rows

    def _batches(self) -> Iterator[list[Judged]]:
        import pyarrow as pa

        from mailslice.spark.verdict_files import read_judged

        try:
            yield from read_judged(
                self.folder.artifacts, [self.folder.file(f"{PARTS}/{file}") for file in self.files]
            )
        except (OSError, KeyError, pa.ArrowException) as error:
            problem = " ".join(str(error).split())[:200]
            raise PlanRefused(
                f"the files of audit {self.run} below {self.folder.uri}/{PARTS} cannot be read ({problem}): audit again"
            ) from error


def lock_name(queue: QueueName) -> str:
    """The lock that audits of a queue and what acts by them share."""
    return f"{DUTY}/{queue}"


def newest_audit(
    stores: Stores, queue: QueueName, *, census_since: datetime | None = None
) -> Audit | None:
    """The newest audit of the whole queue that came to its end; None when there is none.

    With `census_since` the newest that took a census. One that needed none asked about no mail, and says nothing of those that an earlier one found lost:
    it is taken only where no census was taken since then. An audit of some slices (a backfill) is for who names it. Raises PlanRefused as `audit_of`.
    """
    needless: str | None = None
    for report in Ledger(stores, stores.settings).list(DUTY, queue, _LOOKED_AT):
        if held_to_slices(report) or report["status"] not in (DONE, DRY_RUN):
            continue
        told = report.get("census") or {}
        if census_since is None or told.get("taken"):
            too_old = (
                census_since is not None
                and datetime.fromisoformat(report["started"]) < census_since
            )
            return audit_of(
                stores, queue, needless if needless is not None and too_old else report["run"]
            )
        if told.get("needless") and needless is None:
            needless = report["run"]
    return audit_of(stores, queue, needless) if needless is not None else None


def named_audit(stores: Stores, queue: QueueName, run: str) -> Audit:
    """The audit of that run. Raises BadInput when the ledger has no such audit of the queue that came to its end, PlanRefused as `audit_of`."""
    report = Ledger(stores, stores.settings).show(run)
    if report["duty"] != DUTY or report["queue"] != queue:
        raise BadInput(
            f"audit {run!r}: it is a run of {report['duty']} on queue {report['queue']!r}; allowed is an audit of {queue!r}"
        )
    if report["status"] not in (DONE, DRY_RUN):
        raise BadInput(
            f"audit {run!r}: its status is {report['status']!r}; allowed is an audit that is done"
        )
    return audit_of(stores, queue, run)


def audit_of(stores: Stores, queue: QueueName, run: str) -> Audit:
    """The audit that a run planned, done or not. Raises PlanRefused when its plan is gone or was changed."""
    folder = RunFolder(artifacts(stores.settings), DUTY, queue, run)
    found = folder.read_json(FILES["plan"])
    if found is None:
        raise PlanRefused(
            f"audit {run} of queue {queue} has no {FILES['plan']} in {folder.uri}: audit again"
        )
    return read_audit(found, folder)


def read_audit(summary: Mapping[str, Any], folder: RunFolder) -> Audit:
    """The audit in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    from mailslice.spark.plan_files import Digest

    with reading(folder.run, folder.queue):
        value = summary["decided"]
        audit = Audit(
            run=value["run"],
            queue=QueueName(value["queue"]),
            made_at=datetime.fromisoformat(value["madeAt"]),
            shared=value["shared"],
            census=value["census"],
            needless=bool((summary.get("census") or {}).get("needless")),
            verdicts=value["verdicts"],
            rows=Digest.parse(value["rows"]),
            files=tuple(value["files"]),
            digest=digest_of(value),
            folder=folder,
        )
    require_same(audit.digest, summary, (audit.run, audit.queue), folder.run, folder.queue)
    return audit
