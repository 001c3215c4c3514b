"""plan.json and plan/: what a republish may do, typed, and the digest over all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.duty.artifacts import RunFolder, iso
from mailslice.duty.plans import digest_of, reading, require_same
from mailslice.model.errors import PlanRefused
from mailslice.spark.plan_files import Digest
from mailslice.spark.verdict_files import Judged, digest_of_judged, read_judged

FILE = "plan/mails.parquet"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may publish: the mails in its file. `audit` and `audit_digest` name the audit that proved them lost."""

    run: str
    queue: str
    made_at: datetime
    audit: str
    audit_digest: str
    accept_duplicates: bool
    repeat_unknown: bool
    rows: Digest

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values."""
        return {
            "run": self.run,
            "queue": self.queue,
            "madeAt": iso(self.made_at),
            "audit": self.audit,
            "auditDigest": self.audit_digest,
            "acceptDuplicates": self.accept_duplicates,
            "repeatUnknown": self.repeat_unknown,
            "rows": str(self.rows),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds the digest of the mails."""
        return digest_of(self.decided())

    def mails(self, folder: RunFolder) -> Iterator[Judged]:
        """The mails of the plan, once its file is proved to be what was planned. Raises PlanRefused."""
        if not self.rows.count:
            return
        found = sum((digest_of_judged(rows) for rows in self._batches(folder)), Digest())
        if found != self.rows:
            raise PlanRefused(
                f"the file of the plan below {folder.uri} was changed: its mails have the digest {found}, plan.json says {self.rows}; plan again"
            )
        for rows in self._batches(folder):
            yield from rows

    def _batches(self, folder: RunFolder) -> Iterator[list[Judged]]:
        import pyarrow as pa

        try:
            yield from read_judged(folder.artifacts, [folder.file(FILE)])
        except (OSError, KeyError, pa.ArrowException) as error:
            problem = " ".join(str(error).split())[:200]
            raise PlanRefused(
                f"the file of the plan below {folder.uri} was changed or removed ({problem}): plan again"
            ) from error


def read_plan(summary: Mapping[str, Any], run: str, queue: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run, queue):
        value = summary["decided"]
        plan = Plan(
            value["run"],
            value["queue"],
            datetime.fromisoformat(value["madeAt"]),
            value["audit"],
            value["auditDigest"],
            value["acceptDuplicates"],
            value["repeatUnknown"],
            Digest.parse(value["rows"]),
        )
    require_same(plan.digest, summary, (plan.run, plan.queue), run, queue)
    return plan
