"""An error of ours that was raised in a Python worker comes back as text inside Spark's own: make it ours again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mailslice.model import errors

_OURS = re.compile(r"^(?:.*\s)?mailslice\.model\.errors\.(\w+): (.+)$", re.MULTILINE)
_FILE = "FileNotFound|IsADirectory|NotADirectory|Permission|OS|Key|Index|UnicodeDecode"
_UNREADABLE = re.compile(rf"^(?:pyarrow\.lib\.)?(Arrow\w+|(?:{_FILE})Error): (.+)$", re.MULTILINE)


@contextmanager
def translated() -> Iterator[None]:
    """Raises, for an error of a Spark job, the mailslice error that its worker raised; another error as it is."""
    try:
        yield
    except errors.MailsliceError:
        raise
    except Exception as error:
        ours = meaning(str(error))
        if ours is None:
            raise
        raise ours from error


def meaning(text: str) -> errors.MailsliceError | None:
    """The error of ours in the text of one of Spark's; None when there is none."""
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.MailsliceError):
            return kind(message.strip())
    return None


def unreadable(error: BaseException) -> str | None:
    """What a worker could not read of a file, when that is what ended the job."""
    found = _UNREADABLE.findall(f"{type(error).__name__}: {error}")
    return f"{found[-1][0]}: {found[-1][1].strip()[:200]}" if found else None
