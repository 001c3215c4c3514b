"""Keeps mails that people delete for a while, and brings them back as new entries (ADR 85)."""

from mailslice.admin.deletions.deletion import Deletion
from mailslice.admin.deletions.entries import DeletedMail, deleted_mails, deleted_runs
from mailslice.admin.deletions.undelete import Undeleted, forecast, undelete

__all__ = [
    "DeletedMail",
    "Deletion",
    "Undeleted",
    "deleted_mails",
    "deleted_runs",
    "forecast",
    "undelete",
]
