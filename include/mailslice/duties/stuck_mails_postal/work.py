"""One apply: finishes what killed runs left, then reads each planned row again and acts."""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from mailslice.duties.stuck_mails_postal.closing_recovery import ClosingOutcome, ClosingRecovery
from mailslice.duties.stuck_mails_postal.decision_log import (
    LEFT_ALONE,
    PostalDecisionLog,
    error_details,
    held_details,
)
from mailslice.duties.stuck_mails_postal.planned import (
    BATCH_IN_PROGRESS,
    LOCK_CHANGED,
    SERVER_UNREADABLE,
    PlannedRow,
    PostalAction,
    PostalPlan,
)
from mailslice.duties.stuck_mails_postal.quarantine import PostalQuarantine, entry_of, new_log_id
from mailslice.duties.stuck_mails_postal.quarantined import look_up
from mailslice.duties.stuck_mails_postal.rules import PostalStage, PostalState
from mailslice.duties.stuck_mails_postal.survey import PostalServers, SurveyedRow
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.errors import MailsliceError, Refused, StoreUnavailable, TryAgain
from mailslice.stores.mariadb.failures import Contended
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.changes import (
    MessageChanged,
    PostalChanges,
    PostalRecord,
    RecordMissing,
    RecordRefused,
    RowChanged,
)
from mailslice.stores.postal.messages import PostalMessage
from mailslice.stores.postal.rows import PostalQueue, QueuedMessage

log = logging.getLogger(__name__)

CHUNK = 50
"""Planned rows whose batches are read together."""
MAX_READS = 3
"""How often a message is read at most, if Postal keeps writing about it."""
Lock = tuple[Any, ...]
_ACTIONS = frozenset(PostalAction)
_DAY = timedelta(days=1)


class RowLeftAlone(MailsliceError):
    """A row stays as it is; the text is the key of `skippedBy`."""


class LeftToNextRun(MailsliceError):
    """A row cannot be acted on now. This is no failure: the next run tries again."""


class StuckMessages:
    """Acts on the rows of one plan."""

    def __init__(self, run: Run, plan: PostalPlan, progress: Progress) -> None:
        self._run, self._plan, self._progress = run, plan, progress
        self._postal = run.stores.postal
        self._queue = PostalQueue(self._postal.main)
        self._changes = PostalChanges(self._postal)
        self._quarantine = PostalQuarantine(
            run.stores.records.postal_quarantine, run.folder.artifacts
        )
        self._closings = ClosingRecovery(run, self._quarantine, self._changes)
        self._decisions = PostalDecisionLog(run.stores, run.request.who, run.request.run)
        self._rows = run.read_rows(plan.rows, PlannedRow)
        self._servers = PostalServers(self._postal)
        self._batches: defaultdict[Lock, list[PlannedRow]] = defaultdict(list)
        for row in self._rows:
            if row.is_locked:
                self._batches[row.lock].append(row)
        self._changed_by_us: set[int] = set()
        """Ids of rows that this run changed: they do not make their batch a moving one."""
        self._moving_batches: set[Lock] = set()
        """Batches whose rows somebody else worked on since the plan."""
        self._decided: list[dict[str, Any]] = progress.counted.setdefault("decisions", [])
        self._changed: Counter[str] = progress.counted.setdefault("changedByState", Counter())

    def perform_all(self) -> None:
        """Act on the planned rows, up to the limit and the time limit."""
        finished = self._closings.finish_all({row.queued_message for row in self._rows})
        self._run.report(finishedOfEarlierRuns=finished)
        done = self._done_by_earlier_try() if self._progress.earlier else {}
        self._changed_by_us |= done.keys()
        self._perform_rows(done)
        # A planned row may have been left alone, or answered. Then nobody needs the copy that a
        # killed run made of it.
        finished.update(self._closings.finish_all(()))
        for server, why in sorted(self._servers.unreadable.items()):
            log.warning("server %d was left out: %s", server, why)

    def _perform_rows(self, done: Mapping[int, PostalAction]) -> None:
        """Act on each row; count the rows that an earlier try has `done`, unless unchanged."""
        for chunk in batches(self._rows, CHUNK):
            current = self._read_current_rows(chunk)
            for planned in chunk:
                if self._run.out_of_time() or self._count_toward_limit() >= self._plan.limit:
                    return
                row = current.get(planned.queued_message)
                action = done.get(planned.queued_message)
                if action is None or planned.is_still(row):
                    self._perform(planned, row)
                else:
                    self._record_done(action, planned)

    def _count_toward_limit(self) -> int:
        """The rows that count toward the limit. A row that changed counts: an earlier try may have
        changed it. A row on which no run can act does not: it would use up every run's limit.
        """
        return self._progress.applied + self._progress.skipped[LOCK_CHANGED]

    def _done_by_earlier_try(self) -> dict[int, PostalAction]:
        """Queue row -> action of a killed try of this plan, by the quarantine and the decisions."""
        records, plan = self._run.stores.records, self._plan
        since, until = plan.made_at - _DAY, self._run.clock() + _DAY  # clocks may be set
        written = records.postal_decisions.list(since, until)
        rows = [row for row in written if row.run == plan.run]
        left_alone = {row.log_id for row in rows if row.action == LEFT_ALONE}
        return {
            row.queued_message: PostalAction(row.action)
            for row in rows
            if row.action in _ACTIONS and row.log_id not in left_alone
        } | {
            entry.queued_message: PostalAction.CLOSED
            for entry in records.postal_quarantine.list()
            if entry.run == plan.run and entry.state is EntryState.KEPT
        }

    def _read_current_rows(self, chunk: list[PlannedRow]) -> dict[int, QueuedMessage]:
        """Read the rows as they are now, and note the batches that somebody else works on."""
        self._servers = PostalServers(self._postal, self._servers.unreadable)  # an empty cache
        members = {row.lock: self._batches[row.lock] for row in chunk if row.is_locked}
        rows = [*chunk, *(row for batch in members.values() for row in batch)]
        current = self._queue.by_id(dict.fromkeys(row.queued_message for row in rows))
        for lock, batch in members.items():
            others = (row for row in batch if row.queued_message not in self._changed_by_us)
            if any(not row.is_still(current.get(row.queued_message)) for row in others):
                self._moving_batches.add(lock)
        return current

    def _perform(self, planned: PlannedRow, row: QueuedMessage | None) -> None:
        """Act on one row. An error of a row does not stop the others."""
        try:
            self._record_done(self._act(planned, self._require_unchanged(planned, row)), planned)
        except RowLeftAlone as skipped:
            self._progress.skip(str(skipped))
            if str(skipped) == LOCK_CHANGED:
                self._changed[planned.state.value] += 1
        except (LeftToNextRun, Contended) as error:
            log.warning("queue row %d is left to the next run: %s", planned.queued_message, error)
        except (TryAgain, Refused):
            raise
        except MailsliceError as error:
            self._progress.fail(f"queue row {planned.queued_message}", str(error))

    def _require_unchanged(self, planned: PlannedRow, row: QueuedMessage | None) -> QueuedMessage:
        """The row. Raises RowLeftAlone if it or its batch is not as it was planned, or if the plan
        leaves it alone.
        """
        if row is None or not planned.is_still(row):
            raise RowLeftAlone(LOCK_CHANGED)
        if planned.lock in self._moving_batches:
            raise RowLeftAlone(BATCH_IN_PROGRESS)
        action = self._plan.action(planned, self._plan.mode)
        if not isinstance(action, PostalAction):
            raise RowLeftAlone(action)
        if row.server in self._servers.unreadable:
            raise RowLeftAlone(SERVER_UNREADABLE)
        return row

    def _record_done(self, action: PostalAction, planned: PlannedRow) -> None:
        self._changed_by_us.add(planned.queued_message)
        self._decided.append({**planned.as_json(), "action": action.value})
        self._progress.done(action.value)

    def _act(self, planned: PlannedRow, row: QueuedMessage) -> PostalAction:
        """Read, decide, change; repeat if Postal wrote about the message meanwhile."""
        for _ in range(MAX_READS):
            surveyed = self._resurvey(planned, row)
            now = PlannedRow.of(surveyed)
            action = self._plan.action(now, self._plan.mode)
            accepted = self._plan.accept_duplicates
            if action is PostalAction.RETRIED and not accepted and self._queue.has_other(row):
                action = PostalAction.CLOSED  # else two workers would send both rows
            if not isinstance(action, PostalAction):
                raise RowLeftAlone(action)
            self._run.require_lock()
            try:
                return self._perform_action(action, surveyed)
            except MessageChanged as error:
                log.info("queue row %d: %s: looked at again", row.id, error)
            except RowChanged:
                if planned.is_locked:
                    self._moving_batches.add(planned.lock)
                raise RowLeftAlone(LOCK_CHANGED) from None
            except RecordRefused as error:
                self._servers.unreadable[row.server] = str(error)
                raise RowLeftAlone(SERVER_UNREADABLE) from error
        raise LeftToNextRun("Postal goes on writing about its message")

    def _perform_action(self, action: PostalAction, surveyed: SurveyedRow) -> PostalAction:
        """Act; return the action. A message without content is closed if a copy of it exists."""
        is_lost = surveyed.state is PostalState.CONTENT_LOST  # a killed run may have copied it
        if is_lost and (entry := self._quarantine.closing_of(surveyed.row)) is not None:
            self._remove_from_queue(entry, surveyed)
            return PostalAction.CLOSED
        if action is PostalAction.CLOSED:
            self._close(surveyed)
        else:
            self._change(action, surveyed)
        return action

    def _resurvey(self, planned: PlannedRow, row: QueuedMessage) -> SurveyedRow:
        """State and stage, by Postal's rows as they are now."""
        if planned.is_locked:
            (surveyed,) = self._servers.classified([row], self._queue.now())
            return surveyed
        if [*self._servers.without_message([row])]:
            return SurveyedRow(row, PostalState.MESSAGE_GONE)
        if row.server in self._servers.unreadable:
            return SurveyedRow(row, PostalState.UNKNOWN)
        raise RowLeftAlone(LOCK_CHANGED)  # its message is there again, and no lock is old

    def _change(self, action: PostalAction, surveyed: SurveyedRow) -> None:
        """Act without a copy. The decision is saved first, so that every change has one."""
        row, stage, log_id = surveyed.row, surveyed.stage, new_log_id()
        reason = self._run.duty_params.reason or ""
        is_dead = self._plan.holder_is_dead(PlannedRow.of(surveyed))
        holder = "its worker is gone" if is_dead else "its worker may live: a person accepts it"
        why = {
            PostalAction.COMPLETED: "Postal's record since the lock says how it ended",
            PostalAction.LOST: surveyed.state.value,
            PostalAction.RETRIED: f"{holder}; the lock is given back",
        }[action]
        seen: dict[str, Any] = {"verdict": surveyed.state, "stage": stage, "age": surveyed.age}
        save = partial(self._decisions.save, row, log_id=log_id, decided=self._run.clock(), **seen)
        of_person = f"; {reason}" if reason else ""
        save(action=action, why=why + of_person)
        try:
            if action is PostalAction.RETRIED:
                details = error_details(row, stage, self._decisions.who, reason, is_dead=is_dead)
                record = PostalRecord.error(details, log_id)
                has_record = stage is PostalStage.DEFERRED  # its worker wrote a record already
                self._changes.retry(row, None if has_record else record, surveyed.newest_record)
            elif surveyed.state is PostalState.CONTENT_LOST:
                self._changes.fail(row, PostalRecord.removed(log_id), surveyed.newest_record)
            else:
                self._changes.remove(row)
        except MailsliceError as error:
            if not isinstance(error, StoreUnavailable | RecordMissing):  # which may be committed
                save(action=LEFT_ALONE, why=f"{error}{of_person}")
            raise

    def _close(self, surveyed: SurveyedRow) -> None:
        """Write a durable copy, then change Postal by one transaction, then set the entry KEPT."""
        row, message, stage = surveyed.row, surveyed.message, surveyed.stage
        assert message is not None and stage is not None  # noqa: S101, PT018 - it is stuck
        content = self._read_content(row, message)
        old = self._run.stores.records.postal_quarantine.get(row.server, row.message)
        if old is not None and not look_up(self._postal, [old])[0].is_proved:
            raise LeftToNextRun("its id has another message in quarantine: export and discard that")
        noted = self._quarantine.note(entry_of(self._run, row, stage, message))
        entry = None if noted is None else self._quarantine.copy(noted, content)
        if entry is None:
            raise LeftToNextRun("somebody else works on its entry in quarantine")
        crash.point("postal:kept")
        self._run.require_lock()
        self._remove_from_queue(entry, surveyed)

    def _remove_from_queue(self, entry: PostalEntry, surveyed: SurveyedRow) -> None:
        """Take the row out of Postal's queue. If refused, remove the entry, but not a last copy."""
        record = PostalRecord.held(held_details(entry), entry.log_id)
        try:
            self._changes.close(surveyed.row, record, surveyed.newest_record)
        except (StoreUnavailable, RecordMissing, RowChanged) as error:
            # It is not known what was committed, or who removed the row: Postal's tidy task removes
            # rows without a record, and then the copy is the message. If Postal does not answer,
            # the next run settles the entry.
            outcome = self._closings.settle(entry)
            if outcome is ClosingOutcome.KEPT:
                return
            if outcome is ClosingOutcome.QUEUED:
                self._closings.withdraw(entry)
            is_changed = isinstance(error, RowChanged) or outcome is ClosingOutcome.WITHDRAWN
            raise (RowChanged if is_changed else RecordRefused)(str(error)) from error
        except MailsliceError:
            self._closings.withdraw(entry)
            raise
        else:
            self._closings.keep(entry)

    def _read_content(self, row: QueuedMessage, message: PostalMessage) -> bytes:
        """The content. Raises MessageChanged if it went since the row was read."""
        content = self._servers.ask(row.server, lambda database: database.content(message))
        if (why := self._servers.unreadable.get(row.server)) is not None:
            raise RecordRefused(why)
        if content is None:
            raise MessageChanged(f"message {message.id} of server {row.server} lost its content")
        return content
