"""Restores mailslice errors: Spark wraps an error of a worker as text in an error of its own.

Arrow's file system raises OSError when S3 does not answer: that becomes StoreUnavailable.
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
"""Lost executors, memory, disks; the last two lines: a lost driver JVM. A retry gets new ones."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raises what `mailslice_error_in` finds, or TryAgain for what Spark lost; others unchanged."""
    try:
        yield
    except errors.MailsliceError:
        raise
    except Exception as error:
        product_error = mailslice_error_in(str(error))
        if lost := _SPARK_LOST.search(f"{type(error).__name__}: {error}"):
            product_error = product_error or errors.TryAgain(f"Spark: {lost[0].strip(' :')[:400]}")
        if product_error is None:
            raise
        raise product_error from error


@contextmanager
def naming_location(uri: str) -> Iterator[None]:
    """Turns an error of the artifacts' location into one that names the file or folder."""
    try:
        yield
    except errors.StoreUnavailable as error:
        raise errors.StoreUnavailable(f"artifacts {uri}: {error}") from error
    except OSError as error:
        text = " ".join(str(error).split())
        raise mailslice_error_in(text) or errors.BadSetting(
            f"artifacts {uri}: {text} (MAILSLICE_ARTIFACTS must be a folder that can be written)"
        ) from error


def mailslice_error_in(text: str) -> errors.MailsliceError | None:
    """The mailslice error that the text of a Spark or Arrow error contains; None without one."""
    for name, message in _MAILSLICE_ERROR.findall(text)[-1:]:
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.MailsliceError):
            return kind(message.strip())
    away = _S3_AWAY.search(text)
    return errors.StoreUnavailable(f"artifacts: {away[0].strip()[:400]}") if away else None
