"""Stores each mail, byte for byte, into a Maildir.

The file's name is the enqueue id. So a mail that is delivered again (at least once is the rule) is
stored once, also if a reader has moved it from new/ to cur/. Only a redelivery looks into cur/,
which may be large. Nothing is added to the content: the envelope stays in the queue's records.
"""

import os

from mailslice.model.errors import BadSetting
from mailslice.model.mail import EnqueueId, Mail
from mailslice.model.settings import Settings
from mailslice.stores.durable_files import sync_folder, write_durably
from mailslice.worker.outcome import Complete


class MaildirHandler:
    """One Maildir for all mails of the queue: MAILSLICE_WORKER_MAILDIR, created when missing."""

    def __init__(self, settings: Settings) -> None:
        if settings.worker.maildir is None:
            raise BadSetting(
                f"MAILSLICE_WORKER_MAILDIR is not set ({settings.where('MAILSLICE_WORKER_MAILDIR')}"
                "): the maildir handler needs a folder"
            )
        self._folder = settings.worker.maildir
        try:
            for name in ("tmp", "new", "cur"):
                (self._folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadSetting(
                f"MAILSLICE_WORKER_MAILDIR={str(self._folder)!r}: {error.strerror}; "
                "allowed: a folder that can be written"
            ) from error

    def __call__(
        self, _mail: Mail, content: bytes, *, enqueue_id: EnqueueId, redelivered: bool = True
    ) -> Complete:
        """Durable in new/ when it returns. Raises OSError (say, no space): tried again later."""
        name = f"{enqueue_id}.mailslice"
        new, cur = self._folder / "new", self._folder / "cur"  # where readers add `:2,` and flags
        if redelivered and ((new / name).exists() or any(cur.glob(f"{name}*"))):
            sync_folder(new)  # the writer may have died before its sync
            return Complete()
        temporary = self._folder / "tmp" / f"{name}.{os.getpid()}.{os.urandom(4).hex()}"
        write_durably(new / name, content, temporary)  # an existing file is the same mail
        return Complete()
