"""The request of one run of a duty, and the ids of runs."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.names import NO_QUEUE_NAME, queue_name

STEPS = ("plan", "check", "apply", "verify", "report")
NO_QUEUE = QueueName(NO_QUEUE_NAME)
"""In place of a queue's name, for duties that are not about one queue."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:~-]{0,179}")
_TIME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)T(\d\d)[-:]?(\d\d)[-:]?(\d\d)")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of one duty on one queue, or NO_QUEUE: the same for every step of the run.

    `run` names the folder and ledger row; `dag_run` is Airflow's run id or None; `params` are
    JSON values, not yet checked.
    """

    duty: str
    queue: QueueName
    run: str
    dag_run: str | None = None
    who: str = "unknown"
    params: Mapping[str, object] = field(default_factory=dict)
    tells: bool = False
    """Whether people are notified of its alerts."""

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run):
            raise BadInput(
                f"run id {self.run!r}: allowed are 1 to 180 letters, digits and . _ + : ~ "
                "-, a letter or digit first"
            )

    @property
    def reported_queue(self) -> QueueName | None:
        """The queue as reports have it: None for a duty that is not about one."""
        return None if self.queue == NO_QUEUE else self.queue


def queue_or_none(text: str) -> QueueName:
    """A queue's name, or NO_QUEUE. Raises BadInput for a name that no queue may have."""
    return NO_QUEUE if text == NO_QUEUE else queue_name(text)


def new_run(clock: Clock) -> str:
    """A unique run id that sorts by time: `20261121T021500Z-1f3a9c`."""
    return f"{clock():%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def start_in_run_id(run: str) -> str:
    """The time in a run id of `new_run` or Airflow, `20261121021500`; "" for other ids."""
    times = _TIME.findall(run)
    return "".join(times[-1]) if times else ""


def run_of_dag(duty: str, queue: str, dag_run: str) -> str:
    """The run id of one duty and queue. `dag_run`, Airflow's id, is unique within its DAG only."""
    digest = hashlib.blake2s(f"{duty}\0{queue}\0{dag_run}".encode(), digest_size=4).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9._+:-]", "-", f"{duty}~{queue}~{dag_run}".replace("~", "."))
    return f"{safe[:165]}~{digest}"  # `-audit` may follow
