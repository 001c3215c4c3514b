"""Spark gives a worker's mailslice error back as text inside its own error: restore it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mailslice.model import errors

_MAILSLICE_ERROR = re.compile(r"^(?:.*\s)?mailslice\.model\.errors\.(\w+): (.+)$", re.MULTILINE)
_FILE_ERRORS = "FileNotFound|IsADirectory|NotADirectory|Permission|OS|Key|Index|UnicodeDecode"
_UNREADABLE = re.compile(
    rf"^(?:pyarrow\.lib\.)?(Arrow\w+|(?:{_FILE_ERRORS})Error): (.+)$", re.MULTILINE
)


@contextmanager
def translated() -> Iterator[None]:
    """Raises the mailslice error that a worker of a Spark job raised. Other errors stay."""
    try:
        yield
    except errors.MailsliceError:
        raise
    except Exception as error:
        product_error = meaning(str(error))
        if product_error is None:
            raise
        raise product_error from error


def meaning(text: str) -> errors.MailsliceError | None:
    """The mailslice error in the text of one of Spark's; None when there is none."""
    matches = _MAILSLICE_ERROR.findall(text)
    if matches:
        name, message = matches[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.MailsliceError):
            return kind(message.strip())
    return None


def unreadable(error: BaseException) -> str | None:
    """What a worker could not read of a file, when that is what ended the job."""
    matches = _UNREADABLE.findall(f"{type(error).__name__}: {error}")
    return f"{matches[-1][0]}: {matches[-1][1].strip()[:200]}" if matches else None
