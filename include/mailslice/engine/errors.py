"""Spark gives a worker's mailslice error back as text inside its own error: restore it.

Arrow's file system makes an OSError of an S3 that does not answer.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mailslice.model import errors

_MAILSLICE_ERROR = re.compile(r"^(?:.*\s)?mailslice\.model\.errors\.(\w+): (.+)$", re.MULTILINE)
_S3_AWAY = re.compile(r"[^\n]*\bAWS Error [^\n]*")
_SPARK_LOST = re.compile(
    r"[^\n]*(?:ExecutorLostFailure|OutOfMemoryError|FetchFailed|Python worker exited unexpectedly"
    r"|SparkContext was shut down|IOException: No space left)[^\n]*"
    r"|^(?:Py4JNetworkError|ConnectionRefusedError): [^\n]*"
    r"|^Py4JError: An error occurred while calling [^\n]*\Z"
)
"""Executors, memory, disks, and (the last two lines of it) the driver's JVM: a retry has others."""


@contextmanager
def translated() -> Iterator[None]:
    """Raises the `meaning` of an error, TryAgain for what Spark lost; any other stays."""
    try:
        yield
    except errors.MailsliceError:
        raise
    except Exception as error:
        product_error = meaning(str(error))
        if lost := _SPARK_LOST.search(f"{type(error).__name__}: {error}"):
            product_error = product_error or errors.TryAgain(f"Spark: {lost[0].strip(' :')[:400]}")
        if product_error is None:
            raise
        raise product_error from error


@contextmanager
def naming(uri: str) -> Iterator[None]:
    """Turns an error of the artifacts' location into one that names the file or folder."""
    try:
        yield
    except errors.StoreUnavailable as error:
        raise errors.StoreUnavailable(f"artifacts {uri}: {error}") from error
    except OSError as error:
        text = " ".join(str(error).split())
        raise meaning(text) or errors.BadSetting(
            f"artifacts {uri}: {text} (MAILSLICE_ARTIFACTS must be a folder that can be written)"
        ) from error


def meaning(text: str) -> errors.MailsliceError | None:
    """The mailslice error in the text of one of Spark's or Arrow's; None when there is none."""
    for name, message in _MAILSLICE_ERROR.findall(text)[-1:]:
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.MailsliceError):
            return kind(message.strip())
    away = _S3_AWAY.search(text)
    return errors.StoreUnavailable(f"artifacts: {away[0].strip()[:400]}") if away else None
