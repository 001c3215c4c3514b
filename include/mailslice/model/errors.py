"""Errors, in classes by what the caller does about them.

A message is one or two lines that name the value, its place and what is allowed.
"""


class MailsliceError(Exception):
    """Root of all errors raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class SomeFailed(MailsliceError):
    """Some inputs failed and were listed; everything else was done."""


class BadInput(MailsliceError):
    """An input cannot be used. The message names the value, its place and what is allowed."""

    exit_code = 2


class BadSetting(BadInput):
    """A setting is unknown, malformed or weaker than what keeps mail safe."""


class UnknownQueue(BadInput):
    """RabbitMQ has no exchange and work queue of this name."""


class Refused(MailsliceError):
    """A guard or a gate refused. Nothing of what it refused was done."""

    exit_code = 3


class ConfigurationDiffers(Refused):
    """A stored value, such as the view's configuration, differs from the settings and wins."""


class TopologyDiffers(Refused):
    """A RabbitMQ queue or exchange exists with other arguments than declared (406)."""


class GateFailed(Refused):
    """An expectation of a duty's gate does not hold; the run stops here."""


class PlanRefused(Refused):
    """A plan cannot be applied: its digest differs, it is another queue's, or it is too old."""


class ClockSkew(Refused):
    """The clock of this machine and Cassandra's differ by more than a quarter of the grace."""


class TryAgain(MailsliceError):
    """Nothing is wrong with the mail: a later attempt may succeed."""

    exit_code = 4


STORE_ERRORS = (TryAgain, BadSetting)
"""A store does not answer, or refuses a value of the settings. A retry reads them anew."""


class StoreUnavailable(TryAgain):
    """Cassandra, RabbitMQ or S3 does not answer; the message names the address."""


class Unconfirmed(StoreUnavailable):
    """A message was written to RabbitMQ without a confirm: it may or may not be in a queue."""


class TakenOver(MailsliceError):
    """Another worker, or a duty, has the mail now: the old holder stops. Handlers let this pass."""


class QueueMissing(StoreUnavailable):
    """A RabbitMQ queue or exchange, or its binding, was deleted: it takes no messages."""


class SlowDown(StoreUnavailable):
    """S3 asks for fewer requests (503)."""


class DeadLetter(MailsliceError):
    """A message that can never be handled. It is dead-lettered, and the log has the reason."""


class Undecodable(DeadLetter):
    """The bytes are no mail in James' format."""


class ContentMissing(DeadLetter):
    """The header blob or the body blob of the mail is missing."""


def line_of(error: BaseException) -> str:
    """The error as one line for a record or a terminal; with its type if it is no MailsliceError.

    Keeps the first and the last of several lines, where a traceback ends, without Java's stack.
    """
    if isinstance(error, MailsliceError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    return f"{type(error).__name__}: " + " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
