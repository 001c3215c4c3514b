"""The audits of a queue: finds the newest or a named one, and reads its verdicts."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from mailslice.engine.row_files import RowFile
from mailslice.maintenance.artifacts import FILES, Artifacts, RunFolder, artifacts
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.plan import QueuePlan, read_plan
from mailslice.maintenance.report import DONE, DRY_RUN, counts_whole_queue
from mailslice.maintenance.row_file import require_same_rows, stream_rows
from mailslice.model.errors import BadInput, PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.verdicts import MailVerdict
from mailslice.stores import Stores

DUTY = "queue_audit"
CENSUS_PATIENCE = timedelta(minutes=5)
"""How long a run waits for a queue's audit lock: a census may hold the work queue for 195 s."""
_REPORTS_READ = 200


class AuditReads(JsonModel):
    """Partitions: to be read, read, read twice. Old live mails: of the first and second read."""

    requested: int
    read: int
    twice: int
    candidates: int
    judged: int


class AuditPlan(QueuePlan):
    """One audit."""

    older_than: timedelta
    shared: bool
    """James worked on the queue, too."""
    census: bool
    """It read each ready message of the work queue, or no mail was old enough (`needless`)."""
    unproved: bool
    """A message that the census did not find may still be in the broker."""
    verdicts: dict[str, int]
    verdict_files: tuple[RowFile, ...]
    """Rows are MailVerdict. Each Spark task writes one file."""
    reads: AuditReads

    @property
    def planned(self) -> int:
        """Mails that have a verdict."""
        return sum(file.rows for file in self.verdict_files)

    @property
    def needless(self) -> bool:
        """Whether a census was asked for and no mail was old enough to take one."""
        return self.census and not self.reads.candidates

    def prove(self, location: Artifacts) -> None:
        """Raises PlanRefused when the files are not those that the audit wrote."""
        try:
            for file in self.verdict_files:
                require_same_rows(location, self._folder(location), file)
        except PlanRefused as error:
            raise PlanRefused(
                f"the files of audit {self.run} were changed: audit again ({error})"
            ) from error

    def mails(self, location: Artifacts) -> Iterator[MailVerdict]:
        """Its mails, oldest slice first within each file. Raises as `prove`, before the first."""
        self.prove(location)
        for file in self.verdict_files:
            yield from stream_rows(location, self._folder(location), file, MailVerdict)

    def _folder(self, location: Artifacts) -> str:
        return RunFolder(location, DUTY, self.queue, self.run).name


def lock_name(queue: QueueName) -> str:
    """The lock that a queue's audits share with the duties that act on them."""
    return f"{DUTY}/{queue}"


def newest_audit(
    stores: Stores, queue: QueueName, *, census_since: datetime | None = None
) -> AuditPlan | None:
    """The newest audit of the whole queue that ended well; None when there is none.

    With `census_since` it is the newest that took a census. An audit that needed none examined no
    mail, so it does not refute an earlier one that found mails lost: it is chosen only if no census
    was taken since then. An audit of some slices (a backfill) is not chosen. Raises as `audit_of`.
    """
    chosen: str | None = None
    for report in Ledger(stores, stores.settings).list(DUTY, queue, _REPORTS_READ):
        if not counts_whole_queue(report):
            continue
        census = report.get("census") or {}
        if census_since is None or census.get("taken"):
            started = datetime.fromisoformat(report["started"])
            if chosen is None or census_since is None or started >= census_since:
                chosen = report["run"]
            break
        if census.get("needless") and chosen is None:
            chosen = report["run"]
    return audit_of(stores, queue, chosen) if chosen is not None else None


def named_audit(stores: Stores, queue: QueueName, run: str) -> AuditPlan:
    """The audit of that run. Raises BadInput if none is done, else as `audit_of`."""
    reports = Ledger(stores, stores.settings).list(DUTY, queue, _REPORTS_READ)
    if not any(report["run"] == run and report["status"] in (DONE, DRY_RUN) for report in reports):
        raise BadInput(
            f"audit {run!r} is not in the ledger, or not done; allowed is an audit of {queue!r}"
        )
    return audit_of(stores, queue, run)


def audit_of(stores: Stores, queue: QueueName, run: str) -> AuditPlan:
    """The audit of a run, done or not. Raises PlanRefused for a plan that is gone or changed."""
    folder = RunFolder(artifacts(stores.settings), DUTY, queue, run)
    summary = folder.read_json(FILES["plan"])
    if summary is None:
        raise PlanRefused(
            f"audit {run} of queue {queue} has no {FILES['plan']} in {folder.uri}: audit again"
        )
    return read_plan(summary, AuditPlan, run, queue)
